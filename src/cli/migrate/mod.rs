//! `tortie migrate`: a host from Calico's daemons to Tortie and back, in place, while its workloads talk.
//!
//! What it does: looks (`check`), says what would happen (`plan`), moves (`adopt`), and moves back from wherever it stands
//! (`rollback`). What it does not: change the store, touch connections, decide what routes and rules should be (the agent
//! does), or end a process that was not named to it.
//!
//! ```text
//!   check.rs  --> findings          daemons.rs  processes of Calico; how they are ended
//!   plan.rs   --> steps in words    trial.rs    an observing agent compares      agent.rs  the agent that takes over
//!   boot_units.rs  units that start at the next boot             restarts.rs  of BIRD and its peers, under way
//!   adopt.rs ---+--> journal.rs (what was begun, the snapshot; on disk first)
//!   rollback.rs +--> kernel::handover (routes, our rules), tools.rs + rules.rs (Felix's rules and sets)
//! ```

mod adopt;
mod agent;
mod args;
mod boot_units;
mod check;
mod daemons;
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

/// For who takes away what a move needs: passes where none was begun, or where it is at one of its ends.
///
/// # Errors
/// When one is under way, with both ways out of it; or when what was begun cannot be read.
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
