//! `setup`: checks that the plugin can work, and removes what earlier calls left.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use tortie_config::Dialect;
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::{EndpointKey, Key, Scope};
use tortie_config::resource::{Resource, WorkloadEndpoint};

use super::calls::{self, LEFTOVER_GRACE, ORCHESTRATOR, handle, tables};
use super::config::Settings;
use super::error::KurmaError;
use super::host::{HostAccess, open_host};
use crate::plugins::attach::{ready, stored_endpoints};
use crate::plugins::cni::NETWORK_LABEL;
use tortie_engine::ipam::{Ipam, Keyspace};
use tortie_engine::model::projected;
use tortie_engine::writer::StoredEndpoint;
use tortie_kernel::container;
use tortie_store::{Op, Outcome, Store, Txn};

/// Setting with the beginnings of the names of interfaces that the agent manages.
const INTERFACE_PREFIX: &str = "InterfacePrefix";

/// Checks the store by a read and a write, and the settings and the kernel by reads, then removes leftovers.
pub(super) async fn setup(settings: &Settings) -> Result<(), KurmaError> {
    host_network()?;
    let open_host = open_host(settings, None).await?;
    ready(&*open_host.store).await?;
    write(settings, &*open_host.store).await?;
    prefixes(settings, &*open_host.store).await?;
    container::orphans("tortie ")?;
    repair(settings, &open_host).await
}

/// Rejects a container with its own network namespace: there, every interface would appear to be gone, and
/// the repair would remove everything.
fn host_network() -> Result<(), KurmaError> {
    let id = |path: &str| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    match (id("/proc/1/ns/net"), id("/proc/self/ns/net")) {
        (Ok(host), Ok(own)) if host != own => Err(KurmaError(
            "this container has a network of its own: run it in the host's network namespace".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Writes a key of this call and deletes it.
async fn write(settings: &Settings, store: &dyn Store) -> Result<(), KurmaError> {
    let pid = std::process::id();
    let node = tortie_config::key::escape(&settings.node);
    let key = format!("/calico/tortie/v1/host/{node}/kurma/{}/{pid}", settings.config.name);
    let ops = [Op::Put { key: key.clone(), value: b"{}".to_vec(), lease: None }, Op::Delete { key }];
    for op in ops {
        let done = store.commit(Txn { compare: Vec::new(), ops: vec![op] }).await;
        let done = done.map_err(|error| KurmaError(format!("the store cannot be written: {error}")))?;
        if done == Outcome::Conflict {
            return Err(KurmaError("the store refuses a write without a condition".to_owned()));
        }
    }
    Ok(())
}

/// Checks that the agent handles this interface prefix; otherwise interfaces would get no routes and no
/// rules.
async fn prefixes(settings: &Settings, store: &dyn Store) -> Result<(), KurmaError> {
    let prefix = &settings.config.interface_prefix;
    let dialect = store.dialect().await?;
    let keys = prefix_settings(&settings.node);
    let found = match dialect {
        Dialect::V1 => {
            let texts = keys.map(|key| key.to_string());
            store.get_many(&texts).await?.into_iter().flatten().next()
        }
        Dialect::V3 => {
            let objects = [
                ObjectKey::prefix_of(Kind::FelixConfiguration),
                ObjectKey::global(Kind::Node, &settings.node).to_string(),
            ];
            let entries = projected(&settings.node, &store.list(&objects).await?).entries;
            let of = |key: &Key| entries.iter().find(|entry| entry.key == key.to_string());
            keys.iter().find_map(of).cloned()
        }
    };
    let list = found.map_or_else(|| b"cali".to_vec(), |found| found.value);
    let list = String::from_utf8_lossy(&list).trim().to_owned();
    if list.split(',').map(str::trim).any(|known| !known.is_empty() && prefix.starts_with(known)) {
        return Ok(());
    }
    let next_step = match dialect {
        Dialect::V1 => {
            let key = Key::Setting(Scope::Global, INTERFACE_PREFIX.to_owned());
            format!("run `tortie store put {key} {list},{prefix}`")
        }
        Dialect::V3 => {
            format!("set `interfacePrefix` of the FelixConfiguration `default` to `{list},{prefix}`")
        }
    };
    Err(KurmaError(format!(
        "`interface_prefix` is {prefix}, and the agent manages interfaces that begin with {list}: {next_step}"
    )))
}

/// Returns the keys of the setting in the v1 model, the one of the host first.
fn prefix_settings(node: &str) -> [Key; 2] {
    [Scope::Host(node.to_owned()), Scope::Global]
        .map(|scope| Key::Setting(scope, INTERFACE_PREFIX.to_owned()))
}

/// Removes what killed calls, and containers that ended while no daemon ran, left of this network on this
/// host.
async fn repair(settings: &Settings, open_host: &HostAccess) -> Result<(), KurmaError> {
    // An endpoint is written after its interface exists, so without an interface its container is gone.
    for (uuid, endpoint) in endpoints(settings, &*open_host.store).await? {
        if container::alias_of(&endpoint.name)?.is_none() {
            calls::clear(settings, open_host, &uuid, None).await?;
        }
    }
    let before = stray(settings, &*open_host.store).await?;
    if before.is_empty() {
        return Ok(());
    }
    tokio::time::sleep(LEFTOVER_GRACE).await;
    let after = stray(settings, &*open_host.store).await?;
    for left in before.intersection(&after) {
        match left {
            Leftover::Interface(name) => {
                if let Ok(name) = name.parse() {
                    container::unlimit(&name)?;
                    container::remove_link(&name)?;
                }
            }
            Leftover::Ports(table) => container::unmap_ports(table)?,
            Leftover::Addresses(handle) => {
                Ipam::new(open_host.store.clone()).release_handle(handle).await?;
            }
        }
    }
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Leftover {
    Interface(String),
    Ports(String),
    Addresses(String),
}

/// Returns interfaces, port mappings and addresses of this network without endpoint.
async fn stray(settings: &Settings, store: &dyn Store) -> Result<BTreeSet<Leftover>, KurmaError> {
    let prefix = format!("tortie {ORCHESTRATOR}/");
    let interfaces = container::orphans(&prefix)?;
    let mut mapped: BTreeSet<String> =
        container::mapped_tables(&settings.ports_prefix)?.into_iter().collect();
    mapped.extend(container::mapped_tables(&settings.former_ports_prefix)?);
    let handles = handles(settings, store).await?;
    // Endpoints are read last, so that those of concurrent calls are included.
    let all = all_endpoints(settings, store).await?;
    let mut stray = BTreeSet::new();
    for (name, _) in interfaces {
        let ours = name.starts_with(&settings.config.interface_prefix);
        if ours && !all.iter().any(|(_, _, endpoint)| endpoint.name.as_str() == name) {
            stray.insert(Leftover::Interface(name));
        }
    }
    let known: BTreeSet<String> =
        all.iter().flat_map(|(uuid, ifname, _)| tables(settings, uuid, ifname)).collect();
    stray.extend(mapped.into_iter().filter(|table| !known.contains(table)).map(Leftover::Ports));
    let known: BTreeSet<String> = all.iter().map(|(uuid, ..)| handle(settings, uuid)).collect();
    stray.extend(handles.into_iter().filter(|handle| !known.contains(handle)).map(Leftover::Addresses));
    Ok(stray)
}

type Endpoint = (String, String, WorkloadEndpoint);

/// Returns Kurma's endpoints on this host: container, interface, value.
async fn all_endpoints(settings: &Settings, store: &dyn Store) -> Result<Vec<Endpoint>, KurmaError> {
    let read = |stored: StoredEndpoint| match stored.key {
        EndpointKey::Workload { orchestrator, workload, endpoint, .. } if orchestrator == ORCHESTRATOR => {
            Some((workload, endpoint, stored.endpoint.ok()?))
        }
        _ => None,
    };
    Ok(stored_endpoints(store, &settings.node).await?.into_iter().filter_map(read).collect())
}

/// Returns Kurma's endpoints of this network on this host.
async fn endpoints(
    settings: &Settings,
    store: &dyn Store,
) -> Result<Vec<(String, WorkloadEndpoint)>, KurmaError> {
    let mut all = all_endpoints(settings, store).await?;
    all.retain(|(.., endpoint)| endpoint.labels.get(NETWORK_LABEL) == Some(&settings.config.name));
    Ok(all.into_iter().map(|(uuid, _, endpoint)| (uuid, endpoint)).collect())
}

/// Returns the handles of this network's addresses in this host's own blocks.
async fn handles(settings: &Settings, store: &dyn Store) -> Result<BTreeSet<String>, KurmaError> {
    let space = Keyspace::of(store.dialect().await?);
    let mut found = BTreeSet::new();
    for entry in store.list(&[space.affinities(&settings.node)]).await?.entries {
        let Ok(Key::Affinity { block, .. }) = entry.key.parse::<Key>() else { continue };
        let Some(value) = store.get(&space.block(&block)).await? else { continue };
        let Ok(Resource::Block(block)) = Resource::parse(&Key::Block(block), &value.value) else { continue };
        for (_, attribute) in block.allocated() {
            let ours = attribute.get("orchestrator") == Some(ORCHESTRATOR)
                && attribute.get("network") == Some(settings.config.name.as_str())
                && attribute.get("node") == Some(settings.node.as_str());
            found.extend(attribute.handle.clone().filter(|_| ours));
        }
    }
    Ok(found)
}
