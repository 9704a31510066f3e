//! Host checks by subject; each is a pure function over one snapshot of the host.

pub(super) mod agent;
pub(super) mod capabilities;
pub(super) mod data_model;
pub(super) mod health;
pub(super) mod kernel;
pub(super) mod migration;
pub(super) mod node_environment;
pub(super) mod other_daemons;
pub(super) mod ports;
pub(super) mod sockets;
pub(super) mod store;
#[cfg(test)]
mod tests;
