//! The verbs of the plugin, each an executable of its own to the daemon.

/// The verb of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Proves that the plugin can work, and repairs what is left over.
    Setup,
    /// The same, and stays until it is told to end: Kurma's second generation takes the end of it for a failure.
    SetupWait,
    /// A container comes.
    Add,
    /// A container goes.
    Del,
}

impl Verb {
    /// The verb that an executable of this name is for.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "setup" => Some(Self::Setup),
            "setup-wait" => Some(Self::SetupWait),
            "add" => Some(Self::Add),
            "del" => Some(Self::Del),
            _ => None,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::SetupWait => "setup-wait",
            Self::Add => "add",
            Self::Del => "del",
        }
    }
}
