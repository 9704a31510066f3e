//! Options of the kernel thread: permitted changes, and the numbers that identify Tortie's objects.

use std::time::Duration;

/// Changes that the agent may make in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Mode {
    /// Write the desired state.
    Program,
    /// Read, compute and report drift; write nothing.
    Observe,
    /// Neither read nor write: every next hop counts as reachable.
    Off,
}

/// Numbers that identify Tortie's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Protocol number of all routes (`rtm_protocol`) and nexthop objects (default 179).
    pub protocol: u8,
    /// Metric of routes (default 1790).
    pub metric: u32,
    /// First ID of nexthop objects (default 0x5400_0000).
    pub nexthop_base: u32,
}

/// Options of the kernel thread.
#[derive(Debug, Clone)]
pub struct Options {
    /// Permitted changes of routes.
    pub mode: Mode,
    /// Permitted changes of packet rules.
    pub policy: Mode,
    /// Numbers that identify Tortie's objects.
    pub marks: Marks,
    /// Log group for rules that log; `None` for the kernel's log, in which packets of network namespaces do
    /// not appear.
    pub log_group: Option<u16>,
    /// Use of nexthop objects; `None` tests if the kernel supports them.
    pub nexthop_objects: Option<bool>,
    /// Receive buffer of the watch thread in bytes, if allowed.
    pub watch_buffer: usize,
    /// Grace period, during which foreign routes on a new workload interface are kept: a plugin adds them
    /// before the endpoint is in the store.
    pub grace: Duration,
}

impl Options {
    /// Returns the defaults: protocol 179, metric 1790, nexthop IDs from 0x54000000, a buffer of 8 MiB, a
    /// grace period of 10 s.
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
