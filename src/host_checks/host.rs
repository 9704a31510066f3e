//! Input of a host check: the snapshot of the host, and the command that runs the check.

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

/// Input of a host check.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Command that runs the check.
    pub command: Command,
    /// Current snapshot of the host.
    pub now: &'a HostSnapshot,
    /// Snapshot of the last run, for checks that report deteriorations.
    pub before: Option<&'a HostSnapshot>,
    /// Tasks of the host.
    pub role: &'a Role,
}

impl Host<'_> {
    /// Returns the agent's problems that it leaves to `doctor`.
    pub(super) fn reported(&self) -> impl Iterator<Item = &Problem> {
        let status = self.now.agent.as_ref().and_then(|agent| agent.as_ref().ok());
        status.into_iter().flat_map(|status| &status.problems).filter(|p| p.next == "tortie doctor")
    }

    /// Reports a problem that the health probe finds, too. Other commands report it with its fix, unless the
    /// agent has reported it.
    pub(super) fn report(&self, problem: Problem, results: &mut Results) {
        if self.command == Command::Status {
            results.problem(problem);
        } else if self.reported().all(|reported| reported.code != problem.code) {
            results.problem(fix::with_fix(problem));
        }
    }
}
