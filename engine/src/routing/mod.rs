//! Routing decisions: computes peers, originated prefixes, export gates, kernel routes and tunnels from the
//! model.
//!
//! It does no I/O, uses no clock and no netlink, and keeps no BGP state. Every result carries its reason, and
//! explanations run the same functions with a recorder.
//!
//! ```text
//!  Model, changes --Planner (plan.rs)--> RoutingIntent --peers, originated--> speaker
//!                  local.rs: this host       |        --blackholes, tunnel--> kernel thread
//!                  peers.rs: its sessions, ranges.rs: ranges of dynamic peers
//!                                            |        --notes---------------> status
//!                  store_routes: no BGP      |        --vxlan, store_routes-> kernel thread
//!   live_migration: moves    |        --endpoint_routings--> kernel thread
//!                  originate.rs: its routes  v
//!                  notes.rs          RoutingView --export_gate, import (gates.rs,
//!                                        |            which use filter.rs)--------> speaker
//!                                                --kernel_route (forward)---------> kernel thread
//! ```

mod calico3;
mod explain;
mod filter;
mod forward;
mod gates;
mod learned;
mod live_migration;
mod local;
mod notes;
mod originate;
mod own;
mod peers;
mod persistent_map;
mod plan;
mod ranges;
mod store_routes;
mod supposed;
#[cfg(test)]
pub(crate) mod tests;
mod types;
mod unreadable;

pub use calico3::{Calico3View, LEARNED_LOCAL_PREF, local_pref_of, metric_of};
pub use explain::{Step, StepOutcome};
pub use filter::{
    Decider, Direction, FilterChanges, FilterDecision, FilterInput, FilterRoute, FilterVerdict, Filters,
    Interface, RuleRef, Session,
};
pub use forward::{
    CoveringRoute, Legs, Resolution, RoutingTable, explain_kernel_route, kernel_route,
    resolve as resolve_next_hop,
};
pub use gates::{
    EXPORT_GATES, EXPORT_GATES_CALICO_3, FILTER, INSIDE_POOL, OWN_ENDPOINT, explain_export, explain_import,
    export_gate, import, imports_all_networks,
};
pub use learned::{Credit, LearnedBatch};
pub use live_migration::{
    EndpointRouting, EndpointRoutings, LiveMigrations, MigrationCheckpoint, MigrationEvent, MigrationRole,
    MigrationState, Transition,
};
pub use local::{AddressOption, NodeOptions, RouterId};
pub use notes::import_pools_hints;
pub use peers::{PASSIVE_SIDE_DELAY, explain_peer};
pub use persistent_map::{Difference, Persistent};
pub use plan::{IntentChange, Planner, intent};
pub use ranges::{DYNAMIC, DynamicPeer, MAX_SESSIONS, RangeIntent};
pub use store_routes::{
    Encapsulation, RemoteRoute, StoreRoutes, VxlanDevice, VxlanIntent, VxlanRemote, Withheld, derived_mac,
};
pub use supposed::{SupposedKernelRoute, SupposedRoute, suppose_export, suppose_import, suppose_kernel};
pub use types::*;
pub use unreadable::{UnreadablePeer, unreadable_peers};
