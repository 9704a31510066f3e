//! Writes the log lines that the core emits as effects.

use super::core::effect::{LogLine, Severity, Subsystem};

/// Emits one log line with its structured fields through `tracing`.
pub(super) fn write(line: &LogLine) {
    // `tracing` needs target and level as constants at the call site.
    macro_rules! line {
        ($level:ident, $target:literal) => {
            tracing::$level!(
                target: $target,
                change = line.change.map(tracing::field::display),
                revision = line.revision,
                peer = line.peer.as_deref(),
                prefix = line.prefix.as_deref(),
                reason = line.reason.as_deref(),
                "{}",
                line.text
            )
        };
    }
    match (line.subsystem, line.severity) {
        (Subsystem::Agent, Severity::Debug) => line!(debug, "tortie"),
        (Subsystem::Agent, Severity::Info) => line!(info, "tortie"),
        (Subsystem::Agent, Severity::Warn) => line!(warn, "tortie"),
        (Subsystem::Bgp, Severity::Debug) => line!(debug, "tortie::speaker"),
        (Subsystem::Bgp, Severity::Info) => line!(info, "tortie::speaker"),
        (Subsystem::Bgp, Severity::Warn) => line!(warn, "tortie::speaker"),
        (Subsystem::Bfd, Severity::Debug) => line!(debug, "tortie::bfd"),
        (Subsystem::Bfd, Severity::Info) => line!(info, "tortie::bfd"),
        (Subsystem::Bfd, Severity::Warn) => line!(warn, "tortie::bfd"),
    }
}
