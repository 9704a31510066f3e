//! What the kernel thread reports.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::key::EndpointKey;
use tortie_net::{Cidr, ScopedAddr};

use tortie_engine::routing::{ChangeId, Resolved};

/// Takes facts. It runs on the kernel thread and must not wait for a thread that sends to that thread.
pub type Sink = Box<dyn FnMut(KernelFact) + Send>;

/// What the kernel did with a blackhole that an intent changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum BlackholeOutcome {
    /// It was written.
    Written,
    /// It was there already, from before the start.
    Kept,
    /// It is wanted no more, and gone.
    Removed,
}

/// The kernel's acknowledgement of one blackhole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum EndpointCondition {
    /// It is active, its interface is up, and all is as wanted.
    Up,
    /// It is not active, or its interface is absent or down; why.
    Down(String),
    /// What stays wrong although its interface is up, or why nothing is written at all.
    Failed(String),
}

/// A network that this host is connected to, or a single address of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ConnectedNetwork {
    /// The interface.
    pub interface: String,
    /// The network; of a single address that address alone.
    pub network: Cidr,
    /// This host's address in it, the first of several.
    pub addr: IpAddr,
}

impl ConnectedNetwork {
    /// Whether the interface is a bridge of Docker's.
    #[must_use]
    pub fn is_of_docker(&self) -> bool {
        is_of_docker(&self.interface)
    }
}

/// `docker0`, or `br-` and twelve hexadecimal digits.
pub(crate) fn is_of_docker(name: &str) -> bool {
    let id = name.strip_prefix("br-");
    name == "docker0" || id.is_some_and(|id| id.len() == 12 && id.bytes().all(|c| c.is_ascii_hexdigit()))
}

/// From the kernel thread.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
        sample: Vec<(Cidr, ChangeId, Cow<'static, str>)>,
        /// From the hand-over of the batch to the acknowledgement, in microseconds.
        micros: u64,
    },
    /// A tracked next hop; `None`: unreachable.
    NextHop(ScopedAddr, Option<Resolved>),
    /// How a tracked next hop is reached otherwise for routes to these prefixes, which [`KernelFact::NextHop`] rests on: a route does not
    /// rest on itself (RFC 4271 9.1.2.1). It comes before that.
    NextHopWithin(ScopedAddr, Vec<(Cidr, Option<Resolved>)>),
    /// The networks that this host is connected to and its addresses: all of them, at the start and when they change.
    Connected(Vec<ConnectedNetwork>),
    /// Stale routes were swept: how many were deleted.
    Swept(usize),
    /// Another process changed or removed own objects; they were repaired (or, when observing, only counted).
    Repaired {
        /// How many.
        objects: usize,
        /// In words, of the first.
        first: String,
        /// It is held instead.
        held: bool,
    },
    /// Notifications were lost; everything was dumped and compared again.
    Overrun,
    /// The packet rules: `None` = in force, else what keeps them from it.
    RulesProblem(Option<String>),
    /// The tunnel device: `None` = right, else what is wrong and stays wrong.
    TunnelProblem(Option<String>),
    /// What the thread cannot repair by itself of one thing; it goes on. `None`: that is over.
    Problem {
        /// About what, in words.
        about: Cow<'static, str>,
        /// What is wrong and the next step.
        text: Option<String>,
    },
    /// Something went wrong, and is over.
    Transient(String),
}
