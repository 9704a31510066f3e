//! Subscribers to the events of sessions (BMP, MRT), each with a bounded queue of its own.
//!
//! A subscriber that does not keep up loses events, which are counted for it, or ends; the speaker never waits for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tortie_bgp::attr::Attributes;
use tortie_bgp::{PeerId, RouteInfo, RouterId, Speaker, TapSession, Tapped};
use tortie_net::Cidr;

/// Subscribers at a time; more are refused.
const SUBSCRIBERS: usize = 16;

/// A route of a peer, or the one in use: its prefix, and its path identifier or 0.
pub type RouteOf = (Option<PeerId>, Cidr, u32);

/// Our identity in BGP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Our AS.
    pub asn: u32,
    /// Our BGP identifier.
    pub router_id: RouterId,
}

/// An event for subscribers, in the order in which they happen.
#[derive(Debug, Clone)]
pub enum MonitorEvent {
    /// The first event: the sessions that are up.
    Sessions(Vec<Arc<TapSession>>),
    /// Messages and session changes since, the same for all subscribers.
    Tapped(Arc<Tapped>),
    /// The best paths of these prefixes changed, came or went. The first time, perhaps of none, as soon as there is a
    /// speaker; again when it becomes another.
    Best(Identity, Arc<[Cidr]>),
    /// A part of a table, sent with [`MonitorSender::send`] from a query to the speaker.
    Routes(Vec<RouteInfo>, Option<u32>),
    /// Single routes of peers after import policy, and single routes in use; `None`: there is none, or it was refused.
    Imported(Vec<(RouteOf, Option<Arc<Attributes>>)>),
}

impl MonitorEvent {
    /// Its size in memory in octets, roughly.
    fn size(&self) -> usize {
        match self {
            Self::Sessions(sessions) => sessions.len() * 512,
            Self::Tapped(tapped) => tapped.octets.len() + tapped.items.len() * 64,
            Self::Best(_, prefixes) => prefixes.len() * size_of::<Cidr>(),
            Self::Routes(routes, _) => routes.len() * 256,
            Self::Imported(routes) => routes.len() * 256,
        }
    }
}

/// The speaker's end of a subscriber's queue.
#[derive(Debug, Clone)]
pub struct MonitorSender {
    queue: mpsc::UnboundedSender<(MonitorEvent, usize)>,
    waiting: Arc<AtomicUsize>,
    missed: Arc<AtomicUsize>,
    limit: usize,
}

impl MonitorSender {
    /// Queues an event; one that does not fit is dropped and counted. `false`: the subscriber is gone.
    pub fn send(&self, event: MonitorEvent) -> bool {
        let size = event.size();
        // An empty queue takes anything, so that a large batch is late and not lost.
        let waiting = self.waiting.load(Ordering::Acquire);
        if waiting > 0 && waiting + size > self.limit {
            self.missed.fetch_add(count(&event), Ordering::AcqRel);
            return !self.queue.is_closed();
        }
        self.waiting.fetch_add(size, Ordering::AcqRel);
        self.queue.send((event, size)).is_ok()
    }
}

fn count(event: &MonitorEvent) -> usize {
    match event {
        MonitorEvent::Tapped(tapped) => tapped.items.len(),
        MonitorEvent::Sessions(_)
        | MonitorEvent::Best(..)
        | MonitorEvent::Routes(..)
        | MonitorEvent::Imported(_) => 1,
    }
}

/// A subscriber's end of its queue; dropping it ends the subscription.
#[derive(Debug)]
pub struct MonitorReceiver {
    queue: mpsc::UnboundedReceiver<(MonitorEvent, usize)>,
    waiting: Arc<AtomicUsize>,
    missed: Arc<AtomicUsize>,
}

impl MonitorReceiver {
    /// The next event; `None`: the speaker has stopped.
    pub async fn next(&mut self) -> Option<MonitorEvent> {
        let (event, size) = self.queue.recv().await?;
        self.waiting.fetch_sub(size, Ordering::AcqRel);
        Some(event)
    }

    /// Number of events dropped since the last call.
    pub fn missed(&self) -> usize {
        self.missed.swap(0, Ordering::AcqRel)
    }
}

/// A queue for a subscriber; `limit`: octets that it holds, roughly.
#[must_use]
pub fn monitor_queue(limit: usize) -> (MonitorSender, MonitorReceiver) {
    let (sender, queue) = mpsc::unbounded_channel();
    let (waiting, missed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let receiver = MonitorReceiver { queue, waiting: Arc::clone(&waiting), missed: Arc::clone(&missed) };
    (MonitorSender { queue: sender, waiting, missed, limit }, receiver)
}

/// All subscribers.
#[derive(Default)]
pub(crate) struct Monitors(Vec<MonitorSender>);

impl Monitors {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a subscriber, after the events that the others get before; one too many finds its queue closed. `core` and
    /// `identity`: `None` before the first intent.
    pub(crate) fn add(&mut self, new: MonitorSender, core: Option<&mut Speaker>, identity: Option<Identity>) {
        self.0.retain(|subscriber| !subscriber.queue.is_closed());
        if self.0.len() >= SUBSCRIBERS {
            return;
        }
        let sessions = core.map_or_else(Vec::new, |core| {
            self.flush(core);
            core.set_tap(true);
            core.tap_sessions()
        });
        new.send(MonitorEvent::Sessions(sessions));
        if let Some(identity) = identity {
            new.send(MonitorEvent::Best(identity, [].into()));
        }
        self.0.push(new);
    }

    /// The best paths of these prefixes changed, or our identity.
    pub(crate) fn best(&self, identity: Identity, prefixes: &[Cidr]) {
        let prefixes: Arc<[Cidr]> = prefixes.into();
        for subscriber in &self.0 {
            subscriber.send(MonitorEvent::Best(identity, Arc::clone(&prefixes)));
        }
    }

    /// Passes on what the core recorded; without subscribers the recording ends.
    pub(crate) fn flush(&mut self, core: &mut Speaker) {
        if let Some(tapped) = core.take_tapped() {
            let tapped = Arc::new(tapped);
            self.0.retain(|subscriber| subscriber.send(MonitorEvent::Tapped(Arc::clone(&tapped))));
        }
        // The speaker may be younger than the first subscriber.
        core.set_tap(!self.0.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_queue_of_a_subscriber_is_bounded_and_dropped_events_are_counted() {
        let batch = |octets: usize| {
            MonitorEvent::Tapped(Arc::new(Tapped { octets: vec![0; octets], ..Tapped::default() }))
        };
        let (sender, mut queue) = monitor_queue(1000);
        // One that is larger than the queue comes when nothing waits.
        assert!(sender.send(batch(5000)));
        for _ in 0..10_000 {
            assert!(sender.send(MonitorEvent::Routes(Vec::new(), None)) && sender.send(batch(100)));
        }
        assert!(queue.waiting.load(Ordering::Acquire) <= 5000);
        let routes = |event| matches!(event, Some(MonitorEvent::Routes(..)));
        assert!(!routes(queue.next().await));
        assert!(queue.missed() > 0);
        assert_eq!(queue.missed(), 0, "counted once");
        for _ in 0..20 {
            sender.send(batch(100));
        }
        assert!(queue.waiting.load(Ordering::Acquire) <= 1000);
        drop(queue);
        assert!(!sender.send(batch(1)), "the subscriber is gone");
    }
}
