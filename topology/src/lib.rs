//! Network labs from containerlab files, built with Linux network namespaces, without Docker and images.
//!
//! ```text
//!  FILE.clab.yml --clab--> Topology --plan--> Plan --run--> Running: exec, spawn, set_link, kill, down
//!                 checked            pure       ^  namespaces, links, mounts, commands in order
//!                                    substitute programs of images (image)
//! ```
//!
//! It does not pull or run images, emulate network operating systems, or restart processes that end. It
//! builds topologies of Linux nodes, bridges and the host on one machine, and removes everything afterwards.

#![warn(missing_docs)]

pub mod clab;
mod error;
pub mod image;
pub mod netns;
pub mod plan;
pub mod run;

pub use error::{Invalid, LabError};
pub use run::{HostNetwork, Lab, Options, Progress, Running, Sandbox, Signal, Victim};
