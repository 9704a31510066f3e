//! The one value that configures IPAM.

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use tortie_net::Cidr;

/// The value of `ipam/v2/config`. Its [`Default`] is what an absent key means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpamConfig {
    /// No host takes addresses from another host's block.
    pub strict_affinity: bool,
    /// Hosts claim blocks by themselves when they need addresses.
    pub auto_allocate_blocks: bool,
    /// Most blocks of one family that a host may own (`maxBlocksPerHost`); none: no limit.
    pub max_blocks_per_host: Option<u32>,
    /// Addresses that are not given out unless asked for by name (`reservedCIDRs`, a field of Tortie's own).
    pub reserved: Vec<Cidr>,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl Default for IpamConfig {
    fn default() -> Self {
        Self {
            strict_affinity: false,
            auto_allocate_blocks: true,
            max_blocks_per_host: None,
            reserved: Vec::new(),
            extra: Extra::default(),
        }
    }
}

impl IpamConfig {
    /// Reads a value; once there is one, a field that is absent is false (Go writers leave false out).
    ///
    /// # Errors
    /// When a field is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let snake = fields.number("max_blocks_per_host", 0, u32::MAX.into())?;
        let limit: Option<u32> = fields.number("maxBlocksPerHost", 0, u32::MAX.into())?.or(snake);
        Ok(Self {
            strict_affinity: fields.flag("strict_affinity")?,
            auto_allocate_blocks: fields.flag("auto_allocate_blocks")?,
            // 0 is what a Go writer means by nothing.
            max_blocks_per_host: limit.filter(|limit| *limit > 0),
            reserved: fields.parsed_list("reservedCIDRs", "write ADDRESS/LENGTH, such as 10.0.0.0/30")?,
            extra: fields.rest(),
        })
    }

    /// The newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("strict_affinity", self.strict_affinity);
        writer.put("auto_allocate_blocks", self.auto_allocate_blocks);
        writer.put_some("maxBlocksPerHost", self.max_blocks_per_host);
        writer.put_list("reservedCIDRs", &self.reserved);
        writer.bytes(&self.extra)
    }
}
