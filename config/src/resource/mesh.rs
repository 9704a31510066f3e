//! The node-to-node mesh.

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use super::peer_auth::Password;
use super::peer_options::Bfd;

/// The value of `bgp/v1/global/node_mesh`. Its [`Default`] is what an absent key means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeMesh {
    /// Every host peers with every other.
    pub enabled: bool,
    /// TCP MD5 secret of all mesh sessions.
    pub password: Option<Password>,
    /// BFD on all mesh sessions.
    pub bfd: Option<Bfd>,
    /// Hosts announce nothing to each other but what they originate.
    pub own_only: bool,
    /// Two hosts that both have both addresses keep a session of each family, as Calico's two daemons do.
    pub per_family: bool,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl Default for NodeMesh {
    fn default() -> Self {
        Self {
            enabled: true,
            password: None,
            bfd: None,
            own_only: false,
            per_family: false,
            extra: Extra::default(),
        }
    }
}

impl NodeMesh {
    /// Reads a value; `enabled` absent means true.
    ///
    /// # Errors
    /// When a field is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        Ok(Self {
            enabled: fields.bool("enabled")?.unwrap_or(true),
            password: Password::take(&mut fields)?,
            bfd: Bfd::take(&mut fields)?,
            own_only: fields.flag("own_only")?,
            per_family: fields.flag("per_family")?,
            extra: fields.rest(),
        })
    }

    /// The newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("enabled", self.enabled);
        if let Some(password) = &self.password {
            password.write(&mut writer);
        }
        writer.put_some("bfd", self.bfd.as_ref().map(Bfd::json));
        writer.put_some("own_only", self.own_only.then_some(true));
        writer.put_some("per_family", self.per_family.then_some(true));
        writer.bytes(&self.extra)
    }
}
