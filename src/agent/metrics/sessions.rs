//! Metrics of BGP sessions: sums, and series per explicit peer.

use tortie_bgp::{FamilyStatus, PeerStatus, RestartPhase, State};

use super::core::{CoreScrape, PeerScrape};
use super::scrape::BgpScrape;
use crate::agent::metrics::exposition::{Page, flag, n, unix_before};

pub(super) const STATES: [State; 6] =
    [State::Idle, State::Connect, State::Active, State::OpenSent, State::OpenConfirm, State::Established];

/// Returns the number of a state as in bgpPeerState of the BGP4-MIB (RFC 4273): 1 Idle to 6 Established.
fn number(state: State) -> f64 {
    STATES.iter().position(|of| *of == state).map_or(0.0, |at| n(at as u64 + 1))
}

fn state_label(state: State) -> String {
    state.as_str().to_lowercase()
}

pub(super) fn write(page: &mut Page, core: &CoreScrape, bgp: Option<&BgpScrape>) {
    let mut types = vec!["mesh", "node", "global"];
    if core.sessions.keys().any(|(kind, _)| *kind == "dynamic") {
        types.push("dynamic");
    }
    let mut family = page.gauge("tortie_bgp_peers", "Sessions by type and state");
    for kind in &types {
        for state in STATES {
            let count = core.sessions.get(&(*kind, state)).copied().unwrap_or_default();
            family.count(&[("type", kind), ("state", &state_label(state))], count);
        }
    }
    let mut family = page.gauge("tortie_bgp_peers_expected", "Sessions that are configured to be up");
    for kind in &types {
        family.count(&[("type", kind)], core.expected.get(kind).copied().unwrap_or_default());
    }
    write_core_series(page, core, bgp);
    let Some(bgp) = bgp else { return };
    let find = |name: &str| {
        let at = bgp.peers.binary_search_by(|peer| (*peer.name).cmp(name)).ok()?;
        bgp.peers.get(at)
    };
    let peers: Vec<(&PeerScrape, &PeerStatus)> =
        core.peers.iter().filter(|(_, p)| p.whole).filter_map(|(name, p)| Some((p, find(name)?))).collect();
    write_speaker_series(page, core, &peers);
    counted(page, &peers);
}

fn write_core_series(page: &mut Page, core: &CoreScrape, bgp: Option<&BgpScrape>) {
    let whole = || core.peers.iter().filter(|(_, peer)| peer.whole);
    let mut family = page.gauge(
        "tortie_bgp_peer_up",
        "1 when Established; explicit peers, and mesh peers that are down or came back within 15 minutes",
    );
    for peer in core.peers.values() {
        family.put(&peer.with(&[]), flag(peer.peer.up));
    }
    let mut family = page.gauge(
        "tortie_bgp_peer_fsm_state",
        "1 Idle, 2 Connect, 3 Active, 4 OpenSent, 5 OpenConfirm, 6 Established",
    );
    for (_, peer) in whole() {
        family.put(&peer.with(&[]), number(peer.state));
    }
    let mut family = page.gauge("tortie_bgp_peer_admin_down", "1 when it is shut down on purpose");
    for (_, peer) in whole() {
        family.put(&peer.with(&[]), flag(peer.peer.shut));
    }
    let mut family =
        page.gauge("tortie_bgp_peer_state_since_seconds", "Unix time of the last change of state");
    for (_, peer) in whole() {
        family.put(&peer.with(&[]), unix_before(peer.since));
    }
    let mut family = page.counter("tortie_bgp_peer_flaps_total", "Sessions lost, by reason");
    for (_, peer) in whole() {
        // Present from the start with 0, so that the first loss is an increase.
        for reason in
            ["hold_timer", "notification_received", "notification_sent", "tcp_closed", "admin", "config"]
        {
            if !peer.flaps.contains_key(reason) {
                family.put(&peer.with(&[("reason", reason)]), 0.0);
            }
        }
        for (reason, times) in &peer.flaps {
            family.put(&peer.with(&[("reason", reason)]), n(*times));
        }
    }
    let mut family = page.counter(
        "tortie_bgp_peer_connect_failures_total",
        "Failed connection attempts, by reason; open_error: between OPEN and Established",
    );
    for (session, peer) in whole() {
        let dialled = bgp.and_then(|bgp| bgp.more.get(session)).map(|more| &more.failures);
        for (reason, times) in dialled.into_iter().flatten() {
            family.put(&peer.with(&[("reason", reason)]), n(*times));
        }
        family.put(&peer.with(&[("reason", "open_error")]), n(peer.open_errors));
    }
    let mut family = page.counter("tortie_bgp_notifications_total", "NOTIFICATIONs by code and subcode");
    for (_, peer) in whole() {
        for ((direction, code, subcode), times) in &peer.notifications {
            let (code, subcode) = (code.to_string(), subcode.to_string());
            let more = [("direction", *direction), ("code", &*code), ("subcode", &*subcode)];
            family.put(&peer.with(&more), n(*times));
        }
    }
    let mut family = page.gauge(
        "tortie_bgp_peer_prefix_limit",
        "Maximum number of prefixes that the peer may announce (max_prefixes)",
    );
    for (_, peer) in whole() {
        for (afi, _) in ["ipv4", "ipv6"].into_iter().zip(peer.families).filter(|(_, on)| *on) {
            if let Some(limit) = peer.limit {
                family.put(&peer.with(&[("afi", afi), ("safi", "unicast")]), f64::from(limit));
            }
        }
    }
    let mut family =
        page.gauge("tortie_bgp_peer_tcp_rtt_seconds", "Smoothed round-trip time, as TCP measured it");
    for (session, peer) in whole() {
        if let Some(time) = bgp.and_then(|bgp| bgp.more.get(session)).and_then(|more| more.round_trip) {
            family.put(&peer.with(&[]), time);
        }
    }
}

/// Returns a peer's prefix counts by stage of processing.
pub(super) fn stages(family: &FamilyStatus) -> [(&'static str, u32); 5] {
    [
        ("received", family.received),
        ("accepted", family.accepted),
        ("filtered", family.filtered),
        ("best", family.best),
        ("advertised", family.advertised),
    ]
}

fn write_speaker_series(page: &mut Page, core: &CoreScrape, peers: &[(&PeerScrape, &PeerStatus)]) {
    let mut family = page.gauge("tortie_bgp_peer_prefixes", "Prefixes by stage");
    for (peer, status) in peers {
        for of in &status.families {
            for (stage, value) in stages(of) {
                let more = [("afi", of.family.as_str()), ("safi", "unicast"), ("stage", stage)];
                family.put(&peer.with(&more), f64::from(value));
            }
        }
    }
    let mut family = page.gauge(
        "tortie_bgp_peer_stale_routes",
        "Routes kept although the session that brought them is gone (RFC 4724, RFC 9494)",
    );
    for (peer, status) in peers {
        for of in &status.families {
            let more = [("afi", of.family.as_str()), ("safi", "unicast")];
            family.put(&peer.with(&more), f64::from(of.stale));
        }
    }
    let mut family = page.gauge(
        "tortie_bgp_peer_graceful_restart",
        "1 in this phase (RFC 4724); helper: the peer restarts and its routes are kept, restarting: we restarted and \
         End-of-RIB has not come, stale: long-lived stale routes are kept (RFC 9494)",
    );
    for (peer, status) in peers {
        let phases = [
            ("helper", matches!(status.restart, RestartPhase::Waiting(_) | RestartPhase::Refreshing(_))),
            ("restarting", core.restarting && !status.families.iter().all(|f| f.end_of_rib_received)),
            ("stale", matches!(status.restart, RestartPhase::LongLived(_))),
        ];
        for (phase, is) in phases {
            family.put(&peer.with(&[("phase", phase)]), flag(is));
        }
    }
    let mut family = page.gauge(
        "tortie_bgp_peer_hold_margin_ratio",
        "Smallest part of the hold time that was left when a message arrived, in the last five minutes",
    );
    for (peer, status) in peers {
        if let Some(margin) = status.session.as_ref().and_then(|session| session.hold_margin) {
            family.put(&peer.with(&[]), f64::from(margin));
        }
    }
    let mut family = page.gauge("tortie_bgp_peer_told", "1 when the peer has been sent all routes for it");
    for (peer, status) in peers {
        family.put(&peer.with(&[]), flag(status.up_to_date));
    }
}

fn counted(page: &mut Page, peers: &[(&PeerScrape, &PeerStatus)]) {
    let mut family = page.counter("tortie_bgp_peer_messages_total", "BGP messages");
    for (peer, status) in peers {
        for (direction, counts) in [("received", status.received), ("sent", status.sent)] {
            let kinds = [
                ("open", counts.open),
                ("update", counts.update),
                ("notification", counts.notification),
                ("keepalive", counts.keepalive),
                ("route_refresh", counts.route_refresh),
            ];
            for (kind, value) in kinds {
                family.put(&peer.with(&[("direction", direction), ("msg", kind)]), n(value));
            }
        }
    }
}
