//! Changes of routes: announcements and withdrawals of peers, and local routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_net::{Cidr, ScopedAddr};

use super::RibSet;
use super::family::FamilyRib;
use crate::api::{Origination, Tag};
use crate::attr::Attributes;
use crate::rib::Shared;
use crate::rib::entry::{Key, LocalRoute};
use crate::rib::import::{ACCEPTED, ImportEvaluator, ImportOutcome};
use crate::rib::source::LOCAL;
use crate::rib::table::{AHEAD, Announced};
use crate::role;
use crate::types::Family;
use crate::wire::{Negotiated, Nlri, Update};

/// Counts of a batch of UPDATEs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Learned {
    pub(crate) announced: u32,
    pub(crate) withdrawn: u32,
    pub(crate) rejected: u32,
    pub(crate) malformed: u32,
}

impl RibSet {
    /// Counts the errors of an UPDATE that do not reset the session (RFC 7606).
    pub(crate) fn count_errors(&mut self, update: &Update<'_>) {
        let [withdraws, discards, _] = &mut self.update_errors;
        *discards += update.discarded.len() as u64;
        *withdraws += u64::from(update.malformed.is_some());
    }

    /// Counts an UPDATE that reset its session.
    pub(crate) fn count_reset(&mut self) {
        let [.., resets] = &mut self.update_errors;
        *resets += 1;
    }

    /// Applies the withdrawals of a peer. Returns the number of prefixes removed.
    pub(crate) fn withdraw(&mut self, peer: u32, nlri: &Nlri<'_>) -> u32 {
        match nlri.family() {
            Family::Ipv4Unicast => withdraw(&mut self.v4, &mut self.shared, peer, nlri),
            Family::Ipv6Unicast => withdraw(&mut self.v6, &mut self.shared, peer, nlri),
        }
    }

    /// Applies the announcements of a peer.
    pub(crate) fn announce(
        &mut self,
        peer: u32,
        session: &Negotiated,
        nlri: &Nlri<'_>,
        mut attributes: Attributes,
        learned: &mut Learned,
    ) {
        if session.ebgp {
            attributes.local_pref = None;
            attributes.drop_validation_state();
            if let Some(from) = self.shared.sources.get(peer) {
                role::mark_received(from.role(), from.asn, &mut attributes);
            }
        }
        let attr = self.shared.attrs.intern(attributes, false, &mut self.shared.next_hops);
        let shared = &mut self.shared;
        match nlri.family() {
            Family::Ipv4Unicast => announce(&mut self.v4, shared, peer, nlri, attr, learned),
            Family::Ipv6Unicast => announce(&mut self.v6, shared, peer, nlri, attr, learned),
        }
        self.shared.attrs.release(attr, &mut self.shared.next_hops);
    }

    /// Adds or changes (`Some`) and withdraws (`None`) local routes.
    pub(crate) fn set_local(&mut self, changes: &[(Cidr, Option<Origination>)]) {
        let shared = &mut self.shared;
        for (prefix, change) in changes {
            let (len, change) = (prefix.len(), change.as_ref());
            match prefix.addr() {
                IpAddr::V4(a) => {
                    let unspecified = Ipv4Addr::UNSPECIFIED.into();
                    originate(&mut self.v4, shared, (u32::from(a), len), change, unspecified);
                }
                IpAddr::V6(a) => {
                    let unspecified = Ipv6Addr::UNSPECIFIED.into();
                    originate(&mut self.v6, shared, (u128::from(a), len), change, unspecified);
                }
            }
        }
    }
}

fn withdraw<A: Key>(rib: &mut FamilyRib<A>, shared: &mut Shared, peer: u32, nlri: &Nlri<'_>) -> u32 {
    let mut count = 0;
    let mut ahead = nlri.of::<A>();
    for (n, entry) in nlri.of::<A>().enumerate() {
        if n % AHEAD == 0 {
            rib.table.prefetch(ahead.by_ref().take(AHEAD).map(|e| e.prefix));
        }
        count += u32::from(rib.table.withdraw(shared, (peer, entry.path_id), entry.prefix));
    }
    shared.changes_of(A::FAMILY).withdrawn += u64::from(count);
    count
}

fn announce<A: Key>(
    rib: &mut FamilyRib<A>,
    shared: &mut Shared,
    peer: u32,
    nlri: &Nlri<'_>,
    attr: u32,
    learned: &mut Learned,
) {
    let Some(mut import) = ImportEvaluator::new(shared, peer, attr, false) else { return };
    let mut ahead = nlri.of::<A>();
    for (n, entry) in nlri.of::<A>().enumerate() {
        if n % AHEAD == 0 {
            rib.table.prefetch(ahead.by_ref().take(AHEAD).map(|e| e.prefix));
        }
        let ImportOutcome { attr, reason } = import.evaluate(shared, entry.prefix);
        learned.rejected += u32::from(reason != ACCEPTED);
        match rib.table.announce(shared, (peer, entry.path_id), entry.prefix, attr, reason) {
            Announced::New => {
                shared.changes_of(A::FAMILY).announced += 1;
                learned.announced += 1;
            }
            Announced::Replaced => {
                shared.changes_of(A::FAMILY).replaced += 1;
                learned.announced += 1;
            }
            Announced::Repeated => shared.changes_of(A::FAMILY).repeated += 1,
            Announced::Refused => {}
            Announced::TooMany => {
                shared.reasons.count("too_many_paths");
                learned.rejected += 1;
            }
        }
    }
    import.finish(shared);
}

/// Adds, changes or withdraws a local route.
fn originate<A: Key>(
    rib: &mut FamilyRib<A>,
    shared: &mut Shared,
    prefix: (A, u8),
    change: Option<&Origination>,
    unspecified: ScopedAddr,
) {
    let Some(origination) = change else {
        if rib.table.locals.remove(&prefix).is_some() {
            rib.table.withdraw(shared, (LOCAL, 0), prefix);
        }
        return;
    };
    let mut attributes = Attributes::new(unspecified);
    attributes.add_communities(&origination.communities);
    attributes.add_large_communities(&origination.large_communities);
    attributes.local_pref = origination.local_pref;
    let attr = shared.attrs.intern(attributes, true, &mut shared.next_hops);
    let route = LocalRoute { kind: origination.kind };
    let old = rib.table.locals.insert(prefix, route);
    rib.table.announce(shared, (LOCAL, 0), prefix, attr, ACCEPTED);
    shared.attrs.release(attr, &mut shared.next_hops);
    if old.is_some_and(|o| o != route)
        && let Some(slot) = rib.table.find(prefix)
    {
        // Export policy may decide differently for the new kind.
        rib.table.touch(slot);
    }
    if origination.tag != Tag::default() {
        rib.table.tag(prefix, origination.tag);
    }
}
