//! Handle of the BFD thread, used by the speaker thread.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;

use super::thread::{BfdThread, Order, Report};
use super::view::BfdView;
use crate::speaker::wakeup::Wakeup;

/// Sends orders to the BFD thread and receives its reports.
pub(super) struct Handle {
    orders: Sender<Order>,
    wakeup: Arc<Wakeup>,
    reports: Receiver<Report>,
    view: Arc<ArcSwap<BfdView>>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Starts the thread, which wakes the speaker for each report.
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
        // The thread ends only after `Stop`, which is the last order.
        let _ = self.orders.send(order);
        self.wakeup.wake();
    }

    /// Returns the next report, if any.
    pub(super) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// Returns the published state.
    pub(super) fn view(&self) -> Arc<BfdView> {
        self.view.load_full()
    }

    /// Waits for the end of the thread, at most [`thread::FAREWELL`](super::thread::FAREWELL) after
    /// [`Order::Stop`].
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
