//! One plugin call: its input, and functions that the main plugin and the IPAM plugin share.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tortie_config::key::{EndpointKey, Key};
use tortie_config::resource::{Resource, WorkloadEndpoint};

use crate::plugins::attach::{AgentClient, AttachError, may_remove, stored_endpoint, stored_endpoints};
use crate::plugins::cni::addresses::names::{Identity, NETWORK_LABEL, handle};
use crate::plugins::cni::config::args::EnvArgs;
use crate::plugins::cni::config::datastore;
use crate::plugins::cni::config::{Attachment, Config};
use crate::plugins::cni::delegate::Delegate;
use crate::plugins::cni::protocol::env::{Command, Env};
use crate::plugins::cni::protocol::error::{CniError, code};
use tortie_engine::ipam::{Ipam, Keyspace};
use tortie_engine::writer::StoredEndpoint;
use tortie_store::{Purpose, Store, StoreUrl};

/// Default path of the agent's socket.
const SOCKET: &str = "/run/tortie/tortie.sock";

/// One plugin call with its parsed input.
pub(super) struct Call {
    pub(super) env: Env,
    pub(super) args: EnvArgs,
    pub(super) config: Config,
    pub(super) node: String,
    /// Start of the call.
    pub(super) started_at: std::time::Instant,
    /// Unparsed configuration, for delegated plugins.
    pub(super) input: Vec<u8>,
}

impl From<AttachError> for CniError {
    fn from(error: AttachError) -> Self {
        use tortie_kernel::container::ContainerNetError;
        let number = match &error {
            _ if error.try_later() => code::TRY_AGAIN,
            AttachError::Network(
                ContainerNetError::NoNamespace(_)
                | ContainerNetError::NotNamespace { .. }
                | ContainerNetError::OwnNamespace(_),
            ) => code::ENVIRONMENT,
            AttachError::Network(_) => code::KERNEL,
            AttachError::Failed(_) => code::AGENT,
            AttachError::Invalid(_) => code::CONFIG,
            AttachError::Unreadable { .. } => code::STORE,
            _ => code::IO,
        };
        let msg = match number {
            code::ENVIRONMENT => format!("CNI_NETNS: {error}"),
            _ => error.to_string(),
        };
        Self::new(number, msg)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Returns this host's name: from the configuration, the environment or the kernel, in this order.
pub(super) fn node(config: &Config) -> Result<String, CniError> {
    let system = || {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Some(name).filter(|name| !name.is_empty() && name != "(none)")
    };
    let found = config.node.clone().or_else(|| variable("TORTIE_NODE")).or_else(system);
    found.ok_or_else(|| CniError::new(code::CONFIG, "this host has no name: set `node` in the configuration"))
}

impl Call {
    /// Opens the store.
    pub(super) async fn store(&self) -> Result<Arc<dyn Store>, CniError> {
        let options = datastore::options(self.config.datastore.as_ref(), |name| std::env::var_os(name))?;
        let url = &options.url;
        let store = tortie_store::open(&options).await.map_err(|error| {
            let error = CniError::from(error);
            let msg = format!("the data model at {url} cannot be used: {error}; does the agent run, and is `datastore` right?");
            CniError { msg, ..error }
        })?;
        if self.env.command != Command::Check {
            store.may_write(Purpose::Cni).await?;
        }
        if matches!(self.env.command, Command::Del | Command::Gc) {
            may_remove(&*store).await?;
        }
        Ok(store)
    }

    /// True if the store is a file that does not exist: then Tortie never allocated anything.
    pub(super) fn no_store(&self) -> bool {
        let options = datastore::options(self.config.datastore.as_ref(), |name| std::env::var_os(name));
        options
            .is_ok_and(|options| matches!(options.url.parse(), Ok(StoreUrl::Sqlite(path)) if !path.exists()))
    }

    /// Returns the client of this host's agent.
    pub(super) fn agent(&self) -> AgentClient {
        let socket = self.config.socket.clone();
        let socket = socket.or_else(|| variable("TORTIE_SOCKET").map(PathBuf::from));
        let agent = AgentClient::new(socket.unwrap_or_else(|| SOCKET.into()), self.config.agent_absent);
        AgentClient { started_at: Some(self.started_at), ..agent }
    }

    /// Computes the names of the attachment.
    pub(super) fn identity(&self) -> Result<Identity, CniError> {
        Identity::new(&self.config, &self.args, &self.node, &self.env.container_id, &self.env.ifname)
    }

    /// Returns the delegated IPAM plugin, if the configuration names one.
    pub(super) fn delegate(&self) -> Result<Option<Delegate>, CniError> {
        let name = self.config.ipam.foreign.as_deref();
        name.map(|name| Delegate::find(name, &self.env.path)).transpose()
    }

    /// Calls the delegated IPAM plugin, if there is one.
    pub(super) async fn forward(&self, command: Command) -> Result<(), CniError> {
        match self.delegate()? {
            Some(delegate) => delegate.call(command, &self.input).await.map(drop),
            None => Ok(()),
        }
    }
}

/// An endpoint of this host that a CNI runtime created.
#[derive(Debug, Clone)]
pub(super) struct ExistingAttachment {
    pub(super) key: EndpointKey,
    pub(super) attachment: Attachment,
    pub(super) endpoint: WorkloadEndpoint,
}

impl ExistingAttachment {
    /// Returns its addresses.
    pub(super) fn addrs(&self) -> Vec<IpAddr> {
        self.endpoint.nets().map(|net| net.addr()).collect()
    }

    /// Returns the name of its network.
    pub(super) fn network(&self) -> Option<&str> {
        self.endpoint.labels.get(NETWORK_LABEL).map(String::as_str)
    }
}

fn existing(stored: StoredEndpoint) -> Option<ExistingAttachment> {
    let StoredEndpoint { key, instance, endpoint, .. } = stored;
    let EndpointKey::Workload { orchestrator, workload, endpoint: ifname, .. } = &key else { return None };
    let container_id = match orchestrator.as_str() {
        "k8s" => instance?,
        "cni" => instance.unwrap_or_else(|| workload.clone()),
        _ => return None,
    };
    let attachment = Attachment { container_id, ifname: ifname.clone() };
    Some(ExistingAttachment { key, attachment, endpoint: endpoint.ok()? })
}

/// Returns the endpoint at a key, if it exists and can be parsed.
pub(super) async fn endpoint_at(
    store: &dyn Store,
    key: &EndpointKey,
) -> Result<Option<ExistingAttachment>, CniError> {
    Ok(stored_endpoint(store, key).await?.and_then(existing))
}

/// Returns the endpoints of this host that CNI runtimes created.
pub(super) async fn endpoints_of(store: &dyn Store, node: &str) -> Result<Vec<ExistingAttachment>, CniError> {
    Ok(stored_endpoints(store, node).await?.into_iter().filter_map(existing).collect())
}

/// Releases the addresses of this network in this host's own blocks whose attachment is not valid any more.
/// Their attributes, not the beginning of their handle, show the network, because names may contain dots.
pub(super) async fn collect(
    ipam: &Ipam,
    network: &str,
    node: &str,
    valid: &[Attachment],
) -> Result<Vec<IpAddr>, CniError> {
    let store = ipam.store();
    let space = Keyspace::of(store.dialect().await?);
    let affinities = store.list(&[space.affinities(node)]).await?;
    let mut collected = Vec::new();
    for entry in affinities.entries {
        let Ok(Key::Affinity { block, .. }) = entry.key.parse::<Key>() else { continue };
        let Some(value) = store.get(&space.block(&block)).await? else { continue };
        let Ok(Resource::Block(block)) = Resource::parse(&Key::Block(block), &value.value) else { continue };
        let mut stale: Vec<(String, Vec<IpAddr>)> = Vec::new();
        for (ordinal, attribute) in block.allocated() {
            let ours = attribute.get("network") == Some(network)
                && attribute.get("node") == Some(node)
                && attribute.get("type").is_none();
            let (Some(held), true) = (attribute.handle.as_deref(), ours) else { continue };
            if valid.iter().any(|valid| handle(network, &valid.container_id, &valid.ifname) == held) {
                continue;
            }
            let Some(addr) = block.cidr().nth(ordinal.into()) else { continue };
            match stale.iter_mut().find(|(handle, _)| handle == held) {
                Some((_, addrs)) => addrs.push(addr),
                None => stale.push((held.to_owned(), vec![addr])),
            }
        }
        for (handle, addrs) in stale {
            collected.extend(ipam.release(&addrs, Some(&handle)).await?.released);
        }
    }
    Ok(collected)
}

/// Result of a successful call without output.
pub(super) const NO_RESULT: Option<Value> = None;
