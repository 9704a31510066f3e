//! The kernel thread, the only writer: it receives messages, updates the state, sends the planned requests,
//! and reports facts.

mod policy;
mod resync;
mod route_pipeline;
mod vxlan;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use tortie_net::{Cidr, ScopedAddr};

use crate::arrival::{Arrival, ArrivalWatch};
use crate::endpoints;
use crate::facts::{ConnectedNetwork, KernelFact, Sink};
use crate::fib::acks::Acks;
use crate::fib::drift_hold;
use crate::fib::ipip_tunnel;
use crate::fib::network::NextHopAnswer;
use crate::fib::plan::{self, PlanRounds};
use crate::fib::request::{Outcome, Request};
use crate::intent::KernelIntent;
use crate::netlink::dump;
use crate::netlink::link::LinkChange;
use crate::netlink::socket::Socket;
use crate::nft::{Admission, Firewall};
use crate::options::Mode;
use crate::sysctl::{self, Changes, HostSysctl, HostSysctls};
use crate::thread::burst::{PolicyWork, gather};
use crate::thread::inbox::Inbox;
use crate::thread::messages::{ArrivalReport, ToKernel};
use crate::thread::monitor::EventQueue;
use crate::thread::next_hop_damping::NextHopDamping;
use crate::thread::policy_progress::PolicyProgress;
use crate::thread::resync_timer::{SOON, Timing};
use crate::thread::state::{Pending, State, Written};
use crate::thread::view::KernelView;
use crate::worker::with_worker;
use tortie_engine::routing::{Legs, TunnelIntent};
use vxlan::{Reading, Vxlan};

/// Interval of checks of the tunnel device if one is desired, in addition to notifications.
const TUNNEL_EVERY: Duration = Duration::from_secs(1);
/// First pause before failed requests are retried; it doubles up to `RETRY_LAST`.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// Subject of a fault of the thread that waits for workloads.
const ARRIVALS: &str = "live migration";
/// Number of requests from which a worker thread sends them: fewer are done before a thread could start.
const MANY: usize = 64;

/// The kernel thread.
pub(super) struct Thread {
    state: State,
    inbox: Inbox,
    writer: Socket,
    reader: Socket,
    event_queue: Arc<EventQueue>,
    sink: Sink,
    /// Start of the current iteration.
    iteration_start: Instant,
    tunnel_due: Option<Instant>,
    /// The address that Tortie assigned to the tunnel device.
    tunnel_addr: Option<Ipv4Addr>,
    ipip_problem: Option<String>,
    vxlan: Vxlan,
    retry_due: Option<Instant>,
    retry_pause: Duration,
    comparisons: Timing,
    applied_failed: Vec<(Cidr, String)>,
    acks: Acks,
    sysctls: HostSysctls,
    firewall: Firewall,
    admission: Admission,
    policy: PolicyProgress,
    applier: endpoints::Applier,
    arrivals: Arc<ArrivalWatch>,
    /// Next hops for which [`KernelFact::NextHopWithin`] was reported.
    reported_within: BTreeSet<ScopedAddr>,
    damping: NextHopDamping,
    /// The last reported networks.
    connected: Option<Vec<ConnectedNetwork>>,
}

impl Thread {
    pub(super) fn new(
        state: State,
        inbox: Inbox,
        (writer, reader): (Socket, Socket),
        event_queue: Arc<EventQueue>,
        sink: Sink,
        firewall: Firewall,
        arrivals: Arc<ArrivalWatch>,
    ) -> Self {
        let now = Instant::now();
        Self {
            state,
            inbox,
            writer,
            reader,
            event_queue,
            sink,
            iteration_start: now,
            tunnel_due: None,
            tunnel_addr: None,
            ipip_problem: None,
            vxlan: Vxlan::default(),
            retry_due: None,
            retry_pause: RETRY_FIRST,
            comparisons: Timing::new(now),
            applied_failed: Vec::new(),
            acks: Acks::default(),
            sysctls: HostSysctls::new(Path::new(sysctl::NET)),
            firewall,
            admission: Admission::default(),
            policy: PolicyProgress::default(),
            applier: endpoints::Applier::new(now),
            arrivals,
            reported_within: BTreeSet::new(),
            damping: NextHopDamping::default(),
            connected: None,
        }
    }

    /// Runs until a stop message arrives or all senders are gone.
    pub(super) fn run(mut self) -> io::Result<()> {
        self.keep_sysctl(HostSysctl::ForwardV4);
        self.start()?;
        self.report_connected();
        loop {
            let message = self.inbox.next(self.deadline().saturating_duration_since(Instant::now()));
            let work = message.map(|message| gather(message, &mut self.inbox, self.policy.not_before));
            self.iteration_start = Instant::now();
            match work {
                Ok(PolicyWork::One(ToKernel::Stop)) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(PolicyWork::One(message)) => self.message(message)?,
                Ok(PolicyWork::Burst(burst)) => self.burst(burst)?,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.events()?;
            self.timers()?;
            self.end_iteration();
        }
    }

    /// Returns the time of the next work that no message triggers.
    fn deadline(&self) -> Instant {
        // Work for endpoints waits while there are no rules at all.
        let endpoints =
            if self.firewall.has_no_table() { None } else { self.applier.due(&self.state.endpoints) };
        let held = self.state.table.drift_hold().until();
        let next_hops = self.damping.deadline();
        let (firewall, admission) = (self.firewall.due(), self.admission.due());
        let sysctls = self.sysctls.due();
        let vxlan = self.vxlan.due();
        let due = [
            self.tunnel_due,
            vxlan,
            self.retry_due,
            firewall,
            admission,
            endpoints,
            held,
            next_hops,
            sysctls,
        ];
        due.into_iter().flatten().fold(self.comparisons.due, Instant::min)
    }

    /// Records the duration of an iteration, after which the next message can be handled.
    fn end_iteration(&mut self) {
        self.state.metrics.iterations.time(self.iteration_start.elapsed());
        self.iteration_start = Instant::now();
    }

    fn message(&mut self, message: ToKernel) -> io::Result<()> {
        match message {
            ToKernel::Intent(intent) => self.intent(intent),
            ToKernel::Learned(batch) => self.learned(batch),
            ToKernel::Track(addr) => {
                let answer = self.state.track(addr);
                self.report_next_hop(addr, answer);
                Ok(())
            }
            ToKernel::Untrack(addr) => {
                self.state.network.untrack(addr);
                self.damping.forget(addr);
                self.reported_within.remove(&addr);
                Ok(())
            }
            ToKernel::SweepStale => {
                let count = self.state.sweep();
                self.follow_next_hops();
                self.flush()?;
                (self.sink)(KernelFact::Swept(count));
                Ok(())
            }
            ToKernel::Query(question) => {
                question(&KernelView { state: &self.state, rules: Some(&self.firewall) });
                Ok(())
            }
            ToKernel::Policy(change) => self.enforce(&[change]),
            ToKernel::HoldDrift(span, done) => {
                self.hold(span)?;
                done();
                Ok(())
            }
            ToKernel::Arrival(ArrivalReport(arrival)) => {
                (self.sink)(match arrival {
                    Arrival::Seen(endpoint) => KernelFact::Arrived(endpoint),
                    Arrival::Problem(text) => KernelFact::Problem { about: ARRIVALS.into(), text },
                });
                Ok(())
            }
            ToKernel::Events(_) | ToKernel::Stop => Ok(()),
        }
    }

    fn intent(&mut self, intent: Arc<KernelIntent>) -> io::Result<()> {
        let begin = Instant::now();
        let generation = intent.generation;
        let change = intent.change;
        let has_v6 = intent.view.node_v6.is_some() || intent.blackholes.keys().any(|p| !p.is_v4());
        if has_v6 {
            self.keep_sysctl(HostSysctl::ForwardV6);
        }
        if self.state.mode == Mode::Program {
            self.acks.expect(self.state.intent.as_deref(), &intent, &self.state.table);
        }
        self.state.accept_intent(intent);
        self.check_tunnel()?;
        self.check_vxlan(Reading::Known)?;
        self.follow_next_hops();
        self.flush()?;
        let failed = self.failed_blackholes();
        self.applied_failed.clone_from(&failed);
        let acknowledged = self.acks.acknowledge(&self.state.table);
        let micros = micros_since(begin);
        (self.sink)(KernelFact::Applied { generation, change, failed, acknowledged, micros });
        Ok(())
    }

    /// Sets a sysctl of the host, and keeps it.
    fn keep_sysctl(&mut self, what: HostSysctl) {
        if self.state.mode == Mode::Program
            && let Some(text) = self.sysctls.keep(what, Instant::now())
        {
            (self.sink)(KernelFact::Problem { about: what.about().into(), text: Some(text) });
        }
    }

    /// Repairs sysctls of the host that another process changed, unless there is a drift hold.
    fn check_sysctls(&mut self, now: Instant) -> io::Result<()> {
        let held = self.state.table.drift_hold().until().is_some();
        let Changes { changes, problems } = self.sysctls.look(!held, now);
        for (what, text) in problems {
            (self.sink)(KernelFact::Problem { about: what.about().into(), text });
        }
        if changes.is_empty() {
            return Ok(());
        }
        for change in changes {
            self.state.foreign_changes.note(1, || change);
        }
        // Writing those of the host overwrites those of the interfaces.
        self.state.endpoints.mark_sysctls_unverified();
        self.conclude()
    }

    fn failed_blackholes(&self) -> Vec<(Cidr, String)> {
        if self.state.mode == Mode::Observe { Vec::new() } else { self.state.table.failed_blackholes() }
    }

    /// Processes all events received by the watch thread since the last call.
    fn events(&mut self) -> io::Result<()> {
        let (events, overruns) = self.event_queue.take();
        if events.is_empty() && overruns == 0 {
            return Ok(());
        }
        let mut due = Pending::default();
        let now = Instant::now();
        for event in events {
            self.state.endpoints.event(&event, now, &mut self.state.foreign_changes);
            self.state.event(event, &mut due);
        }
        if overruns > 0 {
            self.state.counters.overruns += overruns;
            (self.sink)(KernelFact::Overrun);
            self.comparisons.next("overrun");
        }
        if due.interfaces {
            self.follow_interfaces()?;
        }
        if due.nexthops {
            self.check_nexthops()?;
        }
        if due.tunnel {
            self.check_tunnel()?;
        }
        if due.vxlan || overruns > 0 {
            self.check_vxlan(Reading::Afresh)?;
        }
        if due.retry {
            self.state.table.retry();
        }
        if due.compare {
            self.comparisons.soon(SOON, "event");
        }
        self.conclude()
    }

    fn timers(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.state.table.drift_hold().until().is_some_and(|until| until <= now) {
            self.hold(None)?;
        }
        for addr in self.damping.released(now) {
            let answer = self.state.network.answer(addr).cloned().unwrap_or_default();
            self.report_next_hop(addr, answer);
        }
        if self.tunnel_due.is_some_and(|due| due <= now) {
            self.check_tunnel()?;
            self.conclude()?;
        }
        if self.vxlan.due().is_some_and(|due| due <= now) {
            self.check_vxlan(Reading::Known)?;
            self.conclude()?;
        }
        if self.sysctls.due().is_some_and(|due| due <= now) {
            self.check_sysctls(now)?;
        }
        if self.retry_due.is_some_and(|due| due <= now) {
            self.retry_due = None;
            self.retry_pause = (self.retry_pause * 2).min(RETRY_LAST);
            self.state.table.retry();
            self.conclude()?;
        }
        if self.applier.timers(&mut self.state.endpoints, now) {
            self.conclude()?;
        }
        if self.comparisons.due <= now {
            self.compare()?;
            self.follow_interfaces()?;
            self.conclude()?;
        }
        self.check_rules(now)
    }

    /// Resolves next hops, sends pending requests, and reports repairs.
    fn conclude(&mut self) -> io::Result<()> {
        self.follow_next_hops();
        self.flush()?;
        let moved = self.write_endpoints()?;
        if self.state.endpoints.needs_resync() {
            self.comparisons.soon(Duration::ZERO, "unexpected_answer");
        }
        if moved {
            self.report_enforced(0);
        }
        let foreign_changes = std::mem::take(&mut self.state.foreign_changes);
        if foreign_changes.first.is_some() {
            self.state.table.drift_hold_mut().attribute(drift_hold::process);
        }
        if let Some(first) = foreign_changes.first {
            self.state.counters.external_changes += foreign_changes.objects as u64;
            let held = self.state.table.drift_hold().until().is_some();
            if self.state.mode == Mode::Program && !held {
                self.state.counters.repairs += foreign_changes.objects as u64;
            }
            (self.sink)(KernelFact::Repaired { objects: foreign_changes.objects, first, held });
        }
        if !self.applied_failed.is_empty() || !self.acks.is_empty() {
            let failed = self.failed_blackholes();
            let acknowledged = self.acks.acknowledge(&self.state.table);
            if (failed != self.applied_failed || !acknowledged.is_empty())
                && let Some(intent) = &self.state.intent
            {
                self.applied_failed.clone_from(&failed);
                let (generation, change) = (intent.generation, intent.change);
                (self.sink)(KernelFact::Applied { generation, change, failed, acknowledged, micros: 0 });
            }
        }
        Ok(())
    }

    /// Decides again on routes whose next hops changed, and reports the changes.
    fn follow_next_hops(&mut self) {
        for (addr, answer) in self.state.follow_next_hops() {
            self.report_next_hop(addr, answer);
        }
    }

    /// Reports the resolution of a next hop; as unreachable if its reachability over learned routes changes
    /// too often.
    fn report_next_hop(&mut self, addr: ScopedAddr, answer: NextHopAnswer) {
        let recursive = !answer.over.is_empty() || self.reported_within.contains(&addr);
        let admitted = !recursive || self.damping.admits(addr, !answer.legs.is_empty(), Instant::now());
        let answer = if admitted { answer } else { NextHopAnswer::default() };
        let first = |legs: &Legs| legs.first().copied();
        let within: Vec<_> = answer.within.iter().map(|(prefix, legs)| (*prefix, first(legs))).collect();
        let had = if within.is_empty() {
            self.reported_within.remove(&addr)
        } else {
            !self.reported_within.insert(addr)
        };
        if had || !within.is_empty() {
            (self.sink)(KernelFact::NextHopWithin(addr, within));
        }
        (self.sink)(KernelFact::NextHop(addr, answer.first()));
    }

    /// Repairs the tunnel device, and reports a changed fault.
    fn check_tunnel(&mut self) -> io::Result<()> {
        let wanted = self.state.intent.as_ref().and_then(|i| Some((i.tunnel.clone()?, i.view.node_v4)));
        self.tunnel_due = wanted.is_some().then(|| Instant::now() + TUNNEL_EVERY);
        let problem = match wanted {
            Some((wanted, node)) => {
                self.tunnel_addr = wanted.addr;
                self.repair_tunnel(&wanted, node)?
            }
            None => {
                self.remove_tunnel()?;
                None
            }
        };
        self.state.check_tunnel();
        self.ipip_problem = problem;
        self.report_tunnels();
        Ok(())
    }

    /// Reports the faults of the tunnel devices, if they changed.
    fn report_tunnels(&mut self) {
        let problems: Vec<&str> =
            self.ipip_problem.as_deref().into_iter().chain(self.vxlan.problem()).collect();
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        if problem != self.state.tunnel_problem {
            self.state.tunnel_problem.clone_from(&problem);
            (self.sink)(KernelFact::TunnelProblem(problem));
        }
    }

    /// Repairs the tunnel device; returns the fault that remains.
    fn repair_tunnel(&mut self, wanted: &TunnelIntent, node: Option<IpAddr>) -> io::Result<Option<String>> {
        // Creating the device in the first round enables the second, which configures it.
        for _ in 0..2 {
            let changes = ipip_tunnel::plan(wanted, &self.state.network, node);
            if changes.is_empty() {
                return Ok(None);
            }
            if self.state.mode == Mode::Observe {
                return Ok(Some(format!("{} is not in its desired state", ipip_tunnel::DEVICE)));
            }
            let problem = self.change_links(&changes)?;
            if problem.is_some() {
                return Ok(problem);
            }
        }
        // An existing device is no fault if it is the right one; under another name it is not found.
        let left = ipip_tunnel::plan(wanted, &self.state.network, node);
        Ok(left.first().map(|change| ipip_tunnel::explain(change, libc::EEXIST, "it does not stay so")))
    }

    /// The tunnel is no longer desired: its address is released in IPAM and must be removed. The device is
    /// kept.
    fn remove_tunnel(&mut self) -> io::Result<()> {
        if self.state.mode == Mode::Program
            && let Some(addr) = self.tunnel_addr.take()
            && let Some(change) = ipip_tunnel::removal_plan(addr, &self.state.network)
        {
            self.change_links(&[change])?;
        }
        Ok(())
    }

    /// Sends changes of links and addresses and reads the result; returns the first refusal as text.
    fn change_links(&mut self, changes: &[LinkChange]) -> io::Result<Option<String>> {
        let (mut problem, mut moved) = (None, false);
        for change in changes {
            match self.writer.request(|(), buf, flags, seq| change.encode(buf, flags, seq))? {
                Err(refusal) if refusal.code != libc::EEXIST => {
                    problem.get_or_insert_with(|| ipip_tunnel::explain(change, refusal.code, &refusal.text));
                }
                _ => moved = true,
            }
        }
        if moved {
            let (links, addresses) = dump::devices(&mut self.reader)?;
            self.state.network.replace_devices(links, addresses);
        }
        Ok(problem)
    }

    /// Sends all pending requests for routes and nexthop objects.
    fn flush(&mut self) -> io::Result<Written> {
        let mut done = Written::default();
        if self.state.mode != Mode::Program {
            self.state.table.take_dirty();
            return Ok(done);
        }
        let mut rounds = PlanRounds::default();
        while let Some(requests) = rounds.next(&mut self.state.table, &self.state.network) {
            done += self.carry_out(&requests)?;
        }
        if self.state.table.failures() == 0 && !self.state.table.objects().has_refusals() {
            (self.retry_due, self.retry_pause) = (None, RETRY_FIRST);
        } else if self.retry_due.is_none() {
            self.retry_due = Some(Instant::now() + self.retry_pause);
        }
        if self.state.table.needs_resync() {
            self.comparisons.soon(Duration::ZERO, "unexpected_answer");
        }
        Ok(done)
    }

    /// Writes pending nexthop objects only.
    fn put_nexthops(&mut self) -> io::Result<()> {
        let requests = plan::nexthops(&mut self.state.table, &self.state.network);
        if !requests.is_empty() {
            self.carry_out(&requests)?;
        }
        Ok(())
    }

    /// Sends requests of one kind and applies the answers.
    fn carry_out(&mut self, requests: &[Request]) -> io::Result<Written> {
        let begin = Instant::now();
        let answers = self.send(requests)?;
        let metrics = &mut self.state.metrics;
        let batch = match requests.first() {
            Some(Request::PutNexthop { .. } | Request::DeleteNexthop { .. }) => &mut metrics.nexthop_batch,
            _ => &mut metrics.route_batch,
        };
        batch.time(begin.elapsed());
        Ok(self.state.settle(requests, &answers))
    }

    /// Sends requests and returns one answer for each. Queries are answered meanwhile if there are many: the
    /// state does not change until the answers arrive.
    fn send(&mut self, requests: &[Request]) -> io::Result<Vec<Outcome>> {
        let Self { state, writer, inbox, firewall, .. } = self;
        let (state, rules) = (&*state, Some(&*firewall));
        let mut carry = || {
            let mut answers = Vec::with_capacity(requests.len());
            let encode = |request: &Request, buf: &mut Vec<u8>, flags, seq| {
                request.encode(&state.table, &state.network, buf, flags, seq);
            };
            writer.batch(requests, encode, |_, answer| answers.push(answer))?;
            Ok(answers)
        };
        if requests.len() < MANY {
            return carry();
        }
        with_worker("routes", carry, || inbox.answer_queries(&KernelView { state, rules }))
    }
}

fn micros_since(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX)
}
