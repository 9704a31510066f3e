//! Notifications to the service manager: readiness, a status line, and the watchdog.
//!
//! The core's loop feeds the watchdog, and only while every other loop has answered a ping within its limit.
//! No part of this has a timer of its own: if any loop hangs, including the core's, the feeding ends and the
//! service manager restarts the agent.
//!
//! ```text
//!   core, every second --ping--> kernel thread, speaker thread, I/O threads
//!        ^                                   | time of the answer
//!        +-------------- Heartbeats <--------+     all in time: WATCHDOG=1
//!   I/O, every 5 s, only under a service manager: verdict of `tortie status` -> STATUS=
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::task::JoinHandle;

use crate::agent::handle::Handle;
use crate::api::status::Status;
use crate::speaker::ToSpeaker;
use tortie_kernel::ToKernel;

/// Pause between the answer to a ping and the next ping.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which the verdict is read.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// A loop that must make progress for the agent to be healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loop {
    /// The kernel thread, the only writer to the kernel. One iteration may write 1,024 routes or a complete
    /// ruleset, and the kernel has 10 s for each answer.
    Kernel,
    /// The speaker thread; its iterations must be shorter than the shortest hold time in use.
    Speaker,
    /// The two I/O threads for store, HTTP and Docker.
    Io,
}

/// All loops, in the order of [`Heartbeats`].
const LOOPS: [Loop; 3] = [Loop::Kernel, Loop::Speaker, Loop::Io];

impl Loop {
    /// Returns the loop's name for log lines.
    fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Speaker => "speaker",
            Self::Io => "io",
        }
    }

    /// Returns the maximum time without an answer.
    fn limit(self) -> Duration {
        match self {
            Self::Kernel => Duration::from_secs(60),
            Self::Speaker | Self::Io => Duration::from_secs(30),
        }
    }
}

/// Time of each loop's last answer, in milliseconds since the start.
#[derive(Debug, Default)]
struct LoopAnswers([AtomicU64; LOOPS.len()]);

/// State of the ping of one loop.
#[derive(Debug, Default, Clone, Copy)]
struct Ping {
    /// Time of the first attempt to send it, in milliseconds since the start.
    at: Option<u64>,
    /// True if the ping was put into the loop's inbox.
    sent: bool,
}

/// Pings the loops and evaluates their answers.
#[derive(Debug, Default)]
struct Heartbeats {
    answers: Arc<LoopAnswers>,
    pings: [Ping; LOOPS.len()],
}

impl Heartbeats {
    /// Returns the loops that are due for a ping at `now` (milliseconds since the start), and counts them as
    /// pinged.
    fn due(&mut self, now: u64) -> Vec<Loop> {
        let mut due = Vec::new();
        let places = LOOPS.iter().zip(&mut self.pings).zip(&self.answers.0);
        for ((which, ping), answered) in places {
            let answered = answered.load(Ordering::Relaxed);
            match ping.at {
                // The inbox was full: the ping is sent again, and its time counts from the first attempt.
                Some(at) if answered < at && !ping.sent => ping.sent = true,
                Some(at) if answered < at => continue,
                Some(_) if now.saturating_sub(answered) < millis(PING_INTERVAL) => continue,
                _ => *ping = Ping { at: Some(now), sent: true },
            }
            due.push(*which);
        }
        due
    }

    /// Records that a ping could not be sent.
    fn unsent(&mut self, which: Loop) {
        if let Some((_, ping)) = LOOPS.iter().zip(&mut self.pings).find(|(l, _)| **l == which) {
            ping.sent = false;
        }
    }

    /// Returns the loop that exceeds its limit by an unanswered ping, with the waiting time; of several, the
    /// one that waits longest.
    fn late(&self, now: u64) -> Option<(Loop, Duration)> {
        let places = LOOPS.iter().zip(&self.pings).zip(&self.answers.0);
        let open = places.filter_map(|((which, ping), answered)| {
            let sent_at = ping.at?;
            (answered.load(Ordering::Relaxed) < sent_at)
                .then(|| (*which, Duration::from_millis(now.saturating_sub(sent_at))))
        });
        open.filter(|(which, open)| *open > which.limit()).max_by_key(|(_, open)| *open)
    }

    /// Returns the callback that a loop runs when it receives the ping.
    fn answer(&self, which: Loop, started: Instant) -> impl FnOnce() + Send + 'static {
        let answers = Arc::clone(&self.answers);
        move || {
            let at = LOOPS.iter().position(|l| *l == which).and_then(|i| answers.0.get(i));
            if let Some(at) = at {
                // The added millisecond makes an answer later than its ping, even within the same
                // millisecond.
                at.store(millis(started.elapsed()) + 1, Ordering::Relaxed);
            }
        }
    }
}

/// Connection to the service manager; without one nothing is sent.
#[derive(Debug)]
pub(in crate::agent) struct Notify {
    managed: bool,
    heartbeats: Heartbeats,
    warned: Option<Loop>,
    status: Option<JoinHandle<()>>,
}

impl Notify {
    /// Creates the connection; `managed` is true under a service manager, see [`is_managed`].
    pub(in crate::agent) fn new(managed: bool) -> Self {
        Self { managed, heartbeats: Heartbeats::default(), warned: None, status: None }
    }

    /// Starts to report the verdict of `status` as status line.
    pub(in crate::agent) fn mirror<F>(
        &mut self,
        io: &tokio::runtime::Handle,
        status: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = Status> + Send + 'static,
    {
        if self.managed {
            self.status = Some(io.spawn(mirror(status)));
        }
    }

    /// Runs every second in the core's loop: pings the other loops, and feeds the watchdog while all of them
    /// answer.
    pub(in crate::agent) fn tick(&mut self, handle: &Handle, io: &tokio::runtime::Handle) {
        let now = millis(handle.started().elapsed());
        for which in self.heartbeats.due(now) {
            let answer = self.heartbeats.answer(which, handle.started());
            // A loop that has not started is not late.
            let sent = match which {
                Loop::Io => {
                    io.spawn(async move { answer() });
                    true
                }
                Loop::Kernel => match handle.kernel().get() {
                    Some(kernel) => kernel.try_send(ToKernel::Query(Box::new(|_| answer()))).is_ok(),
                    None => {
                        answer();
                        true
                    }
                },
                Loop::Speaker => match handle.speaker().get() {
                    Some(speaker) => speaker.send(ToSpeaker::Query(Box::new(|_| answer()))).is_ok(),
                    None => {
                        answer();
                        true
                    }
                },
            };
            if !sent {
                self.heartbeats.unsent(which);
            }
        }
        match self.heartbeats.late(now) {
            None => {
                self.warned = None;
                self.send(&[NotifyState::Watchdog]);
            }
            Some((which, open)) if self.warned != Some(which) => {
                self.warned = Some(which);
                tracing::error!(
                    target: "tortie",
                    reason = "loop-hangs",
                    "the {} loop has not answered for {} s: the service manager's watchdog is no longer \
                     notified",
                    which.as_str(),
                    open.as_secs()
                );
            }
            Some(_) => {}
        }
    }

    /// Reports that the agent has started: it forwards, and peers can connect.
    pub(in crate::agent) fn ready(&self) {
        self.send(&[NotifyState::Ready]);
    }

    /// Reports that the agent stops, with a description.
    pub(in crate::agent) fn stopping(&mut self, what: &str) {
        if let Some(task) = self.status.take() {
            task.abort();
        }
        self.send(&[NotifyState::Stopping, NotifyState::Status(what)]);
    }

    fn send(&self, states: &[NotifyState<'_>]) {
        if self.managed {
            // If the service manager no longer listens, the error cannot be reported either.
            let _ = sd_notify::notify(states);
        }
    }
}

/// True if a service manager listens.
pub(in crate::agent) fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty())
}

async fn mirror<F: Future<Output = Status>>(status: impl Fn() -> F) {
    let mut sent = String::new();
    let mut interval = tokio::time::interval(STATUS_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let line = line(&status().await);
        if line != sent {
            let _ = sd_notify::notify(&[NotifyState::Status(&line)]);
            sent = line;
        }
    }
}

/// Formats the verdict as in the first line of `tortie status`.
fn line(status: &Status) -> String {
    format!("{}: {}", status.verdict.to_uppercase(), status.summary)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records an answer of a loop at a time that the test chooses.
    fn answered(heartbeats: &Heartbeats, which: Loop, at: u64) {
        let place = LOOPS.iter().position(|l| *l == which).unwrap();
        heartbeats.answers.0[place].store(at, Ordering::Relaxed);
    }

    #[test]
    fn each_loop_has_its_own_limit_and_no_question_is_put_twice() {
        let mut heartbeats = Heartbeats::default();
        assert_eq!(heartbeats.due(1_000), LOOPS);
        assert_eq!(heartbeats.due(2_000), []);
        for which in LOOPS {
            answered(&heartbeats, which, 2_001);
        }
        assert_eq!((heartbeats.late(4_000_000), heartbeats.due(6_000)), (None, vec![]));
        assert_eq!(heartbeats.due(7_001), LOOPS);
        answered(&heartbeats, Loop::Io, 7_002);
        // The speaker is late after 30 s, the kernel thread after 60 s; the one that waits longest is named.
        assert_eq!(heartbeats.late(37_001), None);
        assert_eq!(heartbeats.late(37_002), Some((Loop::Speaker, Duration::from_millis(30_001))));
        answered(&heartbeats, Loop::Speaker, 40_000);
        assert_eq!(heartbeats.late(67_001), None);
        assert_eq!(heartbeats.late(67_002), Some((Loop::Kernel, Duration::from_millis(60_001))));
        answered(&heartbeats, Loop::Kernel, 70_000);
        assert_eq!(heartbeats.late(70_001), None);
    }

    #[test]
    fn an_inbox_that_stays_full_is_late_from_the_first_try_on() {
        let mut heartbeats = Heartbeats::default();
        for at in [1_000, 2_000, 3_000] {
            assert!(heartbeats.due(at).contains(&Loop::Kernel), "{at}");
            heartbeats.unsent(Loop::Kernel);
        }
        answered(&heartbeats, Loop::Speaker, 3_000);
        answered(&heartbeats, Loop::Io, 3_000);
        assert_eq!(heartbeats.late(61_000), None);
        assert_eq!(heartbeats.late(61_001), Some((Loop::Kernel, Duration::from_millis(60_001))));
        // The ping was sent at last.
        assert!(heartbeats.due(62_000).contains(&Loop::Kernel));
        assert_eq!(heartbeats.due(62_001), []);
        answered(&heartbeats, Loop::Kernel, 62_002);
        assert_eq!(heartbeats.late(62_003), None);
    }

    #[test]
    fn an_answer_within_the_millisecond_of_its_question_counts() {
        let started = Instant::now();
        let mut heartbeats = Heartbeats::default();
        let now = millis(started.elapsed());
        assert_eq!(heartbeats.due(now).len(), LOOPS.len());
        for which in LOOPS {
            heartbeats.answer(which, started)();
        }
        assert_eq!(heartbeats.late(now + 1_000_000), None);
    }
}
