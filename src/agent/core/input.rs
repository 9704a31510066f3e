//! Inputs of the core, each with its time.
//!
//! The core reads no clock and makes no calls. Inputs in their order are its only source of information, so
//! that equal inputs give equal effects.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::agent::core::observed_state::{GcPass, PoolUsages, TunnelAddressReport};
use crate::api::nodes::NodeStatus;
use crate::api::problem::Problem;
use crate::speaker::SpeakerFact;
use tortie_engine::model::AttachedRoute;
use tortie_kernel::KernelFact;
use tortie_store::FeedEvent;

/// Time of an input by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct Now {
    /// Monotonic time, for intervals.
    pub(in crate::agent) mono: Instant,
    /// Wall clock time, for output.
    pub(in crate::agent) wall: Timestamp,
}

impl Now {
    /// Returns the wall clock time as RFC 3339 with milliseconds.
    pub(in crate::agent) fn text(self) -> String {
        format!("{:.3}", self.wall)
    }
}

/// An event that the core processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::agent) enum Input {
    /// An event of the store's feed; the core acts on it at the next [`Input::FeedIdle`].
    Feed(FeedEvent),
    /// The feed has no more events at the moment.
    FeedIdle,
    /// The store did not answer within the start's waiting time.
    StoreTimeout,
    /// Endpoint routes found on this host at start.
    Attached(Vec<AttachedRoute>),
    /// Another machine runs an agent under this host's name, with a description; `None`: no longer.
    Twin(Option<String>),
    /// An operator accepts the store's content (`tortie store accept`).
    Accept,
    /// A report of the kernel thread.
    Kernel(KernelFact),
    /// A report of the speaker.
    Speaker(SpeakerFact),
    /// There are no sessions to restore: they belong to another daemon, or no route was kept.
    NoSessions,
    /// A report of the tunnel address controller.
    TunnelAddress(TunnelAddressReport),
    /// A report of the IPAM garbage collector.
    IpamGc(GcPass),
    /// Usage of the pools by all hosts; `None` if another host reads it.
    PoolUsage(Option<PoolUsages>),
    /// Reason why the file with the MTU of workloads cannot be written.
    MtuFile(Option<String>),
    /// Problems that the host checks found.
    HostChecks(Vec<Problem>),
    /// A live migration's time is over.
    MigrationsDue,
    /// Hosts with a running agent. `one_machine`: the store serves one machine only.
    Hosts { hosts: Vec<NodeStatus>, one_machine: bool },
}

/// Durations measured by the event loop. No decision depends on them.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) enum Timing {
    /// Duration of one iteration of the loop, during which all other events wait.
    Iteration(Duration),
    /// Time from a store event to the new intent.
    Calculated(Duration),
    /// Processing time of a complete snapshot.
    Snapshot(Duration),
    /// Time from a plugin's request until the dataplane has applied the endpoint.
    EndpointReady(Duration),
}
