//! Parameters of this host's rules other than policies and endpoints: settings, pools, hosts.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use tortie_config::key::IpFamily;
use tortie_config::resource::{Failsafe, HostAction, InsertMode};
use tortie_net::Cidr;

use crate::model::{Host, Model, ModelChanges};

/// Host-wide parameters of the ruleset, from the store and not from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Globals {
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
    /// Addresses of all hosts, between which IPIP packets are accepted. `None` if IPIP is not filtered
    /// (`IpInIpEnabled` is off).
    pub ipip_hosts: Option<BTreeSet<Ipv4Addr>>,
    /// Tunnel address of this host, to which packets from other local addresses are masqueraded. `None` if no
    /// pool uses a tunnel.
    pub tunnel_addr: Option<Ipv4Addr>,
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
        let hosts = || model.hosts().flat_map(|(_, host)| [host.bird_ip(), v4(host)]).flatten().collect();
        let tunnel = model.pools().any(|pool| pool.key.is_v4() && pool.value.ipip.is_some());
        Self {
            interface_prefixes: settings.interface_prefix,
            to_host: settings.default_endpoint_to_host_action,
            mark_mask: settings.iptables_mark_mask.bits(),
            failsafe_inbound: settings.failsafe_inbound,
            failsafe_outbound: settings.failsafe_outbound,
            ipip_hosts: settings.ip_in_ip_enabled.then(hosts),
            tunnel_addr: model.tunnel_address().unwrap_or_default().filter(|_| tunnel),
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
        changes.settings || changes.pools || changes.hosts || changes.node || changes.peers.any()
    }

    /// Returns true if the name is that of a workload interface, with or without an endpoint.
    #[must_use]
    pub fn is_workload(&self, interface: &str) -> bool {
        self.interface_prefixes.iter().any(|prefix| interface.starts_with(prefix.as_str()))
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
            assert!(differs || key.ends_with("ip_addr_v6"), "{key} makes no difference");
        }
    }

    #[test]
    fn hosts_pools_and_the_tunnel_are_found() {
        let globals = crate::policy::tests::globals(KEYS);
        let hosts: Vec<String> = globals.ipip_hosts.iter().flatten().map(ToString::to_string).collect();
        assert_eq!(hosts, ["192.0.2.1", "192.0.2.2", "198.51.100.2"]);
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
}
