//! The peers' filters: rules of the store over one route.
//!
//! Total and bounded: a filter has no loops and no calls, each rule is asked at most once, and each of its conditions
//! looks at the route in time proportional to what it lists (prefix lists: to the lengths in them). There is always an
//! answer. A filter that does not exist, or never could be read, rejects: what was meant to be held back stays back.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_config::key::{IpFamily, Scope};
use tortie_config::resource::{
    self, AsRange, CommunityChange, CommunityKind, FilterDefault, FilterRule, FilterSet, FilterThen,
    NextHopChange, PathMatch, PrefixRange, Role, RouteSource,
};
use tortie_net::Cidr;

use crate::model::{FilterValue, Model};

/// From a list of this length on prefixes are looked up by length instead of one by one.
const INDEXED: usize = 8;

/// Which way a route goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the peer.
    Import,
    /// To the peer.
    Export,
}

/// A route as filters see it.
#[derive(Debug, Clone)]
pub struct FilterRoute<'a> {
    /// The prefix.
    pub prefix: Cidr,
    /// The next hop; `None`: a route of this host.
    pub next_hop: Option<IpAddr>,
    /// Communities (RFC 1997).
    pub communities: Cow<'a, [u32]>,
    /// Large communities (RFC 8092).
    pub large: Cow<'a, [[u32; 3]]>,
    /// Extended communities (RFC 4360).
    pub extended: Cow<'a, [[u8; 8]]>,
    /// All ASes of the path, the nearest first; those of a set in the order in which they came.
    pub path: Cow<'a, [u32]>,
    /// The length of the path in the decision process: a set counts as one.
    pub path_length: usize,
    /// The first AS, where the path begins with a sequence.
    pub neighbour: Option<u32>,
    /// The last AS, where the path ends in a sequence.
    pub origin_as: Option<u32>,
    /// How it came.
    pub source: RouteSource,
    /// The peer that it came from.
    pub peer: Option<&'a str>,
    /// The local role on the session that it came over (RFC 9234).
    pub role: Option<Role>,
    /// What `prepend` without an AS prepends: ours on export, the peer's on import, nothing on iBGP sessions.
    pub prepend_as: Option<u32>,
}

impl FilterRoute<'_> {
    /// A route of this host without attributes.
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
        }
    }

    /// Makes the changes that later rules can see.
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

/// A route that is decided about. Most decisions ask for its prefix alone, and they are made for each of a million; what
/// filters may look at besides is put together when there are some.
pub trait FilterInput {
    /// The prefix.
    fn prefix(&self) -> Cidr;
    /// How it came.
    fn source(&self) -> RouteSource;
    /// Calls `ask` with everything.
    fn whole<T>(&self, ask: impl FnOnce(&FilterRoute<'_>) -> T) -> T;
}

impl FilterInput for FilterRoute<'_> {
    fn prefix(&self) -> Cidr {
        self.prefix
    }

    fn source(&self) -> RouteSource {
        self.source
    }

    fn whole<T>(&self, ask: impl FnOnce(&FilterRoute<'_>) -> T) -> T {
        ask(self)
    }
}

/// A rule by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleRef {
    /// Which of the peer's filters, from 0.
    pub filter: usize,
    /// Which of its rules in that direction, from 0.
    pub rule: usize,
}

/// What the filters of a peer say of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterVerdict {
    /// It passes, whatever comes after filters.
    Accept,
    /// It does not.
    Reject,
    /// They leave it to what comes after them.
    Continue,
}

/// Who gave the verdict; the number is that of the filter among the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decider {
    /// A rule.
    Rule(RuleRef),
    /// The `default` of a filter.
    Default(usize),
    /// There is no filter of that name.
    Missing(usize),
    /// Its value cannot be read and never could.
    Unreadable(usize),
    /// All filters were asked.
    End,
}

/// The answer of the filters of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterDecision {
    /// What becomes of the route.
    pub verdict: FilterVerdict,
    /// Why.
    pub decider: Decider,
    /// The rules whose changes the route gets, in their order.
    pub changes: FilterChanges,
}

impl FilterDecision {
    /// The answer of no filters.
    pub(super) const NONE: Self =
        Self { verdict: FilterVerdict::Continue, decider: Decider::End, changes: FilterChanges::new_const() };
}

/// Rules with changes, in the order in which these are made.
pub type FilterChanges = SmallVec<[RuleRef; 2]>;

/// The filters that this host's peers name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters(BTreeMap<String, State>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Ready(Arc<Compiled>),
    Unreadable,
}

/// A filter ready to be asked.
#[derive(Debug, PartialEq, Eq)]
struct Compiled {
    filter: resource::Filter,
    /// Of each rule with a long prefix list.
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

/// Prefix ranges by their prefix.
#[derive(Debug, PartialEq, Eq)]
struct PrefixIndex {
    /// Ranges of lengths by the prefix that they lie in.
    ranges: BTreeMap<Cidr, SmallVec<[(u8, u8); 1]>>,
    /// The lengths of these prefixes, ascending, of IPv4 and IPv6.
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
    /// Those that explicit peers of this host name; what `before` has already is taken over.
    pub(super) fn of(model: &Model, before: &Self) -> Self {
        let mut all = BTreeMap::new();
        for scope in [Scope::Global, Scope::Host(model.node().to_owned())] {
            for name in model.all_peers(&scope).flat_map(|(_, peer)| &peer.filters) {
                if all.contains_key(name) {
                    continue;
                }
                let state = match model.filter(name) {
                    None => continue,
                    Some(FilterValue::Unreadable) => State::Unreadable,
                    Some(FilterValue::Valid(filter)) => match before.0.get(name) {
                        Some(State::Ready(ready)) if ready.filter == *filter => State::Ready(ready.clone()),
                        _ => State::Ready(Arc::new(Compiled::new(filter.clone()))),
                    },
                };
                all.insert(name.clone(), state);
            }
        }
        Self(all)
    }

    /// These filters, by name; `None`: a value that never could be read.
    #[must_use]
    pub fn from_values(values: impl IntoIterator<Item = (String, Option<resource::Filter>)>) -> Self {
        let state = |value: Option<resource::Filter>| {
            value.map_or(State::Unreadable, |filter| State::Ready(Arc::new(Compiled::new(filter))))
        };
        Self(values.into_iter().map(|(name, value)| (name, state(value))).collect())
    }

    /// All filters that can be asked, with the rules of a direction.
    pub fn rules(&self, direction: Direction) -> impl Iterator<Item = (&str, &[FilterRule])> {
        self.0.iter().filter_map(move |(name, state)| match state {
            State::Ready(ready) => Some((name.as_str(), ready.rules(direction)?.0)),
            State::Unreadable => None,
        })
    }

    /// What the filters of these names, in this order, say of a route.
    #[must_use]
    pub fn ask(&self, names: &[String], direction: Direction, route: &FilterRoute<'_>) -> FilterDecision {
        let mut changes = FilterChanges::new();
        let mut changed: Option<FilterRoute<'_>> = None;
        for (filter, name) in names.iter().enumerate() {
            let ready = match self.0.get(name) {
                Some(State::Ready(ready)) => ready,
                Some(State::Unreadable) => return reject(Decider::Unreadable(filter)),
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

    /// An answer in words: which rule of which filter decided, and which changed the route.
    pub(super) fn describe(&self, names: &[String], direction: Direction, answer: &FilterDecision) -> String {
        let name = |filter: usize| names.get(filter).map_or("?", String::as_str);
        let rule = |at: RuleRef| {
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
            Decider::End if names.is_empty() => "the peer names no filters".to_owned(),
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
