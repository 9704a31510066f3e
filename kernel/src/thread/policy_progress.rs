//! How far changes of policy have come, and what was reported of them.

use std::collections::BTreeMap;
use std::time::Instant;

use tortie_config::key::EndpointKey;

use crate::facts::EndpointCondition;
use crate::thread::workload_prefixes::WorkloadPrefixes;
use tortie_engine::routing::ChangeId;

/// The last change of policy that was taken, and what was reported of it.
#[derive(Debug, Default)]
pub(crate) struct PolicyProgress {
    pub(super) last: Option<(u64, ChangeId)>,
    /// No transaction before this, unless a caller waits for what is reported after it.
    pub(crate) not_before: Option<Instant>,
    pub(super) failed: BTreeMap<EndpointKey, String>,
    /// It was reported that this is in the kernel.
    pub(super) reported: bool,
    pub(super) prefixes: WorkloadPrefixes,
    /// Host endpoints as they were reported last.
    pub(super) hosts: BTreeMap<EndpointKey, EndpointCondition>,
    /// What was reported of Docker's chain for rules of others.
    pub(super) admission_problem: Option<String>,
}
