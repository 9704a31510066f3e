//! Message queue of the kernel thread, which can answer queries while the thread is busy.
//!
//! Queries only read. During a resync, a large batch of routes or a long transaction they are answered at
//! once, from the state at that moment. Messages that change the state wait for the end, in their order, so
//! that nothing of Tortie's is written during a resync.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::messages::ToKernel;
use super::view::KernelView;
use tortie_engine::routing::LearnedBatch;

/// Maximum number of messages waiting for the kernel thread.
pub(super) const INBOX: usize = 1024;

/// Maximum number of queries answered in a row, so that endless queries do not delay the thread's work.
const QUERIES_MAX: usize = 64;

/// The receiving end of [`crate::KernelHandle::sender`].
pub(crate) struct Inbox {
    receiver: Receiver<ToKernel>,
    /// Messages received before everything that is still in the channel.
    waiting: VecDeque<ToKernel>,
}

impl Inbox {
    pub(crate) fn new(receiver: Receiver<ToKernel>) -> Self {
        Self { receiver, waiting: VecDeque::new() }
    }

    /// Waits up to `within` for the next message.
    pub(crate) fn next(&mut self, within: Duration) -> Result<ToKernel, RecvTimeoutError> {
        self.waiting.pop_front().map_or_else(|| self.receiver.recv_timeout(within), Ok)
    }

    /// Returns the next message if there is one.
    pub(crate) fn try_next(&mut self) -> Option<ToKernel> {
        self.waiting.pop_front().or_else(|| self.receiver.try_recv().ok())
    }

    /// Puts a message back as the next one.
    pub(crate) fn put_back(&mut self, message: ToKernel) {
        self.waiting.push_front(message);
    }

    /// Answers the waiting queries and keeps all other messages, as many as the channel holds. After that,
    /// senders block, and queries behind them wait.
    pub(crate) fn answer_queries(&mut self, view: &KernelView<'_>) {
        _ = self.sort(view, false);
    }

    /// Answers queries likewise, until learned routes are the first message that changes the state.
    pub(crate) fn answer_until_learned(&mut self, view: &KernelView<'_>) -> Option<LearnedBatch> {
        self.sort(view, true)
    }

    fn sort(&mut self, view: &KernelView<'_>, learned: bool) -> Option<LearnedBatch> {
        // A message that was put back: no other query is in `waiting`.
        if let Some(ToKernel::Query(question)) =
            self.waiting.pop_front_if(|message| matches!(message, ToKernel::Query(_)))
        {
            question(view);
        }
        if learned
            && let Some(ToKernel::Learned(batch)) =
                self.waiting.pop_front_if(|message| matches!(message, ToKernel::Learned(_)))
        {
            return Some(batch);
        }
        let mut left = QUERIES_MAX;
        while left > 0 && self.waiting.len() < INBOX {
            match self.receiver.try_recv() {
                Ok(ToKernel::Learned(batch)) if learned && self.waiting.is_empty() => return Some(batch),
                Ok(ToKernel::Query(question)) => {
                    question(view);
                    left -= 1;
                }
                Ok(other) => self.waiting.push_back(other),
                Err(_) => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc::{Sender, channel};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use smallvec::SmallVec;

    use super::super::state::State;
    use super::*;
    use crate::options::{Mode, Options};
    use tortie_engine::routing::ChangeId;
    use tortie_engine::routing::LearnedChange;
    use tortie_net::{Cidr, ScopedAddr};

    fn state() -> State {
        State::empty(&Options::new(Mode::Observe), true)
    }

    fn view(state: &State) -> KernelView<'_> {
        KernelView { state, rules: None }
    }

    fn addr(n: u16) -> ScopedAddr {
        let [high, low] = n.to_be_bytes();
        Ipv4Addr::new(192, 0, high, low).into()
    }

    fn question(answered_by: &Sender<u16>, n: u16) -> ToKernel {
        let answered_by = answered_by.clone();
        ToKernel::Query(Box::new(move |_| answered_by.send(n).unwrap()))
    }

    proptest! {
        /// Each pause answers all queries until then, in order and once; changes are returned in order, each
        /// once.
        #[test]
        fn questions_go_ahead_and_changes_keep_their_order(
            asks in vec(any::<bool>(), 1..60), pauses in vec(any::<bool>(), 60),
        ) {
            let (sender, receiver) = channel();
            let (answered_by, answers) = channel();
            let (mut inbox, state) = (Inbox::new(receiver), state());
            let mut asked = Vec::new();
            for (n, (asks, pause)) in (0..).zip(asks.iter().zip(&pauses)) {
                sender.send(if *asks { question(&answered_by, n) } else { ToKernel::Track(addr(n)) }).unwrap();
                if *asks {
                    asked.push(n);
                }
                if *pause {
                    inbox.answer_queries(&view(&state));
                    let answered: Vec<u16> = answers.try_iter().collect();
                    prop_assert_eq!(answered, std::mem::take(&mut asked));
                }
            }
            let (mut changes, mut later) = (Vec::new(), Vec::new());
            while let Some(message) = inbox.try_next() {
                match message {
                    ToKernel::Track(addr) => changes.push(addr),
                    ToKernel::Query(question) => {
                        question(&view(&state));
                        later.extend(answers.try_iter());
                    }
                    other => panic!("{other:?}"),
                }
            }
            prop_assert_eq!(later, asked);
            let sent: Vec<ScopedAddr> = (0..).zip(&asks).filter(|(_, asks)| !**asks).map(|(n, _)| addr(n)).collect();
            prop_assert_eq!(changes, sent);
        }
    }

    proptest! {
        /// Learned routes are returned only if no other change precedes them; with the messages taken
        /// afterwards, each is returned once, in order.
        #[test]
        fn learned_routes_come_out_in_their_place(
            kinds in vec(0..3_u8, 1..60), pauses in vec(0..3_u8, 60),
        ) {
            let (sender, receiver) = channel();
            let (answered_by, _answers) = channel();
            let (mut inbox, state) = (Inbox::new(receiver), state());
            let (mut sent, mut taken) = (Vec::new(), Vec::new());
            let batch = |n: u16| {
                vec![LearnedChange { prefix: Cidr::host(addr(n).addr()), next_hops: SmallVec::new(), local_pref: None, change: ChangeId(1) }]
            };
            for (n, (kind, pause)) in (0..).zip(kinds.iter().zip(&pauses)) {
                match kind {
                    0 => sender.send(question(&answered_by, n)).unwrap(),
                    1 => sender.send(ToKernel::Track(addr(n))).unwrap(),
                    _ => sender.send(ToKernel::Learned(batch(n).into())).unwrap(),
                }
                sent.extend((*kind > 0).then_some(addr(n)));
                match pause {
                    0 => {}
                    1 => inbox.answer_queries(&view(&state)),
                    _ => {
                        if let Some(batch) = inbox.answer_until_learned(&view(&state)) {
                            taken.extend(batch.iter().map(|c| ScopedAddr::from(c.prefix.addr())));
                        }
                    }
                }
            }
            while let Some(message) = inbox.try_next() {
                match message {
                    ToKernel::Track(addr) => taken.push(addr),
                    ToKernel::Learned(batch) => taken.extend(batch.iter().map(|c| ScopedAddr::from(c.prefix.addr()))),
                    _ => {}
                }
            }
            prop_assert_eq!(taken, sent);
        }
    }

    #[test]
    fn a_flood_of_questions_holds_the_thread_up_for_a_moment_only() {
        let (sender, receiver) = channel();
        let (answered_by, answers) = channel();
        for n in 0..1_000 {
            sender.send(question(&answered_by, n)).unwrap();
        }
        Inbox::new(receiver).answer_queries(&view(&state()));
        assert_eq!(answers.try_iter().count(), QUERIES_MAX);
    }

    #[test]
    fn no_more_is_kept_than_the_channel_takes() {
        let (sender, receiver) = channel();
        let (answered_by, answers) = channel();
        for n in 0..2_000 {
            sender.send(ToKernel::Untrack(addr(n))).unwrap();
        }
        sender.send(question(&answered_by, 1)).unwrap();
        let mut inbox = Inbox::new(receiver);
        inbox.answer_queries(&view(&state()));
        assert_eq!((inbox.waiting.len(), answers.try_iter().count()), (INBOX, 0));
        let rest = std::iter::from_fn(|| inbox.try_next());
        assert_eq!(rest.filter(|message| matches!(message, ToKernel::Untrack(_))).count(), 2_000);
    }
}
