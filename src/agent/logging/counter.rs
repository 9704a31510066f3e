//! Counts log messages by level, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Messages since the start at ERROR, WARN and INFO. A process has one log.
static LOGGED: [AtomicU64; 3] = [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)];

/// Layer that counts log messages.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) struct LogCounter;

impl<S: Subscriber> Layer<S> for LogCounter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let at = match *event.metadata().level() {
            Level::ERROR => 0,
            Level::WARN => 1,
            Level::INFO => 2,
            _ => return,
        };
        if let Some(count) = LOGGED.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the number of messages since the start, by level.
pub(in crate::agent) fn message_counts() -> impl Iterator<Item = (&'static str, u64)> {
    ["error", "warn", "info"].into_iter().zip(LOGGED.iter().map(|count| count.load(Ordering::Relaxed)))
}
