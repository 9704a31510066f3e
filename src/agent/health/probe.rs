//! The look around, each 10 s on the io threads: the host's surroundings, peers that do not take what they are sent, peers
//! near their limit of prefixes. What was found goes to the core when it is another than before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_bgp::PeerStatus;

use crate::agent::handle::Handle;
use crate::agent::health::host_checks::{Role, Surroundings, judge};
use crate::api::policy::endpoint_name;
use crate::api::status::{Problem, Subject};
use crate::api::{codes, span};
use crate::speaker::SpeakerView;
use tortie_engine::routing::RoutingIntent;
use tortie_kernel::{KernelView, Mode};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// Before the first one: threads start and routes come.
const FIRST: Duration = Duration::from_secs(2);
/// What was seen once is told for this long.
const LATELY: Duration = Duration::from_secs(600);
/// A peer that takes nothing for this long is slow.
const SLOW: Duration = Duration::from_secs(30);
/// A peer that was not given everything for this long is slow, too.
const BEHIND: Duration = Duration::from_secs(120);
/// Peers whose way out is looked for.
const WAYS: usize = 256;
/// The share of a limit that is near, in percent, where the peer's value says nothing.
const NEAR: u64 = 75;
/// Cease, Maximum Number of Prefixes Reached (RFC 4486).
const TOO_MANY: (u8, u8) = (6, 1);

/// Starts the task; it ends with the runtime.
pub(in crate::agent) fn start(
    io: &tokio::runtime::Handle,
    handle: Arc<Handle>,
    report: impl Fn(Vec<Problem>) + Send + 'static,
    low_port: bool,
) {
    io.spawn(async move {
        let mut lookout = Lookout::default();
        let mut told = Vec::new();
        tokio::time::sleep(FIRST).await;
        loop {
            let found = lookout.look(&handle, low_port).await;
            if found != told {
                told.clone_from(&found);
                report(found);
            }
            tokio::time::sleep(EVERY).await;
        }
    });
}

#[derive(Debug, Default)]
struct Lookout {
    before: Option<Surroundings>,
    /// What was seen and is no more, and until when it is told.
    lately: BTreeMap<String, (Problem, Instant)>,
    queues: Queues,
}

/// What the kernel thread knows of the ways out.
#[derive(Debug, Default)]
struct Ways {
    links: Vec<(String, u32, bool)>,
    uplinks: BTreeSet<String>,
    workloads: Vec<(String, String)>,
    programs: bool,
}

impl Lookout {
    async fn look(&mut self, handle: &Handle, low_port: bool) -> Vec<Problem> {
        let Some(intent) = handle.newest_intent() else { return Vec::new() };
        let peers: Vec<_> = intent.peers.values().map(|peer| peer.remote.ip()).take(WAYS).collect();
        let ways = handle.kernel().ask(move |view| ways(view, &peers)).await.unwrap_or_default();
        let role = role(&intent, &ways, low_port);
        let now =
            tokio::task::spawn_blocking(move || Surroundings::read(ways.links)).await.unwrap_or_default();
        let mut found = judge(&now, self.before.as_ref(), &role);
        self.before = Some(now);
        if let Ok(peers) = handle.speaker().ask(peers_of).await {
            let at = Instant::now();
            found.extend(self.queues.look(&peers, at));
            found.extend(peers.iter().filter_map(|peer| limit(peer, &intent)));
        }
        self.keep(&mut found, Instant::now());
        found
    }

    /// A jump or a drop is seen once; people look later.
    fn keep(&mut self, found: &mut Vec<Problem>, now: Instant) {
        self.lately.retain(|_, (_, until)| *until > now);
        for problem in
            found.iter().filter(|p| p.code == codes::CLOCK_JUMP.name || p.code == codes::CONNTRACK_FULL.name)
        {
            self.lately.insert(problem.code.clone(), (problem.clone(), now + LATELY));
        }
        for (code, (problem, _)) in &self.lately {
            if found.iter().all(|p| p.code != *code) {
                found.push(problem.clone());
            }
        }
    }
}

fn ways(view: &KernelView<'_>, peers: &[std::net::IpAddr]) -> Ways {
    if view.mode() == Mode::Off {
        return Ways::default();
    }
    let uplink = |addr: &std::net::IpAddr| view.resolve(*addr).and_then(|r| view.interface(r.ifindex));
    Ways {
        links: view.links(),
        uplinks: peers.iter().filter_map(uplink).filter(|name| *name != "lo").map(str::to_owned).collect(),
        workloads: view.endpoints().map(|e| (endpoint_name(&e.key), e.interface)).collect(),
        programs: view.mode() == Mode::Program,
    }
}

fn role(intent: &RoutingIntent, ways: &Ways, low_port: bool) -> Role {
    let routed = |v4: bool| intent.originated.keys().any(|prefix| prefix.is_v4() == v4);
    Role {
        programs: ways.programs,
        low_port: low_port || intent.listen.iter().any(is_low),
        routes: [routed(true), routed(false)],
        uplinks: ways.uplinks.clone(),
        tunnel: intent.tunnel.as_ref().map(|_| "tunl0".to_owned()),
        workloads: ways.workloads.clone(),
    }
}

/// A port that needs a capability.
pub(in crate::agent) fn is_low(addr: &SocketAddr) -> bool {
    (1..1024).contains(&addr.port())
}

/// What matters of a peer here.
#[derive(Debug, Clone, Default)]
struct Queue {
    session: String,
    up: bool,
    /// Something waits for it, here or in its TCP.
    waits: bool,
    /// It was given everything that there is.
    told: bool,
    updates: u64,
    /// Routes that it announces, of the family with most.
    received: u32,
    /// It went over its limit.
    over: bool,
}

fn peers_of(view: &SpeakerView<'_>) -> Vec<Queue> {
    let one = |peer: &PeerStatus| {
        let up = peer.state == tortie_bgp::State::Established;
        Queue {
            session: peer.name.to_string(),
            up,
            waits: up && !view.has_taken_all(&peer.name),
            told: peer.up_to_date,
            updates: peer.sent.update,
            received: peer.families.iter().map(|f| f.received).max().unwrap_or_default(),
            over: !up && peer.last_down.as_ref().is_some_and(|(down, _)| down.notification == Some(TOO_MANY)),
        }
    };
    view.peers().iter().map(one).collect()
}

/// Since when something waits for a peer.
#[derive(Debug, Default)]
struct Queues(BTreeMap<String, Waiting>);

#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Something waits since.
    since: Instant,
    /// Nothing moves since.
    stuck: Instant,
    updates: u64,
}

impl Queues {
    fn look(&mut self, peers: &[Queue], now: Instant) -> Vec<Problem> {
        let mut waiting = BTreeMap::new();
        let mut slow = Vec::new();
        for peer in peers.iter().filter(|peer| peer.waits) {
            let fresh = Waiting { since: now, stuck: now, updates: peer.updates };
            let mut known = self.0.get(&peer.session).copied().unwrap_or(fresh);
            if known.updates != peer.updates {
                known = Waiting { stuck: now, updates: peer.updates, ..known };
            }
            let (stuck, behind) =
                (now.saturating_duration_since(known.stuck), now.saturating_duration_since(known.since));
            if stuck > SLOW || (!peer.told && behind > BEHIND) {
                let text = if stuck > SLOW {
                    format!("takes nothing of what waits for it for {}", span(stuck.as_secs()))
                } else {
                    format!("is behind for {}: it takes less than there is to tell", span(behind.as_secs()))
                };
                slow.push(
                    codes::SLOW_PEER
                        .problem(&peer.session, format!("peer {}", peer.session), text)
                        .about(Subject::Peer(peer.session.clone())),
                );
            }
            waiting.insert(peer.session.clone(), known);
        }
        self.0 = waiting;
        slow
    }
}

fn limit(peer: &Queue, intent: &RoutingIntent) -> Option<Problem> {
    let wanted = intent.peers.get(&peer.session)?;
    let limits = wanted.max_prefixes.as_ref()?;
    let max = limits.limit?;
    let text = if peer.over {
        format!(
            "announced more than its max_prefixes of {max}, so the session was ended; it is left alone for a while, then \
             tried again"
        )
    } else {
        let warn = limits.warn.map_or(NEAR, u64::from);
        if !peer.up || warn == 0 || u64::from(peer.received) * 100 < u64::from(max) * warn {
            return None;
        }
        format!(
            "announces {} prefixes, and its max_prefixes is {max}: one more than that ends the session",
            peer.received
        )
    };
    let subject = format!("peer {} ({})", wanted.name, wanted.remote.ip());
    let problem = codes::PREFIX_LIMIT.problem(&peer.session, subject, text);
    Some(problem.about(Subject::Peer(peer.session.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(updates: u64, waits: bool) -> Queue {
        Queue { session: "Mesh_1".to_owned(), up: true, waits, told: true, updates, ..Queue::default() }
    }

    #[test]
    fn a_peer_is_slow_when_nothing_moves_for_half_a_minute() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        let mut look =
            |after: u64, peer: Queue| queues.look(&[peer], start + Duration::from_secs(after)).len();
        assert_eq!(look(0, peer(1, true)), 0);
        assert_eq!(look(30, peer(1, true)), 0);
        assert_eq!(look(31, peer(1, true)), 1);
        // It moves.
        assert_eq!(look(40, peer(2, true)), 0);
        assert_eq!(look(70, peer(3, true)), 0);
        // It has all: what comes later counts anew.
        assert_eq!(look(80, peer(3, false)), 0);
        assert_eq!(look(90, peer(3, true)), 0);
        assert_eq!(look(121, peer(3, true)), 1);
    }

    #[test]
    fn a_peer_that_never_has_all_is_behind() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        let mut found = Vec::new();
        for turn in 0..14 {
            let peer = Queue { told: false, ..peer(turn, true) };
            found = queues.look(&[peer], start + Duration::from_secs(turn * 10));
        }
        assert!(found[0].text.contains("is behind for 2m10s"), "{found:?}");
    }

    #[test]
    fn what_was_seen_once_is_told_for_a_while() {
        let (mut lookout, start) = (Lookout::default(), Instant::now());
        let mut found = vec![codes::CLOCK_JUMP.problem("", "clock", "set")];
        lookout.keep(&mut found, start);
        assert_eq!(found.len(), 1);
        let mut later = Vec::new();
        lookout.keep(&mut later, start + Duration::from_secs(599));
        assert_eq!(later, found);
        let mut late = Vec::new();
        lookout.keep(&mut late, start + LATELY);
        assert!(late.is_empty());
    }
}
