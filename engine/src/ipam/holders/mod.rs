//! Addresses that are held outside of IPAM: by hosts and their networks, which get none of them from a pool, and by endpoints, which
//! lose none by accident.

pub(super) mod excluded;
pub(super) mod host_networks;
pub(super) mod in_use;
