//! What a move says while it goes on, and at its end: a line a step for people, one object for machines.

use std::time::Instant;

use serde::Serialize;

use super::journal::Step;
use crate::cli::failure::Failure;
use crate::cli::output::{self, Format};

/// One step, planned or gone.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    /// Stable.
    pub(super) step: String,
    /// What is done.
    pub(super) what: String,
    /// What packets notice of it.
    pub(super) traffic: String,
    /// How it is undone.
    pub(super) way_back: String,
    /// `planned`, `done`, `skipped` or `failed`.
    pub(super) state: String,
    /// What came of it.
    pub(super) detail: String,
    /// How long it took.
    pub(super) seconds: f64,
}

/// What a command answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// `MigratePlan`, `MigrateAdopt` or `MigrateRollback`.
    pub(super) kind: String,
    /// The host.
    pub(super) node: String,
    /// `planned`, `adopted`, `rolled-back`, or how far it came.
    pub(super) phase: String,
    /// Where Calico's state and ours differ.
    pub(super) differences: Vec<String>,
    /// What could not be compared, and why.
    pub(super) not_judged: Vec<String>,
    /// Each step.
    pub(super) steps: Vec<Line>,
    /// What is left for people to do.
    pub(super) next: Vec<String>,
}

/// Tells of steps as they go.
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

    /// How many steps there will be.
    pub(super) fn of(&mut self, steps: usize) {
        self.of = steps;
    }

    /// A sentence between the steps.
    pub(super) fn say(&self, text: &str) {
        if self.format.is_text() {
            // The step goes on, whoever reads.
            let _ = output::write_out(&format!("{text}\n"));
        }
    }

    /// A step that is not needed any more.
    pub(super) fn skip(&mut self, mut line: Line, why: &str) {
        line.state = "skipped".to_owned();
        line.detail = why.to_owned();
        let at = self.report.steps.len() + 1;
        self.say(&format!("{at:>2}/{}  {:<14} skipped: {why}", self.of, line.step));
        self.report.steps.push(line);
    }

    /// Goes a step.
    ///
    /// # Errors
    /// As the step.
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

    /// The end: for machines all of it, for people what is left to do.
    ///
    /// # Errors
    /// When the answer cannot be written.
    pub(super) fn end(&self) -> Result<(), Failure> {
        output::print(self.format, &self.report, |out, _| {
            for line in &self.report.next {
                out.push_str(line);
                out.push('\n');
            }
        })
    }
}

/// A line that is planned.
pub(super) fn line(step: Step, what: &str, traffic: &str, way_back: &str) -> Line {
    named(step.as_str(), what, traffic, way_back)
}

/// The same for a step of the way back.
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
