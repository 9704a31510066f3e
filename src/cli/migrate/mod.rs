//! `tortie migrate`: a host from Calico's daemons to Tortie and back, in place, while its workloads talk.
//!
//! What it does: looks (`check`), says what would happen (`plan`), moves (`adopt`), and moves back from wherever it stands
//! (`rollback`). What it does not: change the store, touch connections, decide what routes and rules should be (the agent
//! does), or end a process that was not named to it.
//!
//! ```text
//!   check.rs  --> findings          daemons.rs  processes of Calico; how they are ended
//!   plan.rs   --> steps in words    trial.rs    an observing agent compares      ours.rs  the agent that takes over
//!   boot.rs   which units start at the next boot                 restarts.rs  of BIRD and its peers, under way
//!   adopt.rs ---+--> journal.rs (what was begun, the snapshot; on disk first)
//!   rollback.rs +--> kernel::handover (routes, our rules), tools.rs + rules.rs (Felix's rules and sets)
//! ```

mod adopt;
mod agent;
mod boot_units;
mod check;
mod compare;
mod daemons;
mod journal;
mod plan;
mod report;
mod restarts;
mod rollback;
mod rules;
mod tools;
mod trial;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use self::daemons::StopWith;
use self::journal::{Journal, Phase};
use super::context::Context;
use super::failure::{Exit, Failure};

/// Where a move keeps what was begun, unless another directory is named.
pub(super) const STATE_DIR: &str = "/var/lib/tortie/migrate";

/// `tortie migrate`.
#[derive(Debug, Subcommand)]
pub(super) enum MigrateCommand {
    /// Can this host be moved: what is there, what is not supported, what has to be fixed first; exit 1 when it cannot
    Check(CheckCommand),
    /// The exact steps of adopt, what packets notice of each, and its way back; changes nothing
    Plan(Box<AdoptCommand>),
    /// Take this host over from BIRD and Felix; goes on where it was cut off
    Adopt(Box<AdoptCommand>),
    /// Give this host back to BIRD and Felix, from wherever adopt stands
    Rollback(RollbackCommand),
}

/// Options of all of them.
#[derive(Debug, Clone, Args)]
pub(super) struct Common {
    /// Keep what was begun, and what was there before, in this folder
    #[arg(long, value_name = "DIR", env = "TORTIE_MIGRATE_STATE", default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// Protocol number of Tortie's kernel routes, as the agent has it
    #[arg(long, value_name = "N", env = "TORTIE_ROUTE_PROTOCOL", default_value_t = 179, value_parser = clap::value_parser!(u8).range(5..))]
    route_protocol: u8,
    /// Metric of Tortie's kernel routes, as the agent has it
    #[arg(long, value_name = "N", env = "TORTIE_ROUTE_METRIC", default_value_t = 1790, value_parser = clap::value_parser!(u32).range(1..))]
    route_metric: u32,
    /// Seconds to wait for anything that takes time: peers, the agent, Felix
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    wait: u64,
}

/// Where BIRD is asked.
#[derive(Debug, Clone, Args)]
pub(super) struct Sockets {
    /// BIRD's control sockets, where they are not in their usual place (/var/run/calico, /run/bird)
    #[arg(long, value_name = "PATH", env = "TORTIE_BIRD_SOCKET", value_delimiter = ',')]
    bird_socket: Vec<PathBuf>,
}

/// `tortie migrate check`.
#[derive(Debug, Clone, Args)]
pub(super) struct CheckCommand {
    #[command(flatten)]
    sockets: Sockets,
    #[command(flatten)]
    common: Common,
}

/// `tortie migrate adopt` and `plan`.
#[derive(Debug, Clone, Args)]
pub(super) struct AdoptCommand {
    #[command(flatten)]
    stop: StopWith,
    /// Starts our agent, which has to program the kernel; run by `sh -c`
    #[arg(long, value_name = "COMMAND", default_value = "systemctl start tortie.service")]
    agent_with: String,
    /// Take the host over although Calico and Tortie do not want the same
    #[arg(long)]
    accept_differences: bool,
    /// Compare and say the steps; change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    sockets: Sockets,
    #[command(flatten)]
    common: Common,
}

/// `tortie migrate rollback`.
#[derive(Debug, Clone, Args)]
pub(super) struct RollbackCommand {
    /// Starts Calico's daemons; run by `sh -c`. Units that `adopt --unit` stopped are started without it [example: docker start
    /// calico-node]
    #[arg(long, value_name = "COMMAND")]
    start_with: Option<String>,
    /// Restore saved rules although workloads came since, whose packets Felix's rules drop until it runs
    #[arg(long)]
    accept_differences: bool,
    /// Say the steps; change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    common: Common,
}

/// For who takes away what a move needs: passes where none was begun, or where it is at one of its ends.
///
/// # Errors
/// When one is under way, with both ways out of it; or when what was begun cannot be read.
pub(super) fn refuse_while_moving(state_dir: &Path) -> Result<(), Failure> {
    let Some(record) = Journal::peek(state_dir)? else { return Ok(()) };
    let ways = match record.phase {
        Phase::Adopted | Phase::RolledBack => return Ok(()),
        Phase::Adopting => {
            "bring it to its end (tortie migrate adopt) or give the host back (tortie migrate rollback)"
        }
        Phase::RollingBack => "bring it to its end (tortie migrate rollback)",
    };
    let text = format!(
        "a move from Calico was begun on this host and is {} ({}); without Tortie's routes and rules its workloads would have \
         none: {ways} first",
        record.phase.as_str(),
        state_dir.display()
    );
    Err(Failure::new(Exit::Refused, "moving", text))
}

/// Whether a move was begun here, whatever came of it.
pub(super) fn has_state(state_dir: &Path) -> bool {
    !matches!(Journal::peek(state_dir), Ok(None))
}

pub(super) async fn run(context: &Context, command: &MigrateCommand) -> Result<(), Failure> {
    match command {
        MigrateCommand::Check(command) => check::run(context, command).await,
        MigrateCommand::Plan(command) => adopt::plan(context, command),
        MigrateCommand::Adopt(command) => adopt::run(context, command).await,
        MigrateCommand::Rollback(command) => rollback::run(context, command).await,
    }
}
