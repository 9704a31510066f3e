//! `--watch`: repeats a command when the agent's events or the store's changes indicate a change.

use std::time::Duration;

use super::client::Client;
use super::context::{Context, report};
use super::failure::{Exit, Failure};
use super::monitor::EventFollower;
use super::output;
use tortie_store::{Watch, WatchEvent};

/// Changes within this time are shown together: at most four answers per second.
const PAUSE: Duration = Duration::from_millis(250);
/// Interval of repetition without events, because ages, counters and drops cause none.
const BEAT: Duration = Duration::from_secs(10);
/// Pause between attempts to reconnect to a source.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Source of changes that affect the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Agent,
    Store,
}

impl From {
    pub(super) fn store_if(yes: bool) -> Self {
        if yes { Self::Store } else { Self::Agent }
    }
}

/// Runs a command once, or with `--watch` at every change until it is interrupted.
pub(super) fn repeat<F>(context: &Context, from: From, mut once: impl FnMut() -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    super::context::runtime()?.block_on(async {
        if !context.globals.watch {
            return once().await;
        }
        let (mut source, mut away) = (None, None);
        loop {
            // The source is opened before the query, so that no change in between is missed.
            if source.is_none() {
                source = ChangeSource::begin(context, from).await.ok();
            }
            output::again(context.globals.output);
            match once().await {
                Ok(()) => away = None,
                Err(failure) if failure.exit == Exit::Usage => return Err(failure),
                Err(failure) if failure.code == output::CLOSED => return Ok(()),
                // The failure is reported once, not at each attempt.
                Err(failure) if failure.exit == Exit::Unreachable => {
                    if away.as_ref() != Some(&failure) {
                        report(context.globals.output, &failure);
                    }
                    (source, away) = (None, Some(failure));
                }
                Err(failure) => {
                    report(context.globals.output, &failure);
                    away = None;
                }
            }
            let goes_on = match &mut source {
                Some(source) => source.changed().await,
                None => false,
            };
            if !goes_on {
                source = None;
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        }
    })
}

/// A stream of changes, which triggers the next answer.
enum ChangeSource {
    Agent(Box<EventFollower>),
    Store(Box<dyn Watch>),
}

impl ChangeSource {
    async fn begin(context: &Context, from: From) -> Result<Self, Failure> {
        match from {
            From::Agent => {
                let client = Client::of(&context.globals);
                Ok(Self::Agent(Box::new(EventFollower::begin(&client, "").await?)))
            }
            From::Store => {
                let store = super::store::open(&context.globals, false).await?;
                // Any list returns the revision; this key makes it short.
                let listed = store.list(&["/calico/v1/Ready".to_owned()]).await?;
                let of = listed.history();
                Ok(Self::Store(store.watch(&["/calico/".to_owned()], listed.revision, Some(&of)).await?))
            }
        }
    }

    /// Waits for a change, and for those that follow within the pause; `false` if the stream has ended.
    async fn changed(&mut self) -> bool {
        match tokio::time::timeout(BEAT, self.next()).await {
            Err(_) => return true,
            Ok(false) => return false,
            Ok(true) => {}
        }
        let pause = tokio::time::sleep(PAUSE);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return true,
                more = self.next() => if !more { return false },
            }
        }
    }

    async fn next(&mut self) -> bool {
        match self {
            Self::Agent(stream) => stream.next().await.is_some(),
            Self::Store(watch) => loop {
                match watch.next().await {
                    Ok(WatchEvent::Progress(_)) => {}
                    Ok(WatchEvent::Delta(_)) => return true,
                    Ok(WatchEvent::Compacted { .. }) | Err(_) => return false,
                }
            },
        }
    }
}
