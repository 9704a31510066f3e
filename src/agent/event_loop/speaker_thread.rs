//! The event loop's view of the speaker thread: not started yet, or running.

use std::thread::JoinHandle;
use std::time::Duration;

use crate::agent::core::effect::Effect;
use crate::speaker::{SpeakerHandle, ToSpeaker};

/// Maximum wait for the end of the thread.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Handle of the speaker thread. Effects that concern the thread are held until it starts.
#[derive(Default)]
pub(super) struct SpeakerThread {
    running: Option<(SpeakerHandle, JoinHandle<()>)>,
    held: Vec<Effect>,
}

impl SpeakerThread {
    pub(super) fn is_started(&self) -> bool {
        self.running.is_some()
    }

    /// Holds an effect until the thread starts.
    pub(super) fn hold(&mut self, effect: Effect) {
        self.held.push(effect);
    }

    /// Records that the thread runs; returns the held effects, oldest first.
    pub(super) fn on_start(&mut self, speaker: SpeakerHandle, thread: JoinHandle<()>) -> Vec<Effect> {
        self.running = Some((speaker, thread));
        std::mem::take(&mut self.held)
    }

    pub(super) fn send(&self, message: ToSpeaker) {
        if let Some((speaker, _)) = &self.running
            && let Err(error) = speaker.send(message)
        {
            tracing::error!(target: "tortie", "the BGP speaker did not accept a request: {error}");
        }
    }

    /// Ends the sessions and the thread; neighbours receive `text` as reason.
    pub(super) async fn stop(&mut self, graceful: bool, text: &str) {
        if let Some((speaker, thread)) = self.running.take()
            && speaker.send(ToSpeaker::Shutdown { graceful, text: text.to_owned() }).is_ok()
        {
            let ended = tokio::task::spawn_blocking(move || thread.join());
            let _ = tokio::time::timeout(STOP_TIMEOUT, ended).await;
        }
    }
}
