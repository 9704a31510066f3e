//! Requests and results of IPAM operations.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Map, Value};
use tortie_config::key::IpFamily;
use tortie_config::resource::AllowedUse;
use tortie_net::Cidr;

/// Request for addresses. Either all are allocated or none, unless [`AllocationRequest::partial`] is set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AllocationRequest {
    /// Requesting host. Its own blocks are used first, and new blocks become its own.
    pub host: String,
    /// Requested addresses, in the order of the answer.
    pub addresses: Vec<AddressRequest>,
    /// Handle for a later release. Without one the addresses can only be released one by one.
    pub handle: Option<String>,
    /// Gives each address its own handle, `handle` with the address appended: `libnetwork.` becomes
    /// `libnetwork.10.0.0.1`.
    pub handle_per_address: bool,
    /// Attributes stored with each address: `node`, `timestamp`, `pod`, `namespace` and others.
    pub attributes: Map<String, Value>,
    /// Addresses that are routed to interfaces of this host. They are not allocated, whatever the store says.
    pub attached: BTreeSet<IpAddr>,
    /// Accepts fewer addresses than requested; applies only to [`AddressRequest::Any`].
    pub partial: bool,
    /// Use of the addresses, which the pools of a Calico 3 store may restrict.
    pub address_use: AddressUse,
}

/// Use of an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AddressUse {
    /// Address of a workload.
    #[default]
    Workload,
    /// Address of a host's tunnel device.
    Tunnel,
}

impl AddressUse {
    /// Returns the use that a pool allows or not.
    pub(super) fn in_pools(self) -> AllowedUse {
        match self {
            Self::Workload => AllowedUse::Workload,
            Self::Tunnel => AllowedUse::Tunnel,
        }
    }

    /// Returns the name as in the member `allowedUses` of an IPPool.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.in_pools().as_str()
    }
}

/// One item of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressRequest {
    /// Any free addresses.
    Any {
        /// Address family.
        family: IpFamily,
        /// Number of addresses.
        count: u32,
        /// Pools to allocate from, each of which must exist and be enabled. If empty, all enabled pools are
        /// used, and the host's blocks in disabled ones.
        pools: Vec<Cidr>,
    },
    /// A specific address. Its pool must be enabled; a reserved address may be requested.
    Exact(IpAddr),
    /// One address from the first of these ranges that has room. Ranges outside of all enabled pools are
    /// skipped, unless all of them are.
    OneOf(Vec<AddressRange>),
}

/// A range of addresses within a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRange {
    /// Subnet that contains the range.
    pub subnet: Cidr,
    /// First address of the range; `None` for the first of the subnet.
    pub first: Option<IpAddr>,
    /// Last address of the range; `None` for the last of the subnet.
    pub last: Option<IpAddr>,
    /// Addresses that must not be allocated, such as a gateway.
    pub except: Vec<IpAddr>,
}

/// An allocated address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Allocation {
    /// Allocated address.
    pub addr: IpAddr,
    /// Block that contains the address.
    pub block: Cidr,
    /// Pool that contains the address.
    pub pool: Cidr,
}

/// An address to release, with what must still be true of its allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// Address to release.
    pub addr: IpAddr,
    /// Handle that must hold the address; `None` for any.
    pub handle: Option<String>,
    /// Sequence number that the allocation must have (Calico 3); `None` for any.
    pub sequence: Option<u64>,
}

/// Result of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleaseResult {
    /// Addresses that are now free.
    pub released: Vec<IpAddr>,
    /// Addresses that were not allocated.
    pub absent: Vec<IpAddr>,
    /// Addresses that another handle holds, with that handle; only if a holder was given.
    pub kept: Vec<(IpAddr, Option<String>)>,
}

/// Allocation of an address.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocatedAddress {
    /// Allocated address.
    pub addr: IpAddr,
    /// Block that contains the address.
    pub block: Cidr,
    /// Host that owns the block.
    pub owner: Option<String>,
    /// Handle of the allocation.
    pub handle: Option<String>,
    /// Attributes stored with the address.
    pub attributes: Map<String, Value>,
    /// Sequence number of the allocation, in a block that has sequence numbers (Calico 3).
    pub sequence: Option<u64>,
}

/// Result of a block claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimResult {
    /// Blocks that the host owns now, including those that it owned before.
    pub claimed: Vec<Cidr>,
    /// Blocks of other hosts, with their owner.
    pub refused: Vec<(Cidr, String)>,
}

/// Result of giving up blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnclaimResult {
    /// Empty blocks, which were deleted.
    pub deleted: Vec<Cidr>,
    /// Blocks in use. They have no owner now and are deleted when their last address is released.
    pub kept: Vec<Cidr>,
}

/// Result of removing a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemovedHost {
    /// Released addresses, in the host's own blocks and in those of other hosts.
    pub released: Vec<IpAddr>,
    /// Blocks that the host owned.
    pub blocks: UnclaimResult,
}
