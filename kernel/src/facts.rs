//! Facts that the kernel thread reports.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::key::EndpointKey;
use tortie_net::{Cidr, ScopedAddr};

use tortie_engine::routing::{ChangeId, Resolved};

/// Receives facts. It runs on the kernel thread and must not wait for a thread that sends to the kernel
/// thread.
pub type Sink = Box<dyn FnMut(KernelFact) + Send>;

/// Result of a change of a blackhole route by an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum BlackholeOutcome {
    /// The route was added.
    Written,
    /// The route existed before the start of the agent.
    Kept,
    /// The route is no longer desired and was deleted.
    Removed,
}

/// The kernel's acknowledgement of one blackhole route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BlackholeAck {
    /// Prefix of the own block.
    pub prefix: Cidr,
    /// The change that is acknowledged.
    pub change: ChangeId,
    /// Result of the change.
    pub outcome: BlackholeOutcome,
}

/// Condition of an endpoint: of a workload by its interface, routes, neighbours and sysctls; of a host
/// endpoint by the interfaces that it covers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum EndpointCondition {
    /// Active, with its interface up and all state as desired.
    Up,
    /// Not active, or its interface is absent or down; with the reason.
    Down(String),
    /// Not as desired although its interface is up, or not written at all; with the reason.
    Failed(String),
}

/// A network to which this host is connected, or a single address of the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ConnectedNetwork {
    /// Name of the interface.
    pub interface: String,
    /// The network; for a single address, that address as /32 or /128.
    pub network: Cidr,
    /// This host's address in the network; the first if there are several.
    pub addr: IpAddr,
}

impl ConnectedNetwork {
    /// Returns true if the interface is a bridge of Docker.
    #[must_use]
    pub fn is_of_docker(&self) -> bool {
        is_of_docker(&self.interface)
    }
}

/// Returns true for `docker0`, and for `br-` followed by twelve hexadecimal digits.
pub(crate) fn is_of_docker(name: &str) -> bool {
    let id = name.strip_prefix("br-");
    name == "docker0" || id.is_some_and(|id| id.len() == 12 && id.bytes().all(|c| c.is_ascii_hexdigit()))
}

/// An observation reported by the kernel thread.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum KernelFact {
    /// The first dump is complete. Tortie's learned routes in it are kept as stale.
    Started {
        /// Number of Tortie's learned IPv4 routes found.
        routes_v4: usize,
        /// Number of Tortie's learned IPv6 routes found.
        routes_v6: usize,
        /// Numbers of Tortie's IPv4 and IPv6 blackholes found: blocks for which this host forwards.
        blackholes: [usize; 2],
    },
    /// The intent of this generation is in the kernel, except for failures.
    Applied {
        /// Generation of the intent.
        generation: u64,
        /// Change that the intent contains.
        change: ChangeId,
        /// Blackholes that the kernel refused, with the reason.
        failed: Vec<(Cidr, String)>,
        /// Changes of blackholes carried out since the last such fact, each once: of this intent, or of an
        /// earlier one that was refused at first.
        acknowledged: Vec<BlackholeAck>,
        /// Time from receiving the intent to the acknowledgement, in microseconds; 0 for a result of a retry.
        micros: u64,
    },
    /// Endpoints and rules up to this serial are in the kernel, except for failures.
    Enforced {
        /// Serial of the last policy change.
        serial: u64,
        /// The last policy change.
        change: ChangeId,
        /// All endpoints whose routes, neighbours or rules are not as desired, with the reason; not only new
        /// failures.
        failed: BTreeMap<EndpointKey, String>,
        /// Time from receiving the change to the acknowledgement, in microseconds; 0 for a result of a retry.
        micros: u64,
    },
    /// Changed conditions of endpoints, by interface, routes and neighbours; `None` if the endpoint was
    /// removed.
    Endpoints(BTreeMap<EndpointKey, Option<EndpointCondition>>),
    /// A batch of learned routes was processed.
    Learned {
        /// The newest change of the batch.
        change: ChangeId,
        /// Number of prefixes in the batch.
        prefixes: usize,
        /// Number of routes written.
        written: usize,
        /// Number of routes deleted.
        deleted: usize,
        /// Routes that failed, with the reason.
        failed: Vec<(Cidr, String)>,
        /// The last prefixes of the batch with their results, for the history of single prefixes (bounded).
        sample: Vec<(Cidr, ChangeId, Cow<'static, str>)>,
        /// Time from receiving the batch to the acknowledgement, in microseconds.
        micros: u64,
    },
    /// The resolution of a tracked next hop; `None` if unreachable.
    NextHop(ScopedAddr, Option<Resolved>),
    /// Resolutions of a tracked next hop for routes to the given prefixes, on which [`KernelFact::NextHop`]
    /// depends: a route must not resolve its next hop through itself (RFC 4271 9.1.2.1). Sent before
    /// `NextHop`.
    NextHopWithin(ScopedAddr, Vec<(Cidr, Option<Resolved>)>),
    /// All networks to which this host is connected and its addresses, at the start and after each change.
    Connected(Vec<ConnectedNetwork>),
    /// Stale routes were swept; the number of deleted routes.
    Swept(usize),
    /// Another process changed or removed Tortie's objects; they were repaired, or only counted in observe
    /// mode.
    Repaired {
        /// Number of objects.
        objects: usize,
        /// Description of the first one.
        first: String,
        /// True if the changes are kept because of a drift hold.
        held: bool,
    },
    /// The workload of this endpoint sent a packet, which it does only if it runs on this host. Reported while
    /// its routes are withheld.
    Arrived(EndpointKey),
    /// Notifications were lost; a resync was done.
    Overrun,
    /// State of the packet rules: `None` if in force, otherwise the reason why they are not.
    RulesProblem(Option<String>),
    /// State of the tunnel device: `None` if correct, otherwise the persistent fault.
    TunnelProblem(Option<String>),
    /// A fault of one subject that the thread cannot repair, while it continues to run. `None` if the fault
    /// has ended.
    Problem {
        /// Subject of the fault, as text.
        about: Cow<'static, str>,
        /// The fault and the next step.
        text: Option<String>,
    },
    /// A fault that is already over.
    Transient(String),
}
