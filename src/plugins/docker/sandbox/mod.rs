//! The container's network namespace, which may have interfaces of several networks: gateways and prefixes of
//! each of Tortie's interfaces, and settings that dockerd does not make.
//!
//! dockerd knows one gateway for all interfaces of a container, and it moves an interface only after the
//! driver has answered, so the driver cannot write routes before its answer. Therefore `Join` selects
//! gateways and prefixes, which dockerd writes, and a task follows the interface and writes rules by source
//! address ([`tortie_kernel::container::complete_moved`]).

mod place;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tortie_config::key::DockerItem;
use tortie_net::Cidr;

use crate::plugins::attach::{stored_endpoint, write_profiles, writer};
use crate::plugins::docker::driver::Driver;
use crate::plugins::docker::error::Refusal;
use crate::plugins::docker::network::{blocking, host_interface};
use crate::plugins::docker::pools::Configured;
use crate::plugins::docker::records::{EndpointRecord, NetworkRecord};
use crate::plugins::docker::state::RecordKind;
use tortie_kernel::container::{MoveState, MovedInterface};

/// First pause; each further one is longer.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// Maximum pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Maximum time that dockerd may take to start a container.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time after which the namespace is also looked up by the container's process, because the driver may run
/// without access to dockerd's files.
const BY_PROCESS: Duration = Duration::from_secs(2);

impl Driver {
    /// Selects gateways that no other interface of the container has, and the prefixes that the container
    /// reaches by this interface, and stores them in the record.
    pub(super) async fn choose_place(
        &self,
        endpoint: &str,
        sandbox: &str,
        network: &NetworkRecord,
        record: EndpointRecord,
    ) -> Result<EndpointRecord, Refusal> {
        let mut pools: Vec<Cidr> = network.pools.iter().filter(|pool| pool.len() > 0).copied().collect();
        if pools.len() < network.pools.len() {
            let all = Configured::read(&*self.state.store).await?;
            let any = |pool: &Cidr| network.pools.iter().any(|p| p.len() == 0 && p.is_v4() == pool.is_v4());
            pools.extend(all.enabled().filter(any));
        }
        let _lock = self.choices.lock().await;
        let item = DockerItem::Endpoint(endpoint.to_owned());
        let mut others = self.state.list::<EndpointRecord>(RecordKind::Endpoints).await?;
        others.retain(|(other, record, _)| *other != item && record.sandbox == sandbox);
        let others: Vec<EndpointRecord> = others.into_iter().map(|(_, record, _)| record).collect();
        let record = EndpointRecord { sandbox: sandbox.to_owned(), ..record };
        let record = place::place(record, &pools, if sandbox.is_empty() { &[] } else { &others })?;
        self.state.put(&item, &record).await?;
        Ok(record)
    }

    /// Returns the names of the networks of a container's other interfaces; `own` is the network or its profile. Each endpoint of a container has
    /// the profiles of all its networks, so that members of a network match the container by any of its
    /// addresses.
    pub(super) async fn further_networks(
        &self,
        endpoint: &str,
        sandbox: &str,
        own: &str,
    ) -> Result<Vec<String>, Refusal> {
        if sandbox.is_empty() {
            return Ok(Vec::new());
        }
        let writer = writer(&*self.state.store).await?;
        let mut names = BTreeSet::new();
        for (item, record, _) in self.state.list::<EndpointRecord>(RecordKind::Endpoints).await? {
            // An endpoint without gateways has not joined.
            if record.sandbox == sandbox
                && !record.gateways.is_empty()
                && item != DockerItem::Endpoint(endpoint.to_owned())
            {
                let network = DockerItem::Network(record.network.clone());
                let found = self.state.get::<NetworkRecord>(&network).await?;
                names.insert(found.and_then(|(network, _)| network.name).unwrap_or(record.network));
            }
        }
        names.retain(|name| name != own && writer.profile_name(name) != own);
        Ok(names.into_iter().collect())
    }

    /// Updates the profiles of all endpoints of a container.
    pub(super) async fn share_profiles(&self, sandbox: &str) -> Result<(), Refusal> {
        if sandbox.is_empty() {
            return Ok(());
        }
        let writer = writer(&*self.state.store).await?;
        for (item, record, _) in self.state.list::<EndpointRecord>(RecordKind::Endpoints).await? {
            let DockerItem::Endpoint(endpoint) = &item else { continue };
            if record.sandbox != sandbox {
                continue;
            }
            let key = self.endpoint_key(endpoint);
            let found = stored_endpoint(&*self.state.store, &key).await?;
            let Some(Ok(value)) = found.map(|found| found.endpoint) else { continue };
            let Some(own) = value.profile_ids.first().cloned() else { continue };
            let further = self.further_networks(endpoint, sandbox, &own).await?;
            let further = further.iter().map(|network| writer.profile_name(network));
            let profiles: Vec<String> = [own.clone()].into_iter().chain(further).collect();
            if value.profile_ids != profiles {
                write_profiles(&*self.state.store, &key, &profiles).await?;
            }
        }
        Ok(())
    }

    /// Removes settings of deleted interfaces from the container's namespace.
    pub(super) async fn sweep_sandbox(&self, endpoint: &str) {
        let item = DockerItem::Endpoint(endpoint.to_owned());
        let Ok(Some((record, _))) = self.state.get::<EndpointRecord>(&item).await else { return };
        if record.sandbox.is_empty() {
            return;
        }
        let namespaces = self.options.namespaces.clone();
        let swept = blocking(move || Ok(namespaces.sweep_source_rules(Path::new(&record.sandbox))?)).await;
        if let Err(error) = swept {
            tracing::debug!(target: "tortie::docker", "endpoint {endpoint}: {error}");
        }
    }

    /// Returns the namespace of a container's process, as dockerd reports it.
    async fn namespace_by_process(&self, endpoint: &str, network: &str) -> Option<PathBuf> {
        let (id, _) = self.dockerd.network(network).await?.container_of(endpoint)?;
        let pid = self.dockerd.container(&id).await?.pid()?;
        Some(PathBuf::from(format!("/proc/{pid}/ns/net")))
    }
}

/// Follows the interface of an endpoint into the container, and writes the settings that dockerd does not.
pub(super) async fn complete(shared: Arc<Driver>, endpoint: String) {
    let begin = tokio::time::Instant::now();
    let mut pause = FIRST_PAUSE;
    let item = DockerItem::Endpoint(endpoint.clone());
    let mut reason = "its interface is not configured".to_owned();
    while begin.elapsed() < PATIENCE {
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        let Ok(Some((record, _))) = shared.state.get::<EndpointRecord>(&item).await else { return };
        let (Ok(host), Ok(mac)) = (host_interface(&endpoint), record.mac.parse()) else { return };
        let mut path = PathBuf::from(&record.sandbox);
        if begin.elapsed() > BY_PROCESS
            && let Some(found) = shared.namespace_by_process(&endpoint, &record.network).await
        {
            path = found;
        }
        let EndpointRecord { addresses: addrs, gateways, routes: prefixes, .. } = record;
        let moved = MovedInterface { host, mac, addrs, gateways, prefixes };
        let namespaces = shared.options.namespaces.clone();
        match blocking(move || Ok(namespaces.complete_moved(&moved, &path)?)).await {
            Ok(MoveState::Complete) => return,
            Ok(MoveState::NotMoved | MoveState::NotConfigured) => {}
            Err(error) => reason = error.to_string(),
        }
    }
    tracing::warn!(target: "tortie::docker", "endpoint {endpoint}: a container of several networks will not answer at the addresses of each: {reason}");
}
