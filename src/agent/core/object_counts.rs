//! Counts of the store's objects by kind, for metrics; counted again only after a change of the store.

use tortie_config::key::{EndpointKey, Key, ProfilePart};

use crate::agent::core::Core;
use tortie_engine::model::Model;

/// Numbers of policy objects in the store, whether or not they apply to this host.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::agent) struct ObjectCounts {
    pub(in crate::agent) policies: usize,
    pub(in crate::agent) profiles: usize,
    pub(in crate::agent) tiers: usize,
    pub(in crate::agent) hosts: usize,
    pub(in crate::agent) workloads: usize,
    pub(in crate::agent) host_endpoints: usize,
}

impl ObjectCounts {
    /// Returns the counts; counts again only if the store changed, since there may be many objects.
    pub(super) fn of(core: &Core) -> Self {
        let (revision, counts) = core.object_counts.get();
        if revision == core.link.revision && revision > 0 {
            return counts;
        }
        let counts = count_objects(&core.model);
        core.object_counts.set((core.link.revision, counts));
        counts
    }
}

/// Counts the objects of the model.
fn count_objects(model: &Model) -> ObjectCounts {
    let all = model.object_counts();
    let mut counts = ObjectCounts { hosts: all.hosts, ..ObjectCounts::default() };
    for (key, _) in model.policy_resources() {
        match key {
            Key::Policy { .. } => counts.policies += 1,
            Key::Profile { part: ProfilePart::Rules, .. } => counts.profiles += 1,
            Key::TierMetadata { .. } | Key::Tier { .. } => counts.tiers += 1,
            _ => {}
        }
    }
    for (key, _) in model.endpoint_resources() {
        match key {
            EndpointKey::Workload { .. } => counts.workloads += 1,
            EndpointKey::Host { .. } => counts.host_endpoints += 1,
        }
    }
    counts
}
