//! Transactions by which a host writes what it owns, in the dialect of the store: its registration and tunnel
//! addresses, the endpoints of its workloads and their profiles; and by which an operator changes pools and
//! removes hosts.
//!
//! A caller has a noun (a host with addresses, an endpoint) and the stored values; the writer returns the
//! transaction, or `None` if nothing changes. In a v1 store a noun is several keys, in a Calico 3 store one
//! object, whose other members are written back byte for byte. Each transaction compares what it was made
//! from, so that a concurrent change is a conflict, after which the caller reads and asks again. This module
//! does no I/O, and reads neither clock nor random numbers.
//!
//! ```text
//!  noun + stored entries --Writer (dialect)--> transaction | None --caller--> store
//! ```

mod endpoint;
mod endpoint_error;
mod node;
mod node_removal;
mod pool;
mod profile;
mod ready;
mod stored_endpoint;

use jiff::{Timestamp, Unit};
use tortie_config::Dialect;
use tortie_config::calico3::write::Birth;

pub use endpoint::{EndpointSpec, Removal, owned_by_other};
pub use endpoint_error::EndpointError;
pub use node::{AddressFlag, AddressSource, NodeAddress, Registration, TunnelKind, WriteError};
pub use node_removal::{DoomedKey, NodeRemoval, RemovalStep, SignOfLife};
pub use pool::{PoolError, StoredPool, ipip_enabled};
pub use profile::ProfileChoice;
pub use stored_endpoint::StoredEndpoint;

/// Writes in one dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    dialect: Dialect,
}

impl Writer {
    /// Returns the writer of a dialect.
    #[must_use]
    pub const fn of(dialect: Dialect) -> Self {
        Self { dialect }
    }

    /// Returns the dialect in which this writer writes.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        self.dialect
    }

    /// Returns a time as it is stored with an allocated address: in a Calico 3 store as Calico's plugins write
    /// it, Go's default form in UTC.
    #[must_use]
    pub fn attribute_time(self, now: Timestamp) -> String {
        match self.dialect {
            Dialect::V1 => now.to_string(),
            Dialect::V3 => now.strftime("%Y-%m-%d %H:%M:%S%.f +0000 UTC").to_string(),
        }
    }
}

/// Returns what a new object gets: a UUID of version 4 (RFC 9562) made from random bits, and the time of
/// creation in seconds.
#[must_use]
pub fn birth(random: u128, now: Timestamp) -> Birth {
    let bits = (random & !(0xf << 76) & !(0b11 << 62)) | (4 << 76) | (0b10 << 62);
    let hex = format!("{bits:032x}");
    let parts: Vec<&str> =
        [0..8, 8..12, 12..16, 16..20, 20..32].into_iter().filter_map(|part| hex.get(part)).collect();
    // Rounding fails only at the end of the range of times; then the fraction stays.
    let now = now.round(Unit::Second).unwrap_or(now);
    Birth { uid: parts.join("-"), time: now.to_string() }
}

#[cfg(test)]
mod tests;
