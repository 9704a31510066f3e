//! What the core tells when it is asked: copies, made when asked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tortie_bgp::State;
use tortie_config::key::IpFamily;
use tortie_net::Cidr;

use crate::agent::api::status::{CoreFacts, PeerFacts, Traded};
use crate::agent::core::Core;
use crate::agent::health::problems::finding;
use crate::agent::policy_view::endpoint_name;
use crate::api::codes::{self, Kind};
use crate::api::span;
use crate::api::status::{InvalidObject, Problem, Subject};
use tortie_engine::routing::{self, AddressOption, LearnedPath, Note, PeerKind, RoutingIntent};

/// How long other agents of a SQLite store may take to start.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a change by others is told.
const LATELY: Duration = Duration::from_secs(600);

impl Core {
    /// Other hosts of the store that have one of our addresses: the address and the host.
    pub(in crate::agent) fn rivals(&self) -> Vec<(IpAddr, String)> {
        let own = |family, option| match option {
            AddressOption::Given(addr, _) => Some(addr),
            AddressOption::Off => None,
            AddressOption::Stored => self.model.node_addr(family),
        };
        let own = [own(IpFamily::V4, self.node.ip4), own(IpFamily::V6, self.node.ip6)];
        let mut rivals = Vec::new();
        for addr in own.into_iter().flatten() {
            let others = self.model.hosts_by_address(addr).filter(|(host, _)| *host != self.model.node());
            rivals.extend(others.map(|(host, _)| (addr, host.to_owned())));
        }
        rivals
    }

    /// Why the value of this key is not what is in force.
    pub(in crate::agent) fn model_problem(&self, key: &str) -> Option<String> {
        self.model.invalid_keys().find(|p| p.key == key).map(|p| p.error.clone())
    }

    /// A copy of what the core knows, for `status` and metrics.
    pub(in crate::agent) fn facts(&self, now: Instant) -> CoreFacts {
        let intent = self.intent.as_deref();
        let peers = intent.map(|i| self.peer_facts(i, now)).unwrap_or_default();
        let held = |prefix: &Cidr| {
            self.kernel_writes
                && intent.is_some_and(|i| i.blackholes.contains(prefix))
                && !self.blackholes.contains(prefix)
        };
        let announced = intent
            .filter(|_| self.running())
            .map(|i| i.originated.keys().filter(|p| !held(p)).copied().collect())
            .unwrap_or_default();
        CoreFacts {
            revision: self.link.revision,
            store: String::new(),
            connected: self.link.connected,
            away: self.link.away.clone(),
            from_cache: self.link.from_cache,
            frozen: self.frozen.clone(),
            lag: now.saturating_duration_since(self.link.fresh),
            keys: self.keys,
            invalid: self
                .model
                .invalid_keys()
                .map(|p| InvalidObject { key: p.key.clone(), error: p.error.clone(), revision: p.revision })
                .collect(),
            running: self.running(),
            settled: self.settled(),
            stopping: false,
            restart_done: self.restart_done,
            listen: self.listening.iter().map(ToString::to_string).collect(),
            listen_failed: self.listen_failed.iter().map(|(a, e)| (a.to_string(), e.clone())).collect(),
            peers,
            peer_trouble: self.peer_trouble.clone(),
            ranges: Vec::new(),
            announced,
            refused: self.refused.clone(),
            failed_routes: self.failed_routes.iter().map(|(p, e)| (*p, e.clone())).collect(),
            tunnel_trouble: self.tunnel_trouble.clone(),
            tunnel_addr_trouble: self.tunnel_addr_trouble.clone(),
            collected: self.gc.clone(),
            pools: self.pools(),
            duplicates: self.duplicates(),
            unreachable: self.unreachable.iter().copied().collect(),
            surroundings: self.surroundings.clone(),
            versions: self.versions.clone(),
            node: self.model.node().to_owned(),
            traded: Traded::default(),
            rules_trouble: self.enforcement.trouble.clone(),
            log_trouble: None,
            troubles: self
                .troubles
                .iter()
                .map(|(about, texts)| ((*about).to_owned(), texts.clone()))
                .collect(),
            mishap: self.late_mishap(now).map(|(ago, text)| (ago, text.clone())),
            notes: self.notes(now),
            policy: self.policy_status(),
            failed_endpoints: self
                .enforcement
                .failed()
                .iter()
                .map(|(key, why)| (endpoint_name(key), why.clone()))
                .collect(),
        }
    }

    /// Hints at routers, by session; `learned` is what they announce inside pools.
    pub(in crate::agent) fn hints(
        &self,
        learned: &[(String, Vec<LearnedPath>)],
    ) -> BTreeMap<String, Problem> {
        let Some(intent) = &self.intent else { return BTreeMap::new() };
        let hints = routing::import_pools_hints(&self.model, intent, learned);
        hints.iter().map(|(session, n)| ((*session).to_owned(), note(n))).collect()
    }

    fn notes(&self, now: Instant) -> Vec<Problem> {
        let mut notes: Vec<Problem> = self.intent.iter().flat_map(|i| i.notes.iter()).map(note).collect();
        if self.loaded() && self.model.pools().next().is_none() {
            let text = "no workload can get an address: tortie ipam pool create CIDR makes one";
            notes.push(finding(&codes::NO_POOL, "", "addresses", text));
        }
        if let Some((at, objects, first)) = &self.repaired
            && now.saturating_duration_since(*at) < LATELY
        {
            let ago = now.saturating_duration_since(*at).as_secs();
            let text = format!(
                "{objects} changed by somebody else {} ago and put right again, first: {first}",
                span(ago)
            );
            notes.push(finding(&codes::FOREIGN_CHANGES, "", "kernel", text));
        }
        let absent = self.absent_hosts();
        // The others of a lab may be starting too.
        if !absent.is_empty() && now.saturating_duration_since(self.started) > PATIENCE {
            let (shown, more) = absent.split_at(absent.len().min(5));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            let text = format!(
                "no agent of this machine runs as {}{more}, and a SQLite store serves one machine only: etcd for several \
                 (--datastore etcd://HOST:PORT)",
                shown.join(", ")
            );
            notes.push(finding(&codes::SQLITE_SERVES_ONE_MACHINE, "", "store", text));
        }
        notes
    }

    /// Hosts with an address that have no agent on this SQLite store.
    fn absent_hosts(&self) -> Vec<String> {
        let Some(present) = &self.present else { return Vec::new() };
        let wanted = self.intent.iter().flat_map(|i| i.peers.values());
        let mesh = wanted.filter(|p| p.kind == PeerKind::Mesh && !present.contains(&p.name));
        let mut absent: Vec<String> = mesh.map(|p| p.name.clone()).collect();
        absent.sort();
        absent.dedup();
        absent
    }

    fn peer_facts(&self, intent: &RoutingIntent, now: Instant) -> BTreeMap<String, PeerFacts> {
        let one = |session: &str, wanted: &routing::PeerIntent| {
            let record = self.peers.get(session);
            let state = record.and_then(|r| r.state).unwrap_or(State::Idle);
            let facts = PeerFacts {
                kind: wanted.kind.as_str(),
                name: wanted.name.clone(),
                address: wanted.remote.ip().to_string(),
                state: state.as_str(),
                up: state == State::Established,
                shut: wanted.shutdown.is_some(),
                seconds: record
                    .and_then(|r| r.since)
                    .map_or(0, |at| now.saturating_duration_since(at).as_secs()),
                error: record.and_then(|r| r.error.clone()),
            };
            (session.to_owned(), facts)
        };
        let dynamic = self.dynamic.values().filter_map(|peer| Some((peer, intent.dynamic(peer)?)));
        let dynamic = dynamic.map(|(peer, wanted)| one(&peer.name, &wanted));
        intent.peers.iter().map(|(session, wanted)| one(session, wanted)).chain(dynamic).collect()
    }
}

/// The next step comes from the list of codes, which a test holds to the notes that there are.
fn note(note: &Note) -> Problem {
    Problem {
        code: note.code.to_owned(),
        subject: note.subject.clone(),
        text: note.text.clone(),
        next: codes::find(Kind::Note, note.code).map_or_else(String::new, |code| code.next(&note.subject)),
        about: Subject::Host,
    }
}
