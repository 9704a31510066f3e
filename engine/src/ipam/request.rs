//! What callers of IPAM say and hear.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Map, Value};
use tortie_config::key::IpFamily;
use tortie_net::Cidr;

/// A request for addresses. All of them are given, or none, unless [`AllocationRequest::partial`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AllocationRequest {
    /// The host that asks: its blocks come first, new ones become its own.
    pub host: String,
    /// What is wanted, in the order of the answer.
    pub addresses: Vec<AddressRequest>,
    /// What releases the addresses later. Without one they are released by address only.
    pub handle: Option<String>,
    /// Each address gets a handle of its own: the text of the address is appended to `handle` (`libnetwork.` becomes
    /// `libnetwork.10.0.0.1`).
    pub handle_per_address: bool,
    /// Remembered with each address: `node`, `timestamp`, `pod`, `namespace`, ...
    pub attributes: Map<String, Value>,
    /// Addresses that lead to interfaces of this host, whatever the store says: they are not given.
    pub attached: BTreeSet<IpAddr>,
    /// Fewer addresses than asked for are no error (only for [`AddressRequest::Any`]).
    pub partial: bool,
}

/// One wish of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressRequest {
    /// Any free addresses.
    Any {
        /// Of which family.
        family: IpFamily,
        /// How many.
        count: u32,
        /// From these pools only, each of which has to exist and be enabled; empty: from all enabled ones, and from what
        /// the host has left in disabled ones.
        pools: Vec<Cidr>,
    },
    /// This address. Its pool has to be enabled; reserved addresses can be asked for.
    Exact(IpAddr),
    /// One address, from the first of these ranges that has room. Ranges outside of all enabled pools are passed over
    /// unless all of them are.
    OneOf(Vec<AddressRange>),
}

/// A part of a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRange {
    /// The subnet.
    pub subnet: Cidr,
    /// The first address of it that may be given; none: the subnet's first.
    pub first: Option<IpAddr>,
    /// The last address of it that may be given; none: the subnet's last.
    pub last: Option<IpAddr>,
    /// Addresses that are not given, such as a gateway.
    pub except: Vec<IpAddr>,
}

/// One address of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Allocation {
    /// The address.
    pub addr: IpAddr,
    /// The block that it lies in.
    pub block: Cidr,
    /// The pool that it lies in.
    pub pool: Cidr,
}

/// What became of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleaseResult {
    /// Free now.
    pub released: Vec<IpAddr>,
    /// Were not allocated.
    pub absent: Vec<IpAddr>,
    /// Kept: somebody else holds them (only when a holder was named). With the handle that does.
    pub kept: Vec<(IpAddr, Option<String>)>,
}

/// What is known of an allocated address.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocatedAddress {
    /// The address.
    pub addr: IpAddr,
    /// Its block.
    pub block: Cidr,
    /// The host that owns the block.
    pub owner: Option<String>,
    /// The handle that releases it.
    pub handle: Option<String>,
    /// What is remembered of it.
    pub attributes: Map<String, Value>,
}

/// What became of a claim of blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimResult {
    /// The host's own now (or already).
    pub claimed: Vec<Cidr>,
    /// Somebody else's, with the owner.
    pub refused: Vec<(Cidr, String)>,
}

/// What became of giving blocks up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnclaimResult {
    /// Empty ones: deleted.
    pub deleted: Vec<Cidr>,
    /// In use: they have no owner now and go when their last address is released.
    pub kept: Vec<Cidr>,
}

/// What the removal of a host took away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemovedHost {
    /// Addresses that were the host's, in its own blocks and in others'.
    pub released: Vec<IpAddr>,
    /// The host's blocks.
    pub blocks: UnclaimResult,
}
