//! Listening sockets: opened, closed and keyed as the configuration wants.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use slab::Slab;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tortie_config::{Cidr, link_local};

use super::secret::Key;
use super::sockopt;

/// Longer than any burst of peers that start at once: shorter ones drop SYNs, which come back after seconds.
const BACKLOG: i32 = 4096;

/// How long after a failed bind it is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// What listeners need to know of a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Guard {
    /// Key of TCP MD5 or TCP-AO.
    pub(super) key: Option<Key>,
    /// Smallest TTL to accept (RFC 5082), 0: any.
    pub(super) min_ttl: u8,
}

/// What a change of the wanted addresses did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Opened(SocketAddr),
    Ended(SocketAddr),
    Failed(SocketAddr, String),
    /// It listens, but lacks a key; connections that need it are refused.
    Unkeyed(String),
}

pub(super) struct Listener {
    pub(super) addr: SocketAddr,
    pub(super) socket: Socket,
    /// Keys that the kernel holds for this socket.
    keys: Keys<IpAddr>,
    /// The same of ranges.
    range_keys: Keys<Cidr>,
}

struct Failure {
    error: String,
    again: Instant,
}

/// All listeners.
#[derive(Default)]
pub(super) struct Listeners {
    open: Slab<Listener>,
    failed: BTreeMap<SocketAddr, Failure>,
    /// By remote address.
    guards: FxHashMap<IpAddr, Guard>,
    /// By range of remote addresses.
    ranges: BTreeMap<Cidr, Guard>,
}

impl Listeners {
    pub(super) fn get(&self, index: usize) -> Option<&Listener> {
        self.open.get(index)
    }

    /// The guard of connections from this address, and whether this listener can enforce its key.
    pub(super) fn guard(&self, index: usize, remote: IpAddr) -> (Guard, bool) {
        let listener = self.open.get(index);
        let (guard, held) = if let Some(guard) = self.guards.get(&remote) {
            (guard, listener.and_then(|l| l.keys.0.get(&remote)))
        } else if let Some((range, guard)) = self.range_of(remote) {
            (guard, listener.and_then(|l| l.range_keys.0.get(&range)))
        } else {
            return (Guard::default(), true);
        };
        (guard.clone(), guard.key.is_none() || held == guard.key.as_ref())
    }

    /// The range with the longest prefix that holds the address.
    pub(super) fn range_of(&self, remote: IpAddr) -> Option<(Cidr, &Guard)> {
        let holding = self.ranges.iter().filter(|(range, _)| range.contains(remote));
        holding.max_by_key(|(range, _)| range.len()).map(|(range, guard)| (*range, guard))
    }

    /// When [`Self::follow`] wants to be called again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.failed.values().map(|f| f.again).min()
    }

    /// Opens and closes until exactly `wanted` listens; failed ones are tried again when their time has come. `opened`
    /// is called with the index and socket of each new listener before it can accept.
    pub(super) fn follow(
        &mut self,
        wanted: &[SocketAddr],
        now: Instant,
        mut opened: impl FnMut(usize, &Socket) -> io::Result<()>,
    ) -> Vec<Outcome> {
        let mut out = Vec::new();
        self.open.retain(|_, l| {
            let keep = wanted.contains(&l.addr);
            if !keep {
                out.push(Outcome::Ended(l.addr));
            }
            keep
        });
        self.failed.retain(|addr, _| wanted.contains(addr));
        for &addr in wanted {
            if self.open.iter().any(|(_, l)| l.addr == addr)
                || self.failed.get(&addr).is_some_and(|f| f.again > now)
            {
                continue;
            }
            let result = bind(addr).and_then(|socket| {
                let index = self.open.vacant_key();
                self.open.insert(Listener {
                    addr,
                    socket,
                    keys: Keys::default(),
                    range_keys: Keys::default(),
                });
                out.extend(self.key_listener(index).into_iter().map(Outcome::Unkeyed));
                let ready = self.open.get(index).map_or(Ok(()), |l| {
                    l.socket.listen(BACKLOG)?;
                    opened(index, &l.socket)
                });
                if ready.is_err() {
                    self.open.remove(index);
                }
                ready
            });
            match result {
                Ok(()) => {
                    self.failed.remove(&addr);
                    out.push(Outcome::Opened(addr));
                }
                Err(e) => {
                    let error = explain(addr, &e);
                    let known = self.failed.get(&addr).is_some_and(|f| f.error == error);
                    self.failed.insert(addr, Failure { error: error.clone(), again: now + RETRY });
                    if !known {
                        out.push(Outcome::Failed(addr, error));
                    }
                }
            }
        }
        self.ttl();
        out
    }

    /// Replaces the guards of all peers and ranges; errors in words.
    pub(super) fn guards(
        &mut self,
        guards: FxHashMap<IpAddr, Guard>,
        ranges: BTreeMap<Cidr, Guard>,
    ) -> Vec<String> {
        if self.guards == guards && self.ranges == ranges {
            return Vec::new();
        }
        (self.guards, self.ranges) = (guards, ranges);
        let indices: Vec<usize> = self.open.iter().map(|(i, _)| i).collect();
        let mut errors = Vec::new();
        for index in indices {
            errors.extend(self.key_listener(index));
        }
        self.ttl();
        errors
    }

    /// Brings the keys of one listener in line with the guards.
    fn key_listener(&mut self, index: usize) -> Vec<String> {
        let Some(Listener { addr, socket, keys, range_keys }) = self.open.get_mut(index) else {
            return Vec::new();
        };
        let host = |addr: IpAddr| Cidr::host(link_local::split(addr).0);
        let mut failures = Vec::new();
        keys.follow(socket, *addr, self.guards.iter(), host, &mut failures);
        range_keys.follow(socket, *addr, self.ranges.iter(), |range| range, &mut failures);
        let failed = failures.len();
        failures.truncate(1);
        if failed > 1 {
            failures.push(format!("{failed} keys could not be set on {addr}"));
        }
        failures
    }

    /// A listener drops SYNs from afar only when all its peers want that; else the TTL of a connection's SYN is
    /// looked at when it is accepted.
    fn ttl(&self) {
        let all = || {
            let peers = self.guards.iter().map(|(addr, guard)| (addr.is_ipv6(), guard.min_ttl));
            peers.chain(self.ranges.iter().map(|(range, guard)| (!range.is_v4(), guard.min_ttl)))
        };
        let secured = all().any(|(_, ttl)| ttl > 0);
        for (_, listener) in &self.open {
            let v6 = listener.addr.is_ipv6();
            let min = all().filter(|(of_v6, _)| *of_v6 == v6).map(|(_, ttl)| ttl).min().unwrap_or(0);
            // Each accepted socket is secured again by itself: a failure here weakens nothing but the SYN queue.
            let _ = sockopt::set_min_ttl(&listener.socket, v6, min);
            let _ = sockopt::set_save_syn(&listener.socket, secured);
        }
    }
}

/// Keys that the kernel holds for a socket, by address or by range.
struct Keys<K>(BTreeMap<K, Key>);

impl<K> Default for Keys<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Copy + fmt::Display> Keys<K> {
    /// Brings them in line with the guards; `prefix` is what the kernel knows a place by.
    fn follow<'a>(
        &mut self,
        socket: &Socket,
        listens: SocketAddr,
        guards: impl Iterator<Item = (&'a K, &'a Guard)>,
        prefix: impl Fn(K) -> Cidr,
        failures: &mut Vec<String>,
    ) where
        K: 'a,
    {
        let wanted: BTreeMap<K, &Key> = guards.filter_map(|(at, g)| Some((*at, g.key.as_ref()?))).collect();
        self.0.retain(|at, key| keeps(socket, prefix(*at), key, wanted.get(at).copied()));
        for (at, key) in wanted {
            if prefix(at).is_v4() != listens.is_ipv4() || self.0.get(&at) == Some(key) {
                continue;
            }
            match sockopt::set_key(socket, prefix(at), key) {
                Ok(()) => drop(self.0.insert(at, key.clone())),
                Err(e) => failures.push(format!("{} key of {at} on {listens}: {e}", key.kind())),
            }
        }
    }
}

/// Whether a listener goes on with a key; if not, it is taken from the socket. A key of TCP MD5 is changed by the next one, a
/// key of TCP-AO cannot be.
fn keeps(socket: &Socket, at: Cidr, key: &Key, wanted: Option<&Key>) -> bool {
    let keep = wanted.is_some_and(|new| new == key || (new.ao().is_none() && key.ao().is_none()));
    if !keep {
        // What remains keyed by mistake refuses a stranger; nothing that is let in depends on it.
        let _ = sockopt::remove_key(socket, at, key);
    }
    keep
}

fn bind(addr: SocketAddr) -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Accepted sockets inherit these, and the answer to a SYN needs TTL 255 for a peer with GTSM.
    super::dial::common_options(&socket, addr.is_ipv6())?;
    socket.bind(&SockAddr::from(addr))?;
    Ok(socket)
}

fn explain(addr: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!("{addr}: another process listens there (another BGP daemon?)"),
        io::ErrorKind::AddrNotAvailable => format!("{addr}: no interface has this address"),
        io::ErrorKind::PermissionDenied => {
            format!("{addr}: no permission (ports below 1024 need root or CAP_NET_BIND_SERVICE)")
        }
        _ => format!("{addr}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::routing::Password;
    use crate::speaker::dial;

    fn guard(key: Option<&str>, min_ttl: u8) -> Guard {
        let key = key.map(|k| Key::read(&Password::Text(k.into()), Path::new("/")).unwrap());
        Guard { key, min_ttl }
    }

    fn listening(guards: &[(&str, Guard)]) -> (Listeners, SocketAddr) {
        let mut listeners = Listeners::default();
        let guards = guards.iter().map(|(addr, guard)| (addr.parse().unwrap(), guard.clone())).collect();
        assert_eq!(listeners.guards(guards, BTreeMap::new()), Vec::<String>::new());
        let wanted = "127.0.5.1:0".parse().unwrap();
        assert_eq!(listeners.follow(&[wanted], Instant::now(), |_, _| Ok(())), [Outcome::Opened(wanted)]);
        let at = listeners.get(0).unwrap().socket.local_addr().unwrap().as_socket().unwrap();
        (listeners, at)
    }

    fn connects(socket: &Socket) -> bool {
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            if socket.peer_addr().is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn a_keyed_address_connects_with_its_key_only_until_the_key_is_gone() {
        let (mut listeners, at) = listening(&[("127.0.5.2", guard(Some("right"), 0))]);
        let dial = |key| dial::start(at, "127.0.5.2".parse().ok(), &guard(key, 0)).unwrap();
        assert!(!connects(&dial(None)));
        assert!(!connects(&dial(Some("wrong"))));
        assert!(connects(&dial(Some("right"))));
        assert!(connects(&dial::start(at, "127.0.5.3".parse().ok(), &Guard::default()).unwrap()));
        let (found, keyed) = listeners.guard(0, "127.0.5.2".parse().unwrap());
        assert!(found.key.is_some() && keyed);
        let changed = [("127.0.5.2".parse().unwrap(), guard(Some("other"), 0))].into_iter().collect();
        assert_eq!(listeners.guards(changed, BTreeMap::new()), Vec::<String>::new());
        assert!(!connects(&dial(Some("right"))));
        assert!(connects(&dial(Some("other"))));
        listeners.guards(FxHashMap::default(), BTreeMap::new());
        assert!(connects(&dial(None)));
    }

    #[test]
    fn a_range_has_its_key_and_gets_another_while_it_listens() {
        let (mut listeners, at) = listening(&[]);
        let ranges = |key: &str| -> BTreeMap<Cidr, Guard> {
            let inner = ("127.0.6.0/24".parse().unwrap(), guard(Some("inner"), 0));
            [("127.0.0.0/8".parse().unwrap(), guard(Some(key), 0)), inner].into_iter().collect()
        };
        let peer: FxHashMap<IpAddr, Guard> =
            [("127.0.5.9".parse().unwrap(), guard(Some("peer"), 0))].into_iter().collect();
        assert_eq!(listeners.guards(peer.clone(), ranges("one")), Vec::<String>::new());
        let dial =
            |from: &str, key| connects(&dial::start(at, from.parse().ok(), &guard(Some(key), 0)).unwrap());
        assert!(dial("127.0.5.2", "one") && dial("127.0.6.2", "inner") && dial("127.0.5.9", "peer"));
        assert!(!dial("127.0.5.2", "wrong") && !dial("127.0.6.2", "one") && !dial("127.0.5.9", "one"));
        assert!(listeners.guard(0, "127.0.7.7".parse().unwrap()).1);
        listeners.guards(peer.clone(), ranges("two"));
        assert!(dial("127.0.5.2", "two") && !dial("127.0.5.2", "one"));
        listeners.guards(FxHashMap::default(), BTreeMap::new());
        assert!(connects(&dial::start(at, "127.0.6.2".parse().ok(), &Guard::default()).unwrap()));
    }

    #[test]
    fn the_ttl_of_a_syn_is_known_when_some_peers_are_secured() {
        let secured = ("127.0.5.2", guard(None, 255));
        let (listeners, at) = listening(&[secured.clone(), ("127.0.5.3", Guard::default())]);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_ttl_v4(5).unwrap();
        socket.connect(&SockAddr::from(at)).unwrap();
        let (accepted, _) = listeners.get(0).unwrap().socket.accept().unwrap();
        assert_eq!(sockopt::saved_syn_ttl(&accepted).unwrap(), Some(5));
        // All of them: the kernel drops it.
        let (_listeners, at) = listening(&[secured]);
        let far = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        far.set_ttl_v4(254).unwrap();
        assert!(far.connect_timeout(&SockAddr::from(at), Duration::from_millis(300)).is_err());
        assert!(connects(&dial::start(at, None, &Guard::default()).unwrap()));
    }
}
