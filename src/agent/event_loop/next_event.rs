//! Selects the next event of the core's loop by priority.

/// Next event to process, by its source.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextEvent<S, F, A, R> {
    /// A signal, a tick or a timer.
    First(S),
    Feed(F),
    Fact(A),
    Request(R),
}

/// Waits for the next event. Of several that are ready it returns the first in this order: signals and ticks,
/// including the watchdog's; store events; facts of other threads; one request.
///
/// A client that sends requests without pause therefore delays none of the others. A closed channel of facts
/// or requests is no longer polled.
pub(super) async fn next_event<S, F, A, R>(
    first: impl Future<Output = S>,
    feed: impl Future<Output = F>,
    facts: impl Future<Output = Option<A>>,
    requests: impl Future<Output = Option<R>>,
) -> NextEvent<S, F, A, R> {
    tokio::pin!(first, feed, facts, requests);
    tokio::select! {
        biased;
        signal = &mut first => NextEvent::First(signal),
        event = &mut feed => NextEvent::Feed(event),
        Some(fact) = &mut facts => NextEvent::Fact(fact),
        Some(request) = &mut requests => NextEvent::Request(request),
        else => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::*;

    /// Order in which the loop handles ready events while requests never end.
    #[tokio::test(start_paused = true)]
    async fn questions_without_end_delay_neither_ticks_nor_changes_nor_facts() {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        let (mut feed, mut facts) = (VecDeque::from([1, 2]), VecDeque::from([1, 2, 3]));
        let mut taken = Vec::new();
        for _ in 0..40 {
            let event = next_event(
                tick.tick(),
                async {
                    match feed.pop_front() {
                        Some(event) => event,
                        None => std::future::pending().await,
                    }
                },
                async {
                    match facts.pop_front() {
                        Some(fact) => Some(fact),
                        None => std::future::pending().await,
                    }
                },
                std::future::ready(Some(())),
            );
            taken.push(match event.await {
                NextEvent::First(_) => 't',
                NextEvent::Feed(_) => 's',
                NextEvent::Fact(_) => 'f',
                NextEvent::Request(()) => {
                    // Each answer takes 100 ms.
                    tokio::time::advance(Duration::from_millis(100)).await;
                    'r'
                }
            });
        }
        let taken: String = taken.into_iter().collect();
        assert_eq!(taken, "tssfffrrrrrrrrrrtrrrrrrrrrrtrrrrrrrrrrtr");
    }
}
