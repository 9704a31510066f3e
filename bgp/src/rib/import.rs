//! Import of received routes: loop checks and import policy accept or reject a route and set its attributes.

use std::net::IpAddr;

use smallvec::SmallVec;
use tortie_net::Cidr;

use super::Shared;
use super::entry::REASON_MAX;
use super::source::Source;
use crate::api::ExportStep;
use crate::api::Import;
use crate::attr::{Attributes, Edit, EditNextHop, Edits, community};
use crate::role;
use crate::types::Family;
use crate::wire::Address;

/// Reason number of an accepted path.
pub(crate) const ACCEPTED: u8 = 0;

/// Reason for the rejection of prefixes that are no valid destination.
const MARTIAN: &str = "martian";

/// Returns true for a prefix that is never routed: multicast, loopback, link-local. RFC 4271 6.3 requires
/// that only this prefix is ignored. Shorter prefixes that contain such addresses, as the default route, are
/// valid.
fn is_martian(prefix: Cidr) -> bool {
    match prefix.addr() {
        IpAddr::V4(a) => a.is_multicast() && prefix.len() >= 4 || a.is_loopback() && prefix.len() >= 8,
        IpAddr::V6(a) => {
            a.is_multicast() && prefix.len() >= 8
                || a.is_unicast_link_local() && prefix.len() >= 10
                || a.is_loopback() && prefix.is_host()
        }
    }
}

/// Returns false if the first octet alone rules out [`is_martian`], as for nearly all prefixes of a table.
#[inline]
fn may_be_martian<A: Address>(address: A) -> bool {
    let octets = address.octets();
    match (A::FAMILY, octets.as_ref()) {
        (Family::Ipv4Unicast, [first, ..]) => *first == 127 || *first >= 224,
        (Family::Ipv6Unicast, [first, ..]) => *first == 0 || *first >= 0xfe,
        (_, []) => false,
    }
}

/// Rejection reasons by number, with the number of routes rejected.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reasons {
    all: Vec<(&'static str, u64)>,
}

impl Reasons {
    /// Returns the number of this reason.
    pub(crate) fn number(&mut self, reason: &'static str) -> u8 {
        let at = match self.all.iter().position(|(r, _)| *r == reason) {
            Some(at) => at,
            None => {
                // Reasons above the maximum share the last number.
                if self.all.len() < usize::from(REASON_MAX) {
                    self.all.push((reason, 0));
                }
                self.all.len() - 1
            }
        };
        u8::try_from(at + 1).unwrap_or(u8::MAX)
    }

    /// Counts a rejected route and returns the number of the reason.
    pub(crate) fn count(&mut self, reason: &'static str) -> u8 {
        let number = self.number(reason);
        if let Some((_, n)) = self.all.get_mut(usize::from(number) - 1) {
            *n += 1;
        }
        number
    }

    pub(crate) fn text(&self, number: u8) -> Option<&'static str> {
        self.all.get(usize::from(number).checked_sub(1)?).map(|(r, _)| *r)
    }

    pub(crate) fn totals(&self) -> Vec<(&'static str, u64)> {
        self.all.clone()
    }
}

/// Returns the reason that rejects routes with these attributes from this peer, whatever the prefix.
fn loop_check(shared: &Shared, from: &Source, attributes: &Attributes) -> Option<&'static str> {
    // RFC 8212.
    if from.ebgp() && !from.ebgp_policy {
        return Some("no_policy");
    }
    // RFC 9234 5.
    if role::is_leaked(from.role(), from.asn, attributes) {
        return Some("route_leak");
    }
    let allowed = usize::from(from.allow_own_as);
    // RFC 4271 9.1.2. With a local AS specific to the session, the global AS is checked too.
    if attributes.as_path.count(from.local_asn) > allowed
        || (from.local_asn != shared.asn && attributes.as_path.count(shared.asn) > allowed)
    {
        return Some("as_loop");
    }
    // RFC 4456 8.
    if attributes.originator_id() == Some(shared.router_id) {
        return Some("originator_loop");
    }
    let clusters = attributes.cluster_list();
    if !clusters.is_empty() && (clusters.contains(&shared.router_id) || shared.is_own_cluster(clusters)) {
        return Some("cluster_loop");
    }
    // RFC 4271 5.1.3: a route whose next hop is this speaker is unusable.
    if from.own.contains(&attributes.next_hop) {
        return Some("next_hop_self");
    }
    None
}

/// Result of import for a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImportOutcome {
    /// Number of the attribute set to use: as received, or as edited by policy.
    pub(crate) attr: u32,
    /// Number of the reason for rejection, or [`ACCEPTED`].
    pub(crate) reason: u8,
}

/// A received attribute set, with the results of all checks that do not depend on the prefix.
#[derive(Debug, Clone, Copy)]
struct Received {
    source: u32,
    attr: u32,
    /// Reason for rejection by [`loop_check`].
    looped: Option<&'static str>,
    /// The route has GRACEFUL_SHUTDOWN: its path goes down soon (RFC 8326 4.1).
    shutdown: bool,
    /// The session itself is in graceful shutdown (RFC 8326 4.2).
    drained: bool,
    /// The route is long-lived stale now (RFC 9494 4.3).
    stale: bool,
    /// The route was received with LLGR_STALE.
    carried: bool,
}

/// Result of policy for a received route.
enum Outcome {
    Use,
    Edit(Edits),
    Refuse(&'static str),
}

impl Received {
    fn new(shared: &Shared, source: u32, attr: u32, stale: bool) -> Option<Self> {
        let (from, attributes) = (shared.sources.get(source)?, shared.attrs.attributes(attr)?);
        Some(Self {
            source,
            attr,
            looped: loop_check(shared, from, attributes),
            shutdown: from.ebgp() && attributes.has_community(community::GRACEFUL_SHUTDOWN),
            drained: from.ebgp() && from.drained,
            stale,
            carried: attributes.has_community(community::LLGR_STALE),
        })
    }

    /// Returns true if the result is the same for all prefixes other than host routes.
    fn is_alike(&self, shared: &Shared) -> bool {
        let (from, attributes) = (shared.sources.get(self.source), shared.attrs.attributes(self.attr));
        self.looped.is_some()
            || from.zip(attributes).is_some_and(|(f, a)| shared.policy.0.imports_alike(&f.view(), a))
    }

    fn decide(&self, shared: &Shared, prefix: Cidr, mut recorder: Option<&mut Vec<ExportStep>>) -> Outcome {
        if let Some(steps) = recorder.as_deref_mut() {
            let verdict = self.looped.unwrap_or("no loop").to_owned();
            steps.push(ExportStep { step: "loop", pass: self.looped.is_none(), verdict });
        }
        if let Some(reason) = self.looped {
            return Outcome::Refuse(reason);
        }
        if is_martian(prefix) {
            if let Some(steps) = recorder {
                let verdict = format!("{prefix} is multicast, loopback or of a link (RFC 4271 6.3)");
                steps.push(ExportStep { step: "prefix", pass: false, verdict });
            }
            return Outcome::Refuse(MARTIAN);
        }
        let (Some(from), Some(attributes)) =
            (shared.sources.get(self.source), shared.attrs.attributes(self.attr))
        else {
            return Outcome::Use;
        };
        let answer = shared.policy.0.import(&from.view(), prefix, attributes);
        if let Some(steps) = recorder.as_deref_mut() {
            steps.extend(shared.policy.0.import_steps(&from.view(), prefix, attributes));
        }
        let edits = match answer {
            Import::Accept => Edits::NONE,
            Import::AcceptWith(edits) => edits,
            Import::Reject(reason) => return Outcome::Refuse(reason),
        };
        let edits = self.after_policy(edits, recorder);
        if edits.is_empty() { Outcome::Use } else { Outcome::Edit(edits) }
    }

    /// Appends the edits that the protocol requires after policy.
    fn after_policy(&self, edits: Edits, recorder: Option<&mut Vec<ExportStep>>) -> Edits {
        // RFC 9494 4.3: policy must not remove LLGR_STALE.
        if !self.shutdown && !self.drained && !self.stale && (!self.carried || edits.is_empty()) {
            return edits;
        }
        let mut all = edits.as_slice().to_vec();
        let mut steps = SmallVec::<[(&'static str, &'static str); 2]>::new();
        if self.shutdown || self.drained {
            all.push(Edit::LocalPref(0));
        }
        if self.drained {
            all.push(Edit::AddCommunities([community::GRACEFUL_SHUTDOWN].into()));
            steps.push(("graceful-shutdown", "local preference 0: its session is drained (RFC 8326)"));
        } else if self.shutdown {
            steps.push(("graceful-shutdown", "local preference 0: its sender is about to go (RFC 8326)"));
        }
        if self.stale || self.carried {
            all.push(Edit::AddCommunities([community::LLGR_STALE].into()));
            steps.push(("long-lived", "long-lived stale: least preferred (RFC 9494)"));
        }
        if let Some(recorder) = recorder {
            let step = |(step, verdict): (_, &str)| ExportStep { step, pass: true, verdict: verdict.into() };
            recorder.extend(steps.into_iter().map(step));
        }
        all.into_iter().collect()
    }

    /// Returns the edited attributes for a route of this family. An error is the reason for rejection.
    fn edited(&self, shared: &Shared, v4: bool, edits: &Edits) -> Result<Attributes, &'static str> {
        let (Some(from), Some(attributes)) =
            (shared.sources.get(self.source), shared.attrs.attributes(self.attr))
        else {
            return Err("gone");
        };
        let mut changed = attributes.clone();
        edits.apply(&mut changed, from.ebgp().then_some(from.asn));
        match edits.next_hop() {
            None => {}
            Some(EditNextHop::Own) => return Err("next_hop_self"),
            Some(EditNextHop::Address(hop)) if from.own.contains(&hop.into()) => return Err("next_hop_self"),
            Some(EditNextHop::Address(hop)) => {
                // An IPv4 route may have an IPv6 next hop (RFC 8950), but not the reverse.
                if hop.is_ipv4() && !v4 {
                    return Err("next_hop_family");
                }
                changed.next_hop = hop.into();
                changed.link_local = None;
            }
        }
        Ok(changed)
    }
}

/// Evaluates routes of one source with one received attribute set. The last edited set is cached, because
/// most prefixes of an UPDATE share it. [`ImportEvaluator::finish`] has to be called at the end, to release
/// the reference.
#[derive(Debug, Clone)]
pub(crate) struct ImportEvaluator {
    received: Received,
    /// Last edits and their result, which holds a reference to the edited set.
    last: Option<(Edits, Result<u32, &'static str>)>,
    /// Result for all prefixes of the family other than host routes and possible martians.
    networks: Option<Result<u32, &'static str>>,
}

impl ImportEvaluator {
    /// Creates the evaluator for routes of this source with the received set `attr`. `stale`: they are
    /// long-lived stale now.
    pub(crate) fn new(shared: &Shared, source: u32, attr: u32, stale: bool) -> Option<Self> {
        Some(Self { received: Received::new(shared, source, attr, stale)?, last: None, networks: None })
    }

    /// Evaluates a newly received route. All routes of one evaluator have to be of the same family.
    #[inline]
    pub(crate) fn evaluate<A: Address>(
        &mut self,
        shared: &mut Shared,
        (address, len): (A, u8),
    ) -> ImportOutcome {
        let network = len < A::WIDTH && !may_be_martian(address);
        let used = match self.networks {
            Some(used) if network => used,
            _ => {
                let used = self.used(shared, address.cidr(len));
                if network && self.received.is_alike(shared) {
                    self.networks = Some(used);
                }
                used
            }
        };
        self.outcome(used, |reason| shared.reasons.count(reason))
    }

    /// Evaluates a route of the table again.
    pub(crate) fn revise(&mut self, shared: &mut Shared, prefix: Cidr) -> ImportOutcome {
        let used = self.used(shared, prefix);
        self.outcome(used, |reason| shared.reasons.number(reason))
    }

    fn outcome(
        &self,
        used: Result<u32, &'static str>,
        number: impl FnOnce(&'static str) -> u8,
    ) -> ImportOutcome {
        match used {
            Ok(attr) => ImportOutcome { attr, reason: ACCEPTED },
            Err(reason) => ImportOutcome { attr: self.received.attr, reason: number(reason) },
        }
    }

    fn used(&mut self, shared: &mut Shared, prefix: Cidr) -> Result<u32, &'static str> {
        match self.received.decide(shared, prefix, None) {
            Outcome::Use => Ok(self.received.attr),
            Outcome::Refuse(reason) => Err(reason),
            Outcome::Edit(edits) => self.edited(shared, prefix.is_v4(), edits),
        }
    }

    fn edited(&mut self, shared: &mut Shared, v4: bool, edits: Edits) -> Result<u32, &'static str> {
        if let Some((last, made)) = &self.last
            && *last == edits
        {
            return *made;
        }
        let changed = self.received.edited(shared, v4, &edits);
        let made = changed.map(|c| shared.attrs.intern_edited(c, self.received.attr, &mut shared.next_hops));
        self.forget(shared);
        self.last = Some((edits, made));
        made
    }

    fn forget(&mut self, shared: &mut Shared) {
        self.networks = None;
        if let Some((_, Ok(made))) = self.last.take() {
            shared.attrs.release(made, &mut shared.next_hops);
        }
    }

    /// Releases the cached set. Paths that use it hold references of their own.
    pub(crate) fn finish(mut self, shared: &mut Shared) {
        self.forget(shared);
    }
}

/// Explains the import of a route with the set `attr`: appends the steps of [`ImportEvaluator::evaluate`] and
/// returns the resulting attributes.
pub(crate) fn explain(
    shared: &Shared,
    source: u32,
    prefix: Cidr,
    attr: u32,
    stale: bool,
    steps: &mut Vec<ExportStep>,
) -> Option<Attributes> {
    let received = Received::new(shared, source, attr, stale)?;
    match received.decide(shared, prefix, Some(&mut *steps)) {
        Outcome::Use => shared.attrs.attributes(attr).cloned(),
        Outcome::Refuse(_) => None,
        Outcome::Edit(edits) => match received.edited(shared, prefix.is_v4(), &edits) {
            Ok(changed) => Some(changed),
            Err(reason) => {
                steps.push(ExportStep { step: "next-hop", pass: false, verdict: reason.into() });
                None
            }
        },
    }
}
