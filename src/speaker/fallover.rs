//! Fast external fallover: a session with an eBGP neighbour on a connected network ends when that network goes, not when
//! its hold timer expires.
//!
//! The kernel thread follows the neighbours' addresses as it follows next hops: it hears of links and addresses from the
//! watch thread, and resolves an address on a link without carrier no more. Sessions over several hops and iBGP sessions
//! can take another way and stay. With graceful restart the peer's routes are kept as after any other loss of the
//! connection (RFC 4724 4.2).

use std::net::IpAddr;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tortie_bgp::{Input, PeerId};

use super::api::SpeakerFact;
use super::driver::Driver;
use super::peers::address_of;
use super::sockopt;
use crate::routing::{Resolved, RoutingIntent};

/// A neighbour's address.
#[derive(Default)]
struct Watched {
    peers: SmallVec<[PeerId; 1]>,
    /// The interface of the connected network that it was last seen on.
    interface: Option<u32>,
    /// It was on a connected network, and is not now.
    lost: bool,
}

/// What became of a neighbour's connected network.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// It is gone from this interface.
    Lost(u32),
    /// It is back, on this interface.
    Back(u32),
}

/// Addresses of eBGP peers.
#[derive(Default)]
pub(super) struct Fallover(FxHashMap<IpAddr, Watched>);

impl Fallover {
    /// Whether the kernel thread follows this address for us.
    pub(super) fn watches(&self, addr: IpAddr) -> bool {
        self.0.contains_key(&addr)
    }

    /// Takes what the kernel thread knows of an address; gives the news and whom they concern.
    fn heard(&mut self, addr: IpAddr, resolved: Option<Resolved>) -> Option<(News, SmallVec<[PeerId; 1]>)> {
        let watched = self.0.get_mut(&addr)?;
        let connected = resolved.filter(|r| r.gateway.is_none()).map(|r| r.ifindex);
        let before = std::mem::replace(&mut watched.interface, connected);
        let news = match (before, connected) {
            (Some(interface), None) => News::Lost(interface),
            (None, Some(interface)) if watched.lost => News::Back(interface),
            _ => return None,
        };
        watched.lost = connected.is_none();
        Some((news, watched.peers.clone()))
    }
}

impl Driver {
    /// Follows the addresses of the eBGP peers of the intent.
    pub(super) fn follow_fallover(&mut self, intent: &RoutingIntent) {
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
        let old = std::mem::take(&mut self.fallover.0);
        for (addr, watched) in &mut wanted {
            match old.get(addr) {
                Some(known) => (watched.interface, watched.lost) = (known.interface, known.lost),
                None => (self.facts)(SpeakerFact::TrackNextHop(*addr)),
            }
        }
        self.fallover.0 = wanted;
        for addr in old.into_keys().filter(|addr| !self.fallover.watches(*addr)) {
            if !self.bfd.follows(addr) {
                (self.facts)(SpeakerFact::UntrackNextHop(addr));
            }
        }
    }

    /// The kernel thread told of an address.
    pub(super) fn fallover_hop(&mut self, addr: IpAddr, resolved: Option<Resolved>) {
        let Some((news, peers)) = self.fallover.heard(addr, resolved) else { return };
        let interface = match news {
            News::Lost(interface) | News::Back(interface) => interface,
        };
        if let News::Back(_) = news {
            self.unnumbered.again(interface, self.now);
            for peer in peers {
                // An attempt that began without the link waits for its SYN's next turn, seconds from now.
                self.redial(peer);
                self.give(Input::LinkUp(peer));
            }
            return;
        }
        let name = sockopt::interface_name(interface).unwrap_or_else(|| format!("with index {interface}"));
        for peer in peers {
            let text = format!("interface {name} is down or has lost the peer's network");
            self.give(Input::LinkDown { peer, text });
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
    fn only_the_loss_of_a_connected_network_ends_sessions() {
        let addr = "192.0.2.9".parse().unwrap();
        let mut fallover = Fallover::default();
        fallover.0.insert(addr, Watched { peers: SmallVec::from_slice(&[PeerId(4)]), ..Watched::default() });
        let peers = || SmallVec::from_slice(&[PeerId(4)]);
        let lost = |interface| Some((News::Lost(interface), peers()));
        // Behind a router, or not yet known.
        for unknown in [None, resolved(2, Some("192.0.2.1")), None] {
            assert_eq!(fallover.heard(addr, unknown), None);
        }
        assert_eq!(fallover.heard(addr, resolved(2, None)), None);
        assert_eq!(fallover.heard(addr, resolved(3, None)), None, "it moved: TCP can go on");
        assert_eq!(fallover.heard(addr, None), lost(3));
        assert_eq!(fallover.heard(addr, None), None, "once");
        assert_eq!(fallover.heard(addr, resolved(3, None)), Some((News::Back(3), peers())));
        assert_eq!(fallover.heard(addr, resolved(3, None)), None, "once");
        assert_eq!(
            fallover.heard(addr, resolved(7, Some("10.0.0.1"))),
            lost(3),
            "a default route is no neighbour"
        );
        assert_eq!(fallover.heard("192.0.2.8".parse().unwrap(), None), None);
    }
}
