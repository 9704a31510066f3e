//! IP prefixes and addresses: no I/O, no runtime, no clock, nothing of Calico and nothing of BGP.
//!
//! [`Cidr`] is a canonical prefix (host bits zero), the only prefix type outside of the wire. [`ScopedAddr`] is an
//! address with the link that it is on. [`cover`] finds the longest prefix that covers another. [`HashKey`] keys
//! the hash tables of what others choose.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cidr;
pub mod cover;
mod hash;
mod scoped_addr;
#[cfg(any(test, feature = "test-strategies"))]
pub mod test_strategies;

pub use cidr::{Cidr, CidrError};
pub use hash::{HashKey, SipHasher};
pub use scoped_addr::ScopedAddr;
