//! Routes that a peer holds after all messages sent to it.
//!
//! Properties: a receiver accepts every message without error, and the result of all messages equals the
//! speaker's Adj-RIB-Out and its explanation for each prefix.

use std::collections::{BTreeMap, BTreeSet};

use tortie_bgp::attr::Attributes;
use tortie_bgp::wire::{Address, Negotiated, Nlri, Update};
use tortie_bgp::{Cidr, Family, PeerStatus, RouteTable, Speaker};

use super::invariants::table;

/// Number of prefixes explained per check.
const EXPLAINED: usize = 64;

/// Routes by prefix and path identifier.
type Routes = BTreeMap<(Cidr, Option<u32>), Attributes>;

pub struct ReceivedRoutes {
    session: Negotiated,
    routes: Routes,
}

/// Returns the negotiated parameters from the peer's point of view. `None` without a session.
pub fn theirs(peer: &PeerStatus) -> Option<Negotiated> {
    let session = peer.session.as_ref()?;
    Some(Negotiated {
        ebgp: peer.asn != peer.local_asn,
        as4: session.as4,
        extended: session.extended_messages,
        families: session.families.iter().copied().collect(),
        ext_nexthop: session.extended_next_hop,
        add_path_receive: session.add_path_send.iter().copied().collect(),
        add_path_send: session.add_path_receive.iter().copied().collect(),
        reject_as_sets: false,
    })
}

impl ReceivedRoutes {
    pub fn new(peer: &PeerStatus) -> Self {
        Self { session: theirs(peer).expect("an UPDATE without a session"), routes: Routes::new() }
    }

    /// Applies the body of an UPDATE.
    pub fn update(&mut self, body: &[u8]) {
        let update = Update::decode(body, &self.session).expect("sent an UPDATE that resets the session");
        assert!(update.malformed.is_none() && update.discarded.is_empty(), "sent {update:?}");
        for nlri in &update.withdrawn {
            for key in self.keys(nlri) {
                self.routes.remove(&key);
            }
        }
        for reach in &update.reach {
            for key in self.keys(&reach.nlri) {
                self.routes.insert(key, reach.attributes.clone());
            }
        }
    }

    fn keys(&self, nlri: &Nlri<'_>) -> Vec<(Cidr, Option<u32>)> {
        let mut keys = self.keys_of::<u32>(nlri);
        keys.extend(self.keys_of::<u128>(nlri));
        keys
    }

    fn keys_of<A: Address>(&self, nlri: &Nlri<'_>) -> Vec<(Cidr, Option<u32>)> {
        let many = self.session.add_path_receive.contains(A::FAMILY);
        nlri.of::<A>().map(|e| (e.prefix.0.cidr(e.prefix.1), many.then_some(e.path_id))).collect()
    }

    /// Compares the routes with the Adj-RIB-Out and the explanations, after everything was sent.
    pub fn check(&self, speaker: &Speaker, peer: &PeerStatus) {
        let mut prefixes = BTreeSet::new();
        let mut advertised = Routes::new();
        for family in Family::ALL {
            prefixes.extend(table(speaker, RouteTable::Loc, family).into_iter().map(|route| route.prefix));
            for route in table(speaker, RouteTable::AdjOut(peer.id), family) {
                let prefix = route.prefix;
                advertised
                    .extend(route.paths.into_iter().map(|p| ((prefix, p.path_id), (*p.attributes).clone())));
            }
        }
        let received = &self.routes;
        assert_eq!(*received, advertised, "{:?}: received, and reported as advertised", peer.id);
        assert!(advertised.keys().all(|(prefix, _)| prefixes.contains(prefix)));
        for prefix in prefixes.into_iter().take(EXPLAINED) {
            let trace = speaker.explain_export(prefix, peer.id);
            let first = received.range((prefix, None)..).next().filter(|((has, _), _)| *has == prefix);
            assert_eq!(
                first.map(|(_, a)| a),
                trace.announced.as_deref(),
                "{:?}: {prefix} {trace:?}",
                peer.id
            );
        }
    }
}
