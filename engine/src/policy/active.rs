//! Policies and profiles that apply to an endpoint, in evaluation order (data model, "Selector-based security
//! policy").

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_config::Resource;
use tortie_config::resource::{Order, Policy};

use super::types::{ChainId, Direction, EndpointPolicy, HostPolicy, Source, Stages, Tier, WorkloadPolicy};

/// A policy that selects the endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) tier: &'a Arc<str>,
    pub(super) name: &'a Arc<str>,
    pub(super) policy: &'a Policy,
}

impl Candidate<'_> {
    fn chain(&self, direction: Direction) -> ChainId {
        let source = Source::Policy { tier: Arc::clone(self.tier), name: Arc::clone(self.name) };
        ChainId { source, direction }
    }

    fn governs(&self, direction: Direction) -> bool {
        match direction {
            Direction::Inbound => self.policy.types.ingress(),
            Direction::Outbound => self.policy.types.egress(),
        }
    }

    fn is_ordinary(&self) -> bool {
        !self.policy.untracked && !self.policy.pre_dnat
    }
}

/// Builds the policy of an endpoint from the policies that select it. Untracked and pre-DNAT policies apply
/// to host endpoints only.
pub(super) fn endpoint_policy<'a>(
    resource: &Resource,
    candidates: impl Iterator<Item = Candidate<'a>>,
    tiers: &BTreeMap<Arc<str>, Order>,
) -> Option<EndpointPolicy> {
    let mut ordered: Vec<Candidate<'a>> = candidates.collect();
    ordered.sort_by_cached_key(|candidate| {
        // Tiers and policies without an order come last. Equal orders are sorted by name, bytewise.
        let tier = tiers.get(candidate.tier).copied();
        let order = candidate.policy.order;
        (tier.is_none(), tier, candidate.tier.clone(), order.is_none(), order, candidate.name.clone())
    });
    let only = |direction: Direction, kind: fn(&Policy) -> bool| -> Vec<ChainId> {
        let of_kind = ordered.iter().filter(|c| kind(c.policy) && c.governs(direction));
        of_kind.map(|candidate| candidate.chain(direction)).collect()
    };
    match resource {
        Resource::WorkloadEndpoint(workload) => Some(EndpointPolicy::Workload(WorkloadPolicy {
            interface: workload.name.clone(),
            active: workload.active,
            nets: workload.nets().copied().collect(),
            mac: workload.mac,
            nats: workload.nats().collect(),
            inbound: stages(&ordered, Direction::Inbound, &workload.profile_ids),
            outbound: stages(&ordered, Direction::Outbound, &workload.profile_ids),
        })),
        Resource::HostEndpoint(host) => Some(EndpointPolicy::Host(HostPolicy {
            interface: host.name.clone(),
            addrs: host.addrs().collect(),
            inbound: stages(&ordered, Direction::Inbound, &host.profile_ids),
            outbound: stages(&ordered, Direction::Outbound, &host.profile_ids),
            untracked_inbound: only(Direction::Inbound, |policy| policy.untracked),
            untracked_outbound: only(Direction::Outbound, |policy| policy.untracked),
            pre_dnat: only(Direction::Inbound, |policy| policy.pre_dnat),
        })),
        _ => None,
    }
}

fn stages(ordered: &[Candidate<'_>], direction: Direction, profiles: &[String]) -> Stages {
    let mut tiers: Vec<Tier> = Vec::new();
    for candidate in ordered.iter().filter(|c| c.is_ordinary() && c.governs(direction)) {
        let chain = candidate.chain(direction);
        match tiers.last_mut().filter(|tier| tier.name == *candidate.tier) {
            Some(tier) => tier.policies.push(chain),
            None => tiers.push(Tier { name: Arc::clone(candidate.tier), policies: vec![chain] }),
        }
    }
    let profile = |name: &String| ChainId { source: Source::Profile(name.as_str().into()), direction };
    Stages { tiers, profiles: profiles.iter().map(profile).collect() }
}
