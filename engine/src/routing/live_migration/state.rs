//! State of one endpoint of this host in a live migration.
//!
//! | state | role: target | role: source, or deleted | no role | packet of the workload | time |
//! | --- | --- | --- | --- | --- | --- |
//! | `Base` | `Target` | | | | |
//! | `Target` | | `Base` | `TimeWait` | `Live` | |
//! | `Live` | | `Base` | `TimeWait` | | |
//! | `TimeWait` | | `Base` | | | `Base` |
//!
//! An empty field is no transition. Without a role in `Target`, the migration ended and the packet was missed.

use std::time::{Duration, Instant};

/// Role of an endpoint in a live migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationRole {
    /// The workload moves to this endpoint.
    Target,
    /// The workload moves away from this endpoint.
    Source,
}

/// State of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MigrationState {
    /// The endpoint does not move.
    #[default]
    Base,
    /// The workload still runs on the host that it leaves.
    Target,
    /// The workload runs on this host, and the migration goes on.
    Live,
    /// The migration ended; routes elsewhere may not have converged.
    TimeWait {
        /// End of the wait.
        until: Instant,
    },
}

/// An event of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationEvent {
    /// The role changed, or was confirmed.
    Role(Option<MigrationRole>),
    /// The interface received a packet that the workload sent.
    Seen,
    /// Time passed.
    Time,
    /// The endpoint was deleted.
    Deleted,
}

impl MigrationState {
    /// Returns the state after an event at `now`. `convergence` is the duration of `TimeWait`.
    #[must_use]
    pub fn next(self, event: MigrationEvent, now: Instant, convergence: Duration) -> Self {
        use MigrationEvent::{Deleted, Role, Seen, Time};
        use MigrationRole::{Source, Target};
        match (self, event) {
            (_, Deleted | Role(Some(Source))) => Self::Base,
            (Self::Base, Role(Some(Target))) => Self::Target,
            (Self::Target, Seen) => Self::Live,
            (Self::Target | Self::Live, Role(None)) => Self::TimeWait { until: now + convergence },
            (Self::TimeWait { until }, Time) if until <= now => Self::Base,
            (state, _) => state,
        }
    }

    /// Returns a description for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Base => "live migration: over",
            Self::Target => "live migration: the workload runs elsewhere",
            Self::Live => "live migration: the workload runs here",
            Self::TimeWait { .. } => "live migration: routes converge",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MigrationEvent::{Deleted, Role, Seen, Time};
    use super::MigrationRole::{Source, Target};
    use super::*;

    const CONVERGENCE: Duration = Duration::from_secs(30);

    #[test]
    fn every_transition_is_calicos() {
        let start = Instant::now();
        let (now, late) = (start + Duration::from_secs(1), start + Duration::from_secs(31));
        let wait = MigrationState::TimeWait { until: late };
        let (base, target, live) = (MigrationState::Base, MigrationState::Target, MigrationState::Live);
        // Columns: event, its time, and the state after it from Base, Target, Live and TimeWait.
        let table = [
            (Role(Some(Target)), now, [target, target, live, wait]),
            (Role(Some(Source)), now, [base; 4]),
            (Role(None), now, [base, wait, wait, wait]),
            (Seen, now, [base, live, live, wait]),
            (Time, now, [base, target, live, wait]),
            (Time, late, [base, target, live, base]),
            (Deleted, now, [base; 4]),
        ];
        for (event, at, after) in table {
            for (before, after) in [base, target, live, wait].into_iter().zip(after) {
                assert_eq!(before.next(event, at, CONVERGENCE), after, "{before:?} {event:?}");
            }
        }
    }
}
