//! `routing`'s decisions as the speaker's policy.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tortie_bgp::attr::Attributes;
use tortie_bgp::{Export, Import, PeerView, Policy, RouteView};
use tortie_config::Cidr;

use crate::routing::{self, OriginKind, PeerPolicy, RoutingView};

/// The distinct [`PeerPolicy`] values so far. A value's number never changes, so that policies of different age may
/// share the table.
#[derive(Clone, Default)]
pub(super) struct Classes(Arc<ArcSwap<Vec<Arc<PeerPolicy>>>>);

impl Classes {
    /// The number of this value.
    pub(super) fn of(&self, policy: &PeerPolicy) -> u64 {
        let known = self.0.load();
        let at = known.iter().position(|p| **p == *policy).unwrap_or_else(|| {
            let mut longer = Vec::clone(&known);
            longer.push(Arc::new(policy.clone()));
            self.0.store(Arc::new(longer));
            known.len()
        });
        u64::try_from(at).unwrap_or(u64::MAX)
    }

    fn get(&self, class: u64) -> Option<Arc<PeerPolicy>> {
        self.0.load().get(usize::try_from(class).ok()?).cloned()
    }
}

/// Export gates and import checks over one view.
pub(super) struct ViewPolicy {
    view: Arc<RoutingView>,
    classes: Classes,
}

impl ViewPolicy {
    pub(super) fn new(view: Arc<RoutingView>, classes: Classes) -> Self {
        Self { view, classes }
    }
}

impl Policy for ViewPolicy {
    fn import(&self, from: &PeerView<'_>, prefix: Cidr, _: &Attributes) -> Import {
        let Some(policy) = self.classes.get(from.class) else { return Import::Reject("unknown-class") };
        match routing::import(&self.view, &policy, prefix) {
            Ok(()) => Import::Accept,
            Err(reason) => Import::Reject(reason),
        }
    }

    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        let Some(policy) = self.classes.get(to.class) else {
            return Export::withhold("unknown-class");
        };
        let answer = routing::export_gate(
            &self.view,
            &policy,
            to.ebgp,
            route.prefix,
            route.local.and_then(origin_kind),
        );
        if answer.accept {
            Export::announce(answer.gate).with_communities(answer.communities, answer.large_communities)
        } else {
            Export::withhold(answer.gate)
        }
    }
}

/// [`OriginKind`] as [`tortie_bgp::Origination::kind`].
pub(super) fn kind_code(kind: OriginKind) -> u32 {
    match kind {
        OriginKind::OwnBlock => 0,
        OriginKind::Borrowed => 1,
        OriginKind::Floating => 2,
    }
}

/// The kind of a local route by its [`tortie_bgp::Origination::kind`].
#[must_use]
pub fn origin_kind(code: u32) -> Option<OriginKind> {
    [OriginKind::OwnBlock, OriginKind::Borrowed, OriginKind::Floating]
        .into_iter()
        .find(|k| kind_code(*k) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_policies_share_a_number_and_numbers_last() {
        let classes = Classes::default();
        let own = PeerPolicy { own_only: true, ..PeerPolicy::default() };
        let first = classes.of(&PeerPolicy::default());
        assert_ne!(first, classes.of(&own));
        assert_eq!(first, classes.of(&PeerPolicy::default()));
        assert_eq!(*classes.get(classes.of(&own)).unwrap(), own);
        assert_eq!(classes.get(7), None);
    }

    #[test]
    fn kinds_survive_the_trip_through_the_speaker() {
        for kind in [OriginKind::OwnBlock, OriginKind::Borrowed, OriginKind::Floating] {
            assert_eq!(origin_kind(kind_code(kind)), Some(kind));
        }
        assert_eq!(origin_kind(3), None);
    }
}
