//! The node-to-node mesh.

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use super::peer_auth::Password;
use super::peer_options::Bfd;

/// Value of `bgp/v1/global/node_mesh`. An absent key means the [`Default`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeMesh {
    /// True if every host peers with every other.
    pub enabled: bool,
    /// TCP MD5 secret of all mesh sessions.
    pub password: Option<Password>,
    /// BFD parameters of all mesh sessions.
    pub bfd: Option<Bfd>,
    /// Hosts announce only the routes that they originate to each other.
    pub own_only: bool,
    /// Two hosts with both IPv4 and IPv6 addresses have one session per family, as Calico's two daemons do.
    pub per_family: bool,
    /// Unknown fields, kept when the value is written.
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
    /// Parses a value; an absent `enabled` means true.
    ///
    /// # Errors
    /// If a field is malformed.
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

    /// Formats the value in its newest form.
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
