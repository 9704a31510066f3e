//! Inputs of the core, and the time that comes with each.
//!
//! The core reads no clock and calls nobody: all that it knows came in one of these, in this order, so that the same
//! inputs give the same effects.

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

/// The time of an input, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct Now {
    /// For intervals.
    pub(in crate::agent) mono: Instant,
    /// For people.
    pub(in crate::agent) wall: Timestamp,
}

impl Now {
    /// RFC 3339 with milliseconds.
    pub(in crate::agent) fn text(self) -> String {
        format!("{:.3}", self.wall)
    }
}

/// One thing that happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::agent) enum Input {
    /// The store's feed; it is acted on at the next [`Input::FeedIdle`].
    Feed(FeedEvent),
    /// The feed has nothing more at the moment.
    FeedIdle,
    /// The store did not answer within the time that a start waits for it.
    StoreTimeout,
    /// At the start: what is attached to this host.
    Attached(Vec<AttachedRoute>),
    /// Another machine runs under this host's name, in words; `None`: none any more.
    Twin(Option<String>),
    /// An operator accepts the store as it is (`tortie store accept`).
    Accept,
    /// The kernel thread reports.
    Kernel(KernelFact),
    /// The speaker reports.
    Speaker(SpeakerFact),
    /// The sessions are another daemon's: no restart of ours is awaited.
    NoSessions,
    /// The controller of the tunnel address reports.
    TunnelAddress(TunnelAddressReport),
    /// The controller of leaked addresses reports.
    IpamGc(GcPass),
    /// Usage of the pools by all hosts; `None`: another host reads it.
    PoolUsage(Option<PoolUsages>),
    /// The host checks found this.
    HostChecks(Vec<Problem>),
    /// The hosts whose agents run. `one_machine`: the store serves one machine only.
    Hosts { hosts: Vec<NodeStatus>, one_machine: bool },
}

/// Durations that the event loop measures. No decision depends on them.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) enum Timing {
    /// One iteration of the loop: how long anything else had to wait.
    Iteration(Duration),
    /// From an event of the store to the new intent.
    Calculated(Duration),
    /// A whole snapshot taken in.
    Snapshot(Duration),
    /// From a plugin's request to an endpoint that is in force.
    EndpointReady(Duration),
}
