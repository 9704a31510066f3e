//! Floating addresses (data model, "Workload endpoints": `ipv4_nat`, `ipv6_nat`).
//!
//! If several inside addresses claim one outside address, the smallest as text is used; if an inside address
//! has several outside addresses, its source address becomes the smallest as text. Mappings whose inside
//! address is not one of the endpoint's addresses are ignored, and so are those of inactive endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_net::Cidr;

use crate::nft::ir::{SetKey, SetValue};
use crate::nft::maps::Map;
use crate::nft::render::desired::DesiredTable;
use tortie_engine::policy::EndpointPolicy;

/// Claims on outside addresses.
#[derive(Debug, Clone, Default)]
pub(super) struct Nat {
    /// For each outside address, the claiming inside addresses by their text, with the number of claims.
    claims: BTreeMap<IpAddr, BTreeMap<Box<str>, (IpAddr, usize)>>,
    /// For each inside address, the outside addresses that lead to it, by their text.
    outside: BTreeMap<IpAddr, BTreeSet<(Box<str>, IpAddr)>>,
}

fn text(addr: IpAddr) -> Box<str> {
    addr.to_string().into()
}

impl Nat {
    fn inside(&self, ext: &IpAddr) -> Option<IpAddr> {
        self.claims.get(ext)?.values().next().map(|(int, _)| *int)
    }

    /// Returns all entries of one family, for new maps: outside to inside, and pairs of an inside address
    /// with itself.
    pub(super) fn all(&self, v4: bool) -> [BTreeMap<SetKey, SetValue>; 2] {
        let of = |addr: &&IpAddr| addr.is_ipv4() == v4;
        let inward = self.claims.keys().filter(of).filter_map(|ext| {
            self.inside(ext).map(|int| (SetKey::Addr(Cidr::host(*ext)), SetValue::Addr(int)))
        });
        let outward = self.outside.iter().filter(|(int, _)| of(int)).filter_map(|(int, outside)| {
            outside.first().map(|(_, ext)| (SetKey::AddrPair(*int, *int), SetValue::Addr(*ext)))
        });
        [inward.collect(), outward.collect()]
    }

    /// Adds or removes the mappings of an endpoint.
    pub(super) fn count(&mut self, endpoint: Option<&EndpointPolicy>, come: bool, wanted: &mut DesiredTable) {
        let Some(EndpointPolicy::Workload(workload)) = endpoint else { return };
        for (int, ext) in workload.nats.iter().filter(|_| workload.active) {
            let own = workload.nets.iter().any(|net| net.contains(*int));
            if !own || int.is_ipv4() != ext.is_ipv4() {
                continue;
            }
            let before = self.inside(ext);
            let claims = self.claims.entry(*ext).or_default();
            if come {
                claims.entry(text(*int)).or_insert((*int, 0)).1 += 1;
            } else if let Some((_, count)) = claims.get_mut(&text(*int)) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    claims.remove(&text(*int));
                }
            }
            if claims.is_empty() {
                self.claims.remove(ext);
            }
            let now = self.inside(ext);
            if before != now {
                self.lead(*ext, before, now, wanted);
            }
        }
    }

    /// Changes the inside address to which an outside address leads.
    fn lead(&mut self, ext: IpAddr, before: Option<IpAddr>, now: Option<IpAddr>, wanted: &mut DesiredTable) {
        let set = Map::Dnat { v4: ext.is_ipv4() }.name();
        let key = SetKey::Addr(Cidr::host(ext));
        match now {
            Some(int) => wanted.put(&set, key, SetValue::Addr(int)),
            None => wanted.remove(&set, &key),
        }
        if let Some(int) = before
            && let Some(outside) = self.outside.get_mut(&int)
        {
            outside.remove(&(text(ext), ext));
            if outside.is_empty() {
                self.outside.remove(&int);
            }
        }
        if let Some(int) = now {
            self.outside.entry(int).or_default().insert((text(ext), ext));
        }
        for int in before.into_iter().chain(now) {
            self.hairpin(int, wanted);
        }
    }

    /// Updates the source address of packets from an inside address to itself.
    fn hairpin(&self, int: IpAddr, wanted: &mut DesiredTable) {
        let set = Map::Hairpin { v4: int.is_ipv4() }.name();
        let key = SetKey::AddrPair(int, int);
        match self.outside.get(&int).and_then(BTreeSet::first) {
            Some((_, ext)) => wanted.put(&set, key, SetValue::Addr(*ext)),
            None => wanted.remove(&set, &key),
        }
    }
}
