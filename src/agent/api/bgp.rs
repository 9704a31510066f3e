//! Conversion of the speaker's values to the API's data types; makes no decisions.

use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tortie_bgp::bfd::{self, Endpoint};
use tortie_bgp::{
    Drain, Family, NextHopState, PathInfo, PathSource, PeerStatus, RestartPhase, RouteInfo, RouteMatch,
    RouteQuery as TableQuery, RouteTable, State, Unusable,
};
use tortie_config::key::BGP_PORT;
use tortie_net::Cidr;

use crate::api::RouteQuery;
use crate::api::bgp::{BgpPath, BgpRoute, MessageError, Peer, PeerBfd, PeerError, PeerFamily, PeerRange};
use crate::api::codes;
use crate::api::problem::Subject;
use crate::api::status::{API_VERSION, ApiError, List};
use crate::speaker::{RangeView, SpeakerView};
use tortie_engine::model::InvalidKey;
use tortie_engine::routing::{
    LearnedPath, OriginKind, PeerIntent, PeerKind, RangeIntent, RoutingIntent, UnreadablePeer,
};

/// Maximum number of prefixes per router and pool that are examined for hints, so that the query does not
/// block the speaker.
const HINTED_ROUTES_MAX: usize = 4096;

/// Builds a list with its metadata.
pub(in crate::agent) fn list<T>(kind: &str, node: &str, revision: u64, items: Vec<T>) -> List<T> {
    List {
        api_version: API_VERSION.to_owned(),
        kind: kind.to_owned(),
        node: node.to_owned(),
        revision,
        time: crate::agent::time::now_text(),
        more: false,
        next: None,
        items,
    }
}

/// Returns the RFC 3339 time of the moment `ago` before now.
fn ago(span: Duration) -> String {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::ZERO);
    let at = Timestamp::now().checked_sub(span).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{at:.3}")
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|o| format!("{o:02x}")).collect()
}

fn drain_name(drain: Drain) -> &'static str {
    match drain {
        Drain::Off => "off",
        Drain::Announce => "announce",
        Drain::Withdraw => "withdraw",
    }
}

/// Describes the side that opens the connection.
fn dials(peer: &PeerIntent) -> String {
    match (peer.dial_after, peer.kind) {
        (None, _) => "only the peer".to_owned(),
        (Some(delay), PeerKind::Mesh) if delay.is_zero() => {
            "this host at once, the peer after some seconds (the address that is greater as text dials \
             first)"
                .to_owned()
        }
        (Some(delay), PeerKind::Mesh) => {
            format!(
                "the peer at once, this host after {}s (the address that is greater as text dials first)",
                delay.as_secs()
            )
        }
        (Some(delay), _) if delay.is_zero() => "this host at once".to_owned(),
        (Some(delay), _) => format!("this host after {}s", delay.as_secs()),
    }
}

/// Converts one peer. A configured peer that the speaker does not know yet is Idle.
pub(in crate::agent) fn peer(
    session: &str,
    intent: &RoutingIntent,
    status: Option<&PeerStatus>,
    watched: Option<&(Endpoint, bfd::Status)>,
) -> Option<Peer> {
    let wanted = intent.peers.get(session)?;
    let up = status.and_then(|s| s.session.as_ref());
    let mut capabilities = Vec::new();
    if let Some(s) = up {
        capabilities.extend(s.families.iter().map(|f| format!("{}-unicast", f.as_str())));
        let named = [
            (s.as4, "4-octet-as"),
            (s.route_refresh, "route-refresh"),
            (s.enhanced_refresh, "enhanced-route-refresh"),
            (s.extended_messages, "extended-messages"),
            (s.extended_next_hop, "extended-next-hop"),
            (!s.add_path_receive.is_empty(), "add-path-receive"),
            (!s.add_path_send.is_empty(), "add-path-send"),
            (s.graceful_restart.is_some(), "graceful-restart"),
        ];
        capabilities.extend(named.iter().filter(|(has, _)| *has).map(|(_, name)| (*name).to_owned()));
    }
    let state = status.map_or(State::Idle, |s| s.state);
    let since = status.map_or(Duration::ZERO, |s| s.since);
    Some(Peer {
        session: session.to_owned(),
        // Only the speaker knows the address of an unnumbered peer.
        address: status.map_or(wanted.remote, |s| s.remote).ip().to_string(),
        port: wanted.remote.port(),
        dials: dials(wanted),
        name: wanted.name.clone(),
        kind: wanted.kind.as_str().to_owned(),
        range: wanted.range.map(|range| range.to_string()),
        reason: wanted.source.to_string(),
        remote_as: status.map_or(wanted.asn, |s| s.asn),
        state: state.as_str().to_owned(),
        state_since: ago(since),
        state_seconds: since.as_secs(),
        flaps: status.map_or(0, |s| u64::from(s.flaps)),
        last_error: status.and_then(|s| s.last_down.as_ref()).map(|(down, when)| PeerError {
            code: down.code.as_str().to_owned(),
            text: down.text.clone(),
            time: ago(*when),
        }),
        last_message_error: status.and_then(|s| s.last_error.as_ref()).map(|e| MessageError {
            code: e.kind.as_str().to_owned(),
            text: e.text.clone(),
            time: ago(e.ago),
            notification: e.code.map(|(code, subcode)| [code, subcode]),
            data: hex(&e.data),
            message: hex(&e.message),
        }),
        families: status
            .map(|s| {
                s.families
                    .iter()
                    .map(|f| PeerFamily {
                        afi: f.family.as_str().to_owned(),
                        safi: "unicast".to_owned(),
                        received: u64::from(f.received),
                        accepted: u64::from(f.accepted),
                        best: u64::from(f.best),
                        advertised: u64::from(f.advertised),
                        stale: u64::from(f.stale),
                    })
                    .collect()
            })
            .unwrap_or_default(),
        hold_seconds: up.map_or(0, |s| s.hold_time.as_secs()),
        keepalive_seconds: up.map_or(0, |s| s.keepalive.as_secs()),
        router_id: up.map(|s| s.router_id.to_string()),
        messages_in: status.map_or(0, |s| s.received.total()),
        messages_out: status.map_or(0, |s| s.sent.total()),
        capabilities,
        graceful_restart: match status.map(|s| s.restart) {
            Some(RestartPhase::Waiting(left)) => format!("helper, {}s left", left.as_secs()),
            Some(RestartPhase::LongLived(left)) => format!("long-lived helper, {}s left", left.as_secs()),
            Some(RestartPhase::Refreshing(left)) => format!("refreshing, {}s left", left.as_secs()),
            _ => "idle".to_owned(),
        },
        drain: status.map_or("off", |s| drain_name(s.drain)).to_owned(),
        drain_sent: false,
        shutdown: wanted.shutdown.as_deref().map(str::to_owned),
        notes: Vec::new(),
        bfd: wanted.bfd.is_some().then(|| peer_bfd(watched)),
    })
}

/// Builds the entry of a peer whose key never had a readable value.
pub(in crate::agent) fn unreadable_peer(peer: UnreadablePeer<'_>) -> Peer {
    let InvalidKey { key, error, .. } = peer.problem;
    let text = format!("{key} cannot be parsed: {error}; it never had a valid value, so there is no session");
    let now = ago(Duration::ZERO);
    Peer {
        session: peer.name,
        address: peer.place.clone(),
        port: peer.port.unwrap_or(BGP_PORT),
        name: peer.place,
        kind: peer.kind.as_str().to_owned(),
        reason: key.clone(),
        state: "Unreadable".to_owned(),
        state_since: now.clone(),
        last_error: Some(PeerError {
            code: codes::INVALID_VALUE.name.to_owned(),
            text: text.clone(),
            time: now,
        }),
        graceful_restart: "idle".to_owned(),
        drain: drain_name(Drain::Off).to_owned(),
        notes: vec![codes::INVALID_VALUE.problem(key, key.clone(), text).about(Subject::Key(key.clone()))],
        ..Peer::default()
    }
}

/// Converts the ranges. A range that the speaker does not know yet has no sessions.
pub(in crate::agent) fn ranges(intent: &RoutingIntent, views: &[RangeView]) -> Vec<PeerRange> {
    let one = |(name, wanted): (&String, &RangeIntent)| {
        let status = views.iter().find(|range| *range.name == **name).map(|range| &range.status);
        PeerRange {
            name: name.clone(),
            prefix: wanted.prefix.to_string(),
            reason: wanted.peer.source.to_string(),
            remote_as: wanted.peer.asn,
            sessions: status.map_or(0, |s| s.peers),
            max_sessions: wanted.max_sessions,
            refused: status.map_or(0, |s| s.refused),
            last_error: status.and_then(|s| s.last_down.as_ref()).map(|(addr, down, when)| PeerError {
                code: down.code.as_str().to_owned(),
                text: format!("{addr}: {}", down.text),
                time: ago(*when),
            }),
        }
    };
    intent.ranges.iter().map(one).collect()
}

/// Converts the BFD session of a peer that has BFD enabled; `Waiting` before the session exists.
fn peer_bfd(watched: Option<&(Endpoint, bfd::Status)>) -> PeerBfd {
    let Some((endpoint, s)) = watched else {
        return PeerBfd { state: "Waiting".to_owned(), ..PeerBfd::default() };
    };
    let millis = |time: Duration| u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
    let received = s.detection_time.is_some();
    let diagnostic = |d: bfd::Diagnostic| (d != bfd::Diagnostic::NONE).then(|| d.as_str().to_owned());
    PeerBfd {
        state: s.state.as_str().to_owned(),
        state_since: Some(ago(s.since)),
        state_seconds: s.since.as_secs(),
        remote_state: received.then(|| s.remote_state.as_str().to_owned()),
        path: Some(endpoint.path.as_str().to_owned()),
        transmit_millis: s.transmit_interval.map(millis),
        receive_millis: received.then(|| millis(s.receive_interval)),
        detection_millis: s.detection_time.map(millis),
        diagnostic: diagnostic(s.diagnostic),
        remote_diagnostic: diagnostic(s.remote_diagnostic),
        last_down: s.last_down.map(|(cause, when)| PeerError {
            code: cause.as_str().to_owned(),
            text: cause.to_string(),
            time: ago(when),
        }),
        ups: s.ups,
        discriminator: s.discriminator,
        remote_discriminator: s.remote_discriminator,
        remote_independent: s.remote_independent,
        packets_in: s.received,
        packets_out: s.sent,
    }
}

/// Returns the paths inside pools for each router that may announce them: the best paths learned from that
/// router.
pub(in crate::agent) fn inside_pools(
    view: &SpeakerView<'_>,
    intent: &RoutingIntent,
) -> Vec<(String, Vec<LearnedPath>)> {
    let routers = intent.peers.iter().filter(|(_, peer)| peer.is_router() && peer.policy.import_pools);
    let learned = routers.filter_map(|(session, _)| {
        let id = view.peer(session).filter(|p| p.families.iter().any(|f| f.best > 0))?.id;
        let inside = intent.view.pools.iter().flat_map(|pool| {
            let matching = RouteMatch::Within(pool.cidr);
            view.routes(TableQuery { table: RouteTable::AdjIn(id), matching }, None, HINTED_ROUTES_MAX)
        });
        let mut paths: Vec<LearnedPath> = inside.filter_map(|route| learned_path(&route)).collect();
        // Pools may be nested, so a prefix may appear twice.
        paths.sort_unstable_by_key(|path| path.prefix);
        paths.dedup_by_key(|path| path.prefix);
        (!paths.is_empty()).then(|| (session.clone(), paths))
    });
    learned.collect()
}

fn learned_path(route: &RouteInfo) -> Option<LearnedPath> {
    let attributes = &route.paths.iter().find(|path| path.best)?.attributes;
    Some(LearnedPath {
        prefix: route.prefix,
        next_hop: attributes.next_hop.addr(),
        originator: attributes.originator_id(),
        origin_as: attributes.as_path.origin(),
    })
}

/// Resolves a peer given by an operator: session name, node name or address.
pub(in crate::agent) fn session_named<'a>(
    intent: &'a RoutingIntent,
    wanted: &str,
) -> Result<&'a String, ApiError> {
    // A link-local address may carry its interface as name or index (RFC 4007, section 11).
    let (address, zone) =
        wanted.split_once('%').map_or((wanted, None), |(address, zone)| (address, Some(zone)));
    let address = address.parse::<std::net::IpAddr>().ok();
    let is_on = |peer: &PeerIntent| {
        let scope = match peer.remote {
            std::net::SocketAddr::V6(v6) => v6.scope_id(),
            std::net::SocketAddr::V4(_) => 0,
        };
        zone.is_none_or(|zone| peer.interface.as_deref() == Some(zone) || zone.parse() == Ok(scope))
    };
    let is_named = |session: &str, peer: &PeerIntent| {
        session == wanted || peer.name == wanted || (address == Some(peer.remote.ip()) && is_on(peer))
    };
    let found: Vec<&String> = intent
        .peers
        .iter()
        .filter(|(session, peer)| is_named(session, peer))
        .map(|(session, _)| session)
        .collect();
    match found.as_slice() {
        [session] => Ok(session),
        [_, _, ..] => Err(ApiError {
            code: "invalid".to_owned(),
            text: format!(
                "`{wanted}` matches {} sessions: name one of them: {}",
                found.len(),
                found.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
            ),
        }),
        [] => Err(ApiError {
            code: "not-found".to_owned(),
            text: format!(
                "no peer `{wanted}` is configured on this host: `tortie bgp peers` lists the peers"
            ),
        }),
    }
}

/// Converts one prefix with its paths.
pub(in crate::agent) fn route(info: &RouteInfo, intent: &RoutingIntent) -> BgpRoute {
    BgpRoute { prefix: info.prefix.to_string(), paths: info.paths.iter().map(|p| path(p, intent)).collect() }
}

fn path(info: &PathInfo, intent: &RoutingIntent) -> BgpPath {
    let a = &info.attributes;
    let (from, source, local) = match &info.source {
        PathSource::Local { kind } => {
            let what = match crate::speaker::origin_kind(*kind) {
                Some(OriginKind::OwnBlock) => "own block",
                Some(OriginKind::Borrowed) => "borrowed address",
                Some(OriginKind::Floating) => "floating address",
                Some(OriginKind::ServiceRange) => "service range",
                None => "local route",
            };
            ("local".to_owned(), "local", Some(what))
        }
        PathSource::Peer { name, ebgp, .. } => {
            let shown = intent.peers.get(&**name).map_or_else(|| name.to_string(), |p| p.name.clone());
            (shown, if *ebgp { "eBGP" } else { "iBGP" }, None)
        }
    };
    let reason = match (info.unusable, info.best, info.decided_by) {
        (Some(Unusable::Filtered(why)), ..) => format!("refused: {why}"),
        (Some(Unusable::NextHop), ..) => match info.next_hop {
            Some(NextHopState::Unreachable) => {
                let why = match a.next_hop.addr() {
                    IpAddr::V6(hop) if hop.to_ipv4_mapped().is_some() => {
                        ": it is an IPv4 address, which an IPv6 route cannot use"
                    }
                    _ => "",
                };
                format!("next hop {} is unreachable{why}", a.next_hop)
            }
            _ => format!("next hop {} is not resolved yet", a.next_hop),
        },
        (None, true, None) => local.map_or_else(|| "only usable path".to_owned(), str::to_owned),
        (None, true, Some(step)) => format!("best by {}", step.as_str()),
        (None, false, Some(step)) => format!("lost by {}", step.as_str()),
        (None, false, None) => String::new(),
    };
    BgpPath {
        best: info.best,
        multipath: info.multipath,
        usable: info.unusable.is_none(),
        reason,
        from,
        path_id: info.path_id,
        source: source.to_owned(),
        next_hop: local.is_none().then(|| a.next_hop.to_string()),
        as_path: a.as_path.to_string(),
        local_pref: a.local_pref,
        med: a.med,
        origin: a.origin.as_str().to_owned(),
        communities: a.communities.iter().map(|c| format!("{}:{}", c >> 16, c & 0xffff)).collect(),
        large_communities: a.large_communities.iter().map(|[x, y, z]| format!("{x}:{y}:{z}")).collect(),
        stale: info.stale,
    }
}

/// Parses the prefix part of a query into the ranges to list, in order.
pub(in crate::agent) fn query_ranges(query: &RouteQuery) -> Result<Vec<RouteMatch>, ApiError> {
    let invalid = |text: String| ApiError { code: "invalid".to_owned(), text };
    let cidr = |text: &str| text.parse::<Cidr>().map_err(|e| invalid(e.to_string()));
    if let Some(text) = &query.prefix {
        if let Ok(addr) = text.parse::<std::net::IpAddr>() {
            return Ok(vec![RouteMatch::Longest(addr)]);
        }
        return Ok(vec![RouteMatch::Exact(cidr(text)?)]);
    }
    if let Some(text) = &query.within {
        return Ok(vec![RouteMatch::Within(cidr(text)?)]);
    }
    Ok(Family::ALL.map(RouteMatch::All).to_vec())
}

/// Position in a paged listing of routes: index of the range and next slot of the table. Text form:
/// `range-slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::agent) struct Cursor {
    pub(in crate::agent) range: usize,
    pub(in crate::agent) slot: u32,
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.range, self.slot)
    }
}

impl std::str::FromStr for Cursor {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self, ApiError> {
        let read = || {
            let (range, slot) = text.split_once('-')?;
            Some(Self { range: range.parse().ok()?, slot: slot.parse().ok()? })
        };
        let text = || format!("`{text}` is not the `next` of a page");
        read().ok_or_else(|| ApiError { code: "invalid".to_owned(), text: text() })
    }
}
