//! The one value that configures IPAM.

use super::ValueError;
use super::json::{Extra, Fields, Writer};

/// The value of `ipam/v2/config`. Its [`Default`] is what an absent key means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpamConfig {
    /// No host takes addresses from another host's block.
    pub strict_affinity: bool,
    /// Hosts claim blocks by themselves when they need addresses.
    pub auto_allocate_blocks: bool,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl Default for IpamConfig {
    fn default() -> Self {
        Self { strict_affinity: false, auto_allocate_blocks: true, extra: Extra::default() }
    }
}

impl IpamConfig {
    /// Reads a value; once there is one, a field that is absent is false (Go writers leave false out).
    ///
    /// # Errors
    /// When a field is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        Ok(Self {
            strict_affinity: fields.flag("strict_affinity")?,
            auto_allocate_blocks: fields.flag("auto_allocate_blocks")?,
            extra: fields.rest(),
        })
    }

    /// The newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("strict_affinity", self.strict_affinity);
        writer.put("auto_allocate_blocks", self.auto_allocate_blocks);
        writer.bytes(&self.extra)
    }
}
