//! `RequestPool` and `ReleasePool` of the IPAM driver: selects the pool of a request, and counts the networks
//! that use each pool.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};
use tortie_config::key::{DockerItem, IpFamily};
use tortie_config::resource::Pool;
use tortie_net::Cidr;

use super::driver::{Driver, now};
use super::error::Refusal;
use super::poolid::{DEFAULT, GLOBAL, LOCAL, PoolId, SpaceName, shorten};
use super::records::{AddressRecord, PoolRecord};
use super::state::RecordKind;
use super::wire;
use crate::plugins::attach;
use crate::plugins::pools::pools;
use tortie_engine::ipam::{Ipam, Keyspace};
use tortie_store::{Compare, Op, Store, Txn};

/// Key in the answer's data by which an IPAM driver provides the gateway, so that dockerd requests no gateway
/// address.
const GATEWAY: &str = "com.docker.network.gateway";
/// Option by which a request names its address space: `--ipam-opt space=NAME`.
const SPACE_OPTION: &str = "space";

/// Pools of the data model.
#[derive(Debug, Default)]
pub(super) struct Configured {
    enabled: BTreeSet<Cidr>,
    disabled: BTreeSet<Cidr>,
}

impl Configured {
    pub(super) async fn read(store: &dyn Store) -> Result<Self, Refusal> {
        let mut all = Self::default();
        for pool in pools(store).await? {
            let of = if pool.ipam && !pool.disabled { &mut all.enabled } else { &mut all.disabled };
            of.insert(pool.cidr);
        }
        Ok(all)
    }

    fn has(&self, family: IpFamily) -> bool {
        self.enabled.iter().any(|pool| IpFamily::of_cidr(pool) == family)
    }

    pub(super) fn contains(&self, pool: &Cidr) -> bool {
        self.enabled.contains(pool)
    }

    /// Returns the pools from which addresses can be allocated.
    pub(super) fn enabled(&self) -> impl Iterator<Item = Cidr> {
        self.enabled.iter().copied()
    }

    /// Describes the pools, for an error message.
    pub(super) fn text(&self, family: IpFamily) -> String {
        let list: Vec<String> =
            self.enabled.iter().filter(|p| IpFamily::of_cidr(p) == family).map(ToString::to_string).collect();
        if list.is_empty() {
            let kind = family.as_str();
            return format!(
                "it has no enabled pool of IP{kind}: create one with `tortie ipam pool create ADDRESS/LENGTH`"
            );
        }
        format!("its pools are {}", list.join(", "))
    }

    /// Checks that the prefix is an enabled pool of the data model.
    fn global(&self, pool: Cidr) -> Result<(), Refusal> {
        if self.enabled.contains(&pool) {
            return Ok(());
        }
        let family = IpFamily::of_cidr(&pool);
        if self.disabled.contains(&pool) {
            return Err(Refusal::new(format!(
                "no address is allocated from pool {pool} of the data model (`ipam` or `disabled` in its \
                 value); {}",
                self.text(family)
            )));
        }
        let inside =
            self.enabled.iter().find(|has| has.covers(&pool)).map_or_else(String::new, |has| {
                format!("; for a part of one: --subnet {has} --ip-range {pool}")
            });
        Err(Refusal::new(format!("{pool} is no pool of the data model; {}{inside}", self.text(family))))
    }
}

/// The pool of a request, before a local pool is selected.
enum PoolQuery {
    Known(PoolId),
    /// Any pool in this address space.
    Choose(String),
}

/// Determines the pool of a request. It does no I/O.
fn asked(request: &wire::RequestPool, configured: &Configured) -> Result<PoolQuery, Refusal> {
    if request.address_space.is_empty() {
        return Err(Refusal::new("RequestPool: AddressSpace is missing"));
    }
    let cidr = |what: &str, text: &str| {
        if !text.contains('/') {
            return Err(Refusal::new(format!("{what} `{}` is no ADDRESS/LENGTH", shorten(text))));
        }
        text.parse::<Cidr>()
            .map_err(|_| Refusal::new(format!("{what} `{}` is no ADDRESS/LENGTH", shorten(text))))
    };
    let pool = (!request.pool.is_empty()).then(|| cidr("Pool", &request.pool)).transpose()?;
    let sub = (!request.sub_pool.is_empty()).then(|| cidr("SubPool", &request.sub_pool)).transpose()?;
    match (pool, sub) {
        (None, Some(sub)) => {
            return Err(Refusal::new(format!(
                "a sub-pool ({sub}) needs its pool: give --subnet with --ip-range"
            )));
        }
        (Some(pool), Some(sub)) if !pool.covers(&sub) || pool.len() == 0 => {
            return Err(Refusal::new(format!("sub-pool {sub} is no part of pool {pool}")));
        }
        _ => {}
    }
    let mut space = request.address_space.as_str();
    for (option, value) in &request.options {
        match option.as_str() {
            SPACE_OPTION => space = value,
            // dockerd's own options are ignored.
            other if other.starts_with("com.docker.") => {}
            other => {
                return Err(Refusal::new(format!(
                    "--ipam-opt {} is unknown; there is {SPACE_OPTION}={GLOBAL}, {LOCAL} or another name",
                    shorten(other)
                )));
            }
        }
    }
    // Calico's names of its address spaces, which networks of its driver keep.
    space = match space {
        "CalicoLocalAddressSpace" => DEFAULT,
        "CalicoGlobalAddressSpace" => GLOBAL,
        other => other,
    };
    let family = pool.map_or(if request.v6 { IpFamily::V6 } else { IpFamily::V4 }, |p| IpFamily::of_cidr(&p));
    let whole = pool.is_none_or(|pool| pool.len() == 0);
    if space == DEFAULT {
        space = match pool {
            _ if whole => {
                if configured.has(family) || pool.is_some() {
                    GLOBAL
                } else {
                    LOCAL
                }
            }
            Some(pool) => {
                let all = || configured.enabled.iter().chain(&configured.disabled);
                // If part of a pool were a network of this host only, its route would attract traffic of the
                // pool.
                if all().any(|has| has.overlaps(&pool)) { GLOBAL } else { LOCAL }
            }
            None => LOCAL,
        };
    }
    match (SpaceName::parse(space)?, pool) {
        (SpaceName::Global, _) if whole => {
            if configured.has(family) {
                return Ok(PoolQuery::Known(PoolId::any(family)));
            }
            Err(Refusal::new(format!(
                "the data model cannot allocate addresses: {}",
                configured.text(family)
            )))
        }
        (SpaceName::Global, Some(pool)) => {
            configured.global(pool)?;
            Ok(PoolQuery::Known(PoolId { space: SpaceName::Global, pool, sub }))
        }
        (SpaceName::Local(name), None) => Ok(PoolQuery::Choose(name)),
        (SpaceName::Local(_), Some(pool)) if pool.len() == 0 => {
            Err(Refusal::new(format!("{pool} is no pool of one host: give a --subnet")))
        }
        (local, Some(pool)) => Ok(PoolQuery::Known(PoolId { space: local, pool, sub })),
        (SpaceName::Global, None) => Err(Refusal::new("no pool")),
    }
}

impl Driver {
    pub(super) fn ipam(&self, space: &SpaceName) -> Ipam {
        let store = self.state.store.clone();
        match self.local_space(space) {
            None => Ipam::new(store),
            Some(local) => Ipam::in_keyspace(store, local),
        }
    }

    /// Returns the address space of this host alone; `None` for the shared one.
    fn local_space(&self, space: &SpaceName) -> Option<Keyspace> {
        match space {
            SpaceName::Global => None,
            SpaceName::Local(name) => {
                Some(Keyspace::Local { host: self.state.host.clone(), name: name.clone() })
            }
        }
    }

    pub(super) async fn request_pool(
        &self,
        driver: &str,
        request: &wire::RequestPool,
    ) -> Result<Value, Refusal> {
        attach::ready(&*self.state.store).await.map_err(|error| Refusal::new(error.to_string()))?;
        // Pools are selected and counted one after the other.
        let _lock = self.pools.lock().await;
        let configured = Configured::read(&*self.state.store).await?;
        let id = match asked(request, &configured)? {
            PoolQuery::Known(id) => id,
            PoolQuery::Choose(name) => {
                let family = if request.v6 { IpFamily::V6 } else { IpFamily::V4 };
                let pool = self.choose(family, &configured).await?;
                PoolId { space: SpaceName::Local(name), pool, sub: None }
            }
        };
        if let SpaceName::Local(_) = &id.space {
            self.make_local(&id).await?;
        }
        let epoch = self.epoch(driver).await?;
        let item = DockerItem::Pool { driver: driver.to_owned(), id: id.to_string() };
        self.state
            .change(&item, |old: Option<PoolRecord>| {
                Ok(Some(old.unwrap_or_default().requested(epoch, now())))
            })
            .await?;
        let mut data = serde_json::Map::new();
        if id.is_any() {
            data.insert(GATEWAY.to_owned(), id.pool.to_string().into());
        }
        Ok(json!({ "PoolID": id.to_string(), "Pool": id.pool.to_string(), "Data": data }))
    }

    pub(super) async fn release_pool(&self, driver: &str, id: &str) -> Result<Value, Refusal> {
        let id: PoolId = id.parse()?;
        let _lock = self.pools.lock().await;
        let epoch = self.epoch(driver).await?;
        let item = DockerItem::Pool { driver: driver.to_owned(), id: id.to_string() };
        let left = self
            .state
            .change(&item, |old: Option<PoolRecord>| Ok(old.map(|old| old.released(epoch, now()))))
            .await?;
        if left.is_some_and(|left| left.refs == 0) {
            self.clear_pool(driver, &id).await?;
        }
        Ok(json!({}))
    }

    /// Deletes the record of a pool that no network uses, unless addresses of it are allocated: a failed
    /// replay releases pools of running containers.
    pub(super) async fn clear_pool(&self, driver: &str, id: &PoolId) -> Result<(), Refusal> {
        let text = id.to_string();
        let held = self.state.list::<AddressRecord>(RecordKind::Addresses).await?;
        if held.iter().any(|(_, record, _)| record.driver == driver && record.pool == text) {
            return Ok(());
        }
        let item = DockerItem::Pool { driver: driver.to_owned(), id: text };
        let gone = self
            .state
            .change(&item, |old: Option<PoolRecord>| Ok(old.filter(|old| old.refs > 0)))
            .await?
            .is_none();
        if gone && let SpaceName::Local(name) = &id.space {
            self.drop_local(name, id.pool).await?;
        }
        Ok(())
    }

    /// Returns the ids of pools of this host only, of all drivers.
    async fn local_pools(&self) -> Result<Vec<PoolId>, Refusal> {
        let mut all = Vec::new();
        for driver in self.options.ipam_drivers() {
            for (item, _, _) in self.state.list::<PoolRecord>(RecordKind::Pools(driver)).await? {
                if let DockerItem::Pool { id, .. } = item
                    && let Ok(id) = id.parse::<PoolId>()
                    && id.space != SpaceName::Global
                {
                    all.push(id);
                }
            }
        }
        Ok(all)
    }

    /// Selects a pool that no other network of this host uses. If the pool overlaps with a connected network
    /// of the host, dockerd requests further pools and holds each until one fits.
    async fn choose(&self, family: IpFamily, configured: &Configured) -> Result<Cidr, Refusal> {
        let used: Vec<Cidr> = self
            .local_pools()
            .await?
            .into_iter()
            .map(|id| id.pool)
            .chain(configured.enabled.iter().copied())
            .chain(configured.disabled.iter().copied())
            .collect();
        candidates(family, &self.state.host)
            .find(|pool| !used.iter().any(|used| used.overlaps(pool)))
            .ok_or_else(|| Refusal::new("all pools of this host are in use: give one with --subnet"))
    }

    /// Creates the pool of a local address space, if it does not exist.
    async fn make_local(&self, id: &PoolId) -> Result<(), Refusal> {
        for other in self.local_pools().await? {
            if other.space == id.space && other.pool != id.pool && other.pool.overlaps(&id.pool) {
                return Err(Refusal::new(format!(
                    "{} overlaps with {} in address space {}: choose another --subnet",
                    id.pool,
                    other.pool,
                    id.space.as_str()
                )));
            }
        }
        let Some(local) = self.local_space(&id.space) else { return Ok(()) };
        let key = local.pool(&id.pool);
        let mut pool = Pool::new(id.pool);
        if pool.block_len() < id.pool.len() {
            pool.block_size = Some(id.pool.len());
        }
        // Reports a value that could not be parsed again before it is written.
        let value = pool.to_value();
        Pool::parse(id.pool, &value)
            .map_err(|error| Refusal::new(format!("{} cannot be a pool: {error}", id.pool)))?;
        let put = Op::Put { key: key.clone(), value, lease: None };
        // A conflict means that the pool exists.
        self.state.store.commit(Txn { compare: vec![Compare::Absent(key)], ops: vec![put] }).await?;
        Ok(())
    }

    /// Deletes a local pool with its blocks if no network uses it any more.
    async fn drop_local(&self, name: &str, pool: Cidr) -> Result<(), Refusal> {
        let space = SpaceName::Local(name.to_owned());
        let Some(local) = self.local_space(&space) else { return Ok(()) };
        if self.local_pools().await?.iter().any(|id| id.space == space && id.pool == pool) {
            return Ok(());
        }
        let left = self.ipam(&space).unclaim(&self.state.host, pool).await?;
        if left.kept.is_empty() {
            let key = local.pool(&pool);
            self.state.store.commit(Txn { compare: Vec::new(), ops: vec![Op::Delete { key }] }).await?;
        } else {
            tracing::warn!(target: "tortie::docker", "pool {pool} stays: it has addresses in use");
        }
        Ok(())
    }
}

/// Returns the candidates for local pools: /24s of the private range that Docker itself uses last, and /64s
/// of a unique local prefix of the host (RFC 4193 wants a random one, but here it must be the same after a
/// restart).
fn candidates(family: IpFamily, host: &str) -> Box<dyn Iterator<Item = Cidr> + Send> {
    match family {
        IpFamily::V4 => Box::new(
            (16..32_u8)
                .rev()
                .flat_map(|b| (0..=255_u8).map(move |c| Cidr::v4(Ipv4Addr::new(172, b, c, 0), 24))),
        ),
        IpFamily::V6 => {
            let hash = u128::from(tortie_kernel::container::hash(host) & 0xff_ffff_ffff);
            let base = (0xfd_u128 << 120) | (hash << 80);
            Box::new(
                (0..0x1_0000_u128)
                    .filter_map(move |n| Cidr::new(IpAddr::V6((base | (n << 64)).into()), 64).ok()),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured() -> Configured {
        let set = |list: &[&str]| list.iter().map(|t| t.parse().unwrap()).collect();
        Configured { enabled: set(&["10.65.0.0/16", "fd00:65::/64"]), disabled: set(&["10.66.0.0/16"]) }
    }

    fn ask(space: &str, pool: &str, sub: &str, v6: bool) -> Result<String, String> {
        let request = wire::RequestPool {
            address_space: space.into(),
            pool: pool.into(),
            sub_pool: sub.into(),
            v6,
            ..Default::default()
        };
        match asked(&request, &configured()) {
            Ok(PoolQuery::Known(id)) => Ok(id.to_string()),
            Ok(PoolQuery::Choose(name)) => Ok(format!("any of {name}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_request_means_one_pool() {
        for (space, pool, sub, v6, id) in [
            ("default", "", "", false, "global/0.0.0.0/0"),
            ("default", "", "", true, "global/::/0"),
            ("default", "0.0.0.0/0", "", false, "global/0.0.0.0/0"),
            ("default", "10.65.0.0/16", "", false, "global/10.65.0.0/16"),
            ("default", "10.65.9.9/16", "", false, "global/10.65.0.0/16"),
            ("default", "10.65.0.0/16", "10.65.3.0/24", false, "global/10.65.0.0/16/10.65.3.0/24"),
            ("default", "172.30.0.0/24", "", false, "local/172.30.0.0/24"),
            ("default", "fd00:65::/64", "", true, "global/fd00:65::/64"),
            ("default", "fd00:66::/64", "", true, "local/fd00:66::/64"),
            ("global", "10.65.0.0/16", "", false, "global/10.65.0.0/16"),
            ("local", "10.65.0.0/16", "", false, "local/10.65.0.0/16"),
            ("local", "", "", false, "any of local"),
            ("tenant", "10.65.0.0/16", "", false, "tenant/10.65.0.0/16"),
            ("CalicoGlobalAddressSpace", "", "", false, "global/0.0.0.0/0"),
        ] {
            assert_eq!(ask(space, pool, sub, v6).as_deref(), Ok(id), "{space} {pool} {sub}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_next_step() {
        for (space, pool, sub, says) in [
            ("", "10.65.0.0/16", "", "AddressSpace is missing"),
            ("global", "192.0.2.0/24", "", "its pools are 10.65.0.0/16"),
            ("default", "10.65.3.0/24", "", "--subnet 10.65.0.0/16 --ip-range 10.65.3.0/24"),
            ("default", "10.0.0.0/8", "", "its pools are 10.65.0.0/16"),
            ("global", "10.66.0.0/16", "", "no address is allocated from pool"),
            ("default", "", "10.65.3.0/24", "--subnet"),
            ("default", "10.65.0.0/16", "10.66.0.0/24", "no part of pool"),
            ("default", "10.65.0.0", "", "no ADDRESS/LENGTH"),
            ("default", "ten", "", "`ten`"),
            ("local", "0.0.0.0/0", "", "--subnet"),
            ("driver", "172.30.0.0/24", "", "address space `driver`"),
        ] {
            let error = ask(space, pool, sub, false).unwrap_err();
            assert!(error.contains(says), "{space} {pool} {sub}: {error}");
        }
    }

    #[test]
    fn an_option_names_the_space_and_others_are_refused() {
        let with = |key: &str, value: &str| {
            let mut request = wire::RequestPool { address_space: "default".into(), ..Default::default() };
            request.options.insert(key.into(), value.into());
            asked(&request, &configured())
        };
        assert!(matches!(with("space", "local"), Ok(PoolQuery::Choose(name)) if name == "local"));
        assert!(matches!(with("com.docker.network.ipam.serial", "true"), Ok(PoolQuery::Known(_))));
        assert!(with("spcae", "local").err().unwrap().to_string().contains("spcae"));
    }

    #[test]
    fn without_pools_a_network_without_a_subnet_is_local() {
        let request = wire::RequestPool { address_space: "default".into(), ..Default::default() };
        assert!(matches!(asked(&request, &Configured::default()), Ok(PoolQuery::Choose(_))));
        let request = wire::RequestPool { address_space: "global".into(), ..Default::default() };
        assert!(
            asked(&request, &Configured::default()).err().unwrap().to_string().contains("ipam pool create")
        );
    }

    #[test]
    fn candidates_are_private_and_do_not_overlap() {
        let v4: Vec<Cidr> = candidates(IpFamily::V4, "h").collect();
        assert_eq!((v4.len(), v4.first().unwrap().to_string()), (4_096, "172.31.0.0/24".to_owned()));
        let first = |host| candidates(IpFamily::V6, host).next().unwrap();
        assert!("fd00::/8".parse::<Cidr>().unwrap().covers(&first("h")));
        assert_eq!(first("h"), first("h"));
        assert_ne!(first("h"), first("i"));
    }
}
