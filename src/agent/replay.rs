//! `tortie replay`: runs the inputs of a journal through the core of this program.
//!
//! Restores a core at the beginning of the journal, gives it every input with its recorded time, and compares
//! its decisions with the recorded ones. Reads no clock and accesses neither store, kernel nor peers.

use std::collections::BTreeSet;
use std::time::Instant;

use jiff::Timestamp;

use crate::agent::core::Core;
use crate::agent::core::checkpoint::restore;
use crate::agent::core::effect::Effect;
use crate::agent::core::input::{Input, Now};
use crate::agent::core::view::CoreView;
use crate::agent::explain::recorded;
pub use crate::agent::explain::recorded::Question;
use crate::agent::health::problems::problems;
use crate::agent::journal::decisions::{Decisions, is_wording};
pub use crate::agent::journal::format::{FILE, JournalError};
use crate::agent::journal::format::{Header, Line, Lines, unpack};
use crate::api::replay::{Difference, Replay};
use crate::api::status::{API_VERSION, ApiError};
use tortie_config::counted;
use tortie_engine::routing::ChangeId;
use tortie_store::{Change, FeedEvent};

/// Number of differences that the report shows in full.
const SHOWN: usize = 5;

/// End of a replay, and the question to answer there.
#[derive(Debug, Clone, Default)]
pub struct ReplayOptions {
    /// Stops after the last input at or before this time; `None` runs all inputs.
    pub until: Option<Timestamp>,
    /// Question about the state at the end of the replay.
    pub why: Option<Question>,
}

/// Reasons for a failed replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The journal file cannot be read.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// The journal begins after the requested time.
    #[error("the journal begins at {0}: nothing is known of an earlier time")]
    TooEarly(String),
    /// The question has no answer in the final state of the replay.
    #[error("{}", .0.text)]
    Question(ApiError),
}

/// A core with its position in a journal.
pub(in crate::agent) struct Run {
    header: Header,
    core: Core,
    decisions: Decisions,
    now: Now,
    /// Time at which the journal begins.
    from: Now,
    from_checkpoint: bool,
    inputs: usize,
    different: usize,
    worded_differently: usize,
    differences: Vec<Difference>,
    last: Vec<String>,
}

impl Run {
    /// Replays a journal. `decisions` formats the effects of each input, to compare with the recorded ones.
    ///
    /// # Errors
    /// Returns an error for a file that is not a journal, and for a time before its beginning.
    pub(in crate::agent) fn of(
        octets: &[u8],
        until: Option<Timestamp>,
        decisions: Decisions,
    ) -> Result<Self, ReplayError> {
        let mut lines = Lines::of(octets);
        let header = lines.header()?;
        let started = Instant::now();
        let wall = Timestamp::from_microsecond(header.started).unwrap_or_default();
        let now = Now { mono: started, wall };
        let core = Core::new(&header.options, now);
        let mut run = Self {
            header,
            core,
            decisions,
            now,
            from: now,
            from_checkpoint: false,
            inputs: 0,
            different: 0,
            worded_differently: 0,
            differences: Vec::new(),
            last: Vec::new(),
        };
        if until.is_some_and(|until| until < wall) {
            return Err(ReplayError::TooEarly(now.text()));
        }
        while let Some(line) = lines.next()? {
            match line {
                Line::Input(step) if until.is_some_and(|until| step.time.wall() > until) => break,
                Line::Input(step) => run.input(step.time.now(started), step.input, &step.decisions),
                Line::Boundary => run.decisions.forget(),
                Line::Checkpoint(base) => {
                    run.now = base.time.now(started);
                    run.from = run.now;
                    if until.is_some_and(|until| until < run.from.wall) {
                        return Err(ReplayError::TooEarly(run.from.text()));
                    }
                    run.from_checkpoint = true;
                    run.core = restore(&run.header.options, started, run.now, base.core, base.entries);
                }
                Line::Journal(_) => {}
            }
        }
        Ok(run)
    }

    fn input(&mut self, now: Now, input: Input, recorded: &[String]) {
        self.now = now;
        self.inputs += 1;
        let effects = self.core.handle(input.clone(), now);
        self.last = self.decisions.lines(&effects);
        if self.last == recorded {
            return;
        }
        let decided = |lines: &[String]| -> Vec<String> {
            lines.iter().filter(|line| !is_wording(line)).cloned().collect()
        };
        let (before, after) = (decided(recorded), decided(&self.last));
        if before == after {
            self.worded_differently += 1;
            return;
        }
        self.different += 1;
        if self.differences.len() < SHOWN {
            let only = |these: &[String], those: &[String]| {
                let those: BTreeSet<&String> = those.iter().collect();
                these.iter().filter(|line| !those.contains(line)).cloned().collect()
            };
            self.differences.push(Difference {
                input: self.inputs,
                time: now.text(),
                subject: subject(&input),
                recorded: only(&before, &after),
                now: only(&after, &before),
            });
        }
    }

    /// Returns a view of the core after the last input.
    pub(in crate::agent) fn core(&self) -> CoreView<'_> {
        CoreView::of(&self.core)
    }

    /// Returns the time of the last input.
    pub(in crate::agent) fn now(&self) -> Now {
        self.now
    }

    /// Returns the report of the replay: number of inputs, differences and final intents.
    pub(in crate::agent) fn report(&self) -> Replay {
        let core = self.core();
        let intents = core.intent().map_or_else(Vec::new, |intent| {
            let effects = [
                Effect::Routing(std::sync::Arc::clone(intent)),
                Effect::Speaker(std::sync::Arc::clone(intent), ChangeId::default()),
            ];
            Decisions::new().lines(&effects)
        });
        Replay {
            api_version: API_VERSION.to_owned(),
            kind: "Replay".to_owned(),
            node: self.header.options.name.clone(),
            recorded_by: self.header.version.clone(),
            run_by: env!("CARGO_PKG_VERSION").to_owned(),
            from: self.from.text(),
            to: self.now.text(),
            from_checkpoint: self.from_checkpoint,
            inputs: self.inputs,
            lost: self.header.lost,
            different: self.different,
            worded_differently: self.worded_differently,
            differences: self.differences.clone(),
            intents,
            decisions: self.last.clone(),
            problems: problems(&core.snapshot(self.now.mono), None),
            why: None,
        }
    }
}

/// Replays a journal file, or the journal inside an archive of `tortie diags`.
///
/// # Errors
/// As [`ReplayError`] says.
pub fn replay(octets: Vec<u8>, options: &ReplayOptions) -> Result<Replay, ReplayError> {
    let run = Run::of(&unpack(octets)?, options.until, Decisions::new())?;
    let mut report = run.report();
    report.why = match &options.why {
        Some(question) => {
            Some(recorded::answer(run.core(), run.now(), question).map_err(ReplayError::Question)?)
        }
        None => None,
    };
    Ok(report)
}

/// Describes an input in a few words.
fn subject(input: &Input) -> String {
    match input {
        Input::Feed(FeedEvent::Snapshot { snapshot, .. }) => {
            format!(
                "store: snapshot of {} at revision {}",
                counted(snapshot.entries.len(), "key"),
                snapshot.revision
            )
        }
        Input::Feed(FeedEvent::Added { prefixes, snapshot }) => {
            format!("store: {} of {}", counted(snapshot.entries.len(), "key"), prefixes.join(" "))
        }
        Input::Feed(FeedEvent::Delta(delta)) => {
            let first = delta.changes.first().map_or_else(String::new, |change| match change {
                Change::Put(kv) => format!("{} written", kv.key),
                Change::Delete { key } => format!("{key} deleted"),
            });
            let more = match delta.changes.len() {
                0 | 1 => String::new(),
                changes => format!(" and {} more", changes - 1),
            };
            format!("store: revision {}: {first}{more}", delta.revision)
        }
        Input::Feed(FeedEvent::Cached(_)) => "store: the cache on disk".to_owned(),
        Input::Feed(FeedEvent::Progress(revision)) => {
            format!("store: nothing else up to revision {revision}")
        }
        Input::Feed(FeedEvent::Unreachable { reason, .. }) => format!("store: {reason}"),
        Input::Feed(FeedEvent::Reconnected) => "store: answers again".to_owned(),
        Input::Feed(FeedEvent::CacheProblem(Some(why))) => format!("the cache is not written: {why}"),
        Input::Feed(FeedEvent::CacheProblem(None)) => "the cache is written again".to_owned(),
        Input::Feed(FeedEvent::Calico3(true)) => "store: it has objects of Calico 3".to_owned(),
        Input::Feed(FeedEvent::Calico3(false)) => "store: it has no objects of Calico 3 any more".to_owned(),
        Input::Feed(FeedEvent::PutBack(proof)) => format!("store: put back to an earlier state, {proof}"),
        Input::FeedIdle => "store: what was read is acted on".to_owned(),
        Input::StoreTimeout => "store: no answer in time".to_owned(),
        Input::Attached(routes) => format!("kernel: {}", counted(routes.len(), "attached address")),
        Input::MigrationsDue => "a live migration has converged".to_owned(),
        Input::Twin(Some(machine)) => machine.clone(),
        Input::Twin(None) => "no other machine runs under this name".to_owned(),
        Input::Accept => "an operator accepts the store as it is".to_owned(),
        Input::Kernel(fact) => format!("kernel: {}", variant(&format!("{fact:?}"))),
        Input::Speaker(fact) => format!("speaker: {}", variant(&format!("{fact:?}"))),
        Input::NoSessions => "the sessions are another daemon's".to_owned(),
        Input::TunnelAddress(_) => "the tunnel address was looked after".to_owned(),
        Input::IpamGc(_) => "leaked addresses were looked for".to_owned(),
        Input::PoolUsage(_) => "pools were counted".to_owned(),
        Input::MtuFile(_) => "the MTU of workloads was written".to_owned(),
        Input::HostChecks(found) => format!("the host checks found {}", counted(found.len(), "problem")),
        Input::Hosts { hosts, .. } => format!("{} with agents", counted(hosts.len(), "host")),
    }
}

/// Returns the first 100 characters of a debug form without braces and quotes: the variant and its first
/// fields.
fn variant(debug: &str) -> String {
    let short: String = debug.chars().take(100).collect();
    short.replace(['{', '}', '"'], "").split_whitespace().collect::<Vec<_>>().join(" ")
}
