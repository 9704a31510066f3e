//! Policies and profiles that apply to an endpoint, in evaluation order (data model, "Selector-based security
//! policy").

use std::sync::Arc;

use tortie_config::resource::Policy;
use tortie_config::{Dialect, Resource};

use super::order::TierOrder;
use super::types::{ChainId, Direction, EndpointPolicy, HostPolicy, Source, Stages, Tier, WorkloadPolicy};

/// A policy that selects the endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) tier: &'a Arc<str>,
    pub(super) name: &'a Arc<str>,
    pub(super) policy: &'a Policy,
}

impl Candidate<'_> {
    fn chain(&self, dialect: Dialect, direction: Direction) -> ChainId {
        let source = Source::Policy { dialect, tier: Arc::clone(self.tier), name: Arc::clone(self.name) };
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
/// to host endpoints only. `allows_spoofed` is true if workloads may have the additional sources that they name,
/// `maps_floating` if the floating addresses of this endpoint are in force.
pub(super) fn endpoint_policy<'a>(
    resource: &Resource,
    candidates: impl Iterator<Item = Candidate<'a>>,
    order: &TierOrder,
    allows_spoofed: bool,
    maps_floating: bool,
) -> Option<EndpointPolicy> {
    let mut ordered: Vec<Candidate<'a>> = candidates.collect();
    ordered
        .sort_by_cached_key(|candidate| order.place(candidate.tier, candidate.name, candidate.policy.order));
    let only = |direction: Direction, kind: fn(&Policy) -> bool| -> Vec<ChainId> {
        let of_kind = ordered.iter().filter(|c| kind(c.policy) && c.governs(direction));
        of_kind.map(|candidate| candidate.chain(order.dialect(), direction)).collect()
    };
    let forward = |direction: Direction| match order.dialect() {
        // All policies of the interface apply.
        Dialect::V1 => Vec::new(),
        Dialect::V3 => {
            let of_forward = |c: &&Candidate<'_>| c.is_ordinary() && c.policy.applies_on_forward();
            tiers(ordered.iter().filter(of_forward), order, direction)
        }
    };
    let spoofed = match (resource, order.dialect()) {
        (Resource::WorkloadEndpoint(workload), Dialect::V3) => workload.spoofed_sources(),
        _ => Vec::new(),
    };
    match resource {
        Resource::WorkloadEndpoint(workload) => Some(EndpointPolicy::Workload(WorkloadPolicy {
            interface: workload.name.clone(),
            // An endpoint that asks for sources that it may not have is refused, as in Calico 3.
            active: workload.active && (spoofed.is_empty() || allows_spoofed),
            spoofed_sources: if allows_spoofed { spoofed } else { Vec::new() },
            nets: workload.nets().copied().collect(),
            mac: workload.mac,
            nats: workload.nats().filter(|_| maps_floating).collect(),
            inbound: stages(&ordered, order, Direction::Inbound, &workload.profile_ids),
            outbound: stages(&ordered, order, Direction::Outbound, &workload.profile_ids),
        })),
        Resource::HostEndpoint(host) => Some(EndpointPolicy::Host(HostPolicy {
            interface: host.name.clone(),
            addrs: host.addrs().collect(),
            inbound: stages(&ordered, order, Direction::Inbound, &host.profile_ids),
            outbound: stages(&ordered, order, Direction::Outbound, &host.profile_ids),
            forward_inbound: forward(Direction::Inbound),
            forward_outbound: forward(Direction::Outbound),
            untracked_inbound: only(Direction::Inbound, |policy| policy.untracked),
            untracked_outbound: only(Direction::Outbound, |policy| policy.untracked),
            pre_dnat: only(Direction::Inbound, |policy| policy.pre_dnat),
        })),
        _ => None,
    }
}

fn stages(ordered: &[Candidate<'_>], order: &TierOrder, direction: Direction, profiles: &[String]) -> Stages {
    let tiers = tiers(ordered.iter().filter(|candidate| candidate.is_ordinary()), order, direction);
    let profile = |name: &String| ChainId { source: Source::Profile(name.as_str().into()), direction };
    Stages { tiers, profiles: profiles.iter().map(profile).collect() }
}

/// Groups the policies that apply to a direction by tier.
fn tiers<'a>(
    ordered: impl Iterator<Item = &'a Candidate<'a>>,
    order: &TierOrder,
    direction: Direction,
) -> Vec<Tier> {
    let mut tiers: Vec<Tier> = Vec::new();
    for candidate in ordered.filter(|candidate| candidate.governs(direction)) {
        let chain = candidate.chain(order.dialect(), direction);
        match tiers.last_mut().filter(|tier| tier.name == *candidate.tier) {
            Some(tier) => tier.policies.push(chain),
            None => {
                let (name, end) = (Arc::clone(candidate.tier), order.end(candidate.tier));
                tiers.push(Tier { name, policies: vec![chain], end });
            }
        }
    }
    tiers
}
