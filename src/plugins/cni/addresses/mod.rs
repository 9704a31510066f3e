//! Addresses of one attachment from Tortie's IPAM: allocation, check and release, and the subnets and
//! gateways that bridges need.

pub(super) mod names;
pub(super) mod requests;

use std::net::IpAddr;

use serde_json::json;
use tortie_net::Cidr;

use crate::plugins::attach::{allocate, writer};
use crate::plugins::cni::addresses::names::Identity;
use crate::plugins::cni::addresses::requests::{CniAddressRequest, address_requests};
use crate::plugins::cni::config::Config;
use crate::plugins::cni::config::args::EnvArgs;
use crate::plugins::cni::protocol::address::Address;
use crate::plugins::cni::protocol::error::{CniError, code};
use crate::plugins::cni::protocol::result::Ip;
use crate::plugins::pools::PoolNames;
use tortie_engine::ipam::{AddressRange, AddressRequest, Allocation, AllocationRequest, Ipam, IpamError};
use tortie_store::StoreError;

/// Maximum number of exchanged addresses, because the network reserves them.
const TRIES: usize = 8;

impl From<IpamError> for CniError {
    fn from(error: IpamError) -> Self {
        let number = match &error {
            _ if error.is_temporary() => code::TRY_AGAIN,
            // The agent creates the Node when it starts, and the host's name was checked against the agent's.
            IpamError::NoNode { .. } => code::TRY_AGAIN,
            IpamError::NoPools(_)
            | IpamError::NoFittingPool { .. }
            | IpamError::PoolUse { .. }
            | IpamError::OutsidePools { .. }
            | IpamError::UnknownPool { .. }
            | IpamError::Disabled(_)
            | IpamError::BadRequest(_) => code::CONFIG,
            IpamError::Full { .. } | IpamError::BlockLimit { .. } => code::NO_ADDRESS,
            IpamError::AddressInUse { .. } | IpamError::Excluded { .. } | IpamError::StrictOwner { .. } => {
                code::ADDRESS
            }
            IpamError::Store(_) => code::IO,
            _ => code::STORE,
        };
        Self { details: error.code().to_owned(), ..Self::new(number, error.to_string()) }
    }
}

impl From<StoreError> for CniError {
    fn from(error: StoreError) -> Self {
        let number = match &error {
            StoreError::Unreachable(_) => code::TRY_AGAIN,
            _ => code::IO,
        };
        Self::new(number, error.to_string())
    }
}

/// Allocates the addresses of one attachment.
#[derive(Clone, Copy)]
pub(in crate::plugins::cni) struct AddressAllocator<'a> {
    pub(in crate::plugins::cni) ipam: &'a Ipam,
    pub(in crate::plugins::cni) config: &'a Config,
    pub(in crate::plugins::cni) node: &'a str,
    pub(in crate::plugins::cni) identity: &'a Identity,
}

impl AddressAllocator<'_> {
    async fn request(
        &self,
        addresses: Vec<AddressRequest>,
        handle: &str,
    ) -> Result<AllocationRequest, StoreError> {
        let now = writer(&**self.ipam.store()).await?.attribute_time(jiff::Timestamp::now());
        let mut attributes = self.identity.attributes(self.node, &now);
        attributes.insert("network".into(), json!(self.config.name));
        Ok(AllocationRequest {
            host: self.node.to_owned(),
            addresses,
            handle: Some(handle.to_owned()),
            attributes,
            ..AllocationRequest::default()
        })
    }

    /// Allocates the addresses that the call requests. First it releases addresses that the attachment still
    /// holds from an earlier `ADD` without `DEL` (after a restart of the host), because one attachment has
    /// one set of addresses.
    pub(in crate::plugins::cni) async fn assign(
        &self,
        env: &EnvArgs,
    ) -> Result<Vec<(CniAddressRequest, Allocation)>, CniError> {
        let names = PoolNames::read(&**self.ipam.store()).await?;
        let address_requests = address_requests(self.config, env, &names)?;
        let handle = &self.identity.handle;
        let stale = self.take_back().await?;
        if !stale.is_empty() {
            tracing::info!(target: "tortie", ?stale, handle, "released what an earlier ADD left");
        }
        let wanted = address_requests.iter().map(|request| request.want.clone()).collect();
        let request = self.request(wanted, handle).await?;
        match allocate(self.ipam, request, Some(&self.identity.host_ifname)).await {
            Ok(given) => Ok(address_requests.into_iter().zip(given).collect()),
            Err(error) => {
                // The transaction may have been committed although its answer was lost.
                if matches!(error, IpamError::Store(_)) {
                    let _ = self.take_back().await;
                }
                Err(error.into())
            }
        }
    }

    /// Releases the addresses of the handle on this host. A container id may be a name that users choose
    /// (`ctr run`), and a container of the same name on another host keeps its addresses. Addresses of older
    /// writers have no `node` attribute and are released, too.
    async fn take_back(&self) -> Result<Vec<IpAddr>, IpamError> {
        let handle = &self.identity.handle;
        let held = self.ipam.allocated_to(handle).await?;
        let mut own = Vec::new();
        for addr in &held {
            let found = self.ipam.lookup(*addr).await?;
            let node = found.as_ref().and_then(|held| held.attributes.get("node")?.as_str());
            if node.is_none_or(|node| node == self.node) {
                own.push(*addr);
            }
        }
        if own.len() == held.len() {
            // Releasing the whole handle also deletes it, even if a crash left it without addresses.
            return self.ipam.release_handle(handle).await;
        }
        Ok(self.ipam.release(&own, Some(handle)).await?.released)
    }

    /// Releases the addresses of the attachment; `addrs` are those of its endpoint, which older writers
    /// allocated under other handles.
    pub(in crate::plugins::cni) async fn release(&self, addrs: &[IpAddr]) -> Result<(), CniError> {
        let released = self.take_back().await?;
        let left: Vec<IpAddr> = addrs.iter().filter(|addr| !released.contains(addr)).copied().collect();
        if !left.is_empty() {
            for old in &self.identity.old_handles {
                self.ipam.release(&left, Some(old)).await?;
            }
        }
        Ok(())
    }

    /// Returns the addresses among `addrs` that the attachment does not hold.
    pub(in crate::plugins::cni) async fn missing_families(
        &self,
        addrs: &[IpAddr],
    ) -> Result<Vec<IpAddr>, CniError> {
        let held = self.ipam.allocated_to(&self.identity.handle).await?;
        let mut lacking = Vec::new();
        for addr in addrs.iter().filter(|addr| !held.contains(addr)) {
            let handle = self.ipam.lookup(*addr).await?.and_then(|held| held.handle);
            if !handle.is_some_and(|handle| self.identity.old_handles.contains(&handle)) {
                lacking.push(*addr);
            }
        }
        Ok(lacking)
    }

    /// Allocates addresses for a plugin that creates a network on the host, such as bridge: each with the
    /// prefix length of its network and a gateway. Addresses that the network reserves are skipped and kept
    /// allocated for the host.
    pub(in crate::plugins::cni) async fn assign_framed(
        &self,
        env: &EnvArgs,
        calico: bool,
    ) -> Result<Vec<Ip>, CniError> {
        let given = self.assign(env).await?;
        match self.frame(given, calico).await {
            Ok(ips) => Ok(ips),
            Err(error) => {
                let _ = self.take_back().await;
                Err(error)
            }
        }
    }

    async fn frame(
        &self,
        given: Vec<(CniAddressRequest, Allocation)>,
        calico: bool,
    ) -> Result<Vec<Ip>, CniError> {
        let mut ips = Vec::new();
        for (request, mut given) in given {
            let mut unusable = Vec::new();
            let mut frame = self.frame_of(&request, &given, calico).await?;
            if self.config.kind == "bridge" && frame.net.len() < given.block.len() {
                // Routes to the block are more specific than the bridge's route to its network.
                let msg = format!(
                    "the bridge's network {} is larger than {}, the block that this host announces: packets \
                     to its containers would end in the block's blackhole; omit `ranges`, `subnet` and \
                     `prefix_length`, or give a network that is not larger than a block",
                    frame.net, given.block
                );
                return Err(CniError::new(code::CONFIG, msg));
            }
            while frame.own().contains(&given.addr) {
                if matches!(request.want, AddressRequest::Exact(_)) || unusable.len() >= TRIES {
                    let msg =
                        format!("{} is of the network {} itself: choose another one", given.addr, frame.net);
                    return Err(CniError::new(code::ADDRESS, msg));
                }
                unusable.push(given.addr);
                let exchange = self.request(vec![request.want.clone()], &self.identity.handle).await?;
                let again = self.ipam.assign(&exchange).await?;
                given = again.into_iter().next().ok_or_else(|| {
                    CniError::new(code::STORE, "IPAM allocated fewer addresses than were requested")
                })?;
                frame = self.frame_of(&request, &given, calico).await?;
            }
            if !unusable.is_empty() {
                self.ipam.release(&unusable, Some(&self.identity.handle)).await?;
            }
            self.reserve(&frame).await?;
            let address = Address { ip: given.addr, len: frame.net.len() };
            ips.push(Ip { address, gateway: frame.gateway, interface: None });
        }
        Ok(ips)
    }

    /// Returns the network of an address, for plugins that need one.
    async fn frame_of(
        &self,
        request: &CniAddressRequest,
        given: &Allocation,
        calico: bool,
    ) -> Result<Framed, CniError> {
        let settings = &self.config.ipam.frame;
        let v4 = given.addr.is_ipv4();
        let said = settings.gateways.iter().find(|gateway| gateway.is_ipv4() == v4).copied();
        if let Some(range) = request.ranges.iter().find(|range| range.range.subnet.contains(given.addr)) {
            return Ok(Framed::new(range.range.subnet, range.gateway.or(said)));
        }
        let len = if v4 { settings.len4 } else { settings.len6 };
        let len = len.and_then(|len| Cidr::new(given.addr, len).ok());
        let subnet = self.config.ipam.subnet.filter(|subnet| subnet.contains(given.addr));
        match len.or(subnet) {
            Some(net) => Ok(Framed::new(net, said)),
            None if calico => Ok(Framed { net: Cidr::host(given.addr), gateway: said }),
            None if said.is_some() => Ok(Framed::new(given.block, said)),
            None => self.frame_of_block(given).await,
        }
    }

    /// Returns the block as network with its gateway: the one that this network already has in the block,
    /// otherwise the first address, otherwise any address, because a container without a bridge may hold the
    /// first one.
    async fn frame_of_block(&self, given: &Allocation) -> Result<Framed, CniError> {
        let block = given.block;
        let frame = Framed::new(block, None);
        let Some(first) = frame.gateway else { return Ok(frame) };
        let handle = self.gateway_handle();
        let ends = [block.addr(), block.last()];
        let held = self.ipam.allocated_to(&handle).await?;
        if let Some(gateway) = held.into_iter().find(|ip| block.contains(*ip) && !ends.contains(ip)) {
            return Ok(Framed { gateway: Some(gateway), ..frame });
        }
        if given.addr == first {
            // The caller exchanges its address, and this one becomes the gateway.
            return Ok(frame);
        }
        let any = AddressRange { subnet: block, first: None, last: None, except: ends.to_vec() };
        for want in [AddressRequest::Exact(first), AddressRequest::OneOf(vec![any])] {
            match self.ipam.assign(&self.gateway_request(want).await?).await {
                Ok(given) => {
                    let gateway = given.first().map_or(first, |given| given.addr);
                    return Ok(Framed { gateway: Some(gateway), ..frame });
                }
                // The address was skipped before, and is released before it becomes the gateway.
                Err(IpamError::AddressInUse { holder: Some(holder), .. })
                    if holder == self.identity.handle =>
                {
                    break;
                }
                Err(IpamError::AddressInUse { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(frame)
    }

    /// Returns the handle of addresses that networks of bridges reserve on this host.
    fn gateway_handle(&self) -> String {
        format!("tortie-gateway.{}.{}", self.config.name, self.node)
    }

    async fn gateway_request(&self, want: AddressRequest) -> Result<AllocationRequest, StoreError> {
        let mut request = self.request(vec![want], &self.gateway_handle()).await?;
        request.attributes.insert("type".into(), json!("gateway"));
        Ok(request)
    }

    /// Allocates the reserved addresses of the network, so that no other attachment on this host gets them.
    async fn reserve(&self, frame: &Framed) -> Result<(), CniError> {
        let handle = self.gateway_handle();
        for addr in frame.own() {
            match self.ipam.lookup(addr).await? {
                Some(held) if held.handle.as_deref() == Some(&handle) => continue,
                Some(held) if Some(addr) == frame.gateway => {
                    let holder = held.handle.unwrap_or_else(|| "a holder without a handle".into());
                    // Another network of this host or of another one may use the same gateway.
                    if holder.starts_with("tortie-gateway.") {
                        continue;
                    }
                    let msg = format!(
                        "the gateway {addr} of {} is allocated to `{holder}`: release it, or set `ipam.gateway`",
                        frame.net
                    );
                    return Err(CniError::new(code::ADDRESS, msg));
                }
                Some(_) => continue,
                None => {}
            }
            match self.ipam.assign(&self.gateway_request(AddressRequest::Exact(addr)).await?).await {
                // A gateway outside of the pools needs no allocation; or a concurrent call of this host
                // allocated it.
                Ok(_)
                | Err(
                    IpamError::OutsidePools { .. } | IpamError::AddressInUse { .. } | IpamError::Disabled(_),
                ) => {}
                // The address is in a block of another host, which the network spans.
                Err(IpamError::StrictOwner { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// A network with its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::plugins::cni) struct Framed {
    pub(in crate::plugins::cni) net: Cidr,
    pub(in crate::plugins::cni) gateway: Option<IpAddr>,
}

impl Framed {
    /// Creates a network; without a given gateway it is the first address, as with bridge and host-local.
    pub(in crate::plugins::cni) fn new(net: Cidr, gateway: Option<IpAddr>) -> Self {
        let room = net.max_len() - net.len();
        let first = if room >= 2 { net.nth(1) } else { None };
        Self { net, gateway: gateway.or(first) }
    }

    /// Returns the reserved addresses: the gateway, and for IPv4 the network and broadcast addresses.
    pub(in crate::plugins::cni) fn own(&self) -> Vec<IpAddr> {
        let mut own: Vec<IpAddr> = self.gateway.into_iter().collect();
        if self.net.is_v4() && self.net.len() <= 30 {
            own.push(self.net.addr());
            own.push(self.net.last());
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_its_first_address_as_gateway_and_its_ends_for_itself() {
        let framed = |net: &str| {
            let framed = Framed::new(net.parse().unwrap(), None);
            let own: Vec<String> = framed.own().iter().map(ToString::to_string).collect();
            (framed.gateway.map(|gateway| gateway.to_string()), own.join(" "))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(framed("10.65.0.64/26"), (some("10.65.0.65"), "10.65.0.65 10.65.0.64 10.65.0.127".into()));
        assert_eq!(framed("10.65.0.4/30"), (some("10.65.0.5"), "10.65.0.5 10.65.0.4 10.65.0.7".into()));
        assert_eq!(framed("10.65.0.4/31"), (None, String::new()));
        assert_eq!(framed("10.65.0.4/32"), (None, String::new()));
        assert_eq!(framed("fd00:65::/122"), (some("fd00:65::1"), "fd00:65::1".into()));
        assert_eq!(framed("fd00:65::7/128"), (None, String::new()));
    }
}
