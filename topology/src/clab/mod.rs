//! Containerlab topology files, typed and checked.
//!
//! [`Topology::read`] takes a `*.clab.yml` file: variables of the environment are put in, every key is known or refused,
//! the four levels (node, group, kind, defaults) are folded into each node, and what containerlab's JSON schema lets
//! pass is refused here: one-ended links, unknown nodes, a missing kind, an interface used twice, bad addresses.
//! What stands in a [`Topology`] can be built. Nothing here touches the system beyond reading the file (and `env-files`).
//!
//! Documents followed: <https://containerlab.dev/manual/topo-def-file/>, <https://containerlab.dev/manual/nodes/>.

mod context;
mod expand;
mod ignored;
mod links;
mod nodes;
mod raw;
mod read;
mod topology;

pub use topology::{Bind, End, HOST, Healthcheck, Kind, Link, Node, Stage, StagePlan, Topology};
