//! Addresses in pools that IPAM never allocates: those of hosts and tunnels, and the networks that hosts are
//! connected to, whose routers and machines have no keys in the store.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tortie_config::key::{Key, Scope, prefix};
use tortie_net::Cidr;

use crate::ipam::AllocationRequest;
use crate::ipam::cluster;
use crate::ipam::draft::Draft;
use crate::ipam::holders::host_networks::HostNetwork;
use crate::ipam::keyspace::Keyspace;
use crate::ipam::pools::PoolRange;
use crate::ipam::reads::PlanStop;

/// A prefix from which no address is allocated, although it lies in a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedPrefix {
    /// A single address, or a network of machines that have no keys in the store.
    pub cidr: Cidr,
    /// Holder, described for people: `the address of host h1`.
    pub holder: String,
}

/// Excluded prefixes that the agent of this host knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exclusions {
    /// Excluded prefixes.
    pub prefixes: Vec<ExcludedPrefix>,
    /// True if the addresses and networks of all hosts are included. Otherwise each request lists the host
    /// keys of the store, which may be thousands.
    pub complete: bool,
}

/// Addresses and networks in pools that are excluded from one request.
#[derive(Debug, Default)]
pub(in crate::ipam) struct Excluded {
    addresses: BTreeMap<IpAddr, String>,
    networks: Vec<(Cidr, String)>,
}

impl Excluded {
    /// Combines the known exclusions with those from the store. Host keys are read only if `known` is
    /// incomplete, and only prefixes that overlap a pool are kept.
    pub(in crate::ipam) fn of(
        draft: &Draft<'_>,
        request: &AllocationRequest,
        known: &Exclusions,
        pools: impl Fn(&Cidr) -> bool,
    ) -> Result<Self, PlanStop> {
        let mut excluded = Self::default();
        if !draft.keyspace.is_shared() {
            return Ok(excluded);
        }
        for prefix in known.prefixes.iter().filter(|prefix| pools(&prefix.cidr)) {
            excluded.add(prefix.clone());
        }
        if draft.keyspace.is_calico_3() {
            return excluded.with_objects(draft, request, known, pools);
        }
        if !known.complete {
            let keys = draft.state.existing(prefix::BGP_HOSTS);
            let found = keys.filter_map(|(text, known)| HostNetwork::of_entry(text, &known.value));
            found.filter(|found| pools(&found.cidr)).for_each(|found| excluded.add(found.into()));
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

    /// Adds the hosts of a Calico 3 store, and the tunnel addresses of the requesting host.
    fn with_objects(
        mut self,
        draft: &Draft<'_>,
        request: &AllocationRequest,
        known: &Exclusions,
        pools: impl Fn(&Cidr) -> bool,
    ) -> Result<Self, PlanStop> {
        let cluster = draft.cluster()?;
        if !known.complete {
            let found = cluster.entries().filter_map(|(key, value)| HostNetwork::of_entry(key, value));
            found.filter(|found| pools(&found.cidr)).for_each(|found| self.add(found.into()));
        }
        for (setting, handle) in TUNNELS {
            if request.handle.as_ref() == Some(&format!("{handle}-tunnel-addr-{}", request.host)) {
                continue;
            }
            let key = Key::Setting(Scope::Host(request.host.clone()), setting.to_owned()).to_string();
            let value = cluster.value(&key).map(String::from_utf8_lossy);
            if let Some(addr) = value.and_then(|text| text.trim().parse::<IpAddr>().ok()) {
                self.addresses.insert(addr, format!("the tunnel address of {}", request.host));
            }
        }
        Ok(self)
    }

    fn add(&mut self, ExcludedPrefix { cidr, holder }: ExcludedPrefix) {
        // A /32 or /128 network is a single address.
        if cidr.is_host() {
            self.addresses.insert(cidr.addr(), holder);
        } else if !self.networks.iter().any(|(network, _)| network.covers(&cidr)) {
            self.networks.push((cidr, holder));
        }
    }

    /// Returns the key and the prefix to read before [`Excluded::of`].
    pub(in crate::ipam) fn reads(
        keyspace: &Keyspace,
        host: &str,
        known: &Exclusions,
    ) -> (Option<String>, Option<String>) {
        match keyspace {
            Keyspace::Global => {
                let hosts = (!known.complete).then(|| prefix::BGP_HOSTS.to_owned());
                (Some(tunnel_key(host).to_string()), hosts)
            }
            Keyspace::Calico3 => (None, (!known.complete).then(cluster::hosts)),
            Keyspace::Local { .. } => (None, None),
        }
    }

    /// Returns the holder of an excluded address, described for people.
    pub(in crate::ipam) fn holder(&self, addr: IpAddr) -> Option<String> {
        let network = || self.networks.iter().find(|(network, _)| network.contains(addr));
        let named = self.addresses.get(&addr).cloned();
        named.or_else(|| network().map(|(network, whose)| format!("an address of {network}, {whose}")))
    }

    /// Returns true if the address may be allocated.
    pub(in crate::ipam) fn allows(&self, addr: IpAddr) -> bool {
        !self.addresses.contains_key(&addr)
            && !self.networks.iter().any(|(network, _)| network.contains(addr))
    }

    /// Removes the excluded networks from pool ranges; the order is kept.
    pub(in crate::ipam) fn without_networks(&self, ranges: Vec<PoolRange>) -> Vec<PoolRange> {
        self.networks.iter().fold(ranges, |ranges, (network, _)| {
            ranges.into_iter().flat_map(|range| without(range, network)).collect()
        })
    }

    /// Describes the network excluded from these ranges, for the error that too few addresses are free. Empty
    /// if no excluded network overlaps them.
    pub(in crate::ipam) fn note(&self, ranges: &[PoolRange]) -> String {
        let lost = self.networks.iter().find(|(network, _)| {
            ranges.iter().any(|range| range.first <= network.last() && network.addr() <= range.last)
        });
        lost.map_or_else(String::new, |(network, whose)| {
            format!(
                " outside of {network}, {whose}, which has addresses of machines outside of the data model"
            )
        })
    }
}

/// Settings that hold a host's tunnel addresses in a Calico 3 store, with the beginnings of their handles.
const TUNNELS: [(&str, &str); 3] =
    [("IpInIpTunnelAddr", "ipip"), ("IPv4VXLANTunnelAddr", "vxlan"), ("IPv6VXLANTunnelAddr", "vxlan-v6")];

fn tunnel_key(host: &str) -> Key {
    Key::Setting(Scope::Host(host.to_owned()), "IpInIpTunnelAddr".to_owned())
}

/// Subtracts a network from a range; zero, one or two ranges remain.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tortie_config::key::IpFamily;
    use tortie_store::KeyValue;

    use super::*;
    use crate::ipam::reads::{PlanStep, ReadRequest, ReadState};
    use crate::ipam::{AddressRequest, assign};
    use crate::model::{Model, WatchPart};
    use tortie_store::fixtures::{kv, snapshot};

    /// An in-memory store that records every key read by a plan.
    struct CountedReads {
        keys: BTreeMap<String, KeyValue>,
        given: Vec<String>,
    }

    impl CountedReads {
        fn new(entries: &[(&str, &str)]) -> Self {
            let keys = entries.iter().map(|(key, value)| ((*key).to_owned(), kv(key, value, 1))).collect();
            Self { keys, given: Vec::new() }
        }

        fn read(&mut self, state: &mut ReadState, needs: ReadRequest) {
            let is_below = |key: &str, prefixes: &std::collections::BTreeSet<String>| {
                prefixes.iter().any(|prefix| key.starts_with(prefix.as_str()))
            };
            let all = self.keys.values();
            let listed: Vec<KeyValue> =
                all.clone().filter(|kv| is_below(&kv.key, &needs.prefixes)).cloned().collect();
            let names = all.filter(|kv| is_below(&kv.key, &needs.names)).map(|kv| kv.key.clone());
            let names: Vec<String> = names.collect();
            self.given.extend(listed.iter().map(|kv| kv.key.clone()).chain(names.iter().cloned()));
            self.given.extend(needs.keys.iter().cloned());
            state.insert_names(needs.names, names);
            let entries = tortie_store::Snapshot { entries: listed, ..Default::default() };
            state.insert_list(&needs.prefixes, entries);
            for key in needs.keys {
                let found = self.keys.get(&key).cloned();
                state.insert(key, found);
            }
        }

        /// Returns the planned addresses, and the number of host keys that the plan read.
        fn plan(&mut self, request: &AllocationRequest, known: &Exclusions) -> (Vec<IpAddr>, usize) {
            let mut state = ReadState::default();
            self.given.clear();
            loop {
                match assign::plan(&Keyspace::Global, &state, request, known, &[]) {
                    PlanStep::Need(needs) => self.read(&mut state, needs),
                    PlanStep::Txn(_, given) => {
                        let of_hosts = self.given.iter().filter(|key| key.starts_with(prefix::BGP_HOSTS));
                        return (given.iter().map(|given| given.addr).collect(), of_hosts.count());
                    }
                    PlanStep::Err(error) => panic!("{error}"),
                }
            }
        }
    }

    /// An allocation with the agent's exclusions reads no key of other hosts, however many there are, and
    /// returns the same addresses as one that reads all of them.
    #[test]
    fn an_allocation_with_the_agents_answer_reads_no_key_of_other_hosts() {
        let mut entries = vec![("/calico/v1/ipam/v4/pool/10.0.0.0-24".to_owned(), "{}".to_owned())];
        for n in 0..500u32 {
            let host = format!("/calico/bgp/v1/host/h{n}");
            // Every fiftieth host has its address in the pool, and one host has its network there.
            let (third, last) = if n % 50 == 0 { (0, n / 50) } else { (1 + n / 250, n % 250) };
            entries.push((format!("{host}/ip_addr_v4"), format!("10.0.{third}.{last}")));
            entries.push((format!("{host}/as_num"), "64512".to_owned()));
            if n == 100 {
                entries.push((format!("{host}/network_v4"), "10.0.0.64/26".to_owned()));
            }
        }
        let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        let mut model = Model::new("h1");
        model.replace(WatchPart::All, &snapshot(1, &entries));
        let pools: Vec<Cidr> = model.pools().map(|pool| *pool.key).collect();
        let found: Vec<ExcludedPrefix> =
            HostNetwork::within(&model, &pools).into_iter().map(ExcludedPrefix::from).collect();
        assert_eq!(found.len(), 11, "what lies in no pool is not passed on");
        let any = AddressRequest::Any { family: IpFamily::V4, count: 200, pools: Vec::new() };
        let request = AllocationRequest {
            host: "h1".to_owned(),
            addresses: vec![any],
            partial: true,
            ..AllocationRequest::default()
        };
        let mut store = CountedReads::new(&entries);
        let (listed, keys) = store.plan(&request, &Exclusions::default());
        assert_eq!((listed.len(), keys), (256 - 64 - 10, 1_001));
        let (given, keys) = store.plan(&request, &Exclusions { prefixes: found.clone(), complete: true });
        assert_eq!((given, keys), (listed.clone(), 0));
        // Incomplete exclusions are used as well, and the other hosts are read from the store.
        let mut own = found;
        own.truncate(1);
        own.push(ExcludedPrefix { cidr: "10.0.0.128/26".parse().unwrap(), holder: "a network".to_owned() });
        let (given, keys) = store.plan(&request, &Exclusions { prefixes: own, complete: false });
        assert_eq!((given.len(), keys), (256 - 128 - 10, 1_001));
        assert!(given.iter().all(|addr| listed.contains(addr)));
    }
}
