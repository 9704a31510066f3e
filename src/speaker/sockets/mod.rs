//! Sockets of BGP: options that no crate provides, keys, listeners, outgoing connections and the epoll set.
//!
//! Order of use, lowest first: `secret`, `sockopt` <- `ao`, `md5` <- `guard` <- `connect`, `listener_keys` <-
//! `listen`. `poller` and `datagram` are independent.

pub(crate) mod ao;
pub(crate) mod connect;
pub(crate) mod datagram;
pub(crate) mod guard;
pub(crate) mod listen;
pub(crate) mod listener_keys;
pub(crate) mod md5;
pub(crate) mod poller;
pub(crate) mod secret;
pub(crate) mod sockopt;
