//! What does not agree in IPAM, with the evidence, and what mends it.
//!
//! What it does: compares blocks, handles, affinities and endpoints of one [`IpamState`] of the store with each other and
//! with what a host really holds ([`Evidence`], which the caller gathers). What it does not: look at a kernel, keep time,
//! or write; [`super::Ipam::release_from_check`] mends, by compare-and-set, what is still as it was found.

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

/// What a look at one host brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The host that was looked at; none: the store alone speaks, and no address is called leaked unless its host is gone.
    pub host: Option<String>,
    /// The addresses that interfaces of the host and of its namespaces have.
    pub seen: Vec<AddressInUse>,
    /// The interfaces of the host; none: they were not looked at.
    pub interfaces: Option<BTreeSet<String>>,
    /// What could not be looked at, such as a namespace without the right to enter it. While there is anything, no address
    /// of the host is called leaked.
    pub blind: Vec<String>,
    /// Addresses with a later `timestamp` attribute are passed over: whoever got them may not have written the endpoint yet.
    pub since: Option<jiff::Timestamp>,
}

/// One address on one interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressInUse {
    /// The address.
    pub addr: IpAddr,
    /// Where, for people: `eth0 in /run/netns/x`.
    pub place: String,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Allocated, and nobody has it: no endpoint, no interface of its host; or its host is gone.
    Leaked,
    /// Allocated, and no endpoint has it; only a look at its host can tell whether it is in use.
    Unproven,
    /// An endpoint or an interface has an address of a pool that is not allocated.
    Unaccounted,
    /// Two endpoints or two interfaces have one address, or two blocks overlap.
    Duplicate,
    /// An endpoint stands, and its interface is not on its host: nobody answers for its addresses.
    NoInterface,
    /// A block that nobody owns and nobody uses, or whose owner is no host any more.
    Ownerless,
    /// A handle and the blocks say different things.
    Handle,
    /// An affinity and its block say different things, or a claim stopped half way.
    Affinity,
    /// A value that cannot be read.
    Unreadable,
}

impl Kind {
    /// As in JSON.
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

/// One thing that does not agree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What kind of thing.
    pub kind: Kind,
    /// The address, block, handle or key that it is about.
    pub subject: String,
    /// What was seen, for people.
    pub evidence: String,
    /// What mends it; none: a person has to decide.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fix: Option<Repair>,
}

/// What mends a finding, if all is still as it was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub enum Repair {
    /// Release an address that is still allocated with the same handle and attributes.
    Release {
        /// The address.
        addr: IpAddr,
        /// Its block.
        block: Cidr,
        /// Its handle.
        handle: Option<String>,
        /// Its attributes. Where there are none, the block has to be at `revision`, too.
        attributes: Map<String, Value>,
        /// The revision of the block when it was looked at.
        revision: u64,
    },
    /// Make a handle say what these blocks say.
    Handle {
        /// The handle.
        handle: String,
        /// The blocks that have it, or that it names.
        blocks: Vec<Cidr>,
    },
    /// Finish or remove a host's affinity to a block, as the block says.
    Affinity {
        /// The host.
        host: String,
        /// The block.
        block: Cidr,
    },
    /// Take the owner from a block and delete it when it is empty.
    #[serde(rename = "disown")]
    ClearOwner {
        /// The block.
        block: Cidr,
        /// The owner that is no host any more; none: it has none.
        owner: Option<String>,
    },
}

/// What became of a finding that was to be mended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RepairOutcome {
    /// Done.
    Done,
    /// It is not as it was found any more: nothing was written.
    Changed,
    /// A person has to decide.
    #[serde(rename = "byHand")]
    NeedsPerson,
    /// It failed.
    Failed(String),
}
