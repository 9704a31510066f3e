//! Verbs of the plugin; the daemon calls each as an executable of its own.

/// Verb of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Checks that the plugin can work, and removes leftovers.
    Setup,
    /// As `Setup`, and then waits for a signal: Kurma's second generation takes an exit for a failure.
    SetupWait,
    /// Attaches a container.
    Add,
    /// Detaches a container.
    Del,
}

impl Verb {
    /// Returns the verb of an executable with this name.
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
