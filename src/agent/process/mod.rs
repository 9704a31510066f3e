//! Set-up of the process: sandbox, allocator, notifications to the service manager, addresses of the host.

pub(super) mod allocator;
pub(super) mod capabilities;
pub(super) mod host;
pub(super) mod namespace;
pub(super) mod sandbox;
pub(super) mod systemd;
