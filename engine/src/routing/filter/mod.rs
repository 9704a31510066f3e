//! Evaluates the route filters of peers: ordered rules of the store over one route.
//!
//! Evaluation always ends and its cost is bounded: a filter has no loops and no calls, each rule is evaluated
//! at most once, and the cost of a condition is proportional to its length (for prefix lists: to the number
//! of prefix lengths in them). A filter that does not exist, or never had a valid value, rejects, so that
//! routes meant to be withheld stay withheld.
//!
//! In a store of Calico 3 the peers name filters of that kind instead: see `calico3`.

mod calico3;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_config::Dialect;
use tortie_config::key::{IpFamily, Scope};
use tortie_config::resource::{
    self, AsRange, CommunityChange, CommunityKind, FilterDefault, FilterRule, FilterSet, FilterThen,
    NextHopChange, PathMatch, PrefixRange, Role, RouteSource,
};
use tortie_net::Cidr;

use crate::model::{FilterValue, Model};

pub use calico3::{Interface, Session};

/// Minimum length of a prefix list for which an index by prefix length is built.
const INDEXED: usize = 8;

/// Direction of a route relative to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received from the peer.
    Import,
    /// Announced to the peer.
    Export,
}

/// Attributes of a route that filters can match.
#[derive(Debug, Clone)]
pub struct FilterRoute<'a> {
    /// Destination prefix.
    pub prefix: Cidr,
    /// Next hop; `None` for a route that this host originates.
    pub next_hop: Option<IpAddr>,
    /// Communities (RFC 1997).
    pub communities: Cow<'a, [u32]>,
    /// Large communities (RFC 8092).
    pub large: Cow<'a, [[u32; 3]]>,
    /// Extended communities (RFC 4360).
    pub extended: Cow<'a, [[u8; 8]]>,
    /// All AS numbers of the AS_PATH, the nearest first. Members of an AS_SET keep the order in which they
    /// were received.
    pub path: Cow<'a, [u32]>,
    /// Length of the AS_PATH in the decision process, where an AS_SET counts as one.
    pub path_length: usize,
    /// First AS number, if the AS_PATH begins with a sequence.
    pub neighbour: Option<u32>,
    /// Last AS number, if the AS_PATH ends with a sequence.
    pub origin_as: Option<u32>,
    /// Origin of the route: this host, an eBGP peer or an iBGP peer.
    pub source: RouteSource,
    /// Name of the peer that announced the route.
    pub peer: Option<&'a str>,
    /// Local BGP role on the session that the route was received on (RFC 9234).
    pub role: Option<Role>,
    /// AS number that `prepend` without an AS prepends: the local one on export, the peer's on import, `None`
    /// on iBGP sessions.
    pub prepend_as: Option<u32>,
    /// Interface of the route; only filters of Calico 3 match it.
    pub interface: Interface<'a>,
    /// LOCAL_PREF; only filters of Calico 3 match it.
    pub local_pref: Option<u32>,
}

impl FilterRoute<'_> {
    /// Returns a route of this host without attributes.
    #[must_use]
    pub fn local(prefix: Cidr) -> Self {
        Self {
            prefix,
            next_hop: None,
            communities: Cow::Borrowed(&[]),
            large: Cow::Borrowed(&[]),
            extended: Cow::Borrowed(&[]),
            path: Cow::Borrowed(&[]),
            path_length: 0,
            neighbour: None,
            origin_as: None,
            source: RouteSource::Local,
            peer: None,
            role: None,
            prepend_as: None,
            interface: Interface::None,
            local_pref: None,
        }
    }

    /// Applies the changes of a rule that later rules can match.
    fn change(&mut self, set: &FilterSet) {
        if let Some(prepend) = set.prepend
            && let Some(asn) = prepend.asn.map(resource::Asn::get).or(self.prepend_as)
        {
            let count = usize::from(prepend.count);
            let mut path = vec![asn; count];
            path.extend_from_slice(&self.path);
            if self.path.is_empty() {
                self.origin_as = Some(asn);
            }
            self.path = Cow::Owned(path);
            self.path_length += count;
            self.neighbour = Some(asn);
        }
        match set.next_hop {
            None => {}
            Some(NextHopChange::Own) => self.next_hop = None,
            Some(NextHopChange::Address(address)) => self.next_hop = Some(address),
        }
        change(&mut self.communities, &set.communities);
        change(&mut self.large, &set.large);
        change(&mut self.extended, &set.extended);
    }
}

fn change<T: CommunityKind>(communities: &mut Cow<'_, [T]>, change: &CommunityChange<T>) {
    if change.is_empty() {
        return;
    }
    let own = communities.to_mut();
    own.retain(|c| !change.remove.iter().any(|pattern| pattern.matches(c)));
    for add in &change.add {
        if !own.contains(add) {
            own.push(*add);
        }
    }
}

/// A route to evaluate. Most decisions, made for each of a million routes, need only the prefix; the other
/// attributes are collected only if the peer has filters.
pub trait FilterInput {
    /// Returns the destination prefix.
    fn prefix(&self) -> Cidr;
    /// Returns the origin of the route.
    fn source(&self) -> RouteSource;
    /// Returns the interface of the route.
    fn interface(&self) -> Interface<'_>;
    /// Returns LOCAL_PREF, if the route has it.
    fn local_pref(&self) -> Option<u32>;
    /// Calls `ask` with all attributes.
    fn whole<T>(&self, ask: impl FnOnce(&FilterRoute<'_>) -> T) -> T;
}

impl FilterInput for FilterRoute<'_> {
    fn prefix(&self) -> Cidr {
        self.prefix
    }

    fn source(&self) -> RouteSource {
        self.source
    }

    fn interface(&self) -> Interface<'_> {
        self.interface
    }

    fn local_pref(&self) -> Option<u32> {
        self.local_pref
    }

    fn whole<T>(&self, ask: impl FnOnce(&FilterRoute<'_>) -> T) -> T {
        ask(self)
    }
}

/// Position of a rule in the filters of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleRef {
    /// Index of the filter in the peer's list, from 0.
    pub filter: usize,
    /// Index of the rule in that filter and direction, from 0.
    pub rule: usize,
}

/// Result of a peer's filters for a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterVerdict {
    /// The route is accepted, and later gates are skipped.
    Accept,
    /// The route is rejected.
    Reject,
    /// The filters leave the decision to the later gates.
    Continue,
}

/// Rule or filter that decided. Numbers are indexes in the peer's list of filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decider {
    /// A rule decided.
    Rule(RuleRef),
    /// The `default` of a filter decided.
    Default(usize),
    /// No filter with this name exists.
    Missing(usize),
    /// The value of the filter could never be parsed.
    Unreadable(usize),
    /// All filters were evaluated, and none decided.
    End,
}

/// Result of a peer's filters, with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterDecision {
    /// Verdict on the route.
    pub verdict: FilterVerdict,
    /// Rule or filter that decided.
    pub decider: Decider,
    /// Rules whose changes apply to the route, in order.
    pub changes: FilterChanges,
}

impl FilterDecision {
    /// Result for a peer without filters.
    pub(super) const NONE: Self =
        Self { verdict: FilterVerdict::Continue, decider: Decider::End, changes: FilterChanges::new_const() };
}

/// Rules with changes, in the order of application.
pub type FilterChanges = SmallVec<[RuleRef; 2]>;

/// Compiled filters that the peers of this host reference, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters(BTreeMap<String, State>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Ready(Arc<Compiled>),
    /// A filter of Calico 3.
    Calico3(Arc<resource::BgpFilter>),
    Unreadable,
}

impl State {
    fn of_v1(model: &Model, name: &str, before: Option<&Self>) -> Option<Self> {
        Some(match model.filter(name)? {
            FilterValue::Unreadable => Self::Unreadable,
            FilterValue::Valid(filter) => match before {
                Some(Self::Ready(ready)) if ready.filter == *filter => Self::Ready(ready.clone()),
                _ => Self::Ready(Arc::new(Compiled::new(filter.clone()))),
            },
        })
    }

    fn of_calico3(model: &Model, name: &str, before: Option<&Self>) -> Option<Self> {
        Some(match (model.bgp_filter(name)?, before) {
            (None, _) => Self::Unreadable,
            (Some(filter), Some(Self::Calico3(same))) if **same == *filter => Self::Calico3(same.clone()),
            (Some(filter), _) => Self::Calico3(Arc::new(filter.clone())),
        })
    }
}

/// A filter with its indexes.
#[derive(Debug, PartialEq, Eq)]
struct Compiled {
    filter: resource::Filter,
    /// Index of each rule with a long prefix list.
    import: Vec<Option<PrefixIndex>>,
    export: Vec<Option<PrefixIndex>>,
}

impl Compiled {
    fn new(filter: resource::Filter) -> Self {
        let index = |rules: &Option<Vec<FilterRule>>| {
            rules.iter().flatten().map(|rule| PrefixIndex::of(&rule.matches.prefixes)).collect()
        };
        Self { import: index(&filter.import), export: index(&filter.export), filter }
    }

    fn rules(&self, direction: Direction) -> Option<(&[FilterRule], &[Option<PrefixIndex>])> {
        match direction {
            Direction::Import => Some((self.filter.import.as_deref()?, &self.import)),
            Direction::Export => Some((self.filter.export.as_deref()?, &self.export)),
        }
    }
}

/// Index of prefix ranges by prefix.
#[derive(Debug, PartialEq, Eq)]
struct PrefixIndex {
    /// Minimum and maximum lengths by the prefix that contains the range.
    ranges: BTreeMap<Cidr, SmallVec<[(u8, u8); 1]>>,
    /// Lengths of the indexed prefixes, ascending, for IPv4 and IPv6.
    lengths: [Vec<u8>; 2],
}

impl PrefixIndex {
    fn of(prefixes: &[PrefixRange]) -> Option<Self> {
        if prefixes.len() < INDEXED {
            return None;
        }
        let mut this = Self { ranges: BTreeMap::new(), lengths: [Vec::new(), Vec::new()] };
        for range in prefixes {
            this.ranges.entry(range.cidr).or_default().push((range.ge, range.le));
            let [v4, v6] = &mut this.lengths;
            let lengths = if range.cidr.is_v4() { v4 } else { v6 };
            if let Err(at) = lengths.binary_search(&range.cidr.len()) {
                lengths.insert(at, range.cidr.len());
            }
        }
        Some(this)
    }

    fn matches(&self, prefix: &Cidr) -> bool {
        let [v4, v6] = &self.lengths;
        let lengths = if prefix.is_v4() { v4 } else { v6 };
        lengths.iter().take_while(|len| **len <= prefix.len()).any(|len| {
            Cidr::new(prefix.addr(), *len)
                .ok()
                .and_then(|outer| self.ranges.get(&outer))
                .is_some_and(|all| all.iter().any(|(ge, le)| (*ge..=*le).contains(&prefix.len())))
        })
    }
}

impl Filters {
    /// Compiles the filters that explicit peers of this host reference. Unchanged filters are taken from
    /// `before`.
    pub(super) fn of(model: &Model, before: &Self) -> Self {
        let mut all = BTreeMap::new();
        for scope in [Scope::Global, Scope::Host(model.node().to_owned())] {
            for name in model.all_peers(&scope).flat_map(|(_, peer)| &peer.filters) {
                if all.contains_key(name) {
                    continue;
                }
                let state = match model.dialect() {
                    Dialect::V1 => State::of_v1(model, name, before.0.get(name)),
                    Dialect::V3 => State::of_calico3(model, name, before.0.get(name)),
                };
                let Some(state) = state else { continue };
                all.insert(name.clone(), state);
            }
        }
        Self(all)
    }

    /// Compiles filters by name; `None` stands for a value that could never be parsed.
    #[must_use]
    pub fn from_values(values: impl IntoIterator<Item = (String, Option<resource::Filter>)>) -> Self {
        let state = |value: Option<resource::Filter>| {
            value.map_or(State::Unreadable, |filter| State::Ready(Arc::new(Compiled::new(filter))))
        };
        Self(values.into_iter().map(|(name, value)| (name, state(value))).collect())
    }

    /// Returns all valid filters, with their rules of one direction.
    pub fn rules(&self, direction: Direction) -> impl Iterator<Item = (&str, &[FilterRule])> {
        self.0.iter().filter_map(move |(name, state)| match state {
            State::Ready(ready) => Some((name.as_str(), ready.rules(direction)?.0)),
            State::Unreadable | State::Calico3(_) => None,
        })
    }

    /// Evaluates the named filters on a route, in this order.
    #[must_use]
    pub fn ask(&self, names: &[String], direction: Direction, route: &FilterRoute<'_>) -> FilterDecision {
        let mut changes = FilterChanges::new();
        let mut changed: Option<FilterRoute<'_>> = None;
        for (filter, name) in names.iter().enumerate() {
            let ready = match self.0.get(name) {
                Some(State::Ready(ready)) => ready,
                Some(State::Unreadable | State::Calico3(_)) => return reject(Decider::Unreadable(filter)),
                None => return reject(Decider::Missing(filter)),
            };
            let Some((rules, indexes)) = ready.rules(direction) else { continue };
            for (at, (rule, index)) in rules.iter().zip(indexes).enumerate() {
                let seen = changed.as_ref().unwrap_or(route);
                if !matches(rule, index.as_ref(), seen) {
                    continue;
                }
                let decider = Decider::Rule(RuleRef { filter, rule: at });
                if rule.then == FilterThen::Reject {
                    return reject(decider);
                }
                if !rule.set.is_empty() {
                    changes.push(RuleRef { filter, rule: at });
                }
                if rule.then == FilterThen::Accept {
                    return FilterDecision { verdict: FilterVerdict::Accept, decider, changes };
                }
                if !rule.set.is_empty() {
                    changed.get_or_insert_with(|| route.clone()).change(&rule.set);
                }
            }
            let decider = Decider::Default(filter);
            match ready.filter.default {
                FilterDefault::Accept => {
                    return FilterDecision { verdict: FilterVerdict::Accept, decider, changes };
                }
                FilterDefault::Reject => return reject(decider),
                FilterDefault::Continue => {}
            }
        }
        FilterDecision { verdict: FilterVerdict::Continue, decider: Decider::End, changes }
    }

    /// Returns the communities (RFC 1997 and RFC 8092) that a rule adds.
    pub(super) fn added_communities(
        &self,
        names: &[String],
        direction: Direction,
        at: RuleRef,
    ) -> Vec<resource::Community> {
        let name = names.get(at.filter).map_or("", String::as_str);
        if let Some(State::Ready(ready)) = self.0.get(name) {
            let rule = ready.rules(direction).and_then(|(rules, _)| rules.get(at.rule));
            return rule.map_or_else(Vec::new, |rule| {
                let standard = rule.set.communities.add.iter().copied().map(resource::Community::Standard);
                let large = rule.set.large.add.iter().copied().map(resource::Community::Large);
                standard.chain(large).collect()
            });
        }
        let operations = self.operations(names, direction, at).iter();
        operations
            .filter_map(|operation| match operation {
                resource::BgpFilterOperation::AddCommunity(community) => Some(*community),
                _ => None,
            })
            .collect()
    }

    /// Describes a decision for people: the deciding rule and filter, and the rules that changed the route.
    pub(super) fn describe(&self, names: &[String], direction: Direction, answer: &FilterDecision) -> String {
        let name = |filter: usize| names.get(filter).map_or("?", String::as_str);
        let rule = |at: RuleRef| {
            if let Some(rule) = self.calico3_rule(name(at.filter), direction, at) {
                let (list, number) = rule.place;
                return format!("rule {number} in {list} of filter {}", name(at.filter));
            }
            let rules = match self.0.get(name(at.filter)) {
                Some(State::Ready(ready)) => ready.rules(direction),
                _ => None,
            };
            let called =
                rules.and_then(|(rules, _)| rules.get(at.rule)).map_or("", |rule| rule.name.as_str());
            let called = if called.is_empty() { String::new() } else { format!(" ({called})") };
            format!("rule {}{called} of filter {}", at.rule + 1, name(at.filter))
        };
        let verb = match answer.verdict {
            FilterVerdict::Accept => "accepts it",
            FilterVerdict::Reject => "rejects it",
            FilterVerdict::Continue => "passes it on",
        };
        let mut text = match answer.decider {
            Decider::Rule(at) => format!("{} {verb}", rule(at)),
            Decider::Default(filter) => {
                format!("no rule of filter {} decides and its default {verb}", name(filter))
            }
            Decider::Missing(filter) => {
                format!("filter {} is not in the store, so nothing passes", name(filter))
            }
            Decider::Unreadable(filter) => {
                format!("the value of filter {} cannot be read, so nothing passes", name(filter))
            }
            Decider::End if names.is_empty() => "the peer has no filters".to_owned(),
            Decider::End => format!("no rule of {} decides", names.join(", ")),
        };
        for at in &answer.changes {
            let _ = write!(text, "; changed by {}", rule(*at));
        }
        text
    }
}

fn reject(decider: Decider) -> FilterDecision {
    FilterDecision { verdict: FilterVerdict::Reject, decider, changes: FilterChanges::new() }
}

fn matches(rule: &FilterRule, index: Option<&PrefixIndex>, route: &FilterRoute<'_>) -> bool {
    let wanted = &rule.matches;
    let prefix = &route.prefix;
    wanted.family.is_none_or(|family| IpFamily::of_cidr(prefix) == family)
        && (wanted.source.is_empty() || wanted.source.contains(&route.source))
        && (wanted.role.is_empty() || route.role.is_some_and(|role| wanted.role.contains(&role)))
        && (wanted.peer.is_empty() || route.peer.is_some_and(|peer| wanted.peer.iter().any(|p| p == peer)))
        && match index {
            Some(index) => index.matches(prefix),
            None => wanted.prefixes.is_empty() || wanted.prefixes.iter().any(|range| range.matches(prefix)),
        }
        && (wanted.next_hop.is_empty()
            || route.next_hop.is_some_and(|hop| wanted.next_hop.iter().any(|net| net.contains(hop))))
        && wanted.communities.matches(&route.communities)
        && wanted.large.matches(&route.large)
        && wanted.extended.matches(&route.extended)
        && path_matches(&wanted.path, route)
}

fn path_matches(wanted: &PathMatch, route: &FilterRoute<'_>) -> bool {
    let among = |ranges: &[AsRange], asn: u32| ranges.iter().any(|range| range.contains(asn));
    let one =
        |ranges: &[AsRange], asn: Option<u32>| ranges.is_empty() || asn.is_some_and(|asn| among(ranges, asn));
    one(&wanted.origin, route.origin_as)
        && one(&wanted.neighbour, route.neighbour)
        && (wanted.contains.is_empty() || route.path.iter().any(|asn| among(&wanted.contains, *asn)))
        && wanted.length.is_none_or(|(ge, le)| {
            (usize::from(ge)..=usize::from(le)).contains(&route.path_length)
                || (le == u16::MAX && route.path_length > usize::from(le))
        })
        && (wanted.matches.is_empty() || wanted.matches.iter().any(|pattern| pattern.matches(&route.path)))
}
