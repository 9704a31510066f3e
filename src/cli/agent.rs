//! `tortie agent`: runs the agent in this process.

use std::path::PathBuf;

use clap::Args;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::store::store_options;
use crate::agent::{self, AgentError, AgentOptions, Settings};
use tortie_store::StoreOptions;

/// Arguments of `tortie agent`.
#[derive(Debug, Args)]
pub(super) struct AgentCommand {
    #[command(flatten)]
    settings: Settings,
    /// Settings file (TOML, keys are the names of flags); flags and environment variables override it
    #[arg(long, value_name = "FILE", env = "TORTIE_CONFIG")]
    config: Option<PathBuf>,
}

pub(super) fn run(context: &Context, command: &AgentCommand) -> Result<(), Failure> {
    let mut settings = command.settings.clone();
    if let Some(path) = &command.config {
        settings = settings.or(Settings::from_file(path).map_err(Failure::usage)?);
    }
    settings.check().map_err(Failure::usage)?;
    let options = AgentOptions {
        node: context.globals.node_name()?,
        settings,
        store: StoreOptions { checked: true, ..store_options(&context.globals, true) },
        socket: context.globals.socket.clone(),
    };
    agent::run(options).map_err(|error| match error {
        AgentError::Settings(text) => Failure::usage(text),
        AgentError::Store(error) => error.into(),
        AgentError::Taken(text) => Failure::new(Exit::Refused, "address-taken", text),
        AgentError::Twin(text) => Failure::new(Exit::Refused, "duplicate-node", text),
        AgentError::NamespaceTaken(text) => Failure::new(Exit::Refused, "namespace-taken", text),
        AgentError::Docker(error) => Failure::new(Exit::Refused, "docker", error.to_string()),
        AgentError::Serve(error) => Failure::new(Exit::Refused, "serve", error.to_string()),
        AgentError::System(..) => Failure::new(Exit::Permission, "system", error.to_string()),
    })
}
