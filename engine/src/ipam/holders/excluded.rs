//! Addresses that others have, so that no pool gives them: those of hosts, of the tunnel, and of the networks that hosts are
//! connected to, whose routers and machines no key names.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::key::{Key, Scope, prefix};
use tortie_net::Cidr;

use crate::ipam::AllocationRequest;
use crate::ipam::draft::Draft;
use crate::ipam::holders::host_networks::HostNetwork;
use crate::ipam::keyspace::Keyspace;
use crate::ipam::pools::PoolRange;
use crate::ipam::reads::PlanStop;

/// Who has addresses that lie in pools.
#[derive(Debug, Default)]
pub(in crate::ipam) struct Excluded {
    addresses: BTreeMap<IpAddr, String>,
    networks: Vec<(Cidr, String)>,
}

impl Excluded {
    /// What the keys of hosts say: of each only what lies in a pool.
    pub(in crate::ipam) fn of(
        draft: &Draft<'_>,
        request: &AllocationRequest,
        pools: impl Fn(&Cidr) -> bool,
    ) -> Result<Self, PlanStop> {
        let mut excluded = Self::default();
        if *draft.keyspace != Keyspace::Global {
            return Ok(excluded);
        }
        for (text, known) in draft.state.existing(prefix::BGP_HOSTS) {
            let Some(HostNetwork { cidr, host }) = HostNetwork::of_entry(text, &known.value) else {
                continue;
            };
            // A network of one address is the address of the host.
            match cidr.is_host() {
                _ if !pools(&cidr) => {}
                true => drop(excluded.addresses.insert(cidr.addr(), format!("the address of host {host}"))),
                false if excluded.networks.iter().any(|(network, _)| network.covers(&cidr)) => {}
                false => excluded.networks.push((cidr, format!("the network of host {host}"))),
            }
        }
        let tunnel = tunnel_key(&request.host);
        let own = format!("ipip-tunnel-addr-{}", request.host);
        if request.handle.as_deref() != Some(&own)
            && let Some(known) = draft.state.read(&tunnel.to_string())?
            && let Ok(addr) = String::from_utf8_lossy(&known.value).trim().parse::<IpAddr>()
        {
            excluded.addresses.insert(addr, format!("the tunnel address of {}", request.host));
        }
        Ok(excluded)
    }

    /// What has to be read before [`Excluded::of`].
    pub(in crate::ipam) fn reads(keyspace: &Keyspace, host: &str) -> (Option<String>, Option<String>) {
        match keyspace {
            Keyspace::Global => (Some(tunnel_key(host).to_string()), Some(prefix::BGP_HOSTS.to_owned())),
            Keyspace::Local { .. } => (None, None),
        }
    }

    /// Who has the address.
    pub(in crate::ipam) fn holder(&self, addr: IpAddr) -> Option<String> {
        let network = || self.networks.iter().find(|(network, _)| network.contains(addr));
        let named = self.addresses.get(&addr).cloned();
        named.or_else(|| network().map(|(network, whose)| format!("an address of {network}, {whose}")))
    }

    /// Whether the address may be given.
    pub(in crate::ipam) fn allows(&self, addr: IpAddr) -> bool {
        !self.addresses.contains_key(&addr)
            && !self.networks.iter().any(|(network, _)| network.contains(addr))
    }

    /// What is left of parts of pools without the networks, in the same order.
    pub(in crate::ipam) fn without_networks(&self, ranges: Vec<PoolRange>) -> Vec<PoolRange> {
        self.networks.iter().fold(ranges, |ranges, (network, _)| {
            ranges.into_iter().flat_map(|range| without(range, network)).collect()
        })
    }

    /// In words, what of these pools is not given, for an answer that there is too little; empty when that has no part in it.
    pub(in crate::ipam) fn note(&self, ranges: &[PoolRange]) -> String {
        let lost = self.networks.iter().find(|(network, _)| {
            ranges.iter().any(|range| range.first <= network.last() && network.addr() <= range.last)
        });
        lost.map_or_else(String::new, |(network, whose)| {
            format!(" outside of {network}, {whose}, which holds addresses of machines that no key names")
        })
    }
}

fn tunnel_key(host: &str) -> Key {
    Key::Setting(Scope::Host(host.to_owned()), "IpInIpTunnelAddr".to_owned())
}

/// A range without the addresses of a network: none, one or two.
fn without(range: PoolRange, network: &Cidr) -> Vec<PoolRange> {
    let (low, high) = (network.addr(), network.last());
    if low.is_ipv4() != range.first.is_ipv4() || high < range.first || range.last < low {
        return vec![range];
    }
    let below = before(low).filter(|_| range.first < low);
    let above = after(high).filter(|_| high < range.last);
    let below = below.map(|last| PoolRange { last, ..range.clone() });
    let above = above.map(|first| PoolRange { first, ..range.clone() });
    below.into_iter().chain(above).collect()
}

fn before(addr: IpAddr) -> Option<IpAddr> {
    match addr {
        IpAddr::V4(addr) => u32::from(addr).checked_sub(1).map(|addr| IpAddr::V4(addr.into())),
        IpAddr::V6(addr) => u128::from(addr).checked_sub(1).map(|addr| IpAddr::V6(addr.into())),
    }
}

fn after(addr: IpAddr) -> Option<IpAddr> {
    match addr {
        IpAddr::V4(addr) => u32::from(addr).checked_add(1).map(|addr| IpAddr::V4(addr.into())),
        IpAddr::V6(addr) => u128::from(addr).checked_add(1).map(|addr| IpAddr::V6(addr.into())),
    }
}
