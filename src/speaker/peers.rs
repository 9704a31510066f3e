//! The peers of the intent: their ids, keys and configurations, and what a new intent changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tortie_bgp::{ConnId, Dial, Family, NextHopMode, PeerConfig, PeerId};

use crate::routing::{NextHopRule, Password, PeerIntent};

use super::listen::Guard;
use super::policy::Classes;
use super::secret::Key;

/// A peer that the speaker knows.
pub(super) struct Peer {
    pub(super) name: Arc<str>,
    pub(super) config: PeerConfig,
    pub(super) guard: Guard,
    /// The attempt under way.
    pub(super) dialling: Option<ConnId>,
}

/// What has to be done about a peer.
#[derive(Debug, PartialEq)]
pub(super) enum Change {
    /// New, or its configuration differs.
    Set(PeerId, Box<PeerConfig>),
    Remove(PeerId),
    /// An attempt under way goes to the wrong place or carries the wrong key.
    Redial(PeerId),
    /// Connections of this address get this guard.
    Secure(IpAddr, Guard),
    /// It got its first key, or lost it: a session cannot go on.
    Reset(PeerId),
    /// A new problem, or (`None`) the end of one.
    Trouble(Arc<str>, Option<String>),
}

/// All peers.
#[derive(Default)]
pub(super) struct Peers {
    ids: FxHashMap<Arc<str>, PeerId>,
    peers: FxHashMap<PeerId, Peer>,
    troubles: FxHashMap<Arc<str>, String>,
    addresses: FxHashSet<IpAddr>,
    made: u32,
}

impl Peers {
    pub(super) fn get(&self, id: PeerId) -> Option<&Peer> {
        self.peers.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&id)
    }

    pub(super) fn id(&self, name: &str) -> Option<PeerId> {
        self.ids.get(name).copied()
    }

    /// Whether a peer has this address.
    pub(super) fn has_address(&self, addr: IpAddr) -> bool {
        self.addresses.contains(&addr)
    }

    /// Forgets a removed peer; until then its name is known for what is still reported of it.
    pub(super) fn forget(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.remove(&id)
            && self.ids.get(&peer.name) == Some(&id)
        {
            self.ids.remove(&peer.name);
        }
    }

    /// Some peers wait for a usable password.
    pub(super) fn troubled(&self) -> bool {
        !self.troubles.is_empty()
    }

    /// Key and least TTL by remote address, and what contradicts itself.
    pub(super) fn guards(&self) -> (FxHashMap<IpAddr, Guard>, Vec<String>) {
        let mut guards: FxHashMap<IpAddr, (PeerId, Guard)> = FxHashMap::default();
        let mut clashes = Vec::new();
        for (id, peer) in &self.peers {
            let addr = peer.config.remote.ip();
            match guards.entry(addr) {
                std::collections::hash_map::Entry::Vacant(slot) => {
                    slot.insert((*id, peer.guard.clone()));
                }
                std::collections::hash_map::Entry::Occupied(mut slot) => {
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
        (guards.into_iter().map(|(addr, (_, guard))| (addr, guard)).collect(), clashes)
    }

    /// What it takes to get from the peers so far to `wanted`, in the order in which it is to be done. Removed peers
    /// stay known until [`Self::forget`].
    pub(super) fn follow(
        &mut self,
        wanted: &BTreeMap<String, PeerIntent>,
        secrets: &Path,
        classes: &Classes,
    ) -> Vec<Change> {
        let mut changes: Vec<Change> = self
            .ids
            .iter()
            .filter(|(name, _)| !wanted.contains_key(&***name))
            .map(|(_, id)| Change::Remove(*id))
            .collect();
        changes.sort_by_key(|c| if let Change::Remove(id) = c { *id } else { PeerId(0) });
        self.troubles.retain(|name, _| {
            let keep = wanted.contains_key(&**name);
            if !keep {
                changes.push(Change::Trouble(name.clone(), None));
            }
            keep
        });
        self.addresses = wanted.values().map(|i| i.remote.ip()).collect();
        for (name, intent) in wanted {
            let old = self.ids.get(name.as_str()).and_then(|id| Some((*id, self.peers.get(id)?)));
            let name = old.map_or_else(|| Arc::from(name.as_str()), |(_, peer)| peer.name.clone());
            let (key, trouble) = key_of(intent, secrets, old.map(|(_, peer)| peer));
            if trouble.as_ref() != self.troubles.get(&name) {
                changes.push(Change::Trouble(name.clone(), trouble.clone()));
                match &trouble {
                    Some(text) => self.troubles.insert(name.clone(), text.clone()),
                    None => self.troubles.remove(&name),
                };
            }
            // A peer that should have a password never comes up without one.
            let Some(key) = key else { continue };
            let guard = Guard { key, min_ttl: intent.ttl_security.map_or(0, min_ttl) };
            let config = config(intent, name.clone(), classes);
            match old {
                None => {
                    self.made += 1;
                    let id = PeerId(self.made);
                    self.ids.insert(name.clone(), id);
                    changes.push(Change::Set(id, Box::new(config.clone())));
                    self.peers.insert(id, Peer { name, config, guard, dialling: None });
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
    let keyed = peer.guard.key.is_some() != guard.key.is_some();
    if guarded {
        changes.push(Change::Secure(config.remote.ip(), guard.clone()));
    }
    if peer.config != config {
        changes.push(Change::Set(id, Box::new(config.clone())));
    }
    if keyed {
        changes.push(Change::Reset(id));
    }
    if moved || guarded {
        changes.push(Change::Redial(id));
    }
    peer.config = config;
    peer.guard = guard;
}

/// The key to use (`None`: none can be used) and what is wrong. A key that worked stays while its file cannot be read.
fn key_of(intent: &PeerIntent, secrets: &Path, old: Option<&Peer>) -> (Option<Option<Key>>, Option<String>) {
    let Some(password) = &intent.password else { return (Some(None), None) };
    match Key::read(password, secrets) {
        Ok(key) => (Some(Some(key)), None),
        Err(text) => {
            let last =
                old.and_then(|peer| peer.guard.key.clone()).filter(|_| matches!(password, Password::File(_)));
            (last.map(Some), Some(text))
        }
    }
}

/// RFC 5082 3: a packet that came over at most `hops` links left with 255.
fn min_ttl(hops: u8) -> u8 {
    255 - hops.saturating_sub(1)
}

fn config(intent: &PeerIntent, name: Arc<str>, classes: &Classes) -> PeerConfig {
    let mut families = Vec::with_capacity(2);
    if intent.ipv4 {
        families.push(Family::Ipv4Unicast);
    }
    if intent.ipv6 {
        families.push(Family::Ipv6Unicast);
    }
    PeerConfig {
        remote: intent.remote,
        local: intent.local,
        asn: intent.asn,
        local_asn: intent.local_asn,
        families,
        dial: match intent.dial_after {
            None => Dial::Passive,
            Some(delay) if delay.is_zero() => Dial::Now,
            Some(delay) => Dial::After(delay),
        },
        hold_time: intent.hold_time,
        keepalive: intent.keepalive_time,
        next_hop: match intent.next_hop {
            NextHopRule::Auto => NextHopMode::Auto,
            NextHopRule::Own => NextHopMode::Own,
            NextHopRule::Keep => NextHopMode::Keep,
        },
        local_v4: intent.local_v4,
        local_v6: intent.local_v6,
        reflector_client: intent.reflector_client,
        allow_own_as: intent.allow_local_as,
        restart_time: Some(intent.restart_time),
        extended_messages: intent.extended_messages,
        max_prefixes: intent.max_prefixes,
        policy_class: classes.of(&intent.policy),
        name,
    }
}
