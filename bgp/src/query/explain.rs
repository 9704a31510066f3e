//! Explanations of import and export: why a route is or is not used, or announced. Recorded runs of the
//! production code.

use std::sync::Arc;

use smallvec::SmallVec;
use tortie_net::Cidr;

use super::View;
use super::routes::FromAddr;
use crate::adj_rib_out::attr_sets::{Added, AttrSetKey};
use crate::adj_rib_out::export::{self, Verdict};
use crate::adj_rib_out::group::Group;
use crate::api::{ExportStep, ExportTrace, ImportTrace, PeerId};
use crate::attr::Attributes;
use crate::rib::entry::{Entry, Key};
use crate::rib::import;
use crate::rib::source::LOCAL;
use crate::ribs::family::FamilyRib;
use crate::types::Family;

impl View<'_> {
    /// Implements [`Speaker::explain_import`](crate::Speaker::explain_import).
    pub(crate) fn explain_import(self, prefix: Cidr, peer: PeerId) -> Option<ImportTrace> {
        match Family::of(prefix.addr()) {
            Family::Ipv4Unicast => self.explain_in(self.ribs.v4(), prefix, peer),
            Family::Ipv6Unicast => self.explain_in(self.ribs.v6(), prefix, peer),
        }
    }

    fn explain_in<A: Key + FromAddr>(
        self,
        rib: &FamilyRib<A>,
        prefix: Cidr,
        peer: PeerId,
    ) -> Option<ImportTrace> {
        let number = self.peers.number(peer)?;
        let entry = rib.table.entry(rib.table.find((A::from_addr(prefix.addr())?, prefix.len()))?)?;
        let path = rib.table.paths(entry).find(|p| p.source == number)?;
        let mut steps = Vec::new();
        let attr = self.ribs.shared().attrs.received(path.attr);
        let stale =
            self.ribs.source(number).is_some_and(|s| s.family(A::FAMILY).is_long_lived(path.generation));
        let used = import::explain(self.ribs.shared(), number, prefix, attr, stale, &mut steps).map(Arc::new);
        Some(ImportTrace { steps, received: self.received(&path)?, used })
    }

    /// Implements [`Speaker::explain_export`](crate::Speaker::explain_export).
    pub(crate) fn explain_export(self, prefix: Cidr, peer: PeerId) -> ExportTrace {
        match Family::of(prefix.addr()) {
            Family::Ipv4Unicast => self.explain(self.ribs.v4(), prefix, peer),
            Family::Ipv6Unicast => self.explain(self.ribs.v6(), prefix, peer),
        }
    }

    fn explain<A: Key + FromAddr>(self, rib: &FamilyRib<A>, prefix: Cidr, peer: PeerId) -> ExportTrace {
        let mut steps = Vec::new();
        let announced = self.explain_steps(rib, prefix, peer, &mut steps);
        ExportTrace { steps, announced }
    }

    fn explain_steps<A: Key + FromAddr>(
        self,
        rib: &FamilyRib<A>,
        prefix: Cidr,
        id: PeerId,
        steps: &mut Vec<ExportStep>,
    ) -> Option<Arc<Attributes>> {
        let mut check = |step: &'static str, pass: bool, verdict: String| {
            steps.push(ExportStep { step, pass, verdict });
            pass.then_some(())
        };
        let number = self.peers.number(id);
        let peer = number.and_then(|n| self.peers.get(n));
        let up = peer.is_some_and(|p| p.session.is_some());
        let state = peer.map_or("no such peer".into(), |p| p.state.as_str().to_owned());
        check(
            "session",
            up && self.ribs.shared().local_ready,
            match (up, self.ribs.shared().local_ready) {
                (true, false) => "waits for the local routes of the start".into(),
                _ => state,
            },
        )?;
        let (number, peer) = (number?, peer?);
        let groups: SmallVec<[&Group; 2]> =
            peer.groups(A::FAMILY).iter().filter_map(|g| self.ribs.group(A::FAMILY, *g)).collect();
        let family = A::FAMILY.as_str();
        let carried = if groups.is_empty() { "does not carry" } else { "carries" };
        check("family", !groups.is_empty(), format!("the session {carried} {family}"))?;
        // With several paths, the steps are those of the first path that is announced, or else those of the
        // best path.
        let mut refused = None;
        for group in groups {
            let mut tried = Vec::new();
            let announced = self.explain_path(rib, group, prefix, number, &mut tried);
            if announced.is_some() {
                steps.append(&mut tried);
                return announced;
            }
            refused.get_or_insert(tried);
        }
        steps.extend(refused.into_iter().flatten());
        None
    }

    /// Explains the export of one path.
    fn explain_path<A: Key + FromAddr>(
        self,
        rib: &FamilyRib<A>,
        group: &Group,
        prefix: Cidr,
        number: u32,
        steps: &mut Vec<ExportStep>,
    ) -> Option<Arc<Attributes>> {
        let mut check = |step: &'static str, pass: bool, verdict: String| {
            steps.push(ExportStep { step, pass, verdict });
            pass.then_some(())
        };
        let slot = A::from_addr(prefix.addr()).and_then(|a| rib.table.find((a, prefix.len())));
        let entry = slot.and_then(|s| rib.table.entry(s));
        let path = entry.and_then(|e| group.path(self.ribs.shared(), &rib.table, e));
        let from = path.map(|p| {
            let from = self
                .ribs
                .shared()
                .sources
                .get(p.source)
                .map_or("local".to_owned(), |s| format!("from {}", s.name));
            match group.key.plane {
                0 if entry.and_then(Entry::best).is_some_and(|best| best.source != p.source) => {
                    format!("{from}; the best path was learned by iBGP")
                }
                0 => from,
                plane => format!("path {} of the decision, {from}", u32::from(plane) + 1),
            }
        });
        check("best", path.is_some(), from.unwrap_or_else(|| "no usable path".into()))?;
        let (entry, path) = (entry?, path?);
        let own = path.source == number;
        check("split-horizon", !own, if own { "it gave us this route" } else { "from elsewhere" }.into())?;
        let kind =
            (path.source == LOCAL).then(|| rib.table.locals.get(&entry.prefix()).map_or(0, |l| l.kind));
        let verdict = export::verdict(
            self.ribs.shared(),
            &group.key,
            group.representative(),
            prefix,
            &path,
            kind,
            Some(&mut *steps),
        );
        let Verdict::Announce(added) = verdict else { return None };
        // Edits have a number only after the first announcement, which may not have happened yet.
        let out = AttrSetKey { attr: path.attr, source: path.source, ..AttrSetKey::default() };
        let added = Some(&added).filter(|a| **a != Added::default());
        let fits = !export::is_oversized(self.ribs.shared(), &group.key, out, added);
        let text = if fits { "fits into a message" } else { "the attributes exceed a message" };
        steps.push(ExportStep { step: "size", pass: fits, verdict: text.into() });
        if !fits {
            return None;
        }
        export::attributes(self.ribs.shared(), &group.key, out, added).map(Arc::new)
    }
}
