//! Journal: the recent inputs of the core with its decisions on each, which `tortie replay` runs again.
//!
//! A thread of its own records every input as one line of compressed JSON without secrets. The journal starts
//! again from a checkpoint of the core, so that its size is bounded, and `tortie diags` exports it. It never
//! delays the core: an input that finds the journal's inbox full is counted as lost, and the journal
//! continues at the next checkpoint, following the store's entries in the meantime.
//!
//! ```text
//!  event_loop --Input, effects--> Journal --inbox--> writer.rs: redact.rs -> format.rs -> gzip, two segments
//!                                                      decisions.rs: effects as lines      |
//!                                                      entries.rs: store at a checkpoint   |
//!  GET /v1/journal <------------ octets ---------------------------------------------------+
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

/// Maximum number of queued inputs; feed events are always queued.
const INBOX: usize = 4_096;

/// Priority of the thread, as in nice(2).
const NICE: i32 = 10;

/// Pause of the thread after its inbox was empty. Waking for each input would take the processor from the
/// threads that inputs come from, a thousand times while a thousand sessions come up.
const REST: Duration = Duration::from_millis(5);

/// Message to the journal's thread.
enum Message {
    /// An input with the effects that the core emitted.
    Input(Now, Box<Input>, Vec<Effect>),
    /// The core at rest, after all inputs so far.
    Checkpoint(Now, Box<Checkpoint>),
    /// Request for the compressed content of the journal.
    Export(oneshot::Sender<Vec<u8>>),
}

/// State shared by the core's thread and the journal's thread.
#[derive(Debug, Default)]
struct Shared {
    /// The journal needs a checkpoint.
    is_due: AtomicBool,
    /// Number of messages in the inbox.
    waiting: AtomicUsize,
    /// Number of inputs that found the inbox full.
    lost: AtomicU64,
}

/// The core's end of the journal. Cheap to clone.
#[derive(Clone)]
pub(super) struct Journal {
    inbox: Sender<Message>,
    shared: Arc<Shared>,
}

impl Journal {
    /// Starts the thread. `started` is the time passed to [`Core::new`](super::core::Core::new).
    ///
    /// # Errors
    /// Returns an error when the system refuses a thread.
    pub(super) fn start(options: CoreOptions, started: Now) -> std::io::Result<Self> {
        let (inbox, messages) = channel();
        let shared = Arc::new(Shared::default());
        let mut writer = Writer::new(options, started);
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            // Inputs can wait, while the threads they come from must not be delayed. Lowering the priority
            // never fails.
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

    /// Records an input with the effects that the core emitted.
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
        // The thread lives as long as the process, so the send does not fail.
        let _ = self.inbox.send(message);
    }

    /// True if the journal needs a checkpoint, to stay bounded or because inputs were lost.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.shared.is_due.load(Ordering::Relaxed) || self.shared.lost.load(Ordering::Relaxed) > 0
    }

    /// Starts a new segment at this checkpoint.
    pub(super) fn checkpoint(&self, now: Now, checkpoint: Checkpoint) {
        self.shared.is_due.store(false, Ordering::Relaxed);
        self.send(Message::Checkpoint(now, Box::new(checkpoint)));
    }

    /// Returns the content as compressed lines of JSON ([`mod@format`]); `None` if the agent is stopping.
    pub(super) async fn export(&self) -> Option<Vec<u8>> {
        let (answer, wait) = oneshot::channel();
        self.send(Message::Export(answer));
        wait.await.ok()
    }
}

/// Returns the next message, after a pause if the inbox was empty; `None` once no sender is left.
fn next(messages: &Receiver<Message>) -> Option<Message> {
    messages.try_recv().ok().or_else(|| {
        std::thread::sleep(REST);
        messages.recv().ok()
    })
}

/// Returns the nanoseconds between two moments.
fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}
