//! How the kernel thread runs: what it may do, and the numbers that mark what is ours.

use std::time::Duration;

/// What the agent may do to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Mode {
    /// Write what is wanted.
    Program,
    /// Read, compute, report drift; write nothing.
    Observe,
    /// Neither read nor write: every next hop counts as reachable.
    Off,
}

/// Numbers that mark what is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// `rtm_protocol` and nexthop protocol of all own objects (default 179).
    pub protocol: u8,
    /// Route metric (default 1790).
    pub metric: u32,
    /// First nexthop id (default 0x5400_0000).
    pub nexthop_base: u32,
}

/// How the kernel thread runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// What may be done to the kernel's routes.
    pub mode: Mode,
    /// What may be done to its packet rules.
    pub policy: Mode,
    /// Numbers that mark what is ours.
    pub marks: Marks,
    /// Where rules that log send packets: a log group; `None`: the kernel's own log, which network namespaces do not reach.
    pub log_group: Option<u16>,
    /// Nexthop objects: `None` tries whether the kernel has them.
    pub nexthop_objects: Option<bool>,
    /// Receive buffer of the watch thread in bytes, as far as allowed.
    pub watch_buffer: usize,
    /// How long routes on a workload interface are left alone after it was first seen: a plugin writes them before the
    /// store has the endpoint.
    pub grace: Duration,
}

impl Options {
    /// Defaults of a real host: protocol 179, metric 1790, nexthop ids from 0x54000000, 8 MiB of buffer, 10 s of grace.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            policy: mode,
            log_group: None,
            marks: Marks { protocol: 179, metric: 1790, nexthop_base: 0x5400_0000 },
            nexthop_objects: None,
            watch_buffer: 8 << 20,
            grace: Duration::from_secs(10),
        }
    }
}
