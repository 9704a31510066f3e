//! Bindings between BFD sessions and peers, on the speaker's thread: the intended sessions, and the peers
//! affected when a session goes down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_bgp::bfd::{Endpoint, Parameters, Path, Status};
use tortie_bgp::{Input, PeerId};
use tortie_net::ScopedAddr;

use super::handle::Handle;
use super::thread::{Order, Report};
use super::view::BfdView;
use crate::speaker::facts::SpeakerFact;
use crate::speaker::faults::Reporter;
use crate::speaker::peers::PeerTable;
use crate::speaker::reachability::{Purpose, Tracker};
use crate::speaker::wakeup::Wakeup;
use tortie_engine::routing::{PeerIntent, RoutingIntent};

/// Intended BFD sessions with their peers.
#[derive(Default)]
pub(crate) struct Bindings {
    handle: Option<Handle>,
    peers: BTreeMap<Endpoint, SmallVec<[PeerId; 1]>>,
    by_peer: BTreeMap<PeerId, Endpoint>,
    /// Sessions in the last order to the BFD thread.
    ordered: Vec<(Endpoint, Parameters)>,
    /// Addresses of eBGP peers without a configured path: true if on-link, `None` until resolved.
    on_link: BTreeMap<ScopedAddr, Option<bool>>,
    /// Path chosen for each of them. It is kept until the next BGP session, so that a flapping route changes
    /// nothing.
    decided: BTreeMap<ScopedAddr, Path>,
}

impl Bindings {
    /// Returns the published state of all sessions; `None` if no peer ever had BFD enabled.
    pub(crate) fn view(&self) -> Option<Arc<BfdView>> {
        self.handle.as_ref().map(Handle::view)
    }

    /// Returns the BFD session of a peer.
    pub(crate) fn status(&self, peer: PeerId) -> Option<(Endpoint, Status)> {
        let endpoint = self.by_peer.get(&peer)?;
        let view = self.handle.as_ref()?.view();
        Some((*endpoint, view.sessions.get(endpoint)?.clone()))
    }

    /// Returns the BFD sessions of all peers.
    pub(crate) fn statuses(&self) -> Vec<(PeerId, (Endpoint, Status))> {
        let Some(handle) = &self.handle else { return Vec::new() };
        let view = handle.view();
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

    /// Returns the path to a peer; `None` until it is known.
    fn path(&mut self, peer: &PeerIntent, asn: u32) -> Option<Path> {
        let addr = address(peer);
        let ebgp = peer.is_external(asn);
        match peer.bfd.as_ref()?.multihop {
            Some(true) => return Some(Path::Multihop),
            Some(false) => return Some(Path::SingleHop),
            None if addr.is_link_local() => return Some(Path::SingleHop),
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

    /// Reconciles the sessions with the intent (including dynamic peers) and the known paths.
    pub(crate) fn follow(
        &mut self,
        intent: &RoutingIntent,
        peers: &PeerTable,
        tracker: &mut Tracker,
        wakeup: &Arc<Wakeup>,
        reporter: &mut Reporter,
    ) {
        if self.handle.is_none() && intent.peers.values().all(|p| p.bfd.is_none()) {
            return;
        }
        self.track_paths(intent, tracker, reporter);
        let wanted = self.wanted(intent, peers);
        if wanted == self.ordered {
            return;
        }
        if self.handle.is_none() {
            match Handle::start(wakeup.clone()) {
                Ok(handle) => {
                    self.handle = Some(handle);
                    reporter.faults("BFD", []);
                }
                Err(e) => {
                    reporter.faults("BFD", [format!("its thread cannot start: {e}")]);
                    return;
                }
            }
        }
        if let Some(handle) = &self.handle {
            handle.order(Order::Follow(wanted.clone()));
        }
        self.ordered = wanted;
    }

    /// Returns the sessions of an intent, sorted, and records their peers.
    fn wanted(&mut self, intent: &RoutingIntent, peers: &PeerTable) -> Vec<(Endpoint, Parameters)> {
        let mut wanted: BTreeMap<Endpoint, Parameters> = BTreeMap::new();
        self.peers.clear();
        self.by_peer.clear();
        for (name, peer) in intent.peers.iter().filter(|(_, p)| p.bfd.is_some()) {
            let (Some(id), Some(option)) = (peers.id(name), &peer.bfd) else { continue };
            let Some(path) = self.path(peer, intent.asn) else { continue };
            let endpoint = Endpoint {
                remote: peer.remote.ip(),
                local: peer.local,
                interface: address(peer).interface(),
                path,
            };
            self.peers.entry(endpoint).or_default().push(id);
            self.by_peer.insert(id, endpoint);
            let parameters = Parameters::new(option.interval, option.multiplier);
            let detection = |p: &Parameters| p.required_min_rx * u32::from(p.multiplier);
            // Peers with the same address share a session; the shortest detection time applies.
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
        wanted
    }

    /// Tracks the addresses whose distance decides between single hop and multihop.
    fn track_paths(&mut self, intent: &RoutingIntent, tracker: &mut Tracker, reporter: &mut Reporter) {
        let asn = intent.asn;
        let open = |p: &&PeerIntent| {
            let ebgp = p.is_external(asn);
            ebgp && p.bfd.as_ref().is_some_and(|b| b.multihop.is_none()) && !address(p).is_link_local()
        };
        let needed: BTreeSet<ScopedAddr> = intent.peers.values().filter(open).map(address).collect();
        let gone: Vec<ScopedAddr> =
            self.on_link.keys().filter(|addr| !needed.contains(*addr)).copied().collect();
        for addr in gone {
            self.on_link.remove(&addr);
            self.decided.remove(&addr);
            tracker.untrack(addr, Purpose::BfdPath, reporter);
        }
        for addr in needed {
            if self.on_link.contains_key(&addr) {
                continue;
            }
            // Without a kernel thread the distance is unknown; on-link is assumed.
            self.on_link.insert(addr, (!tracker.has_kernel()).then_some(true));
            tracker.track(addr, Purpose::BfdPath, reporter);
        }
    }

    /// Processes the resolution of an address; `None` if it is unreachable. Returns true if a path can now be
    /// chosen, so that [`Self::follow`] must be called.
    #[must_use]
    pub(crate) fn resolved(&mut self, addr: ScopedAddr, on_link: Option<bool>) -> bool {
        let Some(old) = self.on_link.get_mut(&addr) else { return false };
        *old = on_link.or(*old);
        on_link.is_some() && !self.decided.contains_key(&addr)
    }

    /// Handles a new BGP session: its path replaces the choice for BFD. Returns true as [`Self::resolved`]
    /// does.
    #[must_use]
    pub(crate) fn session_up(&mut self, id: PeerId) -> bool {
        let Some(addr) = self.by_peer.get(&id).map(|endpoint| endpoint.remote.to_canonical().into()) else {
            return false;
        };
        let Some(Some(on_link)) = self.on_link.get(&addr) else { return false };
        let path = if *on_link { Path::SingleHop } else { Path::Multihop };
        self.decided.insert(addr, path) != Some(path)
    }

    /// Processes the next report of the BFD thread and passes it to the agent. Returns inputs for the BGP
    /// core, or `None` if there is no report.
    pub(crate) fn poll(
        &mut self,
        peers: &PeerTable,
        reporter: &mut Reporter,
    ) -> Option<SmallVec<[Input<'static>; 1]>> {
        let report = self.handle.as_ref()?.report()?;
        let mut inputs = SmallVec::new();
        match report {
            Report::Faults(texts) => reporter.faults("BFD", texts),
            Report::Transient(text) => reporter.transient(text),
            Report::Change(change, at) => {
                for id in self.peers.get(&change.endpoint).into_iter().flatten() {
                    if let Some(peer) = peers.name(*id) {
                        let peer = peer.clone();
                        let (from, to, cause) = (change.from, change.to, change.cause);
                        reporter.fact(SpeakerFact::Bfd { peer, from, to, cause, at });
                    }
                    if change.is_loss() {
                        inputs.push(Input::BfdDown {
                            peer: *id,
                            text: change.cause.to_string(),
                            independent: change.remote_independent,
                        });
                    }
                }
            }
        }
        Some(inputs)
    }
}

fn address(peer: &PeerIntent) -> ScopedAddr {
    ScopedAddr::of(peer.remote)
}
