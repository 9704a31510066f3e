//! Parses and checks containerlab topology files.
//!
//! [`Topology::read`] loads a `*.clab.yml` file. It expands environment variables, rejects unknown keys,
//! merges the four levels (node, group, kind, defaults) into each node, and rejects errors that
//! containerlab's JSON schema does not detect: links with one end, unknown nodes, a missing kind, an
//! interface used twice, invalid addresses. A valid [`Topology`] can be built. This module only reads the
//! file (and its `env-files`) and changes nothing on the system.
//!
//! References: <https://containerlab.dev/manual/topo-def-file/>, <https://containerlab.dev/manual/nodes/>.

mod context;
mod expand;
mod ignored;
mod links;
mod nodes;
mod raw;
mod read;
mod topology;

pub use topology::{Bind, End, HOST, Healthcheck, Kind, Link, Node, Stage, StagePlan, Topology};
