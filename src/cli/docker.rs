//! `tortie docker`: runs the Docker drivers in a process of their own.

use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::context::{Context, runtime};
use super::failure::{Exit, Failure};
use super::store::store_options;
use crate::plugins::attach::{AgentAbsent, AgentClient};
use crate::plugins::docker::{self, LabelSource, Options};
use tortie_kernel::Namespaces;

/// Arguments of `tortie docker`: the agent's flags that begin with `--docker`, without that prefix.
#[derive(Debug, Args)]
pub(super) struct DockerCommand {
    /// Also serve the driver names calico and calico-ipam
    #[arg(long, env = "TORTIE_DOCKER_COMPAT")]
    compat: bool,
    /// Folder for the drivers' sockets
    #[arg(long, value_name = "DIR", env = "TORTIE_DOCKER_DIR", default_value = docker::PLUGINS)]
    dir: PathBuf,
    /// Socket of dockerd, from which names and labels of containers are read
    #[arg(long, value_name = "PATH", env = "TORTIE_DOCKER_API", default_value = docker::API)]
    api: PathBuf,
    /// Prefix of the container labels that become endpoint labels; `none` for no labels
    #[arg(long, value_name = "PREFIX", env = "TORTIE_DOCKER_LABELS", default_value = docker::LABEL_PREFIX)]
    labels: LabelSource,
    /// Behaviour while no agent answers: wait, error (after 10 s) or continue
    #[arg(long, value_name = "WHAT", default_value = "error")]
    agent_absent: AgentAbsent,
}

pub(super) fn run(context: &Context, command: &DockerCommand) -> Result<(), Failure> {
    let options = Options {
        node: context.globals.node_name()?,
        agent: AgentClient::new(context.globals.socket.clone(), command.agent_absent),
        dir: command.dir.clone(),
        compat: command.compat,
        api: command.api.clone(),
        labels: command.labels.clone(),
        namespaces: Namespaces::Direct,
    };
    let logs = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO);
    // This fails only if the process already has a subscriber.
    let _ = logs.try_init();
    runtime()?.block_on(async {
        let store = tortie_store::open(&store_options(&context.globals, true)).await?;
        let stopped = |e| Failure::new(Exit::Permission, "system", format!("cannot wait for signals: {e}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(stopped)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(stopped)?;
        let running = docker::serve(store, options)
            .map_err(|error| Failure::new(Exit::Refused, "docker", error.to_string()))?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        running.stop();
        Ok(())
    })
}
