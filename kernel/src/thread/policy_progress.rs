//! Progress of policy changes, and the reports about them.

use std::collections::BTreeMap;
use std::time::Instant;

use tortie_config::key::EndpointKey;

use crate::facts::EndpointCondition;
use crate::thread::workload_prefixes::WorkloadPrefixes;
use tortie_engine::routing::ChangeId;

/// The last accepted policy change, and the reports about it.
#[derive(Debug, Default)]
pub(crate) struct PolicyProgress {
    pub(super) last: Option<(u64, ChangeId)>,
    /// Earliest time of the next transaction, unless a caller waits for its acknowledgement.
    pub(crate) not_before: Option<Instant>,
    pub(super) failed: BTreeMap<EndpointKey, String>,
    /// True once the change was reported as being in the kernel.
    pub(super) reported: bool,
    pub(super) prefixes: WorkloadPrefixes,
    /// Conditions of host endpoints, as last reported.
    pub(super) hosts: BTreeMap<EndpointKey, EndpointCondition>,
    /// The reported fault of Docker's chain for user rules, if any.
    pub(super) admission_problem: Option<String>,
}
