//! Address pools.

use super::json::{Extra, Fields, Writer};
use super::names::{INTERFACE, InterfaceName};
use super::{BLOCK_LEN_V4, BLOCK_LEN_V6, BLOCK_SHORTEST_V4, BLOCK_SHORTEST_V6, ValueError};
use tortie_net::Cidr;

/// An address pool, which is divided into blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Prefix of the pool.
    pub cidr: Cidr,
    /// Tunnel for packets to addresses of the pool (IPv4 only).
    pub ipip: Option<Ipip>,
    /// Packets from the pool to addresses outside of all pools are masqueraded.
    pub masquerade: bool,
    /// IPAM allocates addresses from the pool; true if absent.
    pub ipam: bool,
    /// IPAM claims no new blocks in the pool; its routes are still exported.
    pub disabled: bool,
    /// Prefix length of its blocks, if it is not the default (`blockSize` or `block_size`): 20 to 32 or 116
    /// to 128.
    pub block_size: Option<u8>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

/// IPIP tunnel of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ipip {
    /// Tunnel device given in the value, in practice `tunl0`.
    pub device: InterfaceName,
    /// Condition for using the tunnel.
    pub mode: IpipMode,
}

/// Condition for using a pool's tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum IpipMode {
    /// The tunnel is always used.
    #[default]
    Always,
    /// The tunnel is only used if the BGP next hop is outside of the node's own network.
    CrossSubnet,
}

impl IpipMode {
    /// Returns `always` or `cross-subnet`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::CrossSubnet => "cross-subnet",
        }
    }
}

impl Pool {
    /// Creates a pool that IPAM uses, without tunnel and masquerading.
    #[must_use]
    pub fn new(cidr: Cidr) -> Self {
        Self {
            cidr,
            ipip: None,
            masquerade: false,
            ipam: true,
            disabled: false,
            block_size: None,
            extra: Extra::default(),
        }
    }

    /// Parses the value of the key of `cidr`.
    ///
    /// # Errors
    /// If a field is malformed, if the prefixes of key and value differ, if the pool is too small for one
    /// block or in link-local space, or if an IPv6 pool has IPIP.
    pub fn parse(cidr: Cidr, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        same_cidr(&mut fields, cidr)?;
        let device = fields.parsed::<InterfaceName>("ipip", INTERFACE)?;
        let mode = mode(&mut fields)?;
        let (shortest, longest) =
            if cidr.is_v4() { (BLOCK_SHORTEST_V4, 32) } else { (BLOCK_SHORTEST_V6, 128) };
        let snake = fields.number("block_size", shortest.into(), longest)?;
        let block_size = fields.number("blockSize", shortest.into(), longest)?.or(snake);
        let pool = Self {
            cidr,
            ipip: device.map(|device| Ipip { device, mode }),
            masquerade: fields.flag("masquerade")?,
            ipam: fields.bool("ipam")?.unwrap_or(true),
            disabled: fields.flag("disabled")?,
            block_size,
            extra: fields.rest(),
        };
        pool.check().map(|()| pool)
    }

    /// Returns the prefix length of the pool's blocks.
    #[must_use]
    pub fn block_len(&self) -> u8 {
        self.block_size.unwrap_or(if self.cidr.is_v4() { BLOCK_LEN_V4 } else { BLOCK_LEN_V6 })
    }

    fn check(&self) -> Result<(), ValueError> {
        let block = self.block_len();
        let link_local = if self.cidr.is_v4() {
            Cidr::v4([169, 254, 0, 0].into(), 16)
        } else {
            Cidr::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0].into(), 10)
        };
        let found = format_args!("`{}`", self.cidr).to_string();
        if self.cidr.overlaps(&link_local) {
            return Err(ValueError::new("cidr", found, format!("choose a prefix outside of {link_local}")));
        }
        if self.ipam && !self.disabled && self.cidr.len() > block {
            let expected =
                format!("a pool that IPAM uses holds at least one block: choose /{block} or shorter");
            return Err(ValueError::new("cidr", found, expected));
        }
        match &self.ipip {
            Some(ipip) if !self.cidr.is_v4() => Err(ValueError::new(
                "ipip",
                format_args!("`{}`", ipip.device),
                "IPv6 pools have no IPIP: leave it out",
            )),
            _ => Ok(()),
        }
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("cidr", self.cidr.to_string());
        writer.put("ipip", self.ipip.as_ref().map_or("", |ipip| ipip.device.as_str()));
        writer.put("ipip_mode", self.ipip.as_ref().map_or("", |ipip| ipip.mode.as_str()));
        writer.put("masquerade", self.masquerade);
        writer.put("ipam", self.ipam);
        writer.put("disabled", self.disabled);
        writer.put_some("blockSize", self.block_size);
        writer.bytes(&self.extra)
    }
}

fn mode(fields: &mut Fields) -> Result<IpipMode, ValueError> {
    match fields.text("ipip_mode")?.as_deref() {
        None | Some("" | "always" | "Always") => Ok(IpipMode::Always),
        Some("cross-subnet" | "CrossSubnet") => Ok(IpipMode::CrossSubnet),
        Some(other) => Err(ValueError::new(
            "ipip_mode",
            format_args!("`{other}`"),
            "write \"always\" or \"cross-subnet\"",
        )),
    }
}

/// Reads the field `cidr`, which must equal the prefix of the key if it is present.
pub(super) fn same_cidr(fields: &mut Fields, key: Cidr) -> Result<(), ValueError> {
    match fields.parsed::<Cidr>("cidr", "write ADDRESS/LENGTH, such as 10.0.0.0/16")? {
        Some(cidr) if cidr != key => Err(ValueError::new(
            "cidr",
            format_args!("`{cidr}`"),
            format!("the key says {key}: make them equal"),
        )),
        _ => Ok(()),
    }
}
