//! Fast external fallover: ends the session with an eBGP neighbour on a connected network when that network
//! goes down, without waiting for the hold timer.
//!
//! The kernel thread tracks the neighbours' addresses like next hops: it is notified of link and address
//! changes, and no longer resolves an address on a link without carrier. Multihop and iBGP sessions can use
//! another path and are not affected. The peer's routes are removed with the link, even those kept for its
//! restart: a router that returns together with its link may have lost power, and its table.
//!
//! If a link is back within [`GRACE`], no session ends (carrier delay in router terms). Next hops on a link
//! without carrier become unusable at once, in the kernel and in announcements. A new session costs more than
//! the flap, since a peer that did not restart may signal that it preserved no forwarding state (RFC 4724,
//! section 4.2, F bit).

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tortie_bgp::PeerId;
use tortie_net::ScopedAddr;

use super::tracker::{Purpose, Tracker};
use crate::speaker::faults::Reporter;
use crate::speaker::peers::PeerTable;
use tortie_engine::routing::{Resolved, RoutingIntent};

/// Time that a connected network may be down before its neighbours' sessions end.
const GRACE: Duration = Duration::from_millis(500);

/// A tracked neighbour address.
#[derive(Default)]
struct Watched {
    peers: SmallVec<[PeerId; 1]>,
    /// Interface of the connected network that contains the address.
    interface: Option<u32>,
    /// Set if the address was on a connected network and no longer is.
    lost: Option<Lost>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lost {
    /// Former interface of the address.
    interface: u32,
    /// Time at which the sessions end; `None` once they have ended.
    ends: Option<Instant>,
}

/// An interface with the peers whose neighbour is on it.
pub(crate) type Link = (u32, SmallVec<[PeerId; 1]>);

/// Tracked addresses of eBGP peers.
#[derive(Default)]
pub(crate) struct Fallover {
    watched: BTreeMap<ScopedAddr, Watched>,
    /// Lost addresses, oldest first; one that has returned is skipped.
    losing: VecDeque<(Instant, ScopedAddr)>,
}

impl Fallover {
    /// Tracks the addresses of the intent's eBGP peers.
    pub(crate) fn follow(
        &mut self,
        intent: &RoutingIntent,
        peers: &PeerTable,
        tracker: &mut Tracker,
        reporter: &mut Reporter,
    ) {
        if !tracker.has_kernel() {
            return;
        }
        let mut wanted: BTreeMap<ScopedAddr, Watched> = BTreeMap::new();
        for (name, peer) in &intent.peers {
            if peer.is_external(intent.asn)
                && let Some(id) = peers.id(name)
            {
                wanted.entry(ScopedAddr::of(peer.remote)).or_default().peers.push(id);
            }
        }
        let old = std::mem::take(&mut self.watched);
        for (addr, watched) in &mut wanted {
            match old.get(addr) {
                Some(old) => (watched.interface, watched.lost) = (old.interface, old.lost),
                None => tracker.track(*addr, Purpose::Link, reporter),
            }
        }
        self.watched = wanted;
        for addr in old.into_keys().filter(|addr| !self.watched.contains_key(addr)) {
            tracker.untrack(addr, Purpose::Link, reporter);
        }
    }

    /// Processes the resolution of an address; returns the interface and the peers whose sessions had ended,
    /// if the link is back.
    pub(crate) fn resolved(
        &mut self,
        addr: ScopedAddr,
        resolved: Option<Resolved>,
        now: Instant,
    ) -> Option<Link> {
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

    /// True if the neighbour is on a connected network.
    pub(crate) fn is_on_link(&self, addr: ScopedAddr) -> bool {
        self.watched.get(&addr).is_some_and(|watched| watched.interface.is_some())
    }

    /// Returns the time at which sessions end next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.losing.front().map(|(at, _)| *at)
    }

    /// Returns the peers whose link was down for too long, so that their sessions must end.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Link> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn on_link(ifindex: u32, gateway: Option<&str>) -> Option<Resolved> {
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
        // Behind a router, or not resolved yet.
        for unknown in [None, on_link(2, Some("192.0.2.1")), None] {
            assert_eq!(fallover.resolved(addr, unknown, start), None);
        }
        assert_eq!(fallover.resolved(addr, on_link(2, None), start), None);
        assert_eq!(fallover.resolved(addr, on_link(3, None), start), None, "it moved: TCP can go on");
        assert_eq!(fallover.deadline(), None);
        // The link is back in time.
        assert_eq!(fallover.resolved(addr, None, start), None);
        assert_eq!(fallover.deadline(), Some(start + GRACE));
        assert_eq!(fallover.due(start + GRACE / 2), []);
        assert_eq!(
            fallover.resolved(addr, on_link(3, None), start + GRACE / 2),
            None,
            "no session was ended"
        );
        assert_eq!(fallover.due(start + GRACE), []);
        assert_eq!(fallover.deadline(), None);
        // A default route leads to no neighbour, and its changes start no new grace period.
        assert_eq!(fallover.resolved(addr, on_link(7, Some("10.0.0.1")), start), None);
        assert_eq!(fallover.resolved(addr, None, start + GRACE / 2), None);
        assert_eq!(fallover.due(start + GRACE), [on(3)]);
        assert_eq!(fallover.due(start + GRACE), [], "once");
        assert_eq!(fallover.resolved(addr, on_link(5, None), start + GRACE), Some(on(5)));
        assert_eq!(fallover.resolved(addr, on_link(5, None), start + GRACE), None, "once");
        assert_eq!(fallover.resolved("192.0.2.8".parse().unwrap(), None, start), None);
    }
}
