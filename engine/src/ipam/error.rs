//! Errors of IPAM operations.

use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_net::Cidr;

use tortie_store::StoreError;

/// Error of an IPAM operation. The text names the place and the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IpamError {
    /// There is no enabled pool of the family.
    #[error(
        "there is no enabled {} pool; create one with `tortie ipam pool create ADDRESS/LENGTH`",
        family_name(*.0)
    )]
    NoPools(IpFamily),
    /// No pool of the family serves the host. The first of them is named with the reason.
    #[error("no {} pool serves host {host}: {why}", family_name(*.family))]
    NoFittingPool {
        /// Requested family.
        family: IpFamily,
        /// Requesting host.
        host: String,
        /// Reason for which a pool does not serve it, and the next step.
        why: String,
    },
    /// The pool may not be used this way.
    #[error(
        "pool {pool} has no addresses for {use_name}: its `allowedUses` do not name it; choose another pool"
    )]
    PoolUse {
        /// Requested pool, or pool of the requested address.
        pool: Cidr,
        /// Requested use.
        use_name: &'static str,
    },
    /// The address or range is in no pool that IPAM uses.
    #[error("{what} is in no pool; {}", pool_list(.pools))]
    OutsidePools {
        /// Requested address or range.
        what: String,
        /// Existing pools of the family.
        pools: Vec<Cidr>,
    },
    /// The requested pool does not exist.
    #[error("there is no pool {pool}; {}", pool_list(.pools))]
    UnknownPool {
        /// Requested pool.
        pool: Cidr,
        /// Existing pools of the family.
        pools: Vec<Cidr>,
    },
    /// The requested pool is disabled.
    #[error("pool {0} is disabled; enable it or request another one")]
    Disabled(Cidr),
    /// Too few addresses are free.
    #[error(
        "{requested} requested, {free} free in {place}; add a pool, or run `tortie ipam check` to find \
         leaked addresses"
    )]
    Full {
        /// Number of requested addresses.
        requested: u32,
        /// Number of available addresses.
        free: u32,
        /// Pools or ranges that were searched.
        place: String,
    },
    /// The address is already allocated.
    #[error("{addr} is allocated to {}; release it or choose another one", holder_name(.holder.as_deref()))]
    AddressInUse {
        /// Requested address.
        addr: IpAddr,
        /// Handle that holds the address, if it has one.
        holder: Option<String>,
    },
    /// The address belongs to a host, or to a network that a host is connected to.
    #[error(
        "{addr} is {holder}: no workload may have it; choose another address, and a pool that overlaps no \
         network of a host"
    )]
    Excluded {
        /// Requested address.
        addr: IpAddr,
        /// Holder of the address, described for people.
        holder: String,
    },
    /// The address is in another host's block, and affinity is strict.
    #[error(
        "{addr} is in block {block} of host {owner}, and affinity is strict; choose an address of a block \
         of this host"
    )]
    StrictOwner {
        /// Requested address.
        addr: IpAddr,
        /// Block that contains the address.
        block: Cidr,
        /// Host that owns the block.
        owner: String,
    },
    /// The host has reached its maximum number of blocks.
    #[error(
        "host {host} has {limit} blocks, all full, and may have no more: raise `maxBlocksPerHost` in /calico/ipam/v2/config"
    )]
    BlockLimit {
        /// Host that requested addresses.
        host: String,
        /// Maximum number of blocks per host.
        limit: u32,
    },
    /// The store is frozen: `Ready` is not `true`.
    #[error("the data model is not ready (/calico/v1/Ready is not `true`); try again later")]
    NotReady,
    /// The Calico 3 cluster is not ready.
    #[error(
        "the cluster is not ready: `spec.datastoreReady` of ClusterInformation `default` is not true; try \
         again later"
    )]
    ClusterNotReady,
    /// The host has no Node object in a Calico 3 store.
    #[error(
        "host {host} has no Node object, so it may allocate no addresses; start its agent, which creates it, \
         and check the spelling of --node"
    )]
    NoNode {
        /// Requesting host.
        host: String,
    },
    /// An allocation is not the one that a release names; nothing was released.
    #[error("{addr} is {found}, not what the request names, so nothing was released; read it again")]
    StaleRelease {
        /// Address to release.
        addr: IpAddr,
        /// What the store says instead.
        found: String,
    },
    /// The store returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A value that the operation depends on cannot be parsed.
    #[error("{key}: {why}")]
    Unreadable {
        /// Store key of the value.
        key: String,
        /// Reason why it cannot be parsed.
        why: String,
    },
    /// Every attempt conflicted with another writer.
    #[error("other processes changed the same keys in each of {attempts} attempts; try again")]
    Busy {
        /// Number of attempts made.
        attempts: u32,
    },
    /// The request is invalid.
    #[error("{0}")]
    BadRequest(String),
    /// A safety rule forbids the operation.
    #[error("{0}")]
    Refused(String),
}

impl IpamError {
    /// Returns a stable error code for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoPools(_) => "no-pools",
            Self::NoFittingPool { .. } => "no-fitting-pool",
            Self::PoolUse { .. } => "pool-use",
            Self::ClusterNotReady => "cluster-not-ready",
            Self::NoNode { .. } => "no-node",
            Self::StaleRelease { .. } => "stale-release",
            Self::OutsidePools { .. } => "outside-pools",
            Self::UnknownPool { .. } => "unknown-pool",
            Self::Disabled(_) => "pool-disabled",
            Self::Full { .. } => "full",
            Self::AddressInUse { .. } => "taken",
            Self::Excluded { .. } => "host-address",
            Self::StrictOwner { .. } => "strict-owner",
            Self::BlockLimit { .. } => "block-limit",
            Self::NotReady => "not-ready",
            Self::Store(_) => "store",
            Self::Unreadable { .. } => "unreadable",
            Self::Busy { .. } => "busy",
            Self::BadRequest(_) => "bad-request",
            Self::Refused(_) => "refused",
        }
    }

    /// Returns true if the same call may succeed a moment later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::NotReady
                | Self::ClusterNotReady
                | Self::Busy { .. }
                | Self::Store(StoreError::Unreachable(_))
        )
    }
}

fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

fn pool_list(pools: &[Cidr]) -> String {
    const SHOWN: usize = 16;
    if pools.is_empty() {
        return "there are no pools".to_owned();
    }
    let mut text: Vec<String> = pools.iter().take(SHOWN).map(ToString::to_string).collect();
    if pools.len() > SHOWN {
        text.push(format!("and {} more", pools.len() - SHOWN));
    }
    format!("the pools are {}", text.join(", "))
}

/// Names the handle of an allocation for people.
pub(super) fn holder_name(handle: Option<&str>) -> String {
    handle.map_or_else(|| "a holder without a handle".to_owned(), |handle| format!("`{handle}`"))
}
