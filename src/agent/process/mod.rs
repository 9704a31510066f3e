//! The process itself: capabilities, allocator, service manager, host name and addresses.

pub(super) mod allocator;
pub(super) mod capabilities;
pub(super) mod host;
pub(super) mod namespace;
pub(super) mod sandbox;
pub(super) mod systemd;
