//! Who listens to what sessions say: monitoring and recording, each with its own bounded queue.
//!
//! A listener that does not keep up loses batches, which are counted for it, or ends; the speaker never waits for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tortie_bgp::attr::Attributes;
use tortie_bgp::{PeerId, RouteInfo, RouterId, TapSession, Tapped};
use tortie_net::Cidr;

use crate::speaker::event_loop::Driver;

/// Listeners at a time; more are refused.
const LISTENERS: usize = 16;

/// A route of a peer, or the one in use: its prefix, and its path identifier or 0.
pub type RouteOf = (Option<PeerId>, Cidr, u32);

/// Who we are in BGP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Our AS.
    pub asn: u32,
    /// Our BGP identifier.
    pub router_id: RouterId,
}

/// What a listener hears, in the order of events.
#[derive(Debug, Clone)]
pub enum Heard {
    /// The first thing: the sessions that are up.
    Sessions(Vec<Arc<TapSession>>),
    /// What happened since, for everybody who listens.
    Tapped(Arc<Tapped>),
    /// The best paths of these prefixes changed, came or went. The first time, perhaps of none, as soon as there is a
    /// speaker; again when it becomes another.
    Best(Identity, Arc<[Cidr]>),
    /// A part of a table, as asked for with [`TapSender::give`] from a question to the speaker.
    Routes(Vec<RouteInfo>, Option<u32>),
    /// What import policy made of single routes of peers, and single routes in use; `None`: there is none, or it was
    /// refused.
    Imported(Vec<(RouteOf, Option<Arc<Attributes>>)>),
}

impl Heard {
    /// Roughly what it takes in memory.
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

/// The speaker's end of a listener's queue.
#[derive(Debug, Clone)]
pub struct TapSender {
    queue: mpsc::UnboundedSender<(Heard, usize)>,
    waiting: Arc<AtomicUsize>,
    missed: Arc<AtomicUsize>,
    limit: usize,
}

impl TapSender {
    /// Gives something; what does not fit is dropped and counted. `false`: nobody listens any more.
    pub fn give(&self, heard: Heard) -> bool {
        let size = heard.size();
        // An empty queue takes anything, so that a large batch is late and not lost.
        let waiting = self.waiting.load(Ordering::Acquire);
        if waiting > 0 && waiting + size > self.limit {
            self.missed.fetch_add(count(&heard), Ordering::AcqRel);
            return !self.queue.is_closed();
        }
        self.waiting.fetch_add(size, Ordering::AcqRel);
        self.queue.send((heard, size)).is_ok()
    }
}

fn count(heard: &Heard) -> usize {
    match heard {
        Heard::Tapped(tapped) => tapped.items.len(),
        Heard::Sessions(_) | Heard::Best(..) | Heard::Routes(..) | Heard::Imported(_) => 1,
    }
}

/// A listener's end of its queue; dropping it ends the listening.
#[derive(Debug)]
pub struct TapReceiver {
    queue: mpsc::UnboundedReceiver<(Heard, usize)>,
    waiting: Arc<AtomicUsize>,
    missed: Arc<AtomicUsize>,
}

impl TapReceiver {
    /// The next thing; `None`: the speaker has stopped.
    pub async fn next(&mut self) -> Option<Heard> {
        let (heard, size) = self.queue.recv().await?;
        self.waiting.fetch_sub(size, Ordering::AcqRel);
        Some(heard)
    }

    /// How many things were dropped since the last call.
    pub fn missed(&self) -> usize {
        self.missed.swap(0, Ordering::AcqRel)
    }
}

/// A queue for a listener that holds about so many octets.
#[must_use]
pub fn tap_queue(limit: usize) -> (TapSender, TapReceiver) {
    let (sender, queue) = mpsc::unbounded_channel();
    let (waiting, missed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let receiver = TapReceiver { queue, waiting: Arc::clone(&waiting), missed: Arc::clone(&missed) };
    (TapSender { queue: sender, waiting, missed, limit }, receiver)
}

impl Driver {
    /// A new listener; one too many finds its queue closed.
    pub(crate) fn tap(&mut self, listener: TapSender) {
        self.listeners_of_taps.retain(|l| !l.queue.is_closed());
        if self.listeners_of_taps.len() >= LISTENERS {
            return;
        }
        self.flush_taps();
        if let Some(core) = &mut self.core {
            core.set_tap(true);
            listener.give(Heard::Sessions(core.tap_sessions()));
        } else {
            listener.give(Heard::Sessions(Vec::new()));
        }
        if let Some(us) = self.identity() {
            listener.give(Heard::Best(us, [].into()));
        }
        self.listeners_of_taps.push(listener);
    }

    fn identity(&self) -> Option<Identity> {
        let intent = self.intent.get()?;
        Some(Identity { asn: intent.asn, router_id: RouterId(intent.router_id) })
    }

    /// Tells all listeners whose best paths changed.
    pub(crate) fn tap_best(&mut self, prefixes: &[Cidr]) {
        if let Some(us) = self.identity() {
            let prefixes: Arc<[Cidr]> = prefixes.into();
            for listener in &self.listeners_of_taps {
                listener.give(Heard::Best(us, Arc::clone(&prefixes)));
            }
        }
    }

    /// Gives what the speaker recorded to all listeners; without any the recording ends.
    pub(crate) fn flush_taps(&mut self) {
        let Some(core) = &mut self.core else { return };
        if let Some(tapped) = core.take_tapped() {
            let tapped = Arc::new(tapped);
            self.listeners_of_taps.retain(|l| l.give(Heard::Tapped(Arc::clone(&tapped))));
        }
        // The speaker may be younger than the first listener.
        core.set_tap(!self.listeners_of_taps.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_waits_for_a_listener_is_bounded_and_what_it_missed_is_counted() {
        let batch =
            |octets: usize| Heard::Tapped(Arc::new(Tapped { octets: vec![0; octets], ..Tapped::default() }));
        let (sender, mut queue) = tap_queue(1000);
        // One that is larger than the queue comes when nothing waits.
        assert!(sender.give(batch(5000)));
        for _ in 0..10_000 {
            assert!(sender.give(Heard::Routes(Vec::new(), None)) && sender.give(batch(100)));
        }
        assert!(queue.waiting.load(Ordering::Acquire) <= 5000);
        let routes = |heard| matches!(heard, Some(Heard::Routes(..)));
        assert!(!routes(queue.next().await));
        assert!(queue.missed() > 0);
        assert_eq!(queue.missed(), 0, "told once");
        for _ in 0..20 {
            sender.give(batch(100));
        }
        assert!(queue.waiting.load(Ordering::Acquire) <= 1000);
        drop(queue);
        assert!(!sender.give(batch(1)), "nobody listens");
    }
}
