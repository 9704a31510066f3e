//! Options of an agent: node name, settings, store and API socket.

use std::path::PathBuf;

use crate::agent::config::{ModeChoice, Settings};
use tortie_store::StoreOptions;

/// Options of an agent.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// Node name of this host in the data model.
    pub node: String,
    /// Settings merged from flags, environment and file.
    pub settings: Settings,
    /// Access to the store.
    pub store: StoreOptions,
    /// Path of the API's unix socket.
    pub socket: PathBuf,
}

impl AgentOptions {
    /// True if the agent programs the kernel and writes to the store for its host.
    pub(super) fn writes(&self) -> bool {
        self.settings.kernel() == ModeChoice::Program
    }

    /// True in observe mode: the agent compares other daemons' state with its intent and writes nothing.
    pub(super) fn observes(&self) -> bool {
        self.settings.kernel() == ModeChoice::Observe
    }

    /// True if the store is a file, which serves one machine only.
    pub(super) fn is_sqlite(&self) -> bool {
        self.store.url.starts_with("sqlite:")
    }
}
