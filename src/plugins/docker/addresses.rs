//! `RequestAddress` and `ReleaseAddress` of the IPAM driver.
//!
//! Each allocated address has a record in addition to IPAM's. Only the record can distinguish a replay from a
//! second container that requests the same address, because dockerd sends identical requests for both.

use std::net::IpAddr;

use serde_json::{Value, json};
use tortie_config::key::{DockerItem, IpFamily};

use super::driver::{Driver, now};
use super::error::Refusal;
use super::poolid::{PoolId, SpaceName, shorten};
use super::records::{AddressRecord, EndpointRecord, NetworkRecord, PoolRecord};
use super::state::RecordKind;
use super::wire;
use crate::plugins::attach::{allocate, writer};
use tortie_engine::ipam::{AddressRange, AddressRequest, AllocationRequest, Exclusions, Ipam, IpamError};

/// Prefix of handles, followed by the address.
pub(super) const HANDLE: &str = "libnetwork.";
const TYPE_OPTION: &str = "RequestAddressType";
const GATEWAY_TYPE: &str = "com.docker.network.gateway";

/// Seconds during which dockerd repeats a failed call, with a margin.
const PERSISTENCE: i64 = 20;

fn handle(addr: IpAddr) -> String {
    format!("{HANDLE}{addr}")
}

impl Driver {
    pub(super) async fn request_address(
        &self,
        driver: &str,
        request: &wire::RequestAddress,
        excluded: Exclusions,
    ) -> Result<Value, Refusal> {
        let id: PoolId = request.pool_id.parse()?;
        let gateway = request.options.get(TYPE_OPTION).is_some_and(|kind| kind == GATEWAY_TYPE);
        let asked = match request.address.as_str() {
            "" => None,
            text => Some(text.parse::<IpAddr>().map_err(|_| {
                Refusal::new(format!("RequestAddress: Address `{}` is no IP address", shorten(text)))
            })?),
        };
        let item = DockerItem::Pool { driver: driver.to_owned(), id: id.to_string() };
        if self.state.get::<PoolRecord>(&item).await?.is_none() {
            return Err(Refusal::new(format!(
                "pool {id} is unknown here: it was never requested, or released"
            )));
        }
        if let Some(addr) = asked {
            if addr.is_unspecified() && id.is_any() && gateway {
                // In a replay, dockerd sends back the value that RequestPool returned as the gateway.
                return Ok(json!({ "Address": id.pool.to_string(), "Data": {} }));
            }
            if IpFamily::of(addr) != id.family() || !id.pool.contains(addr) {
                return Err(Refusal::new(format!("{addr} is no address of pool {}", id.pool)));
            }
        }
        let ipam = self.ipam(&id.space).excluding(excluded);
        let addr = match asked {
            Some(addr) => self.allocate_exact(&ipam, driver, &id, addr, gateway).await?,
            None => self.allocate_any(&ipam, driver, &id, gateway).await?,
        };
        let alone = !gateway && self.is_unreplayed(&id).await?;
        let len = match addr {
            _ if !alone => id.pool.len(),
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        Ok(json!({ "Address": format!("{addr}/{len}"), "Data": {} }))
    }

    pub(super) async fn release_address(
        &self,
        driver: &str,
        request: &wire::ReleaseAddress,
    ) -> Result<Value, Refusal> {
        let id: PoolId = request.pool_id.parse()?;
        let addr: IpAddr = request.address.parse().map_err(|_| {
            Refusal::new(format!("ReleaseAddress: Address `{}` is no IP address", shorten(&request.address)))
        })?;
        if addr.is_unspecified() {
            return Ok(json!({}));
        }
        // A dockerd that crashed releases its containers' addresses without deleting their endpoints.
        if id.space == SpaceName::Global {
            for (item, record, _) in self.state.list::<EndpointRecord>(RecordKind::Endpoints).await? {
                if let DockerItem::Endpoint(endpoint) = &item
                    && record.addresses.contains(&addr)
                {
                    self.forget_endpoint(endpoint).await?;
                }
            }
        }
        self.take_back(driver, &id, addr).await?;
        Ok(json!({}))
    }

    /// Releases an address and deletes its record. An address that is not held is no error; an address of
    /// another holder is kept.
    pub(super) async fn take_back(&self, driver: &str, id: &PoolId, addr: IpAddr) -> Result<(), Refusal> {
        let item = DockerItem::Address { space: id.space.as_str().to_owned(), addr };
        let record = self.state.get::<AddressRecord>(&item).await?;
        let ipam = self.ipam(&id.space);
        if record.is_none() && !self.ours(&ipam, addr).await? {
            return Ok(());
        }
        ipam.release(&[addr], Some(&handle(addr))).await?;
        if let Some((_, revision)) = record {
            // If the address was allocated again meanwhile, the record belongs to the new holder.
            self.state.remove(&item, revision).await?;
        }
        let pool = DockerItem::Pool { driver: driver.to_owned(), id: id.to_string() };
        if self.state.get::<PoolRecord>(&pool).await?.is_some_and(|(pool, _)| pool.refs == 0) {
            let _lock = self.pools.lock().await;
            self.clear_pool(driver, id).await?;
        }
        Ok(())
    }

    /// True if IPAM has the address allocated to this driver on this host.
    async fn ours(&self, ipam: &Ipam, addr: IpAddr) -> Result<bool, Refusal> {
        let held = ipam.lookup(addr).await?;
        Ok(held.is_some_and(|held| {
            held.handle.as_deref() == Some(handle(addr).as_str())
                && held.attributes.get("node").and_then(Value::as_str) == Some(self.state.host.as_str())
        }))
    }

    /// True for networks of Tortie's own driver, whose addresses are returned as /32 or /128: the next hop is
    /// the proxied gateway 169.254.1.1. For other drivers, such as bridge, the pool is an on-link subnet.
    async fn is_unreplayed(&self, id: &PoolId) -> Result<bool, Refusal> {
        if id.is_any() {
            return Ok(true);
        }
        if id.space != SpaceName::Global {
            return Ok(false);
        }
        let networks = self.state.list::<NetworkRecord>(RecordKind::Networks).await?;
        Ok(networks.iter().any(|(_, network, _)| network.pools.contains(&id.pool)))
    }

    async fn request(&self, want: AddressRequest) -> Result<AllocationRequest, Refusal> {
        let now = writer(&*self.state.store).await?.attribute_time(jiff::Timestamp::now());
        let mut attributes = serde_json::Map::new();
        attributes.insert("node".into(), self.state.host.clone().into());
        attributes.insert("timestamp".into(), now.into());
        Ok(AllocationRequest {
            host: self.state.host.clone(),
            addresses: vec![want],
            handle: Some(HANDLE.to_owned()),
            handle_per_address: true,
            attributes,
            ..AllocationRequest::default()
        })
    }

    async fn record(&self, driver: &str, id: &PoolId, addr: IpAddr, gateway: bool) -> Result<(), Refusal> {
        let epoch = self.epoch(driver).await?.epoch;
        let record = AddressRecord {
            driver: driver.to_owned(),
            pool: id.to_string(),
            epoch,
            gateway,
            process: self.process,
            since: now(),
        };
        let item = DockerItem::Address { space: id.space.as_str().to_owned(), addr };
        let written = self.state.put(&item, &record).await;
        if written.is_err() {
            // dockerd does not learn of the address, so it must not stay allocated.
            let _ = self.ipam(&id.space).release(&[addr], Some(&handle(addr))).await;
        }
        written
    }

    /// Allocates the requested address, if it is free or the request is a replay.
    async fn allocate_exact(
        &self,
        ipam: &Ipam,
        driver: &str,
        id: &PoolId,
        addr: IpAddr,
        gateway: bool,
    ) -> Result<IpAddr, Refusal> {
        // With this lock, no other request of this process is between IPAM and the record. An address without
        // a record was left by a killed process, and this request is the repetition of the one that it
        // served.
        let _alone = self.allocation_lock.write().await;
        let item = DockerItem::Address { space: id.space.as_str().to_owned(), addr };
        if let Some((record, _)) = self.state.get::<AddressRecord>(&item).await?
            && self.ours(ipam, addr).await?
        {
            let epoch = self.epoch(driver).await?;
            if !record.replayed(driver, epoch, now()) && !self.is_unanswered(&record, addr).await {
                return Err(Refusal::new(format!(
                    "{addr} is in use: another container or network of this host has it"
                )));
            }
            let again =
                AddressRecord { epoch: epoch.epoch, pool: id.to_string(), process: self.process, ..record };
            self.state.put(&item, &again).await?;
            return Ok(addr);
        }
        match ipam.assign(&self.request(AddressRequest::Exact(addr)).await?).await {
            Ok(_) => {}
            Err(IpamError::AddressInUse { .. }) if self.ours(ipam, addr).await? => {}
            Err(error) => return Err(error.into()),
        }
        self.record(driver, id, addr, gateway).await?;
        Ok(addr)
    }

    /// True if dockerd may not have received the answer that allocated this address, so that it repeats the
    /// request for 15 s: the process that allocated it has ended, and no container has the address.
    async fn is_unanswered(&self, record: &AddressRecord, addr: IpAddr) -> bool {
        if record.process == self.process || now() > record.since.saturating_add(PERSISTENCE) {
            return false;
        }
        let drivers = self.options.drivers();
        self.dockerd.holdings(&drivers).await.is_some_and(|holdings| !holdings.addresses.contains(&addr))
    }

    /// Allocates any address of the pool; for the gateway of a subnet the first one, as users expect.
    async fn allocate_any(
        &self,
        ipam: &Ipam,
        driver: &str,
        id: &PoolId,
        gateway: bool,
    ) -> Result<IpAddr, Refusal> {
        let _between = self.allocation_lock.read().await;
        let (part, first, last) = id.room();
        let mut given = None;
        if gateway && id.space != SpaceName::Global {
            given = ipam
                .assign(&self.request(AddressRequest::Exact(first)).await?)
                .await
                .ok()
                .and_then(|all| all.first().copied());
        }
        let given = match given {
            Some(given) => given,
            None => {
                let want = if id.is_any() {
                    AddressRequest::Any { family: id.family(), count: 1, pools: Vec::new() }
                } else if id.space == SpaceName::Global && id.sub.is_none() && self.is_unreplayed(id).await? {
                    AddressRequest::Any { family: id.family(), count: 1, pools: vec![id.pool] }
                } else {
                    let range = AddressRange {
                        subnet: part,
                        first: Some(first),
                        last: Some(last),
                        except: Vec::new(),
                    };
                    AddressRequest::OneOf(vec![range])
                };
                let all = allocate(ipam, self.request(want).await?, None).await?;
                *all.first().ok_or_else(|| Refusal::new("IPAM gave no address"))?
            }
        };
        self.record(driver, id, given.addr, gateway).await?;
        Ok(given.addr)
    }
}
