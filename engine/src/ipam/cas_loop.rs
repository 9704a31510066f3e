//! Compare-and-set loop around a plan: reads the keys that the plan requests, commits its transaction, and
//! repeats after a conflict with another writer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rand::Rng;

use super::{Ipam, IpamError, Keyspace};
use crate::ipam::reads::{PlanStep, ReadRequest, ReadState};
use tortie_store::{Outcome, StoreError, Txn};

/// Number of conflicts after which an operation fails, once [`DEADLINE`] has also passed.
const ATTEMPTS: u32 = 100;
/// Minimum time for which conflicts are retried.
const DEADLINE: Duration = Duration::from_secs(30);
/// Maximum number of attempts with an unknown result, because the store became unreachable between request
/// and reply.
const LOST_MAX: usize = 3;
/// Number of conflicts after which everything is read again, because pools or configuration may have changed
/// too.
const STALE_READS: u32 = 8;
/// Maximum number of read rounds of one plan; each round must bring it further.
const ROUNDS: u32 = 10_000;

impl Ipam {
    /// Runs a plan until its transaction is committed or the plan fails. `plan` receives the answers of
    /// attempts that may have been committed.
    pub(super) async fn run<A: Clone>(
        &self,
        alone: bool,
        plan: impl Fn(&Keyspace, &ReadState, &[A]) -> PlanStep<A>,
    ) -> Result<A, IpamError> {
        let space = self.space().await?;
        let mut state = ReadState::at(Timestamp::now());
        let mut tried: Vec<A> = Vec::new();
        let (mut conflicts, mut rounds) = (0, 0);
        let mut fresh = true;
        let begun = Instant::now();
        // Writers on this host take a lock if the store has one, so that they do not conflict with each
        // other.
        let mut lock = if alone { self.store.writer_lock().await } else { None };
        loop {
            let (txn, answer) = match plan(&space, &state, &tried) {
                PlanStep::Need(needs) => {
                    rounds += 1;
                    if rounds > ROUNDS {
                        return Err(IpamError::Busy { attempts: rounds });
                    }
                    self.read(&mut state, needs).await?;
                    continue;
                }
                // Values read at different revisions may contradict each other, so an error is only returned
                // if all values were read since the last reset.
                PlanStep::Err(_) if !fresh => {
                    state = ReadState::at(Timestamp::now());
                    fresh = true;
                    continue;
                }
                PlanStep::Err(error) => return Err(error),
                PlanStep::Txn(txn, answer) if txn.ops.is_empty() => return Ok(answer),
                PlanStep::Txn(txn, answer) => (txn, answer),
            };
            match self.store.commit_locked(txn.clone(), &mut lock).await {
                Ok(Outcome::Committed(_)) => return Ok(answer),
                Ok(Outcome::Conflict) => {
                    conflicts += 1;
                    if conflicts >= ATTEMPTS && begun.elapsed() >= DEADLINE {
                        return Err(IpamError::Busy { attempts: conflicts });
                    }
                    pause(conflicts).await;
                }
                Err(StoreError::Unreachable(why)) => {
                    tried.push(answer);
                    if tried.len() >= LOST_MAX {
                        return Err(StoreError::Unreachable(why).into());
                    }
                    tracing::debug!(target: "tortie::ipam", %why, "the result of an IPAM transaction is \
                                                                   unknown; it is read back");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => return Err(error.into()),
            }
            fresh = conflicts % STALE_READS == STALE_READS - 1 || !self.changed(&mut state, &txn).await?;
            if fresh {
                state = ReadState::at(Timestamp::now());
            }
        }
    }

    /// Checks that a plan succeeds and that the store would accept its transaction. Nothing is written.
    pub(super) async fn rehearse_plan<A>(
        &self,
        plan: impl Fn(&Keyspace, &ReadState) -> PlanStep<A>,
    ) -> Result<(), IpamError> {
        let space = self.space().await?;
        let mut state = ReadState::at(Timestamp::now());
        for _ in 0..ROUNDS {
            match plan(&space, &state) {
                PlanStep::Need(needs) => self.read(&mut state, needs).await?,
                PlanStep::Err(error) => return Err(error),
                PlanStep::Txn(txn, _) if txn.ops.is_empty() => return Ok(()),
                PlanStep::Txn(txn, _) => return Ok(self.store.rehearse(&txn).await?),
            }
        }
        Err(IpamError::Busy { attempts: ROUNDS })
    }

    async fn read(&self, state: &mut ReadState, needs: ReadRequest) -> Result<(), IpamError> {
        if !needs.names.is_empty() {
            let prefixes: Vec<String> = needs.names.iter().cloned().collect();
            let names = self.store.names(&prefixes).await?;
            state.insert_names(needs.names, names);
        }
        if needs.keys.is_empty() && needs.prefixes.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = needs.keys.into_iter().collect();
        let prefixes: Vec<String> = needs.prefixes.iter().cloned().collect();
        let (values, list) = self.store.read(&keys, &prefixes).await?;
        state.insert_list(&needs.prefixes, list);
        for (key, value) in keys.into_iter().zip(values) {
            state.insert(key, value);
        }
        Ok(())
    }

    /// Reads the keys that a transaction compared. Returns false if none of them changed, which means that
    /// the conflict has another cause.
    async fn changed(&self, state: &mut ReadState, txn: &Txn) -> Result<bool, IpamError> {
        let keys: BTreeSet<String> = txn.compare.iter().map(|compare| compare.key().to_owned()).collect();
        let before: Vec<_> =
            keys.iter().map(|key| state.get(key).flatten().map(|known| known.revision)).collect();
        self.read(state, ReadRequest { keys: keys.clone(), ..ReadRequest::default() }).await?;
        let after: Vec<_> =
            keys.iter().map(|key| state.get(key).flatten().map(|known| known.revision)).collect();
        for ((key, _), _) in
            keys.iter().zip(&before).zip(&after).filter(|((_, before), after)| before != after)
        {
            crate::ipam::metrics::lost(key);
        }
        Ok(after != before)
    }
}

/// Waits for a random time after a conflict. The maximum grows while many writers compete, and shrinks again
/// after many conflicts so that no writer starves.
async fn pause(conflicts: u32) {
    let most = match conflicts {
        1 => 2,
        2 => 5,
        3..=5 => 20,
        6..=12 => 40,
        13..=24 => 10,
        _ => 2,
    };
    let micros = rand::rng().random_range(0..=most * 1000);
    tokio::time::sleep(Duration::from_micros(micros)).await;
}
