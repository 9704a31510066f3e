//! Sockets of BGP: options that no crate models, keys, listeners and outgoing connections.

pub(crate) mod ao;
pub(crate) mod connect;
pub(crate) mod listen;
pub(crate) mod secret;
pub(crate) mod sockopt;
