//! IP prefixes and addresses: no I/O, no runtime, no clock, independent of Calico and of BGP.
//!
//! [`Cidr`] is a canonical prefix (host bits zero), the only prefix type outside of the BGP message codecs.
//! [`ScopedAddr`] is an address together with its interface. [`cover`] finds the longest prefix that covers
//! another. [`HashKey`] keys hash tables whose entries an outsider chooses.

#![forbid(unsafe_code)]
#![forbid(clippy::disallowed_methods, clippy::disallowed_types)]
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
