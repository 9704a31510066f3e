//! Route queries on one table: by prefix, by address, in pages.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_net::Cidr;

use super::View;
use crate::adj_rib_out::attr_sets::AttrSetKey;
use crate::adj_rib_out::export;
use crate::adj_rib_out::group::Group;
use crate::api::PeerId;
use crate::api::{PathInfo, PathSource, RouteInfo, RouteMatch, RouteQuery, RouteTable, Step, Unusable};
use crate::attr::Attributes;
use crate::rib::best_path::candidate;
use crate::rib::decision;
use crate::rib::entry::{Entry, Key, Path};
use crate::rib::import::ACCEPTED;
use crate::rib::source::LOCAL;
use crate::ribs::family::FamilyRib;
use crate::types::Family;

/// Selection of the paths of an entry.
enum TableView<'g> {
    Loc,
    /// Paths of this source; true: as received, false: after import policy.
    In(u32, bool),
    /// Update groups of a peer, one per path of a prefix, and the peer's source number.
    Out(SmallVec<[&'g Group; 2]>, u32),
    Nothing,
}

impl<'a> View<'a> {
    /// Implements [`Speaker::routes`](crate::Speaker::routes).
    pub(crate) fn routes(self, query: &RouteQuery, after: Option<Cidr>, max: usize) -> Vec<RouteInfo> {
        let family = match query.matching {
            RouteMatch::All(family) => family,
            RouteMatch::Exact(prefix) | RouteMatch::Within(prefix) => Family::of(prefix.addr()),
            RouteMatch::Longest(address) => Family::of(address),
        };
        match family {
            Family::Ipv4Unicast => self.routes_of(self.ribs.v4(), query, after, max),
            Family::Ipv6Unicast => self.routes_of(self.ribs.v6(), query, after, max),
        }
    }

    fn routes_of<A: Key + FromAddr>(
        self,
        rib: &FamilyRib<A>,
        query: &RouteQuery,
        after: Option<Cidr>,
        max: usize,
    ) -> Vec<RouteInfo> {
        let view = &self.table(query.table, A::FAMILY);
        let slots: Vec<u32> = match query.matching {
            RouteMatch::Exact(prefix) => A::from_addr(prefix.addr())
                .and_then(|a| rib.table.find((a, prefix.len())))
                .into_iter()
                .collect(),
            RouteMatch::Longest(address) => (0..=A::WIDTH)
                .rev()
                .filter_map(|len| {
                    let prefix = Cidr::new(address, len).ok()?;
                    rib.table.find((A::from_addr(prefix.addr())?, len))
                })
                .find(|slot| rib.table.entry(*slot).is_some_and(|e| has(rib, e, *slot, view)))
                .into_iter()
                .collect(),
            RouteMatch::All(_) => page(rib, view, None, after, max),
            RouteMatch::Within(prefix) => page(rib, view, Some(prefix), after, max),
        };
        let entries = slots.into_iter().filter_map(|slot| Some((slot, rib.table.entry(slot)?)));
        entries
            .filter(|(slot, e)| has(rib, e, *slot, view) && after.is_none_or(|a| e.cidr() > a))
            .take(max)
            .map(|(slot, e)| RouteInfo { prefix: e.cidr(), paths: self.paths(rib, slot, e, view) })
            .collect()
    }

    /// Implements [`Speaker::scan`](crate::Speaker::scan).
    pub(crate) fn scan(
        self,
        query: &RouteQuery,
        from: u32,
        slots: u32,
        max: usize,
    ) -> (Vec<RouteInfo>, Option<u32>) {
        let (family, within) = match query.matching {
            RouteMatch::All(family) => (family, None),
            RouteMatch::Within(prefix) => (Family::of(prefix.addr()), Some(prefix)),
            RouteMatch::Exact(_) | RouteMatch::Longest(_) => return (self.routes(query, None, max), None),
        };
        match family {
            Family::Ipv4Unicast => {
                self.scan_of(self.ribs.v4(), query.table, within, from..from.saturating_add(slots), max)
            }
            Family::Ipv6Unicast => {
                self.scan_of(self.ribs.v6(), query.table, within, from..from.saturating_add(slots), max)
            }
        }
    }

    fn scan_of<A: Key>(
        self,
        rib: &FamilyRib<A>,
        table: RouteTable,
        within: Option<Cidr>,
        places: Range<u32>,
        max: usize,
    ) -> (Vec<RouteInfo>, Option<u32>) {
        let view = &self.table(table, A::FAMILY);
        let limit = rib.table.limit();
        let mut routes = Vec::new();
        let mut next = places.start;
        while next < places.end.min(limit) && routes.len() < max {
            let slot = next;
            next += 1;
            let Some(entry) = rib.table.entry(slot) else { continue };
            if within.is_none_or(|w| w.covers(&entry.cidr())) && has(rib, entry, slot, view) {
                let paths = self.paths(rib, slot, entry, view);
                routes.push(RouteInfo { prefix: entry.cidr(), paths });
            }
        }
        (routes, (next < limit).then_some(next))
    }

    fn table(self, table: RouteTable, family: Family) -> TableView<'a> {
        match table {
            RouteTable::Loc => TableView::Loc,
            RouteTable::AdjIn(id) => {
                self.peers.number(id).map_or(TableView::Nothing, |n| TableView::In(n, true))
            }
            RouteTable::AdjInPost(id) => {
                self.peers.number(id).map_or(TableView::Nothing, |n| TableView::In(n, false))
            }
            RouteTable::AdjOut(id) => self.adj_rib_out(id, family).unwrap_or(TableView::Nothing),
        }
    }

    fn adj_rib_out(self, id: PeerId, family: Family) -> Option<TableView<'a>> {
        let number = self.peers.number(id)?;
        let groups = self.peers.get(number)?.groups(family);
        Some(TableView::Out(groups.iter().filter_map(|id| self.ribs.group(family, *id)).collect(), number))
    }

    fn paths<A: Key>(
        self,
        rib: &FamilyRib<A>,
        slot: u32,
        entry: &Entry<A>,
        view: &TableView<'_>,
    ) -> Vec<PathInfo> {
        let all: SmallVec<[Path; 4]> = rib.table.paths(entry).collect();
        let steps = self.deciding_steps(entry.cidr(), &all);
        let best = entry.best();
        let kind = || rib.table.locals.get(&entry.prefix()).map_or(0, |l| l.kind);
        let infos = all.iter().zip(steps).map(|(p, decided_by)| {
            let info = self.path(entry.cidr(), p, kind(), decided_by);
            (p, info.map(|i| PathInfo { best: best.is_some_and(|b| b.is_same(p)), ..i }))
        });
        match view {
            TableView::Nothing => Vec::new(),
            TableView::In(number, received) => infos
                .filter(|(p, _)| p.source == *number)
                .filter_map(|(p, i)| {
                    if *received { Some(PathInfo { attributes: self.received(p)?, ..i? }) } else { i }
                })
                .collect(),
            TableView::Loc => {
                let mut infos: Vec<PathInfo> = infos.filter_map(|(_, i)| i).collect();
                infos.sort_by_key(|i| (!i.best, !i.multipath, i.unusable.is_some()));
                infos
            }
            TableView::Out(groups, number) => {
                let infos: SmallVec<[(&Path, Option<PathInfo>); 4]> = infos.collect();
                let sent = |group: &&Group| {
                    let out = announced(group, slot, *number)?;
                    let sent = export::attributes(
                        self.ribs.shared(),
                        &group.key,
                        out,
                        group.attr_sets.added(out.extra),
                    )?;
                    // The announced path may have been removed since.
                    let of = |p: &Path| p.source == out.source;
                    let path = infos.iter().find(|(p, i)| of(p) && p.attr == out.attr && i.is_some());
                    let path = path.or_else(|| infos.iter().find(|(p, i)| of(p) && i.is_some()))?;
                    let path_id = group.key.path_id();
                    Some(PathInfo { attributes: Arc::new(sent), path_id, ..path.1.clone()? })
                };
                groups.iter().filter_map(sent).collect()
            }
        }
    }

    /// Returns the attributes of a path as received.
    pub(super) fn received(self, path: &Path) -> Option<Arc<Attributes>> {
        let attrs = &self.ribs.shared().attrs;
        attrs.attributes(attrs.received(path.attr)).cloned().map(Arc::new)
    }

    /// Returns the deciding step of each path.
    fn deciding_steps(self, prefix: Cidr, paths: &[Path]) -> Vec<Option<Step>> {
        let candidates: Vec<_> = paths.iter().map(|p| candidate(self.ribs.shared(), prefix, p)).collect();
        let usable: SmallVec<[_; 4]> = candidates.iter().flatten().copied().collect();
        let lost = decision::decide(&usable);
        let last = lost.iter().flatten().max().copied();
        let mut steps = lost.iter().map(|l| l.or(last));
        candidates.iter().map(|c| if c.is_some() { steps.next().flatten() } else { None }).collect()
    }

    fn path(self, prefix: Cidr, path: &Path, kind: u32, decided_by: Option<Step>) -> Option<PathInfo> {
        let family = Family::of(prefix.addr());
        let set = self.ribs.shared().attrs.set(path.attr)?;
        let attributes = set.attributes()?.clone();
        let source = self.ribs.shared().sources.get(path.source);
        let unusable = if path.reason != ACCEPTED {
            Some(Unusable::Filtered(self.ribs.shared().reasons.text(path.reason).unwrap_or("filter")))
        } else if self.ribs.shared().next_hops.metric(set.hop, || prefix).is_none() {
            Some(Unusable::NextHop)
        } else {
            None
        };
        let local = path.source == LOCAL;
        // A path of an ended session that has not been removed yet.
        if !local && !source.is_some_and(|s| s.family(family).is_valid(path.generation)) {
            return None;
        }
        Some(PathInfo {
            source: match source {
                Some(s) => PathSource::Peer { id: s.id, name: s.name.clone(), ebgp: s.ebgp() },
                None => PathSource::Local { kind },
            },
            attributes: Arc::new(attributes),
            path_id: source
                .is_some_and(|s| path.path_id > 0 || s.family(family).add_path)
                .then_some(path.path_id),
            best: false,
            multipath: path.multipath,
            stale: source.is_some_and(|s| s.family(family).generation != path.generation),
            unusable,
            next_hop: if local { None } else { self.ribs.shared().next_hops.state(set.hop) },
            decided_by,
        })
    }
}

/// Returns true if the view includes this entry.
fn has<A: Key>(rib: &FamilyRib<A>, entry: &Entry<A>, slot: u32, view: &TableView<'_>) -> bool {
    match view {
        TableView::Nothing => false,
        TableView::Loc => !entry.is_empty(),
        TableView::In(number, _) => rib.table.paths(entry).any(|p| p.source == *number),
        TableView::Out(groups, number) => groups.iter().any(|g| announced(g, slot, *number).is_some()),
    }
}

/// Returns the attribute set that a group announces for this slot to this member.
fn announced(group: &Group, slot: u32, member: u32) -> Option<AttrSetKey> {
    let out = group.advertised.get(slot).attr_set().and_then(|out| group.attr_sets.key(out));
    out.filter(|o| o.source != member)
}

/// Returns the slots of the next page, in prefix order.
fn page<A: Key>(
    rib: &FamilyRib<A>,
    view: &TableView<'_>,
    within: Option<Cidr>,
    after: Option<Cidr>,
    max: usize,
) -> Vec<u32> {
    // The hash table has no order, so one pass over it collects the lowest prefixes.
    let after = after.map(|a| (a.addr(), a.len()));
    let mut least: BTreeSet<((A, u8), u32)> = BTreeSet::new();
    for (slot, entry) in rib.table.iter() {
        let key = entry.prefix();
        if least.len() >= max && least.last().is_none_or(|(last, _)| key > *last) {
            continue;
        }
        let cidr = entry.cidr();
        let wanted = after.is_none_or(|a| (cidr.addr(), cidr.len()) > a)
            && within.is_none_or(|w| w.covers(&cidr))
            && has(rib, entry, slot, view);
        if wanted {
            least.insert((key, slot));
            if least.len() > max {
                least.pop_last();
            }
        }
    }
    least.into_iter().map(|(_, slot)| slot).collect()
}

/// Conversion to an address of the table's family.
pub(super) trait FromAddr: Sized {
    fn from_addr(address: IpAddr) -> Option<Self>;
}

impl FromAddr for u32 {
    fn from_addr(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(a) => Some(Self::from(a)),
            IpAddr::V6(_) => None,
        }
    }
}

impl FromAddr for u128 {
    fn from_addr(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V6(a) => Some(Self::from(a)),
            IpAddr::V4(_) => None,
        }
    }
}
