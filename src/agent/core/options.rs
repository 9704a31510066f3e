//! What a core is made with; a journal has it in its first line.

use serde::{Deserialize, Serialize};

use tortie_engine::routing::NodeOptions;
use tortie_kernel::Mode;

/// What an agent is started with, as far as the core decides by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct CoreOptions {
    /// This host's name.
    pub(in crate::agent) name: String,
    /// Addresses, AS and listeners of the flags.
    pub(in crate::agent) node: NodeOptions,
    /// It compares what others do with what it would do, and writes nothing.
    #[serde(default)]
    pub(in crate::agent) observes: bool,
    /// The agent writes routes.
    pub(in crate::agent) kernel_writes: bool,
    /// What it does of rules and endpoints.
    pub(in crate::agent) policy: Mode,
}
