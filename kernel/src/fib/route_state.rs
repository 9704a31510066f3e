//! What an entry of the table should be, and what the kernel has of it.

use super::request::TargetId;

/// What an entry should be in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Desired {
    /// No route; the reason when one was learned.
    Nothing(Option<u8>),
    Blackhole,
    /// Over these hops; and why so.
    Via(TargetId, u8),
}

/// What the kernel holds at the prefix, our metric and our protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Actual {
    /// Nothing of ours ever was.
    Absent,
    /// It was, and is believed to have gone without our doing, or a request's outcome is unknown.
    Lost,
    Blackhole,
    Nexthop(u32),
    Plain(TargetId),
    /// Something that we never write.
    Foreign,
}

impl Actual {
    /// The kernel holds something of ours.
    pub(crate) fn is_there(self) -> bool {
        !matches!(self, Self::Absent | Self::Lost)
    }
}
