//! The network driver: networks, endpoints, and the interfaces that dockerd moves into containers.
//!
//! dockerd replays nothing to a network driver, so networks and endpoints are kept in the store. A repeated
//! call (dockerd repeats failed calls) gets the answer of the first one.

use std::net::IpAddr;
use std::str::FromStr;

use serde_json::{Value, json};
use tortie_config::key::{DockerItem, EndpointKey, IpFamily};
use tortie_config::resource::{InterfaceName, Labels, MacAddr};
use tortie_net::Cidr;

use super::driver::{Driver, now};
use super::error::Refusal;
use super::poolid::{GLOBAL, shorten};
use super::pools::Configured;
use super::records::{AddressRecord, EndpointRecord, NetworkRecord};
use super::wire;
use crate::plugins::attach::{self, AttachError, EndpointSpec, ProfileChoice, Written};
use tortie_kernel::container::{self, ContainerNetError, HOST_MAC, HostSpec, VethSpec};

/// Orchestrator and workload in the keys of Docker's endpoints.
const LIBNETWORK: &str = "libnetwork";
/// RouteType in libnetwork for a route without next hop.
const ON_LINK: u8 = 1;

impl From<AttachError> for Refusal {
    fn from(error: AttachError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<ContainerNetError> for Refusal {
    fn from(error: ContainerNetError) -> Self {
        Self::new(error.to_string())
    }
}

/// Validates the id of a network or endpoint.
fn id<'a>(what: &str, text: &'a str) -> Result<&'a str, Refusal> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if text.is_empty() || text.len() > 128 || !text.bytes().all(plain) {
        return Err(Refusal::new(format!("{what} `{}` is no id", shorten(text))));
    }
    Ok(text)
}

/// Runs blocking work on a thread outside of the async runtime.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Refusal::new(format!("a task of this program ended early: {error}")))?
}

/// Returns a MAC address for an endpoint that requests none, derived from its id.
fn mac_of(endpoint: &str) -> MacAddr {
    let [a, b, c, d, e, ..] = container::hash(endpoint).to_be_bytes();
    MacAddr([0x02, a, b, c, d, e])
}

/// Parses the options (`-o`) of `docker network create` and returns the MTU.
fn options(request: &wire::CreateNetwork) -> Result<Option<u32>, Refusal> {
    if request.options.get("com.docker.network.internal") == Some(&Value::Bool(true)) {
        return Err(Refusal::new(
            "--internal is not supported: a policy on the network's endpoints says what may leave",
        ));
    }
    let mut mtu = None;
    let generic = request.options.get("com.docker.network.generic").and_then(Value::as_object);
    for (name, value) in generic.into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match name.as_str() {
            "com.docker.network.driver.mtu" | "mtu" => {
                let number = text.parse().ok().filter(|mtu| (68..=65_535).contains(mtu));
                mtu = Some(number.ok_or_else(|| {
                    Refusal::new(format!("-o {name}={}: an MTU is 68 to 65535", shorten(&text)))
                })?);
            }
            other => {
                return Err(Refusal::new(format!(
                    "-o {} is unknown; there is com.docker.network.driver.mtu",
                    shorten(other)
                )));
            }
        }
    }
    Ok(mtu)
}

impl Driver {
    pub(super) fn endpoint_key(&self, endpoint: &str) -> EndpointKey {
        EndpointKey::Workload {
            host: self.state.host.clone(),
            orchestrator: LIBNETWORK.to_owned(),
            workload: LIBNETWORK.to_owned(),
            endpoint: endpoint.to_owned(),
        }
    }

    pub(super) async fn create_network(&self, request: &wire::CreateNetwork) -> Result<Value, Refusal> {
        let network = id("NetworkID", &request.network_id)?;
        attach::ready(&*self.state.store).await?;
        let mtu = options(request)?;
        let configured = Configured::read(&*self.state.store).await?;
        let mut pools = Vec::new();
        for data in request.ipv4_data.iter().chain(&request.ipv6_data) {
            let pool = Cidr::from_str(&data.pool)
                .map_err(|_| Refusal::new(format!("Pool `{}` is no ADDRESS/LENGTH", shorten(&data.pool))))?;
            let ours = super::poolid::SpaceName::parse(&data.address_space).is_ok()
                || data.address_space == super::poolid::DEFAULT
                || data.address_space.starts_with("Calico");
            if !ours || data.address_space == "LocalDefault" || data.address_space == "GlobalDefault" {
                return Err(Refusal::new(format!(
                    "pool {pool} comes from another IPAM driver, whose addresses no host announces: add --ipam-driver {}",
                    self.options.ipam_drivers().first().copied().unwrap_or("tortie-ipam")
                )));
            }
            if pool.len() > 0 && !configured.contains(&pool) {
                return Err(Refusal::new(format!(
                    "{pool} is a pool of this host alone, which no host announces; give a --subnet of the data model: {}",
                    configured.text(IpFamily::of_cidr(&pool))
                )));
            }
            pools.push(pool);
        }
        if pools.is_empty() {
            return Err(Refusal::new("the network has no pool: add --ipam-driver tortie-ipam"));
        }
        if mtu.is_some_and(|mtu| mtu < container::MIN_MTU_V6) && pools.iter().any(|pool| !pool.is_v4()) {
            return Err(Refusal::new("an MTU below 1280 is too small for IPv6 (RFC 8200)"));
        }
        let record = NetworkRecord { name: None, pools, mtu, since: now() };
        self.state.put(&DockerItem::Network(network.to_owned()), &record).await?;
        Ok(json!({}))
    }

    pub(super) async fn delete_network(&self, request: &wire::Named) -> Result<Value, Refusal> {
        let item = DockerItem::Network(id("NetworkID", &request.network_id)?.to_owned());
        self.state.change(&item, |_: Option<NetworkRecord>| Ok(None)).await?;
        Ok(json!({}))
    }

    async fn network(&self, network: &str) -> Result<NetworkRecord, Refusal> {
        let item = DockerItem::Network(id("NetworkID", network)?.to_owned());
        let found = self.state.get(&item).await?;
        found.map(|(record, _)| record).ok_or_else(|| {
            Refusal::new(format!("network {network} is unknown here: remove it and create it again"))
        })
    }

    pub(super) async fn endpoint(&self, endpoint: &str) -> Result<EndpointRecord, Refusal> {
        let item = DockerItem::Endpoint(id("EndpointID", endpoint)?.to_owned());
        let found = self.state.get(&item).await?;
        found.map(|(record, _)| record).ok_or_else(|| {
            Refusal::new(format!("endpoint {endpoint} is unknown here: start the container again"))
        })
    }

    pub(super) async fn create_endpoint(&self, request: &wire::Named) -> Result<Value, Refusal> {
        let endpoint = id("EndpointID", &request.endpoint_id)?;
        attach::ready(&*self.state.store).await?;
        let network = self.network(&request.network_id).await?;
        let mut addresses = Vec::new();
        for (what, text) in
            [("Address", &request.interface.address), ("AddressIPv6", &request.interface.address_ipv6)]
        {
            if text.is_empty() {
                continue;
            }
            let addr = text.split('/').next().and_then(|a| a.parse::<IpAddr>().ok());
            let addr =
                addr.ok_or_else(|| Refusal::new(format!("{what} `{}` is no ADDRESS/LENGTH", shorten(text))))?;
            let item = DockerItem::Address { space: GLOBAL.to_owned(), addr };
            if self.state.get::<AddressRecord>(&item).await?.is_none() {
                return Err(Refusal::new(format!(
                    "{addr} was not allocated by our IPAM driver: use a network with --ipam-driver \
                     tortie-ipam"
                )));
            }
            addresses.push(addr);
        }
        if addresses.is_empty() {
            return Err(Refusal::new(format!("endpoint {endpoint} has no address")));
        }
        let asked = &request.interface.mac_address;
        let mac: MacAddr = if asked.is_empty() {
            mac_of(endpoint)
        } else {
            asked
                .parse()
                .map_err(|_| Refusal::new(format!("MacAddress `{}` is no MAC address", shorten(asked))))?
        };
        if network.name.is_none() {
            self.learn_name(&request.network_id).await;
        }
        let record = EndpointRecord {
            network: request.network_id.clone(),
            addresses,
            mac: mac.to_string(),
            process: self.process,
            since: now(),
            ..EndpointRecord::default()
        };
        self.state.put(&DockerItem::Endpoint(endpoint.to_owned()), &record).await?;
        // If the request contains an interface, the answer must not contain one.
        Ok(if asked.is_empty() {
            json!({ "Interface": { "MacAddress": mac.to_string() } })
        } else {
            json!({})
        })
    }

    /// Queries dockerd for the name of a network and stores it.
    pub(super) async fn learn_name(&self, network: &str) -> Option<String> {
        let found = self.dockerd.network(network).await.filter(|n| n.id == network && !n.name.is_empty())?;
        let item = DockerItem::Network(network.to_owned());
        let named = self.state.change(&item, |old: Option<NetworkRecord>| {
            Ok(old.map(|old| NetworkRecord { name: Some(found.name.clone()), ..old }))
        });
        named.await.ok().flatten().and_then(|record| record.name)
    }

    pub(super) async fn delete_endpoint(&self, request: &wire::Named) -> Result<Value, Refusal> {
        self.forget_endpoint(id("EndpointID", &request.endpoint_id)?).await?;
        Ok(json!({}))
    }

    /// Removes endpoint, interface, port mappings and record; missing parts are no error.
    pub(super) async fn forget_endpoint(&self, endpoint: &str) -> Result<(), Refusal> {
        let key = self.endpoint_key(endpoint);
        let (removed, unplugged) =
            tokio::join!(attach::remove_endpoint(&*self.state.store, &key, None), self.unplug(endpoint));
        let removed = removed?;
        unplugged?;
        if let Ok(Some(removed)) = removed {
            attach::departed(&self.options.agent, &removed).await;
        }
        let item = DockerItem::Endpoint(endpoint.to_owned());
        self.sweep_sandbox(endpoint).await;
        let mut sandbox = String::new();
        self.state
            .change(&item, |old: Option<EndpointRecord>| {
                sandbox = old.map(|old| old.sandbox).unwrap_or_default();
                Ok(None)
            })
            .await?;
        self.share_profiles(&sandbox).await
    }

    pub(super) fn table(endpoint: &str) -> String {
        container::ports_table(container::PORTS_PREFIX, &format!("docker {endpoint}"))
    }

    /// Removes the port mappings of an endpoint, including those of an earlier version.
    pub(super) fn unmap_ports(endpoint: &str) -> Result<(), Refusal> {
        container::unmap_ports(&Self::table(endpoint))?;
        let former = container::former_ports_table(container::PORTS_PREFIX, &format!("docker {endpoint}"));
        Ok(container::unmap_ports(&former)?)
    }

    /// Removes the interface and the port mappings.
    async fn unplug(&self, endpoint: &str) -> Result<(), Refusal> {
        let host = host_interface(endpoint)?;
        let id = endpoint.to_owned();
        let alias = attach::alias(&self.endpoint_key(endpoint));
        let unmapped = blocking(move || Self::unmap_ports(&id));
        let removed = blocking(move || {
            // Two ids may share the eleven characters of an interface name, so the alias decides. An
            // interface without alias is left from an interrupted creation.
            if container::alias_of(&host)?.is_some_and(|found| found == alias || found.is_empty()) {
                container::remove_link(&host)?;
            }
            Ok(())
        });
        let (unmapped, removed) = tokio::join!(unmapped, removed);
        unmapped.and(removed)
    }

    pub(super) async fn join(&self, request: &wire::Named) -> Result<Value, Refusal> {
        let endpoint = id("EndpointID", &request.endpoint_id)?;
        attach::ready(&*self.state.store).await?;
        let network = self.network(&request.network_id).await?;
        let record = self.endpoint(endpoint).await?;
        if record.network != request.network_id {
            return Err(Refusal::new(format!("endpoint {endpoint} is of network {}", record.network)));
        }
        // Removes an interface that an interrupted call left.
        self.unplug(endpoint).await?;
        let record = self.choose_place(endpoint, &request.sandbox_key, &network, record).await?;
        let joined = match self.plug(endpoint, &network, &record).await {
            Ok(()) => self.announce(endpoint, &network, record).await,
            Err(error) => Err(error),
        };
        match joined {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let key = self.endpoint_key(endpoint);
                let _ = attach::remove_endpoint(&*self.state.store, &key, None).await;
                let _ = self.unplug(endpoint).await;
                Err(error)
            }
        }
    }

    /// Creates the veth pair, with both ends on this host; dockerd moves one of them.
    async fn plug(
        &self,
        endpoint: &str,
        network: &NetworkRecord,
        record: &EndpointRecord,
    ) -> Result<(), Refusal> {
        let (host, peer) = (host_interface(endpoint)?, peer_interface(endpoint)?);
        let mac: MacAddr = record
            .mac
            .parse()
            .map_err(|_| Refusal::new(format!("endpoint {endpoint}: `{}` is no MAC address", record.mac)))?;
        let alias = attach::alias(&self.endpoint_key(endpoint));
        let (mtu, addrs) = (network.mtu, record.addresses.clone());
        let router = record.gateways.iter().find_map(|gateway| match gateway {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        });
        blocking(move || {
            let spec = VethSpec {
                host: &host,
                host_mac: Some(HOST_MAC),
                peer: &peer,
                peer_mac: Some(mac),
                namespace: None,
                mtu,
                alias: &alias,
            };
            container::create_veth(&spec)?;
            let side = container::host_side(&HostSpec { name: &host, addrs: &addrs, mtu })?;
            if let Some(router) = router.filter(|router| side.link_local != Some(*router)) {
                container::add_router(&host, router)?;
            }
            Ok(container::host_routes(&host, &addrs)?)
        })
        .await
    }

    /// Writes the endpoint and waits for the agent; returns the settings that dockerd applies.
    async fn announce(
        &self,
        endpoint: &str,
        network: &NetworkRecord,
        record: EndpointRecord,
    ) -> Result<Value, Refusal> {
        let started_at = std::time::Instant::now();
        let peer = peer_interface(endpoint)?;
        let mut answer = json!({ "InterfaceName": { "SrcName": peer.as_str(), "DstPrefix": "eth" } });
        let mut routes = Vec::new();
        for gateway in &record.gateways {
            let field = if gateway.is_ipv4() { "Gateway" } else { "GatewayIPv6" };
            answer[field] = json!(gateway);
            let to = Cidr::host(*gateway);
            routes.push(json!({ "Destination": to, "RouteType": ON_LINK, "NextHop": "" }));
        }
        answer["StaticRoutes"] = json!(routes);
        // With addresses of one family only, dockerd must not add a second interface for the other.
        answer["DisableGatewayService"] = json!(!record.gateways.iter().any(IpAddr::is_ipv4));
        let written = self.write_endpoint(endpoint, network, &record, &Labels::new()).await?;
        self.share_profiles(&record.sandbox).await?;
        let agent = attach::AgentClient { started_at: Some(started_at), ..self.options.agent.clone() };
        let note = attach::applied(&agent, &written).await?;
        if let Some(note) = note {
            tracing::info!(target: "tortie::docker", "endpoint {endpoint}: {note}");
        }
        Ok(answer)
    }

    /// Writes the endpoint to the data model. Its profile is named like the network, or by the network's id
    /// until the name is known.
    pub(super) async fn write_endpoint(
        &self,
        endpoint: &str,
        network: &NetworkRecord,
        record: &EndpointRecord,
        labels: &Labels,
    ) -> Result<Written, Refusal> {
        let name = network.name.clone().unwrap_or_else(|| record.network.clone());
        let more = self.further_networks(endpoint, &record.sandbox, &name).await?;
        let profile = ProfileChoice::Create(name);
        let spec = EndpointSpec {
            key: &self.endpoint_key(endpoint),
            host_ifname: &host_interface(endpoint)?,
            mac: record.mac.parse().ok(),
            addrs: &record.addresses,
            gateways: &record.gateways,
            profile: &profile,
            more_profiles: &more,
            labels,
            instance: record.container.as_deref(),
        };
        Ok(attach::write_endpoint(&*self.state.store, &spec).await?)
    }

    /// Handles `Leave`: dockerd has removed the interface from the container. `DeleteEndpoint` removes the
    /// endpoint.
    pub(super) async fn leave(&self, request: &wire::Named) -> Result<Value, Refusal> {
        let endpoint = id("EndpointID", &request.endpoint_id)?;
        self.unplug(endpoint).await?;
        self.sweep_sandbox(endpoint).await;
        Ok(json!({}))
    }
}

/// Returns the name of the host's end: `cali` and 11 characters.
pub(super) fn host_interface(endpoint: &str) -> Result<InterfaceName, Refusal> {
    attach::host_interface("cali", endpoint).map_err(Refusal::new)
}

/// Returns the name of the end that dockerd moves into the container.
fn peer_interface(endpoint: &str) -> Result<InterfaceName, Refusal> {
    attach::host_interface("temp", endpoint).map_err(Refusal::new)
}
