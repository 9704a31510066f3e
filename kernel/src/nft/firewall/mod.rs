//! The driver of the packet rules: takes what policy asks for, has it written, and finds out when somebody else wrote.
//!
//! While only we write, the kernel holds what was acknowledged, and each change is one small batch. The kernel counts every
//! transaction of anybody (its generation id): when it moved without us, or when a batch was refused or its answer was
//! lost, the table is read and compared, and what differs is written. Start, steady state and repair end in the same
//! batch. Nothing is touched before the first change of policy, which is the whole of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fib::resolve::Picture;
use crate::intent::PolicyChange;
use crate::nft::diff;
use crate::nft::dump;
use crate::nft::edit_order;
use crate::nft::fail_closed::{self, Closed, Refused};
use crate::nft::ir::{Edit, Name};
use crate::nft::metrics::{RuleDrift, RuleMeasures};
use crate::nft::render::{Options, Renderer};
use crate::nft::socket::{BatchError, Refusal, Socket};
use crate::options::Mode;
use crate::worker::beside;
use tortie_engine::policy::{ChainId, Globals, HostInterfaces, RulesetDelta, host_interfaces};

mod view;

pub use self::view::{RuleCounts, RuleHits};

/// The table that is ours.
pub(super) const TABLE: &str = "tortie";
/// How often the generation is asked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// First pause before what was refused is tried again; doubles up to the last.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// Differences that are kept in words.
const WORDS: usize = 100;

/// What the thread has to tell.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Objects that somebody else changed, and the first in words.
    pub(crate) repaired: Option<(usize, String)>,
    /// [`Firewall::trouble`] is another.
    pub(crate) trouble: bool,
}

/// What is done while a long transaction is under way.
pub(crate) type Meanwhile<'a> = dyn FnMut(&Firewall) + 'a;

/// The packet rules of this host.
pub(crate) struct Firewall {
    mode: Mode,
    /// `None`: off.
    socket: Option<Socket>,
    renderer: Renderer,
    globals: Option<Arc<Globals>>,
    hosts: HostInterfaces,
    /// The first change of policy came.
    begun: bool,
    /// The kernel's generation, when it holds what is wanted; `None`: nobody knows what it holds.
    generation: Option<u32>,
    due: Option<Instant>,
    pause: Duration,
    /// Comparing takes at most a fifth of the time.
    earliest: Instant,
    trouble: Option<String>,
    /// The kernel has no table of ours and refuses one: nothing is enforced.
    bare: bool,
    /// Chains that the kernel refuses, and that deny instead.
    closed: Closed,
    /// What is wanted is another since it was last rendered anew because of a clash of names.
    untried: bool,
    /// Changes wait for the next look: what is known of the trouble is older than they are.
    waiting: bool,
    counts: RuleCounts,
    drift: (usize, Vec<String>),
    drift_counts: RuleDrift,
    measures: RuleMeasures,
    last_compare: Option<Instant>,
    /// What others change is left for study.
    held: bool,
    /// When the differences of `drift` were found.
    drift_since: Option<Instant>,
    told: Told,
}

impl Firewall {
    /// Rules are off when this kernel has no nf_tables; [`Firewall::trouble`] says so then.
    pub(crate) fn open(mode: Mode, options: Options, now: Instant) -> Self {
        let mut firewall = Self {
            mode,
            socket: None,
            renderer: Renderer::new(options),
            globals: None,
            hosts: HostInterfaces::default(),
            begun: false,
            generation: None,
            due: None,
            pause: RETRY_FIRST,
            earliest: now,
            trouble: None,
            bare: false,
            closed: Closed::new(),
            untried: false,
            waiting: false,
            counts: RuleCounts::default(),
            drift: (0, Vec::new()),
            drift_counts: RuleDrift::default(),
            measures: RuleMeasures::default(),
            last_compare: None,
            held: false,
            drift_since: None,
            told: Told::default(),
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
            Err(error) => firewall.give_up(&error.to_string()),
        }
        firewall
    }

    fn give_up(&mut self, why: &str) {
        self.socket = None;
        self.due = None;
        self.worry(Some(format!(
            "packet rules are off: this kernel has no nf_tables for family inet ({why}); no policy is enforced here"
        )));
    }

    fn worry(&mut self, trouble: Option<String>) {
        if self.trouble != trouble {
            self.trouble = trouble;
            self.told.trouble = true;
        }
    }

    /// What keeps the rules from being in force.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether the kernel holds what is wanted, or nothing is to be written.
    pub(crate) fn settled(&self) -> bool {
        self.mode != Mode::Program || self.socket.is_none() || self.generation.is_some()
    }

    /// Rules are wanted and the kernel refuses them, or has none.
    pub(crate) fn is_refused(&self) -> bool {
        self.mode == Mode::Program && self.socket.is_some() && self.trouble.is_some() && !self.waiting
    }

    /// Rules are wanted, and there are none at all: whoever is reached meets no policy.
    pub(crate) fn is_bare(&self) -> bool {
        self.mode == Mode::Program && self.socket.is_some() && self.bare
    }

    /// Policies and profiles that deny everything because the kernel refuses their rules, with what it says.
    pub(crate) fn closed(&self) -> BTreeMap<ChainId, String> {
        let id = |(name, why): (&Name, &str)| Some((self.renderer.rules_in(name)?.clone(), why.to_owned()));
        self.closed.iter().filter_map(id).collect()
    }

    /// What may be done to the kernel's rules.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Leaves what others change for study, or repairs it at the next look.
    pub(crate) fn hold(&mut self, held: bool) {
        if std::mem::replace(&mut self.held, held) && !held && self.drift.0 > 0 {
            self.generation = None;
            self.due = self.socket.is_some().then(Instant::now);
            self.earliest = Instant::now();
        }
    }

    /// How long ago the differences that are not repaired were found.
    pub(crate) fn drift_age(&self) -> Option<Duration> {
        self.drift_since.filter(|_| self.drift.0 > 0).map(|at| at.elapsed())
    }

    /// What is to be told since the last call.
    pub(crate) fn take_told(&mut self) -> Told {
        std::mem::take(&mut self.told)
    }

    /// When [`Firewall::look`] is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Changes of policy, one after the other; one transaction.
    pub(crate) fn take(
        &mut self,
        changes: &[PolicyChange],
        picture: &Picture,
        meanwhile: &mut Meanwhile<'_>,
    ) -> io::Result<()> {
        let first = !std::mem::replace(&mut self.begun, true);
        let hosts = changes.iter().any(PolicyChange::touches_hosts);
        for change in changes {
            if let Some(globals) = &change.globals {
                self.globals = Some(Arc::clone(globals));
            }
            self.renderer.absorb(&change.delta, change.globals.as_deref(), None);
        }
        if hosts {
            self.resolve(picture);
        }
        if first {
            self.due = self.socket.is_some().then(Instant::now);
        }
        self.act(meanwhile)
    }

    /// Links or addresses are others: host endpoints may govern other interfaces.
    pub(crate) fn interfaces(&mut self, picture: &Picture, meanwhile: &mut Meanwhile<'_>) -> io::Result<()> {
        if !self.begun {
            return Ok(());
        }
        self.resolve(picture);
        self.act(meanwhile)
    }

    fn resolve(&mut self, picture: &Picture) {
        let Some(globals) = &self.globals else { return };
        let hosts = host_interfaces(self.renderer.ruleset(), globals, picture.interfaces());
        if hosts != self.hosts {
            self.hosts = hosts;
            self.renderer.absorb(&RulesetDelta::default(), None, Some(&self.hosts));
        }
    }

    fn act(&mut self, meanwhile: &mut Meanwhile<'_>) -> io::Result<()> {
        let edits = self.renderer.edits();
        self.untried = true;
        let others = self.closed.forget(&edits);
        match (self.mode, self.generation) {
            _ if self.socket.is_none() => Ok(()),
            _ if self.clashes() => Ok(()),
            (Mode::Program, Some(_)) if others => self.compare(false, meanwhile),
            (Mode::Program, Some(_)) if edits.is_empty() => Ok(()),
            (Mode::Program, Some(_)) => match self.write(&edits, None)? {
                Ok(()) => Ok(()),
                // Somebody may have taken away what the edits build on. What is newly wanted ends a hold of rules.
                Err(_) => self.compare(!self.held, meanwhile),
            },
            _ => self.compare_now_or_soon(meanwhile),
        }
    }

    /// Nothing is written while two different things would have one name: one of them would be the other's rules. When one
    /// of them may be gone, all is rendered anew: nobody knows what of the other it took along.
    fn clashes(&mut self) -> bool {
        let Some(what) = self.renderer.clash() else { return false };
        let what = format!(
            "nothing is written any more: two different {what}; rename a policy, profile or tier, or write one of the two \
             selectors in another way"
        );
        self.generation = None;
        let begin = Instant::now();
        if begin < self.earliest && self.untried {
            self.due = Some(self.earliest);
        } else if std::mem::take(&mut self.untried) {
            let anew = self.renderer.anew(&self.hosts);
            self.earliest = Instant::now() + begin.elapsed() * 4;
            if anew.clash().is_none() {
                self.renderer = anew;
                self.closed = Closed::new();
                return false;
            }
        }
        self.worry(Some(what));
        true
    }

    /// While every change needs a comparison (the kernel refuses rules, or nothing is written) many share one.
    fn compare_now_or_soon(&mut self, meanwhile: &mut Meanwhile<'_>) -> io::Result<()> {
        if Instant::now() >= self.earliest {
            return self.compare(false, meanwhile);
        }
        (self.waiting, self.generation) = (true, None);
        self.due = Some(self.due.map_or(self.earliest, |due| due.min(self.earliest)));
        Ok(())
    }

    /// What is due now: the generation, a comparison, another attempt.
    pub(crate) fn look(&mut self, now: Instant, meanwhile: &mut Meanwhile<'_>) -> io::Result<()> {
        if self.due.is_none_or(|due| due > now) {
            return Ok(());
        }
        let Some(socket) = &mut self.socket else { return Ok(()) };
        self.due = Some(now + LOOK_EVERY);
        let again = self.closed.is_due(now);
        if let Some(known) = self.generation {
            let is = socket.generation()?;
            if is == known && !again {
                return Ok(());
            }
        }
        if now < self.earliest {
            self.due = Some(self.earliest);
            return Ok(());
        }
        self.compare(self.generation.is_some() && !again, meanwhile)
    }

    /// Reads the table and writes what differs. `external`: what differs is somebody else's doing.
    fn compare(&mut self, external: bool, meanwhile: &mut Meanwhile<'_>) -> io::Result<()> {
        if self.clashes() {
            return Ok(());
        }
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let begin = Instant::now();
        self.counts.compares += 1;
        let reason = match (self.last_compare, external) {
            (None, _) => "start",
            (_, true) => "external_change",
            _ if self.trouble.is_some() || self.closed.iter().next().is_some() => "retry",
            _ => "request",
        };
        *self.measures.compares.entry(reason).or_default() += 1;
        self.waiting = false;
        let before = socket.generation()?;
        let found = match dump::table(socket, TABLE) {
            // Another time: in steady state nothing says yet that anything of ours is another.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.earliest = Instant::now() + begin.elapsed() * 4;
                self.due = Some(self.earliest.max(begin + RETRY_FIRST));
                if self.generation.is_none() {
                    self.worry(Some(format!("the kernel's packet rules cannot be read: {error}")));
                }
                return Ok(());
            }
            found => found?,
        };
        self.bare = found.is_none();
        if self.closed.is_due(begin) {
            self.closed.open();
        }
        let edits = diff::diff(self.renderer.table(), found.as_ref());
        let mut edits = self.closed.instead(edits, found.as_ref());
        self.earliest = Instant::now() + begin.elapsed() * 4;
        let words = edits.iter().take(WORDS).map(|edit| diff::words(edit, found.as_ref())).collect();
        self.drift = (edit_order::size(&edits), words);
        self.drift_counts = diff::drift(&edits, found.as_ref());
        let now = Instant::now();
        self.measures.compare.time(now - begin);
        self.last_compare = Some(now);
        self.drift_since.get_or_insert(begin);
        if edits.is_empty() {
            self.drift_since = None;
            self.generation = Some(before);
            self.worry(None);
            return Ok(());
        }
        if self.mode == Mode::Observe || (self.held && external) {
            self.generation = Some(before);
            return Ok(());
        }
        let mut foreign = external;
        let refusal = loop {
            self.generation = Some(before);
            if edits.is_empty() {
                self.drift = (0, Vec::new());
                self.drift_counts = RuleDrift::default();
                self.worry(None);
                return Ok(());
            }
            let refusal = match self.write(&edits, Some(meanwhile))? {
                Ok(()) => {
                    self.written(&edits, foreign);
                    return Ok(());
                }
                Err(refusal) => refusal,
            };
            // A policy or a profile that the kernel does not take denies, so that all others are in force.
            let Some(what) = self.closable(&refusal, &edits, before)? else { break refusal };
            self.closed.close(what, &refusal.text);
            edits = self.closed.instead(edits, found.as_ref());
            foreign = false;
        };
        let table = refusal.edit.is_none();
        if table
            && found.is_none()
            && matches!(refusal.code, libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT)
        {
            self.give_up(&refusal.text);
            return Ok(());
        }
        let edit = refusal.edit.and_then(|at| edits.get(at));
        let object = edit.map(|edit| format!(" ({})", diff::words(edit, None))).unwrap_or_default();
        let needs = edit.and_then(|edit| fail_closed::needs(edit, refusal.code)).unwrap_or_default();
        self.worry(Some(format!("the kernel refuses the packet rules: {}{object}{needs}", refusal.text)));
        // What is refused may take longer than what was read.
        self.earliest = Instant::now() + begin.elapsed() * 4;
        self.due = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(RETRY_LAST);
        Ok(())
    }

    /// A comparison was carried out.
    fn written(&mut self, edits: &[Edit], external: bool) {
        self.bare = false;
        self.drift_since = None;
        let first = std::mem::take(&mut self.drift).1.into_iter().next();
        self.drift_counts = RuleDrift::default();
        if external && let Some(first) = first {
            let objects = edit_order::size(edits);
            self.counts.external_changes += objects as u64;
            let (all, _) = self.told.repaired.get_or_insert((0, first));
            *all += objects;
        }
        self.worry(None);
        self.pause = RETRY_FIRST;
    }

    /// The chains of policies and profiles whose rules the kernel does not take, as they are, or a set of theirs: not
    /// because it is short of something, or because somebody else wrote meanwhile.
    fn closable(&mut self, refusal: &Refusal, edits: &[Edit], before: u32) -> io::Result<Option<Refused>> {
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
        if passing || !self.closed.has_room(&what) || !of_policy {
            return Ok(None);
        }
        let Some(socket) = &mut self.socket else { return Ok(None) };
        Ok((socket.generation()? == before).then_some(what))
    }

    /// Sends one transaction. The first one may wait for the kernel to load modules, a whole table for it to be checked:
    /// with `meanwhile` another thread waits for that. The rules say the same before and after; only the socket is away.
    fn carry(&mut self, edits: &[Edit], meanwhile: Option<&mut Meanwhile<'_>>) -> Result<(), BatchError> {
        let Some(mut socket) = self.socket.take() else { return Ok(()) };
        let carried = match meanwhile {
            None => socket.batch(edits, TABLE),
            Some(meanwhile) => beside("rules", || socket.batch(edits, TABLE), || meanwhile(self)),
        };
        self.socket = Some(socket);
        carried
    }

    /// Sends edits as one transaction; what has to be there before goes before it, which nobody can see.
    fn write(
        &mut self,
        edits: &[Edit],
        mut meanwhile: Option<&mut Meanwhile<'_>>,
    ) -> io::Result<Result<(), Refusal>> {
        let known = self.generation.take();
        let (mut done, mut transactions) = (0, 0);
        for part in edit_order::of(edits) {
            let begin = Instant::now();
            match self.carry(part, meanwhile.as_deref_mut()) {
                Ok(()) => self.measures.applied.time(begin.elapsed()),
                Err(BatchError::Refused(mut refusal)) => {
                    self.counts.refused += 1;
                    self.measures.refused.time(begin.elapsed());
                    refusal.edit = refusal.edit.map(|at| at + done);
                    return Ok(Err(refusal));
                }
                // All of it or nothing: the next look reads the table.
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
            // Somebody wrote meanwhile: compared at the next look.
            self.generation = Some(now.wrapping_sub(1));
        }
        Ok(Ok(()))
    }
}
