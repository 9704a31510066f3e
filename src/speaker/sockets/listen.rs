//! Listening sockets: opened, closed and keyed as the configuration wants.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use slab::Slab;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tortie_net::{Cidr, link_local};

use crate::speaker::sockets::secret::Key;
use crate::speaker::sockets::sockopt;

/// Longer than any burst of peers that start at once: shorter ones drop SYNs, which come back after seconds.
const BACKLOG: i32 = 4096;

/// How long after a bind that failed, or a key for which the kernel had no room, it is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// What listeners need to know of a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Key of TCP MD5 or TCP-AO.
    pub(crate) key: Option<Key>,
    /// Smallest TTL to accept (RFC 5082), 0: any.
    pub(crate) min_ttl: u8,
    /// Nobody may come from there: it should have a key, and has none that can be used.
    pub(crate) shut: bool,
}

impl Guard {
    /// Of who should have a key, and has none that can be used.
    pub(crate) fn shut() -> Self {
        Self { key: None, min_ttl: u8::MAX, shut: true }
    }
}

/// What a change of the wanted addresses did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Opened(SocketAddr),
    Ended(SocketAddr),
    Failed(SocketAddr, String),
}

pub(crate) struct Listener {
    pub(crate) addr: SocketAddr,
    pub(crate) socket: Socket,
    keys: Keys,
    /// What is wrong with them; connections that need one that is not there are refused.
    wrong: Vec<String>,
    /// Some were not taken: when they are tried again.
    again: Option<Instant>,
}

struct Failure {
    error: String,
    again: Instant,
}

/// All listeners.
#[derive(Default)]
pub(crate) struct Listeners {
    open: Slab<Listener>,
    failed: BTreeMap<SocketAddr, Failure>,
    /// By remote address.
    guards: FxHashMap<IpAddr, Guard>,
    /// By range of remote addresses.
    ranges: BTreeMap<Cidr, Guard>,
}

impl Listeners {
    pub(crate) fn get(&self, index: usize) -> Option<&Listener> {
        self.open.get(index)
    }

    /// The guard of connections from this address, and whether this listener can enforce its key, which is there.
    pub(crate) fn guard(&self, index: usize, remote: IpAddr) -> (Guard, bool) {
        let (place, guard) = if let Some(guard) = self.guards.get(&remote) {
            (place_of(remote), guard)
        } else if let Some(range) = self.range_of(remote) {
            range
        } else {
            return (Guard::default(), true);
        };
        let held = self.open.get(index).and_then(|l| l.keys.0.get(&place));
        let enforced = guard.key.is_none() || held == guard.key.as_ref();
        (guard.clone(), enforced && !guard.shut)
    }

    /// The range with the longest prefix that holds the address.
    pub(crate) fn range_of(&self, remote: IpAddr) -> Option<(Cidr, &Guard)> {
        let holding = self.ranges.iter().filter(|(range, _)| range.contains(remote));
        holding.max_by_key(|(range, _)| range.len()).map(|(range, guard)| (*range, guard))
    }

    /// When [`Self::follow`] wants to be called again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let keys = self.open.iter().filter_map(|(_, l)| l.again);
        self.failed.values().map(|f| f.again).chain(keys).min()
    }

    /// Opens and closes until exactly `wanted` listens; failed ones and their keys are tried again when their time has
    /// come. `opened` is called with the index and socket of each new listener before it can accept.
    pub(crate) fn follow(
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
        let due = |(index, l): (usize, &Listener)| l.again.is_some_and(|at| at <= now).then_some(index);
        let due: Vec<usize> = self.open.iter().filter_map(due).collect();
        for index in due {
            self.key_listener(index, now);
        }
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
                    wrong: Vec::new(),
                    again: None,
                });
                self.key_listener(index, now);
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

    /// What is wrong with the keys of all listeners.
    pub(crate) fn wrong(&self) -> impl Iterator<Item = &String> {
        self.open.iter().flat_map(|(_, listener)| &listener.wrong)
    }

    /// Replaces the guards of all peers and ranges.
    pub(crate) fn guards(
        &mut self,
        guards: FxHashMap<IpAddr, Guard>,
        ranges: BTreeMap<Cidr, Guard>,
        now: Instant,
    ) {
        if self.guards == guards && self.ranges == ranges {
            return;
        }
        (self.guards, self.ranges) = (guards, ranges);
        let indices: Vec<usize> = self.open.iter().map(|(i, _)| i).collect();
        for index in indices {
            self.key_listener(index, now);
        }
        self.ttl();
    }

    /// Brings the keys of one listener in line with the guards.
    fn key_listener(&mut self, index: usize, now: Instant) {
        let Some(listener) = self.open.get_mut(index) else { return };
        let (wanted, clashes) = wanted(listener.addr, &self.guards, &self.ranges);
        let mut wrong = listener.keys.follow(&listener.socket, listener.addr, &wanted);
        let failed = wrong.len();
        listener.again = (failed > 0).then(|| now + RETRY);
        wrong.truncate(1);
        if failed > 1 {
            wrong.push(format!("{failed} keys could not be set on {}", listener.addr));
        }
        wrong.extend(clashes);
        listener.wrong = wrong;
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

/// What the kernel knows the address of a peer by: no link is part of it.
fn place_of(remote: IpAddr) -> Cidr {
    Cidr::host(link_local::split(remote).0)
}

/// The keys that a listener at this address needs, by what the kernel knows a place by, and what contradicts itself there.
fn wanted<'a>(
    listens: SocketAddr,
    guards: &'a FxHashMap<IpAddr, Guard>,
    ranges: &'a BTreeMap<Cidr, Guard>,
) -> (BTreeMap<Cidr, &'a Key>, Vec<String>) {
    // One on a link hears nobody of another.
    let link = link_local::link_of(listens);
    let here = |remote: IpAddr| {
        let from = link_local::split(remote).1;
        remote.is_ipv4() == listens.is_ipv4() && (link == 0 || from == 0 || from == link)
    };
    let mut peers: Vec<_> = guards.iter().filter(|(remote, _)| here(**remote)).collect();
    // Of several at one place the first counts, and it is better to ask for a key. Those of links come to where all is
    // heard, or to the link's own address, seldom to another.
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
    // A range may be one address, too; its peer counts before it.
    wanted.extend(of_peers.into_iter().filter_map(|(place, key)| Some((place, key?))));
    (wanted, clashes)
}

/// Keys that the kernel holds for a socket, by what it knows a place by.
#[derive(Default)]
struct Keys(BTreeMap<Cidr, Key>);

impl Keys {
    /// Brings them in line with what is wanted; those that the kernel did not take, in words.
    fn follow(&mut self, socket: &Socket, listens: SocketAddr, wanted: &BTreeMap<Cidr, &Key>) -> Vec<String> {
        self.0.retain(|at, key| keeps(socket, *at, key, wanted.get(at).copied()));
        let mut failures = Vec::new();
        for (at, key) in wanted {
            if self.0.get(at) == Some(*key) {
                continue;
            }
            match sockopt::set_key(socket, *at, key) {
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
    crate::speaker::sockets::connect::common_options(&socket, addr.is_ipv6())?;
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
    use tortie_engine::routing::Password;
    use crate::speaker::sockets::connect;

    fn guard(key: Option<&str>, min_ttl: u8) -> Guard {
        let key = key.map(|k| Key::read(&Password::Text(k.into()), Path::new("/")).unwrap());
        Guard { key, min_ttl, shut: false }
    }

    fn listening(guards: &[(&str, Guard)]) -> (Listeners, SocketAddr) {
        let mut listeners = Listeners::default();
        let guards = guards.iter().map(|(addr, guard)| (addr.parse().unwrap(), guard.clone())).collect();
        listeners.guards(guards, BTreeMap::new(), Instant::now());
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
        let dial = |key| connect::start(at, "127.0.5.2".parse().ok(), &guard(key, 0)).unwrap();
        assert!(!connects(&dial(None)));
        assert!(!connects(&dial(Some("wrong"))));
        assert!(connects(&dial(Some("right"))));
        assert!(connects(&connect::start(at, "127.0.5.3".parse().ok(), &Guard::default()).unwrap()));
        let (found, keyed) = listeners.guard(0, "127.0.5.2".parse().unwrap());
        assert!(found.key.is_some() && keyed);
        let changed = [("127.0.5.2".parse().unwrap(), guard(Some("other"), 0))].into_iter().collect();
        listeners.guards(changed, BTreeMap::new(), Instant::now());
        assert_eq!(listeners.wrong().count(), 0);
        assert!(!connects(&dial(Some("right"))));
        assert!(connects(&dial(Some("other"))));
        listeners.guards(FxHashMap::default(), BTreeMap::new(), Instant::now());
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
        listeners.guards(peer.clone(), ranges("one"), Instant::now());
        assert_eq!(listeners.wrong().count(), 0);
        let dial =
            |from: &str, key| connects(&connect::start(at, from.parse().ok(), &guard(Some(key), 0)).unwrap());
        assert!(dial("127.0.5.2", "one") && dial("127.0.6.2", "inner") && dial("127.0.5.9", "peer"));
        assert!(!dial("127.0.5.2", "wrong") && !dial("127.0.6.2", "one") && !dial("127.0.5.9", "one"));
        assert!(listeners.guard(0, "127.0.7.7".parse().unwrap()).1);
        listeners.guards(peer.clone(), ranges("two"), Instant::now());
        assert!(dial("127.0.5.2", "two") && !dial("127.0.5.2", "one"));
        listeners.guards(FxHashMap::default(), BTreeMap::new(), Instant::now());
        assert!(connects(&connect::start(at, "127.0.6.2".parse().ok(), &Guard::default()).unwrap()));
    }

    #[test]
    fn a_key_for_which_there_was_no_room_is_wrong_until_it_was_taken() {
        let (mut listeners, _) = listening(&[]);
        let others = Key::new(b"other".to_vec()).unwrap();
        let other = |n: u32| Cidr::host(std::net::Ipv4Addr::from(0x0a00_0000 + n).into());
        let set = |listeners: &Listeners, n, key| {
            sockopt::set_md5(&listeners.get(0).unwrap().socket, other(n), key)
        };
        assert!((1..).any(|n| set(&listeners, n, Some(&others)).is_err()));
        let peer = "127.0.5.2".parse().unwrap();
        let keyed = [(peer, guard(Some("right"), 0))].into_iter().collect();
        listeners.guards(keyed, BTreeMap::new(), Instant::now());
        let wrong = |listeners: &Listeners| listeners.wrong().cloned().collect::<Vec<_>>();
        assert!(
            matches!(&wrong(&listeners)[..], [text] if text.contains("optmem_max")),
            "{:?}",
            wrong(&listeners)
        );
        let again = |listeners: &mut Listeners| {
            let at = listeners.deadline().unwrap();
            listeners.follow(&["127.0.5.1:0".parse().unwrap()], at, |_, _| Ok(()))
        };
        assert_eq!((again(&mut listeners), wrong(&listeners).len()), (vec![], 1));
        assert!(!listeners.guard(0, peer).1);
        set(&listeners, 1, None).unwrap();
        assert_eq!((again(&mut listeners), wrong(&listeners).len()), (vec![], 0));
        assert!(listeners.guard(0, peer).1);
        assert_eq!(listeners.deadline(), None);
    }

    fn on(text: &str, link: u32) -> IpAddr {
        link_local::on(text.parse().unwrap(), link)
    }

    #[test]
    fn neighbours_with_one_address_share_a_key_where_all_links_are_heard_and_nowhere_else() {
        let of = |keys: [Option<&str>; 2]| -> FxHashMap<IpAddr, Guard> {
            keys.iter().zip([3, 4]).map(|(key, link)| (on("fe80::1", link), guard(*key, 0))).collect()
        };
        let keys = |listens: &str, guards: &FxHashMap<IpAddr, Guard>| {
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

    #[test]
    fn a_neighbour_that_goes_leaves_the_key_of_the_one_with_its_address_on_another_link() {
        tortie_topology::netns::in_netns(|| {
            for words in ["link set lo up", "addr add fe80::1/64 dev lo nodad"] {
                let done = std::process::Command::new("ip").args(words.split(' ')).status().unwrap();
                assert!(done.success(), "ip {words}");
            }
            let mut listeners = Listeners::default();
            let both = [1, 2].map(|link| (on("fe80::1", link), guard(Some("right"), 0)));
            let mut guards: FxHashMap<IpAddr, Guard> = both.into_iter().collect();
            listeners.guards(guards.clone(), BTreeMap::new(), Instant::now());
            let everywhere = "[::]:0".parse().unwrap();
            listeners.follow(&[everywhere], Instant::now(), |_, _| Ok(()));
            guards.remove(&on("fe80::1", 2));
            listeners.guards(guards, BTreeMap::new(), Instant::now());
            assert_eq!(listeners.wrong().count(), 0);
            let port = listeners.get(0).unwrap().socket.local_addr().unwrap().as_socket().unwrap().port();
            let dial = |key| {
                let at = std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), port, 0, 1);
                connects(&connect::start(at.into(), None, &guard(key, 0)).unwrap())
            };
            assert!(listeners.guard(0, on("fe80::1", 1)).1);
            assert!(dial(Some("right")) && !dial(None));
        });
    }

    #[test]
    fn a_range_of_one_address_and_a_peer_there_do_not_take_each_others_key() {
        let (mut listeners, at) = listening(&[]);
        let range = |key| [("127.0.5.2/32".parse().unwrap(), guard(Some(key), 0))].into_iter().collect();
        let peer = |key| [("127.0.5.2".parse().unwrap(), guard(Some(key), 0))].into_iter().collect();
        let dial = |key| connects(&connect::start(at, "127.0.5.2".parse().ok(), &guard(key, 0)).unwrap());
        listeners.guards(peer("peer"), range("range"), Instant::now());
        assert!(dial(Some("peer")) && !dial(Some("range")) && !dial(None));
        listeners.guards(FxHashMap::default(), range("range"), Instant::now());
        assert!(dial(Some("range")) && !dial(Some("peer")) && !dial(None));
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
        assert!(connects(&connect::start(at, None, &Guard::default()).unwrap()));
    }
}
