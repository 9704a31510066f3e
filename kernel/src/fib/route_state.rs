//! Desired and actual state of a table entry.

use super::request::TargetId;

/// Desired route of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Desired {
    /// No route; with the reason if a route was learned.
    Nothing(Option<u8>),
    Blackhole,
    /// A route over these hops, with the reason.
    Via(TargetId, u8),
}

/// Route in the kernel with the prefix, Tortie's metric and Tortie's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Actual {
    /// No route of Tortie existed.
    Absent,
    /// A route existed and was removed by the kernel or another process, or the result of a request is
    /// unknown.
    Lost,
    Blackhole,
    Nexthop(u32),
    Plain(TargetId),
    /// A route that Tortie never writes.
    Foreign,
}

impl Actual {
    /// Returns true if the kernel has a route of Tortie.
    pub(crate) fn is_there(self) -> bool {
        !matches!(self, Self::Absent | Self::Lost)
    }
}
