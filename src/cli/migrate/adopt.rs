//! `tortie migrate adopt`: moves a host from BIRD and Felix to Tortie's agent, in an order in which packets
//! always have a route.
//!
//! ```text
//!   compare, save        nothing is written
//!   stop, copy           Calico's routes are used, and Felix's rules filter packets
//!   start, settle        Calico's routes are used, and Felix's and Tortie's rules filter packets
//!   remove-rules, remove-sets, remove-routes, verify    only Tortie's routes and rules are used
//! ```
//!
//! Tortie's routes are written next to those of BIRD and Felix before its agent starts. The agent therefore finds them as
//! after a crash: it announces to peers that forwarding was preserved (RFC 4724, the F bit), keeps the routes
//! as stale until peers have sent theirs, and then removes what is still stale. Adoption is thus an ordinary
//! restart of the agent, which takes over a VXLAN device that fits as it is. `adopt/compare.rs` has the steps before, which write nothing.

mod compare;
pub(super) mod data_planes;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tortie_config::counted;
use tortie_net::Cidr;

use super::args::{AdoptCommand, Common};
use super::daemons;
use super::journal::{Journal, Snapshot, Step};
use super::plan::{Inventory, Plan, names};
use super::report::{Line, Progress};
use super::rules::felix_sets;
use super::trial::Compared;
use super::{agent, tools};
use crate::api::policy::Diff;
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};
use crate::host_checks::{CalicoDaemon, MigrationPhase};
use tortie_kernel::NetworkSnapshot;
use tortie_kernel::maintenance::handover::{self, BIRD, FELIX, KeptRoute};

/// Protocol number of connected routes (`RTPROT_KERNEL`).
const KERNEL: u8 = 2;

/// Reads the kernel objects that Calico wrote; `protocol` is that of Tortie's routes.
///
/// # Errors
/// If part of them cannot be read.
pub(super) fn look(protocol: u8) -> Result<Snapshot, Failure> {
    let routes = handover::calico_routes(protocol)
        .map_err(|e| Failure::new(Exit::Partial, "routes", format!("the kernel's routes: {e}")))?;
    let mut rules = tools::saved_rules()?;
    rules.retain(|saved| saved.listing().has_felix());
    let (sets, _) = felix_sets(&tools::saved_sets()?);
    Ok(Snapshot { version: 0, routes, rules, sets, tables: tools::saved_tables()? })
}

/// Executes `tortie migrate plan`, and `adopt --dry-run` without the comparison.
pub(super) fn plan(context: &Context, command: &AdoptCommand) -> Result<(), Failure> {
    let (there, daemons) = (Inventory::of(&look(command.common.route_protocol)?), daemons::find());
    let state_dir = command.common.state_dir.display().to_string();
    let steps = command.plan(&there, &daemons, &state_dir).lines();
    let mut progress =
        Progress::new(context.globals.output, "MigratePlan", &context.globals.node_name()?, steps.len());
    progress.report.phase = "planned".to_owned();
    for (at, line) in steps.iter().enumerate() {
        progress.say(&format!("{:>2}  {}", at + 1, line.what));
        progress.say(&format!("      traffic:  {}", line.traffic));
        progress.say(&format!("      rollback: {}", line.way_back));
    }
    progress.report.steps = steps;
    progress.report.next = leftovers(&daemons, command);
    progress.say("Afterwards:");
    progress.end()
}

impl AdoptCommand {
    fn plan<'a>(&'a self, there: &'a Inventory, daemons: &'a [CalicoDaemon], state_dir: &'a str) -> Plan<'a> {
        Plan {
            there,
            daemons,
            stop: &self.stop,
            agent_with: &self.agent_with,
            pair: self.pair(),
            protocol: self.common.route_protocol,
            metric: self.common.route_metric,
            state_dir,
        }
    }
}

/// Returns the remaining manual steps after Calico's removal.
fn leftovers(daemons: &[CalicoDaemon], command: &AdoptCommand) -> Vec<String> {
    let (pair, named) = (command.pair(), command.stop.unit.iter().map(String::as_str));
    let mut units: Vec<&str> = named.clone().collect();
    units.extend(daemons.iter().filter_map(|daemon| daemon.unit.as_deref()));
    units.retain(|unit| pair.is_none() || !named.clone().any(|named| named == *unit));
    units.sort_unstable();
    units.dedup();
    let mut next: Vec<String> = units
        .iter()
        .map(|unit| {
            format!("systemctl disable {unit}       (so that it does not come back at the next boot)")
        })
        .collect();
    let mut containers: Vec<&str> = daemons.iter().filter_map(|daemon| daemon.container.as_deref()).collect();
    containers.dedup();
    next.extend(containers.iter().map(|id| {
        format!("docker update --restart=no {id}       (and its unit, if one starts it: systemctl disable)")
    }));
    if let (Some(unit), None) = (command.agent_with.strip_prefix("systemctl start "), pair) {
        next.push(format!("systemctl enable {unit}       (so that Tortie comes back at the next boot)"));
    }
    next.push("tortie status       (rollback at any time: tortie migrate rollback)".to_owned());
    next
}

/// Executes `tortie migrate adopt`.
pub(super) async fn run(context: &Context, command: &AdoptCommand) -> Result<(), Failure> {
    let mut progress =
        Progress::new(context.globals.output, "MigrateAdopt", &context.globals.node_name()?, Step::ALL.len());
    let result = go(context, command, &mut progress).await;
    // Programs get the report even after a failure; people have read the progress lines.
    if result.is_ok() || !context.globals.output.is_text() {
        progress.end()?;
    }
    result
}

async fn go(context: &Context, command: &AdoptCommand, progress: &mut Progress) -> Result<(), Failure> {
    let common = &command.common;
    let record = Journal::peek(&common.state_dir)?;
    if let Some(record) = record.filter(|record| record.phase != MigrationPhase::RolledBack) {
        progress.report.phase = record.phase.as_str().to_owned();
        let refuse = |code: &str, text: &str| Err(Failure::new(Exit::Refused, code, text));
        match record.phase {
            MigrationPhase::Adopted => return adopted_already(progress),
            _ if record.node != context.globals.node_name()? => {
                return refuse(
                    "state",
                    "the state file is another host's: name another folder with --state-dir",
                );
            }
            MigrationPhase::RollingBack => {
                return refuse(
                    "rolling-back",
                    "a rollback was begun: `tortie migrate rollback` brings it to its end",
                );
            }
            MigrationPhase::Adopting if !record.is_this_boot() => {
                return refuse(
                    "booted",
                    "this host was booted since: `tortie migrate rollback`, then adopt again",
                );
            }
            MigrationPhase::Adopting | MigrationPhase::RolledBack => {}
        }
    }
    let mut session = Session::open(context, command)?;
    session.compare(progress).await?;
    if command.dry_run {
        return session.informational(progress);
    }
    session.keep(progress).await?;
    session.stop(progress).await?;
    session.start(progress).await?;
    session.clear(progress).await?;
    session.verify(progress).await
}

fn adopted_already(progress: &mut Progress) -> Result<(), Failure> {
    let daemons = daemons::find();
    if daemons.is_empty() {
        progress.report.next = vec!["This host is adopted already: tortie status".to_owned()];
        return Ok(());
    }
    let text = format!(
        "this host was adopted, and {} again: stop it (systemctl disable --now), or `tortie migrate rollback`",
        if let [one] = daemons.as_slice() {
            format!("{} runs", names(std::slice::from_ref(one)))
        } else {
            format!("{} run", names(&daemons))
        }
    );
    Err(Failure::new(Exit::Refused, "still-running", text))
}

/// An adoption in progress.
pub(super) struct Session<'a> {
    pub(super) context: &'a Context,
    pub(super) command: &'a AdoptCommand,
    /// `None` with `--dry-run`.
    pub(super) journal: Option<Journal>,
    pub(super) snapshot: Snapshot,
    pub(super) inventory: Inventory,
    pub(super) daemons: Vec<CalicoDaemon>,
    state_dir: String,
}

impl<'a> Session<'a> {
    fn open(context: &'a Context, command: &'a AdoptCommand) -> Result<Self, Failure> {
        let journal = if command.dry_run { None } else { Some(Journal::open(&command.common.state_dir)?) };
        let begun = journal.as_ref().is_some_and(|j| j.has_begun(Step::Stop) && !is_over(j));
        let (snapshot, daemons) = match &journal {
            Some(journal) if begun => (
                Journal::peek_snapshot(&command.common.state_dir)?,
                journal.record.as_ref().map(|r| r.daemons.clone()).unwrap_or_default(),
            ),
            _ => (look(command.common.route_protocol)?, daemons::find()),
        };
        let inventory = Inventory::of(&snapshot);
        let state_dir = command.common.state_dir.display().to_string();
        Ok(Self { context, command, journal, snapshot, inventory, daemons, state_dir })
    }

    pub(super) fn line(&self, step: Step) -> Line {
        self.command.plan(&self.inventory, &self.daemons, &self.state_dir).line(step)
    }

    fn common(&self) -> &'a Common {
        &self.command.common
    }

    pub(super) fn marks(&self) -> (u8, u32) {
        (self.common().route_protocol, self.common().route_metric)
    }

    pub(super) fn wait(&self) -> Duration {
        Duration::from_secs(self.common().wait)
    }

    pub(super) fn socket(&self) -> &'a Path {
        &self.context.globals.socket
    }

    pub(super) fn journal(&mut self) -> Result<&mut Journal, Failure> {
        self.journal
            .as_mut()
            .ok_or_else(|| Failure::new(Exit::Partial, "state", "nothing is written with --dry-run"))
    }

    fn has_ended(&self, step: Step) -> bool {
        self.journal.as_ref().is_some_and(|j| j.has_ended(step) && !is_over(j))
    }

    async fn stop(&mut self, progress: &mut Progress) -> Result<(), Failure> {
        self.daemons = match daemons::find() {
            running if running.is_empty() => std::mem::take(&mut self.daemons),
            running => running,
        };
        let line = self.line(Step::Stop);
        if self.has_ended(Step::Stop) && daemons::find().is_empty() {
            progress.skip(line, "no daemon of Calico runs");
            return Ok(());
        }
        let stop = self.command.stop.clone();
        let (protocol, _) = self.marks();
        let journal = self.journal()?;
        journal.change(|record| record.stop = stop.clone())?;
        let mut last = None;
        progress
            .step(line, async {
                journal.begin(Step::Stop)?;
                let running = daemons::find();
                if !running.is_empty() {
                    stop.end(&running)?;
                }
                // The state as Calico left it, which a rollback restores.
                let snapshot = look(protocol)?;
                journal.keep(&snapshot)?;
                last = Some(snapshot);
                journal.end(Step::Stop)?;
                Ok(if running.is_empty() {
                    "none runs".to_owned()
                } else {
                    format!("gone: {}", names(&running))
                })
            })
            .await?;
        if let Some(snapshot) = last {
            self.inventory = Inventory::of(&snapshot);
            self.snapshot = snapshot;
        }
        Ok(())
    }

    async fn start(&mut self, progress: &mut Progress) -> Result<(), Failure> {
        let (protocol, metric) = self.marks();
        let (socket, wait) = (self.socket(), self.wait());
        let runs = agent::status(socket).await.is_some_and(|status| status.dataplane.mode == "program");
        let (copy, start, settle) = (self.line(Step::Copy), self.line(Step::Start), self.line(Step::Settle));
        let (agent_with, accepted) = (self.command.agent_with.clone(), self.command.accept_differences);
        let writers = self.inventory.writers();
        let copies: Vec<KeptRoute> =
            self.snapshot.routes.iter().map(|route| route.under(protocol, metric)).collect();
        let journal = self.journal()?;
        if runs {
            progress.skip(copy, "our agent runs already and has its own");
            progress.skip(start, "our agent runs already");
        } else {
            progress
                .step(copy, async {
                    journal.begin(Step::Copy)?;
                    let refused = handover::put_routes(&copies).map_err(|e| kernel(&e))?;
                    if let Some(first) = refused.first() {
                        return Err(kernel(&format!("{}: {}", first.prefix, first.reason)));
                    }
                    journal.end(Step::Copy)?;
                    Ok(format!("{} written", counted(copies.len(), "route")))
                })
                .await?;
            progress
                .step(start, async {
                    journal.begin(Step::Start)?;
                    daemons::run_shell(&agent_with)?;
                    journal.end(Step::Start)?;
                    Ok("it is started".to_owned())
                })
                .await?;
        }
        progress
            .step(settle, async {
                journal.begin(Step::Settle)?;
                let status = agent::settle(socket, wait).await?;
                let missing = without_ours(protocol, metric)?;
                journal.change(|record| record.without_ours.clone_from(&missing))?;
                if let Some(first) = missing.first()
                    && !accepted
                {
                    let text = format!(
                        "there is no route of ours for {} of {writers} ({first} is the first: tortie why route \
                         {first}). Those of {writers} are still in use; continue with --accept-differences, or `tortie \
                         migrate rollback`",
                        counted(missing.len(), "route")
                    );
                    return Err(Failure::new(Exit::Refused, "differences", text));
                }
                journal.end(Step::Settle)?;
                let (mesh, peers) = (status.bgp.mesh, status.bgp.peers);
                Ok(format!(
                    "{} of {} sessions are up, {} and {} in force",
                    mesh.up + peers.up,
                    mesh.of + peers.of,
                    counted(status.routes.installed, "route"),
                    counted(status.policy.endpoints, "endpoint")
                ))
            })
            .await
    }

    async fn clear(&mut self, progress: &mut Progress) -> Result<(), Failure> {
        let (protocol, metric) = self.marks();
        let (rules, sets, routes) =
            (self.line(Step::RemoveRules), self.line(Step::RemoveSets), self.line(Step::RemoveRoutes));
        let journal = self.journal()?;
        progress
            .step(rules, async {
                journal.begin(Step::RemoveRules)?;
                let mut removed = 0;
                for saved in tools::saved_rules()? {
                    let listing = saved.listing();
                    if let Some(text) = listing.removal() {
                        removed += listing.felix_rules();
                        tools::restore(saved.backend, saved.v4, &text)?;
                        super::journal::halt("remove-rules", "half");
                    }
                }
                for saved in tools::saved_tables()? {
                    removed += saved.listing().rules();
                    tools::remove_table(&saved)?;
                    super::journal::halt("remove-rules", "half");
                }
                journal.end(Step::RemoveRules)?;
                Ok(format!("{} removed", counted(removed, "rule")))
            })
            .await?;
        progress
            .step(sets, async {
                journal.begin(Step::RemoveSets)?;
                let (_, names) = felix_sets(&tools::saved_sets()?);
                tools::remove_sets(&names)?;
                journal.end(Step::RemoveSets)?;
                Ok(format!("{} removed", counted(names.len(), "set")))
            })
            .await?;
        progress
            .step(routes, async {
                journal.begin(Step::RemoveRoutes)?;
                // The routes are read again: a prefix that was withdrawn meanwhile has no route of Tortie, and
                // Calico's is outdated.
                let theirs = handover::calico_routes(protocol).map_err(|e| kernel(&e))?;
                let refused = handover::remove_routes(&theirs).map_err(|e| kernel(&e))?;
                if let Some(first) = refused.first() {
                    return Err(kernel(&format!("{}: {}", first.prefix, first.reason)));
                }
                journal.end(Step::RemoveRoutes)?;
                let ours = own(protocol, metric)?.len();
                Ok(format!("{} removed, {ours} of ours in use", counted(theirs.len(), "route")))
            })
            .await
    }

    async fn verify(&mut self, progress: &mut Progress) -> Result<(), Failure> {
        let (socket, wait) = (self.socket(), self.wait());
        let line = self.line(Step::Verify);
        let (next, pair) = (leftovers(&self.daemons, self.command), self.command.pair());
        let (protocol, _) = self.marks();
        let journal = self.journal()?;
        progress
            .step(line, async {
                journal.begin(Step::Verify)?;
                agent::settle(socket, wait).await?;
                let left = look(protocol)?;
                if left != (Snapshot { version: left.version, ..Snapshot::default() }) {
                    let text = format!(
                        "{} are here again: a process of Calico still runs. Stop it, then adopt again",
                        Inventory::of(&left).in_words()
                    );
                    return Err(Failure::new(Exit::No, "still-there", text));
                }
                let diff: Diff = crate::cli::client::Client::new(socket).get("/v1/diff").await?;
                let compared = Compared::read(&diff);
                if let Some(pair) = pair {
                    journal.change(|record| {
                        record.boot_units = std::mem::take(&mut record.boot_units).and(pair);
                    })?;
                    journal.record.as_ref().map_or(Ok(()), |record| record.boot_units.change())?;
                }
                journal.end(Step::Verify)?;
                journal.change(|record| record.phase = MigrationPhase::Adopted)?;
                Ok(format!(
                    "nothing of Calico is left in the kernel; compared with the desired state: {}",
                    compared.in_words()
                ))
            })
            .await?;
        progress.report.phase = MigrationPhase::Adopted.as_str().to_owned();
        progress.report.next = next;
        Ok(())
    }
}

pub(super) fn is_over(journal: &Journal) -> bool {
    journal.record.as_ref().is_some_and(|record| record.phase == MigrationPhase::RolledBack)
}

fn kernel(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Partial, "kernel", format!("the kernel: {error}"))
}

/// Returns Tortie's routes to other hosts, and its blackholes.
///
/// # Errors
/// If the kernel cannot be read.
pub(super) fn own(protocol: u8, metric: u32) -> Result<Vec<KeptRoute>, Failure> {
    let mut routes = handover::kept_routes(protocol).map_err(|e| kernel(&e))?;
    routes.retain(|route| route.metric == metric);
    Ok(routes)
}

/// Returns the prefixes for which Calico has a route and Tortie has none.
fn without_ours(protocol: u8, metric: u32) -> Result<Vec<Cidr>, Failure> {
    let ours: BTreeMap<Cidr, KeptRoute> =
        own(protocol, metric)?.into_iter().map(|route| (route.prefix, route)).collect();
    let theirs = handover::calico_routes(protocol).map_err(|e| kernel(&e))?;
    // BIRD installs copies of connected networks, for which the kernel has its own routes.
    let look = NetworkSnapshot::read(&[BIRD, FELIX, protocol]).map_err(|e| kernel(&e))?;
    let connected = |prefix: &Cidr| look.at(prefix).iter().any(|route| route.protocol == KERNEL);
    let missing = theirs.into_iter().map(|route| route.prefix).filter(|prefix| !ours.contains_key(prefix));
    Ok(missing.filter(|prefix| !connected(prefix)).collect())
}
