//! `tortie migrate rollback`: returns a host to Calico from any state of a migration, in an order in which
//! packets always have a route.
//!
//! It reads from the journal which steps were begun, and reverts them. Each step first determines what is
//! left to do, so a rollback may be interrupted and run again. Without a journal it does nothing.
//!
//! Felix's rules are restored from the snapshot as long as that fits: no workload interface may exist here
//! that the rules do not know, because Felix drops its packets. Otherwise Felix must write its rules itself
//! while Tortie's are in force (`--start-with`). Routes are not restored from the snapshot: Tortie's current
//! routes are converted to those of BIRD and Felix (`rollback/routes.rs`). Tunnel devices stay as they are.

mod routes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tortie_config::counted;
use tortie_net::Cidr;

use super::adopt::own;
use super::args::RollbackCommand;
use super::daemons;
use super::journal::{Journal, Record, Snapshot, Step};
use super::plan::Back;
use super::report::Progress;
use super::rules::Listing;
use super::{agent, tools};
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};
use crate::foreign::Backend;
use crate::host_checks::MigrationPhase;
use tortie_kernel::maintenance::handover;
use tortie_kernel::{Marks, Purge};

/// Executes `tortie migrate rollback`.
pub(super) async fn run(context: &Context, command: &RollbackCommand) -> Result<(), Failure> {
    let mut progress = Progress::new(
        context.globals.output,
        "MigrateRollback",
        &context.globals.node_name()?,
        Back::SAVED.len(),
    );
    let result = go(command, &mut progress).await;
    if result.is_ok() || !context.globals.output.is_text() {
        progress.end()?;
    }
    result
}

async fn go(command: &RollbackCommand, progress: &mut Progress) -> Result<(), Failure> {
    let dir = &command.common.state_dir;
    let Some(record) = Journal::peek(dir)? else {
        let text = format!("nothing was adopted on this host: there is no state in {}", dir.display());
        return Err(Failure::new(Exit::No, "nothing-begun", text));
    };
    progress.report.phase = record.phase.as_str().to_owned();
    if record.phase == MigrationPhase::RolledBack {
        if daemons::find().is_empty() {
            progress.report.next = how_to_start(&record);
        }
        progress.report.next.insert(0, "This host is rolled back already.".to_owned());
        return Ok(());
    }
    let (saved, running) = (Journal::peek_snapshot(dir)?, daemons::find());
    let start = StartWith::of(command, &record);
    let unknown = unknown_interfaces(&saved);
    let removed = record.steps.iter().any(|begun| begun.step == Step::RemoveRules);
    // After a reboot the kernel has none of the saved routes and rules any more, and Calico's daemons write new
    // ones when they start.
    let fits = record.is_this_boot();
    let fresh = (removed && !unknown.is_empty() || !fits) && start.is_some();
    if removed && fits && !unknown.is_empty() && !fresh && !command.accept_differences && running.is_empty() {
        let names: Vec<&str> = unknown.iter().take(5).map(String::as_str).collect();
        let text = format!(
            "workloads were added since, {} of them ({}): Felix's saved rules drop their packets until \
             Felix runs. Give --start-with COMMAND, so that Felix writes its rules while ours are in force, \
             or --accept-differences. Nothing was changed",
            unknown.len(),
            names.join(", ")
        );
        return Err(Failure::new(Exit::Refused, "differences", text));
    }
    let steps: Vec<Back> = if fresh { Back::FRESH.to_vec() } else { Back::SAVED.to_vec() };
    progress.of(steps.len());
    let start_words = start.as_ref().map(StartWith::words);
    let start_with = start_words.as_deref();
    if command.dry_run {
        for (at, step) in steps.iter().enumerate() {
            let line = step.line(start_with);
            progress.say(&format!("{:>2}/{}  {:<14} would: {}", at + 1, steps.len(), line.step, line.what));
            progress.report.steps.push(line);
        }
        progress.report.next = vec!["Nothing was changed (--dry-run).".to_owned()];
        return Ok(());
    }
    let mut journal = Journal::open(dir)?;
    journal.change(|record| record.phase = MigrationPhase::RollingBack)?;
    progress.report.phase = MigrationPhase::RollingBack.as_str().to_owned();
    let work = Work { record, saved, fits, wait: Duration::from_secs(command.common.wait), start };
    for step in steps {
        progress
            .step(step.line(start_with), async {
                super::journal::halt(&step.line(None).step, "begun");
                let done = work.go(step).await?;
                super::journal::halt(&step.line(None).step, "done");
                Ok(done)
            })
            .await?;
    }
    journal.change(|record| record.phase = MigrationPhase::RolledBack)?;
    progress.report.phase = MigrationPhase::RolledBack.as_str().to_owned();
    if work.start.is_none() && daemons::find().is_empty() {
        progress.report.next = how_to_start(&work.record);
    }
    Ok(())
}

/// Command or units that start Calico's daemons.
enum StartWith {
    /// A command of the operator.
    Command(String),
    /// The units that `adopt` stopped.
    Units(Vec<String>),
}

impl StartWith {
    fn of(command: &RollbackCommand, record: &Record) -> Option<Self> {
        let units = || Some(record.stop.unit.clone()).filter(|units| !units.is_empty()).map(Self::Units);
        command.start_with.clone().map(Self::Command).or_else(units)
    }

    fn words(&self) -> String {
        match self {
            Self::Command(command) => command.clone(),
            Self::Units(units) => format!("systemctl start {}", units.join(" ")),
        }
    }

    fn run(&self) -> Result<(), Failure> {
        match self {
            Self::Command(command) => daemons::run_shell(command),
            Self::Units(units) => units.iter().try_for_each(|unit| daemons::systemctl(&["start", unit])),
        }
    }
}

/// Returns commands that start Calico's daemons, according to their supervisors.
fn how_to_start(record: &Record) -> Vec<String> {
    let mut ways: Vec<String> = Vec::new();
    let mut add = |way: String| {
        if !ways.contains(&way) {
            ways.push(way);
        }
    };
    for unit in &record.stop.unit {
        add(format!("  systemctl start {unit}"));
    }
    for daemon in &record.daemons {
        match (&daemon.container, &daemon.unit) {
            (Some(container), _) if record.stop.unit.is_empty() => add(format!("  docker start {container}")),
            (Some(_), _) => {}
            (None, Some(unit)) => add(format!("  systemctl start {unit}")),
            (None, None) => add(format!("  {}", daemon.command)),
        }
    }
    if ways.is_empty() {
        return ways;
    }
    ways.insert(
        0,
        "Start Calico again now: peers keep this host's routes for 120 s from the stop of our agent."
            .to_owned(),
    );
    ways
}

/// Returns the workload interfaces of this host that the saved rules do not name.
fn unknown_interfaces(saved: &Snapshot) -> BTreeSet<String> {
    let filters: Vec<Listing> =
        saved.rules.iter().filter(|saved| saved.v4).map(tools::Saved::listing).collect();
    if filters.is_empty() && saved.tables.is_empty() {
        return BTreeSet::new();
    }
    let mut known: BTreeSet<String> = filters.iter().flat_map(Listing::interfaces).collect();
    known.extend(saved.tables.iter().flat_map(|table| table.listing().interfaces()));
    workloads().difference(&known).cloned().collect()
}

fn workloads() -> BTreeSet<String> {
    let links = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    links
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("cali"))
        .collect()
}

/// Data of a rollback.
struct Work {
    record: Record,
    saved: Snapshot,
    /// True if the snapshot is from the current boot.
    fits: bool,
    wait: Duration,
    /// `None` if the operator starts the daemons by hand.
    start: Option<StartWith>,
}

impl Work {
    fn has_begun(&self, step: Step) -> bool {
        self.record.steps.iter().any(|begun| begun.step == step)
    }

    async fn go(&self, step: Back) -> Result<String, Failure> {
        match step {
            Back::Sets => self.sets(),
            Back::Rules => self.rules(),
            Back::Agent => self.agent(),
            Back::Routes => self.routes(),
            Back::Ours => self.ours(),
            Back::OurRules => self.our_rules().await,
            Back::Start => self.start(),
        }
    }

    fn sets(&self) -> Result<String, Failure> {
        if !self.fits || !self.has_begun(Step::RemoveRules) {
            return Ok("they were not touched".to_owned());
        }
        if !self.saved.sets.is_empty() {
            tools::restore_sets(&self.saved.sets)?;
        }
        Ok(format!("{} restored", counted(super::rules::felix_sets(&self.saved.sets).1.len(), "set")))
    }

    fn rules(&self) -> Result<String, Failure> {
        if !self.fits || !self.has_begun(Step::RemoveRules) {
            return Ok("they were not touched".to_owned());
        }
        let now: BTreeMap<(Backend, bool), Listing> = tools::saved_rules()?
            .into_iter()
            .map(|saved| ((saved.backend, saved.v4), saved.listing()))
            .collect();
        let (empty, mut rules) = (Listing::default(), 0);
        for saved in &self.saved.rules {
            let listing = saved.listing();
            rules += listing.felix_rules();
            let there = now.get(&(saved.backend, saved.v4)).unwrap_or(&empty);
            if let Some(text) = listing.restoration(there) {
                tools::restore(saved.backend, saved.v4, &text)?;
                super::journal::halt("restore-rules", "half");
            }
        }
        let there = tools::saved_tables()?;
        for saved in &self.saved.tables {
            rules += saved.listing().rules();
            if !there.iter().any(|table| table.is_same(saved) && table.text == saved.text) {
                tools::restore_table(saved)?;
                super::journal::halt("restore-rules", "half");
            }
        }
        Ok(format!("{} restored", counted(rules, "rule")))
    }

    fn agent(&self) -> Result<String, Failure> {
        if !self.has_begun(Step::Start) && !self.has_begun(Step::Settle) {
            return Ok("it was not started".to_owned());
        }
        // The command that starts the agent may return before the agent runs. After the next step began, the
        // agent was known to run.
        let patience =
            if self.has_begun(Step::RemoveRules) { Duration::ZERO } else { Duration::from_secs(3) };
        let begin = Instant::now();
        while !agent::runs() && begin.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        agent::stop()
    }

    fn routes(&self) -> Result<String, Failure> {
        let (protocol, metric) = (self.record.protocol, self.record.metric);
        let ours = own(protocol, metric)?;
        let theirs = handover::calico_routes(protocol).map_err(|e| kernel(&e))?;
        let there: BTreeSet<Cidr> = theirs.iter().map(|route| route.prefix).collect();
        let wanted = routes::wanted(&ours, &self.saved.routes, &there, &self.record.without_ours, self.fits);
        let refused = handover::put_routes(&wanted).map_err(|e| kernel(&e))?;
        if let Some(first) = refused.first() {
            return Err(kernel(&format!("{}: {}", first.prefix, first.reason)));
        }
        Ok(format!(
            "{} in the kernel, {} of them written",
            counted(there.len() + wanted.len(), "route"),
            wanted.len()
        ))
    }

    fn ours(&self) -> Result<String, Failure> {
        let given = handover::release_routes(self.marks()).map_err(|e| kernel(&e))?;
        let devices = handover::release_devices().map_err(|e| kernel(&e))?;
        let mut text = format!(
            "{} removed, {} of endpoints left to the plugin",
            counted(given.routes, "route"),
            given.endpoints
        );
        if !devices.is_empty() {
            let _ = write!(text, ", {} left to Felix", devices.join(" and "));
        }
        Ok(text)
    }

    fn marks(&self) -> Marks {
        Marks {
            protocol: self.record.protocol,
            metric: self.record.metric,
            ..tortie_kernel::Options::new(tortie_kernel::Mode::Off).marks
        }
    }

    /// Removes Tortie's rules once Felix's are in force.
    async fn our_rules(&self) -> Result<String, Failure> {
        if !self.has_begun(Step::Start) {
            return Ok("there are none".to_owned());
        }
        let begin = Instant::now();
        let had_rules = !self.saved.rules.is_empty() || !self.saved.tables.is_empty();
        let felix_wrote = (self.has_begun(Step::RemoveRules) || !self.fits) && had_rules;
        while felix_wrote && self.start.is_some() {
            let missing: Vec<String> = missing_in_felix()?;
            let Some(first) = missing.first() else { break };
            if begin.elapsed() > self.wait {
                let text = format!(
                    "Felix has no rules for {first} after {} s (on {}): ours stay in force. See why, then \
                     run rollback again",
                    self.wait.as_secs(),
                    counted(missing.len(), "interface")
                );
                return Err(Failure::new(Exit::TimedOut, "felix", text));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        if agent::runs() {
            let text = "our agent is here again: stop what restarts it, then run rollback again";
            return Err(Failure::new(Exit::Refused, "agent-runs", text));
        }
        let what = Purge { marks: self.marks(), tunnel: None, dry_run: false };
        let gone = tortie_kernel::purge(&what).map_err(|e| kernel(&e))?;
        let tables = if gone.tables.is_empty() {
            "no table".to_owned()
        } else {
            format!("table inet {}", gone.tables.join(", "))
        };
        Ok(format!("{tables} and {} removed", counted(gone.nexthops, "nexthop object")))
    }

    fn start(&self) -> Result<String, Failure> {
        daemons::release(&self.record.stop.unit)?;
        self.record.boot_units.undo()?;
        let Some(start) = &self.start else {
            return Ok("left to you".to_owned());
        };
        if !daemons::find().is_empty() {
            return Ok("it runs".to_owned());
        }
        start.run()?;
        Ok("it is started".to_owned())
    }
}

/// Returns the workload interfaces that no rule of Felix names now.
fn missing_in_felix() -> Result<Vec<String>, Failure> {
    let (all, tables) = (tools::saved_rules()?, tools::saved_tables()?);
    let mut known: BTreeSet<String> =
        all.iter().filter(|saved| saved.v4).flat_map(|saved| saved.listing().interfaces()).collect();
    known.extend(
        tables.iter().filter(|table| table.family == "ip").flat_map(|table| table.listing().interfaces()),
    );
    let has_felix = all.iter().any(|saved| saved.listing().has_felix()) || !tables.is_empty();
    let missing: Vec<String> = workloads().difference(&known).cloned().collect();
    Ok(if has_felix { missing } else { vec!["any interface".to_owned()] })
}

fn kernel(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Partial, "kernel", format!("the kernel: {error}"))
}
