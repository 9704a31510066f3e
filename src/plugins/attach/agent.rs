//! Waits for the agent's confirmation that an endpoint is in force.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tortie_config::key::Key;

use super::endpoint::{Removed, Written};
use super::error::AttachError;
use crate::api::client::{Client, ClientErrorKind};
use crate::api::status::{Applied, AppliedRequest};
use tortie_store::Revision;

/// Interval of connection attempts to a socket at which no process listens.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time that a removal waits for the agent.
const DETACH_TIMEOUT: Duration = Duration::from_secs(1);

/// Behaviour if no agent listens (`agentAbsent`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AgentAbsent {
    /// Wait until the caller's deadline.
    Wait,
    /// Wait ten seconds, then fail.
    #[default]
    Error,
    /// Proceed without the agent, which finds the endpoint when it starts.
    Continue,
}

impl std::str::FromStr for AgentAbsent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "wait" => Ok(Self::Wait),
            "error" => Ok(Self::Error),
            "continue" => Ok(Self::Continue),
            _ => Err(format!("agentAbsent `{text}`: write wait, error or continue")),
        }
    }
}

/// The agent of this host, and the time limits for it.
#[derive(Debug, Clone)]
pub struct AgentClient {
    /// Path of its unix socket.
    pub socket: PathBuf,
    /// Behaviour if no agent listens.
    pub absent: AgentAbsent,
    /// Maximum time that the agent may take to put an endpoint in force.
    pub patience: Duration,
    /// Maximum wait for a missing agent with [`AgentAbsent::Error`].
    pub missing: Duration,
    /// End of the wait for a missing agent with [`AgentAbsent::Wait`]; `None` waits without limit.
    pub deadline: Option<Instant>,
    /// Time of the plugin call; the agent measures from it until the endpoint is in force.
    pub started_at: Option<Instant>,
}

impl AgentClient {
    /// Creates a client with the default limits: ten seconds for a missing agent, ten for a running one. The
    /// call starts now.
    #[must_use]
    pub fn new(socket: PathBuf, absent: AgentAbsent) -> Self {
        let ten = Duration::from_secs(10);
        Self { socket, absent, patience: ten, missing: ten, deadline: None, started_at: Some(Instant::now()) }
    }
}

/// Waits until a written endpoint is in force. Returns a note for the log, for example that no
/// agent runs and [`AgentAbsent::Continue`] permits it.
///
/// # Errors
/// [`AttachError::AgentAbsent`], [`AttachError::Timeout`], [`AttachError::NotReady`] if the agent is frozen,
/// [`AttachError::Failed`] with its reason.
pub async fn applied(agent: &AgentClient, written: &Written) -> Result<Option<String>, AttachError> {
    let key = Key::Endpoint(written.model_key.clone()).to_string();
    let begin = Instant::now();
    let give_up = match agent.absent {
        AgentAbsent::Continue => Some(begin),
        AgentAbsent::Error => Some(begin + agent.missing),
        AgentAbsent::Wait => agent.deadline,
    };
    let client = Client::new(&agent.socket);
    loop {
        let left = agent
            .deadline
            .map_or(agent.patience, |at| agent.patience.min(at.saturating_duration_since(Instant::now())));
        match ask(&client, &key, written.revision, left, agent.started_at).await {
            Ok(answer) => return wait_result(agent, &answer).map(|()| None),
            Err(error) if error.kind == ClientErrorKind::Absent || error.kind == ClientErrorKind::Broken => {
                if agent.absent == AgentAbsent::Continue {
                    return Ok(Some(format!("{error}; continued without it, as agentAbsent says")));
                }
                if give_up.is_some_and(|at| Instant::now() + RETRY_INTERVAL > at) {
                    return Err(AttachError::AgentAbsent(format!(
                        "{error}; waited {} s for it",
                        begin.elapsed().as_secs()
                    )));
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Err(error) if error.kind == ClientErrorKind::TimedOut => {
                return Err(AttachError::Timeout(error.text));
            }
            Err(error) => return Err(AttachError::AgentAbsent(error.text)),
        }
    }
}

/// Waits until the agent has processed the removal of the endpoint, at most a second. A missing agent is
/// ignored.
pub async fn departed(agent: &AgentClient, removed: &Removed) {
    let key = Key::Endpoint(removed.model_key.clone()).to_string();
    let left = agent
        .deadline
        .map_or(DETACH_TIMEOUT, |at| DETACH_TIMEOUT.min(at.saturating_duration_since(Instant::now())));
    let _ = ask(&Client::new(&agent.socket), &key, removed.revision, left, None).await;
}

async fn ask(
    client: &Client,
    key: &str,
    revision: Revision,
    wait: Duration,
    started_at: Option<Instant>,
) -> Result<Applied, crate::api::client::ClientError> {
    let wait_millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let elapsed_millis = started_at.map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
    let request = AppliedRequest { key: key.to_owned(), revision, wait_millis, elapsed_millis };
    // The agent itself answers `timeout` after `wait`; the call ends soon after that.
    client.post_within("/v1/applied", &request, wait + Duration::from_millis(500)).await
}

fn wait_result(agent: &AgentClient, answer: &Applied) -> Result<(), AttachError> {
    let reason = || answer.reason.clone().unwrap_or_else(|| "no reason given".to_owned());
    match answer.result.as_str() {
        "applied" => Ok(()),
        "frozen" => Err(AttachError::NotReady(reason())),
        "timeout" => Err(AttachError::Timeout(format!(
            "the agent at {} has not put the endpoint in force within {} s (it is at revision {}): try again later, \
             and see `tortie status`",
            agent.socket.display(),
            agent.patience.as_secs(),
            answer.revision
        ))),
        _ => Err(AttachError::Failed(reason())),
    }
}
