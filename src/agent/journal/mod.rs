//! The journal: the last inputs of the core with what it decided on each, from which `tortie replay` runs it again.
//!
//! What it does: records every input on a thread of its own, as one line of JSON, compressed, without secrets; begins anew
//! from a checkpoint of the core, so that it stays bounded; gives all of it to `tortie diags`. What it does not: decide, or
//! delay the core: an input that finds the journal's inbox full is counted as lost, and the journal goes on from the next
//! checkpoint (the store's entries are followed meanwhile).
//!
//! ```text
//!  event_loop --Input, effects--> Journal --inbox--> writer.rs: redact.rs -> format.rs -> gzip, two segments
//!                                                      decisions.rs: effects as lines     | entries.rs: store at a checkpoint
//!  GET /v1/journal <------------ octets --------------------------------------------------+
//!  tortie replay FILE: format.rs -> Core::handle -> decisions.rs -> compared with the recorded lines
//! ```

pub(super) mod decisions;
mod entries;
pub(super) mod format;
mod redact;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::agent::core::checkpoint::Checkpoint;
use crate::agent::core::effect::Effect;
use crate::agent::core::input::{Input, Now};
use crate::agent::core::options::CoreOptions;
use writer::Writer;

/// Inputs that may wait for the journal's thread; those of the store's feed always may.
const INBOX: usize = 4_096;

/// The priority of the thread, as nice(2) has it.
const NICE: i32 = 10;

/// How long the thread leaves its inbox alone when that was empty: woken for each input it would take the processor from the
/// threads that inputs come from, a thousand times while a thousand sessions come up.
const REST: Duration = Duration::from_millis(5);

/// For the journal's thread.
enum Message {
    /// An input with what the core decided.
    Input(Now, Box<Input>, Vec<Effect>),
    /// The core at rest, after all inputs so far.
    Checkpoint(Now, Box<Checkpoint>),
    /// All that is recorded, compressed.
    Export(oneshot::Sender<Vec<u8>>),
}

/// What the core's thread and the journal's thread share.
#[derive(Debug, Default)]
struct Shared {
    /// The journal wants a checkpoint.
    is_due: AtomicBool,
    /// Messages in the inbox.
    waiting: AtomicUsize,
    /// Inputs that found the inbox full.
    lost: AtomicU64,
}

/// The core's end of the journal. Cheap to clone.
#[derive(Clone)]
pub(super) struct Journal {
    inbox: Sender<Message>,
    shared: Arc<Shared>,
}

impl Journal {
    /// Starts the thread. `started` is the time that [`Core::new`](super::core::Core::new) got.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start(options: CoreOptions, started: Now) -> std::io::Result<Self> {
        let (inbox, messages) = channel();
        let shared = Arc::new(Shared::default());
        let mut writer = Writer::new(options, started);
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            // Inputs can wait, and the threads that they come from should not. Lower priority is never denied.
            let _ = rustix::process::setpriority_process(None, NICE);
            while let Some(message) = next(&messages) {
                of_thread.waiting.fetch_sub(1, Ordering::Relaxed);
                let lost = of_thread.lost.swap(0, Ordering::Relaxed);
                writer.lose(lost);
                match message {
                    Message::Input(now, input, effects) => writer.input(now, *input, &effects),
                    Message::Checkpoint(now, checkpoint) => writer.checkpoint(now, *checkpoint),
                    Message::Export(answer) => drop(answer.send(writer.export())),
                }
                of_thread.is_due.store(writer.wants_checkpoint(), Ordering::Relaxed);
            }
        })?;
        Ok(Self { inbox, shared })
    }

    /// Records an input and what the core decided on it.
    pub(super) fn input(&self, now: Now, input: Input, effects: &[Effect]) {
        let is_full = self.shared.waiting.load(Ordering::Relaxed) >= INBOX;
        if is_full && !matches!(input, Input::Feed(_)) {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let effects = effects.iter().filter(|effect| decisions::is_shown(effect)).cloned().collect();
        self.send(Message::Input(now, Box::new(input), effects));
    }

    fn send(&self, message: Message) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        // The thread ends with the process.
        let _ = self.inbox.send(message);
    }

    /// The journal wants a checkpoint: to stay bounded, or because inputs were lost.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.shared.is_due.load(Ordering::Relaxed) || self.shared.lost.load(Ordering::Relaxed) > 0
    }

    /// Begins anew from here.
    pub(super) fn checkpoint(&self, now: Now, checkpoint: Checkpoint) {
        self.shared.is_due.store(false, Ordering::Relaxed);
        self.send(Message::Checkpoint(now, Box::new(checkpoint)));
    }

    /// All that is recorded, as gzip of lines of JSON ([`format`]); `None`: the agent ends.
    pub(super) async fn export(&self) -> Option<Vec<u8>> {
        let (answer, wait) = oneshot::channel();
        self.send(Message::Export(answer));
        wait.await.ok()
    }
}

/// The next message, after a rest when there was none; `None`: no core sends any more.
fn next(messages: &Receiver<Message>) -> Option<Message> {
    messages.try_recv().ok().or_else(|| {
        std::thread::sleep(REST);
        messages.recv().ok()
    })
}

/// Nanoseconds from one moment to a later one.
fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}
