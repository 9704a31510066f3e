//! What goes to the kernel thread and what comes back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use tortie_engine::policy::{Globals, RulesetDelta};
use tortie_engine::routing::{ChangeId, Resolved, RoutingView, TunnelIntent};

/// What the agent may do to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// What the kernel should hold besides learned routes. The latest wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelIntent {
    /// Grows with every intent.
    pub generation: u64,
    /// The change that brought it.
    pub change: ChangeId,
    /// Blackholes of own blocks, each with the change that made it wanted.
    pub blackholes: BTreeMap<Cidr, ChangeId>,
    /// The tunnel; `None`: none of ours (an existing `tunl0` is left alone).
    pub tunnel: Option<TunnelIntent>,
    /// What `routing::kernel_route` reads.
    pub view: Arc<RoutingView>,
}

/// What the host's endpoints and rules should become. Every one counts; they are taken in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyChange {
    /// Grows with every one.
    pub serial: u64,
    /// The change that brought it.
    pub change: ChangeId,
    /// What became of sets, chains and endpoints.
    pub delta: RulesetDelta,
    /// The frame, when it is another; always in the first one.
    pub globals: Option<Arc<Globals>>,
}

pub use tortie_engine::routing::{LearnedBatch, LearnedChange};

/// To the kernel thread.
pub enum ToKernel {
    /// The wanted state, as a whole.
    Intent(Arc<KernelIntent>),
    /// Endpoints and rules; answered by [`KernelFact::Enforced`]. The first one is the whole of it, and nothing that was
    /// left by a former process is touched before it comes.
    Policy(Box<PolicyChange>),
    /// Learned routes; answered by [`KernelFact::Learned`] when acknowledged, and dropped then, with the speaker's credit.
    /// The speaker has credits for one more to be made ready meanwhile; all else waits there, so that dirty prefixes
    /// coalesce.
    Learned(LearnedBatch),
    /// Follow this next hop: [`KernelFact::NextHop`] at once and at each change.
    Track(IpAddr),
    /// Follow it no more.
    Untrack(IpAddr),
    /// Own learned routes that were found at start and not wanted since are deleted now.
    SweepStale,
    /// Notifications of the watch thread (a coalesced set of them).
    Watched(super::WatchBatch),
    /// Leave differences that others make for study, for this long and at most an hour; `None`: no longer, all is repaired now.
    /// The closure is told when that is done.
    Hold(Option<std::time::Duration>, Box<dyn FnOnce() + Send>),
    /// A question, answered by the closure (status, `route list`, `diff`). While a comparison or a long transaction is under
    /// way it is answered ahead of the messages before it, which wait for the end of that.
    Query(Box<dyn FnOnce(&super::KernelView<'_>) + Send>),
    /// End the thread; the kernel stays as it is.
    Stop,
}

impl std::fmt::Debug for ToKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Intent(intent) => f.debug_tuple("Intent").field(&intent.generation).finish(),
            Self::Policy(policy) => f.debug_tuple("Policy").field(&policy.serial).finish(),
            Self::Learned(batch) => f.debug_tuple("Learned").field(&batch.len()).finish(),
            Self::Track(addr) => f.debug_tuple("Track").field(addr).finish(),
            Self::Untrack(addr) => f.debug_tuple("Untrack").field(addr).finish(),
            Self::SweepStale => f.write_str("SweepStale"),
            Self::Hold(span, _) => f.debug_tuple("Hold").field(span).finish(),
            Self::Watched(_) => f.write_str("Watched"),
            Self::Query(_) => f.write_str("Query"),
            Self::Stop => f.write_str("Stop"),
        }
    }
}

/// What the kernel did with a blackhole that an intent changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlackholeOutcome {
    /// It was written.
    Written,
    /// It was there already, from before the start.
    Kept,
    /// It is wanted no more, and gone.
    Removed,
}

/// The kernel's acknowledgement of one blackhole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlackholeAck {
    /// The own block.
    pub prefix: Cidr,
    /// The change that this answers.
    pub change: ChangeId,
    /// What became of it.
    pub outcome: BlackholeOutcome,
}

/// How an endpoint is: a workload's by its interface, routes, neighbours and sysctls; a host's by the interfaces that it
/// governs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointCondition {
    /// It is active, its interface is up, and all is as wanted.
    Up,
    /// It is not active, or its interface is absent or down; why.
    Down(String),
    /// What stays wrong although its interface is up, or why nothing is written at all.
    Failed(String),
}

/// From the kernel thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelFact {
    /// The first dump is done; these own learned routes were found and are kept as stale.
    Started {
        /// Own learned IPv4 routes found.
        routes_v4: usize,
        /// Own learned IPv6 routes found.
        routes_v6: usize,
        /// Own IPv4 and IPv6 blackholes found: blocks that this host forwards for.
        blackholes: [usize; 2],
    },
    /// The intent of this generation is in the kernel, but for what failed.
    Applied {
        /// Which.
        generation: u64,
        /// Its change.
        change: ChangeId,
        /// Blackholes that the kernel refused, with the reason.
        failed: Vec<(Cidr, String)>,
        /// Changes of blackholes that the kernel has carried out since the last such fact, each once: of this intent,
        /// or of an earlier one that was refused at first.
        acknowledged: Vec<BlackholeAck>,
        /// From the hand-over of the intent to the acknowledgement, in microseconds; 0 for what a later attempt
        /// brought.
        micros: u64,
    },
    /// Endpoints and rules up to this serial are in the kernel, but for what failed.
    Enforced {
        /// Which.
        serial: u64,
        /// Its change.
        change: ChangeId,
        /// Endpoints whose routes, neighbours or rules are not right, with the reason: all of them, not only new ones.
        failed: BTreeMap<EndpointKey, String>,
        /// From the hand-over to the acknowledgement, in microseconds; 0 for what a later attempt brought.
        micros: u64,
    },
    /// What became of endpoints, as far as interface, routes and neighbours go: only those whose condition changed;
    /// `None`: gone.
    Endpoints(BTreeMap<EndpointKey, Option<EndpointCondition>>),
    /// A batch of learned routes was handled.
    Learned {
        /// The newest change of the batch.
        change: ChangeId,
        /// How many prefixes.
        prefixes: usize,
        /// Routes written.
        written: usize,
        /// Routes deleted.
        deleted: usize,
        /// What failed, with the reason.
        failed: Vec<(Cidr, String)>,
        /// For the single-prefix history: the last prefixes of the batch with what became of them (bounded).
        sample: Vec<(Cidr, ChangeId, &'static str)>,
        /// From the hand-over of the batch to the acknowledgement, in microseconds.
        micros: u64,
    },
    /// A tracked next hop; `None`: unreachable.
    NextHop(IpAddr, Option<Resolved>),
    /// Stale routes were swept: how many were deleted.
    Swept(usize),
    /// Somebody else changed or removed own objects; they were repaired (or, when observing, only counted).
    Repaired {
        /// How many.
        objects: usize,
        /// In words, of the first.
        first: String,
        /// It is left for study instead.
        held: bool,
    },
    /// Notifications were lost; everything was dumped and compared again.
    Overrun,
    /// The packet rules: `None` = in force, else what keeps them from it.
    Rules(Option<String>),
    /// The tunnel device: `None` = right, else what is wrong and stays wrong.
    Tunnel(Option<String>),
    /// What the thread cannot repair by itself of one thing; it goes on. `None`: that is over.
    Trouble {
        /// About what, in words.
        about: &'static str,
        /// What is wrong and the next step.
        text: Option<String>,
    },
    /// Something went wrong, and is over.
    Mishap(String),
}
