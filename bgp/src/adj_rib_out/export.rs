//! Export: selects the paths that are announced to an update group, and computes their attributes.

use std::net::{IpAddr, Ipv6Addr};

use tortie_net::{Cidr, ScopedAddr};

use super::attr_sets::{Added, AttrSetKey};
use crate::api::ExportStep;
use crate::api::{Drain, NextHopMode, PeerId, PeerView, RouteView};
use crate::attr::{Attributes, EditNextHop, community};
use crate::rib::Shared;
use crate::rib::entry::Path;
use crate::rib::source::{LOCAL, Source};
use crate::role;
use crate::types::Family;
use crate::wire::{Families, Negotiated, Role, UpdateTemplate};

/// LOCAL_PREF towards iBGP peers of routes without the attribute.
const LOCAL_PREF: u32 = 100;

/// All parameters that UPDATEs depend on: peers with equal keys share an update group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct GroupKey {
    pub(crate) family: Family,
    /// Negotiated parameters that affect UPDATEs of this family.
    pub(crate) session: Negotiated,
    pub(crate) asn: u32,
    pub(crate) local_asn: u32,
    /// Cluster id if the peers are reflector clients of this speaker.
    pub(crate) client: Option<u32>,
    pub(crate) next_hop: NextHopMode,
    /// Graceful shutdown mode (RFC 8326).
    pub(crate) drain: Drain,
    /// True if the peers have the LLGR capability (RFC 9494).
    pub(crate) long_lived: bool,
    /// Next hop of this speaker for routes of the family. `None`: no usable address.
    pub(crate) own: Option<ScopedAddr>,
    pub(crate) class: u64,
    /// Local role on these eBGP sessions.
    pub(crate) role: Option<Role>,
    /// True for eBGP peers without policy, to which nothing is sent (RFC 8212).
    pub(crate) closed: bool,
    /// Position of the announced paths in the order of the decision process, from 0 (RFC 7911).
    pub(crate) plane: u8,
}

impl GroupKey {
    /// Returns the path identifier to send. `None` if the session does not use path identifiers.
    pub(crate) fn path_id(&self) -> Option<u32> {
        let sends = self.session.add_path_send.contains(self.family);
        sends.then(|| u32::from(self.plane) + 1)
    }

    /// Returns `session` without the parameters that do not affect UPDATEs of this family.
    pub(crate) fn normalise(session: &Negotiated, family: Family) -> Negotiated {
        let only = Families::NONE.with(family);
        Negotiated {
            families: only,
            add_path_receive: Families::NONE,
            add_path_send: session.add_path_send.intersection(only),
            reject_as_sets: false,
            ext_nexthop: session.ext_nexthop && family == Family::Ipv4Unicast,
            ..*session
        }
    }
}

/// Identity of the group for policy: its first member.
#[derive(Debug, Clone)]
pub(crate) struct Representative {
    pub(crate) id: PeerId,
    pub(crate) name: std::sync::Arc<str>,
}

/// Result of export for one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Announce the path with these edits.
    Announce(Added),
    /// An export gate of policy withholds the path.
    Gate(&'static str),
    /// The protocol prohibits the announcement.
    No,
}

/// Receives each check of [`verdict`] for an explanation.
pub(crate) type Recorder<'r> = Option<&'r mut Vec<ExportStep>>;

fn note(
    recorder: &mut Recorder<'_>,
    step: &'static str,
    pass: bool,
    verdict: impl FnOnce() -> String,
) -> bool {
    if let Some(steps) = recorder {
        steps.push(ExportStep { step, pass, verdict: verdict() });
    }
    pass
}

/// Decides if a path is announced to this group. `kind`: type of a local route.
pub(crate) fn verdict(
    shared: &Shared,
    key: &GroupKey,
    representative: &Representative,
    prefix: Cidr,
    path: &Path,
    kind: Option<u32>,
    mut recorder: Recorder<'_>,
) -> Verdict {
    let Some(attributes) = shared.attrs.attributes(path.attr) else { return Verdict::No };
    let r = &mut recorder;
    if key.drain == Drain::Withdraw {
        note(r, "drain", false, || "the peer is drained: nothing is announced".into());
        return Verdict::Gate("drain");
    }
    let local = path.source == LOCAL;
    if !note(r, "deferral", local || !shared.deferring, || {
        if shared.deferring {
            "learned routes wait for End-of-RIB after our restart"
        } else {
            "not restarting"
        }
        .into()
    }) {
        return Verdict::No;
    }
    if !note(r, "ebgp-policy", !key.closed, || {
        if key.closed { "no policy is given for this eBGP peer (RFC 8212)" } else { "given, or iBGP" }.into()
    }) {
        return Verdict::No;
    }
    if !note(r, "role", role::may_send(key.role, attributes), || match (key.role, attributes.otc()) {
        (None, _) => "no role on this session".into(),
        (Some(_), None) => "not marked ONLY_TO_CUSTOMER".into(),
        (Some(role), Some(asn)) => format!("ONLY_TO_CUSTOMER of AS {asn}, and our role is {role:?}"),
    }) {
        return Verdict::No;
    }
    let forbidden = well_known(attributes, key.session.ebgp).filter(|_| !local);
    if !note(r, "well-known", forbidden.is_none(), || forbidden.unwrap_or("no such community").into()) {
        return Verdict::No;
    }
    let stale = !local && attributes.has_community(community::LLGR_STALE);
    // RFC 9494 4.3 and 4.6: long-lived stale routes only to peers with the capability, or inside the AS.
    if !note(r, "long-lived", !stale || key.long_lived || !key.session.ebgp, || {
        match (stale, key.long_lived, key.session.ebgp) {
            (false, ..) => "not long-lived stale",
            (true, true, _) => "long-lived stale, and the peer knows what that is",
            (true, false, false) => "long-lived stale: with NO_EXPORT and local preference 0",
            (true, false, true) => "long-lived stale, and the peer does not know what that is",
        }
        .into()
    }) {
        return Verdict::No;
    }
    if !note(r, "reflection", may_pass_on(shared, key, path.source), || {
        reflection_text(shared, key, path.source)
    }) {
        return Verdict::No;
    }
    let hop = next_hop(shared, key, path.source, attributes);
    if !note(r, "next-hop", hop.is_some(), || match hop {
        Some(hop) => format!("next hop {hop}"),
        None => format!("no usable next hop of ours for {} routes on this session", key.family.as_str()),
    }) {
        return Verdict::No;
    }
    let to = PeerView {
        id: representative.id,
        name: &representative.name,
        ebgp: key.session.ebgp,
        asn: key.asn,
        local_asn: key.local_asn,
        class: key.class,
        role: key.role,
    };
    let from = shared.sources.get(path.source).map(Source::view);
    let route = RouteView { prefix, attributes, local: kind, from };
    let answer = shared.policy.0.export(&to, &route);
    if let Some(steps) = r {
        steps.extend(shared.policy.0.export_steps(&to, &route));
    }
    if !answer.accept {
        return Verdict::Gate(answer.gate);
    }
    if let Some(edit) = answer.edits.next_hop() {
        let hop = match edit {
            EditNextHop::Own => key.own,
            EditNextHop::Address(hop) => Some(hop.into()).filter(|hop| fits(key, *hop)),
        };
        let text = || match hop {
            Some(hop) => format!("policy sets next hop {hop}"),
            None => format!("policy sets {edit}, which does not fit {} routes here", key.family.as_str()),
        };
        if !note(r, "next-hop", hop.is_some(), text) {
            return Verdict::Gate("next-hop");
        }
    }
    Verdict::Announce(Added {
        edits: answer.edits,
        communities: answer.communities,
        large: answer.large_communities,
    })
}

/// Returns the well-known community that prohibits the announcement (RFC 1997).
fn well_known(attributes: &Attributes, ebgp: bool) -> Option<&'static str> {
    if attributes.communities.is_empty() {
        return None;
    }
    if attributes.has_community(community::NO_ADVERTISE) {
        return Some("NO_ADVERTISE");
    }
    let confined = attributes.has_community(community::NO_EXPORT)
        || attributes.has_community(community::NO_EXPORT_SUBCONFED);
    (ebgp && confined).then_some("NO_EXPORT")
}

/// Returns true if the path was learned by iBGP and the group is iBGP.
fn is_reflected(shared: &Shared, key: &GroupKey, source: u32) -> bool {
    !key.session.ebgp && shared.sources.get(source).is_some_and(|s| !s.ebgp())
}

/// Returns the reflection counter of the source: it changes when reflection adds other attributes to the same
/// path.
pub(crate) fn reflection(shared: &Shared, key: &GroupKey, source: u32) -> u32 {
    let source = shared.sources.get(source).filter(|s| !key.session.ebgp && !s.ebgp());
    source.map_or(0, |s| s.reflection)
}

/// Returns true unless both ends are iBGP and neither is a reflector client (RFC 4271 9.2, RFC 4456 6).
pub(super) fn may_pass_on(shared: &Shared, key: &GroupKey, source: u32) -> bool {
    !is_reflected(shared, key, source)
        || key.client.is_some()
        || shared.sources.get(source).is_some_and(|s| s.client.is_some())
}

fn reflection_text(shared: &Shared, key: &GroupKey, source: u32) -> String {
    if !is_reflected(shared, key, source) {
        return "not from iBGP to iBGP".into();
    }
    if may_pass_on(shared, key, source) { "reflected" } else { "learned by iBGP, and no reflector client" }
        .into()
}

/// Returns the next hop to send. `None` if no suitable one exists.
fn next_hop(shared: &Shared, key: &GroupKey, source: u32, attributes: &Attributes) -> Option<ScopedAddr> {
    let keep = source != LOCAL
        && match key.next_hop {
            NextHopMode::Own => false,
            NextHopMode::Keep => true,
            NextHopMode::Auto => is_reflected(shared, key, source),
        };
    if !keep {
        return key.own;
    }
    fits(key, attributes.next_hop).then_some(attributes.next_hop)
}

/// Returns true if routes of this group can have this next hop (RFC 4760 3, RFC 8950 3).
fn fits(key: &GroupKey, hop: ScopedAddr) -> bool {
    match (key.family, hop.addr()) {
        (Family::Ipv4Unicast, IpAddr::V4(_)) => true,
        (Family::Ipv4Unicast, IpAddr::V6(hop)) => key.session.ext_nexthop && !is_link_local(hop),
        // A link-local address is meaningless beyond its link.
        (Family::Ipv6Unicast, IpAddr::V6(hop)) => !is_link_local(hop),
        (Family::Ipv6Unicast, IpAddr::V4(_)) => false,
    }
}

fn is_link_local(address: Ipv6Addr) -> bool {
    address.is_unicast_link_local()
}

/// Returns the attributes to send for an attribute set of the group.
pub(crate) fn attributes(
    shared: &Shared,
    key: &GroupKey,
    out: AttrSetKey,
    added: Option<&Added>,
) -> Option<Attributes> {
    let received = shared.attrs.attributes(out.attr)?;
    let mut a = received.clone();
    a.next_hop = match added.and_then(|a| a.edits.next_hop()) {
        None => next_hop(shared, key, out.source, received)?,
        Some(EditNextHop::Own) => key.own?,
        Some(EditNextHop::Address(hop)) => hop.into(),
    };
    a.link_local = None;
    if key.session.ebgp {
        // Removed before policy, which may add non-transitive ones for the neighbour.
        a.drop_non_transitive();
    }
    if let Some(added) = added {
        added.edits.apply(&mut a, key.session.ebgp.then_some(key.local_asn));
    }
    if key.session.ebgp {
        a.as_path = a.as_path.prepend(key.local_asn, 1);
        a.local_pref = None;
        // RFC 4271 5.1.4: a received MED is not sent to other ASes; a MED set by policy is.
        if !added.is_some_and(|a| a.edits.touch_med()) {
            a.med = None;
        }
        role::mark_sent(key.role, key.local_asn, &mut a);
        a.edit_extra(|e| {
            e.originator_id = None;
            e.cluster_list = Box::default();
        });
    } else {
        a.local_pref = Some(a.local_pref.unwrap_or(LOCAL_PREF));
        if is_reflected(shared, key, out.source) {
            let source = shared.sources.get(out.source)?;
            let cluster = key.client.or(source.client).unwrap_or(shared.router_id);
            a.edit_extra(|e| {
                e.originator_id = Some(e.originator_id.unwrap_or(source.router_id));
                e.cluster_list = std::iter::once(cluster).chain(e.cluster_list.iter().copied()).collect();
            });
        }
    }
    if key.drain == Drain::Announce {
        // RFC 8326 4.1. Inside the AS, LOCAL_PREF 0 has the same effect on routers that ignore the community.
        a.add_communities(&[community::GRACEFUL_SHUTDOWN]);
        a.local_pref = a.local_pref.map(|_| 0);
    }
    if out.source != LOCAL && received.has_community(community::LLGR_STALE) {
        // RFC 9494 4.3: policy must not remove LLGR_STALE.
        a.add_communities(&[community::LLGR_STALE]);
        if !key.session.ebgp && !key.long_lived {
            a.add_communities(&[community::NO_EXPORT]);
            a.local_pref = Some(0);
        }
    }
    if let Some(added) = added {
        a.add_communities(&added.communities);
        a.add_large_communities(&added.large);
    }
    Some(a)
}

/// Returns true if no message of the session can hold these attributes and one prefix.
pub(crate) fn is_oversized(shared: &Shared, key: &GroupKey, out: AttrSetKey, added: Option<&Added>) -> bool {
    let Some(a) = shared.attrs.attributes(out.attr) else { return true };
    let opaque: usize = a.opaque().iter().map(|o| o.value.len() + 4).sum();
    let roughly = a.as_path.octets().len() * 2
        + (a.communities.len() + a.cluster_list().len()) * 4
        + a.large_communities.len() * 12
        + a.ext_communities().len() * 8
        + opaque;
    // Nearly all sets are far below the limit and need not be encoded to find out.
    let growth = added.map_or(0, |a| a.edits.growth() + a.communities.len() * 4 + a.large.len() * 12);
    if roughly + growth < 3500 {
        return false;
    }
    attributes(shared, key, out, added)
        .is_none_or(|a| UpdateTemplate::new(&a, key.family, &key.session).is_err())
}
