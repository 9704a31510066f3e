//! Addresses in use outside of IPAM: those of hosts and their networks, which are never allocated from a
//! pool, and those of endpoints, which are never released by accident.

pub(super) mod excluded;
pub(super) mod host_networks;
pub(super) mod in_use;
