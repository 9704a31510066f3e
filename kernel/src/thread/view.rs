//! What a question may read of the kernel thread: counts, states of prefixes, drift, counters.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use super::metrics::{DriftCounts, KernelMetrics, LastResync};
use super::state::State;
use crate::counters::Counters;
use crate::endpoints::EndpointView;
use crate::fib::drift_hold::{ForeignChange, RouteDifference};
use crate::fib::resolve::{Covering, ForeignRoute};
use crate::fib::route_state::{Actual, Desired};
use crate::fib::table::RouteEntry;
use crate::nft::{Firewall, RuleCounts, RuleHits, RulePlace, RuleView};
use crate::options::Mode;
use tortie_engine::policy::{HostInterfaces, Ruleset, Source};
use tortie_engine::routing::{ChangeId, Hop, KernelRoute, Resolved, Step};

/// How many routes are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Own routes that are as wanted.
    pub installed: usize,
    /// Wanted and not written yet.
    pub pending: usize,
    /// Refused by the kernel, or in a foreign route's way.
    pub failed: usize,
    /// Learned, but with a reason for no route.
    pub withheld: usize,
    /// Found at start, not spoken of since.
    pub stale: usize,
    /// Routes of others in the main table.
    pub foreign: usize,
    /// Own nexthop objects in the kernel.
    pub nexthops: usize,
}

/// The state of one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteCondition {
    /// As wanted.
    Installed,
    /// Not written yet (or, when observing, not as wanted).
    Pending,
    /// Failed, with the reason.
    Failed(String),
    /// Learned, and no route is wanted: the reason of `routing::kernel_route`.
    Withheld(&'static str),
    /// Found at start, kept until it is learned again or swept.
    Stale,
    /// In the kernel and to be deleted.
    Removing,
}

/// One own prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteState {
    /// The prefix.
    pub prefix: Cidr,
    /// Its state.
    pub condition: RouteCondition,
    /// A blackhole.
    pub blackhole: bool,
    /// Where it leads, for routes that are wanted.
    pub hops: Vec<Hop>,
    /// The nexthop object that the route in the kernel names.
    pub nexthop: Option<u32>,
    /// Why the route that is wanted is as it is: `own-block`, or the reason of `routing::kernel_route`.
    pub why: Option<&'static str>,
    /// The change of the store or of BGP that it comes from, 0 for what was found at start.
    pub change: ChangeId,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkView {
    /// Its name.
    pub name: String,
    /// Set up by the administrator.
    pub up: bool,
    /// Up and with carrier.
    pub carries: bool,
    /// Its MTU.
    pub mtu: u32,
}

/// Differences between what is wanted and what the kernel holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drift {
    /// How many.
    pub count: usize,
    /// The first few, those of endpoints before others, in words.
    pub first: Vec<String>,
}

/// Read access to the kernel thread's state, for one question.
pub struct KernelView<'a> {
    pub(crate) state: &'a State,
    /// `None`: no rules are looked at.
    pub(crate) rules: Option<&'a Firewall>,
}

impl std::fmt::Debug for KernelView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelView").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl KernelView<'_> {
    /// What the agent may do to the kernel.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.state.mode
    }

    /// Whether routes use nexthop objects.
    #[must_use]
    pub fn nexthop_objects(&self) -> bool {
        self.state.table.objects().enabled()
    }

    /// Routes by state, as they were counted while they changed: no route is looked at.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let sums = self.state.table.sums();
        // A prefix is listed as failed until it is right or gone.
        let failed = self.state.table.failures().min(sums.out_of_sync());
        Counts {
            installed: sums.in_sync,
            pending: sums.out_of_sync() - failed,
            failed,
            withheld: sums.withheld,
            stale: sums.stale,
            foreign: self.state.network.foreign_count().saturating_sub(self.state.endpoints.own_routes()),
            nexthops: self.state.table.objects().count(),
        }
    }

    /// How many own objects differ from what is wanted, by plane. Looks at every endpoint, and at no route.
    #[must_use]
    pub fn drift_counts(&self) -> DriftCounts {
        let sums = self.state.table.sums();
        DriftCounts {
            routes: [sums.missing, sums.extra, sums.different],
            interfaces: self.state.endpoints.differences().len(),
            rules: self.rules.map(Firewall::drift_counts).unwrap_or_default(),
        }
    }

    /// What was measured.
    #[must_use]
    pub fn measures(&self) -> KernelMetrics {
        let rules = self.rules.map(|rules| rules.measures().clone()).unwrap_or_default();
        KernelMetrics { rules, ..self.state.measures.clone() }
    }

    /// The last comparisons of packet rules and of routes, each with how long it is ago.
    #[must_use]
    pub fn compared(&self) -> LastResync {
        LastResync {
            routes: self.state.last_compare.map(|(at, _)| at.elapsed()),
            rules: self.rules.and_then(Firewall::last_compare).map(|at| at.elapsed()),
        }
    }

    /// Prefixes that wait to be written.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.state.table.dirty().len()
    }

    /// Who is denied what by packets that are logged with this prefix; `None`: by another process, or by a rule that is gone.
    #[must_use]
    pub fn denial(&self, prefix: &str) -> Option<crate::nft::Denial> {
        self.rules?.denial(prefix)
    }

    /// One own prefix; `None`: neither wanted nor in the kernel.
    #[must_use]
    pub fn route(&self, prefix: &Cidr) -> Option<RouteState> {
        let entry = self.state.table.entries().get(prefix)?;
        self.state_of(prefix, entry)
    }

    /// Own routes by place in the table, with `within` only those inside of it: at most `max`, from at most `places` places
    /// from `from` on; and where to go on, `None` at the end. A prefix keeps its place for as long as it is known.
    #[must_use]
    pub fn walk(
        &self,
        within: Option<Cidr>,
        from: u32,
        places: u32,
        max: usize,
    ) -> (Vec<RouteState>, Option<u32>) {
        self.state.table.entries().walk(from, places, max, |prefix, entry| {
            self.state_of(prefix, entry).filter(|_| within.is_none_or(|w| w.covers(prefix)))
        })
    }

    /// All own prefixes, in no order.
    pub fn routes(&self) -> impl Iterator<Item = RouteState> + '_ {
        self.state.table.entries().iter().filter_map(|(_, prefix, entry)| self.state_of(prefix, entry))
    }

    /// The own prefix that covers an address and is in the kernel, the longest one.
    #[must_use]
    pub fn own_covering(&self, addr: IpAddr) -> Option<RouteState> {
        let width = if addr.is_ipv4() { 32 } else { 128 };
        (0..=width).rev().find_map(|len| {
            let prefix = Cidr::new(addr, len).ok()?;
            let entry = self.state.table.entries().get(&prefix)?;
            entry.actual().is_there().then(|| self.state_of(&prefix, entry)).flatten()
        })
    }

    /// The foreign route that a next hop at this address is resolved by.
    #[must_use]
    pub fn covering(&self, addr: IpAddr) -> Option<Covering> {
        self.state.network.covering(addr)
    }

    /// How the kernel reaches an address without our routes.
    #[must_use]
    pub fn resolve(&self, addr: IpAddr) -> Option<Resolved> {
        self.state.network.resolve(addr)
    }

    /// The name of an interface.
    #[must_use]
    pub fn interface(&self, ifindex: u32) -> Option<&str> {
        self.state.network.link(ifindex).map(|l| l.name.as_str())
    }

    /// Every interface: its name, the largest packet that it takes in bytes, and whether it is set up.
    #[must_use]
    pub fn links(&self) -> Vec<(String, u32, bool)> {
        let links = self.state.network.links();
        links.map(|link| (link.name.clone(), link.mtu, link.is_up())).collect()
    }

    /// The first learned routes that are withheld, by prefix, with the reason of `routing::kernel_route`.
    #[must_use]
    pub fn withheld(&self, limit: usize) -> Vec<(Cidr, &'static str)> {
        let mut found: Vec<(Cidr, &'static str)> = Vec::new();
        for (_, prefix, entry) in self.state.table.entries().iter() {
            if let Some(RouteCondition::Withheld(reason)) = self.condition(prefix, entry) {
                found.push((*prefix, reason));
                if found.len() == limit {
                    break;
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Every interface with its addresses.
    #[must_use]
    pub fn interfaces(&self) -> BTreeMap<String, Vec<IpAddr>> {
        let network = &self.state.network;
        let mut found: BTreeMap<String, Vec<IpAddr>> =
            network.links().map(|link| (link.name.clone(), Vec::new())).collect();
        for address in network.addresses() {
            let link = network.link(address.ifindex);
            if let Some(addrs) = link.and_then(|link| found.get_mut(link.name.as_str())) {
                addrs.push(address.addr);
            }
        }
        found
    }

    /// The interface that packets to an address leave by: by a route of ours, else of others.
    #[must_use]
    pub fn device(&self, addr: IpAddr) -> Option<&str> {
        let own = self.own_covering(addr);
        let ifindex = match own.as_ref().and_then(|route| route.hops.first()) {
            Some(Hop::Tunnel { .. }) => return Some(crate::fib::ipip_tunnel::DEVICE),
            Some(Hop::Plain { ifindex, .. }) => *ifindex,
            None => self.resolve(addr)?.ifindex,
        };
        self.interface(ifindex)
    }

    /// What is not as wanted, with the first `limit` in words.
    #[must_use]
    pub fn drift(&self, limit: usize) -> Drift {
        let (count, first) = self.differences(limit);
        Drift { count, first: first.into_iter().map(|one| one.text).collect() }
    }

    /// The same, one by one: since when, and who did it as far as the kernel shows.
    #[must_use]
    pub fn differences(&self, limit: usize) -> (usize, Vec<RouteDifference>) {
        let table = &self.state.table;
        let entries = (table.sums().out_of_sync() > 0).then(|| table.entries().iter());
        let wrong = entries.into_iter().flatten().filter(|(.., e)| !table.is_in_sync(e));
        let mut wrong: Vec<(&Cidr, &RouteEntry)> = wrong.map(|(_, p, e)| (p, e)).collect();
        let endpoints = self.state.endpoints.differences();
        let count = wrong.len() + endpoints.len();
        wrong.sort_unstable_by_key(|(p, _)| **p);
        let end = |text: String| RouteDifference { mark: '~', text, since: None, hint: None, held: false };
        let one = |(prefix, entry): (&Cidr, &RouteEntry)| {
            let change = table.drift_hold().change(prefix);
            RouteDifference {
                mark: match (entry.desired(), entry.actual().is_there()) {
                    (Desired::Nothing(_), _) => '+',
                    (_, false) => '-',
                    (_, true) => '~',
                },
                text: describe(prefix, entry),
                since: change.map(|change| change.at.elapsed()),
                hint: change.map(ForeignChange::hint),
                held: table.drift_hold().holds(prefix),
            }
        };
        let first = endpoints.into_iter().map(end).chain(wrong.into_iter().map(one));
        (count, first.take(limit).collect())
    }

    /// How long differences are still held; `None`: they are repaired.
    #[must_use]
    pub fn drift_hold_remaining(&self) -> Option<Duration> {
        self.state
            .table
            .drift_hold()
            .until()
            .map(|until| until.saturating_duration_since(std::time::Instant::now()))
    }

    /// How long ago rules were found to differ that are not repaired.
    #[must_use]
    pub fn rules_drift_age(&self) -> Option<Duration> {
        self.rules.and_then(Firewall::drift_age)
    }

    /// One workload endpoint of this host; `None`: there is no such.
    #[must_use]
    pub fn endpoint(&self, key: &EndpointKey) -> Option<EndpointView> {
        self.state.endpoints.view(key)
    }

    /// All workload endpoints of this host, by key.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointView> + '_ {
        self.state.endpoints.views()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// How long the last full comparison with the kernel is ago (the dump at start is the first), and how long it took;
    /// `None`: none yet.
    #[must_use]
    pub fn last_compare(&self) -> Option<(Duration, Duration)> {
        self.state.last_compare.map(|(at, took)| (at.elapsed(), took))
    }

    /// What is wrong with the tunnel device.
    #[must_use]
    pub fn tunnel(&self) -> Option<&str> {
        self.state.tunnel_problem.as_deref()
    }

    /// What may be done to the packet rules.
    #[must_use]
    pub fn rules_mode(&self) -> Mode {
        self.rules.map_or(Mode::Off, Firewall::mode)
    }

    /// What keeps the packet rules from being in force.
    #[must_use]
    pub fn rules_problem(&self) -> Option<&str> {
        self.rules.and_then(Firewall::problem)
    }

    /// How many rules, chains, sets and elements are wanted, and what was counted; `None`: rules are off.
    #[must_use]
    pub fn rule_counts(&self) -> Option<RuleCounts> {
        self.rules.filter(|rules| rules.mode() != Mode::Off).map(Firewall::counts)
    }

    /// What endpoints of this host are allowed, as the rules have it.
    #[must_use]
    pub fn ruleset(&self) -> Option<&Ruleset> {
        self.rules.map(Firewall::ruleset)
    }

    /// Which host endpoint governs which interface.
    #[must_use]
    pub fn host_interfaces(&self) -> Option<&HostInterfaces> {
        self.rules.map(Firewall::hosts)
    }

    /// Why packets are dropped that are logged with this prefix; `None`: by another process, or by a rule that is gone.
    #[must_use]
    pub fn explain(&self, prefix: &str) -> Option<String> {
        self.rules?.explain(prefix)
    }

    /// A rule of ours that a trace saw; `None`: there is no such rule any more.
    #[must_use]
    pub fn rule(&self, chain: &str, place: RulePlace) -> Option<RuleView> {
        self.rules?.renderer().rule(chain, place)
    }

    /// The wanted packet rules as nft writes them.
    #[must_use]
    pub fn rules_text(&self) -> String {
        self.rules.map(Firewall::text).unwrap_or_default()
    }

    /// What the kernel's rules of a policy or a profile counted since they were written, by their number, inbound and
    /// outbound; empty for those that act on nothing here.
    ///
    /// # Errors
    /// When the kernel shows no rules.
    pub fn rule_hits(&self, source: &Source) -> io::Result<[Vec<RuleHits>; 2]> {
        self.rules.map_or_else(|| Ok(Default::default()), |rules| rules.hits(source))
    }

    /// What the wanted rules would do with packets, by the interpreter of tests; empty when there are no rules.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    #[must_use]
    pub fn simulate(
        &self,
        flows: &[tortie_engine::policy::path::Flow],
        routes: &tortie_engine::policy::path::Routes,
    ) -> Vec<crate::nft::Simulated> {
        self.rules.map(|rules| rules.simulate(flows, routes)).unwrap_or_default()
    }

    /// How the rules differed from what the kernel held at the last comparison that found anything which is not repaired:
    /// how many objects, and the first ones in words.
    #[must_use]
    pub fn rules_drift(&self) -> (usize, &[String]) {
        self.rules.map_or((0, &[]), Firewall::drift)
    }

    fn state_of(&self, prefix: &Cidr, entry: &RouteEntry) -> Option<RouteState> {
        Some(RouteState {
            prefix: *prefix,
            condition: self.condition(prefix, entry)?,
            blackhole: entry.desired() == Desired::Blackhole
                || (entry.actual() == Actual::Blackhole && matches!(entry.desired(), Desired::Nothing(_))),
            hops: match entry.desired() {
                Desired::Via(target, _) => self.state.table.objects().hops(target).to_vec(),
                _ => Vec::new(),
            },
            nexthop: match entry.actual() {
                Actual::Nexthop(id) => Some(id),
                _ => None,
            },
            why: match entry.desired() {
                Desired::Via(_, reason) => Some(self.state.table.reason(reason)),
                Desired::Blackhole => Some("own-block"),
                Desired::Nothing(_) => None,
            },
            change: self.state.table.change_of(entry),
        })
    }

    fn condition(&self, prefix: &Cidr, entry: &RouteEntry) -> Option<RouteCondition> {
        let table = &self.state.table;
        let there = !matches!(entry.actual(), Actual::Absent | Actual::Lost);
        let right = table.is_in_sync(entry);
        match entry.desired() {
            Desired::Nothing(_) if there && entry.is_stale() => Some(RouteCondition::Stale),
            Desired::Nothing(_) if there => Some(
                table
                    .failure(prefix)
                    .map_or(RouteCondition::Removing, |r| RouteCondition::Failed(r.to_string())),
            ),
            Desired::Nothing(reason) => reason.map(|r| RouteCondition::Withheld(table.reason(r))),
            _ if right => Some(RouteCondition::Installed),
            _ => Some(
                table
                    .failure(prefix)
                    .map_or(RouteCondition::Pending, |r| RouteCondition::Failed(r.to_string())),
            ),
        }
    }
}

impl KernelView<'_> {
    /// An interface.
    #[must_use]
    pub fn link(&self, ifindex: u32) -> Option<LinkView> {
        let link = self.state.network.link(ifindex)?;
        let (up, carries) = (link.is_up(), link.can_carry());
        Some(LinkView { name: link.name.clone(), up, carries, mtu: link.mtu })
    }

    /// Routes of others for exactly this prefix.
    #[must_use]
    pub fn foreign_at(&self, prefix: &Cidr) -> Vec<ForeignRoute> {
        self.state.network.foreign_at(prefix)
    }

    /// Why the kernel should have the route for a learned prefix that it should have: the live decision, recorded. `None`:
    /// nothing was learned for it.
    #[must_use]
    pub fn explain_route(&self, prefix: &Cidr) -> Option<(KernelRoute, Vec<Step>)> {
        self.state.explain(prefix)
    }

    /// The metric of own routes.
    #[must_use]
    pub fn metric(&self) -> u32 {
        self.state.table.marks().metric
    }

    /// Whether an address is one of this host's.
    #[must_use]
    pub fn is_local(&self, addr: IpAddr) -> bool {
        self.state.network.is_local(addr)
    }
}

/// A difference in words.
fn describe(prefix: &Cidr, entry: &RouteEntry) -> String {
    let there = !matches!(entry.actual(), Actual::Absent | Actual::Lost);
    match (entry.desired(), there) {
        (Desired::Nothing(_), _) => format!("{prefix}: in the kernel, not wanted"),
        (Desired::Blackhole, false) => format!("{prefix}: blackhole missing"),
        (Desired::Blackhole, true) => format!("{prefix}: should be a blackhole"),
        (Desired::Via(..), false) => format!("{prefix}: missing"),
        (Desired::Via(..), true) => format!("{prefix}: leads elsewhere"),
    }
}
