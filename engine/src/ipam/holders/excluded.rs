//! Addresses that others have, so that no pool gives them: those of hosts, of the tunnel, and of the networks that hosts are
//! connected to, whose routers and machines no key names.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tortie_config::key::{Key, Scope, prefix};
use tortie_net::Cidr;

use crate::ipam::AllocationRequest;
use crate::ipam::draft::Draft;
use crate::ipam::holders::host_networks::HostNetwork;
use crate::ipam::keyspace::Keyspace;
use crate::ipam::pools::PoolRange;
use crate::ipam::reads::PlanStop;

/// A prefix in a pool of which no address is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedPrefix {
    /// One address, or the network of machines that no key names.
    pub cidr: Cidr,
    /// Who has it, in words: `the address of host h1`.
    pub holder: String,
}

/// What a host knows of the prefixes of which no address is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exclusions {
    /// The prefixes.
    pub prefixes: Vec<ExcludedPrefix>,
    /// The addresses and networks of all hosts are among them. If not, each request lists the hosts of the store: thousands of keys.
    pub complete: bool,
}

/// Who has addresses that lie in pools.
#[derive(Debug, Default)]
pub(in crate::ipam) struct Excluded {
    addresses: BTreeMap<IpAddr, String>,
    networks: Vec<(Cidr, String)>,
}

impl Excluded {
    /// What is known already, and without all hosts among that what the keys of hosts say: of each only what lies in a pool.
    pub(in crate::ipam) fn of(
        draft: &Draft<'_>,
        request: &AllocationRequest,
        known: &Exclusions,
        pools: impl Fn(&Cidr) -> bool,
    ) -> Result<Self, PlanStop> {
        let mut excluded = Self::default();
        if *draft.keyspace != Keyspace::Global {
            return Ok(excluded);
        }
        for prefix in known.prefixes.iter().filter(|prefix| pools(&prefix.cidr)) {
            excluded.add(prefix.clone());
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

    fn add(&mut self, ExcludedPrefix { cidr, holder }: ExcludedPrefix) {
        // A network of one address is an address.
        if cidr.is_host() {
            self.addresses.insert(cidr.addr(), holder);
        } else if !self.networks.iter().any(|(network, _)| network.covers(&cidr)) {
            self.networks.push((cidr, holder));
        }
    }

    /// What has to be read before [`Excluded::of`].
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

    /// A store in memory, and every key that a plan was given.
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

        /// The addresses that a plan gives, and how many keys of hosts it was given for that.
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

    /// Whatever number of hosts there is: an allocation with the agent's answer reads none of their keys, and gives what one gives that
    /// read them all.
    #[test]
    fn an_allocation_with_the_agents_answer_reads_no_key_of_other_hosts() {
        let mut entries = vec![("/calico/v1/ipam/v4/pool/10.0.0.0-24".to_owned(), "{}".to_owned())];
        for n in 0..500u32 {
            let host = format!("/calico/bgp/v1/host/h{n}");
            // Every fiftieth host has its address in the pool, and one its network.
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
        // An agent that may have missed hosts says what it knows, and the store is read for the others.
        let mut own = found;
        own.truncate(1);
        own.push(ExcludedPrefix { cidr: "10.0.0.128/26".parse().unwrap(), holder: "a network".to_owned() });
        let (given, keys) = store.plan(&request, &Exclusions { prefixes: own, complete: false });
        assert_eq!((given.len(), keys), (256 - 128 - 10, 1_001));
        assert!(given.iter().all(|addr| listed.contains(addr)));
    }
}
