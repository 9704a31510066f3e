//! Fast external fallover: a session with an eBGP neighbour on a connected network ends when that network goes, not when
//! its hold timer expires.
//!
//! The kernel thread follows the neighbours' addresses as it follows next hops: it hears of links and addresses from the
//! watch thread, and resolves an address on a link without carrier no more. Sessions over several hops and iBGP sessions
//! can take another way and stay. With graceful restart the peer's routes are kept as after any other loss of the
//! connection (RFC 4724 4.2).
//!
//! A link that is back within [`GRACE`] costs no session (routers call it carrier delay). Nothing waits for that: next hops
//! on a link without carrier are unusable at once, for our kernel and for what we announce. A session that is made anew
//! costs more than the flap did, since a peer that did not restart may say that it kept nothing (RFC 4724 4.2, F bit).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tortie_bgp::{Input, PeerId};
use tortie_net::link_local::address_of;

use tortie_engine::routing::{Resolved, RoutingIntent};
use crate::speaker::api::SpeakerFact;
use crate::speaker::event_loop::Driver;
use crate::speaker::sockets::sockopt;

/// How long a connected network may be gone before the sessions of its neighbours end.
const GRACE: Duration = Duration::from_millis(500);

/// A neighbour's address.
#[derive(Default)]
struct Watched {
    peers: SmallVec<[PeerId; 1]>,
    /// The interface of the connected network that it is on.
    interface: Option<u32>,
    /// It was on a connected network, and is not now.
    lost: Option<Lost>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lost {
    /// The interface that it was on.
    interface: u32,
    /// When its sessions end; `None`: they have.
    ends: Option<Instant>,
}

/// An interface, and the peers whose neighbour is on it.
type On = (u32, SmallVec<[PeerId; 1]>);

/// Addresses of eBGP peers.
#[derive(Default)]
pub(crate) struct Fallover {
    watched: FxHashMap<IpAddr, Watched>,
    /// Those that were lost, oldest first; one that is back meanwhile is passed over.
    losing: VecDeque<(Instant, IpAddr)>,
}

impl Fallover {
    /// Whether the kernel thread follows this address for us.
    pub(crate) fn watches(&self, addr: IpAddr) -> bool {
        self.watched.contains_key(&addr)
    }

    /// Takes what the kernel thread knows of an address; gives those whose sessions ended and whose link is back.
    fn heard(&mut self, addr: IpAddr, resolved: Option<Resolved>, now: Instant) -> Option<On> {
        let watched = self.watched.get_mut(&addr)?;
        let connected = resolved.filter(|r| r.gateway.is_none()).map(|r| r.ifindex);
        match (std::mem::replace(&mut watched.interface, connected), connected) {
            (Some(interface), None) => {
                watched.lost = Some(Lost { interface, ends: Some(now + GRACE) });
                self.losing.push_back((now + GRACE, addr));
                None
            }
            (None, Some(interface)) => {
                let ended = watched.lost.take()?.ends.is_none();
                ended.then(|| (interface, watched.peers.clone()))
            }
            _ => None,
        }
    }

    /// When sessions end next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.losing.front().map(|(at, _)| *at)
    }

    /// Those whose link was gone for too long.
    fn due(&mut self, now: Instant) -> Vec<On> {
        let mut due = Vec::new();
        while let Some((at, addr)) = self.losing.pop_front_if(|(at, _)| *at <= now) {
            if let Some(watched) = self.watched.get_mut(&addr)
                && let Some(lost) = watched.lost.as_mut().filter(|lost| lost.ends == Some(at))
            {
                lost.ends = None;
                due.push((lost.interface, watched.peers.clone()));
            }
        }
        due
    }
}

impl Driver {
    /// Follows the addresses of the eBGP peers of the intent.
    pub(crate) fn follow_fallover(&mut self, intent: &RoutingIntent) {
        if !self.options.kernel {
            return;
        }
        let mut wanted: FxHashMap<IpAddr, Watched> = FxHashMap::default();
        for (name, peer) in &intent.peers {
            if peer.asn != peer.local_asn.unwrap_or(intent.asn)
                && let Some(id) = self.peers.id(name)
            {
                wanted.entry(address_of(peer.remote)).or_default().peers.push(id);
            }
        }
        let old = std::mem::take(&mut self.fallover.watched);
        for (addr, watched) in &mut wanted {
            match old.get(addr) {
                Some(known) => (watched.interface, watched.lost) = (known.interface, known.lost),
                None => (self.facts)(SpeakerFact::TrackNextHop(*addr)),
            }
        }
        self.fallover.watched = wanted;
        for addr in old.into_keys().filter(|addr| !self.fallover.watches(*addr)) {
            if !self.bfd.follows(addr) {
                (self.facts)(SpeakerFact::UntrackNextHop(addr));
            }
        }
    }

    /// The kernel thread told of an address.
    pub(crate) fn fallover_hop(&mut self, addr: IpAddr, resolved: Option<Resolved>) {
        let Some((interface, peers)) = self.fallover.heard(addr, resolved, self.now) else { return };
        self.unnumbered.again(interface, self.now);
        for peer in peers {
            // An attempt that began without the link waits for its SYN's next turn, seconds from now.
            self.redial(peer, "the link came back");
            self.give(Input::LinkUp(peer));
        }
    }

    /// Ends the sessions whose time is up.
    pub(crate) fn fallover_due(&mut self) {
        for (interface, peers) in self.fallover.due(self.now) {
            let name =
                sockopt::interface_name(interface).unwrap_or_else(|| format!("with index {interface}"));
            for peer in peers {
                let text = format!("interface {name} is down or has lost the peer's network");
                self.give(Input::LinkDown { peer, text });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(ifindex: u32, gateway: Option<&str>) -> Option<Resolved> {
        Some(Resolved { ifindex, gateway: gateway.map(|g| g.parse().unwrap()), metric: 0 })
    }

    #[test]
    fn only_a_lasting_loss_of_a_connected_network_ends_sessions() {
        let addr = "192.0.2.9".parse().unwrap();
        let mut fallover = Fallover::default();
        fallover
            .watched
            .insert(addr, Watched { peers: SmallVec::from_slice(&[PeerId(4)]), ..Watched::default() });
        let on = |interface| (interface, SmallVec::<[PeerId; 1]>::from_slice(&[PeerId(4)]));
        let start = Instant::now();
        // Behind a router, or not yet known.
        for unknown in [None, resolved(2, Some("192.0.2.1")), None] {
            assert_eq!(fallover.heard(addr, unknown, start), None);
        }
        assert_eq!(fallover.heard(addr, resolved(2, None), start), None);
        assert_eq!(fallover.heard(addr, resolved(3, None), start), None, "it moved: TCP can go on");
        assert_eq!(fallover.deadline(), None);
        // Back in time.
        assert_eq!(fallover.heard(addr, None, start), None);
        assert_eq!(fallover.deadline(), Some(start + GRACE));
        assert_eq!(fallover.due(start + GRACE / 2), []);
        assert_eq!(fallover.heard(addr, resolved(3, None), start + GRACE / 2), None, "no session was ended");
        assert_eq!(fallover.due(start + GRACE), []);
        assert_eq!(fallover.deadline(), None);
        // A default route is no neighbour, and news of it start no new grace.
        assert_eq!(fallover.heard(addr, resolved(7, Some("10.0.0.1")), start), None);
        assert_eq!(fallover.heard(addr, None, start + GRACE / 2), None);
        assert_eq!(fallover.due(start + GRACE), [on(3)]);
        assert_eq!(fallover.due(start + GRACE), [], "once");
        assert_eq!(fallover.heard(addr, resolved(5, None), start + GRACE), Some(on(5)));
        assert_eq!(fallover.heard(addr, resolved(5, None), start + GRACE), None, "once");
        assert_eq!(fallover.heard("192.0.2.8".parse().unwrap(), None, start), None);
    }
}
