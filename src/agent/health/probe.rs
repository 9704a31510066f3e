//! Periodic health probe, every 10 s on the I/O threads: host checks, slow peers, and peers near their prefix
//! limit.
//!
//! Changed problems are sent to the core.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_bgp::PeerStatus;
use tortie_config::counted;
use tortie_config::key::EndpointKey;

use crate::agent::handle::Handle;
use crate::api::problem::{Problem, Subject};
use crate::api::{codes, span};
use crate::host_checks::{self, Disk, HostSnapshot, Role};
use crate::speaker::SpeakerView;
use tortie_engine::routing::RoutingIntent;
use tortie_kernel::{KernelView, Mode};

/// Interval of probes.
const INTERVAL: Duration = Duration::from_secs(10);
/// Delay of the first probe, while threads start and routes arrive.
const START_DELAY: Duration = Duration::from_secs(2);
/// Time for which an event (a clock jump, dropped connections) is shown.
const SHOWN_FOR: Duration = Duration::from_secs(600);
/// A peer that accepts no data for this time is slow.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// A peer whose updates are incomplete for this time is slow, too.
const BEHIND_AFTER: Duration = Duration::from_secs(120);
/// Maximum number of peers whose uplinks are looked up.
const PEERS_MAX: usize = 256;
/// Default warning threshold in percent of a peer's prefix limit.
const WARN_PERCENT: u64 = 75;
/// Code and subcode of Cease, Maximum Number of Prefixes Reached (RFC 4486).
const MAX_PREFIXES_REACHED: (u8, u8) = (6, 1);

/// Starts the probe; the task ends with the runtime.
pub(in crate::agent) fn start(
    io: &tokio::runtime::Handle,
    handle: Arc<Handle>,
    report: impl Fn(Vec<Problem>) + Send + 'static,
    low_port: bool,
    files: Vec<(&'static str, PathBuf)>,
) {
    io.spawn(async move {
        let mut probe = HealthProbe { files, ..HealthProbe::default() };
        let mut reported = Vec::new();
        tokio::time::sleep(START_DELAY).await;
        loop {
            let found = probe.run(&handle, low_port).await;
            if found != reported {
                reported.clone_from(&found);
                report(found);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    });
}

#[derive(Debug, Default)]
struct HealthProbe {
    before: Option<HostSnapshot>,
    /// Past events by code, each with the time until which it is shown.
    recent: BTreeMap<String, (Problem, Instant)>,
    queues: PeerQueues,
    /// Files that the agent writes, besides the log.
    files: Vec<(&'static str, PathBuf)>,
}

/// Interfaces according to the kernel thread.
#[derive(Debug, Default)]
struct KernelInterfaces {
    links: Vec<(String, u32, bool)>,
    uplinks: BTreeSet<String>,
    workloads: Vec<(EndpointKey, String)>,
    programs: bool,
}

impl HealthProbe {
    async fn run(&mut self, handle: &Handle, low_port: bool) -> Vec<Problem> {
        let Some(intent) = handle.newest_intent() else { return Vec::new() };
        let peers: Vec<_> = intent.peers.values().map(|peer| peer.remote.ip()).take(PEERS_MAX).collect();
        let interfaces =
            handle.kernel().ask(move |view| read_interfaces(view, &peers)).await.unwrap_or_default();
        let keys = interfaces.workloads.clone();
        let named = handle.core().ask(move |core| {
            let name =
                |(key, interface): (EndpointKey, String)| (core.model().name_of_endpoint(&key), interface);
            keys.into_iter().map(name).collect()
        });
        let role = role(&intent, &interfaces, named.await.unwrap_or_default(), low_port);
        let mut files = self.files.clone();
        let log = handle.core().ask(|core| core.model().settings().log_file_path.clone()).await;
        files.extend(log.ok().flatten().map(|path| ("the log", path)));
        let read = move || HostSnapshot {
            disks: files.iter().filter_map(|(what, path)| Disk::read(what, path)).collect(),
            ..HostSnapshot::read(interfaces.links)
        };
        let now = tokio::task::spawn_blocking(read).await.unwrap_or_default();
        let mut found = host_checks::problems(&now, self.before.as_ref(), &role);
        self.before = Some(now);
        if let Ok(peers) = handle.speaker().ask(peer_queues).await {
            let at = Instant::now();
            found.extend(self.queues.update(&peers, at));
            found.extend(peers.iter().filter_map(|peer| prefix_limit(peer, &intent)));
        }
        self.keep_recent(&mut found, Instant::now());
        found
    }

    /// Keeps events visible, since a clock jump or a drop happens once and operators look later.
    fn keep_recent(&mut self, found: &mut Vec<Problem>, now: Instant) {
        self.recent.retain(|_, (_, until)| *until > now);
        for problem in
            found.iter().filter(|p| p.code == codes::CLOCK_JUMP.name || p.code == codes::CONNTRACK_FULL.name)
        {
            self.recent.insert(problem.code.clone(), (problem.clone(), now + SHOWN_FOR));
        }
        for (code, (problem, _)) in &self.recent {
            if found.iter().all(|p| p.code != *code) {
                found.push(problem.clone());
            }
        }
    }
}

fn read_interfaces(view: &KernelView<'_>, peers: &[std::net::IpAddr]) -> KernelInterfaces {
    if view.mode() == Mode::Off {
        return KernelInterfaces::default();
    }
    let uplink = |addr: &std::net::IpAddr| view.resolve(*addr).and_then(|r| view.interface(r.ifindex));
    KernelInterfaces {
        links: view.links(),
        uplinks: peers.iter().filter_map(uplink).filter(|name| *name != "lo").map(str::to_owned).collect(),
        workloads: view.endpoints().map(|e| (e.key, e.interface)).collect(),
        programs: view.mode() == Mode::Program,
    }
}

fn role(
    intent: &RoutingIntent,
    interfaces: &KernelInterfaces,
    workloads: Vec<(String, String)>,
    low_port: bool,
) -> Role {
    let routed = |v4: bool| intent.originated.keys().any(|prefix| prefix.is_v4() == v4);
    Role {
        programs: interfaces.programs,
        low_port: low_port || intent.listen.iter().any(is_low),
        routes: [routed(true), routed(false)],
        uplinks: interfaces.uplinks.clone(),
        tunnels: [
            intent.tunnel.as_ref().map(|_| "tunl0"),
            intent.vxlan.v4.as_ref().map(|_| tortie_kernel::vxlan_device(true)),
            intent.vxlan.v6.as_ref().map(|_| tortie_kernel::vxlan_device(false)),
        ]
        .into_iter()
        .flatten()
        .collect(),
        workloads,
        pools: intent.view.pools.iter().map(|pool| pool.cidr).collect(),
    }
}

/// True for a port that needs a capability to listen on.
pub(in crate::agent) fn is_low(addr: &SocketAddr) -> bool {
    (1..1024).contains(&addr.port())
}

/// Send queue and prefix limit of one peer.
#[derive(Debug, Clone, Default)]
struct PeerQueue {
    session: String,
    up: bool,
    /// True if data waits for the peer, in the agent or in its TCP socket.
    pending: bool,
    /// True if the peer was sent all routes.
    up_to_date: bool,
    updates: u64,
    /// Number of routes that the peer announces, for the family with the most.
    received: u32,
    /// True if the peer exceeded its limit.
    over_limit: bool,
}

fn peer_queues(view: &SpeakerView<'_>) -> Vec<PeerQueue> {
    let one = |peer: &PeerStatus| {
        let up = peer.state == tortie_bgp::State::Established;
        PeerQueue {
            session: peer.name.to_string(),
            up,
            pending: up && !view.has_taken_all(&peer.name),
            up_to_date: peer.up_to_date,
            updates: peer.sent.update,
            received: peer.families.iter().map(|f| f.received).max().unwrap_or_default(),
            over_limit: !up
                && peer
                    .last_down
                    .as_ref()
                    .is_some_and(|(down, _)| down.notification == Some(MAX_PREFIXES_REACHED)),
        }
    };
    view.peers().iter().map(one).collect()
}

/// Peers with waiting data, by session.
#[derive(Debug, Default)]
struct PeerQueues(BTreeMap<String, Waiting>);

#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Time since which data waits.
    since: Instant,
    /// Time since which no data was sent.
    stuck: Instant,
    updates: u64,
}

impl PeerQueues {
    fn update(&mut self, peers: &[PeerQueue], now: Instant) -> Vec<Problem> {
        let mut waiting = BTreeMap::new();
        let mut slow = Vec::new();
        for peer in peers.iter().filter(|peer| peer.pending) {
            let fresh = Waiting { since: now, stuck: now, updates: peer.updates };
            let mut entry = self.0.get(&peer.session).copied().unwrap_or(fresh);
            if entry.updates != peer.updates {
                entry = Waiting { stuck: now, updates: peer.updates, ..entry };
            }
            let (stuck, behind) =
                (now.saturating_duration_since(entry.stuck), now.saturating_duration_since(entry.since));
            if stuck > STUCK_AFTER || (!peer.up_to_date && behind > BEHIND_AFTER) {
                let text = if stuck > STUCK_AFTER {
                    format!("has not read its queue for {}", span(stuck.as_secs()))
                } else {
                    format!(
                        "has been behind for {}: it reads more slowly than routes change",
                        span(behind.as_secs())
                    )
                };
                slow.push(
                    codes::SLOW_PEER
                        .problem(&peer.session, format!("peer {}", peer.session), text)
                        .about(Subject::Peer(peer.session.clone())),
                );
            }
            waiting.insert(peer.session.clone(), entry);
        }
        self.0 = waiting;
        slow
    }
}

fn prefix_limit(peer: &PeerQueue, intent: &RoutingIntent) -> Option<Problem> {
    let wanted = intent.peers.get(&peer.session)?;
    let limits = wanted.max_prefixes.as_ref()?;
    let max = limits.limit?;
    let text = if peer.over_limit {
        format!(
            "announced more than its max_prefixes of {max}, so the session was ended; it is set up again \
             after a pause"
        )
    } else {
        let warn = limits.warn.map_or(WARN_PERCENT, u64::from);
        if !peer.up || warn == 0 || u64::from(peer.received) * 100 < u64::from(max) * warn {
            return None;
        }
        format!(
            "announces {}, and its max_prefixes is {max}: one more than that ends the session",
            counted(peer.received, "prefix")
        )
    };
    let subject = format!("peer {} ({})", wanted.name, wanted.remote.ip());
    let problem = codes::PREFIX_LIMIT.problem(&peer.session, subject, text);
    Some(problem.about(Subject::Peer(peer.session.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(updates: u64, pending: bool) -> PeerQueue {
        PeerQueue {
            session: "Mesh_1".to_owned(),
            up: true,
            pending,
            up_to_date: true,
            updates,
            ..PeerQueue::default()
        }
    }

    #[test]
    fn a_peer_is_slow_when_nothing_moves_for_half_a_minute() {
        let (mut queues, start) = (PeerQueues::default(), Instant::now());
        let mut slow =
            |after: u64, peer: PeerQueue| queues.update(&[peer], start + Duration::from_secs(after)).len();
        assert_eq!(slow(0, peer(1, true)), 0);
        assert_eq!(slow(30, peer(1, true)), 0);
        assert_eq!(slow(31, peer(1, true)), 1);
        // Data is sent again.
        assert_eq!(slow(40, peer(2, true)), 0);
        assert_eq!(slow(70, peer(3, true)), 0);
        // All data was sent: later data starts a new measurement.
        assert_eq!(slow(80, peer(3, false)), 0);
        assert_eq!(slow(90, peer(3, true)), 0);
        assert_eq!(slow(121, peer(3, true)), 1);
    }

    #[test]
    fn a_peer_that_never_has_all_is_behind() {
        let (mut queues, start) = (PeerQueues::default(), Instant::now());
        let mut found = Vec::new();
        for round in 0..14 {
            let peer = PeerQueue { up_to_date: false, ..peer(round, true) };
            found = queues.update(&[peer], start + Duration::from_secs(round * 10));
        }
        assert!(found[0].text.contains("has been behind for 2m10s"), "{found:?}");
    }

    #[test]
    fn an_event_is_shown_for_a_while() {
        let (mut probe, start) = (HealthProbe::default(), Instant::now());
        let mut found = vec![codes::CLOCK_JUMP.problem("", "clock", "set")];
        probe.keep_recent(&mut found, start);
        assert_eq!(found.len(), 1);
        let mut later = Vec::new();
        probe.keep_recent(&mut later, start + Duration::from_secs(599));
        assert_eq!(later, found);
        let mut late = Vec::new();
        probe.keep_recent(&mut late, start + SHOWN_FOR);
        assert!(late.is_empty());
    }
}
