//! Processing of facts from the kernel thread and the speaker, and freezing of the core.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_bgp::{DownCode, State, bfd};
use tortie_config::counted;
use tortie_net::Cidr;

use super::recorder::{Entry, Plane, SINGLE_ENTRIES_MAX};
use crate::agent::core::effect::{Effect, LogLine, Severity, Subsystem};
use crate::agent::core::observed_state::{GcPass, ObservedState, TunnelAddressReport, networks_of};
use crate::agent::core::peer_record::EndedSession;
use crate::agent::core::{Core, Phase};
use crate::speaker::SpeakerFact;
use tortie_engine::model::{Freeze, Model, ModelChanges, Unexplained, unexplained};
use tortie_engine::routing::ChangeId;
use tortie_kernel::{BlackholeAck, BlackholeOutcome, ConnectedNetwork, KernelFact};

/// A session that takes longer than this to come up counts as missed.
const STARTUP_MAX: Duration = Duration::from_secs(60);
/// Time for which a transient problem is shown.
const SHOWN_FOR: Duration = Duration::from_secs(600);

impl Core {
    /// Compares the endpoint routes on this host with the store, until the store was followed once.
    pub(super) fn explain_attached(&mut self) {
        let followed = self.link.trusted != (0, 0);
        // In observe mode nothing is removed.
        if followed || self.observes || !self.kernel_writes {
            self.forget_attached();
            return;
        }
        self.guard.set_attached(self.unexplained_in(&self.model));
    }

    pub(super) fn unexplained_in(&self, model: &Model) -> Option<Unexplained> {
        let ObservedState { attached, cache_of, .. } = &self.observed;
        unexplained(model, self.cached.as_deref(), cache_of.as_deref(), attached)
    }

    pub(super) fn forget_attached(&mut self) {
        self.observed.attached.clear();
        self.observed.cache_of = None;
    }

    /// Sets or ends a freeze; a new reason is logged once.
    pub(super) fn freeze(&mut self, freeze: Option<Freeze>) {
        if let Some(freeze) = freeze.as_ref().filter(|freeze| self.frozen.as_ref() != Some(freeze)) {
            self.log_and_record(ChangeId::default(), Plane::Agent, '!', "frozen", &freeze.text);
        }
        self.frozen = freeze;
    }

    /// Accepts the store's content on request of an operator.
    pub(super) fn accept_store(&mut self) {
        if self.frozen.is_none() {
            return;
        }
        self.forget_attached();
        self.guard.accept(&self.model);
        self.pending.merge(ModelChanges::everything());
        self.act_on_pending();
    }

    pub(super) fn on_kernel_fact(&mut self, fact: KernelFact) {
        match fact {
            KernelFact::Started { routes_v4, routes_v6, .. } => {
                let text =
                    format!("dumped: {routes_v4} IPv4 and {routes_v6} IPv6 routes of ours kept as stale");
                self.log_and_record(ChangeId::default(), Plane::Kernel, '~', "kernel", &text);
            }
            KernelFact::Enforced { serial, change, failed, micros } => {
                self.on_enforced(serial, change, failed, micros);
            }
            KernelFact::Endpoints(changed) => self.record_conditions(changed),
            KernelFact::Arrived(endpoint) => {
                if self.migrations.see(&endpoint, self.now.mono) {
                    self.follow_migrations();
                }
            }
            KernelFact::Applied { generation, change, failed, acknowledged, micros } => {
                self.record_blackholes(change, &acknowledged, micros);
                self.on_applied(generation, change, failed);
            }
            KernelFact::Learned { change, prefixes, written, deleted, failed, sample, micros } => {
                for (prefix, _, _) in &sample {
                    self.observed.failed_routes.remove(prefix);
                }
                let time = self.now.text();
                for (prefix, change, what) in sample {
                    let entry = Entry {
                        change,
                        plane: Plane::Kernel,
                        mark: '~',
                        subject: prefix.to_string(),
                        text: what.into_owned(),
                        revision: 0,
                    };
                    self.recorder.record_prefix(time.clone(), prefix, entry);
                }
                if prefixes > 0 {
                    let entry = Entry {
                        change,
                        plane: Plane::Kernel,
                        mark: '~',
                        subject: counted(prefixes, "prefix"),
                        text: format!(
                            "{} written, {deleted} deleted, acknowledged after {micros} us",
                            counted(written, "route")
                        ),
                        revision: 0,
                    };
                    self.recorder.record(time, entry);
                }
                for (prefix, why) in failed {
                    self.effects.push(Effect::Log(LogLine {
                        prefix: Some(prefix.to_string()),
                        reason: Some(why.clone()),
                        ..LogLine::new(
                            Severity::Warn,
                            Subsystem::Agent,
                            format!("the kernel refuses {prefix}: {why}"),
                        )
                    }));
                    if self.observed.failed_routes.len() < 1_000 {
                        self.observed.failed_routes.insert(prefix, why);
                    }
                }
            }
            KernelFact::NextHop(addr, state) => {
                match state {
                    Some(_) => self.observed.unreachable.remove(&addr),
                    None => self.observed.unreachable.insert(addr),
                };
                self.effects.push(Effect::NextHop(addr, state));
            }
            KernelFact::NextHopWithin(addr, within) => {
                self.effects.push(Effect::NextHopWithin(addr, within));
            }
            KernelFact::Connected(connected) => self.on_connected(connected),
            KernelFact::Swept(count) => {
                self.log_and_record(
                    ChangeId::default(),
                    Plane::Kernel,
                    '-',
                    "stale routes",
                    &format!("{count} swept"),
                );
            }
            KernelFact::Repaired { objects, first, held } => {
                if !held {
                    self.last_repair = Some((self.now.mono, objects, first.clone()));
                }
                let what = if held { "left in place (drift hold)" } else { "repaired" };
                let text = format!("{objects} changed by another process and {what}, first: {first}");
                self.log_and_record(ChangeId::default(), Plane::Kernel, '!', "own routes", &text);
            }
            KernelFact::Overrun => {
                self.log_and_record(
                    ChangeId::default(),
                    Plane::Kernel,
                    '!',
                    "netlink",
                    "notifications lost: everything is compared again",
                );
            }
            KernelFact::RulesProblem(problem) => {
                match &problem {
                    Some(text) => {
                        self.log_and_record(ChangeId::default(), Plane::Kernel, '!', "packet rules", text)
                    }
                    None => self.log_and_record(
                        ChangeId::default(),
                        Plane::Kernel,
                        '~',
                        "packet rules",
                        "in force",
                    ),
                }
                self.enforcement.rules_problem = problem;
            }
            KernelFact::TunnelProblem(problem) => {
                if problem != self.observed.tunnel_problem {
                    let text = problem.clone().unwrap_or_else(|| "in its desired state again".to_owned());
                    self.log_and_record(ChangeId::default(), Plane::Kernel, '~', "tunl0", &text);
                }
                self.observed.tunnel_problem = problem;
            }
            KernelFact::Problem { about, text } => {
                self.record_thread_problems(Plane::Kernel, about, text.into_iter().collect());
            }
            KernelFact::Transient(text) => self.record_transient(Plane::Kernel, "kernel", text),
        }
    }

    /// Withholds a block that overlaps a network of this host, as soon as the host is connected to it.
    fn on_connected(&mut self, connected: Vec<ConnectedNetwork>) {
        let networks = networks_of(&connected);
        self.observed.connected = Some(connected);
        if self.kernel_writes && self.planner.as_mut().is_some_and(|planner| planner.connect(networks)) {
            self.pending.originated = true;
            self.act_on_pending();
        }
    }

    /// Records the kernel's acknowledgements of blackholes of own blocks. Many become one entry, with details
    /// in the histories of the prefixes.
    fn record_blackholes(&mut self, change: ChangeId, acknowledged: &[BlackholeAck], micros: u64) {
        let time = self.now.text();
        let many = acknowledged.len() > SINGLE_ENTRIES_MAX;
        let after = if micros > 0 { format!(", acknowledged after {micros} us") } else { String::new() };
        for ack in acknowledged {
            let (mark, text) = match ack.outcome {
                BlackholeOutcome::Written => ('+', format!("blackhole written{after}")),
                BlackholeOutcome::Kept => ('+', "blackhole existed already".to_owned()),
                BlackholeOutcome::Removed => ('-', format!("blackhole removed{after}")),
            };
            let entry = Entry {
                change: ack.change,
                plane: Plane::Kernel,
                mark,
                subject: ack.prefix.to_string(),
                text,
                revision: self.revisions.of(ack.change),
            };
            if many {
                self.recorder.record_prefix(time.clone(), ack.prefix, entry);
            } else {
                self.recorder.record(time.clone(), entry);
            }
        }
        if many {
            let count = |outcome| acknowledged.iter().filter(|a| a.outcome == outcome).count();
            let [written, kept, removed] =
                [BlackholeOutcome::Written, BlackholeOutcome::Kept, BlackholeOutcome::Removed].map(count);
            let entry = Entry {
                change,
                plane: Plane::Kernel,
                mark: '~',
                subject: counted(acknowledged.len(), "blackhole"),
                text: format!("{written} written, {kept} there already, {removed} removed{after}"),
                revision: self.revisions.of(change),
            };
            self.recorder.record(time, entry);
        }
    }

    fn on_applied(&mut self, generation: u64, change: ChangeId, failed: Vec<(Cidr, String)>) {
        self.acknowledged = self.acknowledged.max(generation);
        self.counters.intent_acknowledged(generation, self.now.mono);
        let refused: BTreeMap<Cidr, String> = failed.into_iter().collect();
        if let Some(intent) = &self.intent
            && generation == self.generation
        {
            self.blackholes =
                intent.blackholes.iter().filter(|b| !refused.contains_key(*b)).copied().collect();
        }
        let before = std::mem::take(&mut self.refused_blackholes);
        for (block, why) in refused.iter().filter(|(b, why)| before.get(*b) != Some(*why)) {
            let text = format!("blackhole refused, not announced: {why}");
            self.log_and_record(
                self.block_changes.get(block).copied().unwrap_or_default(),
                Plane::Kernel,
                '!',
                &block.to_string(),
                &text,
            );
        }
        self.refused_blackholes = refused;
        if generation != self.generation {
            return;
        }
        let first = self.phase != Phase::Running;
        self.phase = Phase::Running;
        self.send_speaker_intent(change);
        if first {
            self.effects.push(Effect::LocalReady);
        }
    }

    pub(super) fn on_speaker_fact(&mut self, fact: SpeakerFact) {
        let now = self.now.mono;
        match fact {
            SpeakerFact::Peer { name, from, to, down } => {
                let record = self.peers.entry(Arc::clone(&name)).or_default();
                if from == State::Established && to != from {
                    record.ended = Some(EndedSession {
                        time: self.now.text(),
                        text: down.as_ref().map_or_else(String::new, |down| down.text.clone()),
                        lasted: record.since.map(|at| now.saturating_duration_since(at)).unwrap_or_default(),
                        helper: down.as_ref().is_some_and(|down| down.helper),
                    });
                }
                record.state = Some(to);
                if to == State::Established {
                    let down = record.down_since.take().unwrap_or(self.started);
                    record.missed |= now.saturating_duration_since(down) > STARTUP_MAX;
                } else if from == State::Established {
                    record.down_since = Some(now);
                    record.missed = true;
                }
                if from != to || record.since.is_none() {
                    record.since = Some(now);
                }
                if let Some(down) = &down {
                    record.error = Some(down.text.clone());
                    if from == State::Established {
                        *record.flaps.entry(down.code.as_str()).or_default() += 1;
                    } else if from >= State::OpenSent && down.code != DownCode::Collision {
                        record.open_errors += 1;
                    }
                    if let Some((code, subcode)) = down.notification {
                        let received = down.code == DownCode::NotificationReceived;
                        let direction = if received { "received" } else { "sent" };
                        *record.notifications.entry((direction, code, subcode)).or_default() += 1;
                    }
                }
                // Connection attempts change state every few seconds; only the start and end of a session are
                // recorded.
                let notable = State::Established;
                if from == notable || to == notable {
                    let mark = if to == notable { '+' } else { '-' };
                    let why = down.map(|d| d.text).unwrap_or_default();
                    let text = format!("{} -> {} {why}", from.as_str(), to.as_str());
                    self.log_and_record(ChangeId::default(), Plane::Rib, mark, &name, text.trim_end());
                } else if from != to {
                    let why = down.map(|d| d.text).unwrap_or_default();
                    let (from, to) = (from.as_str(), to.as_str());
                    self.log_debug(Subsystem::Bgp, &name, format!("{name}: {from} -> {to} {why}"));
                }
            }
            SpeakerFact::DynamicPeer(peer) => {
                self.observed.dynamic.insert(Arc::clone(&peer.name), peer);
            }
            SpeakerFact::DynamicPeerGone(name) => {
                self.observed.dynamic.remove(&name);
                self.peers.remove(&name);
            }
            SpeakerFact::Bfd { peer, from, to, cause, .. } => {
                let mark = match to {
                    bfd::State::Up => '+',
                    _ if from == bfd::State::Up => '-',
                    _ => '~',
                };
                let text = format!("BFD {} -> {}: {cause}", from.as_str(), to.as_str());
                // State changes during handshakes and failed attempts are logged at debug level only.
                if mark == '~' {
                    self.log_debug(Subsystem::Bfd, &peer, format!("{peer}: {text}"));
                } else {
                    self.log_and_record(ChangeId::default(), Plane::Rib, mark, &peer, &text);
                }
            }
            SpeakerFact::Learned { peer, announced, withdrawn, rejected, malformed } => {
                let text = format!(
                    "{} announced, {withdrawn} withdrawn, {rejected} rejected, {}",
                    counted(announced, "prefix"),
                    counted(malformed, "malformed UPDATE")
                );
                self.log_debug(Subsystem::Bgp, &peer, format!("{peer}: {text}"));
                let mark = if malformed > 0 { '!' } else { '~' };
                let entry = Entry {
                    change: ChangeId::default(),
                    plane: Plane::Rib,
                    mark,
                    subject: peer.to_string(),
                    text,
                    revision: 0,
                };
                self.recorder.record(self.now.text(), entry);
            }
            SpeakerFact::PrefixWarning { peer, family, received, max } => {
                let text = format!(
                    "announces {received} {} prefixes, and its limit is {max} (max_prefixes); more end the \
                     session",
                    family.as_str()
                );
                self.log_and_record(ChangeId::default(), Plane::Rib, '!', &peer, &text);
            }
            SpeakerFact::Batch { change, prefixes, first } => {
                let entry = Entry {
                    change,
                    plane: Plane::Rib,
                    mark: '~',
                    subject: first.to_string(),
                    text: format!("{} changed", counted(prefixes, "best path")),
                    revision: 0,
                };
                self.recorder.record(self.now.text(), entry);
            }
            SpeakerFact::TrackNextHop(addr) => self.effects.push(Effect::Track(addr, true)),
            SpeakerFact::UntrackNextHop(addr) => {
                self.observed.unreachable.remove(&addr);
                self.effects.push(Effect::Track(addr, false));
            }
            SpeakerFact::RestartDone => {
                self.observed.restart_done = true;
                self.effects.push(Effect::Sweep);
            }
            SpeakerFact::Listening(addr) => {
                self.observed.listen_failed.remove(&addr);
                self.observed.listening.insert(addr);
                self.log_and_record(
                    ChangeId::default(),
                    Plane::Rib,
                    '+',
                    &addr.to_string(),
                    "sessions are accepted here",
                );
            }
            SpeakerFact::ListenEnded(addr) => {
                self.observed.listen_failed.remove(&addr);
                self.observed.listening.remove(&addr);
            }
            SpeakerFact::ListenFailed { addr, error } => {
                if self.observed.listen_failed.get(&addr) != Some(&error) {
                    let text = format!("cannot be listened on: {error}");
                    self.log_and_record(ChangeId::default(), Plane::Rib, '!', &addr.to_string(), &text);
                }
                self.observed.listening.remove(&addr);
                self.observed.listen_failed.insert(addr, error);
            }
            SpeakerFact::PeerProblem { name, problem } => match problem {
                Some(text) => {
                    self.log_and_record(ChangeId::default(), Plane::Rib, '!', &name, &text);
                    self.observed.peer_problems.insert(name.to_string(), text);
                }
                None => {
                    self.observed.peer_problems.remove(&*name);
                }
            },
            SpeakerFact::Problems { about, texts } => self.record_thread_problems(Plane::Rib, about, texts),
            SpeakerFact::TransientProblem(text) => self.record_transient(Plane::Rib, "speaker", text),
            SpeakerFact::Stopped => {}
        }
    }

    /// Replaces all problems of a subject; an empty list means that it has none.
    fn record_thread_problems(&mut self, plane: Plane, about: Cow<'static, str>, texts: Vec<String>) {
        let before = self.observed.thread_problems.remove(&about).unwrap_or_default();
        for text in texts.iter().filter(|text| !before.contains(text)) {
            self.log_and_record(ChangeId::default(), plane, '!', &about, text);
        }
        if !texts.is_empty() {
            self.observed.thread_problems.insert(about, texts);
        } else if !before.is_empty() {
            self.log_and_record(ChangeId::default(), plane, '~', &about, "in its desired state again");
        }
    }

    /// Records a transient problem. A repeated one is recorded once and shown until it is [`SHOWN_FOR`] old.
    fn record_transient(&mut self, plane: Plane, subject: &str, text: String) {
        if self.recent_transient(self.now.mono).is_none_or(|(_, before)| *before != text) {
            self.log_and_record(ChangeId::default(), plane, '!', subject, &text);
        }
        self.transient = Some((self.now.mono, text));
    }

    /// Returns the last transient problem and its age, if it is younger than [`SHOWN_FOR`].
    pub(in crate::agent) fn recent_transient(&self, now: Instant) -> Option<(Duration, &String)> {
        let (at, text) = self.transient.as_ref()?;
        let ago = now.saturating_duration_since(*at);
        (ago < SHOWN_FOR).then_some((ago, text))
    }

    /// Stores and records the state of the tunnel address.
    pub(super) fn on_tunnel_address(&mut self, report: TunnelAddressReport) {
        let subject = "tunnel address";
        match report {
            TunnelAddressReport::Done(text) => {
                self.log_and_record(ChangeId::default(), Plane::Agent, '~', subject, &text);
            }
            TunnelAddressReport::Problem(tunnel, problem) => {
                if let Some(text) = &problem {
                    self.log_and_record(ChangeId::default(), Plane::Agent, '!', subject, text);
                }
                let problems = &mut self.observed.tunnel_address_problems;
                match problem {
                    Some(text) => drop(problems.insert(tunnel, text)),
                    None => drop(problems.remove(&tunnel)),
                }
            }
        }
    }

    /// Stores and records a garbage collection pass.
    pub(super) fn record_gc_pass(&mut self, pass: GcPass) {
        for (addr, why) in &pass.released {
            let text = format!("released after the grace period without a holder: {why}");
            self.log_and_record(ChangeId::default(), Plane::Agent, '-', &addr.to_string(), &text);
        }
        if let Some(error) =
            pass.error.as_ref().filter(|error| self.observed.gc.error.as_ref() != Some(*error))
        {
            self.log_and_record(ChangeId::default(), Plane::Agent, '!', "address collector", error);
        }
        self.observed.gc.leak_candidates = pass.leak_candidates;
        self.observed.gc.released += u64::try_from(pass.released.len()).unwrap_or(u64::MAX);
        self.observed.gc.error = pass.error;
    }
}
