//! Allocates addresses for workloads from blocks that hosts own.
//!
//! IPAM allocates and releases addresses, records their holders (in the block, and by handle), and keeps
//! blocks, handles and affinities consistent with any number of concurrent writers on the same store. It
//! keeps no state between calls, does not read the kernel, and does not distinguish its callers (CNI, Docker,
//! Kurma, the command line).
//!
//! ```text
//!  Request --> plan (pure) --Need keys--> store.get/list --> State --> plan again
//!                   |                                          ^
//!                   +--Txn and its answer--> store.commit --conflict: the compared keys are read again
//! ```
//!
//! Each transaction contains all keys that must change together (blocks, affinities, handle), so Tortie
//! leaves no operation half done. Operations that Calico's writers left half done (an affinity that is
//! `pending` or `pendingDeletion`, has no block, or has a block of another owner) are completed or removed
//! along the way.

mod assign;
mod block_order;
#[allow(clippy::disallowed_methods, reason = "attempts end at a deadline of real time")]
mod cas_loop;
pub mod check;
mod cluster;
mod configure;
mod cooldown;
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
    AddressRange, AddressRequest, AddressUse, AllocatedAddress, Allocation, AllocationRequest, ClaimResult,
    ReleaseRequest, ReleaseResult, RemovedHost, UnclaimResult,
};

/// IPAM operations on a store. Cheap to clone.
#[derive(Clone)]
pub struct Ipam {
    store: Arc<dyn Store>,
    /// Address space; `None` for the shared one of the store's data model.
    keyspace: Option<Arc<Keyspace>>,
    exclusions: Arc<Exclusions>,
}

impl Ipam {
    /// Creates IPAM on the shared pools of the store, whose data model each operation asks for.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, keyspace: None, exclusions: Arc::default() }
    }

    /// Creates IPAM on the pools of an address space.
    #[must_use]
    pub fn in_keyspace(store: Arc<dyn Store>, keyspace: Keyspace) -> Self {
        Self { store, keyspace: Some(Arc::new(keyspace)), exclusions: Arc::default() }
    }

    /// Adds exclusions that the agent of this host already knows, so that requests do not read them from the
    /// store.
    #[must_use]
    pub fn excluding(self, exclusions: Exclusions) -> Self {
        Self { exclusions: Arc::new(exclusions), ..self }
    }

    /// Returns the address space.
    async fn space(&self) -> Result<Arc<Keyspace>, StoreError> {
        match &self.keyspace {
            Some(keyspace) => Ok(Arc::clone(keyspace)),
            None => Ok(Arc::new(Keyspace::of(self.store.dialect().await?))),
        }
    }

    /// Returns the store that operations use.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

impl Ipam {
    /// Allocates addresses. The answer has the order of the request.
    ///
    /// If the store becomes unreachable between a transaction and its reply, a request with a handle is
    /// verified by reading the blocks. A request without a handle fails although addresses may have been
    /// allocated; `tortie ipam check` finds them.
    ///
    /// # Errors
    /// Every [`IpamError`].
    pub async fn assign(&self, request: &AllocationRequest) -> Result<Vec<Allocation>, IpamError> {
        with_metrics("assign", self.give(request)).await
    }

    /// Checks that [`Ipam::assign`] would succeed now. Nothing is written: the plan is made, and the store
    /// checks that it would accept the transaction.
    ///
    /// # Errors
    /// Every [`IpamError`].
    pub async fn rehearse(&self, request: &AllocationRequest) -> Result<(), IpamError> {
        self.rehearse_plan(|space, state| assign::plan(space, state, request, &self.exclusions, &[])).await
    }

    async fn give(&self, request: &AllocationRequest) -> Result<Vec<Allocation>, IpamError> {
        self.run(true, |space, state, tried| match &request.handle {
            // Without a handle an allocation cannot be attributed to this request.
            None if !tried.is_empty() => reads::PlanStep::Err(IpamError::Store(StoreError::Unreachable(
                "it is not known whether addresses were allocated; see `tortie ipam check`".to_owned(),
            ))),
            _ => assign::plan(space, state, request, &self.exclusions, tried),
        })
        .await
    }

    /// Releases addresses, with `holder` only those whose handle it is. Each transaction releases up to 40
    /// addresses.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`], [`IpamError::Busy`]. Addresses that are not allocated
    /// are no error.
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
                .run(true, |space, state, tried| release::addresses(space, state, part, holder, tried))
                .await?
                .answer;
            all.released.extend(done.released);
            all.absent.extend(done.absent);
            all.kept.extend(done.kept);
        }
        Ok(all)
    }

    /// Releases addresses, each of them only if its allocation is the one that the request names. If one is
    /// another, nothing is released. Addresses that are not allocated are no error, unless a sequence number
    /// was given.
    ///
    /// # Errors
    /// [`IpamError::StaleRelease`]; [`IpamError::BadRequest`] for more addresses than one transaction can
    /// release; as [`Ipam::release`].
    pub async fn release_same(&self, requests: &[ReleaseRequest]) -> Result<ReleaseResult, IpamError> {
        with_metrics("release", self.release_named(requests)).await
    }

    async fn release_named(&self, requests: &[ReleaseRequest]) -> Result<ReleaseResult, IpamError> {
        let plan = self.run(true, |space, state, tried| release::same(space, state, requests, tried));
        Ok(plan.await?.answer)
    }

    /// Releases all addresses of a handle. A handle that does not exist has none.
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
                self.run(true, |space, state, tried| release::handle(space, state, handle, tried)).await?;
            all.extend(step.released);
            if !step.more {
                return Ok(all);
            }
        }
    }

    /// Returns the addresses allocated under a handle.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn allocated_to(&self, handle: &str) -> Result<Vec<IpAddr>, IpamError> {
        self.run(false, |space, state, _| release::allocated_to(space, state, handle)).await
    }

    /// Returns the allocation of an address; `None` if it is not allocated.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn lookup(&self, addr: IpAddr) -> Result<Option<AllocatedAddress>, IpamError> {
        self.run(false, |space, state, _| release::lookup(space, state, addr)).await
    }

    /// Claims the blocks of a prefix for the host: a single block, or all blocks of an enabled pool within
    /// the prefix.
    ///
    /// # Errors
    /// Every [`IpamError`]. Blocks of other hosts are no error; the result lists them.
    pub async fn claim(&self, host: &str, cidr: Cidr) -> Result<ClaimResult, IpamError> {
        with_metrics("claim_block", self.own(host, cidr)).await
    }

    async fn own(&self, host: &str, cidr: Cidr) -> Result<ClaimResult, IpamError> {
        let mut all = ClaimResult::default();
        for block in self.run(false, |space, state, _| host::blocks_in(space, state, cidr)).await? {
            let done = self.run(true, |space, state, _| host::claim(space, state, host, block)).await?;
            all.claimed.extend(done.claimed);
            all.refused.extend(done.refused);
        }
        Ok(all)
    }

    /// Returns the blocks for which a host has an affinity.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn blocks_of(&self, host: &str) -> Result<Vec<Cidr>, IpamError> {
        self.run(false, |space, state, _| host::affinities(space, state, host)).await
    }

    /// Gives up the host's blocks in a prefix: empty blocks are deleted, others stay without an owner.
    ///
    /// # Errors
    /// As [`Ipam::release`].
    pub async fn unclaim(&self, host: &str, cidr: Cidr) -> Result<UnclaimResult, IpamError> {
        with_metrics("release_block", self.clear_owner(host, cidr)).await
    }

    async fn clear_owner(&self, host: &str, cidr: Cidr) -> Result<UnclaimResult, IpamError> {
        let own = self.run(false, |space, state, _| host::affinities(space, state, host)).await?;
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
        let done = self.run(true, |space, state, _| host::unclaim(space, state, host, block)).await?;
        all.deleted.extend(done.deleted);
        all.kept.extend(done.kept);
        Ok(())
    }

    /// Removes all IPAM data of a host, in its own blocks and in those of other hosts. Addresses in its
    /// blocks that belong to another host's endpoint, or whose attributes name another host, stay; their
    /// blocks no longer have an owner.
    ///
    /// # Errors
    /// As [`Ipam::release`]; [`IpamError::Busy`] if the host keeps allocating addresses meanwhile.
    pub async fn remove_host(&self, host: &str) -> Result<RemovedHost, IpamError> {
        const RELEASE_PASSES: u32 = 5;
        let mut removed = RemovedHost::default();
        for _ in 0..RELEASE_PASSES {
            let space = self.space().await?;
            let state = IpamState::load(self.store.as_ref(), &space).await?;
            let holdings = host::holdings(&state, host);
            let affinities = state.affinities.keys().filter(|(owner, _)| owner == host);
            let owned = state.blocks.iter().filter(|(_, block)| block.value.host() == Some(host));
            let blocks: BTreeSet<Cidr> =
                affinities.map(|(_, cidr)| *cidr).chain(owned.map(|(cidr, _)| *cidr)).collect();
            if holdings.is_empty() && blocks.is_empty() {
                self.forget_keys(host).await?;
                return Ok(removed);
            }
            removed.released.extend(self.drop_holdings(&holdings).await?);
            for block in blocks {
                self.unclaim_blocks(host, block, &mut removed.blocks).await?;
            }
        }
        Err(IpamError::Busy { attempts: RELEASE_PASSES })
    }

    /// Releases the addresses of a host's endpoints, which are deleted next. Addresses that endpoints of other
    /// hosts have, too, stay.
    ///
    /// # Errors
    /// As [`Ipam::release`].
    pub async fn release_endpoints(&self, host: &str) -> Result<Vec<IpAddr>, IpamError> {
        let space = self.space().await?;
        let state = IpamState::load(self.store.as_ref(), &space).await?;
        self.drop_holdings(&host::endpoint_holdings(&state, host)).await
    }

    async fn drop_holdings(&self, holdings: &[host::AttributeHolding]) -> Result<Vec<IpAddr>, IpamError> {
        let mut released = Vec::new();
        for part in holdings.chunks(release::ADDRESSES_PER_TXN) {
            let gone = self.run(true, |space, state, _| host::drop_holdings(space, state, part)).await?;
            released.extend(gone);
        }
        Ok(released)
    }

    /// Deletes the remaining affinity keys of the host, such as those that cannot be parsed.
    async fn forget_keys(&self, host: &str) -> Result<(), IpamError> {
        let rest = self.store.list(&[self.space().await?.affinities(host)]).await?;
        for entry in rest.entries {
            let txn = Txn {
                compare: vec![Compare::ModRevision(entry.key.clone(), entry.mod_revision)],
                ops: vec![Op::Delete { key: entry.key }],
            };
            self.store.commit(txn).await?;
        }
        Ok(())
    }

    /// Returns the IPAM configuration.
    ///
    /// # Errors
    /// [`IpamError::Store`], [`IpamError::Unreadable`].
    pub async fn config(&self) -> Result<IpamConfig, IpamError> {
        self.run(false, |space, state, _| configure::read(space, state)).await
    }

    /// Writes the IPAM configuration.
    ///
    /// # Errors
    /// [`IpamError::Refused`] if strict or automatic allocation would change while blocks exist, or if no
    /// address could be allocated any more (neither strict nor automatic).
    pub async fn set_config(&self, config: &IpamConfig) -> Result<(), IpamError> {
        self.run(true, |space, state, _| configure::write(space, state, config)).await
    }

    /// Applies the repairs of findings, each in its own transaction, and returns the result of each in the
    /// same order. Writes nothing for a finding whose data has changed since.
    ///
    /// # Errors
    /// [`IpamError::NotReady`] while the data model is frozen. The failure of a single repair is part of its
    /// result.
    pub async fn release_from_check(
        &self,
        findings: &[check::Finding],
    ) -> Result<Vec<check::RepairOutcome>, IpamError> {
        self.run(false, |space, state, _| configure::ready(space, state)).await?;
        let mut all = Vec::with_capacity(findings.len());
        for finding in findings {
            all.push(match &finding.fix {
                None => check::RepairOutcome::NeedsPerson,
                Some(fix) => self
                    .run(true, |space, state, _| check::repair(space, state, fix))
                    .await
                    .unwrap_or_else(|error| check::RepairOutcome::Failed(error.to_string())),
            });
        }
        Ok(all)
    }
}

/// Counts and times a request.
#[allow(clippy::disallowed_methods, reason = "the time is for a metric and decides nothing")]
async fn with_metrics<T>(
    op: &'static str,
    request: impl Future<Output = Result<T, IpamError>>,
) -> Result<T, IpamError> {
    let begin = std::time::Instant::now();
    let answer = request.await;
    metrics::metrics().requests.time((op, metrics::result(&answer)), begin.elapsed());
    answer
}
