//! Why IPAM did not do it.

use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_net::Cidr;

use tortie_store::StoreError;

/// An answer that is no. The text names the place and the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IpamError {
    /// No enabled pool of the family.
    #[error(
        "there is no enabled {} pool; make one with `tortie ipam pool create ADDRESS/LENGTH`",
        family_name(*.0)
    )]
    NoPools(IpFamily),
    /// The address or range lies in no pool that IPAM uses.
    #[error("{what} lies in no pool; {}", pool_list(.pools))]
    OutsidePools {
        /// The address or range.
        what: String,
        /// The pools that there are.
        pools: Vec<Cidr>,
    },
    /// A pool that was asked for does not exist.
    #[error("there is no pool {pool}; {}", pool_list(.pools))]
    UnknownPool {
        /// The pool.
        pool: Cidr,
        /// The pools that there are.
        pools: Vec<Cidr>,
    },
    /// The pool that was asked for gives out no addresses.
    #[error("pool {0} is disabled; enable it or ask for another one")]
    Disabled(Cidr),
    /// Too few addresses are free.
    #[error(
        "{requested} wanted, {free} free in {place}; add a pool, or see `tortie ipam check` for addresses that leaked"
    )]
    Full {
        /// How many were wanted.
        requested: u32,
        /// How many could be had.
        free: u32,
        /// The pools or ranges that were searched.
        place: String,
    },
    /// The address is allocated.
    #[error("{addr} is allocated to {}; release it or choose another one", holder_name(.holder.as_deref()))]
    AddressInUse {
        /// The address.
        addr: IpAddr,
        /// The handle that holds it.
        holder: Option<String>,
    },
    /// The address is a host's, or of a network that a host is connected to.
    #[error(
        "{addr} is {holder}: no workload gets it; choose another address, and a pool that overlaps no host's network"
    )]
    Excluded {
        /// The address.
        addr: IpAddr,
        /// Who has it, in words.
        holder: String,
    },
    /// The address lies in another host's block, and hosts keep to their own.
    #[error(
        "{addr} lies in block {block} of host {owner}, and affinity is strict; choose an address of a block of this host"
    )]
    StrictOwner {
        /// The address.
        addr: IpAddr,
        /// Its block.
        block: Cidr,
        /// The owner.
        owner: String,
    },
    /// The host has as many blocks as it may have.
    #[error(
        "host {host} has {limit} blocks, all full, and may have no more: raise `maxBlocksPerHost` in /calico/ipam/v2/config"
    )]
    BlockLimit {
        /// The host.
        host: String,
        /// The limit.
        limit: u32,
    },
    /// The store is frozen: `Ready` is not `true`.
    #[error("the data model is not ready (/calico/v1/Ready is not `true`); try again later")]
    NotReady,
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A value that has to be known cannot be read.
    #[error("{key}: {why}")]
    Unreadable {
        /// The key.
        key: String,
        /// What is wrong with its value.
        why: String,
    },
    /// Others were faster in every attempt.
    #[error("others changed the same keys in each of {attempts} attempts; try again")]
    Busy {
        /// How often it was tried.
        attempts: u32,
    },
    /// The request makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// A safety rule forbids it.
    #[error("{0}")]
    Refused(String),
}

impl IpamError {
    /// A stable name for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoPools(_) => "no-pools",
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

    /// Whether the same call may succeed a moment later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::NotReady | Self::Busy { .. } | Self::Store(StoreError::Unreachable(_)))
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

fn holder_name(handle: Option<&str>) -> String {
    handle.map_or_else(|| "a holder without a handle".to_owned(), |handle| format!("`{handle}`"))
}
