//! Whether a received route is a candidate, and with which attributes: loop checks and import policy.

use smallvec::SmallVec;
use tortie_config::Cidr;

use super::Shared;
use super::source::Source;
use crate::api::Import;
use crate::attr::{Attributes, Edit, EditNextHop, Edits, community};
use crate::query::ExportStep;
use crate::session::role;

/// A path is used.
pub(crate) const ACCEPTED: u8 = 0;

/// Reasons by number: a path holds one octet.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    all: Vec<(&'static str, u64)>,
}

impl Reasons {
    /// The number of this reason.
    pub(crate) fn number(&mut self, reason: &'static str) -> u8 {
        let at = match self.all.iter().position(|(r, _)| *r == reason) {
            Some(at) => at,
            None => {
                // More reasons than an octet holds share the last number.
                if self.all.len() < 254 {
                    self.all.push((reason, 0));
                }
                self.all.len() - 1
            }
        };
        u8::try_from(at + 1).unwrap_or(u8::MAX)
    }

    /// The number of this reason; counts a route that was refused for it.
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

/// Why no route with these attributes is used from this peer, whatever its prefix.
pub(crate) fn loop_check(shared: &Shared, from: &Source, attributes: &Attributes) -> Option<&'static str> {
    // RFC 8212.
    if from.ebgp() && !from.ebgp_policy {
        return Some("no_policy");
    }
    // RFC 9234 5.
    if role::is_leaked(from.role(), from.asn, attributes) {
        return Some("route_leak");
    }
    let allowed = usize::from(from.allow_own_as);
    // RFC 4271 9.1.2; with a local AS of its own the session must not hide the global one.
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
    // RFC 4271 5.1.3: a route whose next hop we are leads nowhere.
    if from.own.contains(&attributes.next_hop) {
        return Some("next_hop_self");
    }
    None
}

/// What import makes of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Judged {
    /// The attribute set to use: the received one, or what policy made of it.
    pub(crate) attr: u32,
    /// Why it is not used, or [`ACCEPTED`].
    pub(crate) reason: u8,
}

impl Judged {
    fn new(
        shared: &mut Shared,
        received: u32,
        used: Result<u32, &'static str>,
        number: impl FnOnce(&mut Reasons, &'static str) -> u8,
    ) -> Self {
        match used {
            Ok(attr) => Self { attr, reason: ACCEPTED },
            Err(reason) => Self { attr: received, reason: number(&mut shared.reasons, reason) },
        }
    }
}

/// Judges routes of one source. It keeps the last set that policy made, because the prefixes of an UPDATE share it; so
/// [`Judge::finish`] has to follow.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    /// The received set, the changes and what came of them; holds a reference to the set that came.
    last: Option<(u32, Edits, Result<u32, &'static str>)>,
}

impl Judge {
    /// Judges a route that just came with the set `received`.
    pub(crate) fn judge(
        &mut self,
        shared: &mut Shared,
        source: u32,
        prefix: Cidr,
        received: u32,
        looped: Option<&'static str>,
    ) -> Judged {
        let used = self.used(shared, source, prefix, received, looped, false);
        Judged::new(shared, received, used, Reasons::count)
    }

    /// Judges a route again that came with the set `received`; `stale`: it is long-lived stale.
    pub(crate) fn revise(
        &mut self,
        shared: &mut Shared,
        source: u32,
        prefix: Cidr,
        received: u32,
        looped: Option<&'static str>,
        stale: bool,
    ) -> Judged {
        let used = self.used(shared, source, prefix, received, looped, stale);
        Judged::new(shared, received, used, Reasons::number)
    }

    fn used(
        &mut self,
        shared: &mut Shared,
        source: u32,
        prefix: Cidr,
        received: u32,
        looped: Option<&'static str>,
        stale: bool,
    ) -> Result<u32, &'static str> {
        match decide(shared, source, prefix, received, looped, stale, None) {
            Outcome::Use => Ok(received),
            Outcome::Refuse(reason) => Err(reason),
            Outcome::Edit(edits) => self.edited(shared, source, prefix, received, edits),
        }
    }

    fn edited(
        &mut self,
        shared: &mut Shared,
        source: u32,
        prefix: Cidr,
        received: u32,
        edits: Edits,
    ) -> Result<u32, &'static str> {
        if let Some((of, last, made)) = &self.last
            && (*of, last) == (received, &edits)
        {
            return *made;
        }
        let made = edit(shared, source, prefix.is_v4(), received, &edits);
        self.forget(shared);
        self.last = Some((received, edits, made));
        made
    }

    fn forget(&mut self, shared: &mut Shared) {
        if let Some((_, _, Ok(made))) = self.last.take() {
            shared.attrs.release(made, &mut shared.hops);
        }
    }

    /// Nothing more is judged; whoever uses a set that came of it has a reference of its own.
    pub(crate) fn finish(mut self, shared: &mut Shared) {
        self.forget(shared);
    }
}

/// The answer about a received route.
enum Outcome {
    Use,
    Edit(Edits),
    Refuse(&'static str),
}

fn decide(
    shared: &Shared,
    source: u32,
    prefix: Cidr,
    received: u32,
    looped: Option<&'static str>,
    stale: bool,
    mut recorder: Option<&mut Vec<ExportStep>>,
) -> Outcome {
    if let Some(steps) = recorder.as_deref_mut() {
        let verdict = looped.unwrap_or("no loop").to_owned();
        steps.push(ExportStep { step: "loop", pass: looped.is_none(), verdict });
    }
    if let Some(reason) = looped {
        return Outcome::Refuse(reason);
    }
    let (Some(from), Some(attributes)) = (shared.sources.get(source), shared.attrs.attributes(received))
    else {
        return Outcome::Use;
    };
    let answer = shared.policy.0.import(&from.view(), prefix, attributes);
    if let Some(steps) = recorder.as_deref_mut() {
        let pass = !matches!(answer, Import::Reject(_));
        let verdict = shared.policy.0.describe_import(&from.view(), prefix, attributes);
        steps.push(ExportStep { step: "policy", pass, verdict });
    }
    let edits = match answer {
        Import::Accept => Edits::NONE,
        Import::AcceptWith(edits) => edits,
        Import::Reject(reason) => return Outcome::Refuse(reason),
    };
    let edits = after_policy(from, attributes, stale, edits, recorder);
    if edits.is_empty() { Outcome::Use } else { Outcome::Edit(edits) }
}

/// What the protocol itself changes after policy.
fn after_policy(
    from: &Source,
    attributes: &Attributes,
    stale: bool,
    edits: Edits,
    recorder: Option<&mut Vec<ExportStep>>,
) -> Edits {
    // RFC 8326 4.1.
    let shutdown = from.ebgp() && attributes.has_community(community::GRACEFUL_SHUTDOWN);
    // RFC 9494 4.3: whatever policy does, LLGR_STALE stays.
    let carried = attributes.has_community(community::LLGR_STALE);
    if !shutdown && !stale && (!carried || edits.is_empty()) {
        return edits;
    }
    let mut all = edits.as_slice().to_vec();
    let mut steps = SmallVec::<[(&'static str, &'static str); 2]>::new();
    if shutdown {
        all.push(Edit::LocalPref(0));
        steps.push(("graceful-shutdown", "local preference 0: its sender is about to go (RFC 8326)"));
    }
    if stale || carried {
        all.push(Edit::AddCommunities([community::LLGR_STALE].into()));
        steps.push(("long-lived", "long-lived stale: least preferred (RFC 9494)"));
    }
    if let Some(recorder) = recorder {
        let step = |(step, verdict): (_, &str)| ExportStep { step, pass: true, verdict: verdict.into() };
        recorder.extend(steps.into_iter().map(step));
    }
    all.into_iter().collect()
}

/// The number of the changed set, with one more reference.
fn edit(
    shared: &mut Shared,
    source: u32,
    v4: bool,
    received: u32,
    edits: &Edits,
) -> Result<u32, &'static str> {
    let changed = edited_attributes(shared, source, v4, received, edits)?;
    Ok(shared.attrs.intern_edited(changed, received, &mut shared.hops))
}

/// What [`Judge::judge`] does with a route that came with the set `received`, recorded; the attributes that are used.
pub(crate) fn explain(
    shared: &Shared,
    source: u32,
    prefix: Cidr,
    received: u32,
    stale: bool,
    steps: &mut Vec<ExportStep>,
) -> Option<Attributes> {
    let attributes = shared.attrs.attributes(received)?;
    let looped = loop_check(shared, shared.sources.get(source)?, attributes);
    match decide(shared, source, prefix, received, looped, stale, Some(&mut *steps)) {
        Outcome::Use => Some(attributes.clone()),
        Outcome::Refuse(_) => None,
        Outcome::Edit(edits) => match edited_attributes(shared, source, prefix.is_v4(), received, &edits) {
            Ok(changed) => Some(changed),
            Err(reason) => {
                steps.push(ExportStep { step: "next-hop", pass: false, verdict: reason.into() });
                None
            }
        },
    }
}

/// The changed attributes.
fn edited_attributes(
    shared: &Shared,
    source: u32,
    v4: bool,
    received: u32,
    edits: &Edits,
) -> Result<Attributes, &'static str> {
    let (Some(from), Some(attributes)) = (shared.sources.get(source), shared.attrs.attributes(received))
    else {
        return Err("gone");
    };
    let mut changed = attributes.clone();
    edits.apply(&mut changed, from.ebgp().then_some(from.asn));
    match edits.next_hop() {
        None => {}
        Some(EditNextHop::Own) => return Err("next_hop_self"),
        Some(EditNextHop::Address(hop)) if from.own.contains(&hop) => return Err("next_hop_self"),
        Some(EditNextHop::Address(hop)) => {
            // An IPv4 route may have an IPv6 next hop (RFC 8950), never the other way round.
            if hop.is_ipv4() && !v4 {
                return Err("next_hop_family");
            }
            changed.next_hop = hop;
            changed.link_local = None;
        }
    }
    Ok(changed)
}
