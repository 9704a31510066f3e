//! Keys of listeners: those that a listener needs, and those that the kernel holds for it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;

use socket2::Socket;
use tortie_net::{Cidr, ScopedAddr};

use crate::speaker::sockets::guard::{self, Guard};
use crate::speaker::sockets::secret::Key;

/// Returns the prefix under which the kernel stores the key of a peer; it does not depend on the link.
pub(crate) fn place_of(remote: ScopedAddr) -> Cidr {
    Cidr::host(remote.addr())
}

/// Returns the keys that a listener at this address needs, by their prefix in the kernel, and descriptions of
/// contradictions.
pub(crate) fn wanted<'a>(
    listens: SocketAddr,
    guards: &'a BTreeMap<ScopedAddr, Guard>,
    ranges: &'a BTreeMap<Cidr, Guard>,
) -> (BTreeMap<Cidr, &'a Key>, Vec<String>) {
    // A listener on a link gets no connections from other links.
    let link = ScopedAddr::of(listens).interface();
    let here = |remote: ScopedAddr| {
        let from = remote.interface();
        remote.is_v4() == listens.is_ipv4() && (link == 0 || from == 0 || from == link)
    };
    let mut peers: Vec<_> = guards.iter().filter(|(remote, _)| here(**remote)).collect();
    // Of several peers with the same prefix, the first decides, and one with a key is preferred, which is the
    // safer choice. Connections from links arrive at the wildcard address or the link's own address, rarely
    // at another.
    peers.sort_unstable_by_key(|(remote, guard)| (guard.key.is_none(), **remote));
    let mut of_peers: BTreeMap<Cidr, Option<&Key>> = BTreeMap::new();
    let mut clashes = Vec::new();
    for (remote, guard) in peers {
        match of_peers.entry(place_of(*remote)) {
            Entry::Vacant(slot) => {
                slot.insert(guard.key.as_ref());
            }
            Entry::Occupied(slot) if *slot.get() == guard.key.as_ref() || !listens.ip().is_unspecified() => {}
            Entry::Occupied(slot) => clashes.push(format!(
                "two neighbours with address {} on different links have different passwords; connections to {listens} \
                 can only have one of them: make them equal",
                slot.key().addr()
            )),
        }
    }
    let of_ranges = ranges.iter().filter(|(range, _)| range.is_v4() == listens.is_ipv4());
    let mut wanted: BTreeMap<Cidr, &Key> =
        of_ranges.filter_map(|(range, guard)| Some((*range, guard.key.as_ref()?))).collect();
    // A range may be a single address; a peer with that address has priority.
    wanted.extend(of_peers.into_iter().filter_map(|(place, key)| Some((place, key?))));
    (wanted, clashes)
}

/// Keys that the kernel holds for a socket, by prefix.
#[derive(Default)]
pub(crate) struct Keys(BTreeMap<Cidr, Key>);

impl Keys {
    /// Returns the key that the kernel holds for a prefix.
    pub(crate) fn get(&self, place: Cidr) -> Option<&Key> {
        self.0.get(&place)
    }

    /// Reconciles the keys with `wanted`; returns descriptions of those that the kernel rejected.
    pub(crate) fn follow(
        &mut self,
        socket: &Socket,
        listens: SocketAddr,
        wanted: &BTreeMap<Cidr, &Key>,
    ) -> Vec<String> {
        self.0.retain(|at, key| keeps(socket, *at, key, wanted.get(at).copied()));
        let mut failures = Vec::new();
        for (at, key) in wanted {
            if self.0.get(at) == Some(*key) {
                continue;
            }
            match guard::set_key(socket, *at, key) {
                Ok(()) => drop(self.0.insert(*at, Key::clone(key))),
                Err(e) => {
                    let whose = if at.is_host() { at.addr().to_string() } else { at.to_string() };
                    failures.push(format!("{} key of {whose} on {listens}: {e}", key.kind()));
                }
            }
        }
        failures
    }
}

/// True if the key can stay or be replaced; otherwise it is removed from the socket. A TCP MD5 key is
/// replaced by the next one, a TCP-AO key cannot be replaced.
fn keeps(socket: &Socket, at: Cidr, key: &Key, wanted: Option<&Key>) -> bool {
    let keep = wanted.is_some_and(|new| new == key || (new.ao().is_none() && key.ao().is_none()));
    if !keep {
        // A key left by mistake rejects connections without it, and admits none.
        let _ = guard::remove_key(socket, at, key);
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(key: Option<&str>) -> Guard {
        let key = key.map(|k| Key::new(k.as_bytes().to_vec()).unwrap());
        Guard { key, min_ttl: 0, shut: false }
    }

    fn on(text: &str, link: u32) -> ScopedAddr {
        ScopedAddr::new(text.parse().unwrap(), link)
    }

    #[test]
    fn neighbours_with_one_address_share_a_key_at_the_wildcard_address_and_nowhere_else() {
        let of = |keys: [Option<&str>; 2]| -> BTreeMap<ScopedAddr, Guard> {
            keys.iter().zip([3, 4]).map(|(key, link)| (on("fe80::1", link), guard(*key))).collect()
        };
        let keys = |listens: &str, guards: &BTreeMap<ScopedAddr, Guard>| {
            let none = BTreeMap::new();
            let (wanted, clashes) = wanted(listens.parse().unwrap(), guards, &none);
            let keys: Vec<_> = wanted
                .iter()
                .map(|(at, key)| (at.to_string(), String::from_utf8(key.bytes().to_vec()).unwrap()))
                .collect();
            (keys, clashes.len())
        };
        let at = |key: &str| vec![("fe80::1/128".to_owned(), key.to_owned())];
        assert_eq!(keys("[::]:179", &of([Some("one"), Some("one")])), (at("one"), 0));
        let different = of([Some("one"), Some("two")]);
        assert_eq!(keys("[::]:179", &different), (at("one"), 1));
        assert_eq!(keys("[fe80::9%3]:179", &different), (at("one"), 0));
        assert_eq!(keys("[fe80::9%4]:179", &different), (at("two"), 0));
        assert_eq!(keys("[fe80::9%5]:179", &different), (vec![], 0));
        assert_eq!(keys("0.0.0.0:179", &different), (vec![], 0));
        assert_eq!(keys("[::]:179", &of([None, Some("two")])), (at("two"), 1));
    }
}
