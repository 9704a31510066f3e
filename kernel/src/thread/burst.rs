//! Collection of policy changes into one transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inbox::Inbox;
use super::messages::ToKernel;
use crate::intent::PolicyChange;

/// Maximum number of policy changes per transaction.
const CHANGES_PER_BATCH: usize = 256;
/// Work of the thread in one iteration.
#[derive(Debug)]
pub(crate) enum PolicyWork {
    One(ToKernel),
    Burst(Burst),
}

/// Policy changes, with the other messages received among them.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    /// The changes, executed as one transaction.
    pub(crate) changes: Vec<Arc<PolicyChange>>,
    /// Messages from routing and the speaker received among them, in order; of consecutive intents only the
    /// last. No rule depends on these, nor they on rules.
    pub(crate) routes: Vec<ToKernel>,
}

impl Burst {
    fn route(&mut self, message: ToKernel) {
        let intents = |(one, other): (&ToKernel, &ToKernel)| {
            matches!((one, other), (ToKernel::Intent(_), ToKernel::Intent(_)))
        };
        match self.routes.last_mut() {
            Some(last) if intents((last, &message)) => *last = message,
            _ => self.routes.push(message),
        }
    }
}

/// Returns a message. After a policy change, also collects the messages that wait or that arrive until
/// `rest`, up to the first message that requires the changes before it to be executed.
pub(crate) fn gather(first: ToKernel, inbox: &mut Inbox, rest: Option<Instant>) -> PolicyWork {
    let first = match first {
        ToKernel::Policy(first) => first,
        other => return PolicyWork::One(other),
    };
    let mut burst = Burst { changes: vec![first], ..Burst::default() };
    while burst.changes.len() < CHANGES_PER_BATCH {
        let left = rest.map_or(Duration::ZERO, |rest| rest.saturating_duration_since(Instant::now()));
        let next = inbox.try_next().or_else(|| (!left.is_zero()).then(|| inbox.next(left).ok())?);
        match next {
            Some(ToKernel::Policy(change)) => burst.changes.push(change),
            Some(message @ (ToKernel::Intent(_) | ToKernel::Learned(_))) => burst.route(message),
            // Events are processed at the end of each iteration.
            Some(ToKernel::Events(_)) => {}
            Some(message) => {
                inbox.put_back(message);
                break;
            }
            None => break,
        }
    }
    PolicyWork::Burst(burst)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc::channel;

    use super::super::messages::EventsReady;
    use super::*;
    use crate::intent::KernelIntent;
    use tortie_engine::policy::RulesetDelta;
    use tortie_engine::routing::ChangeId;

    fn change(serial: u64) -> PolicyChange {
        PolicyChange {
            serial,
            change: ChangeId(serial),
            delta: RulesetDelta::default(),
            globals: None,
            routings: None,
        }
    }

    fn intent(generation: u64) -> KernelIntent {
        KernelIntent {
            generation,
            change: ChangeId(generation),
            blackholes: BTreeMap::new(),
            tunnel: None,
            vxlan: Arc::default(),
            store_routes: Arc::default(),
            view: Arc::default(),
        }
    }

    fn policy(serial: u64) -> ToKernel {
        ToKernel::Policy(Arc::new(change(serial)))
    }

    /// Returns the serials of a burst, and the other messages in it.
    fn burst(work: PolicyWork) -> (Vec<u64>, Vec<ToKernel>) {
        let PolicyWork::Burst(burst) = work else { panic!("{work:?}") };
        (burst.changes.iter().map(|change| change.serial).collect(), burst.routes)
    }

    #[test]
    fn a_burst_is_one_transaction_whatever_routing_makes_of_each_start() {
        let (sender, inbox) = channel();
        for serial in 2..=300 {
            sender.send(ToKernel::Intent(Arc::new(intent(serial)))).unwrap();
            sender.send(policy(serial)).unwrap();
            // Notifications of Tortie's own routes, from the watch thread.
            sender.send(ToKernel::Events(EventsReady(()))).unwrap();
            if serial == 100 {
                sender.send(ToKernel::Learned(Vec::new().into())).unwrap();
            }
        }
        let mut inbox = Inbox::new(inbox);
        let (serials, routes) = burst(gather(policy(1), &mut inbox, None));
        assert!(serials.iter().copied().eq(1..=256));
        let [ToKernel::Intent(one), ToKernel::Learned(_), ToKernel::Intent(other)] = &*routes else {
            panic!("{routes:?}")
        };
        assert_eq!((one.generation, other.generation), (100, 256));
    }

    #[test]
    fn a_question_is_answered_after_what_was_said_before_it_and_no_later() {
        let (sender, inbox) = channel();
        sender.send(policy(2)).unwrap();
        sender.send(ToKernel::Query(Box::new(|_| ()))).unwrap();
        sender.send(policy(3)).unwrap();
        let mut inbox = Inbox::new(inbox);
        // Nor is it delayed until the end of the pause.
        let rest = Some(Instant::now() + Duration::from_hours(1));
        let (serials, _) = burst(gather(policy(1), &mut inbox, rest));
        assert_eq!(serials, [1, 2]);
        assert!(matches!(inbox.try_next(), Some(ToKernel::Query(_))));
    }

    #[test]
    fn changes_that_come_while_the_thread_rests_are_one_transaction_with_the_first() {
        let (sender, inbox) = channel();
        let mut inbox = Inbox::new(inbox);
        let later = std::thread::spawn(move || {
            for serial in 2..=3 {
                sender.send(policy(serial)).unwrap();
            }
            sender.send(ToKernel::SweepStale).unwrap();
        });
        let work = gather(policy(1), &mut inbox, Some(Instant::now() + Duration::from_hours(1)));
        assert_eq!(burst(work).0, [1, 2, 3]);
        later.join().unwrap();
    }

    #[test]
    fn whoever_ends_the_agent_ends_the_rest() {
        let (sender, inbox) = channel();
        sender.send(ToKernel::Stop).unwrap();
        let mut inbox = Inbox::new(inbox);
        let work = gather(policy(1), &mut inbox, Some(Instant::now() + Duration::from_hours(1)));
        assert_eq!(burst(work).0, [1]);
        let next = gather(inbox.try_next().unwrap(), &mut inbox, None);
        assert!(matches!(next, PolicyWork::One(ToKernel::Stop)));
    }
}
