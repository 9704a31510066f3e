//! Controllers of the host's tunnel addresses: allocate each from a pool with that kind of tunnel, as Calico's
//! node helper does.
//!
//! | tunnel | IPAM handle | attribute `type` | v1: key `v1/host/<h>/config/` | Calico 3: member of the Node |
//! | --- | --- | --- | --- | --- |
//! | IPIP | `ipip-tunnel-addr-<node>` | `ipipTunnelAddress` | `IpInIpTunnelAddr` | `bgp.ipv4IPIPTunnelAddr` |
//! | VXLAN | `vxlan-tunnel-addr-<node>` | `vxlanTunnelAddress` | `IPv4VXLANTunnelAddr` | `ipv4VXLANTunnelAddr` |
//! | VXLAN over IPv6 | `vxlan-v6-tunnel-addr-<node>` | `vxlanV6TunnelAddress` | `IPv6VXLANTunnelAddr` | `ipv6VXLANTunnelAddr` |
//!
//! The attribute `node` names the host. [`Writer`] writes the address in the dialect of the store. The address
//! is allocated when an enabled pool of its kind appears, moved when its pool is deleted or another holder has
//! it, and released when no such pool remains. Addresses of a disabled pool stay allocated. An address outside
//! of these pools that IPAM never allocated is an operator's choice and is not changed.

use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Map, Value};
use tortie_config::key::IpFamily;
use tortie_net::Cidr;

use super::life_cycle::{Context, Controller, ControllerHandle, Report, Wake};
use super::tunnel_kinds::Tunnel;
use crate::agent::core::input::Input;
use crate::agent::core::observed_state::TunnelAddressReport;
use tortie_engine::ipam::{AddressRequest, AddressUse, AllocationRequest, Exclusions, Ipam, IpamError};
use tortie_engine::writer::{WriteError, Writer, birth};
use tortie_store::{KeyValue, Outcome, Store, StoreError};

/// First retry after a failure; the wait doubles with each further failure.
const RETRY: Duration = Duration::from_secs(2);
/// Longest wait between retries.
const RETRY_MAX: Duration = Duration::from_secs(120);
/// Attempts to write the address. In a Calico 3 store it is a member of the Node, which others write, too.
const ATTEMPTS: u32 = 10;
/// Interval of checks without a change: an operator may have released the address.
const RECHECK_INTERVAL: Duration = Duration::from_secs(600);

/// Input from the store for the decision on the tunnel address. `None` as desired state: nothing may be
/// written now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::agent) struct TunnelAddressIntent {
    /// Pools with the tunnel that IPAM may use, and true for those that are enabled.
    pub(in crate::agent) pools: Vec<(Cidr, bool)>,
    /// Address in the key; `None` if the key is absent or no address.
    pub(in crate::agent) stored: Option<IpAddr>,
    /// Addresses that must not be allocated on this host.
    pub(in crate::agent) excluded: Exclusions,
}

/// Holder of the stored address in IPAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressHolder {
    /// The address is free.
    Nobody,
    /// The tunnel of this host.
    Ours,
    /// An allocation without attributes of its owner, as older versions of Calico wrote it.
    Unmarked,
    /// Another holder.
    Other,
}

/// Next action of the controller.
#[derive(Debug, PartialEq, Eq)]
enum TunnelAddressAction {
    /// The address is correct, or nothing can be done. Other addresses of the handle are released.
    Keep,
    /// Allocate exactly this address: the key names it and it is free.
    Claim(IpAddr),
    /// Write this address, which the handle already holds, into the key.
    Write(IpAddr),
    /// Allocate a new address from these pools, write it into the key, release the old one.
    Allocate(Vec<Cidr>),
    /// Release all addresses, and delete the key if it names one of them.
    Release,
}

/// Returns true if an address is of the tunnel's family.
fn is_of<T: Tunnel>(addr: IpAddr) -> bool {
    IpFamily::of(addr) == T::KIND.family()
}

fn next_action(wanted: &TunnelAddressIntent, held: &[IpAddr], holder: AddressHolder) -> TunnelAddressAction {
    let covered = |addr: IpAddr| wanted.pools.iter().any(|(pool, _)| pool.contains(addr));
    let enabled: Vec<Cidr> = wanted.pools.iter().filter(|(_, on)| *on).map(|(pool, _)| *pool).collect();
    let given = holder == AddressHolder::Ours || holder == AddressHolder::Unmarked;
    let anew = || match held.iter().copied().find(|addr| covered(*addr)) {
        Some(addr) => TunnelAddressAction::Write(addr),
        None if enabled.is_empty() => TunnelAddressAction::Keep,
        None => TunnelAddressAction::Allocate(enabled.clone()),
    };
    match wanted.stored {
        _ if wanted.pools.is_empty() && held.is_empty() && !given => TunnelAddressAction::Keep,
        _ if wanted.pools.is_empty() => TunnelAddressAction::Release,
        None => anew(),
        Some(addr) if covered(addr) => match holder {
            AddressHolder::Ours | AddressHolder::Unmarked => TunnelAddressAction::Keep,
            AddressHolder::Nobody => TunnelAddressAction::Claim(addr),
            AddressHolder::Other => anew(),
        },
        Some(_) if given && enabled.is_empty() => TunnelAddressAction::Release,
        Some(_) if given => anew(),
        Some(_) => TunnelAddressAction::Keep,
    }
}

/// Allocates, moves and releases the tunnel address.
pub(in crate::agent) struct TunnelAddressController<T> {
    tunnel: PhantomData<T>,
    ipam: Ipam,
    store: Arc<dyn Store>,
    node: String,
    handle: String,
    report: Report,
}

impl<T: Tunnel> Controller for TunnelAddressController<T> {
    type Desired = Option<TunnelAddressIntent>;
    const WRITES: bool = true;

    /// An inner `None`: the store's content is not reliable enough to act on.
    fn desired(context: &Context<'_>) -> Option<Self::Desired> {
        let core = context.core;
        if !core.running() || core.frozen().is_some() || core.runs_from_cache() {
            return Some(None);
        }
        let pools = core.model().pools().map(|pool| pool.value);
        let pools = pools.filter(|pool| is_of::<T>(pool.cidr.addr()) && T::is_of(pool) && pool.ipam);
        let pools = pools.filter(|pool| core.model().serves_tunnels(pool));
        Some(Some(TunnelAddressIntent {
            pools: pools.map(|pool| (pool.cidr, !pool.disabled)).collect(),
            stored: T::stored(core.model()),
            excluded: core.exclusions(Instant::now()),
        }))
    }

    /// A change of the exclusions alone does not wake the task; the next allocation uses the newest.
    fn is_significant(old: &Self::Desired, new: &Self::Desired) -> bool {
        let [old, new] =
            [old, new].map(|intent| intent.as_ref().map(|intent| (&intent.pools, intent.stored)));
        old != new
    }

    async fn run(self, mut handle: ControllerHandle<Self::Desired>) {
        let (mut retry, mut reported) = (RETRY, None);
        loop {
            let mut next = RECHECK_INTERVAL;
            if let Some(intent) = handle.desired() {
                let problem = match self.reconcile(&intent).await {
                    Ok(done) => {
                        retry = RETRY;
                        if let Some(text) = done {
                            (self.report)(Input::TunnelAddress(TunnelAddressReport::Done(text)));
                            // Checks again soon: the address may be removed before the agent sees it in the
                            // store.
                            next = RETRY;
                        }
                        None
                    }
                    Err(error) => {
                        next = retry;
                        retry = (retry * 2).min(RETRY_MAX);
                        Some(error.to_string())
                    }
                };
                if problem != reported {
                    reported.clone_from(&problem);
                    (self.report)(Input::TunnelAddress(TunnelAddressReport::Problem(
                        T::NAME.to_owned(),
                        problem,
                    )));
                }
            }
            if handle.wait(tokio::time::sleep(next)).await == Wake::Stopped {
                return;
            }
        }
    }
}

impl<T: Tunnel> TunnelAddressController<T> {
    pub(super) fn new(store: Arc<dyn Store>, node: &str, report: Report) -> Self {
        Self {
            tunnel: PhantomData,
            ipam: Ipam::new(Arc::clone(&store)),
            store,
            node: node.to_owned(),
            handle: format!("{}-{node}", T::HANDLE),
            report,
        }
    }

    /// Reconciles key and IPAM with the intent. After an interruption at any point the handle still holds the
    /// address, and the next call continues from there.
    async fn reconcile(&self, wanted: &TunnelAddressIntent) -> Result<Option<String>, TunnelAddressError> {
        let held = self.held().await?;
        if wanted.pools.is_empty() && wanted.stored.is_none() && held.is_empty() {
            return Ok(None);
        }
        let holder = match wanted.stored {
            Some(addr) => self.holder(addr).await?,
            None => AddressHolder::Nobody,
        };
        let old = wanted.stored.filter(|_| holder == AddressHolder::Unmarked);
        match next_action(wanted, &held, holder) {
            TunnelAddressAction::Keep => {
                // Releases addresses that an interruption left in the handle, or that an operator's value
                // replaced.
                self.release(&held, wanted.stored).await?;
                Ok(None)
            }
            TunnelAddressAction::Claim(addr) => {
                match self.assign(wanted, AddressRequest::Exact(addr)).await {
                    Ok(_) => Ok(Some(format!(
                        "{addr} is allocated to the tunnel now: only its setting was in the store"
                    ))),
                    // A disabled pool allocates nothing; an existing address stays in use.
                    Err(IpamError::Disabled(_)) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
            TunnelAddressAction::Write(addr) => self.write(wanted, addr, &held, old).await,
            TunnelAddressAction::Allocate(pools) => {
                let want = AddressRequest::Any { family: T::KIND.family(), count: 1, pools };
                let addr = self.assign(wanted, want).await?;
                let written = self.write(wanted, addr, &held, old).await;
                if let Err(TunnelAddressError::Changed | TunnelAddressError::Value(_)) = written {
                    // It is certain that nothing names the address.
                    self.ipam.release(&[addr], Some(&self.handle)).await?;
                }
                written
            }
            TunnelAddressAction::Release => {
                let given = holder == AddressHolder::Ours || holder == AddressHolder::Unmarked;
                if let Some(addr) = wanted.stored.filter(|_| given) {
                    self.put(wanted, None).await?;
                    if let Some(old) = old {
                        self.ipam.release(&[old], None).await?;
                    }
                    self.ipam.release_handle(&self.handle).await?;
                    return Ok(Some(format!("no {} pool remains: {addr} is released", T::NAME)));
                }
                self.ipam.release_handle(&self.handle).await?;
                Ok(None)
            }
        }
    }

    async fn held(&self) -> Result<Vec<IpAddr>, IpamError> {
        let held = self.ipam.allocated_to(&self.handle).await?;
        Ok(held.into_iter().filter(|addr| is_of::<T>(*addr)).collect())
    }

    async fn holder(&self, addr: IpAddr) -> Result<AddressHolder, IpamError> {
        Ok(match self.ipam.lookup(addr).await? {
            None => AddressHolder::Nobody,
            Some(held) if held.handle.as_deref() == Some(&*self.handle) => AddressHolder::Ours,
            Some(held) if held.handle.is_none() && held.attributes.is_empty() => AddressHolder::Unmarked,
            Some(_) => AddressHolder::Other,
        })
    }

    async fn assign(&self, wanted: &TunnelAddressIntent, want: AddressRequest) -> Result<IpAddr, IpamError> {
        let attributes: Map<String, Value> = [("node", &*self.node), ("type", T::TYPE)]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let request = AllocationRequest {
            host: self.node.clone(),
            addresses: vec![want],
            handle: Some(self.handle.clone()),
            attributes,
            address_use: AddressUse::Tunnel,
            ..AllocationRequest::default()
        };
        let ipam = self.ipam.clone().excluding(wanted.excluded.clone());
        let given = ipam.assign(&request).await?;
        let nothing = || IpamError::BadRequest("an address was requested and none was allocated".to_owned());
        given.first().map(|given| given.addr).ok_or_else(nothing)
    }

    /// Writes an address that the handle holds into the key, then releases the handle's other addresses.
    async fn write(
        &self,
        wanted: &TunnelAddressIntent,
        addr: IpAddr,
        held: &[IpAddr],
        old: Option<IpAddr>,
    ) -> Result<Option<String>, TunnelAddressError> {
        let written = self.put(wanted, Some(addr)).await?;
        self.release(held, Some(addr)).await?;
        if let Some(old) = old {
            self.ipam.release(&[old], None).await?;
        }
        Ok(written.then(|| match wanted.stored {
            Some(before) => format!("moved from {before} to {addr}"),
            None => format!("{addr} is the address of this host"),
        }))
    }

    async fn release(&self, held: &[IpAddr], but: Option<IpAddr>) -> Result<(), IpamError> {
        let others: Vec<IpAddr> = held.iter().copied().filter(|addr| Some(*addr) != but).collect();
        if !others.is_empty() {
            self.ipam.release(&others, Some(&self.handle)).await?;
        }
        Ok(())
    }

    /// Writes or removes the stored address, unless it changed since `wanted` was computed: then the next call
    /// does it. Returns false if it is stored already.
    async fn put(
        &self,
        wanted: &TunnelAddressIntent,
        addr: Option<IpAddr>,
    ) -> Result<bool, TunnelAddressError> {
        for _ in 0..ATTEMPTS {
            let writer = Writer::of(self.store.dialect().await?);
            let found = self.store.get(&writer.tunnel_address_key(&self.node, T::KIND)).await?;
            let read = |kv: &KeyValue| writer.stored_tunnel_address(T::KIND, kv);
            let stored = found.as_ref().and_then(read);
            if addr.is_some() && stored == addr {
                return Ok(false);
            }
            if stored != wanted.stored {
                return Err(TunnelAddressError::Changed);
            }
            let birth = birth(rand::random(), Timestamp::now());
            let txn = writer.tunnel_address(&self.node, T::KIND, addr, found.as_ref(), &birth)?;
            let Some(txn) = txn else { return Ok(true) };
            if let Outcome::Committed(_) = self.store.commit(txn).await? {
                return Ok(true);
            }
        }
        Err(TunnelAddressError::Changed)
    }
}

/// Reason why the tunnel address is not as it should be.
#[derive(Debug, thiserror::Error)]
enum TunnelAddressError {
    /// IPAM has none.
    #[error(transparent)]
    Ipam(#[from] IpamError),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored value must not be replaced.
    #[error(transparent)]
    Value(#[from] WriteError),
    /// Another program writes the same place.
    #[error("another process changes the stored address of this tunnel: the agent tries again")]
    Changed,
}

#[cfg(test)]
mod tests {
    use super::super::tunnel_kinds::Ipip;
    use super::*;
    use tortie_store::{Op, Txn};

    fn wanted(pools: &[(&str, bool)], stored: Option<&str>) -> TunnelAddressIntent {
        TunnelAddressIntent {
            pools: pools.iter().map(|(pool, on)| (pool.parse().unwrap(), *on)).collect(),
            stored: stored.map(|addr| addr.parse().unwrap()),
            excluded: Exclusions::default(),
        }
    }

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn it_is_taken_kept_moved_and_given_back() {
        let pool = ("10.0.0.0/16", true);
        let off = ("10.0.0.0/16", false);
        let take = || TunnelAddressAction::Allocate(vec!["10.0.0.0/16".parse().unwrap()]);
        // No IPIP pool, and there never was one.
        assert_eq!(next_action(&wanted(&[], None), &[], AddressHolder::Nobody), TunnelAddressAction::Keep);
        // The first pool; a disabled one allocates nothing.
        assert_eq!(next_action(&wanted(&[pool], None), &[], AddressHolder::Nobody), take());
        assert_eq!(next_action(&wanted(&[off], None), &[], AddressHolder::Nobody), TunnelAddressAction::Keep);
        // Interrupted between IPAM and key.
        assert_eq!(
            next_action(&wanted(&[pool], None), &[addr("10.0.0.5")], AddressHolder::Nobody),
            TunnelAddressAction::Write(addr("10.0.0.5"))
        );
        // In use: held by this tunnel, by an older writer, or in a pool that was disabled since.
        for (pools, holder) in
            [(pool, AddressHolder::Ours), (pool, AddressHolder::Unmarked), (off, AddressHolder::Ours)]
        {
            assert_eq!(
                next_action(&wanted(&[pools], Some("10.0.0.5")), &[addr("10.0.0.5")], holder),
                TunnelAddressAction::Keep
            );
        }
        // Only in the key; and held by another holder.
        assert_eq!(
            next_action(&wanted(&[pool], Some("10.0.0.5")), &[], AddressHolder::Nobody),
            TunnelAddressAction::Claim(addr("10.0.0.5"))
        );
        assert_eq!(next_action(&wanted(&[pool], Some("10.0.0.5")), &[], AddressHolder::Other), take());
        // The pool was deleted: another one exists, a disabled one, or none.
        let moved = |pools: &[(&str, bool)], holder| {
            next_action(&wanted(pools, Some("10.9.0.5")), &[addr("10.9.0.5")], holder)
        };
        assert_eq!(moved(&[pool], AddressHolder::Ours), take());
        assert_eq!(moved(&[pool], AddressHolder::Unmarked), take());
        assert_eq!(moved(&[off], AddressHolder::Ours), TunnelAddressAction::Release);
        assert_eq!(moved(&[], AddressHolder::Ours), TunnelAddressAction::Release);
        // The operator's own choice.
        assert_eq!(
            next_action(&wanted(&[pool], Some("192.0.2.5")), &[], AddressHolder::Nobody),
            TunnelAddressAction::Keep
        );
        assert_eq!(
            next_action(&wanted(&[], Some("192.0.2.5")), &[], AddressHolder::Nobody),
            TunnelAddressAction::Keep
        );
        // The key was deleted by hand together with the last pool.
        assert_eq!(
            next_action(&wanted(&[], None), &[addr("10.0.0.5")], AddressHolder::Nobody),
            TunnelAddressAction::Release
        );
    }

    /// The core may receive both changes in one delta, and then has no new desired state for the controller.
    #[tokio::test]
    async fn a_key_that_goes_before_the_agent_read_it_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(
            tortie_store::sqlite::SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap(),
        );
        let pool = r#"{"cidr":"10.0.0.0/24","ipip":"tunl0"}"#.into();
        let pool =
            Op::Put { key: "/calico/v1/ipam/v4/pool/10.0.0.0-24".to_owned(), value: pool, lease: None };
        store.commit(Txn { ops: vec![pool], ..Txn::default() }).await.unwrap();
        let io = tokio::runtime::Handle::current();
        let controller = TunnelAddressController::<Ipip>::new(Arc::clone(&store), "h1", Arc::new(|_| ()));
        let mut controller =
            crate::agent::controllers::life_cycle::RunningController::start(&io, true, controller);
        let wanted = wanted(&[("10.0.0.0/24", true)], None);
        let key = "/calico/v1/host/h1/config/IpInIpTunnelAddr";
        let comes = || async {
            for _ in 0..500 {
                if let Some(found) = store.get(key).await.unwrap() {
                    return found.value;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("no address in the store");
        };
        controller.set_desired(Some(wanted.clone()));
        let first = comes().await;
        let gone = Op::Delete { key: key.to_owned() };
        store.commit(Txn { ops: vec![gone], ..Txn::default() }).await.unwrap();
        controller.set_desired(Some(wanted));
        assert_eq!(comes().await, first);
        controller.stop().await;
    }
}
