//! Where a prefix comes from, as the core has it: the keys of the store that make this host announce it, or keep it from
//! that.

use tortie_config::key::{BgpItem, Key};
use tortie_net::Cidr;

use crate::agent::core::view::CoreView;
use crate::api::explain::{Step, Verdict};
use crate::api::status::Event;
use tortie_engine::routing::OriginKind;

/// Entries of the flight recorder that an answer brings.
const EVENTS_MAX: usize = 4;

/// The core's evidence on a prefix.
#[derive(Debug, Clone)]
pub(super) struct PrefixOrigin {
    pub(super) revision: u64,
    /// The store's side of it.
    pub(super) origin: Origin,
    /// The pool that it lies in.
    pub(super) pool: Option<Cidr>,
    /// The filters that peers name.
    pub(super) filters: Vec<Filter>,
    /// The newest entries of the flight recorder about it, oldest first.
    pub(super) events: Vec<Event>,
    /// The kernel is written to.
    pub(super) writes: bool,
}

/// The place of a filter in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) revision: u64,
}

/// Whether this host originates a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// It does, for this key; `withheld`: why it is not given to BGP.
    Own { kind: OriginKind, key: String, revision: u64, state: String, withheld: Option<String> },
    /// It has an affinity of this host, which does not count.
    Affinity { state: String, key: String, revision: u64 },
    /// This host claims the block, and the block's value names another, or is not there.
    Elsewhere { host: Option<String>, key: String, revision: u64 },
    /// Inside a block of this host.
    Inside(Cidr),
    /// It does not.
    No,
}

impl PrefixOrigin {
    /// Reads the core's state.
    pub(super) fn of(core: &CoreView<'_>, prefix: Cidr) -> Self {
        let intent = core.intent().map(|intent| &**intent);
        let pool = intent.and_then(|i| i.view.pool_of(&prefix)).map(|pool| pool.cidr);
        let mut events = core.recorder().of_prefix(&prefix);
        events.drain(..events.len().saturating_sub(EVENTS_MAX));
        let names: std::collections::BTreeSet<&String> =
            intent.into_iter().flat_map(|i| i.peers.values()).flat_map(|p| &p.policy.filters).collect();
        let filter = |name: &String| {
            // That of this host counts before the one of all.
            let item = || BgpItem::Filter(name.clone());
            let own = Key::bgp_host(core.model().node(), item());
            let key = if core.model().revision_of(&own).is_some() { own } else { Key::bgp_global(item()) };
            let revision = core.model().revision_of(&key).unwrap_or_default();
            Filter { name: name.clone(), key: key.to_string(), revision }
        };
        Self {
            revision: core.revision(),
            origin: origin_of(core, prefix),
            pool,
            filters: names.into_iter().map(filter).collect(),
            events,
            writes: core.writes_kernel(),
        }
    }
}

fn origin_of(core: &CoreView<'_>, prefix: Cidr) -> Origin {
    let node = core.model().node();
    let Some(intent) = core.intent().map(|intent| &**intent) else { return Origin::No };
    if let Some(own) = intent.originated.get(&prefix) {
        let withheld =
            (core.writes_kernel() && intent.blackholes.contains(&prefix) && !core.has_blackhole(&prefix))
                .then(|| core.blackhole_failure(&prefix).unwrap_or("not written yet").to_owned());
        let state = match own.kind {
            OriginKind::OwnBlock => format!("IPAM block, affinity host:{node} confirmed"),
            OriginKind::Borrowed => "address of an endpoint here, outside of this host's blocks".to_owned(),
            OriginKind::Floating => "outside address of a 1:1 NAT here".to_owned(),
        };
        let (kind, key, revision) = (own.kind, own.key.to_string(), own.revision);
        return Origin::Own { kind, key, revision, state, withheld };
    }
    let affinity = Key::Affinity { host: node.to_owned(), block: prefix };
    if let Some(found) = core.model().affinities(node).find(|a| *a.key == prefix) {
        let (key, revision) = (affinity.to_string(), found.revision);
        if !found.value.is_confirmed() {
            let state = found.value.state.map_or("without a state", |s| s.as_str()).to_owned();
            return Origin::Affinity { state, key, revision };
        }
        let block = core.model().block(prefix);
        let host = block.as_ref().and_then(|b| b.value.host().map(str::to_owned));
        let (key, revision) = (Key::Block(prefix).to_string(), block.map_or(revision, |b| b.revision));
        return Origin::Elsewhere { host, key, revision };
    }
    let inside = intent.view.own_blocks.iter().find(|block| block.covers(&prefix));
    inside.map_or(Origin::No, |block| Origin::Inside(*block))
}

impl PrefixOrigin {
    /// The store's side of a prefix that this host may originate.
    pub(super) fn step(&self) -> Option<Step> {
        Some(match &self.origin {
            Origin::Own { key, revision, state, .. } => {
                Step::new(Verdict::Ok, "origin", state.clone()).of(key.clone(), Some(*revision))
            }
            Origin::Affinity { state, key, revision } => {
                let text = format!("the affinity of this host is {state}: only a confirmed one counts");
                Step::new(Verdict::Stop, "origin", text).of(key.clone(), Some(*revision))
            }
            Origin::Elsewhere { host, key, revision } => {
                let text = match host {
                    Some(host) => format!("this host claims the block, but its value names {host}"),
                    None => "this host claims the block, and there is no readable value of it".to_owned(),
                };
                Step::new(Verdict::Stop, "origin", text).of(key.clone(), Some(*revision))
            }
            Origin::Inside(block) => {
                Step::new(Verdict::Note, "origin", format!("inside {block}, a block of this host"))
            }
            Origin::No => return None,
        })
    }

    /// The blackhole that comes before an own block is announced.
    pub(super) fn blackhole(&self) -> Option<Step> {
        let Origin::Own { kind: OriginKind::OwnBlock, withheld, .. } = &self.origin else { return None };
        Some(match withheld {
            Some(why) => {
                Step::new(Verdict::Stop, "blackhole", format!("not in the kernel, so not announced: {why}"))
            }
            None if !self.writes => {
                Step::new(Verdict::Note, "blackhole", "this agent writes no routes (--kernel)")
            }
            None => Step::new(Verdict::Ok, "blackhole", "in the kernel"),
        })
    }

    /// Recorded entries about it.
    pub(super) fn history(&self) -> Vec<Step> {
        let words = |event: &Event| {
            let change = if event.change == "c-0" { String::new() } else { format!("{}  ", event.change) };
            let text = format!("{}  {change}{} {} {}", event.time, event.plane, event.mark, event.text);
            Step::new(Verdict::Note, "history", text).of(String::new(), Some(event.revision))
        };
        let none = |step: Step| Step { key: None, ..step };
        self.events.iter().map(words).map(none).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A made-up state of the core.
    pub(in super::super) fn origin_evidence(origin: Origin) -> PrefixOrigin {
        let key = "/calico/bgp/v1/global/filters/tor-export".to_owned();
        PrefixOrigin {
            revision: 918_273,
            origin,
            pool: None,
            filters: vec![
                Filter {
                    name: "tor".to_owned(),
                    key: "/calico/bgp/v1/global/filters/tor".to_owned(),
                    revision: 3,
                },
                Filter { name: "tor-export".to_owned(), key, revision: 916_020 },
            ],
            events: Vec::new(),
            writes: true,
        }
    }
}
