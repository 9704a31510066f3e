//! What ties BFD sessions to peers, on the speaker's thread: which are wanted, and what their loss means.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tortie_bgp::bfd::{Change, Endpoint, Parameters, Path, Status};
use tortie_bgp::{Input, PeerId};

use super::{BfdView, Handle, Order, Told};
use crate::speaker::api::SpeakerFact;
use crate::speaker::event_loop::Driver;

/// The sessions that are wanted, and for whom.
#[derive(Default)]
pub(crate) struct Tie {
    handle: Option<Handle>,
    peers: FxHashMap<Endpoint, SmallVec<[PeerId; 1]>>,
    by_peer: FxHashMap<PeerId, Endpoint>,
    /// What was last ordered.
    ordered: Vec<(Endpoint, Parameters)>,
    /// Of eBGP peers whose path is not configured: whether they are on-link, `None` until that is known.
    on_link: FxHashMap<IpAddr, Option<bool>>,
    /// Their paths, which stay as they were decided until the next BGP session: a route that flaps moves nothing.
    decided: FxHashMap<IpAddr, Path>,
    /// Next hops that the speaker itself follows.
    hops: FxHashSet<IpAddr>,
}

impl Tie {
    /// The published state of all sessions; `None`: no peer ever wanted one.
    pub(crate) fn view(&self) -> Option<Arc<BfdView>> {
        self.handle.as_ref().map(|handle| handle.view.load_full())
    }

    /// A peer's session.
    pub(crate) fn status(&self, peer: PeerId) -> Option<(Endpoint, Status)> {
        let endpoint = self.by_peer.get(&peer)?;
        let view = self.handle.as_ref()?.view.load();
        Some((*endpoint, view.sessions.get(endpoint)?.clone()))
    }

    /// The sessions of all peers.
    pub(crate) fn statuses(&self) -> Vec<(PeerId, (Endpoint, Status))> {
        let Some(handle) = &self.handle else { return Vec::new() };
        let view = handle.view.load();
        let status = |(id, endpoint): (&PeerId, &Endpoint)| {
            Some((*id, (*endpoint, view.sessions.get(endpoint)?.clone())))
        };
        self.by_peer.iter().filter_map(status).collect()
    }

    pub(crate) fn stop(&self) {
        if let Some(handle) = &self.handle {
            handle.order(Order::Stop);
        }
    }

    pub(crate) fn join(&mut self) {
        if let Some(handle) = &mut self.handle {
            handle.join();
        }
    }

    /// The speaker follows this next hop, or no more. Whether the kernel thread has to be told.
    pub(crate) fn hop(&mut self, addr: IpAddr, follow: bool) -> bool {
        if follow {
            self.hops.insert(addr);
            // Even where it is followed already: the answer is wanted.
            return true;
        }
        self.hops.remove(&addr);
        !self.on_link.contains_key(&addr)
    }

    /// Whether the kernel thread follows this address for a next hop or a path.
    pub(crate) fn follows(&self, addr: IpAddr) -> bool {
        self.hops.contains(&addr) || self.on_link.contains_key(&addr)
    }

    /// How a peer is reached; `None` until it is known.
    fn path(&mut self, peer: &PeerIntent, asn: u32) -> Option<Path> {
        let addr = peer.remote.ip();
        let ebgp = peer.asn != peer.local_asn.unwrap_or(asn);
        match peer.bfd.as_ref()?.multihop {
            Some(true) => return Some(Path::Multihop),
            Some(false) => return Some(Path::SingleHop),
            None if link_local(addr) => return Some(Path::SingleHop),
            None if !ebgp => return Some(Path::Multihop),
            None => {}
        }
        if let Some(path) = self.decided.get(&addr) {
            return Some(*path);
        }
        let on_link = self.on_link.get(&addr).copied().flatten()?;
        let path = if on_link { Path::SingleHop } else { Path::Multihop };
        self.decided.insert(addr, path);
        Some(path)
    }
}

impl Driver {
    /// Brings the sessions in line with the intent and with what is known of the paths.
    pub(crate) fn follow_bfd(&mut self) {
        let Some(intent) = self.whole_intent() else { return };
        if self.bfd.handle.is_none() && intent.peers.values().all(|p| p.bfd.is_none()) {
            return;
        }
        self.watch_paths(&intent);
        let mut wanted: FxHashMap<Endpoint, Parameters> = FxHashMap::default();
        self.bfd.peers.clear();
        self.bfd.by_peer.clear();
        for (name, peer) in intent.peers.iter().filter(|(_, p)| p.bfd.is_some()) {
            let (Some(id), Some(option)) = (self.peers.id(name), &peer.bfd) else { continue };
            let Some(path) = self.bfd.path(peer, intent.asn) else { continue };
            let endpoint =
                Endpoint { remote: peer.remote.ip(), local: peer.local, interface: scope(peer), path };
            self.bfd.peers.entry(endpoint).or_default().push(id);
            self.bfd.by_peer.insert(id, endpoint);
            let parameters = Parameters::new(option.interval, option.multiplier);
            let detection = |p: &Parameters| p.required_min_rx * u32::from(p.multiplier);
            // Peers that share an address share the session: the most impatient one decides.
            wanted
                .entry(endpoint)
                .and_modify(|p| {
                    if detection(&parameters) < detection(p) {
                        *p = parameters;
                    }
                })
                .or_insert(parameters);
        }
        let mut wanted: Vec<_> = wanted.into_iter().collect();
        wanted.sort_unstable();
        if wanted == self.bfd.ordered {
            return;
        }
        if self.bfd.handle.is_none() {
            match Handle::start(self.inbox.clone()) {
                Ok(handle) => {
                    self.bfd.handle = Some(handle);
                    self.trouble("BFD", []);
                }
                Err(e) => {
                    self.trouble("BFD", [format!("its thread cannot start: {e}")]);
                    return;
                }
            }
        }
        if let Some(handle) = &self.bfd.handle {
            handle.order(Order::Follow(wanted.clone()));
        }
        self.bfd.ordered = wanted;
    }

    /// Follows the addresses whose distance decides.
    fn watch_paths(&mut self, intent: &RoutingIntent) {
        let asn = intent.asn;
        let open = |p: &&PeerIntent| {
            let ebgp = p.asn != p.local_asn.unwrap_or(asn);
            ebgp && p.bfd.as_ref().is_some_and(|b| b.multihop.is_none()) && !link_local(p.remote.ip())
        };
        let needed: FxHashSet<IpAddr> = intent.peers.values().filter(open).map(|p| p.remote.ip()).collect();
        let gone: Vec<IpAddr> =
            self.bfd.on_link.keys().filter(|addr| !needed.contains(*addr)).copied().collect();
        for addr in gone {
            self.bfd.on_link.remove(&addr);
            self.bfd.decided.remove(&addr);
            if self.options.kernel && !self.bfd.hops.contains(&addr) && !self.fallover.watches(addr) {
                (self.facts)(SpeakerFact::UntrackNextHop(addr));
            }
        }
        for addr in needed {
            if self.bfd.on_link.contains_key(&addr) {
                continue;
            }
            // Without a kernel thread nobody knows; neighbours are the rule.
            self.bfd.on_link.insert(addr, (!self.options.kernel).then_some(true));
            if self.options.kernel {
                (self.facts)(SpeakerFact::TrackNextHop(addr));
            }
        }
    }

    /// What the kernel thread knows of an address; `None`: it is not reachable.
    pub(crate) fn bfd_hop(&mut self, addr: IpAddr, on_link: Option<bool>) {
        let Some(known) = self.bfd.on_link.get_mut(&addr) else { return };
        *known = on_link.or(*known);
        if on_link.is_some() && !self.bfd.decided.contains_key(&addr) {
            self.follow_bfd();
        }
    }

    /// A BGP session came up: the path that it found decides anew.
    pub(crate) fn bfd_session_up(&mut self, id: PeerId) {
        let Some(addr) = self.bfd.by_peer.get(&id).map(|endpoint| endpoint.remote) else { return };
        let Some(Some(on_link)) = self.bfd.on_link.get(&addr) else { return };
        let path = if *on_link { Path::SingleHop } else { Path::Multihop };
        if self.bfd.decided.insert(addr, path) != Some(path) {
            self.follow_bfd();
        }
    }

    /// What the thread told.
    pub(crate) fn bfd_told(&mut self) {
        loop {
            let Some(told) = self.bfd.handle.as_ref().and_then(|handle| handle.told.try_recv().ok()) else {
                return;
            };
            match told {
                Told::Trouble(texts) => self.trouble("BFD", texts),
                Told::Mishap(text) => self.mishap(text),
                Told::Change(change, at) => self.bfd_changed(&change, at),
            }
        }
    }

    fn bfd_changed(&mut self, change: &Change, at: Instant) {
        let peers = self.bfd.peers.get(&change.endpoint).cloned().unwrap_or_default();
        for id in peers {
            if let Some(peer) = self.peers.get(id) {
                (self.facts)(SpeakerFact::Bfd {
                    peer: peer.name.clone(),
                    from: change.from,
                    to: change.to,
                    cause: change.cause,
                    at,
                });
            }
            if change.is_loss() {
                self.give(Input::BfdDown {
                    peer: id,
                    text: change.cause.to_string(),
                    independent: change.remote_independent,
                });
            }
        }
    }
}

fn link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

/// The interface of a link-local peer.
fn scope(peer: &PeerIntent) -> u32 {
    match peer.remote {
        std::net::SocketAddr::V6(addr) if link_local(peer.remote.ip()) => addr.scope_id(),
        _ => 0,
    }
}
