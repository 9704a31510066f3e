//! Requests of other threads that the core's event loop answers.

use std::time::Instant;

use super::Agent;
use crate::agent::core::input::Input;
use crate::agent::core::snapshot::CoreSnapshot;
use crate::agent::core::view::CoreView;
use crate::agent::handle::CoreRequest;

impl Agent {
    /// Answers one request, if one is pending.
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
                // The store was empty or replaced, so the host must be registered again.
                self.registered &= !accepted;
                let _ = answer.send(accepted);
            }
        }
    }

    /// Runs a query on this thread with a view of the core.
    pub(super) fn view<T>(&self, query: impl FnOnce(&CoreView<'_>) -> T) -> T {
        query(&CoreView::new(&self.core, &|snapshot| self.complete(snapshot)))
    }

    /// Adds the process's own state to a snapshot of the core: store, log, BMP stations, stop.
    fn complete(&self, snapshot: &mut CoreSnapshot) {
        snapshot.store = self.store.describe();
        snapshot.log_problem = self.logs.problem();
        snapshot.notes.extend(self.stations.notes());
        snapshot.notes.extend(self.logs.notes(Instant::now()));
        snapshot.stopping = self.stopping;
    }
}
