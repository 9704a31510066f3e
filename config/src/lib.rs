//! The nouns of Calico's etcd v1 data model: no I/O, no runtime, no clock.
//!
//! [`Cidr`] is a canonical prefix (host bits zero), the only prefix type outside of the wire. [`Key`] is a key of the
//! data model.

mod cidr;
pub mod key;
pub mod selector;

pub use cidr::{Cidr, CidrError};
pub use key::Key;
pub use selector::{Selector, SelectorError};
