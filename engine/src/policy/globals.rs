//! Parameters of this host's rules other than policies and endpoints: settings, pools, hosts.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use tortie_config::Dialect;
use tortie_config::key::IpFamily;
use tortie_config::resource::{Failsafe, HostAction, InsertMode, Settings};
use tortie_net::Cidr;

use super::host_services::HostServices;
use super::verdict::Packet;
use crate::model::{Host, Model, ModelChanges};

const UDP: u8 = 17;

/// Host-wide parameters of the ruleset, from the store and not from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Globals {
    /// Data model of the store. In a Calico 3 store, policies of host endpoints apply to forwarded packets only
    /// if they say so, and a host endpoint may be that of all interfaces.
    pub dialect: Dialect,
    /// Name prefixes of workload interfaces (`InterfacePrefix`).
    pub interface_prefixes: Vec<String>,
    /// Action for packets from a workload to its host, after policy (`DefaultEndpointToHostAction`).
    pub to_host: HostAction,
    /// Packet mark bits reserved for Tortie (`IptablesMarkMask`); it uses the lowest two.
    pub mark_mask: u32,
    /// Ports of the host that are always reachable (`FailsafeInboundHostPorts`).
    pub failsafe_inbound: Vec<Failsafe>,
    /// Remote ports that the host can always reach (`FailsafeOutboundHostPorts`).
    pub failsafe_outbound: Vec<Failsafe>,
    /// IPv4 addresses of all hosts, and networks of other machines (`ExternalNodesCIDRList`), between which
    /// IPIP packets are accepted. `None` if IPIP is not filtered: `IpInIpEnabled` is off, or on a store of
    /// Calico 3 unset without a pool that uses IPIP.
    pub ipip_hosts: Option<BTreeSet<Cidr>>,
    /// Tunnel address of this host, to which packets from other local addresses are masqueraded. `None` if no
    /// pool uses a tunnel.
    pub tunnel_addr: Option<Ipv4Addr>,
    /// Parameters of the rules for VXLAN; `None` if this host does not use it.
    pub vxlan: Option<VxlanRules>,
    /// Services of this host to its workloads, which they reach whatever policy says; `None` without OpenStack.
    pub services: Option<HostServices>,
    /// All pools, including disabled ones.
    pub pools: BTreeSet<Cidr>,
    /// Pools whose packets to destinations outside of all pools are masqueraded.
    pub masquerade: BTreeSet<Cidr>,
    /// True if packets in conntrack state INVALID are dropped (unless `DisableConntrackInvalidCheck`).
    pub drop_invalid: bool,
    /// True if rules apply to IPv6 as well (`Ipv6Support`).
    pub ipv6: bool,
    /// True if Tortie's rules precede those of other programs at the same hook (`ChainInsertMode`).
    pub first: bool,
    /// True if loose reverse path filtering on all interfaces is not a problem (`IgnoreLooseRPF`).
    pub ignore_loose_rpf: bool,
    /// `MaxIpsetSize`, which has no effect: nftables sets grow as needed.
    pub set_size: u32,
}

/// Parameters of the packet rules for VXLAN.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VxlanRules {
    /// Families in which this host uses VXLAN. The rules apply to no packets of others, whose port may be that
    /// of another program.
    pub families: BTreeSet<IpFamily>,
    /// UDP port (`VXLANPort`).
    pub port: u16,
    /// Addresses of all hosts, and networks of other machines (`ExternalNodesCIDRList`), which may send VXLAN
    /// to this host.
    pub hosts: BTreeSet<Cidr>,
    /// This host's tunnel addresses, to which packets from other local addresses are masqueraded.
    pub addrs: BTreeSet<IpAddr>,
    /// True if VXLAN packets of workloads are subject to policy only (`AllowVXLANPacketsFromWorkloads`); they
    /// are dropped otherwise.
    pub from_workloads: bool,
}

impl VxlanRules {
    fn of(model: &Model, settings: &Settings) -> Option<Self> {
        let is_used = |of: &IpFamily| model.uses_vxlan(settings, *of);
        let families: BTreeSet<IpFamily> = [IpFamily::V4, IpFamily::V6].into_iter().filter(is_used).collect();
        (!families.is_empty()).then(|| Self {
            port: settings.vxlan_port,
            hosts: (model.hosts().flat_map(|(_, host)| host.addrs()).map(Cidr::host))
                .chain(settings.external_nodes.iter().copied())
                .collect(),
            addrs: (families.iter()).filter_map(|of| model.vxlan_address(*of).unwrap_or_default()).collect(),
            from_workloads: settings.allow_vxlan_from_workloads,
            families,
        })
    }

    /// Returns true if this host uses VXLAN in a family.
    #[must_use]
    pub fn is_used(&self, v4: bool) -> bool {
        self.families.contains(if v4 { &IpFamily::V4 } else { &IpFamily::V6 })
    }

    /// Returns this host's tunnel address of a family in which it uses VXLAN.
    #[must_use]
    pub fn addr(&self, v4: bool) -> Option<IpAddr> {
        self.addrs.iter().copied().find(|addr| addr.is_ipv4() == v4).filter(|_| self.is_used(v4))
    }
}

impl Globals {
    /// Reads the parameters of this host; its own settings override global ones.
    #[must_use]
    pub fn of(model: &Model) -> Self {
        Self::of_host(model, model.node())
    }

    /// Reads the parameters of any host. The own settings of hosts other than the model's are not known, and
    /// not applied.
    #[must_use]
    pub fn of_host(model: &Model, host: &str) -> Self {
        let settings = model.settings_of(host);
        let tunnel = model.pools().any(|pool| pool.key.is_v4() && pool.value.ipip.is_some());
        let hosts = || {
            let addrs = model.hosts().flat_map(|(_, host)| [host.bird_ip(), v4(host)]).flatten();
            let others = settings.external_nodes.iter().copied().filter(|net| net.is_v4());
            addrs.map(|addr| Cidr::host(addr.into())).chain(others).collect()
        };
        let ipip_hosts = settings.ip_in_ip_enabled.unwrap_or(tunnel).then(hosts);
        let vxlan = VxlanRules::of(model, &settings);
        let services = HostServices::of(model, &settings);
        Self {
            dialect: model.dialect(),
            interface_prefixes: settings.interface_prefix,
            to_host: settings.default_endpoint_to_host_action,
            mark_mask: settings.iptables_mark_mask.bits(),
            failsafe_inbound: settings.failsafe_inbound,
            failsafe_outbound: settings.failsafe_outbound,
            ipip_hosts,
            tunnel_addr: model.tunnel_address().unwrap_or_default().filter(|_| tunnel),
            vxlan,
            services,
            pools: model.pools().map(|pool| *pool.key).collect(),
            masquerade: model.pools().filter(|pool| pool.value.masquerade).map(|pool| *pool.key).collect(),
            drop_invalid: !settings.disable_conntrack_invalid_check,
            ipv6: settings.ipv6_support,
            first: settings.chain_insert_mode == InsertMode::Insert,
            ignore_loose_rpf: settings.ignore_loose_rpf,
            set_size: settings.max_ipset_size,
        }
    }

    /// Returns true if [`Globals::of`] may return another result after these changes of the model.
    #[must_use]
    pub fn may_differ(changes: &ModelChanges) -> bool {
        changes.settings
            || changes.pools
            || changes.hosts
            || changes.vxlan
            || changes.node
            || changes.peers.any()
    }

    /// Returns true if the name is that of a workload interface, with or without an endpoint.
    #[must_use]
    pub fn is_workload(&self, interface: &str) -> bool {
        self.interface_prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
    }

    /// Returns the rules for VXLAN if this is a VXLAN packet.
    #[must_use]
    pub fn vxlan_of(&self, packet: &Packet) -> Option<&VxlanRules> {
        let v4 = packet.dst.is_ipv4();
        let rules = self.vxlan.as_ref().filter(|rules| (self.ipv6 || v4) && rules.is_used(v4))?;
        (packet.protocol == UDP && packet.ports?.1 == rules.port).then_some(rules)
    }

    /// Returns true if packets are masqueraded: the source is in a pool with masquerading, and the
    /// destination is in no pool, including disabled ones.
    #[must_use]
    pub fn masquerades(&self, src: IpAddr, dst: IpAddr) -> bool {
        let inside = |pools: &BTreeSet<Cidr>, addr| pools.iter().any(|pool| pool.contains(addr));
        inside(&self.masquerade, src) && !inside(&self.pools, dst)
    }
}

fn v4(host: &Host) -> Option<Ipv4Addr> {
    match host.addr(IpFamily::V4) {
        Some(IpAddr::V4(addr)) => Some(addr),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_store::fixtures::{delete, put};

    const KEYS: &[(&str, &str)] = &[
        ("/calico/v1/ipam/v4/pool/10.1.0.0-16", r#"{"cidr":"10.1.0.0/16","ipip":"tunl0"}"#),
        ("/calico/v1/config/IpInIpEnabled", "true"),
        ("/calico/v1/config/IpInIpTunnelAddr", "10.1.0.1"),
        ("/calico/v1/host/h1/config/InterfacePrefix", "cali,tap"),
        ("/calico/v1/host/h2/bird_ip", "192.0.2.2"),
        ("/calico/bgp/v1/host/h2/ip_addr_v4", "198.51.100.2"),
        ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1"),
        ("/calico/bgp/v1/host/h1/ip_addr_v6", "2001:db8::1"),
        (
            "/calico/v1/ipam/v4/pool/10.0.0.0-16",
            r#"{"cidr":"10.0.0.0/16","masquerade":true,"disabled":true}"#,
        ),
        ("/calico/v1/config/IptablesMarkMask", "0x30"),
        ("/calico/v1/config/DefaultEndpointToHostAction", "RETURN"),
        ("/calico/v1/config/FailsafeInboundHostPorts", "none"),
        ("/calico/v1/ipam/v4/pool/10.2.0.0-16", r#"{"cidr":"10.2.0.0/16","vxlan_mode":"always"}"#),
        ("/calico/v1/host/h1/config/IPv4VXLANTunnelAddr", "10.2.0.1"),
        ("/calico/v1/host/h2/config/VXLANTunnelMACAddr", "66:00:00:00:00:02"),
        ("/calico/v1/config/VXLANPort", "8472"),
        ("/calico/v1/config/ExternalNodesCIDRList", "203.0.113.0/24"),
        ("/calico/v1/config/AllowVXLANPacketsFromWorkloads", "true"),
        ("/calico/v1/config/VXLANEnabled", "false"),
    ];

    #[test]
    fn the_flags_cover_every_difference() {
        let mut model = Model::new("h1");
        let there = KEYS.iter().zip(1..).map(|((key, value), at)| (*key, put(at, key, value)));
        let back = KEYS.iter().rev().zip(100..).map(|((key, _), at)| (*key, delete(at, key)));
        for (key, delta) in there.chain(back) {
            let before = Globals::of(&model);
            let changes = model.apply(&delta);
            let differs = before != Globals::of(&model);
            assert!(!differs || Globals::may_differ(&changes), "{key}");
            let none = key.ends_with("ip_addr_v6") || key.ends_with("MACAddr");
            assert!(differs || none, "{key} makes no difference");
        }
    }

    #[test]
    fn hosts_pools_and_the_tunnel_are_found() {
        let globals = crate::policy::tests::globals(KEYS);
        let hosts: Vec<String> = globals.ipip_hosts.iter().flatten().map(ToString::to_string).collect();
        assert_eq!(hosts, ["192.0.2.1/32", "192.0.2.2/32", "198.51.100.2/32", "203.0.113.0/24"]);
        assert_eq!(globals.tunnel_addr, Some([10, 1, 0, 1].into()));
        assert!(globals.is_workload("tap7") && !globals.is_workload("eth0"));
        let masquerades = |src: [u8; 4], dst: [u8; 4]| globals.masquerades(src.into(), dst.into());
        assert!(masquerades([10, 0, 0, 1], [192, 0, 2, 9]));
        assert!(!masquerades([10, 1, 0, 1], [192, 0, 2, 9]), "this pool does not ask for it");
        assert!(!masquerades([10, 0, 0, 1], [10, 1, 0, 1]), "between pools it stays");
        // With IPIP off there is no filter, and without an IPIP pool there is no tunnel.
        let few = crate::policy::tests::globals(&KEYS[2..7]);
        assert_eq!((few.ipip_hosts, few.tunnel_addr), (None, None));
    }

    #[test]
    fn on_a_store_of_calico_3_a_pool_enables_the_filter_of_ipip() {
        let hosts = |keys: &[(&str, &str)]| {
            let mut model = Model::new("h1");
            model.set_dialect(Dialect::V3);
            for ((key, value), at) in keys.iter().zip(1..) {
                model.apply_entries(&put(at, key, value));
            }
            Globals::of(&model).ipip_hosts.map(|hosts| hosts.len())
        };
        let (pool, setting, host) = (KEYS[0], "/calico/v1/config/IpInIpEnabled", KEYS[4]);
        assert_eq!(hosts(&[pool, host]), Some(1));
        assert_eq!(hosts(&[pool, host, (setting, "false")]), None);
        assert_eq!(hosts(&[host]), None);
        assert_eq!(hosts(&[host, (setting, "true")]), Some(1));
    }

    #[test]
    fn vxlan_comes_from_hosts_and_from_the_machines_that_are_listed() {
        assert_eq!(crate::policy::tests::globals(KEYS).vxlan, None, "the setting turns it off");
        let globals = crate::policy::tests::globals(&KEYS[..KEYS.len() - 1]);
        let vxlan = globals.vxlan.as_ref().unwrap();
        let hosts: Vec<String> = vxlan.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["192.0.2.1/32", "198.51.100.2/32", "203.0.113.0/24", "2001:db8::1/128"]);
        assert_eq!(
            (vxlan.port, vxlan.addr(true), vxlan.addr(false)),
            (8472, Some([10, 2, 0, 1].into()), None)
        );
        assert!(vxlan.from_workloads);
        let packet = |protocol, port| Packet {
            src: [192, 0, 2, 9].into(),
            dst: [192, 0, 2, 1].into(),
            protocol,
            ports: Some((40_000, port)),
            icmp: None,
        };
        assert!(globals.vxlan_of(&packet(17, 8472)).is_some());
        assert!(globals.vxlan_of(&packet(17, 4789)).is_none());
        assert!(globals.vxlan_of(&packet(6, 8472)).is_none());
        // By family: the pool is of IPv4.
        assert!(vxlan.is_used(true) && !vxlan.is_used(false));
        let of_v6 =
            Packet { src: "fd00::9".parse().unwrap(), dst: "fd00::1".parse().unwrap(), ..packet(17, 8472) };
        assert!(globals.vxlan_of(&of_v6).is_none());
        let both = [&KEYS[..KEYS.len() - 1], &[("/calico/v1/config/VXLANEnabled", "true")]].concat();
        assert!(crate::policy::tests::globals(&both).vxlan_of(&of_v6).is_some(), "the setting turns it on");
    }
}
