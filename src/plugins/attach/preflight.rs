//! Before a plugin writes anything: is this the host that the call is for, and does its agent act on the store?

use std::time::{Duration, Instant};

use tortie_config::key::Key;

use super::agent::{AgentAbsent, AgentClient};
use super::error::AttachError;
use crate::api::client::{Client, ClientErrorKind};
use crate::api::machine::Machine;
use crate::api::nodes::NodeStatus;
use crate::api::status::AgentIdentity;
use tortie_engine::ipam::{ExcludedPrefix, Exclusions};
use tortie_kernel::ConnectedNetwork;
use tortie_store::{Store, StoreError};

/// How often a socket that nobody listens at is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// How long a question that writes nothing waits for the agent.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Who waits for an agent that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// This call, as `agentAbsent` says: it needs the agent at its end.
    Waits,
    /// Another call.
    Passes,
}

/// Refuses a call for another host than this machine's agent is, one whose name another machine has, and one while the agent acts
/// on nothing. Gives the addresses that no pool gives on this host.
///
/// # Errors
/// [`AttachError::Invalid`] for the wrong host, [`AttachError::NotReady`] while the agent is frozen, [`AttachError::AgentAbsent`]
/// as [`applied`](super::applied).
pub async fn preflight(
    store: &dyn Store,
    agent: &AgentClient,
    node: &str,
    absent: Absent,
) -> Result<Exclusions, AttachError> {
    let begin = Instant::now();
    let give_up = match agent.absent {
        _ if absent == Absent::Passes => Some(begin),
        AgentAbsent::Continue => Some(begin),
        AgentAbsent::Error => Some(begin + agent.missing),
        AgentAbsent::Wait => agent.deadline,
    };
    let client = Client::new(&agent.socket);
    let mut is_first = true;
    loop {
        match client.get_within::<AgentIdentity>("/v1/identity", agent.patience).await {
            Ok(identity) => return judge(identity, node),
            // An agent of another version.
            Err(error) if error.kind == ClientErrorKind::NotFound || error.code == "version-skew" => {
                return Ok(own_exclusions(node).await);
            }
            Err(error) if matches!(error.kind, ClientErrorKind::Absent | ClientErrorKind::Broken) => {
                if std::mem::take(&mut is_first) {
                    refuse_twin(store, node).await?;
                }
                if give_up.is_some_and(|at| Instant::now() + RETRY_INTERVAL > at) {
                    if absent == Absent::Passes || agent.absent == AgentAbsent::Continue {
                        return Ok(own_exclusions(node).await);
                    }
                    let waited = begin.elapsed().as_secs();
                    return Err(AttachError::AgentAbsent(format!("{error}; waited {waited} s for it")));
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Err(error) if error.kind == ClientErrorKind::TimedOut => {
                return Err(AttachError::Timeout(error.text));
            }
            Err(_) if absent == Absent::Passes => return Ok(own_exclusions(node).await),
            Err(error) => return Err(AttachError::AgentAbsent(error.text)),
        }
    }
}

fn judge(identity: AgentIdentity, node: &str) -> Result<Exclusions, AttachError> {
    if identity.node != node {
        return Err(AttachError::Invalid(format!(
            "this call is for the host {node}, and the agent of this machine is {}'s: nothing is written; set the same name for both \
             (`node` of the configuration, TORTIE_NODE, --node)",
            identity.node
        )));
    }
    match identity.frozen {
        Some(reason) => Err(AttachError::NotReady(reason)),
        None => Ok(identity.excluded),
    }
}

/// The addresses that no pool gives on this host, for a question that writes nothing.
pub async fn exclusions(agent: &AgentClient, node: &str) -> Exclusions {
    let client = Client::new(&agent.socket);
    match client.get_within::<AgentIdentity>("/v1/identity", QUESTION_TIMEOUT).await {
        Ok(identity) if identity.node == node => identity.excluded,
        _ => own_exclusions(node).await,
    }
}

/// Without an agent this host's kernel says which networks the host is connected to; all else the store has. A network that Docker made
/// may have its addresses from a pool, which only the agent can tell.
async fn own_exclusions(node: &str) -> Exclusions {
    let look = || tortie_kernel::host_networks().unwrap_or_default();
    let found = tokio::task::spawn_blocking(look).await.unwrap_or_default();
    let machines = found.iter().filter(|found| found.interface == "docker0" || !found.is_of_docker());
    Exclusions { prefixes: machines.map(|found| excluded(found, node)).collect(), complete: false }
}

/// What no pool gives of a network that a host is connected to.
#[must_use]
pub fn excluded(found: &ConnectedNetwork, node: &str) -> ExcludedPrefix {
    let ConnectedNetwork { interface, network, .. } = found;
    let holder = if network.is_host() {
        format!("an address of {interface} on host {node}")
    } else {
        format!("a network that host {node} is connected to by {interface}")
    };
    ExcludedPrefix { cidr: *network, holder }
}

/// Without an agent here, the status key of the host tells whether one runs elsewhere.
async fn refuse_twin(store: &dyn Store, node: &str) -> Result<(), AttachError> {
    let Some(own) = Machine::by_machine_id() else { return Ok(()) };
    twin(store, node, &own).await?.map_or(Ok(()), |twin| Err(AttachError::Invalid(twin)))
}

/// A sentence when the agent of another machine runs under this host's name: its status key is leased.
///
/// # Errors
/// When the store cannot be asked.
pub async fn twin(store: &dyn Store, node: &str, own: &Machine) -> Result<Option<String>, StoreError> {
    let key = Key::TortieStatus { host: node.to_owned() }.to_string();
    let found = store.get(&key).await?;
    Ok(found.as_ref().and_then(NodeStatus::read).and_then(|status| status.twin_of(own)))
}
