//! Data from dockerd's own API that no driver call contains: labels of containers, names of networks, and
//! objects that dockerd has deleted although the driver's release failed (dockerd does not repeat it).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tortie_config::Dialect;
use tortie_config::calico3::write::check_label;
use tortie_config::key::DockerItem;
use tortie_config::resource::Labels;

use super::dockerd::DockerState;
use super::driver::{Driver, now};
use super::error::Refusal;
use super::network::host_interface;
use super::options::LabelSource;
use super::poolid::PoolId;
use super::records::{AddressRecord, EndpointRecord, NetworkRecord, PoolRecord};
use super::sandbox;
use super::state::RecordKind;
use crate::plugins::attach::{self, may_remove, stored_endpoint};
use tortie_engine::model::endpoint_name::NAME_LABEL;
use tortie_kernel::container;

/// Label with the name of the network.
const NETWORK_LABEL: &str = "docker.network";
/// Labels that each WorkloadEndpoint has.
const OF_CALICO: [&str; 2] = ["projectcalico.org/namespace", "projectcalico.org/orchestrator"];
/// Pause before the first query for a container's labels; further pauses are longer.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// Maximum time of these queries for a container.
const LOOKING: Duration = Duration::from_secs(60);
/// Interval of the checks for objects that dockerd has forgotten.
const ROUND: Duration = Duration::from_secs(90);
/// Age in seconds up to which an object may be missing in dockerd's lists because it is new.
const YOUNG: i64 = 60;
/// Uptime of this process after which allocations of an earlier process are no longer new: dockerd repeats a
/// failed call for 15 s.
const REPEATS: Duration = Duration::from_secs(20);
/// Pause between the first two checks of a process.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// True if dockerd has forgotten an object that it does not list. `age` is in seconds; `others_for` is the
/// uptime of this process, if another one made the allocation.
fn is_forgotten(listed: bool, age: i64, others_for: Option<Duration>) -> bool {
    !listed && (age > YOUNG || others_for.is_some_and(|served| served >= REPEATS))
}

/// Computes the labels of an endpoint.
fn labels_of(source: &LabelSource, network: Option<&str>, container: &BTreeMap<String, String>) -> Labels {
    let mut labels = Labels::new();
    if let LabelSource::Prefix(prefix) = source {
        for (name, value) in container {
            if let Some(name) = name.strip_prefix(prefix.as_str())
                && !name.is_empty()
            {
                labels.insert(name.to_owned(), value.clone());
            }
        }
        if let Some(network) = network {
            labels.entry(NETWORK_LABEL.to_owned()).or_insert_with(|| network.to_owned());
        }
    }
    labels
}

/// True if Calico 3 takes the label; others are left out, because containers have labels of every form.
fn is_written(endpoint: &str, label: &str, value: &str) -> bool {
    match check_label(label, value) {
        Ok(()) => !OF_CALICO.contains(&label),
        Err(error) => {
            tracing::warn!(target: "tortie::docker", "endpoint {endpoint}: {error}; it is left out");
            false
        }
    }
}

/// Queries dockerd until it lists the container of an endpoint, then sets the endpoint's labels.
pub(super) async fn label(shared: Arc<Driver>, endpoint: String) {
    let begin = tokio::time::Instant::now();
    let mut pause = FIRST_LOOK;
    while begin.elapsed() < LOOKING {
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(Duration::from_secs(2));
        match shared.label_once(&endpoint).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::debug!(target: "tortie::docker", "labels of {endpoint}: {error}"),
        }
    }
    tracing::warn!(target: "tortie::docker", "endpoint {endpoint} has no labels: dockerd does not report its container; is --docker-api right?");
}

impl Driver {
    /// Tries once; `true` if the labels are set or the endpoint is gone.
    async fn label_once(&self, endpoint: &str) -> Result<bool, Refusal> {
        let item = DockerItem::Endpoint(endpoint.to_owned());
        let Some((record, _)) = self.state.get::<EndpointRecord>(&item).await? else { return Ok(true) };
        let Some(found) = self.dockerd.network(&record.network).await else { return Ok(false) };
        let Some((id, container_name)) = found.container_of(endpoint) else { return Ok(false) };
        let Some(container) = self.dockerd.container(&id).await else { return Ok(false) };
        let labels = container.labels();
        let record = EndpointRecord { container: Some(id.clone()), ..record };
        let name = match self.learn_name(&record.network).await {
            Some(name) => name,
            None => found.name,
        };
        let mut labels = labels_of(&self.options.labels, Some(&name), &labels);
        if !container_name.is_empty() {
            labels.entry(NAME_LABEL.to_owned()).or_insert(container_name);
        }
        let writer = attach::writer(&*self.state.store).await?;
        if writer.dialect() == Dialect::V3 {
            labels.retain(|label, value| is_written(endpoint, label, value));
        }
        // The endpoint is deleted, or `Join` has not written it yet.
        let Some(written) = stored_endpoint(&*self.state.store, &self.endpoint_key(endpoint)).await? else {
            return Ok(false);
        };
        let profile = writer.profile_name(&name);
        let same = written.endpoint.is_ok_and(|mut old| {
            let instance = old.active_instance_id.as_deref();
            old.labels.retain(|label, _| !OF_CALICO.contains(&label.as_str()));
            old.labels == labels && old.profile_ids.first() == Some(&profile) && instance == Some(id.as_str())
        });
        if !same {
            let network = NetworkRecord { name: Some(name), ..NetworkRecord::default() };
            self.write_endpoint(endpoint, &network, &record, &labels).await?;
        }
        self.share_profiles(&record.sandbox).await?;
        let mut gone = false;
        self.state
            .change(&item, |old: Option<EndpointRecord>| {
                gone = old.is_none();
                Ok(old.map(|old| EndpointRecord { labelled: true, container: Some(id.clone()), ..old }))
            })
            .await?;
        if gone {
            // The record was deleted meanwhile, so the endpoint that was just written must be removed, too.
            self.forget_endpoint(endpoint).await?;
        }
        Ok(true)
    }

    /// Returns the records that dockerd has forgotten.
    async fn forgotten(&self, holdings: &DockerState) -> Result<BTreeSet<DockerItem>, Refusal> {
        let forgotten = |listed: bool, since: i64, process: u64| {
            let served = (process != self.process).then(|| self.started_at.elapsed());
            is_forgotten(listed, now().saturating_sub(since), served)
        };
        let mut all = BTreeSet::new();
        for (item, record, _) in self.state.list::<AddressRecord>(RecordKind::Addresses).await? {
            let DockerItem::Address { addr, .. } = item else { continue };
            let pool = record.pool.parse::<PoolId>().map(|id| id.pool.to_string()).unwrap_or_default();
            let known = if record.gateway {
                holdings.subnets.contains(&pool)
            } else {
                holdings.addresses.contains(&addr)
            };
            if forgotten(known, record.since, record.process) {
                all.insert(item);
            }
        }
        for (item, record, _) in self.state.list::<EndpointRecord>(RecordKind::Endpoints).await? {
            let DockerItem::Endpoint(id) = &item else { continue };
            if forgotten(holdings.endpoints.contains(id), record.since, record.process) {
                all.insert(item);
            }
        }
        for (item, record, _) in self.state.list::<NetworkRecord>(RecordKind::Networks).await? {
            let DockerItem::Network(id) = &item else { continue };
            if forgotten(holdings.networks.contains(id), record.since, self.process) {
                all.insert(item);
            }
        }
        for driver in self.options.ipam_drivers() {
            for (item, _, _) in self.state.list::<PoolRecord>(RecordKind::Pools(driver)).await? {
                let DockerItem::Pool { id, .. } = &item else { continue };
                let Ok(id) = id.parse::<PoolId>() else { continue };
                if !holdings.subnets.contains(&id.pool.to_string()) {
                    all.insert(item);
                }
            }
        }
        Ok(all)
    }

    /// Deletes a forgotten record. Addresses whose interface still exists are in use, whatever dockerd lists.
    async fn let_go(&self, item: &DockerItem, living: &BTreeSet<std::net::IpAddr>) -> Result<(), Refusal> {
        match item {
            DockerItem::Address { addr, .. } => {
                if living.contains(addr) {
                    return Ok(());
                }
                let Some((record, _)) = self.state.get::<AddressRecord>(item).await? else { return Ok(()) };
                tracing::warn!(target: "tortie::docker", "{addr} is released: dockerd no longer has it");
                self.take_back(&record.driver, &record.pool.parse()?, *addr).await
            }
            DockerItem::Endpoint(id) => {
                tracing::warn!(target: "tortie::docker", "endpoint {id} is removed: dockerd no longer has it");
                self.forget_endpoint(id).await
            }
            DockerItem::Network(_) => {
                self.state.change(item, |_: Option<NetworkRecord>| Ok(None)).await.map(drop)
            }
            DockerItem::Pool { driver, id } => {
                let _lock = self.pools.lock().await;
                self.state
                    .change(item, |old: Option<PoolRecord>| Ok(old.map(|old| PoolRecord { refs: 0, ..old })))
                    .await?;
                self.clear_pool(driver, &id.parse()?).await
            }
            DockerItem::Epoch { .. } | DockerItem::Space { .. } => Ok(()),
        }
    }

    /// Checks once, and removes the objects that both this check and the one before found forgotten.
    pub(super) async fn collect(&self, before: &mut BTreeSet<DockerItem>) -> Result<(), Refusal> {
        may_remove(&*self.state.store).await?;
        let Some(holdings) = self.dockerd.holdings(&self.options.drivers()).await else {
            before.clear();
            return Ok(());
        };
        let forgotten = self.forgotten(&holdings).await?;
        let mut gone = Vec::new();
        let mut living = BTreeSet::new();
        for (item, record, _) in self.state.list::<EndpointRecord>(RecordKind::Endpoints).await? {
            let DockerItem::Endpoint(id) = &item else { continue };
            let host = host_interface(id)?;
            // The interface in a running container is the other end of the host's. dockerd moves it back to
            // the host when it removes a container, and it vanishes with a namespace that ends.
            if super::network::blocking(move || Ok(container::is_attached(&host)?)).await? {
                living.extend(record.addresses);
                continue;
            }
            if forgotten.contains(&item) && before.contains(&item) {
                gone.push(item);
            }
        }
        gone.extend(
            forgotten
                .iter()
                .filter(|i| before.contains(*i) && !matches!(i, DockerItem::Endpoint(_)))
                .cloned(),
        );
        // Pools are removed last, because they are kept while addresses of them exist.
        gone.sort_by_key(|item| matches!(item, DockerItem::Pool { .. }));
        for item in &gone {
            if let Err(error) = self.let_go(item, &living).await {
                tracing::warn!(target: "tortie::docker", "endpoints of containers that dockerd no longer \
                                                          has cannot be removed yet: {error}");
            }
        }
        *before = forgotten;
        Ok(())
    }
}

/// Labels the endpoints that an earlier process left unlabelled, then checks periodically for forgotten
/// objects.
pub(super) async fn run(shared: Arc<Driver>) {
    if let Ok(all) = shared.state.list::<EndpointRecord>(RecordKind::Endpoints).await {
        for (item, record, _) in all {
            let DockerItem::Endpoint(id) = item else { continue };
            if !record.gateways.is_empty() {
                tokio::spawn(sandbox::complete(shared.clone(), id.clone()));
            }
            if !record.labelled && shared.options.labels != LabelSource::Off {
                tokio::spawn(label(shared.clone(), id));
            }
        }
    }
    let mut before = BTreeSet::new();
    // The first two checks follow soon, to release what was deleted while no driver answered.
    let mut pauses = [REPEATS, SECOND_LOOK].into_iter();
    loop {
        tokio::time::sleep(pauses.next().unwrap_or(ROUND)).await;
        if let Err(error) = shared.collect(&mut before).await {
            tracing::debug!(target: "tortie::docker", "the clean-up of containers that dockerd no longer \
                                                       has failed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_listed_is_forgotten_when_it_cannot_be_on_its_way() {
        let served = |secs| Some(Duration::from_secs(secs));
        for (listed, age, others_for, forgotten) in [
            (true, 1_000_000, served(1_000_000), false),
            (false, 0, None, false),
            (false, YOUNG, None, false),
            (false, YOUNG + 1, None, true),
            // Allocated by an earlier process, however recently.
            (false, 0, served(0), false),
            (false, 0, served(19), false),
            (false, 0, served(20), true),
            // The clock was set back.
            (false, -100, None, false),
            (false, -100, served(20), true),
        ] {
            assert_eq!(is_forgotten(listed, age, others_for), forgotten, "{listed} {age} {others_for:?}");
        }
    }

    #[test]
    fn labels_with_the_prefix_become_the_endpoints() {
        let container: BTreeMap<String, String> = [
            ("org.projectcalico.label.role", "web"),
            ("org.projectcalico.label.", "nameless"),
            ("com.docker.compose.project", "shop"),
        ]
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .into();
        let prefix = LabelSource::Prefix("org.projectcalico.label.".to_owned());
        let labels = labels_of(&prefix, Some("blue"), &container);
        let text: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(text, ["docker.network=blue", "role=web"]);
        assert!(labels_of(&LabelSource::Off, Some("blue"), &container).is_empty());
        let all = labels_of(&LabelSource::Prefix(String::new()), None, &container);
        assert_eq!(all.len(), 3);
    }
}
