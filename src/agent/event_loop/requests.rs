//! The requests that the agent answers on its thread.

use std::time::Instant;

use super::Agent;
use crate::agent::core::input::Input;
use crate::agent::core::snapshot::CoreSnapshot;
use crate::agent::core::view::CoreView;
use crate::agent::handle::CoreRequest;

impl Agent {
    /// Answers one request, if one waits.
    pub(super) fn on_waiting_request(&mut self) {
        if let Ok(request) = self.requests.try_recv() {
            self.on_request(request);
        }
    }

    pub(super) fn on_request(&mut self, request: CoreRequest) {
        match request {
            CoreRequest::Query(query) => self.view(query),
            CoreRequest::Applied { request, answer } => {
                self.applied_requests.add(request, answer, Instant::now());
            }
            CoreRequest::LogLevel { request, answer } => {
                let _ = answer.send(self.logs.set_level(&request, Instant::now()));
            }
            CoreRequest::AcceptStore(answer) => {
                let frozen = CoreView::of(&self.core).frozen().is_some();
                self.input(Input::Accept);
                let accepted = frozen && CoreView::of(&self.core).frozen().is_none();
                // A store that was empty does not know this host.
                self.registered &= !accepted;
                let _ = answer.send(accepted);
            }
        }
    }

    /// Answers a query on this thread.
    pub(super) fn view<T>(&self, query: impl FnOnce(&CoreView<'_>) -> T) -> T {
        query(&CoreView::new(&self.core, &|snapshot| self.complete(snapshot)))
    }

    /// Adds to a snapshot of the core what the process knows.
    fn complete(&self, snapshot: &mut CoreSnapshot) {
        snapshot.store = self.store.describe();
        snapshot.log_problem = self.logs.problem();
        snapshot.notes.extend(self.stations.notes());
        snapshot.notes.extend(self.logs.notes(Instant::now()));
        snapshot.stopping = self.stopping;
    }
}
