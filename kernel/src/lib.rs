//! Linux networking over netlink: routes, nexthop objects, the tunnel devices, endpoints, nftables and the
//! sysctls that they need.
//!
//! This crate makes no routing decisions (`routing::kernel_route` does), knows neither BGP nor the store, and
//! never changes objects of other programs: Tortie's own have its protocol number, its metric and IDs of its
//! range. Netlink types stay inside. Routes stay in the kernel when the thread ends.
//!
//! ```text
//!   core --Intent-->  +---------------- kernel thread (only writer) ----------------+
//!                     | state: table (desired and actual), network (links, foreign  | facts
//!   speaker --------> | routes, next hops)                                          |-----> core, speaker
//!     Learned, Track  |   plan -> nexthops, routes, unused -> netlink batches       |
//!                     +-------------------------------------------------------------+
//!                          ^ event queue                              |
//!                     watch thread <------- notifications -------- Linux
//! ```
//!
//! The modules use each other in one direction:
//!
//! ```text
//!   options, intent, facts, counters, sysctl, worker     values and helpers that use none of the others
//!         ^
//!   netlink <- fib <- endpoints (arrival), vxlan <- nft <- thread
//!                                             <- container, inspect, maintenance <- namespaces
//! ```
//!
//! Every change first updates the *actual* state (answers to requests, notifications, dumps). Entries whose
//! desired and actual states differ are dirty and are written. Start, steady state and recovery from lost
//! notifications use the same function, with more or fewer dirty entries.

#![warn(missing_docs)]

mod arrival;
pub mod container;
mod counters;
mod endpoints;
mod facts;
mod fib;
mod inspect;
mod intent;
pub mod maintenance;
pub mod namespaces;
mod netlink;
mod nft;
mod options;
mod sysctl;
mod thread;
mod vxlan;
mod worker;

#[cfg(feature = "test-hooks")]
#[doc(hidden)]
pub use self::nft::Simulated;
pub use self::nft::{
    Denial, DropKind, DropLog, Dropped, Meaning, RuleCounts, RuleHits, RulePlace, RuleView, Traced,
    TracedFlow, TracedPacket, TracedStep, TracedVerdict, trace,
};
pub use crate::counters::{Counters, OPS, RESULTS};
pub use crate::endpoints::EndpointView;
pub use crate::facts::{
    BlackholeAck, BlackholeOutcome, ConnectedNetwork, EndpointCondition, KernelFact, Sink,
};
pub use crate::fib::drift_hold::{HOLD_MAX, RouteDifference};
pub use crate::fib::ipip_tunnel::OVERHEAD as IPIP_OVERHEAD;
pub use crate::fib::network::{Covering, ForeignRoute};
pub use crate::fib::table::store_routes::RouteSource;
pub use crate::inspect::address_use::{AddressUse, AddressUses, UsePlace, address_uses};
pub use crate::inspect::attached::{attached_at, attached_routes};
pub use crate::inspect::capabilities::{KernelCapability, ProbeOutcome, probe_kernel};
pub use crate::inspect::connected::{connected_networks, host_networks};
pub use crate::inspect::default_address::{HostAddress, default_addresses};
pub use crate::inspect::lookup::{NeighbourEntry, neighbour, protocol_name};
pub use crate::inspect::snapshot::{MainHop, MainRoute, NetworkSnapshot, RouteKind, VxlanDifference};
pub use crate::inspect::tables::{FilterTable, filter_tables};
pub use crate::inspect::vxlan_ports::vxlan_ports;
pub use crate::intent::{KernelIntent, PolicyChange};
pub use crate::maintenance::purge::{Purge, Purged, links_named, purge};
pub use crate::namespaces::Namespaces;
pub use crate::netlink::conntrack::{Connection, connections};
pub use crate::netlink::vxlan::VxlanPort;
pub use crate::nft::metrics::{RuleDrift, RuleMetrics};
pub use crate::nft::{ForwardDrop, forward_drops, withdraw};
pub use crate::options::{Marks, Mode, Options};
pub use crate::thread::handle::{KernelHandle, spawn};
pub use crate::thread::messages::{EventsReady, ToKernel};
pub use crate::thread::metrics::{DriftCounts, KernelMetrics, LastResync};
pub use crate::thread::view::{Counts, Drift, KernelView, LinkView, RouteCondition, RouteState};
pub use crate::vxlan::device::OVERHEAD as VXLAN_OVERHEAD;
pub use crate::vxlan::name as vxlan_device;
pub use tortie_engine::routing::{LearnedBatch, LearnedChange};
