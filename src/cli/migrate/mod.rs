//! `tortie migrate`: moves a host from Calico's daemons to Tortie and back, in place, without interrupting
//! its workloads.
//!
//! `check` looks for obstacles, `plan` describes the steps, `adopt` carries them out, and `rollback` reverts
//! them from any state. `data` converts the data model for another store. The others do not change it, do not
//! touch connections, do not compute routes and rules (the agent does), and stop no process that was not named.
//!
//! ```text
//!   check.rs  --> obstacles         daemons.rs  processes of Calico, and stopping them
//!   plan.rs   --> steps in words    trial.rs    comparison by an agent in observe mode
//!   agent.rs  the agent that takes over         boot_units.rs  units that start at boot
//!   restarts.rs  graceful restarts of BIRD and its peers in progress
//!   adopt.rs ---+--> journal.rs (steps and snapshot, on disk first)
//!   data/ ---> tortie_config::calico3::convert, another store
//!   rollback.rs +--> kernel::handover (routes, devices, Tortie's rules), tools.rs + rules.rs (Felix's rules and
//!                    sets)
//! ```

mod adopt;
mod agent;
mod args;
mod boot_units;
mod check;
mod daemons;
mod data;
mod journal;
mod plan;
mod report;
mod restarts;
mod rollback;
mod rules;
mod tools;
mod trial;

use std::path::Path;

use self::journal::Journal;
use super::context::Context;
use super::failure::{Exit, Failure};
use crate::host_checks::MigrationPhase;

pub(super) use self::args::{MigrateCommand, STATE_DIR};

/// Rejects a command that would remove what a migration needs; passes if no migration was begun, or if it is
/// complete.
///
/// # Errors
/// If a migration is in progress, with both ways to end it; or if its state cannot be read.
pub(super) fn refuse_while_moving(state_dir: &Path) -> Result<(), Failure> {
    let Some(record) = Journal::peek(state_dir)? else { return Ok(()) };
    let ways = match record.phase {
        MigrationPhase::Adopted | MigrationPhase::RolledBack => return Ok(()),
        MigrationPhase::Adopting => {
            "bring it to its end (tortie migrate adopt) or give the host back (tortie migrate rollback)"
        }
        MigrationPhase::RollingBack => "bring it to its end (tortie migrate rollback)",
    };
    let text = format!(
        "a move from Calico was begun on this host and is {} ({}); without Tortie's routes and rules its workloads would have \
         none: {ways} first",
        record.phase.as_str(),
        state_dir.display()
    );
    Err(Failure::new(Exit::Refused, "moving", text))
}

/// True if a migration was begun here, whatever its result.
pub(super) fn has_state(state_dir: &Path) -> bool {
    !matches!(Journal::peek(state_dir), Ok(None))
}

pub(super) async fn run(context: &Context, command: &MigrateCommand) -> Result<(), Failure> {
    match command {
        MigrateCommand::Check(command) => check::run(context, command).await,
        MigrateCommand::Plan(command) => adopt::plan(context, command),
        MigrateCommand::Adopt(command) => adopt::run(context, command).await,
        MigrateCommand::Rollback(command) => rollback::run(context, command).await,
        MigrateCommand::Data(command) => data::run(context, command).await,
    }
}
