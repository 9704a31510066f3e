//! The slow walk round a table, for changes that touch many prefixes: a few slots at a time, any number of reasons in one
//! round.

/// Why a walk is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Remove paths of ended sessions.
    Purge,
    /// Ask import policy again.
    Reimport,
    /// Next hops changed.
    Hops,
    /// Ask export policy again.
    Reexport,
    /// Other paths may share the load.
    Decide,
}

impl Job {
    const ALL: [Self; 5] = [Self::Purge, Self::Reimport, Self::Hops, Self::Reexport, Self::Decide];
}

#[derive(Debug, Clone, Copy)]
struct Round {
    job: Job,
    start: u32,
    wrapped: bool,
}

/// Where the walk is, and for which jobs it still has to come round.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    at: u32,
    rounds: Vec<Round>,
    /// Import policy of all peers is asked again, not only of those that are marked.
    pub(crate) reimport_all: bool,
}

/// The next slots to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Walk {
    /// Every slot has to be visited for this from now on. One that is under way starts over.
    pub(crate) fn request(&mut self, job: Job) {
        self.rounds.retain(|r| r.job != job);
        self.rounds.push(Round { job, start: self.at, wrapped: false });
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.rounds.is_empty()
    }

    pub(crate) fn has(&self, job: Job) -> bool {
        self.rounds.iter().any(|r| r.job == job)
    }

    /// The next slots, at most `max` of a table with `limit`.
    pub(crate) fn next(&mut self, limit: u32, max: u32) -> Slice {
        if self.at >= limit {
            self.wrap();
        }
        Slice { from: self.at, to: limit.min(self.at.saturating_add(max)) }
    }

    fn wrap(&mut self) {
        self.at = 0;
        for round in &mut self.rounds {
            round.wrapped = true;
        }
    }

    /// The slice was visited; calls `done` for each job that has now seen all slots.
    pub(crate) fn advance(&mut self, slice: Slice, limit: u32, mut done: impl FnMut(Job)) {
        self.at = slice.to;
        if self.at >= limit {
            self.wrap();
        }
        for job in Job::ALL {
            let at = self.at;
            let before = self.rounds.len();
            self.rounds.retain(|r| r.job != job || !(r.wrapped && at >= r.start));
            if self.rounds.len() < before {
                done(job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// When a job is done, every slot that was there when it was asked for has been visited since.
        #[test]
        fn a_round_covers_all(limits in prop::collection::vec(0u32..50, 1..40), max in 1u32..20, ask in 0usize..40) {
            let mut walk = Walk::default();
            walk.request(Job::Hops);
            let (mut seen, mut want, mut limit) = (std::collections::BTreeSet::new(), None, 0);
            for (n, grow) in limits.iter().enumerate() {
                limit += grow;
                if n == ask % limits.len() {
                    walk.request(Job::Purge);
                    seen.clear();
                    want = Some(limit);
                }
                let slice = walk.next(limit, max);
                seen.extend(slice.from..slice.to);
                let mut done = false;
                walk.advance(slice, limit, |j| done |= j == Job::Purge);
                if let (true, Some(want)) = (done, want) {
                    prop_assert!((0..want).all(|s| seen.contains(&s)), "{want} {seen:?}");
                }
            }
        }

        #[test]
        fn a_round_ends(limit in 0u32..1000, max in 1u32..100) {
            let mut walk = Walk::default();
            walk.request(Job::Purge);
            for _ in 0..=limit / max + 1 {
                let slice = walk.next(limit, max);
                walk.advance(slice, limit, |_| ());
            }
            prop_assert!(walk.is_idle());
        }
    }
}
