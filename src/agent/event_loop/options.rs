//! The options of an agent.

use std::path::PathBuf;

use crate::agent::config::{ModeChoice, Settings};
use tortie_store::StoreOptions;

/// Options of an agent.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// This host's name in the data model.
    pub node: String,
    /// Flags, environment and file, merged.
    pub settings: Settings,
    /// The store.
    pub store: StoreOptions,
    /// The unix socket of the API.
    pub socket: PathBuf,
}

impl AgentOptions {
    /// It programs the kernel, and writes to the store for its host.
    pub(super) fn writes(&self) -> bool {
        self.settings.kernel() == ModeChoice::Program
    }

    /// It compares what others do with what it would do, and touches nothing.
    pub(super) fn observes(&self) -> bool {
        self.settings.kernel() == ModeChoice::Observe
    }

    /// The store is a file, which serves one machine.
    pub(super) fn is_sqlite(&self) -> bool {
        self.store.url.starts_with("sqlite:")
    }
}
