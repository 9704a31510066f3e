//! IP prefixes and addresses: no I/O, no runtime, no clock, nothing of Calico and nothing of BGP.
//!
//! [`Cidr`] is a canonical prefix (host bits zero), the only prefix type outside of the wire. [`link_local`] gives IPv6
//! link-local addresses the link that they are on.

#![forbid(unsafe_code)]

mod cidr;
pub mod link_local;

pub use cidr::{Cidr, CidrError};
