//! Inbox of the speaker thread: messages that replace each other are merged, so that no sender waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tortie_bgp::{Drain, Reset};
use tortie_net::{Cidr, ScopedAddr};

use tortie_engine::routing::{ChangeId, Resolved, RoutingIntent};

use crate::speaker::messages::{Refused, ToSpeaker};
use crate::speaker::monitor::MonitorSender;
use crate::speaker::view::SpeakerView;
use crate::speaker::wakeup::Wakeup;

/// Maximum number of queued orders; further ones are rejected.
const MAX_ORDERS: usize = 4096;

/// Messages that keep their order and are not merged.
pub(crate) enum Order {
    LocalReady,
    Reset(Option<String>, Reset),
    Drain(Option<String>, Drain),
    Shutdown { graceful: bool, text: String },
    Query(Box<dyn FnOnce(&SpeakerView<'_>) + Send>),
    Monitor(MonitorSender),
}

/// All messages since the last [`Inbox::take`].
#[derive(Default)]
pub(crate) struct Messages {
    /// Processed before the orders, so that an order meets an intent at least as new as when it was sent.
    pub(crate) intent: Option<(Arc<RoutingIntent>, ChangeId)>,
    pub(crate) next_hops: BTreeMap<ScopedAddr, Option<Resolved>>,
    pub(crate) next_hops_within: BTreeMap<ScopedAddr, Vec<(Cidr, Option<Resolved>)>>,
    pub(crate) orders: VecDeque<Order>,
}

#[derive(Default)]
struct Content {
    messages: Messages,
    /// True if the thread was woken and has taken nothing since.
    woken: bool,
    ended: bool,
}

/// Inbox shared by the thread and its handles.
pub(crate) struct Inbox {
    content: Mutex<Content>,
    wakeup: Arc<Wakeup>,
}

impl Inbox {
    pub(crate) fn new(wakeup: Arc<Wakeup>) -> Self {
        Self { content: Mutex::default(), wakeup }
    }

    pub(crate) fn put(&self, message: ToSpeaker) -> Result<(), Refused> {
        let mut inbox = self.lock();
        if inbox.ended {
            return Err(Refused::Stopped);
        }
        let messages = &mut inbox.messages;
        let order = match message {
            ToSpeaker::Intent(intent, change) => {
                messages.intent = Some((intent, change));
                None
            }
            ToSpeaker::NextHop(addr, state) => {
                messages.next_hops.insert(addr, state);
                None
            }
            ToSpeaker::NextHopWithin(addr, within) => {
                messages.next_hops_within.insert(addr, within);
                None
            }
            // These occur once per run and must not be lost.
            ToSpeaker::LocalReady => Some((Order::LocalReady, true)),
            ToSpeaker::Shutdown { graceful, text } => Some((Order::Shutdown { graceful, text }, true)),
            ToSpeaker::Reset(name, kind) => Some((Order::Reset(name, kind), false)),
            ToSpeaker::Monitor(new) => Some((Order::Monitor(new), false)),
            ToSpeaker::Drain(name, drain) => Some((Order::Drain(name, drain), false)),
            ToSpeaker::Query(ask) => Some((Order::Query(ask), false)),
        };
        if let Some((order, always)) = order {
            if !always && messages.orders.len() >= MAX_ORDERS {
                return Err(Refused::Busy);
            }
            messages.orders.push_back(order);
        }
        let wake = !std::mem::replace(&mut inbox.woken, true);
        drop(inbox);
        if wake {
            self.wakeup.wake();
        }
        Ok(())
    }

    /// Takes all messages. The wake-up must be cleared before.
    pub(crate) fn take(&self) -> Messages {
        let mut inbox = self.lock();
        inbox.woken = false;
        std::mem::take(&mut inbox.messages)
    }

    /// Rejects all further messages and drops the queued ones, including the closures of queries.
    pub(crate) fn end(&self) {
        let mut inbox = self.lock();
        inbox.ended = true;
        let dropped = std::mem::take(&mut inbox.messages);
        drop(inbox);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox() -> Inbox {
        Inbox::new(Arc::new(Wakeup::new().unwrap()))
    }

    #[test]
    fn the_latest_state_of_a_next_hop_wins_and_orders_keep_their_order() {
        let inbox = inbox();
        let hop: ScopedAddr = "192.0.2.1".parse().unwrap();
        inbox.put(ToSpeaker::NextHop(hop, None)).unwrap();
        let resolved = Some(Resolved { ifindex: 3, gateway: None, metric: 0 });
        inbox.put(ToSpeaker::NextHop(hop, resolved)).unwrap();
        inbox.put(ToSpeaker::Reset(Some("a".into()), Reset::Hard(String::new()))).unwrap();
        inbox.put(ToSpeaker::LocalReady).unwrap();
        let messages = inbox.take();
        assert_eq!(messages.next_hops.get(&hop), Some(&resolved));
        assert!(matches!(messages.orders[0], Order::Reset(..)));
        assert!(matches!(messages.orders[1], Order::LocalReady));
        assert!(inbox.take().orders.is_empty());
    }

    #[test]
    fn a_wakeup_after_it_was_cleared_wakes_again_regardless_of_what_is_taken_meanwhile() {
        let wakeup = Arc::new(Wakeup::new().unwrap());
        let inbox = Inbox::new(wakeup.clone());
        let wakes = || {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            poll(&mut [PollFd::new(&*wakeup, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
        };
        inbox.put(ToSpeaker::LocalReady).unwrap();
        assert!(wakes());
        wakeup.clear();
        assert!(!wakes());
        // A wake-up for BFD, which was polled before and had no report.
        wakeup.wake();
        assert_eq!(inbox.take().orders.len(), 1);
        assert!(wakes());
        wakeup.clear();
        inbox.take();
        assert!(!wakes());
        inbox.put(ToSpeaker::LocalReady).unwrap();
        assert!(wakes());
    }

    #[test]
    fn orders_are_bounded_but_a_shutdown_always_fits_until_the_end() {
        let inbox = inbox();
        for _ in 0..MAX_ORDERS {
            inbox.put(ToSpeaker::Reset(Some("a".into()), Reset::Hard(String::new()))).unwrap();
        }
        assert_eq!(
            inbox.put(ToSpeaker::Reset(Some("a".into()), Reset::Hard(String::new()))),
            Err(Refused::Busy)
        );
        inbox.put(ToSpeaker::Shutdown { graceful: true, text: String::new() }).unwrap();
        inbox.end();
        assert_eq!(inbox.put(ToSpeaker::LocalReady), Err(Refused::Stopped));
    }
}
