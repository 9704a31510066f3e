//! Origin of a prefix according to the core: the keys of the store that make this host announce it, or
//! prevent that.

use tortie_config::Dialect;
use tortie_config::key::{BgpItem, Key};
use tortie_net::Cidr;

use crate::agent::core::view::CoreView;
use crate::api::explain::{Step, Verdict};
use crate::api::status::Event;
use tortie_engine::routing::OriginKind;

/// Maximum number of flight recorder entries in an answer.
const EVENTS_MAX: usize = 4;

/// The core's evidence on a prefix.
#[derive(Debug, Clone)]
pub(super) struct PrefixOrigin {
    pub(super) revision: u64,
    /// Origination of the prefix by this host.
    pub(super) origin: Origin,
    /// Pool that contains the prefix.
    pub(super) pool: Option<Cidr>,
    /// Filters that peers refer to.
    pub(super) filters: Vec<Filter>,
    /// Newest flight recorder entries about the prefix, oldest first.
    pub(super) events: Vec<Event>,
    /// True if the agent writes to the kernel.
    pub(super) writes: bool,
}

/// A filter in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) name: String,
    /// Its key, or in a Calico 3 store its object.
    pub(super) key: String,
    pub(super) revision: u64,
}

/// Origination of a prefix by this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// This host originates the prefix because of this key; `withheld` is the reason why BGP does not get it.
    Own { kind: OriginKind, key: String, revision: u64, state: String, withheld: Option<String> },
    /// This host has an affinity that is not confirmed.
    Affinity { state: String, key: String, revision: u64 },
    /// This host claims the block, but the block's value names another host or is absent.
    Elsewhere { host: Option<String>, key: String, revision: u64 },
    /// The prefix is inside a block of this host.
    Inside(Cidr),
    /// This host does not originate the prefix.
    No,
}

impl PrefixOrigin {
    /// Collects the evidence from the core's state.
    pub(super) fn of(core: &CoreView<'_>, prefix: Cidr) -> Self {
        let intent = core.intent().map(|intent| &**intent);
        let pool = intent.and_then(|i| i.view.pool_of(&prefix)).map(|pool| pool.cidr);
        let mut events = core.recorder().of_prefix(&prefix);
        events.drain(..events.len().saturating_sub(EVENTS_MAX));
        let names: std::collections::BTreeSet<&String> =
            intent.into_iter().flat_map(|i| i.peers.values()).flat_map(|p| &p.policy.filters).collect();
        let filter = |name: &String| {
            let model = core.model();
            let key = if model.dialect() == Dialect::V3 {
                Key::BgpFilter(name.clone())
            } else {
                // A filter of this host overrides the global one.
                let item = || BgpItem::Filter(name.clone());
                let own = Key::bgp_host(model.node(), item());
                if model.revision_of(&own).is_some() { own } else { Key::bgp_global(item()) }
            };
            let revision = model.revision_of(&key).unwrap_or_default();
            Filter { name: name.clone(), key: model.name_of(&key), revision }
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
            OriginKind::ServiceRange => "configured range of service addresses".to_owned(),
        };
        let (kind, key, revision) = (own.kind, core.model().name_of_text(&own.key), own.revision);
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
    /// Returns the step about the origin; `None` if this host does not originate the prefix.
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
                    None => {
                        "this host claims the block, and its value is missing or cannot be parsed".to_owned()
                    }
                };
                Step::new(Verdict::Stop, "origin", text).of(key.clone(), Some(*revision))
            }
            Origin::Inside(block) => {
                Step::new(Verdict::Note, "origin", format!("inside {block}, a block of this host"))
            }
            Origin::No => return None,
        })
    }

    /// Returns the step about the blackhole, which must exist before an own block is announced.
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

    /// Returns the recorded entries as steps.
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

    /// Fabricates the core's evidence on a prefix.
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
