//! The input of a check.

use super::fix;
use super::result::Results;
use super::snapshot::{HostSnapshot, Role};
use crate::api::problem::Problem;

/// A command that runs host checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `tortie doctor`.
    Doctor,
    /// `tortie status`: the periodic health probe.
    Status,
    /// `tortie migrate check`.
    MigrateCheck,
}

/// The input of a check.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// The command that runs the check.
    pub command: Command,
    /// The host now.
    pub now: &'a HostSnapshot,
    /// The host at the last run: some checks report changes for the worse.
    pub before: Option<&'a HostSnapshot>,
    /// The tasks of the host.
    pub role: &'a Role,
}

impl Host<'_> {
    /// The agent's problems that it cannot fix by itself and leaves to `doctor`.
    pub(super) fn reported(&self) -> impl Iterator<Item = &Problem> {
        let status = self.now.agent.as_ref().and_then(|agent| agent.as_ref().ok());
        status.into_iter().flat_map(|status| &status.problems).filter(|p| p.next == "tortie doctor")
    }

    /// A problem that the health probe finds, too. The other commands report it with its fix, unless the agent reported it.
    pub(super) fn report(&self, problem: Problem, results: &mut Results) {
        if self.command == Command::Status {
            results.problem(problem);
        } else if self.reported().all(|reported| reported.code != problem.code) {
            results.problem(fix::with_fix(problem));
        }
    }
}
