//! Listening sockets: opens, closes and keys them according to the configuration, and accepts connections.
//!
//! An accepted connection is checked against the guard of its address. It is returned with that protection
//! set, or closed and counted.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use slab::Slab;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tortie_config::counted;
use tortie_net::{Cidr, ScopedAddr};

use crate::speaker::sockets::connect;
use crate::speaker::sockets::guard::Guard;
use crate::speaker::sockets::listener_keys::{Keys, place_of, wanted};
use crate::speaker::sockets::sockopt;

/// Listen backlog, longer than any burst of starting peers: with a shorter one the kernel drops SYNs, which
/// are repeated after seconds.
const BACKLOG: i32 = 4096;

/// Retry interval after a failed bind, or for a key for which the kernel had no room.
const RETRY: Duration = Duration::from_secs(2);

/// Effect of a change of the listen addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Opened(SocketAddr),
    Ended(SocketAddr),
    Failed(SocketAddr, String),
}

/// Answer of the peer table and the BGP core to a new connection from an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// A peer or range has the address, but accepts no connection now.
    Damped,
    /// No peer has the address.
    UnknownAddress,
}

/// Next connection in the queue of a listener.
pub(crate) enum Incoming {
    Accepted {
        socket: Socket,
        local: SocketAddr,
        remote: SocketAddr,
    },
    /// The connection was closed and counted; contains a problem that should be reported.
    Refused(Option<String>),
    /// No connection is pending.
    None,
}

/// Connection counts of all listeners since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AcceptCounters {
    pub(crate) accepted: u64,
    pub(crate) refused_address: u64,
    pub(crate) refused_damped: u64,
    pub(crate) refused_key: u64,
    pub(crate) refused_ttl: u64,
}

struct Listener {
    addr: SocketAddr,
    socket: Socket,
    keys: Keys,
    /// Problems with keys; connections that need a missing key are rejected.
    problems: Vec<String>,
    /// Time at which keys that the kernel rejected are set again.
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
    /// Guards by remote address.
    guards: BTreeMap<ScopedAddr, Guard>,
    /// Guards by range of remote addresses.
    ranges: BTreeMap<Cidr, Guard>,
    /// Listeners that may have pending connections, each with the earliest time to accept them.
    pending: Vec<(usize, Instant)>,
    counters: AcceptCounters,
    /// Descriptions of contradicting guards of peers and ranges.
    clashes: Vec<String>,
}

impl Listeners {
    /// Records that epoll reported a listener.
    pub(crate) fn ready(&mut self, index: usize, now: Instant) {
        if !self.pending.iter().any(|(i, _)| *i == index) {
            self.pending.push((index, now));
        }
    }

    /// Takes the listeners to accept from now; those with further connections are returned with
    /// [`Self::accept_later`].
    pub(crate) fn take_pending(&mut self, now: Instant) -> Vec<usize> {
        self.pending.extract_if(.., |(_, at)| *at <= now).map(|(index, _)| index).collect()
    }

    /// Schedules a listener for this time.
    pub(crate) fn accept_later(&mut self, index: usize, at: Instant) {
        self.pending.push((index, at));
    }

    /// Returns the time of the next scheduled accept.
    pub(crate) fn next_accept(&self) -> Option<Instant> {
        self.pending.iter().map(|(_, at)| *at).min()
    }

    pub(crate) fn counters(&self) -> &AcceptCounters {
        &self.counters
    }

    /// Accepts a connection. `admission` is checked first, so that a peer which connects repeatedly costs an
    /// accept and a close, but no entry in the queue.
    ///
    /// # Errors
    /// Returns an error when the kernel cannot accept more for now (file descriptors, memory).
    pub(crate) fn accept(
        &mut self,
        index: usize,
        admission: impl FnOnce(SocketAddr) -> Admission,
    ) -> io::Result<Incoming> {
        let Some(listener) = self.open.get(index) else { return Ok(Incoming::None) };
        let (socket, remote) = match listener.socket.accept4(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) {
            Ok(accepted) => accepted,
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(Incoming::None),
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => return Err(e),
                // Errors of the accepted connection itself (accept(2)).
                _ => return Ok(Incoming::Refused(None)),
            },
        };
        let Some(remote) = remote.as_socket() else { return Ok(Incoming::Refused(None)) };
        self.counters.accepted += 1;
        match admission(remote) {
            Admission::Admitted => {}
            Admission::UnknownAddress if self.range_of(remote.ip().to_canonical()).is_none() => {
                self.counters.refused_address += 1;
                return Ok(Incoming::Refused(None));
            }
            Admission::UnknownAddress | Admission::Damped => {
                self.counters.refused_damped += 1;
                return Ok(Incoming::Refused(None));
            }
        }
        let (guard, keyed) = self.guard(index, ScopedAddr::of(remote));
        if !keyed {
            // The listener accepted it without the required signature.
            self.counters.refused_key += 1;
            return Ok(Incoming::Refused(None));
        }
        if guard.min_ttl > 0 {
            let ttl = sockopt::saved_syn_ttl(&socket).ok().flatten();
            if ttl.is_some_and(|ttl| ttl < guard.min_ttl) {
                self.counters.refused_ttl += 1;
                return Ok(Incoming::Refused(None));
            }
        }
        let Some(local) = socket.local_addr().ok().and_then(|a| a.as_socket()) else {
            return Ok(Incoming::Refused(None));
        };
        if let Err(e) = connect::secure(&socket, remote.ip(), &guard) {
            self.counters.refused_key += 1;
            return Ok(Incoming::Refused(Some(format!("connection from {}: {e}", remote.ip()))));
        }
        Ok(Incoming::Accepted { socket, local, remote })
    }

    /// Returns the guard of connections from this address, and true if the listener enforces its key.
    fn guard(&self, index: usize, remote: ScopedAddr) -> (Guard, bool) {
        let (place, guard) = if let Some(guard) = self.guards.get(&remote) {
            (place_of(remote), guard)
        } else if let Some(range) = self.range_of(remote.addr()) {
            range
        } else {
            return (Guard::default(), true);
        };
        let held = self.open.get(index).and_then(|l| l.keys.get(place));
        let enforced = guard.key.is_none() || held == guard.key.as_ref();
        (guard.clone(), enforced && !guard.shut)
    }

    /// Returns the range with the longest prefix that contains the address.
    fn range_of(&self, remote: IpAddr) -> Option<(Cidr, &Guard)> {
        let holding = self.ranges.iter().filter(|(range, _)| range.contains(remote));
        holding.max_by_key(|(range, _)| range.len()).map(|(range, guard)| (*range, guard))
    }

    /// Returns the time at which [`Self::follow`] must be called again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let keys = self.open.iter().filter_map(|(_, l)| l.again);
        self.failed.values().map(|f| f.again).chain(keys).min()
    }

    /// Opens and closes listeners until exactly `wanted` is listened on; retries failed ones and their keys
    /// when due. `opened` is called with index and socket of each new listener before it can accept.
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
                    problems: Vec::new(),
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
                    let reported = self.failed.get(&addr).is_some_and(|f| f.error == error);
                    self.failed.insert(addr, Failure { error: error.clone(), again: now + RETRY });
                    if !reported {
                        out.push(Outcome::Failed(addr, error));
                    }
                }
            }
        }
        self.ttl();
        out
    }

    /// Returns the problems with the keys of all listeners.
    pub(crate) fn key_problems(&self) -> impl Iterator<Item = &String> {
        self.clashes.iter().chain(self.open.iter().flat_map(|(_, listener)| &listener.problems))
    }

    /// Replaces the contradictions between guards, which are key problems of all listeners.
    pub(crate) fn set_clashes(&mut self, clashes: Vec<String>) {
        self.clashes = clashes;
    }

    /// Replaces the guards of all peers and ranges.
    pub(crate) fn set_guards(
        &mut self,
        guards: BTreeMap<ScopedAddr, Guard>,
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

    /// Reconciles the keys of one listener with the guards.
    fn key_listener(&mut self, index: usize, now: Instant) {
        let Some(listener) = self.open.get_mut(index) else { return };
        let (wanted, clashes) = wanted(listener.addr, &self.guards, &self.ranges);
        let mut problems = listener.keys.follow(&listener.socket, listener.addr, &wanted);
        let failed = problems.len();
        listener.again = (failed > 0).then(|| now + RETRY);
        problems.truncate(1);
        if failed > 1 {
            problems.push(format!("cannot set {} on {}", counted(failed, "key"), listener.addr));
        }
        problems.extend(clashes);
        listener.problems = problems;
    }

    /// Sets the minimum TTL of listeners. A listener drops SYNs with a low TTL only if all its peers require
    /// that; otherwise the TTL of the SYN is checked when the connection is accepted.
    fn ttl(&self) {
        let all = || {
            let peers = self.guards.iter().map(|(addr, guard)| (!addr.is_v4(), guard.min_ttl));
            peers.chain(self.ranges.iter().map(|(range, guard)| (!range.is_v4(), guard.min_ttl)))
        };
        let secured = all().any(|(_, ttl)| ttl > 0);
        for (_, listener) in &self.open {
            let v6 = listener.addr.is_ipv6();
            let min = all().filter(|(of_v6, _)| *of_v6 == v6).map(|(_, ttl)| ttl).min().unwrap_or(0);
            // Each accepted socket is secured again, so a failure here only affects the SYN queue.
            let _ = sockopt::set_min_ttl(&listener.socket, v6, min);
            let _ = sockopt::set_save_syn(&listener.socket, secured);
        }
    }
}

fn bind(addr: SocketAddr) -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Accepted sockets inherit these options, and the answer to a SYN needs TTL 255 for a peer with GTSM.
    connect::common_options(&socket, addr.is_ipv6())?;
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

    use crate::speaker::sockets::md5;
    use crate::speaker::sockets::secret::Key;
    use tortie_engine::routing::Password;

    fn guard(key: Option<&str>, min_ttl: u8) -> Guard {
        let key = key.map(|k| Key::read(&Password::Text(k.into()), Path::new("/")).unwrap());
        Guard { key, min_ttl, shut: false }
    }

    fn listening(guards: &[(&str, Guard)]) -> (Listeners, SocketAddr) {
        let mut listeners = Listeners::default();
        let guards = guards.iter().map(|(addr, guard)| (addr.parse().unwrap(), guard.clone())).collect();
        listeners.set_guards(guards, BTreeMap::new(), Instant::now());
        let wanted = "127.0.5.1:0".parse().unwrap();
        assert_eq!(listeners.follow(&[wanted], Instant::now(), |_, _| Ok(())), [Outcome::Opened(wanted)]);
        let at = listeners.open.get(0).unwrap().socket.local_addr().unwrap().as_socket().unwrap();
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
        listeners.set_guards(changed, BTreeMap::new(), Instant::now());
        assert_eq!(listeners.key_problems().count(), 0);
        assert!(!connects(&dial(Some("right"))));
        assert!(connects(&dial(Some("other"))));
        listeners.set_guards(BTreeMap::new(), BTreeMap::new(), Instant::now());
        assert!(connects(&dial(None)));
    }

    #[test]
    fn a_range_has_its_key_and_gets_another_while_it_listens() {
        let (mut listeners, at) = listening(&[]);
        let ranges = |key: &str| -> BTreeMap<Cidr, Guard> {
            let inner = ("127.0.6.0/24".parse().unwrap(), guard(Some("inner"), 0));
            [("127.0.0.0/8".parse().unwrap(), guard(Some(key), 0)), inner].into_iter().collect()
        };
        let peer: BTreeMap<ScopedAddr, Guard> =
            [("127.0.5.9".parse().unwrap(), guard(Some("peer"), 0))].into_iter().collect();
        listeners.set_guards(peer.clone(), ranges("one"), Instant::now());
        assert_eq!(listeners.key_problems().count(), 0);
        let dial =
            |from: &str, key| connects(&connect::start(at, from.parse().ok(), &guard(Some(key), 0)).unwrap());
        assert!(dial("127.0.5.2", "one") && dial("127.0.6.2", "inner") && dial("127.0.5.9", "peer"));
        assert!(!dial("127.0.5.2", "wrong") && !dial("127.0.6.2", "one") && !dial("127.0.5.9", "one"));
        assert!(listeners.guard(0, "127.0.7.7".parse().unwrap()).1);
        listeners.set_guards(peer.clone(), ranges("two"), Instant::now());
        assert!(dial("127.0.5.2", "two") && !dial("127.0.5.2", "one"));
        listeners.set_guards(BTreeMap::new(), BTreeMap::new(), Instant::now());
        assert!(connects(&connect::start(at, "127.0.6.2".parse().ok(), &Guard::default()).unwrap()));
    }

    #[test]
    fn a_key_for_which_there_was_no_room_is_a_problem_until_it_was_taken() {
        let (mut listeners, _) = listening(&[]);
        let others = Key::new(b"other".to_vec()).unwrap();
        let other = |n: u32| Cidr::host(std::net::Ipv4Addr::from(0x0a00_0000 + n).into());
        let set = |listeners: &Listeners, n, key| {
            md5::set_md5(&listeners.open.get(0).unwrap().socket, other(n), key)
        };
        assert!((1..).any(|n| set(&listeners, n, Some(&others)).is_err()));
        let peer = "127.0.5.2".parse().unwrap();
        let keyed = [(peer, guard(Some("right"), 0))].into_iter().collect();
        listeners.set_guards(keyed, BTreeMap::new(), Instant::now());
        let wrong = |listeners: &Listeners| listeners.key_problems().cloned().collect::<Vec<_>>();
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

    fn on(text: &str, link: u32) -> ScopedAddr {
        ScopedAddr::new(text.parse().unwrap(), link)
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
            let mut guards: BTreeMap<ScopedAddr, Guard> = both.into_iter().collect();
            listeners.set_guards(guards.clone(), BTreeMap::new(), Instant::now());
            let everywhere = "[::]:0".parse().unwrap();
            listeners.follow(&[everywhere], Instant::now(), |_, _| Ok(()));
            guards.remove(&on("fe80::1", 2));
            listeners.set_guards(guards, BTreeMap::new(), Instant::now());
            assert_eq!(listeners.key_problems().count(), 0);
            let port =
                listeners.open.get(0).unwrap().socket.local_addr().unwrap().as_socket().unwrap().port();
            let dial = |key| {
                let at = std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), port, 0, 1);
                connects(&connect::start(at.into(), None, &guard(key, 0)).unwrap())
            };
            assert!(listeners.guard(0, on("fe80::1", 1)).1);
            assert!(dial(Some("right")) && !dial(None));
        });
    }

    #[test]
    fn a_neighbour_on_a_link_has_the_guard_of_its_range() {
        let mut listeners = Listeners::default();
        let range = [("fe80::/64".parse().unwrap(), guard(None, 255))].into_iter().collect();
        listeners.set_guards(BTreeMap::new(), range, Instant::now());
        assert_eq!(listeners.guard(0, on("fe80::1", 3)), (guard(None, 255), true));
    }

    #[test]
    fn a_range_of_one_address_and_a_peer_there_do_not_take_each_others_key() {
        let (mut listeners, at) = listening(&[]);
        let range = |key| [("127.0.5.2/32".parse().unwrap(), guard(Some(key), 0))].into_iter().collect();
        let peer = |key| [("127.0.5.2".parse().unwrap(), guard(Some(key), 0))].into_iter().collect();
        let dial = |key| connects(&connect::start(at, "127.0.5.2".parse().ok(), &guard(key, 0)).unwrap());
        listeners.set_guards(peer("peer"), range("range"), Instant::now());
        assert!(dial(Some("peer")) && !dial(Some("range")) && !dial(None));
        listeners.set_guards(BTreeMap::new(), range("range"), Instant::now());
        assert!(dial(Some("range")) && !dial(Some("peer")) && !dial(None));
    }

    #[test]
    fn the_ttl_of_a_syn_is_known_when_some_peers_are_secured() {
        let secured = ("127.0.5.2", guard(None, 255));
        let (listeners, at) = listening(&[secured.clone(), ("127.0.5.3", Guard::default())]);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_ttl_v4(5).unwrap();
        socket.connect(&SockAddr::from(at)).unwrap();
        let (accepted, _) = listeners.open.get(0).unwrap().socket.accept().unwrap();
        assert_eq!(sockopt::saved_syn_ttl(&accepted).unwrap(), Some(5));
        // If all peers require it, the kernel drops the SYN.
        let (_listeners, at) = listening(&[secured]);
        let far = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        far.set_ttl_v4(254).unwrap();
        assert!(far.connect_timeout(&SockAddr::from(at), Duration::from_millis(300)).is_err());
        assert!(connects(&connect::start(at, None, &Guard::default()).unwrap()));
    }
}
