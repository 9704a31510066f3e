//! `tortie kurma`: calls the network plugin of Kurma by hand.

use clap::{Args, Subcommand};

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::write_out;
use super::store::store_options;
use crate::plugins::kurma::{self, Verb};

/// Subcommands of `tortie kurma`: the verbs of Kurma's daemon.
#[derive(Debug, Subcommand)]
pub(super) enum KurmaCommand {
    /// Check the store and the settings, and clean up what is left over
    Setup,
    /// The same, and stay until a stop signal (Kurma's second generation)
    SetupWait,
    /// Connect a container; prints its addresses as a CNI result
    Add(Container),
    /// Disconnect a container
    Del(Container),
}

/// Arguments that identify a container.
#[derive(Debug, Args)]
pub(super) struct Container {
    /// Path of its network namespace
    netns: String,
    /// Its UUID
    uuid: String,
    /// The interface in it
    #[arg(default_value = "eth0")]
    interface: String,
}

pub(super) fn run(context: &Context, command: &KurmaCommand) -> Result<(), Failure> {
    // The flag overrides the configuration; the environment does not, as for Kurma's daemon.
    let store = context.globals.datastore_given.then(|| store_options(&context.globals, false));
    let words = |c: &Container| vec![c.netns.clone(), c.uuid.clone(), c.interface.clone()];
    let (verb, args) = match command {
        KurmaCommand::Setup => (Verb::Setup, Vec::new()),
        KurmaCommand::SetupWait => (Verb::SetupWait, Vec::new()),
        KurmaCommand::Add(container) => (Verb::Add, words(container)),
        KurmaCommand::Del(container) => (Verb::Del, words(container)),
    };
    match kurma::on_stdin(verb, &args, store) {
        Ok(Some(answer)) => write_out(&format!("{answer}\n")),
        Ok(None) => Ok(()),
        Err(error) => Err(Failure::new(Exit::No, "kurma", error.to_string())),
    }
}
