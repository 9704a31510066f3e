//! Labs from containerlab files, built from network namespaces: no Docker, no image, nothing left behind.
//!
//! ```text
//!  FILE.clab.yml --clab--> Topology --plan--> Plan (namespaces, links, mounts, commands in order) --run--> Running
//!                 checked            pure       ^                                                     exec, spawn, set_link,
//!                                    programs that stand for images (image)                           kill, down
//! ```
//!
//! It does not pull or run images, emulate network systems, or restart what ends. It builds what a topology of plain
//! Linux nodes, bridges and the host describes, on one machine.

#![warn(missing_docs)]

pub mod clab;
mod error;
pub mod image;
pub mod netns;
pub mod plan;
pub mod run;

pub use error::{Invalid, LabError};
pub use run::{HostNetwork, Lab, Options, Progress, Running, Sandbox, Signal, Victim};
