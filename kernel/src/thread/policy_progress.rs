//! How far changes of policy have come, and what was reported of them.

use std::collections::BTreeMap;
use std::time::Instant;

use tortie_config::key::EndpointKey;

use crate::facts::EndpointCondition;
use tortie_engine::routing::ChangeId;

/// The last change of policy that was taken, and what was told of it.
#[derive(Debug, Default)]
pub(crate) struct Enforced {
    pub(super) last: Option<(u64, ChangeId)>,
    /// No transaction before this, unless somebody waits for what is told after it.
    pub(crate) rest: Option<Instant>,
    pub(super) failed: BTreeMap<EndpointKey, String>,
    /// It was told that this is in the kernel.
    pub(super) told: bool,
    /// Host endpoints as they were told last.
    pub(super) hosts: BTreeMap<EndpointKey, EndpointCondition>,
}
