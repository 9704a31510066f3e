//! One-shot reads of the host's network state for queries; nothing is written or tracked.

pub(super) mod address_use;
pub(super) mod attached;
pub(super) mod capabilities;
pub(super) mod connected;
pub(super) mod default_address;
pub(super) mod lookup;
pub(super) mod snapshot;
pub(super) mod tables;
pub(super) mod vxlan_ports;
