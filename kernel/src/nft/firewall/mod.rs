//! The packet rules as a whole: accepts policy changes, writes them, and detects changes by other processes.
//!
//! While only Tortie writes, the kernel has the acknowledged state, and each change is one small batch. The
//! kernel counts all transactions (the generation ID). If it changed without Tortie's doing, or if a batch
//! was refused or its answer was lost, the table is dumped and compared, and the differences are written.
//! Start, steady state and repair use the same batches. Nothing is changed before the first policy change,
//! which contains the whole ruleset.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fib::network::NetworkState;
use crate::intent::PolicyChange;
use crate::nft::diff;
use crate::nft::dump;
use crate::nft::edit_order;
use crate::nft::fail_closed::{self, FailClosed, Refused};
use crate::nft::ir::{Edit, Name};
use crate::nft::metrics::{RuleDrift, RuleMetrics};
use crate::nft::render::{Options, Renderer};
use crate::nft::socket::{BatchError, Refusal, Socket};
use crate::options::Mode;
use crate::worker::with_worker;
use tortie_engine::policy::{ChainId, Globals, HostInterfaces, RulesetDelta, host_interfaces};

mod view;

pub use self::view::{RuleCounts, RuleHits};

/// Name of Tortie's table.
pub(super) const TABLE: &str = "tortie";
/// Interval of generation checks.
const GENERATION_INTERVAL: Duration = Duration::from_millis(500);
/// First pause before a refused write is retried; it doubles up to `RETRY_LAST`.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// Maximum number of differences that are described.
const DIFFERENCES_LISTED: usize = 100;

/// Results that the kernel thread has to report.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleReport {
    /// Number of objects that another process changed, and a description of the first one.
    pub(crate) repaired: Option<(usize, String)>,
    /// True if [`Firewall::problem`] changed.
    pub(crate) problem_changed: bool,
}

/// Called repeatedly during a long transaction.
pub(crate) type WhileWaiting<'a> = dyn FnMut(&Firewall) + 'a;

/// The packet rules of this host.
pub(crate) struct Firewall {
    mode: Mode,
    /// `None` if packet rules are disabled.
    socket: Option<Socket>,
    renderer: Renderer,
    globals: Option<Arc<Globals>>,
    hosts: HostInterfaces,
    /// True once the first policy change was received.
    policy_received: bool,
    /// The kernel's generation if it has the desired state; `None` if its state is unknown.
    generation: Option<u32>,
    due: Option<Instant>,
    pause: Duration,
    /// Earliest time of the next comparison: comparisons take at most a fifth of the time.
    not_before: Instant,
    problem: Option<String>,
    /// True if the kernel has no table of Tortie and refuses one, so that nothing is enforced.
    no_table: bool,
    /// Chains that the kernel refuses, and that deny instead.
    fail_closed: FailClosed,
    /// True if the desired state changed since everything was last rendered again because of a name
    /// collision.
    retry_render: bool,
    /// True if changes wait for the next comparison, so that `problem` is older than they are.
    changes_queued: bool,
    counts: RuleCounts,
    drift: (usize, Vec<String>),
    drift_counts: RuleDrift,
    metrics: RuleMetrics,
    last_compare: Option<Instant>,
    /// True during a drift hold.
    drift_held: bool,
    /// Time at which the differences in `drift` were found.
    drift_since: Option<Instant>,
    report: RuleReport,
}

impl Firewall {
    /// Opens the socket. Without nf_tables in the kernel, rules are disabled and [`Firewall::problem`]
    /// reports it.
    pub(crate) fn open(mode: Mode, options: Options, now: Instant) -> Self {
        let mut firewall = Self {
            mode,
            socket: None,
            renderer: Renderer::new(options),
            globals: None,
            hosts: HostInterfaces::default(),
            policy_received: false,
            generation: None,
            due: None,
            pause: RETRY_FIRST,
            not_before: now,
            problem: None,
            no_table: false,
            fail_closed: FailClosed::new(),
            retry_render: false,
            changes_queued: false,
            counts: RuleCounts::default(),
            drift: (0, Vec::new()),
            drift_counts: RuleDrift::default(),
            metrics: RuleMetrics::default(),
            last_compare: None,
            drift_held: false,
            drift_since: None,
            report: RuleReport::default(),
        };
        if mode == Mode::Off {
            return firewall;
        }
        let opened = Socket::open().and_then(|mut socket| {
            socket.generation()?;
            Ok(socket)
        });
        match opened {
            Ok(socket) => firewall.socket = Some(socket),
            Err(error) => firewall.disable(&error.to_string()),
        }
        firewall
    }

    fn disable(&mut self, why: &str) {
        self.socket = None;
        self.due = None;
        self.set_problem(Some(format!(
            "packet rules are off: this kernel has no nf_tables for family inet ({why}); no policy is enforced here"
        )));
    }

    fn set_problem(&mut self, problem: Option<String>) {
        if self.problem != problem {
            self.problem = problem;
            self.report.problem_changed = true;
        }
    }

    /// Returns the reason why the rules are not in force, if any.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns true if the kernel has the desired state, or if nothing may be written.
    pub(crate) fn settled(&self) -> bool {
        self.mode != Mode::Program || self.socket.is_none() || self.generation.is_some()
    }

    /// Returns true if rules must be written and the kernel refuses them or has no nf_tables.
    pub(crate) fn is_refused(&self) -> bool {
        self.mode == Mode::Program && self.socket.is_some() && self.problem.is_some() && !self.changes_queued
    }

    /// Returns true if rules must be written and there is no table at all: packets meet no policy.
    pub(crate) fn has_no_table(&self) -> bool {
        self.mode == Mode::Program && self.socket.is_some() && self.no_table
    }

    /// Returns the policies and profiles that fail closed because the kernel refuses their rules, with its
    /// reason.
    pub(crate) fn closed(&self) -> BTreeMap<ChainId, String> {
        let id = |(name, why): (&Name, &str)| Some((self.renderer.rules_in(name)?.clone(), why.to_owned()));
        self.fail_closed.iter().filter_map(id).collect()
    }

    /// Returns the mode: the permitted changes of the kernel's rules.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Begins a drift hold, or ends it and repairs the differences at the next check.
    pub(crate) fn hold(&mut self, held: bool) {
        if std::mem::replace(&mut self.drift_held, held) && !held && self.drift.0 > 0 {
            self.generation = None;
            self.due = self.socket.is_some().then(Instant::now);
            self.not_before = Instant::now();
        }
    }

    /// Returns the age of differences that are not repaired.
    pub(crate) fn drift_age(&self) -> Option<Duration> {
        self.drift_since.filter(|_| self.drift.0 > 0).map(|at| at.elapsed())
    }

    /// Returns the results since the last call.
    pub(crate) fn take_report(&mut self) -> RuleReport {
        std::mem::take(&mut self.report)
    }

    /// Returns the time of the next [`Firewall::check_generation`].
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Applies policy changes, in order, in one transaction.
    pub(crate) fn accept(
        &mut self,
        changes: &[impl Borrow<PolicyChange>],
        network: &NetworkState,
        meanwhile: &mut WhileWaiting<'_>,
    ) -> io::Result<()> {
        let first = !std::mem::replace(&mut self.policy_received, true);
        let hosts = changes.iter().any(|change| change.borrow().touches_hosts());
        for change in changes.iter().map(Borrow::borrow) {
            if let Some(globals) = &change.globals {
                self.globals = Some(Arc::clone(globals));
            }
            self.renderer.absorb(&change.delta, change.globals.as_deref(), None);
        }
        if hosts {
            self.resolve(network);
        }
        if first {
            self.due = self.socket.is_some().then(Instant::now);
        }
        self.apply(meanwhile)
    }

    /// Handles changed links or addresses, after which host endpoints may cover other interfaces.
    pub(crate) fn interfaces(
        &mut self,
        network: &NetworkState,
        meanwhile: &mut WhileWaiting<'_>,
    ) -> io::Result<()> {
        if !self.policy_received {
            return Ok(());
        }
        self.resolve(network);
        self.apply(meanwhile)
    }

    fn resolve(&mut self, network: &NetworkState) {
        let Some(globals) = &self.globals else { return };
        let hosts = host_interfaces(self.renderer.ruleset(), globals, network.interfaces());
        if hosts != self.hosts {
            self.hosts = hosts;
            self.renderer.absorb(&RulesetDelta::default(), None, Some(&self.hosts));
        }
    }

    fn apply(&mut self, meanwhile: &mut WhileWaiting<'_>) -> io::Result<()> {
        let edits = self.renderer.edits();
        self.retry_render = true;
        let others = self.fail_closed.forget(&edits);
        match (self.mode, self.generation) {
            _ if self.socket.is_none() => Ok(()),
            _ if self.has_collision() => Ok(()),
            (Mode::Program, Some(_)) if others => self.compare(false, meanwhile),
            (Mode::Program, Some(_)) if edits.is_empty() => Ok(()),
            (Mode::Program, Some(_)) => match self.write(&edits, None)? {
                Ok(()) => Ok(()),
                // Another process may have removed objects on which the edits depend. A policy change ends a
                // hold of rules.
                Err(_) => self.compare(!self.drift_held, meanwhile),
            },
            _ => self.compare_now_or_soon(meanwhile),
        }
    }

    /// Returns true if two different objects have one name; nothing is written then, since one would have the
    /// other's rules. If one of them may be gone, everything is rendered again, because the renderer state of
    /// the other is unreliable.
    fn has_collision(&mut self) -> bool {
        let Some(what) = self.renderer.name_collision() else { return false };
        let what = format!(
            "packet rules are no longer written: two different {what}; rename a policy, profile or tier, or \
             write one of the two selectors in another way"
        );
        self.generation = None;
        let begin = Instant::now();
        if begin < self.not_before && self.retry_render {
            self.due = Some(self.not_before);
        } else if std::mem::take(&mut self.retry_render) {
            let anew = self.renderer.rerender(&self.hosts);
            self.not_before = Instant::now() + begin.elapsed() * 4;
            if anew.name_collision().is_none() {
                self.renderer = anew;
                self.fail_closed = FailClosed::new();
                return false;
            }
        }
        self.set_problem(Some(what));
        true
    }

    /// While every change needs a comparison (the kernel refuses rules, or nothing may be written), several
    /// changes share one.
    fn compare_now_or_soon(&mut self, meanwhile: &mut WhileWaiting<'_>) -> io::Result<()> {
        if Instant::now() >= self.not_before {
            return self.compare(false, meanwhile);
        }
        (self.changes_queued, self.generation) = (true, None);
        self.due = Some(self.due.map_or(self.not_before, |due| due.min(self.not_before)));
        Ok(())
    }

    /// Does the work that is due: a generation check, a comparison, or a retry.
    pub(crate) fn check_generation(
        &mut self,
        now: Instant,
        meanwhile: &mut WhileWaiting<'_>,
    ) -> io::Result<()> {
        if self.due.is_none_or(|due| due > now) {
            return Ok(());
        }
        let Some(socket) = &mut self.socket else { return Ok(()) };
        self.due = Some(now + GENERATION_INTERVAL);
        let again = self.fail_closed.is_due(now);
        if let Some(known) = self.generation {
            let is = socket.generation()?;
            if is == known && !again {
                return Ok(());
            }
        }
        if now < self.not_before {
            self.due = Some(self.not_before);
            return Ok(());
        }
        self.compare(self.generation.is_some() && !again, meanwhile)
    }

    /// Dumps the table and writes the differences. `external` is true if another process caused them.
    fn compare(&mut self, external: bool, meanwhile: &mut WhileWaiting<'_>) -> io::Result<()> {
        if self.has_collision() {
            return Ok(());
        }
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let begin = Instant::now();
        self.counts.compares += 1;
        let reason = match (self.last_compare, external) {
            (None, _) => "start",
            (_, true) => "external_change",
            _ if self.problem.is_some() || self.fail_closed.iter().next().is_some() => "retry",
            _ => "request",
        };
        *self.metrics.compares.entry(reason).or_default() += 1;
        self.changes_queued = false;
        let before = socket.generation()?;
        let found = match dump::table(socket, TABLE) {
            // Retry later: in steady state nothing indicates yet that Tortie's objects changed.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.not_before = Instant::now() + begin.elapsed() * 4;
                self.due = Some(self.not_before.max(begin + RETRY_FIRST));
                if self.generation.is_none() {
                    self.set_problem(Some(format!("the kernel's packet rules cannot be read: {error}")));
                }
                return Ok(());
            }
            found => found?,
        };
        self.no_table = found.is_none();
        if self.fail_closed.is_due(begin) {
            self.fail_closed.retry();
        }
        let edits = diff::diff(self.renderer.table(), found.as_ref());
        let mut edits = self.fail_closed.replacement_edits(edits, found.as_ref());
        self.not_before = Instant::now() + begin.elapsed() * 4;
        let descriptions =
            edits.iter().take(DIFFERENCES_LISTED).map(|edit| diff::describe(edit, found.as_ref())).collect();
        self.drift = (edit_order::size(&edits), descriptions);
        self.drift_counts = diff::drift(&edits, found.as_ref());
        let now = Instant::now();
        self.metrics.compare.time(now - begin);
        self.last_compare = Some(now);
        self.drift_since.get_or_insert(begin);
        if edits.is_empty() {
            self.drift_since = None;
            self.generation = Some(before);
            self.set_problem(None);
            return Ok(());
        }
        if self.mode == Mode::Observe || (self.drift_held && external) {
            self.generation = Some(before);
            return Ok(());
        }
        let mut foreign = external;
        let refusal = loop {
            self.generation = Some(before);
            if edits.is_empty() {
                self.drift = (0, Vec::new());
                self.drift_counts = RuleDrift::default();
                self.set_problem(None);
                return Ok(());
            }
            let refusal = match self.write(&edits, Some(meanwhile))? {
                Ok(()) => {
                    self.written(&edits, foreign);
                    return Ok(());
                }
                Err(refusal) => refusal,
            };
            // A refused policy or profile fails closed, so that all others are in force.
            let Some(what) = self.can_fail_closed(&refusal, &edits, before)? else { break refusal };
            self.fail_closed.add(what, &refusal.text);
            edits = self.fail_closed.replacement_edits(edits, found.as_ref());
            foreign = false;
        };
        let table = refusal.edit.is_none();
        if table
            && found.is_none()
            && matches!(refusal.code, libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT)
        {
            self.disable(&refusal.text);
            return Ok(());
        }
        let edit = refusal.edit.and_then(|at| edits.get(at));
        let object = edit.map(|edit| format!(" ({})", diff::describe(edit, None))).unwrap_or_default();
        let needs = edit.and_then(|edit| fail_closed::needs(edit, refusal.code)).unwrap_or_default();
        self.set_problem(Some(format!(
            "the kernel refuses the packet rules: {}{object}{needs}",
            refusal.text
        )));
        // Refused writes may take longer than the dump.
        self.not_before = Instant::now() + begin.elapsed() * 4;
        self.due = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(RETRY_LAST);
        Ok(())
    }

    /// Records a completed comparison.
    fn written(&mut self, edits: &[Edit], external: bool) {
        self.no_table = false;
        self.drift_since = None;
        let first = std::mem::take(&mut self.drift).1.into_iter().next();
        self.drift_counts = RuleDrift::default();
        if external && let Some(first) = first {
            let objects = edit_order::size(edits);
            self.counts.external_changes += objects as u64;
            let (all, _) = self.report.repaired.get_or_insert((0, first));
            *all += objects;
        }
        self.set_problem(None);
        self.pause = RETRY_FIRST;
    }

    /// Returns the chains of policies and profiles that must fail closed because the kernel rejects their
    /// rules or one of their sets, unless the kernel lacks resources or another process wrote meanwhile.
    fn can_fail_closed(
        &mut self,
        refusal: &Refusal,
        edits: &[Edit],
        before: u32,
    ) -> io::Result<Option<Refused>> {
        let edit = refusal.edit.and_then(|at| edits.get(at));
        let Some(what) = edit.and_then(|edit| Refused::of(edit, self.renderer.table())) else {
            return Ok(None);
        };
        let passing = matches!(
            refusal.code,
            libc::ENOMEM
                | libc::ENOBUFS
                | libc::EPERM
                | libc::EACCES
                | libc::EAGAIN
                | libc::EINTR
                | libc::EBUSY
        );
        let of_policy = what.chains.iter().all(|name| self.renderer.rules_in(name).is_some());
        if passing || !self.fail_closed.can_add(&what) || !of_policy {
            return Ok(None);
        }
        let Some(socket) = &mut self.socket else { return Ok(None) };
        Ok((socket.generation()? == before).then_some(what))
    }

    /// Sends one transaction. The first one may wait for the kernel to load modules, and a whole table takes
    /// time to be validated: with `meanwhile`, a worker thread waits for it. The state of the firewall does
    /// not change, only the socket is lent.
    fn send(&mut self, edits: &[Edit], meanwhile: Option<&mut WhileWaiting<'_>>) -> Result<(), BatchError> {
        let Some(mut socket) = self.socket.take() else { return Ok(()) };
        let sent = match meanwhile {
            None => socket.batch(edits, TABLE),
            Some(meanwhile) => with_worker("rules", || socket.batch(edits, TABLE), || meanwhile(self)),
        };
        self.socket = Some(socket);
        sent
    }

    /// Sends edits as one transaction, preceded by those that create its prerequisites and that no packet can
    /// notice.
    fn write(
        &mut self,
        edits: &[Edit],
        mut meanwhile: Option<&mut WhileWaiting<'_>>,
    ) -> io::Result<Result<(), Refusal>> {
        let known = self.generation.take();
        let (mut done, mut transactions) = (0, 0);
        for part in edit_order::of(edits) {
            let begin = Instant::now();
            match self.send(part, meanwhile.as_deref_mut()) {
                Ok(()) => self.metrics.applied.time(begin.elapsed()),
                Err(BatchError::Refused(mut refusal)) => {
                    self.counts.refused += 1;
                    self.metrics.refused.time(begin.elapsed());
                    refusal.edit = refusal.edit.map(|at| at + done);
                    return Ok(Err(refusal));
                }
                // Either all was executed or nothing: the next check dumps the table.
                Err(BatchError::Unknown) => {
                    self.due = Some(Instant::now());
                    return Ok(Ok(()));
                }
                Err(BatchError::Socket(error)) => return Err(error),
            }
            self.counts.transactions += 1;
            transactions += 1;
            done += part.len();
        }
        let Some(socket) = &mut self.socket else { return Ok(Ok(())) };
        let now = socket.generation()?;
        if known.map(|known| known.wrapping_add(transactions)) == Some(now) {
            self.generation = known.map(|_| now);
        } else {
            // Another process wrote meanwhile: compared at the next check.
            self.generation = Some(now.wrapping_sub(1));
        }
        Ok(Ok(()))
    }
}
