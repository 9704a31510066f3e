//! The IPAM configuration, a single value.

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use tortie_net::Cidr;

/// Value of `ipam/v2/config`. An absent key means the [`Default`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpamConfig {
    /// Hosts must not allocate addresses from blocks of other hosts.
    pub strict_affinity: bool,
    /// Hosts claim blocks automatically when they need addresses.
    pub auto_allocate_blocks: bool,
    /// Maximum number of blocks per family and host (`maxBlocksPerHost`); `None` for no limit.
    pub max_blocks_per_host: Option<u32>,
    /// Seconds for which a released address is neither allocated nor free (`ipCooldownSeconds`, Calico 3.33);
    /// `None` for none.
    pub cooldown_seconds: Option<u32>,
    /// Persistence of virtual machines' addresses (`kubeVirtVMAddressPersistence`, Calico 3.32) as stored;
    /// nothing is decided by it.
    pub kube_virt: Option<Value>,
    /// Addresses that are only allocated if explicitly requested (`reservedCIDRs`, a field of Tortie).
    pub reserved: Vec<Cidr>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl Default for IpamConfig {
    fn default() -> Self {
        Self {
            strict_affinity: false,
            auto_allocate_blocks: true,
            max_blocks_per_host: None,
            cooldown_seconds: None,
            kube_virt: None,
            reserved: Vec::new(),
            extra: Extra::default(),
        }
    }
}

impl IpamConfig {
    /// Parses a value. If the value exists, an absent field is false (Go writers omit false).
    ///
    /// # Errors
    /// If a field is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let snake = fields.number("max_blocks_per_host", 0, u32::MAX.into())?;
        let limit: Option<u32> = fields.number("maxBlocksPerHost", 0, u32::MAX.into())?.or(snake);
        Ok(Self {
            strict_affinity: fields.flag("strict_affinity")?,
            auto_allocate_blocks: fields.flag("auto_allocate_blocks")?,
            // Go writers store 0 for no limit.
            max_blocks_per_host: limit.filter(|limit| *limit > 0),
            cooldown_seconds: fields.number("ipCooldownSeconds", 0, u32::MAX.into())?,
            kube_virt: fields.take("kubeVirtVMAddressPersistence"),
            reserved: fields.parsed_list("reservedCIDRs", "write ADDRESS/LENGTH, such as 10.0.0.0/30")?,
            extra: fields.rest(),
        })
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("strict_affinity", self.strict_affinity);
        writer.put("auto_allocate_blocks", self.auto_allocate_blocks);
        writer.put_some("maxBlocksPerHost", self.max_blocks_per_host);
        writer.put_some("ipCooldownSeconds", self.cooldown_seconds);
        writer.put_some("kubeVirtVMAddressPersistence", self.kube_virt.clone());
        writer.put_list("reservedCIDRs", &self.reserved);
        writer.bytes(&self.extra)
    }
}
