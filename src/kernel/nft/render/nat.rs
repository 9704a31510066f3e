//! Floating addresses (data model, "Workload endpoints": `ipv4_nat`, `ipv6_nat`).
//!
//! Of several inside addresses for one outside address the smallest as text counts. A mapping whose inside address is
//! none of its endpoint's is left alone, and so are those of inactive endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::Cidr;

use super::super::ir::{SetKey, SetValue};
use super::Renderer;
use super::maps::Map;
use crate::policy::{Globals, WorkloadPolicy};

/// Who claims outside addresses.
#[derive(Debug, Clone, Default)]
pub(super) struct Nat {
    /// By outside address: inside addresses by their text, each with how many claim it so.
    claims: BTreeMap<IpAddr, BTreeMap<Box<str>, (IpAddr, usize)>>,
    /// By inside address: the outside addresses that lead to it.
    outside: BTreeMap<IpAddr, BTreeSet<IpAddr>>,
}

impl Nat {
    fn winner(&self, ext: &IpAddr) -> Option<IpAddr> {
        self.claims.get(ext)?.values().next().map(|(int, _)| *int)
    }
}

/// An endpoint's mappings come or go.
pub(super) fn count(renderer: &mut Renderer, workload: &WorkloadPolicy, come: bool, globals: &Globals) {
    if !workload.active {
        return;
    }
    for (int, ext) in &workload.nats {
        let own = workload.nets.iter().any(|net| net.contains(*int));
        let served = int.is_ipv4() || globals.ipv6;
        if !own || !served || int.is_ipv4() != ext.is_ipv4() {
            continue;
        }
        let before = renderer.nat.winner(ext);
        let text: Box<str> = int.to_string().into();
        let claims = renderer.nat.claims.entry(*ext).or_default();
        if come {
            claims.entry(text).or_insert((*int, 0)).1 += 1;
        } else if let Some((_, count)) = claims.get_mut(&text) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                claims.remove(&text);
            }
        }
        if claims.is_empty() {
            renderer.nat.claims.remove(ext);
        }
        let now = renderer.nat.winner(ext);
        if before != now {
            lead(renderer, *ext, before, now);
        }
    }
}

/// An outside address leads to another inside address.
fn lead(renderer: &mut Renderer, ext: IpAddr, before: Option<IpAddr>, now: Option<IpAddr>) {
    let set = Map::Dnat { v4: ext.is_ipv4() }.name();
    let key = SetKey::Addr(Cidr::host(ext));
    match now {
        Some(int) => renderer.wanted.put(&set, key, SetValue::Addr(int)),
        None => renderer.wanted.remove(&set, &key),
    }
    if let Some(int) = before {
        let outside = renderer.nat.outside.entry(int).or_default();
        outside.remove(&ext);
        if outside.is_empty() {
            renderer.nat.outside.remove(&int);
        }
    }
    if let Some(int) = now {
        renderer.nat.outside.entry(int).or_default().insert(ext);
    }
    for int in before.into_iter().chain(now) {
        hairpin(renderer, int);
    }
}

/// What an inside address is called when it calls itself: by its first outside address.
fn hairpin(renderer: &mut Renderer, int: IpAddr) {
    let set = Map::Hairpin { v4: int.is_ipv4() }.name();
    let key = SetKey::AddrPair(int, int);
    match renderer.nat.outside.get(&int).and_then(BTreeSet::first) {
        Some(ext) => renderer.wanted.put(&set, key, SetValue::Addr(*ext)),
        None => renderer.wanted.remove(&set, &key),
    }
}
