//! Output of a migration: a line per step for people while it runs, one object for programs at its end.

use std::time::Instant;

use serde::Serialize;

use super::journal::Step;
use crate::cli::failure::Failure;
use crate::cli::output::{self, Format};

/// A step with its state.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    /// Stable name of the step.
    pub(super) step: String,
    /// Action of the step.
    pub(super) what: String,
    /// Effect on traffic.
    pub(super) traffic: String,
    /// Rollback of the step.
    pub(super) way_back: String,
    /// State of the step: `planned`, `done`, `skipped` or `failed`.
    pub(super) state: String,
    /// Result of the step.
    pub(super) detail: String,
    /// Duration in seconds.
    pub(super) seconds: f64,
}

/// JSON answer of a command.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Kind of the answer: `MigratePlan`, `MigrateAdopt` or `MigrateRollback`.
    pub(super) kind: String,
    /// Name of the host.
    pub(super) node: String,
    /// `planned`, `adopted`, `rolled-back`, or the phase that was reached.
    pub(super) phase: String,
    /// Differences between Calico's state and Tortie's intent.
    pub(super) differences: Vec<String>,
    /// Objects that could not be compared, with the reason.
    pub(super) not_judged: Vec<String>,
    /// All steps, in order.
    pub(super) steps: Vec<Line>,
    /// Remaining manual steps.
    pub(super) next: Vec<String>,
}

/// Prints steps while they run, and collects the report.
#[derive(Debug)]
pub(super) struct Progress {
    format: Format,
    of: usize,
    pub(super) report: Report,
}

impl Progress {
    pub(super) fn new(format: Format, kind: &str, node: &str, of: usize) -> Self {
        let report = Report { kind: kind.to_owned(), node: node.to_owned(), ..Report::default() };
        Self { format, of, report }
    }

    /// Sets the number of steps.
    pub(super) fn of(&mut self, steps: usize) {
        self.of = steps;
    }

    /// Prints a sentence between steps.
    pub(super) fn say(&self, text: &str) {
        if self.format.is_text() {
            // A write error is ignored, because the step must go on.
            let _ = output::write_out(&format!("{text}\n"));
        }
    }

    /// Records a step that is not needed any more.
    pub(super) fn skip(&mut self, mut line: Line, why: &str) {
        line.state = "skipped".to_owned();
        line.detail = why.to_owned();
        let at = self.report.steps.len() + 1;
        self.say(&format!("{at:>2}/{}  {:<14} skipped: {why}", self.of, line.step));
        self.report.steps.push(line);
    }

    /// Carries out a step and records its result.
    ///
    /// # Errors
    /// The error of the step.
    pub(super) async fn step(
        &mut self,
        mut line: Line,
        go: impl Future<Output = Result<String, Failure>>,
    ) -> Result<(), Failure> {
        let at = self.report.steps.len() + 1;
        self.say(&format!("{at:>2}/{}  {:<14} {}", self.of, line.step, line.what));
        let begin = Instant::now();
        let result = go.await;
        let took = begin.elapsed().as_secs_f64();
        line.seconds = (took * 1_000.0).round() / 1_000.0;
        match &result {
            Ok(detail) => {
                line.state = "done".to_owned();
                line.detail.clone_from(detail);
                self.say(&format!("       ok in {took:.1} s: {detail}"));
            }
            Err(failure) => {
                line.state = "failed".to_owned();
                line.detail.clone_from(&failure.text);
                self.say(&format!("       FAIL after {took:.1} s"));
            }
        }
        self.report.steps.push(line);
        result.map(drop)
    }

    /// Prints the report for programs, or the remaining manual steps for people.
    ///
    /// # Errors
    /// If the answer cannot be written.
    pub(super) fn end(&self) -> Result<(), Failure> {
        output::print(self.format, &self.report, |out, _| {
            for line in &self.report.next {
                out.push_str(line);
                out.push('\n');
            }
        })
    }
}

/// Creates a planned step.
pub(super) fn line(step: Step, what: &str, traffic: &str, way_back: &str) -> Line {
    named(step.as_str(), what, traffic, way_back)
}

/// Creates a planned step by its name.
pub(super) fn named(step: &str, what: &str, traffic: &str, way_back: &str) -> Line {
    Line {
        step: step.to_owned(),
        what: what.to_owned(),
        traffic: traffic.to_owned(),
        way_back: way_back.to_owned(),
        state: "planned".to_owned(),
        detail: String::new(),
        seconds: 0.0,
    }
}
