//! Writes the core's log lines.

use super::core::effect::{LogLine, Severity, Subsystem};

/// Hands a line to the log, with its fields.
pub(super) fn write(line: &LogLine) {
    // Target and level of a line are constants of its place in the code.
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
