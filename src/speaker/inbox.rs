//! The speaker's letter box: what can be merged is merged, so that nobody ever waits for the speaker.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, eventfd};
use tortie_bgp::{Drain, Reset};

use tortie_engine::routing::{ChangeId, Resolved, RoutingIntent};

use crate::speaker::api::{Refused, ToSpeaker};
use crate::speaker::monitor::TapSender;
use crate::speaker::view::SpeakerView;

/// Orders that may wait; more are refused.
const MAX_ORDERS: usize = 4096;

/// What keeps its order and is not merged.
pub(crate) enum Order {
    LocalReady,
    Reset(Option<String>, Reset),
    Drain(Option<String>, Drain),
    Shutdown { graceful: bool, text: String },
    Query(Box<dyn FnOnce(&SpeakerView<'_>) + Send>),
    Tap(TapSender),
}

/// Everything that came since the last look.
#[derive(Default)]
pub(crate) struct Letters {
    /// Taken before the orders: an order always sees an intent at least as new as when it was given.
    pub(crate) intent: Option<(Arc<RoutingIntent>, ChangeId)>,
    pub(crate) next_hops: FxHashMap<IpAddr, Option<Resolved>>,
    /// Batches that the kernel thread is done with.
    pub(crate) kernel_took: usize,
    pub(crate) orders: VecDeque<Order>,
}

#[derive(Default)]
struct Content {
    letters: Letters,
    /// The bell was rung and nobody has looked since.
    rung: bool,
    ended: bool,
}

/// Shared between the thread and its handles.
pub(crate) struct Inbox {
    letters: Mutex<Content>,
    bell: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { letters: Mutex::default(), bell })
    }

    /// Becomes readable when letters came.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn put(&self, message: ToSpeaker) -> Result<(), Refused> {
        let mut inbox = self.lock();
        if inbox.ended {
            return Err(Refused::Stopped);
        }
        let letters = &mut inbox.letters;
        let order = match message {
            ToSpeaker::Intent(intent, change) => {
                letters.intent = Some((intent, change));
                None
            }
            ToSpeaker::NextHop(addr, state) => {
                letters.next_hops.insert(addr, state);
                None
            }
            ToSpeaker::KernelTook => {
                letters.kernel_took += 1;
                None
            }
            // These come once in a life and must not be lost.
            ToSpeaker::LocalReady => Some((Order::LocalReady, true)),
            ToSpeaker::Shutdown { graceful, text } => Some((Order::Shutdown { graceful, text }, true)),
            ToSpeaker::Reset(name, kind) => Some((Order::Reset(name, kind), false)),
            ToSpeaker::Tap(listener) => Some((Order::Tap(listener), false)),
            ToSpeaker::Drain(name, drain) => Some((Order::Drain(name, drain), false)),
            ToSpeaker::Query(ask) => Some((Order::Query(ask), false)),
        };
        if let Some((order, always)) = order {
            if !always && letters.orders.len() >= MAX_ORDERS {
                return Err(Refused::Busy);
            }
            letters.orders.push_back(order);
        }
        let ring = !std::mem::replace(&mut inbox.rung, true);
        drop(inbox);
        if ring {
            // An eventfd write fails only when its counter is full, and then it is readable already.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    /// The bell is silent until it is rung again: to be called before anything is taken that it may have been rung for.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    pub(crate) fn take(&self) -> Letters {
        let mut inbox = self.lock();
        inbox.rung = false;
        std::mem::take(&mut inbox.letters)
    }

    /// Wakes the thread for something that is not in here.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Nothing is taken any more; what waits is dropped (and with it the closures of questions).
    pub(crate) fn end(&self) {
        let mut inbox = self.lock();
        inbox.ended = true;
        let dropped = std::mem::take(&mut inbox.letters);
        drop(inbox);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_state_of_a_next_hop_wins_and_orders_keep_their_order() {
        let inbox = Inbox::new().unwrap();
        let hop = IpAddr::from([192, 0, 2, 1]);
        inbox.put(ToSpeaker::NextHop(hop, None)).unwrap();
        let resolved = Some(Resolved { ifindex: 3, gateway: None, metric: 0 });
        inbox.put(ToSpeaker::NextHop(hop, resolved)).unwrap();
        inbox.put(ToSpeaker::Reset(Some("a".into()), Reset::Hard(String::new()))).unwrap();
        inbox.put(ToSpeaker::LocalReady).unwrap();
        let letters = inbox.take();
        assert_eq!(letters.next_hops.get(&hop), Some(&resolved));
        assert!(matches!(letters.orders[0], Order::Reset(..)));
        assert!(matches!(letters.orders[1], Order::LocalReady));
        assert!(inbox.take().orders.is_empty());
    }

    #[test]
    fn a_ring_after_the_bell_was_hushed_wakes_again_whatever_is_taken_meanwhile() {
        let inbox = Inbox::new().unwrap();
        let rings = || {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let bell = inbox.bell();
            poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
        };
        inbox.put(ToSpeaker::LocalReady).unwrap();
        assert!(rings());
        inbox.hush();
        assert!(!rings());
        // Of BFD, which has just been asked and had nothing to say.
        inbox.ring();
        assert_eq!(inbox.take().orders.len(), 1);
        assert!(rings());
        inbox.hush();
        inbox.take();
        assert!(!rings());
        inbox.put(ToSpeaker::LocalReady).unwrap();
        assert!(rings());
    }

    #[test]
    fn each_batch_that_the_kernel_took_counts() {
        let inbox = Inbox::new().unwrap();
        inbox.put(ToSpeaker::KernelTook).unwrap();
        inbox.put(ToSpeaker::KernelTook).unwrap();
        assert_eq!(inbox.take().kernel_took, 2);
        assert_eq!(inbox.take().kernel_took, 0);
    }

    #[test]
    fn orders_are_bounded_but_a_shutdown_always_fits_until_the_end() {
        let inbox = Inbox::new().unwrap();
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
