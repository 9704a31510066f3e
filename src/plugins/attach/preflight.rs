//! Checks before a plugin writes: the call is for this host, no other machine uses its name, and its agent
//! acts on the store.

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

/// Interval of connection attempts to a socket at which no process listens.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum wait for the agent in calls that write nothing.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);

/// The call that waits for a missing agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// This call waits as `agentAbsent` says, because it needs the agent at its end.
    Waits,
    /// This call does not wait; a later one does.
    Passes,
}

/// Rejects a call for another host than the agent's, a host name that another machine uses, and calls while
/// the agent is frozen. Returns the addresses that are never allocated on this host.
///
/// # Errors
/// [`AttachError::Invalid`] for the wrong host, [`AttachError::NotReady`] while the agent is frozen,
/// [`AttachError::AgentAbsent`] as [`applied`](super::applied).
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
            // An agent of another version, which lacks this request.
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
            "this call is for the host {node}, and the agent of this machine runs as {}: nothing is \
             written; set the same name for both (`node` of the configuration, TORTIE_NODE, --node)",
            identity.node
        )));
    }
    match identity.frozen {
        Some(reason) => Err(AttachError::NotReady(reason)),
        None => Ok(identity.excluded),
    }
}

/// Returns the addresses that are never allocated on this host, for a call that writes nothing.
pub async fn exclusions(agent: &AgentClient, node: &str) -> Exclusions {
    let client = Client::new(&agent.socket);
    match client.get_within::<AgentIdentity>("/v1/identity", QUESTION_TIMEOUT).await {
        Ok(identity) if identity.node == node => identity.excluded,
        _ => own_exclusions(node).await,
    }
}

/// Computes the exclusions without an agent, from the networks that the kernel is connected to; the store has
/// all others. A network that Docker created may have addresses from a pool, which only the agent knows, so
/// it is left out.
async fn own_exclusions(node: &str) -> Exclusions {
    let look = || tortie_kernel::host_networks().unwrap_or_default();
    let found = tokio::task::spawn_blocking(look).await.unwrap_or_default();
    let machines = found.iter().filter(|found| found.interface == "docker0" || !found.is_of_docker());
    Exclusions { prefixes: machines.map(|found| excluded(found, node)).collect(), complete: false }
}

/// Returns the exclusion for a network that a host is connected to.
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

/// Rejects the call if the status key of the host shows that its agent runs on another machine.
async fn refuse_twin(store: &dyn Store, node: &str) -> Result<(), AttachError> {
    let Some(own) = Machine::by_machine_id() else { return Ok(()) };
    twin(store, node, &own).await?.map_or(Ok(()), |twin| Err(AttachError::Invalid(twin)))
}

/// Returns an error text if the agent of another machine runs under this host's name, which its leased status
/// key shows.
///
/// # Errors
/// If the store cannot be read.
pub async fn twin(store: &dyn Store, node: &str, own: &Machine) -> Result<Option<String>, StoreError> {
    let key = Key::TortieStatus { host: node.to_owned() }.to_string();
    let found = store.get(&key).await?;
    Ok(found.as_ref().and_then(NodeStatus::read).and_then(|status| status.twin_of(own)))
}
