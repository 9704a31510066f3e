//! Invariants of an idle speaker: its counters and the best paths it reported agree with its tables.

use std::collections::{BTreeMap, BTreeSet};

use tortie_bgp::{
    Best, BestChange, Cidr, Family, FamilyStatus, PathInfo, PathSource, PeerStatus, RouteInfo, RouteMatch,
    RouteQuery, RouteTable, Speaker, Unusable,
};

/// Returns all routes of a table in one family.
pub fn table(speaker: &Speaker, table: RouteTable, family: Family) -> Vec<RouteInfo> {
    speaker.routes(&RouteQuery { table, matching: RouteMatch::All(family) }, None, usize::MAX)
}

/// Best paths as reported to the embedder.
#[derive(Default)]
pub struct BestPaths(BTreeMap<Cidr, Best>);

impl BestPaths {
    pub fn take(&mut self, speaker: &mut Speaker) {
        let mut changes = Vec::new();
        while speaker.take_best(16, &mut changes) {}
        for BestChange { prefix, best, .. } in changes {
            match best {
                Some(best) => drop(self.0.insert(prefix, best)),
                None => drop(self.0.remove(&prefix)),
            }
        }
    }

    /// The end of a best path is not reported while another path waits for its next hop, one of `unanswered`.
    pub fn check(&self, speaker: &Speaker, unanswered: &BTreeSet<String>) {
        // Best paths are held back while route selection is deferred after a restart.
        if speaker.pending_best() > 0 {
            return;
        }
        let (mut learned, mut held) = (BTreeSet::new(), BTreeSet::new());
        for family in Family::ALL {
            for RouteInfo { prefix, paths, .. } in table(speaker, RouteTable::Loc, family) {
                let Some(best) = paths.first().filter(|p| p.best) else {
                    let waits = |p: &PathInfo| {
                        p.unusable == Some(Unusable::NextHop)
                            && unanswered.contains(&p.attributes.next_hop.to_string())
                    };
                    if paths.iter().any(waits) {
                        held.insert(prefix);
                    }
                    continue;
                };
                let PathSource::Peer { id, ebgp, .. } = &best.source else { continue };
                learned.insert(prefix);
                let reported = self.0.get(&prefix).expect("a best path that was not reported");
                assert_eq!((reported.peer, reported.ebgp), (*id, *ebgp), "{prefix}");
                let hops: BTreeSet<_> =
                    paths.iter().filter(|p| p.multipath).map(|p| p.attributes.next_hop).collect();
                assert!(reported.next_hops.iter().eq(hops.iter()), "{prefix}: {reported:?}, {paths:?}");
            }
        }
        let stays = |prefix: &&Cidr| learned.contains(*prefix) || !held.contains(*prefix);
        assert!(
            self.0.keys().filter(stays).eq(&learned),
            "{:?} reported, {learned:?} in the tables, {held:?} held back",
            self.0
        );
    }
}

/// Checks the counters in a peer's status against the tables.
pub fn check_counts(speaker: &Speaker, peer: &PeerStatus) {
    for status in &peer.families {
        let paths = |which| table(speaker, which, status.family).into_iter().flat_map(|route| route.paths);
        let all: Vec<_> = paths(RouteTable::AdjInPost(peer.id)).collect();
        let count = |is: &dyn Fn(&tortie_bgp::PathInfo) -> bool| all.iter().filter(|p| is(p)).count();
        let filtered = count(&|p| matches!(p.unusable, Some(Unusable::Filtered(_))));
        let is = [
            all.len(),
            all.len() - filtered,
            filtered,
            count(&|p| p.best),
            count(&|p| p.stale),
            paths(RouteTable::AdjOut(peer.id)).count(),
        ];
        let FamilyStatus { received, accepted, filtered, best, stale, advertised, .. } = *status;
        let counted = [received, accepted, filtered, best, stale, advertised].map(|n| n as usize);
        assert_eq!(counted, is, "{:?}: received, accepted, filtered, best, stale, advertised", peer.id);
    }
}
