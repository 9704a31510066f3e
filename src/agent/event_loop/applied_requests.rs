//! Pending requests of `POST /v1/applied`, which wait until the dataplane has applied an endpoint.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::agent::core::Core;
use crate::agent::core::applied::{self, AckTarget};
use crate::agent::core::input::Timing;
use crate::agent::core::view::CoreView;
use crate::api::status::{Applied, AppliedRequest};

/// Maximum wait in milliseconds.
const WAIT_MAX: u64 = 600_000;

/// Pending requests in order of arrival.
#[derive(Default)]
pub(super) struct AppliedRequests {
    waiting: Vec<Waiting>,
}

struct Waiting {
    request: AppliedRequest,
    answer: oneshot::Sender<Applied>,
    until: Instant,
    /// Time at which the plugin received the request for the endpoint.
    since: Option<Instant>,
    /// Acknowledgements to wait for; set once the revision was sent to the kernel.
    target: Option<AckTarget>,
}

impl AppliedRequests {
    /// Adds a request.
    pub(super) fn add(&mut self, request: AppliedRequest, answer: oneshot::Sender<Applied>, now: Instant) {
        let until = now + Duration::from_millis(request.wait_millis.min(WAIT_MAX));
        // The request carries the time that the plugin has already spent.
        let before = request.elapsed_millis.map(Duration::from_millis);
        let since = before.and_then(|before| now.checked_sub(before));
        self.waiting.push(Waiting { request, answer, until, since, target: None });
    }

    /// Answers the requests that have a result or have timed out.
    pub(super) fn answer(&mut self, core: &mut Core, now: Instant) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let revision = CoreView::of(core).in_force();
            let verdict = applied::verdict(core, &waiting.request, &mut waiting.target);
            let result = verdict.or_else(|| (now >= waiting.until).then_some(("timeout", None)));
            match result {
                Some((word, reason)) => {
                    if let Some(since) = waiting.since.filter(|_| word == "applied") {
                        core.time(Timing::EndpointReady(now.saturating_duration_since(since)));
                    }
                    let _ = waiting.answer.send(Applied { result: word.to_owned(), reason, revision });
                }
                None if waiting.answer.is_closed() => {}
                None => self.waiting.push(waiting),
            }
        }
    }
}
