//! Table of the intent's peers: their ids, keys and configurations, and the changes from one intent to the
//! next.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use tortie_bgp::{ConnId, PeerConfig, PeerId, Speaker, State};
use tortie_net::ScopedAddr;

use tortie_engine::routing::{PeerIntent, Persistent};

use super::config::config;
use super::keys::{KeyProblems, guard_of, restarts};
use crate::speaker::faults::PeerProblem;
use crate::speaker::policy::Classes;
use crate::speaker::sockets::connect::Failures;
use crate::speaker::sockets::guard::Guard;

/// A peer in the BGP core.
#[derive(Clone)]
struct Peer {
    name: Arc<str>,
    config: PeerConfig,
    guard: Guard,
    /// Current connection attempt.
    attempt: Option<ConnId>,
    failures: Failures,
    /// True while the peer is being removed; its guard no longer applies to listeners.
    gone: bool,
}

/// Addresses and guard of a connection to a peer.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) remote: SocketAddr,
    /// Local address; `None`: chosen by the route.
    pub(crate) local: Option<IpAddr>,
    pub(crate) guard: &'a Guard,
}

impl Peer {
    fn new(name: Arc<str>, config: PeerConfig, guard: Guard) -> Self {
        Self { name, config, guard, attempt: None, failures: Failures::default(), gone: false }
    }
}

/// A change on the way from one intent to the next.
#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    /// Adds a peer or changes its configuration.
    Set(PeerId, Box<PeerConfig>),
    Remove(PeerId),
    /// Restarts the current attempt, which uses an outdated address or key.
    Reconnect(PeerId),
    /// Changes the guard of the connections with this address.
    Secure(ScopedAddr, Guard),
    /// Resets the session: the peer gained or lost a key, and a session cannot continue then.
    Reset(PeerId),
    /// Reports a new problem, or the end of one.
    Problem(PeerProblem),
}

/// All peers.
#[derive(Clone, Default)]
pub(crate) struct PeerTable {
    ids: BTreeMap<Arc<str>, PeerId>,
    peers: BTreeMap<PeerId, Peer>,
    key_problems: KeyProblems,
    addresses: BTreeSet<ScopedAddr>,
    /// Addresses of peers without a usable key, which accept no connections.
    shut: Vec<ScopedAddr>,
    /// True if keys of peers are in files.
    key_files: bool,
    made: u32,
}

impl PeerTable {
    pub(crate) fn name(&self, id: PeerId) -> Option<&Arc<str>> {
        self.peers.get(&id).map(|peer| &peer.name)
    }

    /// Returns the addresses and the guard for a connection to the peer.
    pub(crate) fn target(&self, id: PeerId) -> Option<Target<'_>> {
        let peer = self.peers.get(&id)?;
        Some(Target { remote: peer.config.remote, local: peer.config.local, guard: &peer.guard })
    }

    /// Records the start of a connection attempt.
    pub(crate) fn attempt_began(&mut self, id: PeerId, conn: ConnId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.attempt = Some(conn);
        }
    }

    /// Removes and returns the current connection attempt.
    pub(crate) fn take_attempt(&mut self, id: PeerId) -> Option<ConnId> {
        self.peers.get_mut(&id)?.attempt.take()
    }

    /// Counts a failed attempt by reason.
    pub(crate) fn attempt_failed(&mut self, id: PeerId, error: &io::Error) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.failures.count(error);
        }
    }

    /// Returns the failed attempts since the peer was added to the core.
    pub(crate) fn failures(&self, id: PeerId) -> Option<&Failures> {
        self.peers.get(&id).map(|peer| &peer.failures)
    }

    pub(crate) fn id(&self, name: &str) -> Option<PeerId> {
        self.ids.get(name).copied()
    }

    /// Returns the configuration of a peer.
    pub(crate) fn config(&self, id: PeerId) -> Option<&PeerConfig> {
        self.peers.get(&id).map(|peer| &peer.config)
    }

    /// Returns the configurations of all peers.
    pub(crate) fn configs(&self) -> impl Iterator<Item = (PeerId, &PeerConfig)> {
        self.peers.iter().map(|(id, peer)| (*id, &peer.config))
    }

    /// Returns the ids of all peers, including dynamic ones.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PeerId> {
        self.peers.keys().copied()
    }

    /// True if a peer of the intent has this address.
    pub(crate) fn has_address(&self, addr: ScopedAddr) -> bool {
        self.addresses.contains(&addr)
    }

    /// True if a session with this address is established.
    pub(crate) fn is_up(&self, core: &Speaker, remote: SocketAddr) -> bool {
        let here = self
            .peers
            .iter()
            .filter(|(_, peer)| ScopedAddr::of(peer.config.remote) == ScopedAddr::of(remote));
        here.filter_map(|(id, _)| core.peer(*id, std::time::Instant::now()))
            .any(|p| p.state == State::Established)
    }

    /// Adds a dynamic peer.
    pub(crate) fn add_dynamic(
        &mut self,
        id: PeerId,
        name: Arc<str>,
        remote: SocketAddr,
        common: &PeerConfig,
        guard: Guard,
    ) {
        let mut config = common.clone();
        (config.remote, config.name) = (remote, name.clone());
        self.ids.insert(name.clone(), id);
        self.peers.insert(id, Peer::new(name, config, guard));
    }

    /// Forgets a removed peer; its name is needed until the last fact about it was sent.
    pub(crate) fn forget(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.remove(&id)
            && self.ids.get(&peer.name) == Some(&id)
        {
            self.ids.remove(&peer.name);
        }
    }

    /// True if following the same peers again may find other keys.
    pub(crate) fn has_key_files(&self) -> bool {
        self.key_files
    }

    /// Returns key and minimum TTL by remote address, and descriptions of contradictions.
    pub(crate) fn guards(&self) -> (BTreeMap<ScopedAddr, Guard>, Vec<String>) {
        let mut guards: BTreeMap<ScopedAddr, (PeerId, Guard)> = BTreeMap::new();
        let mut clashes = Vec::new();
        // Dynamic peers use the guard of their range.
        for (id, peer) in self.peers.iter().filter(|(id, peer)| !id.is_dynamic() && !peer.gone) {
            let addr = ScopedAddr::of(peer.config.remote);
            match guards.entry(addr) {
                std::collections::btree_map::Entry::Vacant(slot) => {
                    slot.insert((*id, peer.guard.clone()));
                }
                std::collections::btree_map::Entry::Occupied(mut slot) => {
                    if slot.get().1 != peer.guard {
                        clashes.push(format!(
                            "two peers with address {addr} have different passwords or ttl_security; \
                             connections from there can only have one of them: make them equal"
                        ));
                    }
                    if *id < slot.get().0 {
                        slot.insert((*id, peer.guard.clone()));
                    }
                }
            }
        }
        let mut guards: BTreeMap<_, _> = guards.into_iter().map(|(addr, (_, guard))| (addr, guard)).collect();
        // A range must not admit these addresses either.
        for addr in &self.shut {
            guards.entry(*addr).or_insert_with(Guard::shut);
        }
        (guards, clashes)
    }

    fn remove(&mut self, id: PeerId) -> Change {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.gone = true;
        }
        Change::Remove(id)
    }

    /// Returns the changes from the current peers to `wanted`, in the order in which they must be applied.
    /// Removed peers keep their names until [`Self::forget`].
    pub(crate) fn follow(
        &mut self,
        wanted: &Persistent<String, PeerIntent>,
        secrets: &Path,
        classes: &Classes,
    ) -> Vec<Change> {
        let unwanted = |(name, id): &(&Arc<str>, &PeerId)| !id.is_dynamic() && !wanted.contains_key(&***name);
        let mut gone: Vec<PeerId> = self.ids.iter().filter(unwanted).map(|(_, id)| *id).collect();
        gone.sort_unstable();
        let mut changes: Vec<Change> = gone.into_iter().map(|id| self.remove(id)).collect();
        changes.extend(self.key_problems.keep(wanted).map(Change::Problem));
        self.key_files = wanted.values().any(PeerIntent::has_key_file);
        self.addresses = wanted.values().map(|i| ScopedAddr::of(i.remote)).collect();
        self.shut.clear();
        for (name, intent) in wanted {
            let old = self.ids.get(name.as_str()).and_then(|id| Some((*id, self.peers.get(id)?)));
            let name = old.map_or_else(|| Arc::from(name.as_str()), |(_, peer)| peer.name.clone());
            let (guard, problem) = guard_of(intent, secrets, old.map(|(_, peer)| &peer.guard));
            changes.extend(self.key_problems.set(&name, problem).map(Change::Problem));
            // A peer that requires a password never comes up or continues without one.
            let Some(guard) = guard else {
                changes.extend(old.map(|(id, _)| id).map(|id| self.remove(id)));
                self.shut.push(ScopedAddr::of(intent.remote));
                continue;
            };
            let config = config(intent, name.clone(), classes);
            match old {
                None => {
                    self.made += 1;
                    let id = PeerId(self.made);
                    self.ids.insert(name.clone(), id);
                    changes.push(Change::Set(id, Box::new(config.clone())));
                    self.peers.insert(id, Peer::new(name, config, guard));
                }
                Some((id, _)) => {
                    let Some(peer) = self.peers.get_mut(&id) else { continue };
                    change(id, peer, config, guard, &mut changes);
                }
            }
        }
        changes
    }
}

fn change(id: PeerId, peer: &mut Peer, config: PeerConfig, guard: Guard, changes: &mut Vec<Change>) {
    let moved = peer.config.remote != config.remote || peer.config.local != config.local;
    let guarded = peer.guard != guard;
    let keyed = restarts(&peer.guard, &guard);
    // The session is reset with a NOTIFICATION, which the peer can only read under the old key.
    if guarded && !keyed {
        changes.push(Change::Secure(ScopedAddr::of(config.remote), guard.clone()));
    }
    if peer.config != config {
        changes.push(Change::Set(id, Box::new(config.clone())));
    }
    if keyed {
        changes.push(Change::Reset(id));
    }
    if moved || guarded {
        changes.push(Change::Reconnect(id));
    }
    peer.config = config;
    peer.guard = guard;
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use tortie_bgp::{Dial, Family};

    use super::*;
    use tortie_engine::routing::{Password, PeerKind, PeerSource};

    pub(crate) fn intent(remote: &str) -> PeerIntent {
        let source = PeerSource::Mesh(String::new());
        PeerIntent {
            ipv6: false,
            dial_after: Some(Duration::from_secs(5)),
            extended_messages: false,
            ..PeerIntent::new(PeerKind::Node, remote.into(), source, remote.parse().unwrap(), 64512)
        }
    }

    struct World {
        peers: PeerTable,
        classes: Classes,
        wanted: Persistent<String, PeerIntent>,
    }

    impl World {
        fn of(names: &[(&str, &str)]) -> Self {
            let wanted = names.iter().map(|(name, remote)| ((*name).to_owned(), intent(remote))).collect();
            Self { peers: PeerTable::default(), classes: Classes::default(), wanted }
        }

        fn follow(&mut self) -> Vec<Change> {
            self.peers.follow(&self.wanted, Path::new("/nonexistent"), &self.classes)
        }

        fn password(&mut self, name: &str, text: &str) {
            self.wanted.get_mut(name).unwrap().password = Some(Password::Text(text.into()));
        }
    }

    #[test]
    fn only_peers_that_differ_are_touched() {
        let mut world = World::of(&[("a", "192.0.2.1:179"), ("b", "192.0.2.2:179")]);
        let first = world.follow();
        assert!(matches!(&first[..], [Change::Set(a, x), Change::Set(b, _)]
            if a < b && x.dial == Dial::After(Duration::from_secs(5)) && x.families == [Family::Ipv4Unicast]));
        assert_eq!(world.follow(), []);
        world.wanted.get_mut("b").unwrap().source = PeerSource::Mesh("another".into());
        assert_eq!(world.follow(), []);
        world.wanted.get_mut("b").unwrap().asn = 65000;
        assert!(matches!(&world.follow()[..], [Change::Set(_, x)] if x.asn == 65000));
    }

    #[test]
    fn a_name_that_returns_gets_another_id() {
        let mut world = World::of(&[("a", "192.0.2.1:179")]);
        world.follow();
        let id = world.peers.id("a").unwrap();
        let intent = world.wanted.get("a").unwrap().clone();
        world.wanted.remove("a");
        assert_eq!(world.follow(), [Change::Remove(id)]);
        assert_eq!(&**world.peers.name(id).unwrap(), "a");
        world.peers.forget(id);
        world.wanted.insert("a".into(), intent);
        assert!(matches!(&world.follow()[..], [Change::Set(new, _)] if *new > id));
    }

    #[test]
    fn a_move_ends_the_attempt_under_way() {
        let mut world = World::of(&[("a", "192.0.2.1:179")]);
        world.follow();
        world.wanted.get_mut("a").unwrap().remote = SocketAddr::from(([192, 0, 2, 9], 179));
        assert!(matches!(&world.follow()[..], [Change::Set(..), Change::Reconnect(_)]));
        assert!(world.peers.has_address("192.0.2.9".parse().unwrap()));
        assert!(!world.peers.has_address("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn a_first_key_resets_and_another_one_does_not() {
        let mut world = World::of(&[("a", "192.0.2.1:179")]);
        world.follow();
        world.password("a", "one");
        assert!(matches!(&world.follow()[..], [Change::Reset(_), Change::Reconnect(_)]));
        world.password("a", "two");
        let changes = world.follow();
        assert!(matches!(&changes[..], [Change::Secure(_, guard), Change::Reconnect(_)]
            if guard.key.as_ref().unwrap().bytes() == b"two"));
        let long = "x".repeat(81);
        world.password("a", &long);
        assert!(matches!(&world.follow()[..], [Change::Problem((_, Some(text)))] if text.contains("81")));
        let (guards, _) = world.peers.guards();
        assert_eq!(guards[&"192.0.2.1".parse().unwrap()].key.as_ref().unwrap().bytes(), b"two");
        world.password("a", "two");
        assert!(matches!(&world.follow()[..], [Change::Problem((_, None))]));
    }

    #[test]
    fn a_new_peer_with_an_unusable_password_is_not_given_to_the_speaker() {
        let mut world = World::of(&[("a", "192.0.2.1:179")]);
        world.wanted.get_mut("a").unwrap().password = Some(Password::File("missing".into()));
        assert!(matches!(&world.follow()[..], [Change::Problem((_, Some(_)))]));
        assert!(world.peers.has_key_files());
        world.wanted = Persistent::default();
        assert!(matches!(&world.follow()[..], [Change::Problem((_, None))]));
    }

    #[test]
    fn a_first_key_that_cannot_be_used_takes_the_peer_out_and_another_one_only_itself() {
        let mut world = World::of(&[("a", "192.0.2.1:179")]);
        world.follow();
        let id = world.peers.id("a").unwrap();
        let unusable = |world: &mut World| {
            world.wanted.get_mut("a").unwrap().password = Some(Password::File("missing".into()));
        };
        unusable(&mut world);
        world.wanted.get_mut("a").unwrap().shutdown = Some("".into());
        let changes = world.follow();
        assert!(matches!(&changes[..], [Change::Problem((_, Some(_))), Change::Remove(out)] if *out == id));
        assert_eq!(world.peers.guards().0[&"192.0.2.1".parse().unwrap()], Guard::shut());
        world.peers.forget(id);
        assert_eq!(world.follow(), [], "once");
        world.password("a", "one");
        let changes = world.follow();
        assert!(matches!(&changes[..], [Change::Problem((_, None)), Change::Set(new, config)]
            if *new > id && config.shutdown.is_some()));
        unusable(&mut world);
        world.wanted.get_mut("a").unwrap().policy.filters = vec!["f".into()];
        let before = world.peers.peers[&world.peers.id("a").unwrap()].config.policy_class;
        let changes = world.follow();
        assert!(matches!(&changes[..], [Change::Problem((_, Some(_))), Change::Set(_, config)]
            if config.policy_class != before));
        assert_eq!(
            world.peers.guards().0[&"192.0.2.1".parse().unwrap()].key.as_ref().unwrap().bytes(),
            b"one"
        );
    }

    #[test]
    fn peers_of_one_address_must_agree() {
        let mut world = World::of(&[("a", "192.0.2.1:179"), ("b", "192.0.2.1:1790")]);
        world.follow();
        assert_eq!(world.peers.guards().1, Vec::<String>::new());
        world.password("b", "one");
        world.follow();
        let (guards, clashes) = world.peers.guards();
        assert_eq!(clashes.len(), 1);
        assert_eq!(guards[&"192.0.2.1".parse().unwrap()].key, None);
    }

    #[test]
    fn a_peer_that_takes_the_place_of_another_brings_its_own_key() {
        let mut world = World::of(&[("Mesh_a", "192.0.2.1:179")]);
        world.follow();
        let before = world.peers.id("Mesh_a").unwrap();
        world.wanted = World::of(&[("Global_a", "192.0.2.1:179")]).wanted;
        world.password("Global_a", "one");
        let changes = world.follow();
        assert!(
            matches!(&changes[..], [Change::Remove(id), Change::Set(..)] if *id == before),
            "{changes:?}"
        );
        let (guards, clashes) = world.peers.guards();
        assert_eq!(clashes, Vec::<String>::new());
        assert_eq!(guards[&"192.0.2.1".parse().unwrap()].key.as_ref().unwrap().bytes(), b"one");
        // The guard of listeners ends with the last peer of an address.
        world.wanted = Persistent::default();
        world.follow();
        assert_eq!(world.peers.guards().0, BTreeMap::new());
    }
}
