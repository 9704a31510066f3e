//! Reevaluation of a table after changes that affect many prefixes: one pass over all slots in bounded slices
//! serves any number of jobs at once.

/// Purpose of a reevaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Removes paths of ended sessions.
    Purge,
    /// Evaluates import policy again.
    Reimport,
    /// Decides again after changes of next hops.
    NextHops,
    /// Evaluates export policy again.
    Reexport,
    /// Decides again after a change of ECMP settings or of stale routes.
    Decide,
}

impl Job {
    const ALL: [Self; 5] = [Self::Purge, Self::Reimport, Self::NextHops, Self::Reexport, Self::Decide];
}

#[derive(Debug, Clone, Copy)]
struct Round {
    job: Job,
    start: u32,
    /// Upper bound of the slots that exist at the request. Later slots are created up to date.
    end: u32,
    wrapped: bool,
}

impl Round {
    /// Returns the position from which on no slot has to be visited before the pass wraps.
    fn goal(&self) -> u32 {
        if self.wrapped { self.start.min(self.end) } else { self.end }
    }

    fn is_done(&self, at: u32) -> bool {
        at >= self.goal() && (self.wrapped || self.start == 0)
    }
}

/// Position of the pass, and the jobs that still have to visit slots.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reevaluation {
    at: u32,
    rounds: Vec<Round>,
    /// Evaluates import policy again for all peers, not only for the marked ones.
    pub(crate) reimport_all: bool,
}

/// Range of slots to visit next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Reevaluation {
    /// Requests that every existing slot, all below `limit`, be visited for a job. A job in progress starts
    /// over.
    pub(crate) fn request(&mut self, job: Job, limit: u32) {
        self.rounds.retain(|r| r.job != job);
        self.rounds.push(Round { job, start: self.at, end: limit, wrapped: false });
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.rounds.is_empty()
    }

    pub(crate) fn has(&self, job: Job) -> bool {
        self.rounds.iter().any(|r| r.job == job)
    }

    /// Returns the next slice, at most `max` slots of a table with `limit`.
    pub(crate) fn next(&mut self, limit: u32, max: u32) -> Slice {
        self.wrap(limit);
        let to = self.goal(limit).min(self.at.saturating_add(max));
        Slice { from: self.at, to: to.max(self.at) }
    }

    /// Returns the position from which on no job has slots to visit.
    fn goal(&self, limit: u32) -> u32 {
        self.rounds.iter().map(Round::goal).max().unwrap_or(0).min(limit)
    }

    fn wrap(&mut self, limit: u32) {
        if self.at >= self.goal(limit) {
            self.at = 0;
            for round in &mut self.rounds {
                round.wrapped = true;
            }
        }
    }

    /// Records that a slice was visited, and calls `done` for each completed job.
    pub(crate) fn advance(&mut self, slice: Slice, limit: u32, mut done: impl FnMut(Job)) {
        self.at = slice.to;
        // At the end of the table every round is complete.
        let at = if self.at >= limit { u32::MAX } else { self.at };
        for job in Job::ALL {
            let before = self.rounds.len();
            self.rounds.retain(|r| r.job != job || !r.is_done(at));
            if self.rounds.len() < before {
                done(job);
            }
        }
        self.wrap(limit);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// When a job is done, every slot that existed at its request has been visited since. It finishes
        /// within a bounded number of slices, however fast the table grows.
        #[test]
        fn a_round_covers_all_and_no_more(
            steps in prop::collection::vec((0u32..50, prop::option::weighted(0.3, 0..Job::ALL.len())), 1..60),
            max in 1u32..20,
        ) {
            let mut walk = Reevaluation::default();
            let mut limit = 0;
            // For each job: slots at its request, slots visited since, and number of slices.
            let mut asked: [Option<(u32, std::collections::BTreeSet<u32>, u32)>; Job::ALL.len()] = Default::default();
            let rest = std::iter::repeat_n((0, None), 2000);
            for (grow, ask) in steps.into_iter().chain(rest) {
                limit += grow;
                if let Some(job) = ask {
                    walk.request(Job::ALL[job], limit);
                    asked[job] = Some((limit, Default::default(), 0));
                }
                if walk.is_idle() {
                    continue;
                }
                let slice = walk.next(limit, max);
                for (_, seen, slices) in asked.iter_mut().flatten() {
                    seen.extend(slice.from..slice.to);
                    *slices += 1;
                }
                let mut done = Vec::new();
                walk.advance(slice, limit, |job| done.push(job));
                for job in done {
                    let at = Job::ALL.iter().position(|j| *j == job).unwrap();
                    let (want, seen, slices) = asked[at].take().unwrap();
                    prop_assert!((0..want).all(|slot| seen.contains(&slot)), "{want} {seen:?}");
                    // At most two passes over the slots of all requests.
                    prop_assert!(slices <= 2 * limit.div_ceil(max) + 3, "{slices} slices of {max}");
                }
            }
            prop_assert!(walk.is_idle() && asked.iter().all(Option::is_none));
        }

        /// A table that grows as fast as the pass advances.
        #[test]
        fn what_comes_later_is_not_walked(limit in 0u32..1000, max in 1u32..100) {
            let mut walk = Reevaluation::default();
            walk.request(Job::NextHops, limit);
            let mut slices = 0;
            while !walk.is_idle() {
                slices += 1;
                let grown = limit + slices * max;
                let slice = walk.next(grown, max);
                walk.advance(slice, grown, |_| ());
            }
            prop_assert_eq!(slices, limit.div_ceil(max).max(1));
        }
    }
}
