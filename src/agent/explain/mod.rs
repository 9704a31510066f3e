//! `why peer`, `why route`, `why ip`: explanations from the state of the threads, the kernel and the store.
//!
//! Each thread is queried once, for the object in question only and without iterating over a table. A pure
//! function turns the evidence into the answer. Decisions are explained by the functions that make them, with
//! a recorder attached (`routing::explain_*`, and export and import of the speaker); then they count and send
//! nothing.
//!
//! ```text
//!  core: keys, revisions, events --+
//!  speaker: session, paths, traces +-> Evidence -peer.rs | route.rs | export.rs | ip.rs-> api::explain::Why
//!  kernel: routes, links, decision +        (origin.rs: the store's side of a prefix)
//!  tortie_kernel::neighbour, status key --+
//! ```

pub(super) mod address;
mod cause;
mod export;
mod ip;
mod names;
mod origin;
mod peer;
pub(super) mod recorded;
mod route;

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use tortie_bgp::{ExportStep, RouteInfo, RouteMatch, RouteQuery as TableQuery, RouteTable, State, Unusable};
use tortie_config::key::{IpFamily, Key, prefix};
use tortie_net::{Cidr, ScopedAddr};

use crate::agent::api::bgp;
use crate::agent::api::kernel_routes::{kernel_get, row};
use crate::agent::api::server::Server;
use crate::agent::core::peer_record::EndedSession;
use crate::agent::core::view::CoreView;
use crate::agent::explain::origin::PrefixOrigin;
use crate::agent::handle::Handle;
use crate::agent::time::now_text;
use crate::api::explain::{Step, Verdict, Why};
use crate::api::nodes::NodeStatus;
use crate::api::problem::Subject;
use crate::api::status::ApiError;
use crate::host_checks::TcpDropped;
use crate::speaker::SpeakerView;
use tortie_engine::routing::{self, PeerIntent, RoutingIntent};
use tortie_kernel::{KernelView, Mode};
use tortie_store::{KeyValue, Store};

/// Timeout of the store for keys that are read only on demand.
const STORE_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of a host's blocks that are checked.
const BLOCKS_MAX: usize = 64;

/// The core's part of a session's evidence.
#[derive(Debug, Default)]
struct CoreEvidence {
    revision: u64,
    key: Option<String>,
    key_revision: Option<u64>,
    last_session: Option<EndedSession>,
    problem: Option<String>,
    /// Code and text of the session's problems in `status`.
    status: Vec<(String, String)>,
}

/// Collects the core's part of a session's evidence.
fn core_evidence(core: &CoreView<'_>, session: &str, intent: &PeerIntent) -> CoreEvidence {
    let key = intent.source.key(IpFamily::of(intent.remote.ip()));
    CoreEvidence {
        revision: core.revision(),
        key_revision: core.model().revision_of(&key),
        key: Some(core.model().name_of(&key)),
        last_session: core.peer(session).and_then(|record| record.ended.clone()),
        problem: core.peer_problem(session).map(str::to_owned),
        status: problems_about(core, &Subject::Peer(session.to_owned())),
    }
}

/// Returns code and text of the problems that the host checks found for a subject.
fn problems_about(core: &CoreView<'_>, subject: &Subject) -> Vec<(String, String)> {
    let found = core.host_problems().iter().filter(|problem| problem.about == *subject);
    found.map(|problem| (problem.code.clone(), problem.text.clone())).collect()
}

/// Explains the state of a session.
pub(in crate::agent) async fn why_peer(server: &Server, name: String) -> Result<Why, ApiError> {
    let intent = server.handle().sessions().await?;
    let session = match bgp::session_named(&intent, &name) {
        Ok(session) => session.clone(),
        Err(error) if error.code == "not-found" => return why_no_peer(server, name, error).await,
        Err(error) => return Err(error),
    };
    let Some(wanted) = intent.peers.get(&session).cloned() else { return Err(unknown(&name)) };
    let (of, peer_intent) = (session.clone(), wanted.clone());
    let side = server.handle().core().ask(move |core| core_evidence(core, &of, &peer_intent)).await?;
    let of = session.clone();
    let both = move |view: &SpeakerView<'_>| (view.peer(&of), view.bfd_of(&of));
    let (status, bfd) = server.handle().speaker().ask(both).await?;
    let Some(shown) = bgp::peer(&session, &intent, status.as_ref(), bfd.as_ref()) else {
        return Err(unknown(&name));
    };
    let at = status.as_ref().map_or(wanted.remote, |status| status.remote);
    let up = shown.state == State::Established.as_str();
    let path = link_path(server.handle(), ScopedAddr::of(at)).await;
    let host = (!wanted.is_router() && wanted.range.is_none()).then(|| wanted.name.clone());
    let remote = match &host {
        Some(host) => read_remote_status(server.store(), host).await,
        None => peer::RemoteStatus::Router,
    };
    let blocks = match &host {
        Some(host) if !up => read_blocks(server, host).await,
        _ => None,
    };
    let down = status.as_ref().and_then(|s| s.last_down.as_ref());
    let evidence = peer::PeerEvidence {
        key: side.key,
        revision: side.key_revision,
        attempts: peer::Attempts {
            failed: status.as_ref().map_or(0, |s| s.failed_attempts),
            next: status.as_ref().and_then(|s| s.next_attempt),
            connects: wanted.dial_after.is_some() && wanted.shutdown.is_none(),
            from: wanted.local,
            refused: status.as_ref().and_then(|s| s.refused),
        },
        notification: down.and_then(|(down, _)| down.notification),
        down: side.last_session.as_ref().and_then(|last| seconds_since(&last.time)),
        last_session: side.last_session,
        protection: peer::TcpProtection {
            key: match (&wanted.tcp_ao, &wanted.password) {
                (Some(_), _) => Some("TCP-AO (RFC 5925)"),
                (None, Some(_)) => Some("TCP MD5 (RFC 2385)"),
                (None, None) => None,
            },
            hops: wanted.ttl_security,
        },
        local_as: status.as_ref().map_or(wanted.local_asn.unwrap_or(intent.asn), |s| s.local_asn),
        max_prefixes: wanted.max_prefixes.as_ref().and_then(|max| max.limit),
        problem: side.problem,
        path,
        remote,
        blocks,
        status: side.status,
        dropped: if up { TcpDropped::default() } else { TcpDropped::read() },
        peer: shown,
    };
    Ok(peer::answer(empty(server, "WhyPeer", side.revision, session), &evidence))
}

/// Explains the absence of a session with an address or host.
async fn why_no_peer(server: &Server, name: String, error: ApiError) -> Result<Why, ApiError> {
    let queried = name.clone();
    let found = server
        .handle()
        .core()
        .ask(move |core| {
            let model = core.model();
            let host = model.host(&queried);
            let addr = queried.parse().ok().or_else(|| host?.addrs().next());
            let steps = addr.map(|addr| routing::explain_peer(model, core.node_options(), addr).1);
            (core.revision(), addr, host.is_some(), steps)
        })
        .await?;
    let (revision, addr, is_host, steps) = found;
    // A host without an address in the store can have no session.
    let (Some(steps), Some(addr)) = (steps, addr) else {
        if !is_host {
            return Err(error);
        }
        let mut why = empty(server, "WhyPeer", revision, name.clone());
        why.answer =
            format!("no session with {name} is configured: the host has no BGP address in the store");
        why.code = "host-without-address".to_owned();
        why.fix = vec![format!("start its agent, or write /calico/bgp/v1/host/{name}/ip_addr_v4")];
        return Ok(why);
    };
    let mut why = empty(server, "WhyPeer", revision, name.clone());
    let texts: Vec<&str> = steps.iter().map(|step| step.text.as_str()).collect();
    let called = if is_host { format!("{name} ({addr})") } else { name };
    why.answer = format!("no session with {called} is configured on this host");
    why.code = "not-wanted".to_owned();
    why.conclusion = Some(texts.join("; "));
    let step = |step: &routing::Step| Step::new(Verdict::Stop, step.name, step.text.clone());
    why.steps = steps.iter().map(step).collect();
    why.fix = vec!["tortie bgp peers".to_owned()];
    why.not_looked_at = vec!["ranges of dynamic peers (tortie bgp ranges)".to_owned()];
    Ok(why)
}

fn empty(server: &Server, kind: &str, revision: u64, subject: impl Into<String>) -> Why {
    Why::new(kind, server.node(), revision, now_text(), subject)
}

/// Returns the path to an address as the kernel thread resolves it, with the kernel's neighbour entry.
async fn link_path(handle: &Handle, addr: ScopedAddr) -> peer::Path {
    enum LinkPath {
        Off,
        Own,
        None,
        Via(String, tortie_kernel::LinkView, u32, Option<IpAddr>),
    }
    let look = move |view: &KernelView<'_>| {
        if view.mode() == Mode::Off {
            return LinkPath::Off;
        }
        if view.is_local(addr.addr()) {
            return LinkPath::Own;
        }
        let found = view.covering(addr).and_then(|covering| {
            let link = view.link(covering.resolved.ifindex)?;
            let by = tortie_kernel::protocol_name(covering.protocol);
            let route = format!("route {} of protocol {by}", covering.prefix);
            Some(LinkPath::Via(route, link, covering.resolved.ifindex, covering.resolved.gateway))
        });
        found.unwrap_or(LinkPath::None)
    };
    match handle.kernel().ask(look).await {
        Err(_) => peer::Path::NotChecked("the kernel thread is busy"),
        Ok(LinkPath::Off) => peer::Path::NotChecked("--kernel off"),
        Ok(LinkPath::Own) => peer::Path::Own,
        Ok(LinkPath::None) => peer::Path::None,
        Ok(LinkPath::Via(route, link, ifindex, gateway)) => {
            let next = gateway.unwrap_or(addr.addr());
            let found = tokio::task::spawn_blocking(move || tortie_kernel::neighbour(ifindex, next)).await;
            let neighbour = found.ok().and_then(Result::ok).flatten();
            peer::Path::Via {
                interface: link.name,
                up: link.carries,
                mtu: link.mtu,
                gateway,
                route,
                neighbour,
            }
        }
    }
}

/// Reads the status key of a host.
async fn read_remote_status(store: &dyn Store, host: &str) -> peer::RemoteStatus {
    let key = Key::TortieStatus { host: host.to_owned() }.to_string();
    let prefixes = [key.clone()];
    let found = match tokio::time::timeout(STORE_TIMEOUT, store.list(&prefixes)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return peer::RemoteStatus::ReadFailed(error.to_string()),
        Err(_) => return peer::RemoteStatus::ReadFailed("the store does not answer".to_owned()),
    };
    // The key of `h1` is a prefix of the key of `h10`.
    let Some(kv) = found.entries.iter().find(|kv| kv.key == key) else { return peer::RemoteStatus::Absent };
    remote_status(kv)
}

/// Returns the blocks of a host, and true for those that a route leads to.
async fn read_blocks(server: &Server, host: &str) -> Option<Vec<(Cidr, bool)>> {
    let prefixes = [prefix::affinities_of(host)];
    let found = tokio::time::timeout(STORE_TIMEOUT, server.store().list(&prefixes)).await.ok()?.ok()?;
    let block = |key: &str| match key.parse::<Key>().ok()? {
        Key::Affinity { block, .. } => Some(block),
        _ => None,
    };
    let blocks: Vec<Cidr> = found.entries.iter().filter_map(|kv| block(&kv.key)).take(BLOCKS_MAX).collect();
    let there = |view: &SpeakerView<'_>, block: Cidr| {
        let question = TableQuery { table: RouteTable::Loc, matching: RouteMatch::Exact(block) };
        view.routes(question, None, 1).iter().any(|info| info.paths.iter().any(|path| path.best))
    };
    server
        .handle()
        .speaker()
        .ask(move |view| blocks.into_iter().map(|block| (block, there(view, block))).collect())
        .await
        .ok()
}

/// Explains the use of a prefix, or with `to` its announcement to that peer.
pub(in crate::agent) async fn why_route(
    server: &Server,
    queried: String,
    to: Option<String>,
) -> Result<Why, ApiError> {
    let intent = server.handle().sessions().await?;
    let addr = queried.parse::<IpAddr>().ok();
    let matching = match addr {
        Some(addr) => RouteMatch::Longest(addr),
        None => RouteMatch::Exact(queried.parse::<Cidr>().map_err(|e| invalid(e.to_string()))?),
    };
    let exact = match matching {
        RouteMatch::Exact(prefix) => prefix,
        _ => addr.map(Cidr::host).ok_or_else(|| invalid(format!("`{queried}` is not an address")))?,
    };
    match to {
        Some(to) => {
            let session = bgp::session_named(&intent, &to)?.clone();
            why_export(server, &intent, matching, exact, session).await
        }
        None => why_used(server, &intent, queried, addr, matching, exact).await,
    }
}

async fn why_export(
    server: &Server,
    intent: &RoutingIntent,
    matching: RouteMatch,
    exact: Cidr,
    session: String,
) -> Result<Why, ApiError> {
    let of = session.clone();
    let of_prefix = move |view: &SpeakerView<'_>| {
        let found = view.routes(TableQuery { table: RouteTable::Loc, matching }, None, 1).pop();
        let prefix = found.as_ref().map_or(exact, |info| info.prefix);
        let out = view
            .peer_id(&of)
            .map(RouteTable::AdjOut)
            .map(|table| view.routes(TableQuery { table, matching: RouteMatch::Exact(prefix) }, None, 1));
        (found, prefix, view.explain_export(&of, prefix), out.unwrap_or_default(), view.peer(&of))
    };
    let (found, prefix, trace, out, status) = server.handle().speaker().ask(of_prefix).await?;
    let origin = server.handle().core().ask(move |core| PrefixOrigin::of(core, prefix)).await?;
    let peer = bgp::peer(&session, intent, status.as_ref(), None).ok_or_else(|| unknown(&session))?;
    let (steps, announced) = match trace {
        Some(trace) => (trace.steps, trace.announced.is_some()),
        None => {
            let verdict = "the BGP speaker has not been given it yet".to_owned();
            (vec![ExportStep { step: "session", pass: false, verdict }], false)
        }
    };
    let sent = out.first().and_then(|info| info.paths.first()).map(|path| {
        let a = &path.attributes;
        let way = a.as_path.to_string();
        let way = if way.is_empty() { "empty AS path".to_owned() } else { format!("AS path {way}") };
        format!("next hop {}, {way}", a.next_hop)
    });
    // The only address that the peer certainly reaches is the local address of the session.
    let own = status.as_ref().and_then(|status| status.session.as_ref());
    let own = own.map(|session| session.local.ip().to_canonical());
    let other_next_hop = out
        .first()
        .and_then(|info| info.paths.first())
        .map(|path| path.attributes.next_hop)
        .filter(|hop| own.is_some_and(|own| own != hop.addr()));
    let evidence = export::ExportEvidence {
        prefix: prefix.to_string(),
        other_next_hop: other_next_hop.map(|hop| hop.to_string()),
        peer,
        route: found.as_ref().map(|info| bgp::route(info, intent)),
        trace: steps,
        announced,
        present: !out.is_empty(),
        sent,
        origin,
    };
    let subject = format!("{prefix} -> {session}");
    Ok(export::answer(empty(server, "WhyRoute", evidence.origin.revision, subject), &evidence))
}

async fn why_used(
    server: &Server,
    intent: &RoutingIntent,
    queried: String,
    addr: Option<IpAddr>,
    matching: RouteMatch,
    exact: Cidr,
) -> Result<Why, ApiError> {
    let in_speaker = move |view: &SpeakerView<'_>| PrefixInSpeaker::of(view, matching, exact);
    let PrefixInSpeaker { route, recipients, refusals, malformed } =
        server.handle().speaker().ask(in_speaker).await?;
    let prefix = route.as_ref().map_or(exact, |info| info.prefix);
    let (origin, kernel) = tokio::join!(
        server.handle().core().ask(move |core| PrefixOrigin::of(core, prefix)),
        server.handle().kernel().ask(move |view| kernel_evidence(view, &prefix, addr)),
    );
    let (origin, kernel) = (origin?, kernel.ok().flatten());
    let name = |session: String| intent.peers.get(&session).map_or(session, |peer| peer.name.clone());
    let evidence = route::RouteEvidence {
        queried,
        prefix: prefix.to_string(),
        route: route.as_ref().map(|info| bgp::route(info, intent)),
        refused: refusals.into_iter().map(|(session, steps)| (name(session), steps)).collect(),
        kernel,
        recipients: recipients
            .into_iter()
            .map(|one| route::Recipient { name: name(one.name), ..one })
            .collect(),
        malformed: malformed
            .into_iter()
            .filter_map(|session| {
                let status = session.1;
                let shown = bgp::peer(&session.0, intent, Some(&status), None)?;
                Some((shown.name, shown.last_message_error?))
            })
            .collect(),
        origin,
    };
    let subject = evidence.prefix.clone();
    Ok(route::answer(empty(server, "WhyRoute", evidence.origin.revision, subject), &evidence))
}

/// The speaker's part of a prefix's evidence.
struct PrefixInSpeaker {
    route: Option<RouteInfo>,
    /// Peers, and the result of the export to each.
    recipients: Vec<route::Recipient>,
    /// Peers whose path import policy rejects, with the evaluated steps.
    refusals: Vec<(String, Vec<ExportStep>)>,
    /// Peers that sent malformed UPDATEs with the prefix.
    malformed: Vec<(String, tortie_bgp::PeerStatus)>,
}

impl PrefixInSpeaker {
    fn of(view: &SpeakerView<'_>, matching: RouteMatch, exact: Cidr) -> Self {
        let found = view.routes(TableQuery { table: RouteTable::Loc, matching }, None, 1).pop();
        let prefix = found.as_ref().map_or(exact, |info| info.prefix);
        let filtered = found.iter().flat_map(|info| &info.paths).filter_map(|path| {
            match (&path.source, path.unusable) {
                (tortie_bgp::PathSource::Peer { name, .. }, Some(Unusable::Filtered(_))) => {
                    Some(name.to_string())
                }
                _ => None,
            }
        });
        let refusals = filtered
            .filter_map(|session| Some((session.clone(), view.explain_import(&session, prefix)?.steps)))
            .collect();
        let mut recipients = Vec::new();
        let mut malformed = Vec::new();
        for status in view.peers() {
            if status.state == State::Established
                && found.as_ref().is_some_and(|info| info.paths.iter().any(|path| path.best))
                && let Some(trace) = view.explain_export(&status.name, prefix)
            {
                let announced = trace.announced.is_some();
                // The last evaluated step decided; the size check follows only after acceptance.
                let last = trace.steps.iter().rfind(|step| step.step != "size" || !step.pass);
                let (step, text) =
                    last.map_or((String::new(), String::new()), |s| (s.step.to_owned(), s.verdict.clone()));
                recipients.push(route::Recipient { name: status.name.to_string(), announced, step, text });
            }
            let wrong = status.last_error.as_ref().is_some_and(|error| {
                matches!(error.kind, tortie_bgp::LastErrorKind::Withdrawn)
                    && nlri_contains(&error.message, &prefix)
            });
            if wrong {
                malformed.push((status.name.to_string(), status));
            }
        }
        Self { route: found, recipients, refusals, malformed }
    }
}

/// True if the octets of an UPDATE contain a prefix as NLRI: its length and its significant octets (RFC 4271,
/// section 4.3). Other octets may match a short prefix by chance, so short prefixes never count as contained.
fn nlri_contains(message: &[u8], prefix: &Cidr) -> bool {
    let octets = match prefix.addr() {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    };
    let mut wanted = vec![prefix.len()];
    wanted.extend(octets.into_iter().take(usize::from(prefix.len().div_ceil(8))));
    wanted.len() >= 4 && message.windows(wanted.len()).any(|window| window == wanted)
}

fn kernel_evidence(
    view: &KernelView<'_>,
    prefix: &Cidr,
    addr: Option<IpAddr>,
) -> Option<route::KernelEvidence> {
    (view.mode() != Mode::Off).then(|| route::KernelEvidence {
        row: view.route(prefix).map(|state| row(view, &state)),
        decided: view.explain_route(prefix),
        foreign: view.foreign_at(prefix),
        metric: view.metric(),
        lookup: addr.map(|addr| kernel_get(view, addr.into()).1),
    })
}

/// Parses a status key; absent fields are zero.
fn remote_status(kv: &KeyValue) -> peer::RemoteStatus {
    let status = NodeStatus::read(kv).filter(|status| !status.time.is_empty() || !status.version.is_empty());
    let Some(status) = status else {
        return peer::RemoteStatus::ReadFailed("its value cannot be parsed".to_owned());
    };
    peer::RemoteStatus::Key {
        seconds: seconds_since(&status.time),
        written: status.time,
        ready: status.ready,
        up: status.sessions.up,
        of: status.sessions.of,
        version: if status.version.is_empty() { "unknown".to_owned() } else { status.version },
    }
}

/// Returns the seconds since a time; `None` if it cannot be parsed.
fn seconds_since(time: &str) -> Option<u64> {
    let ago = Timestamp::now().duration_since(time.parse::<Timestamp>().ok()?);
    Some(u64::try_from(ago.as_secs()).unwrap_or_default())
}

fn invalid(text: String) -> ApiError {
    ApiError { code: "invalid".to_owned(), text }
}

fn unknown(name: &str) -> ApiError {
    ApiError {
        code: "not-found".to_owned(),
        text: format!("no peer `{name}` is configured on this host: `tortie bgp peers` lists the peers"),
    }
}
