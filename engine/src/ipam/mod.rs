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

mod assign;
mod block_order;
mod cas_loop;
pub mod check;
mod configure;
mod draft;
mod error;
mod holders;
mod host;
mod keyspace;
pub mod metrics;
mod overlap;
mod pools;
mod reads;
mod release;
mod request;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::resource::IpamConfig;
use tortie_net::Cidr;

use check::IpamState;
use tortie_store::{Compare, Op, Store, StoreError, Txn};

pub use error::IpamError;
pub use holders::excluded::{ExcludedPrefix, Exclusions};
pub use holders::host_networks::{HostNetwork, pool_overlap};
pub use holders::in_use::{UsedAddress, UsedAddresses};
pub use keyspace::Keyspace;
pub use request::{
    AddressRange, AddressRequest, AllocatedAddress, Allocation, AllocationRequest, ClaimResult,
    ReleaseResult, RemovedHost, UnclaimResult,
};

/// IPAM on a store. Cheap to clone.
#[derive(Clone)]
pub struct Ipam {
    store: Arc<dyn Store>,
    keyspace: Arc<Keyspace>,
    exclusions: Arc<Exclusions>,
}

impl Ipam {
    /// On the pools of the data model.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::in_keyspace(store, Keyspace::Global)
    }

    /// On the pools of a space.
    #[must_use]
    pub fn in_keyspace(store: Arc<dyn Store>, keyspace: Keyspace) -> Self {
        Self { store, keyspace: Arc::new(keyspace), exclusions: Arc::default() }
    }

    /// The same, with what the agent of this host knows of addresses that others have: the store is not asked for that again.
    #[must_use]
    pub fn excluding(self, exclusions: Exclusions) -> Self {
        Self { exclusions: Arc::new(exclusions), ..self }
    }

    /// The space.
    #[must_use]
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

impl Ipam {
    /// Gives addresses out, in the order of the wants.
    ///
    /// When the store goes away between a transaction and its answer, a request with a handle finds out what became of it;
    /// one that cannot is an error although addresses may have been given: release the handle.
    ///
    /// # Errors
    /// Every [`IpamError`].
    pub async fn assign(&self, request: &AllocationRequest) -> Result<Vec<Allocation>, IpamError> {
        with_metrics("assign", self.give(request)).await
    }

    /// Whether [`Ipam::assign`] would give these addresses now. Nothing is written: the plan is made, and the store is asked whether
    /// it would take it.
    ///
    /// # Errors
    /// Every [`IpamError`].
    pub async fn rehearse(&self, request: &AllocationRequest) -> Result<(), IpamError> {
        self.rehearse_plan(|state| assign::plan(&self.keyspace, state, request, &self.exclusions, &[])).await
    }

    async fn give(&self, request: &AllocationRequest) -> Result<Vec<Allocation>, IpamError> {
        self.run(true, |state, tried| match &request.handle {
            // Without a handle nobody can tell whose an address is.
            None if !tried.is_empty() => reads::PlanStep::Err(IpamError::Store(StoreError::Unreachable(
                "it is not known whether addresses were given; see `tortie ipam check`".to_owned(),
            ))),
            _ => assign::plan(&self.keyspace, state, request, &self.exclusions, tried),
        })
        .await
    }

    /// Releases addresses; with a `holder` only those whose handle it is. Each part of up to 40 is one transaction.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`], [`IpamError::Busy`]. Addresses that are not allocated are no error.
    pub async fn release(&self, addrs: &[IpAddr], holder: Option<&str>) -> Result<ReleaseResult, IpamError> {
        with_metrics("release", self.release_addresses(addrs, holder)).await
    }

    async fn release_addresses(
        &self,
        addrs: &[IpAddr],
        holder: Option<&str>,
    ) -> Result<ReleaseResult, IpamError> {
        let mut all = ReleaseResult::default();
        for part in addrs.chunks(release::ADDRESSES_PER_TXN) {
            let done = self
                .run(true, |state, tried| release::addresses(&self.keyspace, state, part, holder, tried))
                .await?
                .answer;
            all.released.extend(done.released);
            all.absent.extend(done.absent);
            all.kept.extend(done.kept);
        }
        Ok(all)
    }

    /// Releases all addresses of a handle; a handle that is not there has none.
    ///
    /// # Errors
    /// As [`Ipam::release`].
    pub async fn release_handle(&self, handle: &str) -> Result<Vec<IpAddr>, IpamError> {
        with_metrics("release", self.release_handles(handle)).await
    }

    async fn release_handles(&self, handle: &str) -> Result<Vec<IpAddr>, IpamError> {
        let mut all = Vec::new();
        loop {
            let step =
                self.run(true, |state, tried| release::handle(&self.keyspace, state, handle, tried)).await?;
            all.extend(step.released);
            if !step.more {
                return Ok(all);
            }
        }
    }

    /// The addresses of a handle.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn allocated_to(&self, handle: &str) -> Result<Vec<IpAddr>, IpamError> {
        self.run(false, |state, _| release::allocated_to(&self.keyspace, state, handle)).await
    }

    /// What is known of an address; `None` when it is not allocated.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn lookup(&self, addr: IpAddr) -> Result<Option<AllocatedAddress>, IpamError> {
        self.run(false, |state, _| release::lookup(&self.keyspace, state, addr)).await
    }

    /// Makes the blocks of a prefix the host's own: one block, or all blocks of an enabled pool in the prefix.
    ///
    /// # Errors
    /// Every [`IpamError`]. Blocks of others are no error, they are listed.
    pub async fn claim(&self, host: &str, cidr: Cidr) -> Result<ClaimResult, IpamError> {
        with_metrics("claim_block", self.own(host, cidr)).await
    }

    async fn own(&self, host: &str, cidr: Cidr) -> Result<ClaimResult, IpamError> {
        let mut all = ClaimResult::default();
        for block in self.run(false, |state, _| host::blocks_in(&self.keyspace, state, cidr)).await? {
            let done = self.run(true, |state, _| host::claim(&self.keyspace, state, host, block)).await?;
            all.claimed.extend(done.claimed);
            all.refused.extend(done.refused);
        }
        Ok(all)
    }

    /// The blocks that a host has an affinity to.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn blocks_of(&self, host: &str) -> Result<Vec<Cidr>, IpamError> {
        self.run(false, |state, _| host::affinities(&self.keyspace, state, host)).await
    }

    /// Takes the host's blocks in a prefix away from it: empty ones are deleted, others are left without an owner.
    ///
    /// # Errors
    /// As [`Ipam::release`].
    pub async fn unclaim(&self, host: &str, cidr: Cidr) -> Result<UnclaimResult, IpamError> {
        with_metrics("release_block", self.clear_owner(host, cidr)).await
    }

    async fn clear_owner(&self, host: &str, cidr: Cidr) -> Result<UnclaimResult, IpamError> {
        let own = self.run(false, |state, _| host::affinities(&self.keyspace, state, host)).await?;
        let mut all = UnclaimResult::default();
        for block in own.into_iter().filter(|block| cidr.covers(block)) {
            self.unclaim_blocks(host, block, &mut all).await?;
        }
        Ok(all)
    }

    async fn unclaim_blocks(
        &self,
        host: &str,
        block: Cidr,
        all: &mut UnclaimResult,
    ) -> Result<(), IpamError> {
        let done = self.run(true, |state, _| host::unclaim(&self.keyspace, state, host, block)).await?;
        all.deleted.extend(done.deleted);
        all.kept.extend(done.kept);
        Ok(())
    }

    /// Takes everything away that a host has in IPAM, in its own blocks and in others'. Addresses in its blocks that another
    /// host's endpoint has, or that name another host, stay; their blocks have no owner then.
    ///
    /// # Errors
    /// As [`Ipam::release`]; [`IpamError::Busy`] when the host goes on taking addresses meanwhile.
    pub async fn remove_host(&self, host: &str) -> Result<RemovedHost, IpamError> {
        const RELEASE_PASSES: u32 = 5;
        let mut removed = RemovedHost::default();
        for _ in 0..RELEASE_PASSES {
            let state = IpamState::load(self.store.as_ref(), &self.keyspace).await?;
            let holdings = host::holdings(&state, host);
            let affinities = state.affinities.keys().filter(|(owner, _)| owner == host);
            let owned = state.blocks.iter().filter(|(_, block)| block.value.host() == Some(host));
            let blocks: BTreeSet<Cidr> =
                affinities.map(|(_, cidr)| *cidr).chain(owned.map(|(cidr, _)| *cidr)).collect();
            if holdings.is_empty() && blocks.is_empty() {
                self.forget_keys(host).await?;
                return Ok(removed);
            }
            for part in holdings.chunks(release::ADDRESSES_PER_TXN) {
                let gone =
                    self.run(true, |state, _| host::drop_holdings(&self.keyspace, state, part)).await?;
                removed.released.extend(gone);
            }
            for block in blocks {
                self.unclaim_blocks(host, block, &mut removed.blocks).await?;
            }
        }
        Err(IpamError::Busy { attempts: RELEASE_PASSES })
    }

    /// Deletes what else stands below the host's keys, such as affinities that nobody can read.
    async fn forget_keys(&self, host: &str) -> Result<(), IpamError> {
        let rest = self.store.list(&[self.keyspace.affinities(host)]).await?;
        for entry in rest.entries {
            let txn = Txn {
                compare: vec![Compare::ModRevision(entry.key.clone(), entry.mod_revision)],
                ops: vec![Op::Delete { key: entry.key }],
            };
            self.store.commit(txn).await?;
        }
        Ok(())
    }

    /// The configuration in force.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn config(&self) -> Result<IpamConfig, IpamError> {
        self.run(false, |state, _| configure::read(&self.keyspace, state)).await
    }

    /// Writes the configuration.
    ///
    /// # Errors
    /// [`IpamError::Refused`] when strict or automatic allocation would change while there are blocks, or when nothing could
    /// be allocated any more (neither strict nor automatic).
    pub async fn set_config(&self, config: &IpamConfig) -> Result<(), IpamError> {
        self.run(true, |state, _| configure::write(&self.keyspace, state, config)).await
    }

    /// Mends findings, each by itself, and says what became of each, in their order. Writes nothing where things are no
    /// longer as they were found.
    ///
    /// # Errors
    /// [`IpamError::NotReady`] while the data model is frozen. What fails for one finding is in its answer.
    pub async fn release_from_check(
        &self,
        findings: &[check::Finding],
    ) -> Result<Vec<check::RepairOutcome>, IpamError> {
        self.run(false, |state, _| configure::ready(&self.keyspace, state)).await?;
        let mut all = Vec::with_capacity(findings.len());
        for finding in findings {
            all.push(match &finding.fix {
                None => check::RepairOutcome::NeedsPerson,
                Some(fix) => self
                    .run(true, |state, _| check::repair(&self.keyspace, state, fix))
                    .await
                    .unwrap_or_else(|error| check::RepairOutcome::Failed(error.to_string())),
            });
        }
        Ok(all)
    }
}

/// Counts and times a request.
async fn with_metrics<T>(
    op: &'static str,
    request: impl Future<Output = Result<T, IpamError>>,
) -> Result<T, IpamError> {
    let begin = std::time::Instant::now();
    let answer = request.await;
    metrics::metrics().requests.time((op, metrics::result(&answer)), begin.elapsed());
    answer
}
