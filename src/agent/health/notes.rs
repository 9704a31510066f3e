//! Notes of `status` that are computed on request: drained sessions, packets dropped by rules, routes that
//! are not announced or not used.

use std::collections::BTreeMap;
use std::time::Duration;

use tortie_bgp::{Drain, RouteMatch, RouteQuery as TableQuery, RouteTable, Unusable};
use tortie_config::counted;

use crate::agent::core::snapshot::RouteExchange;
use crate::agent::handle::{Handle, SLOTS_PER_QUERY};
use crate::api::problem::Problem;
use crate::api::{codes, span};
use crate::speaker::SpeakerView;

/// Time for which dropped packets and malformed UPDATEs are shown.
const SHOWN_FOR: Duration = Duration::from_secs(600);
/// Maximum number of peers, and of routes per peer, whose rejections are examined.
const REFUSING_MAX: (usize, usize) = (8, 512);

/// Returns a note if sessions are drained.
pub(in crate::agent) async fn drained(handle: &Handle) -> Option<Problem> {
    let counts = |view: &SpeakerView<'_>| {
        let peers = view.peers();
        let of = |drain| peers.iter().filter(|p| p.drain == drain).count();
        (of(Drain::Announce), of(Drain::Withdraw))
    };
    let (announced, withdrawn) = handle.speaker().ask(counts).await.ok()?;
    (announced + withdrawn > 0).then(|| {
        let text = format!(
            "routes are announced with GRACEFUL_SHUTDOWN to {} and withdrawn from {withdrawn}; a restart of \
             the agent ends the drain",
            counted(announced, "session")
        );
        codes::DRAINED.problem("", "bgp", text)
    })
}

/// Returns a note if rules dropped packets.
pub(in crate::agent) fn denied(handle: &Handle) -> Option<Problem> {
    let drops = handle.drops()?;
    let kinds = drops.within(SHOWN_FOR);
    let (kind, most) = kinds.iter().max_by_key(|(_, dropped)| dropped.count)?;
    let sum: u64 = kinds.iter().map(|(_, dropped)| dropped.count).sum();
    let text = format!(
        "{} dropped in the last {} minutes, {} of them {} -> {}",
        counted(sum, "packet"),
        SHOWN_FOR.as_secs() / 60,
        most.count,
        kind.src,
        kind.dst
    );
    Some(codes::PACKETS_DENIED.problem("", "packet rules", text))
}

/// Returns a note if repair of the kernel is held.
pub(in crate::agent) async fn drift_hold(handle: &Handle) -> Option<Problem> {
    let left = handle.kernel().ask(|view| view.drift_hold_remaining()).await.ok().flatten()?;
    let text = format!("repair of own routes and rules is on hold for {} more", span(left.as_secs()));
    Some(codes::DIFF_HELD.problem("kernel", "kernel", text))
}

/// Collects routes that are not announced or not used. Rejected routes are examined one by one only while
/// there are few.
pub(in crate::agent) fn route_exchange(view: &SpeakerView<'_>) -> RouteExchange {
    let totals = view.totals();
    let named =
        |list: Vec<(&'static str, u64)>| list.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
    let mut refusing = Vec::new();
    let mut malformed = Vec::new();
    for peer in view.peers() {
        let unused = |e: &&tortie_bgp::LastError| {
            e.ago < SHOWN_FOR && matches!(e.kind.as_str(), "treat_as_withdraw" | "attribute_discard")
        };
        if let Some(error) =
            peer.last_error.as_ref().filter(unused).filter(|_| malformed.len() < REFUSING_MAX.0)
        {
            malformed.push((peer.name.to_string(), error.text.clone(), error.ago));
        }
        let sum = |of: fn(&tortie_bgp::FamilyStatus) -> u32| peer.families.iter().map(of).sum::<u32>();
        let (filtered, received) = (sum(|f| f.filtered), sum(|f| f.received));
        if filtered == 0 || refusing.len() == REFUSING_MAX.0 {
            continue;
        }
        let mut reasons: BTreeMap<&'static str, usize> = BTreeMap::new();
        let all = peer.families.iter().flat_map(|f| {
            let matching = RouteMatch::All(f.family);
            let question = TableQuery { table: RouteTable::AdjInPost(peer.id), matching };
            view.walk(question, 0, SLOTS_PER_QUERY, REFUSING_MAX.1).0
        });
        for path in all.flat_map(|route| route.paths) {
            if let Some(Unusable::Filtered(reason)) = path.unusable {
                *reasons.entry(reason).or_default() += 1;
            }
        }
        refusing.push((peer.name.to_string(), filtered, received, reasons));
    }
    RouteExchange { withheld: named(totals.withheld), refused: named(totals.rejected), refusing, malformed }
}
