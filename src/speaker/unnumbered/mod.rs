//! Unnumbered peers: finds the neighbour on an interface by router advertisements (RFC 4861).
//!
//! Sends and receives advertisements on the interfaces of peers without an address, and derives an intent in
//! which such a peer has the neighbour's address, scoped to the interface. Without an advertisement the peer
//! is left out. The resulting sessions are ordinary ones. Forwarding, addresses, prefixes and default routers
//! of advertisements are left to the kernel.
//!
//! ```text
//!  RoutingIntent --> given --+                        interfaces: /proc/net/if_inet6
//!                            +--> resolved intent --> peers, bfd, listeners
//!  router advertisements ----+
//! ```

mod message;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::speaker::faults::{PeerProblem, Reporter};
use crate::speaker::sockets::poller::{Poller, Source};
use crate::speaker::sockets::{datagram, sockopt};
use message::{Message, Own};
use tortie_engine::routing::{PeerIntent, RoutingIntent};
use tortie_net::ScopedAddr;

/// Multicast groups `ff02::1` (all nodes) and `ff02::2` (all routers).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Advertisement interval while the neighbour is unknown, and until it has certainly received one.
const FAST: Duration = Duration::from_secs(1);
/// Number of advertisements at that interval after an interface came up. The interval is shorter than in RFC
/// 4861, section 10, as in FRR, because sessions wait for the advertisements.
const FAST_COUNT: u32 = 5;
/// Advertisement interval afterwards, as in FRR.
const SLOW: Duration = Duration::from_secs(10);
/// Interval and number of probes of the neighbour while another router advertises itself on the link (RFC
/// 4861, section 10: MAX_UNICAST_SOLICIT). The interval is shorter than in the RFC, since only one node must
/// answer.
const PROBE: Duration = Duration::from_millis(500);
const PROBES: u32 = 3;
/// A neighbour without a session that does not advertise itself for this time, although solicited, is
/// replaced by another router on the link, even if its kernel still answers probes. A router delays its
/// answer by at most three seconds (RFC 4861, section 6.2.6).
const SILENT: Duration = Duration::from_secs(5);
/// An interface that goes down loses its address, and gets the same one when it is back. For this time that
/// counts as a flap, and the peer stays. It equals the default time for which a peer's routes are kept
/// without it (RFC 4724, section 4.2).
const AWAY: Duration = Duration::from_secs(120);
/// Maximum number of messages read per iteration.
const TAKE: usize = 64;

/// Subject of faults.
const SUBJECT: &str = "router advertisements";

/// Signature of [`Unnumbered::run`] and [`Unnumbered::receive`].
pub(crate) type UnnumberedStep =
    fn(&mut Unnumbered, Instant, &dyn Fn(SocketAddr) -> bool, &mut Reporter) -> Option<Arc<RoutingIntent>>;

/// State of the interfaces of unnumbered peers.
#[derive(Default)]
pub(crate) struct Unnumbered {
    /// The intent before addresses are filled in.
    given: Option<Arc<RoutingIntent>>,
    socket: Option<Socket>,
    links: BTreeMap<String, Link>,
    /// Peers reported as waiting, with the cause.
    waiting: BTreeMap<Arc<str>, &'static str>,
    due: Option<Instant>,
}

#[derive(Default)]
struct Link {
    own: Option<Own>,
    /// Time since which the kernel lists the address as tentative or not at all.
    away: Option<Instant>,
    /// The router whose advertisement was accepted.
    neighbour: Option<Ipv6Addr>,
    /// Another router that advertises itself.
    challenger: Option<Challenger>,
    sent: u32,
    next: Option<Instant>,
}

/// A router that advertises itself on the link while another one is the neighbour: a replacement, one with a
/// new link-local address, or a second router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Challenger {
    addr: Ipv6Addr,
    since: Instant,
    /// Number of probes sent to the neighbour.
    probes: u32,
    /// True if the neighbour answered a probe.
    answered: bool,
}

impl Link {
    /// Processes an advertisement. Returns true if its sender becomes the neighbour.
    fn advertised(&mut self, source: Ipv6Addr, now: Instant) -> bool {
        match self.neighbour {
            None => {
                self.neighbour = Some(source);
                true
            }
            Some(neighbour) if neighbour == source => {
                self.challenger = None;
                false
            }
            Some(_) => {
                let new = Challenger { addr: source, since: now, probes: 0, answered: false };
                self.challenger.get_or_insert(new);
                false
            }
        }
    }

    /// Processes a neighbour advertisement for this address.
    fn answered(&mut self, target: Ipv6Addr) {
        if let Some(challenger) = self.challenger.as_mut().filter(|_| self.neighbour == Some(target)) {
            challenger.answered = true;
        }
    }

    /// Decides between the neighbour and the challenger. `settled`: the session with the neighbour is
    /// established. Returns true if the challenger becomes the neighbour.
    fn decide(&mut self, settled: bool, now: Instant) -> bool {
        let Some(challenger) = self.challenger else { return false };
        let wins = match (challenger.answered, settled) {
            (false, _) => now >= challenger.since + PROBE * PROBES,
            (true, true) => {
                self.challenger = None;
                return false;
            }
            (true, false) => now >= challenger.since + SILENT,
        };
        if wins {
            (self.neighbour, self.challenger) = (Some(challenger.addr), None);
            // The new neighbour must receive an advertisement.
            (self.sent, self.next) = (0, None);
        }
        wins
    }

    /// Processes the addresses that the kernel lists for the interface; returns true if the local address
    /// changes. `there` checks whether an index still belongs to this interface.
    fn update(
        &mut self,
        shown: impl Iterator<Item = (Own, bool)>,
        there: impl Fn(u32) -> bool,
        now: Instant,
    ) -> bool {
        let shown: SmallVec<[(Own, bool); 2]> = shown.collect();
        // The current address is kept while it is listed, even if it is tentative again.
        let same = self.own.and_then(|own| shown.iter().find(|(shown, _)| *shown == own));
        let usable = same.is_none_or(|(_, usable)| *usable);
        let own = same.or_else(|| shown.iter().find(|(_, usable)| *usable)).map(|(own, _)| *own);
        if let (None, Some(old)) = (own, self.own)
            && there(old.ifindex)
            && now < *self.away.get_or_insert(now) + AWAY
        {
            return false;
        }
        if own == self.own {
            if !usable {
                self.away.get_or_insert(now);
            } else if self.away.take().is_some() {
                // The neighbour must receive an advertisement again.
                (self.sent, self.next) = (0, None);
            }
            return false;
        }
        (self.own, self.away, self.sent, self.next) = (own, None, 0, None);
        true
    }
}

impl Unnumbered {
    /// Returns the time at which [`Self::run`] must be called again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the addresses to listen on for unnumbered peers, with this port.
    pub(crate) fn listen(&self, port: u16) -> impl Iterator<Item = SocketAddr> {
        let own = self.links.values().filter_map(|link| link.own);
        own.map(move |own| SocketAddrV6::new(own.addr, port, 0, own.ifindex).into())
    }

    /// Returns the peer's address, configured or from an advertisement.
    fn remote(&self, interface: &str, configured: SocketAddr) -> Result<SocketAddr, &'static str> {
        let link = self.links.get(interface);
        let own = link
            .and_then(|l| l.own)
            .ok_or("the interface is not there, is down, or has no link-local address")?;
        let addr = match configured.ip() {
            IpAddr::V6(addr) if addr.is_unicast_link_local() => addr,
            _ => link.and_then(|l| l.neighbour).ok_or(
                "no router advertisement was received yet: the neighbour has to send them on this link",
            )?,
        };
        Ok(SocketAddrV6::new(addr, configured.port(), 0, own.ifindex).into())
    }

    /// Returns the intent with the addresses of unnumbered peers filled in and without those that lack one,
    /// together with new and ended causes for that.
    fn resolve(&mut self) -> Option<(Arc<RoutingIntent>, Vec<PeerProblem>)> {
        let given = self.given.clone()?;
        let mut problems = Vec::new();
        if given.peers.values().all(|peer| peer.interface.is_none()) && self.waiting.is_empty() {
            return Some((given, problems));
        }
        let mut resolved = RoutingIntent::clone(&given);
        let mut waiting = BTreeMap::new();
        for (name, peer) in &given.peers {
            let Some(interface) = &peer.interface else { continue };
            match self.remote(interface, peer.remote) {
                Ok(remote) => {
                    resolved.peers.insert(name.clone(), PeerIntent { remote, ..peer.clone() });
                }
                Err(cause) => {
                    if self.waiting.get(name.as_str()) != Some(&cause) {
                        problems.push((name.as_str().into(), Some(format!("{interface}: {cause}"))));
                    }
                    waiting.insert(name.as_str().into(), cause);
                    resolved.peers.remove(name);
                }
            }
        }
        let ended = self.waiting.keys().filter(|name| !waiting.contains_key(*name));
        problems.extend(ended.map(|name| (name.clone(), None)));
        self.waiting = waiting;
        Some((Arc::new(resolved), problems))
    }

    /// Updates the set of interfaces to those that peers name.
    fn follow_links(&mut self) {
        let Some(given) = &self.given else { return };
        let wanted: Vec<&String> = given.peers.values().filter_map(|p| p.interface.as_ref()).collect();
        self.links.retain(|name, _| wanted.contains(&name));
        for name in wanted {
            if !self.links.contains_key(name) {
                self.links.insert(name.clone(), Link::default());
            }
        }
    }

    /// Reads the addresses of the interfaces; returns true if one changed.
    fn read_links(&mut self, now: Instant) -> bool {
        if self.links.is_empty() {
            return false;
        }
        // Read for this thread, since the network namespace belongs to a thread.
        let list = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
        let mut changed = false;
        for (name, link) in &mut self.links {
            let there = |index| sockopt::interface_name(index).is_some_and(|n| n == *name);
            let before = link.own;
            if !link.update(message::own(&list, name), there, now) {
                continue;
            }
            changed = true;
            let another = link.own.filter(|new| before.is_none_or(|old| old.ifindex != new.ifindex));
            if let (Some(own), Some(socket)) = (another, &self.socket) {
                // The error for a group that was joined before is harmless.
                let _ = socket.join_multicast_v6(&ALL_ROUTERS, own.ifindex);
                (link.neighbour, link.challenger) = (None, None);
            }
        }
        changed
    }

    /// Restarts the advertisements on a link that is back, since its neighbour must receive one again.
    pub(crate) fn again(&mut self, interface: u32, now: Instant) {
        for link in self.links.values_mut().filter(|l| l.own.is_some_and(|own| own.ifindex == interface)) {
            (link.sent, link.next) = (0, None);
            self.due = Some(now);
        }
    }

    /// Sends the messages that are due.
    fn send(&mut self, now: Instant) {
        let Some(socket) = &self.socket else { return };
        for (name, link) in &mut self.links {
            let Some(own) = link.own else { continue };
            let to = |group| SockAddr::from(SocketAddrV6::new(group, 0, 0, own.ifindex));
            if let (Some(neighbour), Some(challenger)) = (link.neighbour, &mut link.challenger)
                && challenger.probes < PROBES
                && now >= challenger.since + PROBE * challenger.probes
            {
                let mac = sockopt::ethernet_address(socket, name);
                let probe = message::neighbour_solicitation(neighbour, mac);
                let _ = socket.send_to(&probe, &to(message::solicited_node(neighbour)));
                // A router whose kernel still answers may have stopped advertising itself.
                let _ = socket.send_to(&message::solicitation(mac), &to(ALL_ROUTERS));
                challenger.probes += 1;
            }
            if link.next.is_some_and(|at| at > now) {
                continue;
            }
            // Looked up each time, since it can change while the interface is up.
            let mac = sockopt::ethernet_address(socket, name);
            // Sending fails on an interface that just went down; it is repeated soon.
            let _ = socket.send_to(&message::advertisement(mac), &to(ALL_NODES));
            if link.neighbour.is_none() {
                let _ = socket.send_to(&message::solicitation(mac), &to(ALL_ROUTERS));
            }
            link.sent = link.sent.saturating_add(1);
            let fast = link.sent < FAST_COUNT || link.neighbour.is_none();
            link.next = Some(now + if fast { FAST } else { SLOW });
        }
    }

    /// Reads pending messages; returns true if a neighbour changed.
    fn take_messages(&mut self, now: Instant) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut buffer = [0; 1500];
        let mut changed = false;
        for _ in 0..TAKE {
            let datagram = match datagram::receive(socket, &mut buffer) {
                Ok(Some(datagram)) => datagram,
                Ok(None) => continue,
                Err(_) => break,
            };
            let IpAddr::V6(source) = datagram.source else { continue };
            let octets = buffer.get(..datagram.len).unwrap_or_default();
            let Some(message) = message::read(octets, source, datagram.ttl) else { continue };
            let here = |link: &&mut Link| {
                link.own.is_some_and(|own| own.ifindex == datagram.interface && own.addr != source)
            };
            let Some(link) = self.links.values_mut().find(here) else { continue };
            match message {
                Message::Solicitation => {
                    // RFC 4861, section 6.2.6: answered by a multicast, at most once per second.
                    link.next = link.next.map(|at| at.min(now + FAST));
                }
                Message::Advertisement => changed |= link.advertised(source, now),
                Message::Neighbour(target) => link.answered(target),
            }
        }
        changed
    }

    /// Decides between neighbours and challengers; returns true if a neighbour changed.
    fn decide(&mut self, now: Instant, settled: &dyn Fn(SocketAddr) -> bool) -> bool {
        let before = self.is_challenged();
        let mut changed = false;
        for link in self.links.values_mut() {
            let (Some(own), Some(neighbour)) = (link.own, link.neighbour) else { continue };
            let settled = || settled(SocketAddrV6::new(neighbour, 0, 0, own.ifindex).into());
            changed |= link.challenger.is_some() && link.decide(settled(), now);
        }
        if before && !self.is_challenged() {
            self.listen_for_neighbours();
        }
        changed
    }

    fn is_challenged(&self) -> bool {
        self.links.values().any(|link| link.challenger.is_some())
    }

    /// Accepts neighbour advertisements only while an answer is awaited: on a host with many links they
    /// arrive constantly.
    fn listen_for_neighbours(&self) {
        let Some(socket) = &self.socket else { return };
        let kinds = [message::SOLICITATION, message::ADVERTISEMENT, message::NEIGHBOUR_ADVERTISEMENT];
        let count = if self.is_challenged() { kinds.len() } else { kinds.len() - 1 };
        // If this fails, a present neighbour is replaced like one that does not answer.
        let _ = sockopt::set_icmp6_filter(socket, kinds.get(..count).unwrap_or_default());
    }

    /// Sets the next deadline, which is soon while an address or neighbour is missing.
    fn plan(&mut self, now: Instant) {
        let is_missing = |l: &Link| l.own.is_none() || l.away.is_some() || l.neighbour.is_none();
        let missing = self.links.values().any(is_missing);
        let next = self.links.values().filter_map(|l| l.next).min();
        let challenged = self.is_challenged().then_some(now + PROBE);
        let at =
            if missing { Some(now + FAST) } else { None }.into_iter().chain(next).chain(challenged).min();
        self.due = at.filter(|_| !self.links.is_empty()).map(|at| at.max(now));
    }

    /// Stores an intent; returns the one to apply.
    pub(crate) fn set_intent(
        &mut self,
        given: Arc<RoutingIntent>,
        poller: &Poller,
        now: Instant,
        reporter: &mut Reporter,
    ) -> Arc<RoutingIntent> {
        self.given = Some(given.clone());
        self.follow_links();
        if self.links.is_empty() {
            reporter.faults(SUBJECT, []);
        } else if self.socket.is_none() {
            let opened = open().and_then(|socket| {
                poller.add(Source::Advertisements, &socket)?;
                Ok(socket)
            });
            let fault = opened
                .map(|socket| self.socket = Some(socket))
                .err()
                .map(|e| format!("unnumbered peers need a raw ICMPv6 socket (root or CAP_NET_RAW): {e}"));
            reporter.faults(SUBJECT, fault);
        }
        self.step(now);
        self.current(reporter).unwrap_or(given)
    }

    /// Handles the deadline; returns an intent if it changed. `settled`: the session with that neighbour is
    /// established.
    pub(crate) fn run(
        &mut self,
        now: Instant,
        settled: &dyn Fn(SocketAddr) -> bool,
        reporter: &mut Reporter,
    ) -> Option<Arc<RoutingIntent>> {
        let changed = self.decide(now, settled);
        if self.step(now) || changed { self.current(reporter) } else { None }
    }

    /// Handles a readable socket; returns an intent if it changed. `settled`: the session with that neighbour
    /// is established.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        settled: &dyn Fn(SocketAddr) -> bool,
        reporter: &mut Reporter,
    ) -> Option<Arc<RoutingIntent>> {
        let challenged = self.is_challenged();
        let changed = self.take_messages(now) | self.decide(now, settled);
        if self.is_challenged() && !challenged {
            self.listen_for_neighbours();
            self.send(now);
        }
        let intent = if changed { self.current(reporter) } else { None };
        self.plan(now);
        intent
    }

    /// True if there are unnumbered peers.
    pub(crate) fn is_on(&self) -> bool {
        !self.links.is_empty()
    }

    /// Returns the local addresses on the links of unnumbered peers.
    pub(crate) fn own_addresses(&self) -> impl Iterator<Item = ScopedAddr> {
        self.links
            .values()
            .filter_map(|link| link.own)
            .map(|own| ScopedAddr::new(own.addr.into(), own.ifindex))
    }

    /// Reads the interfaces and sends due messages; returns true if an interface changed.
    fn step(&mut self, now: Instant) -> bool {
        let changed = self.read_links(now);
        self.send(now);
        self.plan(now);
        changed
    }

    /// Returns the intent with the addresses that are known now.
    fn current(&mut self, reporter: &mut Reporter) -> Option<Arc<RoutingIntent>> {
        let (resolved, problems) = self.resolve()?;
        for problem in problems {
            reporter.peer(problem);
        }
        Some(resolved)
    }
}

/// Opens the socket for router advertisements and solicitations.
fn open() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, Type::RAW.nonblocking().cloexec(), Some(Protocol::ICMPV6))?;
    sockopt::set_icmp6_filter(&socket, &[message::SOLICITATION, message::ADVERTISEMENT])?;
    sockopt::set_receive_details_v6(&socket)?;
    // RFC 4861, sections 4.1 and 4.2: receivers ignore messages that have passed a router.
    socket.set_multicast_hops_v6(255)?;
    socket.set_unicast_hops_v6(255)?;
    socket.set_multicast_loop_v6(false)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "fe8000000000000050540000fe000001 02 40 20 80 eth0\n";
    const TENTATIVE: &str = "fe8000000000000050540000fe000001 02 40 20 c0 eth0\n";
    const OTHER: &str = "fe8000000000000050540000fe000002 02 40 20 80 eth0\n";
    const ANOTHER_LINK: &str = "fe8000000000000050540000fe000001 03 40 20 80 eth0\n";

    fn update(link: &mut Link, list: &str, now: Instant) -> bool {
        link.update(message::own(list, "eth0"), |_| true, now)
    }

    /// Returns a link that has an address at this time.
    fn link(now: Instant) -> Link {
        let mut link = Link::default();
        assert!(update(&mut link, ADDRESS, now));
        link
    }

    #[test]
    fn a_link_that_is_down_for_a_while_keeps_its_address() {
        let start = Instant::now();
        let mut link = link(start);
        let own = link.own;
        for (n, list) in [TENTATIVE, ADDRESS, "", TENTATIVE, "", TENTATIVE, ADDRESS].into_iter().enumerate() {
            (link.sent, link.next) = (FAST_COUNT, Some(start + SLOW));
            assert!(!update(&mut link, list, start), "{n}");
            assert_eq!(link.own, own, "{n}");
        }
        assert_eq!((link.away, link.sent, link.next), (None, 0, None), "it is back, and announces itself");
        assert!(!update(&mut link, "", start + AWAY));
        assert!(!update(&mut link, "", start + AWAY + AWAY / 2), "it was there meanwhile");
        assert!(update(&mut link, "", start + AWAY + AWAY));
        assert_eq!((link.own, link.away), (None, None));
    }

    #[test]
    fn another_address_and_another_link_are_followed_at_once() {
        let start = Instant::now();
        let mut first = link(start);
        let own = first.own;
        assert!(!update(&mut first, &[OTHER, ADDRESS].concat(), start), "ours is still there");
        assert!(update(&mut first, OTHER, start));
        assert!(first.own.is_some() && first.own != own);
        let mut second = link(start);
        assert!(update(&mut second, ANOTHER_LINK, start));
        assert_eq!(second.own.map(|own| own.ifindex), Some(3));
        let mut third = link(start);
        assert!(third.update(message::own("", "eth0"), |_| false, start), "the interface is gone");
        assert_eq!(third.own, None);
        assert!(!update(&mut third, TENTATIVE, start), "never used before");
    }

    /// Table of the neighbour's behaviour after another router advertised itself, and the time at which it is
    /// replaced.
    #[test]
    fn another_router_takes_the_place_of_a_neighbour_that_does_not_answer_and_of_no_other() {
        let (old, new): (Ipv6Addr, Ipv6Addr) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let start = Instant::now();
        // The neighbour's session is established, it answers probes, it advertises itself; time of its
        // replacement.
        let table: [(bool, bool, bool, Option<Duration>); 8] = [
            (true, false, false, Some(PROBE * PROBES)),
            (false, false, false, Some(PROBE * PROBES)),
            (true, true, false, None),
            (true, true, true, None),
            (true, false, true, None),
            (false, true, true, None),
            (false, false, true, None),
            (false, true, false, Some(SILENT)),
        ];
        for (settled, answers, advertises, takes) in table {
            let mut link = link(start);
            assert!(link.advertised(old, start) && !link.advertised(old, start));
            assert!(!link.advertised(new, start));
            if answers {
                link.answered(new);
                assert_eq!(link.challenger.map(|c| c.answered), Some(false), "that was another one");
                link.answered(old);
            }
            if advertises {
                assert!(!link.advertised(old, start + PROBE));
            }
            let mut at = Duration::ZERO;
            let taken = loop {
                if link.decide(settled, start + at) {
                    break Some(at);
                }
                at += PROBE;
                if at > SILENT * 2 {
                    break None;
                }
            };
            assert_eq!(taken, takes, "{settled} {answers} {advertises}");
            assert_eq!(link.neighbour, Some(if takes.is_some() { new } else { old }));
            assert_eq!(link.challenger, None);
        }
    }
}
