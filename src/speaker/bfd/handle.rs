//! Handle to the thread, for the speaker's.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;

use super::thread::{BfdThread, Order, Report};
use super::view::BfdView;
use crate::speaker::wakeup::Wakeup;

/// Talks to the thread.
pub(super) struct Handle {
    orders: Sender<Order>,
    wakeup: Arc<Wakeup>,
    reports: Receiver<Report>,
    view: Arc<ArcSwap<BfdView>>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Starts the thread, which wakes the speaker when it has a report.
    pub(super) fn start(speaker: Arc<Wakeup>) -> io::Result<Self> {
        let wakeup = Arc::new(Wakeup::new()?);
        let (orders, orders_in) = channel();
        let (reports_out, reports) = channel();
        let view = Arc::new(ArcSwap::default());
        let bfd = BfdThread::new(wakeup.clone(), orders_in, reports_out, speaker, view.clone())?;
        let thread = std::thread::Builder::new().name("bfd".into()).spawn(move || bfd.run())?;
        Ok(Self { orders, wakeup, reports, view, thread: Some(thread) })
    }

    pub(super) fn order(&self, order: Order) {
        // It ends on `Stop` only, and nothing is ordered after that.
        let _ = self.orders.send(order);
        self.wakeup.wake();
    }

    /// The next report, if there is one.
    pub(super) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// The published state.
    pub(super) fn view(&self) -> Arc<BfdView> {
        self.view.load_full()
    }

    /// Waits for the end, at most for [`thread::FAREWELL`](super::thread::FAREWELL) after [`Order::Stop`].
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
