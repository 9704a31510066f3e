//! Addresses for workloads, from blocks that hosts own.
//!
//! What it does: gives addresses out, remembers who holds them (in the block, and by handle), takes them back, and keeps
//! blocks, handles and affinities in agreement, with any number of others at work on the same store.
//! What it does not: keep anything between two calls, look at a kernel, know who asks (CNI, Docker, Kurma and people are
//! the same to it).
//!
//! ```text
//!  Request --> plan (pure) --Need keys--> store.get/list --> State --> plan again
//!                   |                                          ^
//!                   +--Txn and its answer--> store.commit --conflict: the keys that were compared are read again
//! ```
//!
//! One transaction holds everything that belongs together (blocks, affinities, handle), so nothing of ours is ever half
//! done. What Calico's writers leave half done (an affinity that is `pending` or `pendingDeletion`, has no block, or one of
//! another owner) is completed or removed on the way.

mod api;
pub mod check;
mod error;
mod space;

use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::Cidr;
use tortie_config::resource::IpamConfig;

use crate::store::Store;

pub use api::{Assignment, Claims, Held, Range, Released, RemovedHost, Request, Unclaims, Want};
pub use error::IpamError;
pub use space::Space;

/// IPAM on a store. Cheap to clone.
#[derive(Clone)]
pub struct Ipam {
    store: Arc<dyn Store>,
    space: Arc<Space>,
}

impl Ipam {
    /// On the pools of the data model.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::in_space(store, Space::Global)
    }

    /// On the pools of a space.
    #[must_use]
    pub fn in_space(store: Arc<dyn Store>, space: Space) -> Self {
        Self { store, space: Arc::new(space) }
    }

    /// The space.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

fn not_yet<T>() -> Result<T, IpamError> {
    Err(IpamError::Refused("this version of tortie gives out no addresses yet".to_owned()))
}

impl Ipam {
    /// Gives addresses out, in the order of the wants.
    ///
    /// When the store goes away at the wrong moment the answer is an error although addresses may have been given: release
    /// the handle.
    ///
    /// # Errors
    /// Every [`IpamError`].
    pub async fn assign(&self, _request: &Request) -> Result<Vec<Assignment>, IpamError> {
        not_yet()
    }

    /// Releases addresses; with a `holder` only those whose handle it is.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`], [`IpamError::Busy`]. Addresses that are not allocated are no error.
    pub async fn release(&self, _addrs: &[IpAddr], _holder: Option<&str>) -> Result<Released, IpamError> {
        not_yet()
    }

    /// Releases all addresses of a handle; a handle that is not there has none.
    ///
    /// # Errors
    /// As [`Ipam::release`].
    pub async fn release_handle(&self, _handle: &str) -> Result<Vec<IpAddr>, IpamError> {
        not_yet()
    }

    /// The addresses of a handle.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn held_by(&self, _handle: &str) -> Result<Vec<IpAddr>, IpamError> {
        not_yet()
    }

    /// What is known of an address; `None` when it is not allocated.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn lookup(&self, _addr: IpAddr) -> Result<Option<Held>, IpamError> {
        not_yet()
    }

    /// Makes the blocks of a prefix the host's own: one block, or all blocks of an enabled pool in the prefix.
    ///
    /// # Errors
    /// Every [`IpamError`]. Blocks of others are no error, they are listed.
    pub async fn claim(&self, _host: &str, _cidr: Cidr) -> Result<Claims, IpamError> {
        not_yet()
    }

    /// Takes the host's blocks in a prefix away from it: empty ones are deleted, others are left without an owner.
    ///
    /// # Errors
    /// As [`Ipam::release`].
    pub async fn unclaim(&self, _host: &str, _cidr: Cidr) -> Result<Unclaims, IpamError> {
        not_yet()
    }

    /// Takes everything away that a host has in IPAM, in its own blocks and in others'. Addresses in its blocks that another
    /// host's endpoint has (borrowed ones) stay.
    ///
    /// # Errors
    /// As [`Ipam::release`].
    pub async fn remove_host(&self, _host: &str) -> Result<RemovedHost, IpamError> {
        not_yet()
    }

    /// The configuration in force.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn config(&self) -> Result<IpamConfig, IpamError> {
        not_yet()
    }

    /// Writes the configuration, with the fields that nobody named.
    ///
    /// # Errors
    /// [`IpamError::Refused`] when strict or automatic allocation would change while there are blocks, or when nothing could
    /// be allocated any more (neither strict nor automatic).
    pub async fn set_config(&self, _config: &IpamConfig) -> Result<(), IpamError> {
        not_yet()
    }

    /// Mends findings, each by itself, and says what became of each, in their order. Writes nothing where things are no
    /// longer as they were found.
    ///
    /// # Errors
    /// None at the moment but [`IpamError::NotReady`]: what fails for one finding is in its answer.
    pub async fn release_from_check(
        &self,
        _findings: &[check::Finding],
    ) -> Result<Vec<check::Mended>, IpamError> {
        not_yet()
    }
}
