//! Consistency check of IPAM: reports each inconsistency with its evidence and its repair.
//!
//! The check compares blocks, handles, affinities and endpoints of one [`IpamState`] with each other and with
//! the addresses in use on a host ([`Evidence`], which the caller gathers). It does not read the kernel, use
//! a clock or write. [`super::Ipam::release_from_check`] applies the repairs by compare-and-set, each only if
//! the store is still as it was found.

mod findings;
mod repair;
mod state;

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tortie_net::Cidr;

pub use findings::{RESERVED, findings};
pub(super) use repair::repair;
pub use state::{Endpoint, IpamState, StoredValue};

/// Addresses and interfaces observed on one host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Inspected host. With `None` only the store is checked, and an address counts as leaked only if its
    /// host no longer exists.
    pub host: Option<String>,
    /// Addresses on interfaces of the host and of its network namespaces.
    pub seen: Vec<AddressInUse>,
    /// Names of the host's interfaces, or `None` if they were not read.
    pub interfaces: Option<BTreeSet<String>>,
    /// Places that could not be inspected, such as a namespace that this process may not enter. If there is
    /// any, no address of the host counts as leaked.
    pub blind: Vec<String>,
    /// Addresses with a later `timestamp` attribute are skipped, because their endpoint may not be written
    /// yet.
    pub since: Option<jiff::Timestamp>,
}

/// An address configured on an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressInUse {
    /// Address without prefix length.
    pub addr: IpAddr,
    /// Interface and namespace, described for people: `eth0 in /run/netns/x`.
    pub place: String,
}

/// Kind of inconsistency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The address is allocated, but no endpoint and no interface of its host uses it, or its host no longer
    /// exists.
    Leaked,
    /// The address is allocated and no endpoint has it. Only an inspection of its host can show that it is in
    /// use.
    Unproven,
    /// An endpoint or an interface has a pool address that is not allocated.
    Unaccounted,
    /// Two endpoints or two interfaces have the same address, or two blocks overlap.
    Duplicate,
    /// The interface of an endpoint does not exist on its host, so that its addresses are unreachable.
    NoInterface,
    /// The block is empty and has no owner, or its owner is no longer a host.
    Ownerless,
    /// The counts of a handle differ from the blocks.
    Handle,
    /// An affinity contradicts its block, or a claim was interrupted.
    Affinity,
    /// The value of a key cannot be parsed.
    Unreadable,
}

impl Kind {
    /// Returns the name used in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leaked => "leaked",
            Self::Unproven => "unproven",
            Self::Unaccounted => "unaccounted",
            Self::Duplicate => "duplicate",
            Self::NoInterface => "no-interface",
            Self::Ownerless => "ownerless",
            Self::Handle => "handle",
            Self::Affinity => "affinity",
            Self::Unreadable => "unreadable",
        }
    }
}

/// One inconsistency, with its evidence and repair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Kind of the inconsistency.
    pub kind: Kind,
    /// Address, block, handle or key concerned.
    pub subject: String,
    /// Observations that prove the inconsistency, described for people.
    pub evidence: String,
    /// Repair to apply; `None` if an administrator has to decide.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fix: Option<Repair>,
}

/// Repair of a finding. It is applied only if the store is still as it was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub enum Repair {
    /// Releases an address, if it is still allocated with the same handle and attributes.
    Release {
        /// Address to release.
        addr: IpAddr,
        /// Block that contains the address.
        block: Cidr,
        /// Handle of the allocation, if it has one.
        handle: Option<String>,
        /// Attributes of the allocation. If there are none, the block must also still be at `revision`.
        attributes: Map<String, Value>,
        /// Revision of the block at the time of the check.
        revision: u64,
        /// Sequence number of the allocation, in a block that has sequence numbers (Calico 3).
        #[serde(skip_serializing_if = "Option::is_none", default)]
        sequence: Option<u64>,
    },
    /// Sets the counts of a handle to those of the blocks.
    Handle {
        /// Identifier of the handle.
        handle: String,
        /// Blocks that hold addresses of the handle, or that the handle lists.
        blocks: Vec<Cidr>,
    },
    /// Completes or deletes a host's affinity for a block, depending on the block.
    Affinity {
        /// Host of the affinity.
        host: String,
        /// Block of the affinity.
        block: Cidr,
    },
    /// Removes the owner of a block, and deletes the block if it is empty.
    #[serde(rename = "disown")]
    ClearOwner {
        /// Prefix of the block.
        block: Cidr,
        /// Owner that is no longer a host; `None` if the block has no owner.
        owner: Option<String>,
    },
}

/// Result of a repair.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RepairOutcome {
    /// The repair was applied.
    Done,
    /// The store changed since the check; nothing was written.
    Changed,
    /// An administrator has to decide.
    #[serde(rename = "byHand")]
    NeedsPerson,
    /// The repair failed, with the error.
    Failed(String),
}
