//! Options of a core; the header of a journal contains them.

use serde::{Deserialize, Serialize};

use tortie_engine::routing::NodeOptions;
use tortie_kernel::Mode;
use tortie_store::DataModel;

/// Start options of the agent that affect the core's decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct CoreOptions {
    /// Node name of this host.
    pub(in crate::agent) name: String,
    /// Addresses, AS number and listeners given by flags.
    pub(in crate::agent) node: NodeOptions,
    /// Observe mode: compares other daemons' state with the intent and writes nothing.
    #[serde(default)]
    pub(in crate::agent) observes: bool,
    /// Data model of the store, or automatic detection.
    #[serde(default)]
    pub(in crate::agent) data_model: DataModel,
    /// True if the agent writes routes.
    pub(in crate::agent) kernel_writes: bool,
    /// Mode of rules and endpoints.
    pub(in crate::agent) policy: Mode,
}
