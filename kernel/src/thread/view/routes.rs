//! Read-only view of Tortie's routes: their states, differences and reasons.

use super::KernelView;
use crate::fib::drift_hold::{ForeignChange, RouteDifference};
use crate::fib::network::{Covering, ForeignRoute};
use crate::fib::route_state::{Actual, Desired};
use crate::fib::table::RouteEntry;
use crate::fib::table::store_routes::RouteSource;
use std::net::IpAddr;
use std::time::Duration;
use tortie_engine::routing::{ChangeId, Hop, KernelRoute, Step};
use tortie_net::{Cidr, ScopedAddr};

/// The state of one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteCondition {
    /// The kernel has the desired route.
    Installed,
    /// Not written yet (in observe mode: not as desired).
    Pending,
    /// Failed, with the reason.
    Failed(String),
    /// Learned, without a desired route; with the reason of `routing::kernel_route`.
    Withheld(&'static str),
    /// Found at the start, and kept until it is learned again or swept.
    Stale,
    /// In the kernel and to be deleted.
    Removing,
}

/// Route of one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteState {
    /// Destination prefix.
    pub prefix: Cidr,
    /// State of the route.
    pub condition: RouteCondition,
    /// Source of the route.
    pub source: RouteSource,
    /// Next hops, if a route is desired.
    pub hops: Vec<Hop>,
    /// ID of the nexthop object of the route in the kernel.
    pub nexthop: Option<u32>,
    /// Reason for the desired route: `own-block`, or the reason of `routing::kernel_route`.
    pub why: Option<&'static str>,
    /// The change of the store or of BGP that caused it; 0 if found at the start.
    pub change: ChangeId,
}

/// Differences between the desired state and the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drift {
    /// Number of differences.
    pub count: usize,
    /// Descriptions of the first ones, those of endpoints before others.
    pub first: Vec<String>,
}

impl KernelView<'_> {
    /// Returns the route of one prefix; `None` if it is neither desired nor in the kernel.
    #[must_use]
    pub fn route(&self, prefix: &Cidr) -> Option<RouteState> {
        let entry = self.state.table.entries().get(prefix)?;
        self.state_of(prefix, entry)
    }

    /// Returns a page of Tortie's routes, in the order of their positions in the table, with `within` only
    /// those inside it: at most `max` from at most `places` positions starting at `from`, and the position to
    /// continue from, `None` at the end. A prefix keeps its position as long as it is known.
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

    /// Returns all of Tortie's prefixes, in no order.
    pub fn routes(&self) -> impl Iterator<Item = RouteState> + '_ {
        self.state.table.entries().iter().filter_map(|(_, prefix, entry)| self.state_of(prefix, entry))
    }

    /// Returns Tortie's route in the kernel with the longest prefix that covers an address.
    #[must_use]
    pub fn own_covering(&self, addr: IpAddr) -> Option<RouteState> {
        let width = if addr.is_ipv4() { 32 } else { 128 };
        (0..=width).rev().find_map(|len| {
            let prefix = Cidr::new(addr, len).ok()?;
            let entry = self.state.table.entries().get(&prefix)?;
            entry.actual().is_there().then(|| self.state_of(&prefix, entry)).flatten()
        })
    }

    /// Returns the desired route for packets to this address, a foreign or a learned one.
    #[must_use]
    pub fn covering(&self, addr: impl Into<ScopedAddr>) -> Option<Covering> {
        self.state.main_table().first(addr.into())
    }

    /// Returns the first withheld routes, by prefix, with the reason of `routing::kernel_route`.
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

    /// Returns the differences from the desired state, with descriptions of the first `limit`.
    #[must_use]
    pub fn drift(&self, limit: usize) -> Drift {
        let (count, first) = self.differences(limit);
        Drift { count, first: first.into_iter().map(|one| one.text).collect() }
    }

    /// Returns the number of differences, and the first `limit` of them with their age and the process that
    /// caused them, if known.
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

    /// Returns the remaining time of the drift hold; `None` if there is none.
    #[must_use]
    pub fn drift_hold_remaining(&self) -> Option<Duration> {
        self.state
            .table
            .drift_hold()
            .until()
            .map(|until| until.saturating_duration_since(std::time::Instant::now()))
    }

    /// Returns the foreign routes for exactly this prefix.
    #[must_use]
    pub fn foreign_at(&self, prefix: &Cidr) -> Vec<ForeignRoute> {
        self.state.network.foreign_at(prefix)
    }

    /// Explains the desired route of a prefix that was learned, or of a peer with a gateway, by running the live decision code with a recorder.
    /// `None` if it is neither.
    #[must_use]
    pub fn explain_route(&self, prefix: &Cidr) -> Option<(KernelRoute, Vec<Step>)> {
        self.state.explain(prefix)
    }

    fn state_of(&self, prefix: &Cidr, entry: &RouteEntry) -> Option<RouteState> {
        Some(RouteState {
            prefix: *prefix,
            condition: self.condition(prefix, entry)?,
            source: self.state.table.source(prefix, entry),
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

/// Describes a difference.
fn describe(prefix: &Cidr, entry: &RouteEntry) -> String {
    let there = !matches!(entry.actual(), Actual::Absent | Actual::Lost);
    match (entry.desired(), there) {
        (Desired::Nothing(_), _) => format!("{prefix}: in the kernel, not desired"),
        (Desired::Blackhole, false) => format!("{prefix}: blackhole missing"),
        (Desired::Blackhole, true) => format!("{prefix}: should be a blackhole"),
        (Desired::Via(..), false) => format!("{prefix}: missing"),
        (Desired::Via(..), true) => format!("{prefix}: leads elsewhere"),
    }
}
