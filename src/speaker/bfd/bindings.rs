//! Bindings between BFD sessions and peers, on the speaker's thread: which sessions are wanted, and the peers that lose
//! one.

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

/// The wanted sessions and their peers.
#[derive(Default)]
pub(crate) struct Bindings {
    handle: Option<Handle>,
    peers: BTreeMap<Endpoint, SmallVec<[PeerId; 1]>>,
    by_peer: BTreeMap<PeerId, Endpoint>,
    /// The last order to the thread.
    ordered: Vec<(Endpoint, Parameters)>,
    /// Addresses of eBGP peers whose path is not configured: on-link or not, `None` until that is known.
    on_link: BTreeMap<ScopedAddr, Option<bool>>,
    /// Their paths, which stay as they were decided until the next BGP session: a route that flaps moves nothing.
    decided: BTreeMap<ScopedAddr, Path>,
}

impl Bindings {
    /// The published state of all sessions; `None`: no peer ever wanted one.
    pub(crate) fn view(&self) -> Option<Arc<BfdView>> {
        self.handle.as_ref().map(Handle::view)
    }

    /// A peer's session.
    pub(crate) fn status(&self, peer: PeerId) -> Option<(Endpoint, Status)> {
        let endpoint = self.by_peer.get(&peer)?;
        let view = self.handle.as_ref()?.view();
        Some((*endpoint, view.sessions.get(endpoint)?.clone()))
    }

    /// The sessions of all peers.
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

    /// Path to a peer; `None` until it is known.
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

    /// Brings the sessions in line with the intent (with its dynamic peers) and with the known paths.
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

    /// The sessions of an intent, sorted, and their peers.
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
        wanted
    }

    /// Follows the addresses whose distance decides.
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
            // Without a kernel thread nobody knows; neighbours are the rule.
            self.on_link.insert(addr, (!tracker.has_kernel()).then_some(true));
            tracker.track(addr, Purpose::BfdPath, reporter);
        }
    }

    /// Takes the state of an address; `None`: it is not reachable. `true`: a path can be decided, [`Self::follow`] is to be
    /// called.
    #[must_use]
    pub(crate) fn resolved(&mut self, addr: ScopedAddr, on_link: Option<bool>) -> bool {
        let Some(old) = self.on_link.get_mut(&addr) else { return false };
        *old = on_link.or(*old);
        on_link.is_some() && !self.decided.contains_key(&addr)
    }

    /// A BGP session came up: the path that it found decides anew. `true`: as [`Self::resolved`].
    #[must_use]
    pub(crate) fn session_up(&mut self, id: PeerId) -> bool {
        let Some(addr) = self.by_peer.get(&id).map(|endpoint| endpoint.remote.to_canonical().into()) else {
            return false;
        };
        let Some(Some(on_link)) = self.on_link.get(&addr) else { return false };
        let path = if *on_link { Path::SingleHop } else { Path::Multihop };
        self.decided.insert(addr, path) != Some(path)
    }

    /// Takes the next report of the thread and passes it to the agent; inputs for the BGP core, or `None` when there is no
    /// report.
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
