//! What a query may read of own routes: their states, what differs, and why.

use super::KernelView;
use crate::fib::drift_hold::{ForeignChange, RouteDifference};
use crate::fib::network::{Covering, ForeignRoute};
use crate::fib::route_state::{Actual, Desired};
use crate::fib::table::RouteEntry;
use std::net::IpAddr;
use std::time::Duration;
use tortie_engine::routing::{ChangeId, Hop, KernelRoute, Step};
use tortie_net::{Cidr, ScopedAddr};

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

/// Differences between what is wanted and what the kernel holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drift {
    /// How many.
    pub count: usize,
    /// The first few, those of endpoints before others, in words.
    pub first: Vec<String>,
}

impl KernelView<'_> {
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

    /// The route that packets to this address take, as it should be: a foreign or a learned one.
    #[must_use]
    pub fn covering(&self, addr: impl Into<ScopedAddr>) -> Option<Covering> {
        self.state.main_table().first(addr.into())
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
