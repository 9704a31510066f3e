//! Answers about BGP sessions, and operator actions on them: reset and drain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_bgp::{Drain, Reset};
use tortie_config::counted;

use crate::agent::api::bgp;
use crate::agent::api::server::Server;
use crate::agent::core::view::CoreView;
use crate::agent::handle::{Handle, busy};
use crate::api::bgp::{Peer, PeerRange};
use crate::api::problem::Problem;
use crate::api::status::{ActionResult, ApiError, DrainRequest, List, ResetRequest};
use crate::speaker::ToSpeaker;
use tortie_engine::routing::{PeerIntent, unreadable_peers};

/// Lists configured peers, dynamic peers, and peers whose keys never had a readable value.
pub(in crate::agent) async fn list(server: &Server) -> Result<List<Peer>, ApiError> {
    let intent = server.handle().sessions().await?;
    let (statuses, watched, drained) = server
        .handle()
        .speaker()
        .ask(|view| {
            let statuses = view.peers();
            let drained = statuses.iter().filter(|s| s.drain != Drain::Off && view.has_taken_all(&s.name));
            let drained: BTreeSet<Arc<str>> = drained.map(|s| Arc::clone(&s.name)).collect();
            (statuses, view.bfd_sessions(), drained)
        })
        .await?;
    let mut hints = route_hints(server.handle()).await;
    let unreadable =
        |core: &CoreView<'_>| unreadable_peers(core.model()).map(bgp::unreadable_peer).collect::<Vec<_>>();
    let unreadable = server.handle().core().ask(unreadable).await?;
    let mut items: Vec<Peer> = intent
        .peers
        .keys()
        .filter_map(|session| {
            let at = statuses.binary_search_by(|s| (*s.name).cmp(session.as_str())).ok();
            let status = at.and_then(|i| statuses.get(i));
            let mut peer = bgp::peer(session, &intent, status, watched.get(session.as_str()))?;
            peer.notes.extend(hints.remove(session));
            peer.drain_sent = drained.contains(session.as_str());
            Some(peer)
        })
        .collect();
    items.extend(unreadable.into_iter().filter(|peer| !intent.peers.contains_key(&peer.session)));
    Ok(server.list("BGPPeerList", items).await)
}

/// Lists the address ranges from which dynamic peers are accepted.
pub(in crate::agent) async fn list_ranges(server: &Server) -> Result<List<PeerRange>, ApiError> {
    server.handle().intent()?;
    let items = ranges(server.handle()).await;
    Ok(server.list("BGPRangeList", items).await)
}

/// Returns the ranges; empty if the speaker does not answer.
pub(in crate::agent) async fn ranges(handle: &Handle) -> Vec<PeerRange> {
    let Some(intent) = handle.newest_intent().filter(|intent| !intent.ranges.is_empty()) else {
        return Vec::new();
    };
    let states = handle.speaker().ask(|view| view.ranges()).await.unwrap_or_default();
    bgp::ranges(&intent, &states)
}

/// Returns hints about announcements of routers, by session. Queries the core only if a router announces a
/// prefix inside a pool.
pub(in crate::agent) async fn route_hints(handle: &Handle) -> BTreeMap<String, Problem> {
    let Ok(intent) = handle.sessions().await else { return BTreeMap::new() };
    if !intent.peers.values().any(PeerIntent::is_router) {
        return BTreeMap::new();
    }
    let learned =
        handle.speaker().ask(move |view| bgp::inside_pools(view, &intent)).await.unwrap_or_default();
    if learned.is_empty() {
        return BTreeMap::new();
    }
    handle.core().ask(move |core| core.route_hints(&learned)).await.unwrap_or_default()
}

/// Resets one session or all sessions.
pub(in crate::agent) async fn reset(
    server: &Server,
    request: ResetRequest,
) -> Result<ActionResult, ApiError> {
    let intent = server.handle().sessions().await?;
    let invalid = |text: String| Err(ApiError { code: "invalid".to_owned(), text });
    let session = match (&request.peer, request.all) {
        (Some(name), false) => Some(bgp::session_named(&intent, name)?.clone()),
        (None, true) => None,
        _ => return invalid("name one peer, or say `all`".to_owned()),
    };
    match &request.text {
        Some(_) if request.kind != "hard" => {
            return invalid("only a hard reset sends a reason to the peer".to_owned());
        }
        Some(text) if text.len() > 255 => {
            let text = format!("the text has {} octets; RFC 9003 has room for 255", text.len());
            return invalid(text);
        }
        _ => {}
    }
    let ranged = |name| intent.peers.get(name).is_some_and(|p| p.range.is_some());
    let (reset, one, all) = match request.kind.as_str() {
        "hard" => (
            Reset::Hard(request.text.unwrap_or_default()),
            if session.as_ref().is_some_and(ranged) {
                "is reset; the peer may connect again"
            } else {
                "is reset; this host connects again by itself"
            },
            "are reset; they are set up again by themselves",
        ),
        "soft-in" => (Reset::SoftIn, "is sent a ROUTE-REFRESH request", "are sent a ROUTE-REFRESH request"),
        "soft-out" => (Reset::SoftOut, "is sent all routes again", "are sent all routes again"),
        other => {
            let text = format!("`{other}` is not a kind of reset: write hard, soft-in or soft-out");
            return invalid(text);
        }
    };
    let text = match &session {
        Some(session) => format!("{session} {one}"),
        None => format!("{} {all}", counted(intent.peers.len(), "session")),
    };
    let speaker = server.handle().speaker().thread()?;
    speaker.send(ToSpeaker::Reset(session, reset)).map_err(|e| busy(&e.to_string()))?;
    Ok(ActionResult { text })
}

/// Starts or ends a graceful shutdown towards peers (RFC 8326).
pub(in crate::agent) async fn drain(
    server: &Server,
    request: DrainRequest,
) -> Result<ActionResult, ApiError> {
    let intent = server.handle().sessions().await?;
    let (drain, done) = match request.drain.as_str() {
        "announce" => (Drain::Announce, "announced with GRACEFUL_SHUTDOWN"),
        "withdraw" => (Drain::Withdraw, "withdrawn"),
        "off" => (Drain::Off, "announced as before the drain"),
        other => {
            let text = format!("`{other}` is not a kind of drain: write announce, withdraw or off");
            return Err(ApiError { code: "invalid".to_owned(), text });
        }
    };
    // All names are resolved before any session is changed.
    let mut sessions = Vec::new();
    for name in &request.peers {
        sessions.push(bgp::session_named(&intent, name)?.clone());
    }
    let speaker = server.handle().speaker().get().ok_or_else(|| busy("the speaker has not started yet"))?;
    let order = |peer| speaker.send(ToSpeaker::Drain(peer, drain)).map_err(|e| busy(&e.to_string()));
    if sessions.is_empty() {
        order(None)?;
        return Ok(ActionResult { text: format!("to all peers, routes are {done}") });
    }
    let named = sessions.join(", ");
    for session in sessions {
        order(Some(session))?;
    }
    Ok(ActionResult { text: format!("to {named}, routes are {done}") })
}
