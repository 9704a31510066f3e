//! Work of the kernel thread for endpoints and packet rules, and its reports.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_config::key::EndpointKey;

use super::{Thread, micros_since};
use crate::container;
use crate::facts::{EndpointCondition, KernelFact};
use crate::fib::connected;
use crate::intent::PolicyChange;
use crate::netlink::dump;
use crate::nft::{Firewall, RuleReport};
use crate::options::Mode;
use crate::sysctl::HostSysctl;
use crate::thread::burst::Burst;
use crate::thread::state::State;
use crate::thread::view::KernelView;
use crate::thread::workload_prefixes::own_interfaces;
use tortie_engine::policy::{EndpointPolicy, RulesetDelta, host_endpoints};

/// Limit for the delivery of a notification by the watch thread. It takes a millisecond, on a host without
/// free processors a tenth of a second.
const NOTIFIED_WITHIN: Duration = Duration::from_millis(500);

/// Maximum pause after a transaction; the pause is as long as the transaction took. Messages received
/// meanwhile form one transaction. For each transaction the kernel validates all rules reachable through maps
/// (`nft_table_validate`): 1 to 2 ms with 1,000 endpoints, as much as 15 transactions cost otherwise.
const PAUSE_MAX: Duration = Duration::from_millis(3);

impl Thread {
    /// Executes policy changes, then the other messages received among them.
    pub(super) fn burst(&mut self, burst: Burst) -> io::Result<()> {
        let begin = Instant::now();
        self.enforce(&burst.changes)?;
        let end = Instant::now();
        self.policy.not_before = Some(end + end.duration_since(begin).min(PAUSE_MAX));
        burst.routes.into_iter().try_for_each(|message| self.message(message))
    }

    /// Executes policy changes, acknowledged together: first rules, then the other state of their endpoints.
    pub(super) fn enforce(&mut self, changes: &[Arc<PolicyChange>]) -> io::Result<()> {
        let Some(last) = changes.last() else { return Ok(()) };
        let begin = Instant::now();
        let changes = &*self.bound(changes);
        let Self { firewall, state, inbox, .. } = self;
        firewall.accept(changes, &state.network, &mut |rules| inbox.answer_queries(&view(state, rules)))?;
        // May process events, which are then reported with the earlier changes.
        self.accept_endpoints(changes)?;
        self.admit_workloads();
        if changes.iter().any(|change| change.globals.is_some()) {
            self.report_connected();
        }
        self.policy.last = Some((last.serial, last.change));
        self.policy.reported = false;
        // Faults of the rules are reported first, so that a caller waiting for the acknowledgement sees them.
        self.report_rules();
        self.report_enforced(micros_since(begin));
        if changes.iter().any(|change| change.touches_hosts()) {
            self.report_host_endpoints();
        }
        self.conclude()
    }

    /// Returns the changes with `InterfacePrefix` limited to prefixes that may take effect.
    fn bound<'a>(&mut self, changes: &'a [Arc<PolicyChange>]) -> Cow<'a, [Arc<PolicyChange>]> {
        if changes.iter().all(|change| change.globals.is_none()) {
            return Cow::Borrowed(changes);
        }
        let own = self.own_interfaces();
        let mut bounded = changes.to_vec();
        for change in &mut bounded {
            let Some(globals) = &change.globals else { continue };
            let (globals, text) = self.policy.prefixes.take(globals, &own);
            (self.sink)(KernelFact::Problem { about: "InterfacePrefix".into(), text });
            *change = Arc::new(PolicyChange { globals: Some(globals), ..PolicyChange::clone(change) });
        }
        Cow::Owned(bounded)
    }

    fn own_interfaces(&self) -> BTreeSet<String> {
        // Virtual interfaces have no device.
        own_interfaces(&self.state.network, |name| {
            Path::new("/sys/class/net").join(name).join("device").exists()
        })
    }

    /// Applies routes, neighbours and sysctls of workloads. They follow the rules, so that no packet reaches
    /// an endpoint before its rules exist.
    fn accept_endpoints(&mut self, changes: &[Arc<PolicyChange>]) -> io::Result<()> {
        for change in changes {
            if let Some(globals) = &change.globals {
                self.state.endpoints.set_globals(globals);
            }
            if let Some(routings) = &change.routings {
                self.state.endpoints.set_routings(routings);
            }
            for (key, endpoint) in &change.delta.endpoints {
                self.state.endpoints.set_endpoint(key, endpoint.as_deref());
            }
        }
        if self.state.endpoints.has_v6() {
            self.keep_sysctl(HostSysctl::ForwardV6);
        }
        self.await_interfaces(changes)?;
        self.write_endpoints()?;
        Ok(())
    }

    /// Writes the state of endpoints besides rules, unless there is no table of rules: then no route may lead
    /// to endpoints without policy. Returns true if conditions changed.
    pub(super) fn write_endpoints(&mut self) -> io::Result<bool> {
        if self.firewall.has_no_table() {
            return Ok(false);
        }
        if self.state.endpoints.follows_policy() {
            self.keep_sysctl(HostSysctl::FilterByDefault);
        }
        let moved =
            self.applier.write(&mut self.state.endpoint_context(), &mut self.writer, &mut self.sink)?;
        self.arrivals.set(self.state.endpoints.awaited());
        Ok(moved)
    }

    /// Waits for notifications of interfaces that were created before their endpoints were written to the
    /// store, so that the answer to the change is correct: if the kernel has an interface that is not known
    /// to be up, its notification is pending.
    fn await_interfaces(&mut self, changes: &[Arc<PolicyChange>]) -> io::Result<()> {
        let touched = || changes.iter().flat_map(|change| change.delta.endpoints.keys());
        if self.state.endpoints.missing_interfaces(touched()).is_empty() {
            return Ok(());
        }
        // Usually the notification has already arrived.
        self.events()?;
        let missing = self.state.endpoints.missing_interfaces(touched());
        if missing.is_empty() {
            return Ok(());
        }
        let (links, _) = dump::devices(&mut self.reader)?;
        let up = |name: &str| links.iter().any(|link| link.name == name && link.is_up());
        let coming: Vec<_> = missing.into_iter().filter(|name| up(name)).collect();
        let begin = Instant::now();
        while coming.iter().any(|name| !self.state.endpoints.is_up(name)) && begin.elapsed() < NOTIFIED_WITHIN
        {
            self.events()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Does due work on rules: a generation check, a comparison, or a retry.
    pub(super) fn check_rules(&mut self, now: Instant) -> io::Result<()> {
        let bare = self.firewall.has_no_table();
        let Self { firewall, state, inbox, .. } = self;
        firewall.check_generation(now, &mut |rules| inbox.answer_queries(&view(state, rules)))?;
        if bare && !self.firewall.has_no_table() {
            self.write_endpoints()?;
        }
        self.admit_workloads();
        self.report_rules();
        self.report_enforced(0);
        Ok(())
    }

    /// Keeps the rules in Docker's chain that accept packets of workloads, as long as there are workloads.
    fn admit_workloads(&mut self) {
        if self.firewall.mode() != Mode::Program || self.firewall.has_no_table() {
            return;
        }
        let workload = |key: &EndpointKey| matches!(key, EndpointKey::Workload { .. });
        let needed = self.firewall.ruleset().endpoints.keys().any(workload);
        let prefixes = self.firewall.interface_prefixes();
        let text = match self.admission.check(Instant::now(), needed, &prefixes) {
            Ok(moved) => {
                if moved {
                    self.restore_ports();
                }
                None
            }
            Err(error) => Some(format!(
                "DOCKER-USER cannot be read or written ({error}): Docker's rules may drop packets of workloads"
            )),
        };
        if text != self.policy.admission_problem {
            self.policy.admission_problem.clone_from(&text);
            (self.sink)(KernelFact::Problem { about: "chain DOCKER-USER".into(), text });
        }
    }

    /// Restores port mappings of containers that another process flushed.
    fn restore_ports(&mut self) {
        match container::restore_ports() {
            Ok(restored) => {
                let Some(first) = restored.first() else { return };
                let (objects, first) =
                    (restored.len(), format!("table inet {first} (port mappings) was missing"));
                self.state.counters.external_changes += objects as u64;
                self.state.counters.rule_repairs += objects as u64;
                (self.sink)(KernelFact::Repaired { objects, first, held: false });
            }
            Err(error) => {
                (self.sink)(KernelFact::Transient(format!("port mappings cannot be restored: {error}")));
            }
        }
    }

    /// Handles added, removed or readdressed interfaces.
    pub(super) fn follow_interfaces(&mut self) -> io::Result<()> {
        self.report_connected();
        let own = self.own_interfaces();
        if let Some(globals) = self.policy.prefixes.retry(&own)
            && let Some((serial, change)) = self.policy.last
        {
            let delta = RulesetDelta::default();
            let globals = Some(globals);
            self.enforce(&[Arc::new(PolicyChange { serial, change, delta, globals, routings: None })])?;
        }
        let Self { firewall, state, inbox, .. } = self;
        firewall.interfaces(&state.network, &mut |rules| inbox.answer_queries(&view(state, rules)))?;
        self.report_rules();
        self.report_enforced(0);
        self.report_host_endpoints();
        Ok(())
    }

    /// Reports the networks to which this host is connected, if they changed.
    pub(super) fn report_connected(&mut self) {
        let network = &self.state.network;
        let prefixes = &self.policy.prefixes;
        let link = |index| network.link(index).filter(|link| !prefixes.is_workload(&link.name));
        let connected = connected::networks(link, network.addresses());
        if self.connected.as_ref() != Some(&connected) {
            self.connected = Some(connected.clone());
            (self.sink)(KernelFact::Connected(connected));
        }
    }

    /// Reports changed conditions of host endpoints, by the interfaces that they cover.
    fn report_host_endpoints(&mut self) {
        let none =
            || EndpointCondition::Failed("no interface has its name or one of its addresses".to_owned());
        let hosts = host_endpoints(self.firewall.ruleset()).map(|(key, _)| (key.clone(), none()));
        let mut now: BTreeMap<EndpointKey, EndpointCondition> = hosts.collect();
        if now.is_empty() && self.policy.hosts.is_empty() {
            return;
        }
        let governed = self.firewall.hosts();
        for link in self.state.network.links() {
            let Some(condition) = governed.get(link.name.as_str()).and_then(|key| now.get_mut(key)) else {
                continue;
            };
            if link.is_up() {
                *condition = EndpointCondition::Up;
            } else if *condition != EndpointCondition::Up {
                *condition = EndpointCondition::Down(format!("interface {} is down", link.name));
            }
        }
        let before = std::mem::replace(&mut self.policy.hosts, now);
        let now = &self.policy.hosts;
        let gone = before.keys().filter(|key| !now.contains_key(*key)).map(|key| (key.clone(), None));
        let other = now.iter().filter(|(key, condition)| before.get(*key) != Some(condition));
        let changed: BTreeMap<_, _> =
            gone.chain(other.map(|(key, condition)| (key.clone(), Some(condition.clone())))).collect();
        if !changed.is_empty() {
            (self.sink)(KernelFact::Endpoints(changed));
        }
    }

    /// Returns all failed endpoints.
    fn failed_endpoints(&self) -> BTreeMap<EndpointKey, String> {
        let observes = self.state.mode == Mode::Observe;
        let mut failed = if observes { BTreeMap::new() } else { self.state.endpoints.failed().clone() };
        if let Some(problem) = self.firewall.problem().filter(|_| self.firewall.is_refused()) {
            let keys = self.firewall.ruleset().endpoints.keys();
            failed.extend(keys.map(|key| (key.clone(), problem.to_owned())));
            return failed;
        }
        let closed = self.firewall.closed();
        if !closed.is_empty() {
            let of = |(key, endpoint): (&EndpointKey, &Arc<EndpointPolicy>)| {
                let (id, why) = endpoint.chains().find_map(|id| closed.get_key_value(id))?;
                Some((
                    key.clone(),
                    format!("the kernel refuses the rules of {}, which denies meanwhile: {why}", id.source),
                ))
            };
            failed.extend(self.firewall.ruleset().endpoints.iter().filter_map(of));
        }
        failed
    }

    /// Reports that the last change is in force, with its failures; once, and again when the failures change.
    pub(super) fn report_enforced(&mut self, micros: u64) {
        let Some((serial, change)) = self.policy.last else { return };
        if !self.firewall.settled() && !self.firewall.is_refused() {
            return;
        }
        let failed = self.failed_endpoints();
        if !self.policy.reported || failed != self.policy.failed {
            self.policy.reported = true;
            self.policy.failed.clone_from(&failed);
            (self.sink)(KernelFact::Enforced { serial, change, failed, micros });
        }
    }

    fn report_rules(&mut self) {
        let RuleReport { repaired, problem_changed } = self.firewall.take_report();
        if let Some((objects, first)) = repaired {
            self.state.counters.external_changes += objects as u64;
            if self.firewall.mode() == Mode::Program {
                self.state.counters.rule_repairs += objects as u64;
            }
            (self.sink)(KernelFact::Repaired { objects, first, held: false });
        }
        if problem_changed {
            (self.sink)(KernelFact::RulesProblem(self.firewall.problem().map(str::to_owned)));
        }
    }
}

/// Returns the view for queries while rules are written.
fn view<'a>(state: &'a State, rules: &'a Firewall) -> KernelView<'a> {
    KernelView { state, rules: Some(rules) }
}
