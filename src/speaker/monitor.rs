//! Subscribers to session events (BMP, MRT), each with a bounded queue.
//!
//! A subscriber that is too slow loses events, which are counted, or ends; the speaker never waits for a
//! subscriber.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tortie_bgp::attr::Attributes;
use tortie_bgp::{PeerId, RouteInfo, RouterId, Speaker, TapSession, Tapped};
use tortie_net::Cidr;

/// Maximum number of subscribers.
const SUBSCRIBERS: usize = 16;

/// A route of a peer (`None`: the best path), its prefix, and its path identifier or 0.
pub type RouteOf = (Option<PeerId>, Cidr, u32);

/// BGP identity of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Local AS number.
    pub asn: u32,
    /// BGP identifier.
    pub router_id: RouterId,
}

/// An event for subscribers; delivered in order of occurrence.
#[derive(Debug, Clone)]
pub enum MonitorEvent {
    /// First event: the established sessions.
    Sessions(Vec<Arc<TapSession>>),
    /// Messages and session changes since, shared by all subscribers.
    Tapped(Arc<Tapped>),
    /// The best paths of these prefixes were added, changed or removed. Sent for the first time, possibly
    /// without prefixes, once the speaker runs, and again when the identity changes.
    Best(Identity, Arc<[Cidr]>),
    /// A part of a table, sent with [`MonitorSender::send`] by a query to the speaker.
    Routes(Vec<RouteInfo>, Option<u32>),
    /// Single routes after import policy, and single best paths; `None` if there is none or it was rejected.
    Imported(Vec<(RouteOf, Option<Arc<Attributes>>)>),
}

impl MonitorEvent {
    /// Returns the approximate size in memory in octets.
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
    /// Queues an event; an event that does not fit is dropped and counted. Returns false if the subscriber is
    /// gone.
    pub fn send(&self, event: MonitorEvent) -> bool {
        let size = event.size();
        // An empty queue accepts any event, so that a large batch is late but not lost.
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
    /// Returns the next event; `None` once the speaker has stopped.
    pub async fn next(&mut self) -> Option<MonitorEvent> {
        let (event, size) = self.queue.recv().await?;
        self.waiting.fetch_sub(size, Ordering::AcqRel);
        Some(event)
    }

    /// Returns the number of events dropped since the last call.
    pub fn missed(&self) -> usize {
        self.missed.swap(0, Ordering::AcqRel)
    }
}

/// Creates a queue for a subscriber; `limit` is its approximate capacity in octets.
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

    /// Adds a subscriber, after the pending events of the others were delivered; if there are too many, its
    /// queue is closed. `core` and `identity` are `None` before the first intent.
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

    /// Reports changed best paths, or a changed identity, to all subscribers.
    pub(crate) fn best(&self, identity: Identity, prefixes: &[Cidr]) {
        let prefixes: Arc<[Cidr]> = prefixes.into();
        for subscriber in &self.0 {
            subscriber.send(MonitorEvent::Best(identity, Arc::clone(&prefixes)));
        }
    }

    /// Delivers the events that the core recorded; without subscribers the core stops recording.
    pub(crate) fn flush(&mut self, core: &mut Speaker) {
        if let Some(tapped) = core.take_tapped() {
            let tapped = Arc::new(tapped);
            self.0.retain(|subscriber| subscriber.send(MonitorEvent::Tapped(Arc::clone(&tapped))));
        }
        // The speaker may have started after the first subscriber.
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
        // An event larger than the queue is accepted when the queue is empty.
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
