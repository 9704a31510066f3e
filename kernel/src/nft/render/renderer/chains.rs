//! Life cycle of chains: each is drafted, linked with the objects it refers to, and removed when nothing
//! refers to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Renderer;
use crate::nft::ir::Name;
use crate::nft::render::chains::RenderedChain;
use crate::nft::render::draft::{Draft, Frame};
use crate::nft::render::node::{Node, Usage};
use crate::nft::render::{base, names, rules, stages};
use tortie_engine::policy::{ChainId, Direction, Globals, SetId, Tier};

impl Renderer {
    fn draft(&self, node: &Node, globals: &Globals) -> Draft {
        let frame = Frame {
            options: self.options,
            globals,
            ruleset: &self.ruleset,
            sets: &self.sets,
            passing: &self.passing,
            wide: self.endpoint_maps.wide(),
            all_interfaces: self.all_interfaces(globals),
        };
        match node {
            Node::Rules { id, usage } => rules::draft(id, *usage, &frame),
            Node::Tier { tier, direction } => stages::tier(tier, *direction, &frame),
            Node::Tiers { tiers, direction } => stages::tiers(tiers, *direction, &frame),
            Node::Profiles { profiles, .. } => stages::profiles(profiles),
            Node::Host { of, direction } => stages::host(of, *direction, &frame),
            Node::Early { chains, usage, direction } => stages::early(chains, *usage, *direction, &frame),
            Node::EarlyTier { chains, usage, .. } => stages::early_tier(chains, *usage, &frame),
            Node::Denied(denied) => stages::denied(denied, &frame),
            Node::Fixed(fixed) => base::fixed(*fixed, &frame),
            Node::Base(of, late) => base::base(*of, *late, &frame),
        }
    }

    /// Adds a reference from a map element to a chain, which is created if needed.
    pub(super) fn acquire(&mut self, node: Node, globals: &Globals) -> Name {
        let name = names::chain(&node);
        self.place(&name, node, globals);
        self.acquire_once(&name);
        name
    }

    /// Like `acquire`, for tiers, whose nodes are expensive to build: most endpoints share their chains.
    pub(super) fn acquire_tiers(&mut self, of: &[Tier], at: Direction, globals: &Globals) -> Name {
        let name = names::tiers(of, at);
        let means =
            |node: &Node| matches!(node, Node::Tiers { tiers, direction } if tiers == of && *direction == at);
        if !self.chains.has(&name, means) {
            self.place(&name, Node::Tiers { tiers: of.to_vec(), direction: at }, globals);
        }
        self.acquire_once(&name);
        name
    }

    /// Like `acquire`, for profiles; `None` if there are none.
    pub(super) fn acquire_profiles(
        &mut self,
        of: &[ChainId],
        at: Direction,
        globals: &Globals,
    ) -> Option<Name> {
        let node = match of {
            [] => return None,
            [one] => Node::Rules { id: one.clone(), usage: Usage::Filter },
            several => Node::Profiles { profiles: several.to_vec(), direction: at },
        };
        Some(self.acquire(node, globals))
    }

    fn acquire_once(&mut self, name: &Name) {
        if let Some(placed) = self.chains.placed.get_mut(name) {
            placed.holds += 1;
        }
    }

    /// Drops a reference from a map element.
    pub(super) fn release(&mut self, name: &Name) {
        if let Some(placed) = self.chains.placed.get_mut(name) {
            placed.holds = placed.holds.saturating_sub(1);
            self.chains.idle.push(Arc::clone(name));
        }
    }

    pub(super) fn place(&mut self, name: &Name, node: Node, globals: &Globals) {
        if self.chains.has(name, |is| *is == node) {
            return;
        }
        if let Node::Denied(denied) = &node {
            self.chains.explained.insert(names::prefix(denied), Arc::clone(name));
        }
        let draft = self.draft(&node, globals);
        let blank = RenderedChain {
            node,
            callers: BTreeSet::new(),
            holds: 0,
            calls: Vec::new(),
            sets: Vec::new(),
            origins: Vec::new(),
        };
        self.chains.placed.insert(Arc::clone(name), blank);
        self.link(name, draft, globals);
    }

    /// Drafts a chain again, if it exists.
    pub(super) fn redraft(&mut self, name: &Name, globals: &Globals) {
        let Some(placed) = self.chains.placed.get(name) else { return };
        let draft = self.draft(&placed.node, globals);
        self.link(name, draft, globals);
    }

    /// Sets the content of a chain, and updates the references to its callees and sets.
    fn link(&mut self, name: &Name, draft: Draft, globals: &Globals) {
        let mut calls = Vec::with_capacity(draft.calls.len());
        for (callee, node) in draft.calls {
            self.place(&callee, node, globals);
            if let Some(placed) = self.chains.placed.get_mut(&callee) {
                placed.callers.insert(Arc::clone(name));
            }
            calls.push(callee);
        }
        for (id, v4) in &draft.sets {
            self.sets.acquire(id, *v4, name, &self.ruleset, &mut self.desired);
        }
        let Some(placed) = self.chains.placed.get_mut(name) else { return };
        placed.origins = draft.origins;
        let old_calls = std::mem::replace(&mut placed.calls, calls);
        let old_sets = std::mem::replace(&mut placed.sets, draft.sets);
        let calls: BTreeSet<&Name> = placed.calls.iter().collect();
        let sets: BTreeSet<&(SetId, bool)> = placed.sets.iter().collect();
        let left: Vec<Name> = old_calls.into_iter().filter(|callee| !calls.contains(callee)).collect();
        let left_sets: Vec<(SetId, bool)> = old_sets.into_iter().filter(|set| !sets.contains(set)).collect();
        if self.desired.table().chains.get(name) != Some(&draft.chain) {
            self.desired.set_chain(name, draft.chain);
        }
        self.chains.leave(name, left);
        self.chains.leave_sets(name, left_sets, &mut self.sets);
    }

    /// Removes unreferenced chains, callers first.
    pub(super) fn sweep_chains(&mut self) {
        self.chains.sweep(&mut self.sets, &mut self.desired);
    }

    /// Removes unreferenced sets, after the chains.
    pub(super) fn sweep_sets(&mut self) {
        for (id, v4) in std::mem::take(&mut self.chains.idle_sets) {
            self.sets.sweep(&id, v4, &mut self.desired);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::render::tests::{W1, policy, profile, renderer};
    use tortie_config::resource::EndAction;
    use tortie_engine::policy::Stages;

    #[test]
    fn two_things_with_one_name_are_noted() {
        let mut other = renderer(&[W1]);
        let globals = other.globals.clone().unwrap();
        let node = |name: &str| Node::Rules { id: policy("default", name), usage: Usage::Filter };
        let name = names::chain(&node("a"));
        other.place(&name, node("a"), &globals);
        other.place(&name, node("a"), &globals);
        assert_eq!(other.name_collision(), None);
        // As if its hash were the same.
        other.place(&name, node("b"), &globals);
        assert_eq!(other.name_collision(), Some(&*format!("chains are both called {name}")));
        let mut other = renderer(&[W1]);
        let host = |name: &str| Node::Host {
            of: Stages { tiers: Vec::new(), profiles: vec![profile(name)] },
            direction: Direction::Inbound,
        };
        other.place(&names::chain(&host("x")), host("y"), &globals);
        other.acquire(host("x"), &globals);
        assert!(other.name_collision().is_some());
        let mut other = renderer(&[W1]);
        let tiers = |name: &str| vec![Tier { name: name.into(), policies: Vec::new(), end: EndAction::Deny }];
        let node = Node::Tiers { tiers: tiers("y"), direction: Direction::Inbound };
        other.place(&names::tiers(&tiers("x"), Direction::Inbound), node, &globals);
        other.acquire_tiers(&tiers("x"), Direction::Inbound, &globals);
        assert!(other.name_collision().is_some());
    }

    /// The kernel validates all chains in each transaction, so the chains added by a burst of new endpoints
    /// determine how long each of them waits.
    #[test]
    fn a_profile_of_its_own_brings_an_endpoint_that_profiles_rules_and_no_others() {
        let rules = r#"{"inbound_rules":[{"protocol":"tcp"},{"action":"next-tier"}],"outbound_rules":[{}]}"#;
        let (first, second) =
            (("/calico/v1/policy/profile/p/rules", rules), ("/calico/v1/policy/profile/q/rules", rules));
        let all = ("/calico/v1/policy/tier/default/policy/a", r#"{"selector":"all()"}"#);
        let value = W1.1.replace("cali1", "cali2").replace("\"p\"", "\"q\"");
        let start = ("/calico/v1/host/h1/workload/cni/w2/endpoint/eth0", value.as_str());
        let before = renderer(&[W1, first, second, all]);
        let after = renderer(&[W1, first, second, all, start]);
        let new: Vec<&Name> = after
            .table()
            .chains
            .iter()
            .filter(|(name, chain)| before.table().chains.get(*name) != Some(*chain))
            .map(|(name, _)| name)
            .collect();
        let of_q = [Direction::Inbound, Direction::Outbound]
            .map(|direction| after.place_of(&ChainId { direction, ..profile("q") }).unwrap());
        assert_eq!(new, of_q.iter().collect::<Vec<_>>());
    }
}
