//! Address pools.

use std::fmt;
use std::str::FromStr;

use super::json::{Extra, Fields, Writer};
use super::names::{INTERFACE, InterfaceName};
use super::peer_options::words;
use super::{BLOCK_LEN_V4, BLOCK_LEN_V6, BLOCK_SHORTEST_V4, BLOCK_SHORTEST_V6, ValueError};
use crate::selector::Selector;
use tortie_net::Cidr;

/// Expected format, for errors.
const SELECTOR: &str = "write a selector, such as all() or rack == 'a'";

/// An address pool, which is divided into blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Prefix of the pool.
    pub cidr: Cidr,
    /// Tunnel for packets to addresses of the pool (IPv4 only).
    pub ipip: Option<Ipip>,
    /// VXLAN tunnel for packets to addresses of the pool (`vxlan_mode`), in place of IPIP.
    pub vxlan: Option<IpipMode>,
    /// Packets from the pool to addresses outside of all pools are masqueraded.
    pub masquerade: bool,
    /// IPAM allocates addresses from the pool; true if absent.
    pub ipam: bool,
    /// IPAM claims no new blocks in the pool; its routes are still exported.
    pub disabled: bool,
    /// Prefix length of its blocks, if it is not the default (`blockSize` or `block_size`): 20 to 32 or 116
    /// to 128.
    pub block_size: Option<u8>,
    /// No route inside of the pool is announced to any peer (`disableBGPExport`; in stores of Calico 3 only).
    pub disable_bgp_export: Option<bool>,
    /// Uses of its addresses (`allowed_uses`); empty for the default, workloads and tunnels.
    pub allowed_uses: Vec<AllowedUse>,
    /// Whether IPAM takes addresses without being asked for this pool (`assignment_mode`).
    pub assignment_mode: AssignmentMode,
    /// Hosts that IPAM gives addresses of the pool (`node_selector`); `None` for all. Like the next one a
    /// member of the projection of Calico 3, by the labels of Nodes.
    pub node_selector: Option<Selector>,
    /// Namespaces that IPAM gives addresses of the pool (`namespace_selector`); `None` for all.
    pub namespace_selector: Option<Selector>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

words! {
    /// Use of a pool's addresses.
    AllowedUse: "write \"Workload\", \"Tunnel\" or \"LoadBalancer\"" {
        /// Addresses of workloads.
        Workload = "Workload",
        /// Addresses of tunnels.
        Tunnel = "Tunnel",
        /// Addresses of load balancers, which no host assigns.
        LoadBalancer = "LoadBalancer",
    }
}

words! {
    /// Condition for assignment from a pool.
    AssignmentMode: "write \"Automatic\" or \"Manual\"" {
        /// Always.
        Automatic = "Automatic",
        /// Only if the request names the pool.
        Manual = "Manual",
    }
}

/// IPIP tunnel of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ipip {
    /// Tunnel device given in the value, in practice `tunl0`.
    pub device: InterfaceName,
    /// Condition for using the tunnel.
    pub mode: IpipMode,
}

/// Condition for using a pool's tunnel, IPIP or VXLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum IpipMode {
    /// The tunnel is always used.
    #[default]
    Always,
    /// The tunnel is only used if the BGP next hop (VXLAN: the other host) is outside of the node's own
    /// network.
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
            vxlan: None,
            masquerade: false,
            ipam: true,
            disabled: false,
            block_size: None,
            disable_bgp_export: None,
            allowed_uses: Vec::new(),
            assignment_mode: AssignmentMode::Automatic,
            node_selector: None,
            namespace_selector: None,
            extra: Extra::default(),
        }
    }

    /// Parses the value of the key of `cidr`.
    ///
    /// # Errors
    /// If a field is malformed, if the prefixes of key and value differ, if the pool is too small for one
    /// block or in link-local space, if an IPv6 pool has IPIP, or if a pool has both tunnels.
    pub fn parse(cidr: Cidr, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        same_cidr(&mut fields, cidr)?;
        let device = fields.parsed::<InterfaceName>("ipip", INTERFACE)?;
        let ipip_mode = mode(&mut fields, "ipip_mode")?.unwrap_or_default();
        let vxlan = mode(&mut fields, "vxlan_mode")?;
        let (shortest, longest) =
            if cidr.is_v4() { (BLOCK_SHORTEST_V4, 32) } else { (BLOCK_SHORTEST_V6, 128) };
        let snake = fields.number("block_size", shortest.into(), longest)?;
        let block_size = fields.number("blockSize", shortest.into(), longest)?.or(snake);
        let pool = Self {
            cidr,
            ipip: device.map(|device| Ipip { device, mode: ipip_mode }),
            vxlan,
            masquerade: fields.flag("masquerade")?,
            ipam: fields.bool("ipam")?.unwrap_or(true),
            disabled: fields.flag("disabled")?,
            block_size,
            disable_bgp_export: fields.bool("disableBGPExport")?,
            allowed_uses: fields.parsed_list("allowed_uses", AllowedUse::EXPECTED)?,
            assignment_mode: fields
                .parsed("assignment_mode", AssignmentMode::EXPECTED)?
                .unwrap_or(AssignmentMode::Automatic),
            node_selector: fields.parsed("node_selector", SELECTOR)?,
            namespace_selector: fields.parsed("namespace_selector", SELECTOR)?,
            extra: fields.rest(),
        };
        pool.check().map(|()| pool)
    }

    /// Returns true if a use is allowed.
    #[must_use]
    pub fn allows(&self, wanted: AllowedUse) -> bool {
        match self.allowed_uses.as_slice() {
            [] => wanted != AllowedUse::LoadBalancer,
            uses => uses.contains(&wanted),
        }
    }

    /// Returns true if hosts have addresses of the pool. One for load balancers only is no pool for NAT,
    /// tunnels and routes.
    #[must_use]
    pub fn is_for_hosts(&self) -> bool {
        self.allowed_uses != [AllowedUse::LoadBalancer]
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
            Some(_) if self.vxlan.is_some() => Err(ValueError::new(
                "vxlan_mode",
                "a tunnel besides IPIP",
                "a pool has one tunnel: leave out `ipip` or `vxlan_mode`",
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
        writer.put_some("vxlan_mode", self.vxlan.map(IpipMode::as_str));
        writer.put("masquerade", self.masquerade);
        writer.put("ipam", self.ipam);
        writer.put("disabled", self.disabled);
        writer.put_some("blockSize", self.block_size);
        writer.put_some("disableBGPExport", self.disable_bgp_export);
        writer.put_list("allowed_uses", &self.allowed_uses);
        let mode = Some(&self.assignment_mode).filter(|mode| **mode != AssignmentMode::Automatic);
        writer.put_text("assignment_mode", mode);
        writer.put_text("node_selector", self.node_selector.as_ref());
        writer.put_text("namespace_selector", self.namespace_selector.as_ref());
        writer.bytes(&self.extra)
    }
}

/// Reads the field `name`; `None` if it is absent or empty.
fn mode(fields: &mut Fields, name: &'static str) -> Result<Option<IpipMode>, ValueError> {
    match fields.text(name)?.as_deref() {
        None | Some("") => Ok(None),
        Some("always" | "Always") => Ok(Some(IpipMode::Always)),
        Some("cross-subnet" | "CrossSubnet") => Ok(Some(IpipMode::CrossSubnet)),
        Some(other) => {
            Err(ValueError::new(name, format_args!("`{other}`"), "write \"always\" or \"cross-subnet\""))
        }
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
