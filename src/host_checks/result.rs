//! Result of a host check.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::api::codes::{Code, Severity};
use crate::api::problem::{Problem, Subject};

/// Verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The check passed.
    Ok,
    /// The check passed with a warning.
    Warn,
    /// The check failed.
    Fail,
    /// The check could not be run, or its data not be read.
    NotTried,
}

impl Verdict {
    /// Returns `ok`, `WARN`, `FAIL` or `--`, for text output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
            Self::NotTried => "--",
        }
    }

    /// Returns `ok`, `warn`, `fail` or `not-tried`, for JSON output.
    fn json(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::NotTried => "not-tried",
        }
    }
}

/// Result of one check. Its JSON has `code`, `result`, `text`, and optionally `detail` and `fix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult(Outcome);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Ok { code: &'static str, text: String, detail: String },
    Problem(Problem),
    NotTried { code: &'static str, text: String, next: Option<String> },
}

impl CheckResult {
    /// Returns the verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match &self.0 {
            Outcome::Ok { .. } => Verdict::Ok,
            Outcome::Problem(problem) if problem.severity == Severity::Failure => Verdict::Fail,
            Outcome::Problem(_) => Verdict::Warn,
            Outcome::NotTried { .. } => Verdict::NotTried,
        }
    }

    /// Returns the stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        match &self.0 {
            Outcome::Ok { code, .. } | Outcome::NotTried { code, .. } => code,
            Outcome::Problem(problem) => &problem.code,
        }
    }

    /// Returns a description of one line.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.0 {
            Outcome::Ok { text, .. } | Outcome::NotTried { text, .. } => text.clone(),
            Outcome::Problem(problem) if problem.subject.is_empty() => problem.text.clone(),
            Outcome::Problem(problem) => format!("{}: {}", problem.subject, problem.text),
        }
    }

    /// Returns further details; often empty.
    #[must_use]
    pub fn detail(&self) -> &str {
        match &self.0 {
            Outcome::Ok { detail, .. } => detail,
            Outcome::Problem(_) | Outcome::NotTried { .. } => "",
        }
    }

    /// Returns the step that fixes the problem.
    #[must_use]
    pub fn fix(&self) -> Option<&str> {
        match &self.0 {
            Outcome::Ok { .. } => None,
            Outcome::Problem(problem) => Some(&problem.next),
            Outcome::NotTried { next, .. } => next.as_deref(),
        }
    }

    /// Returns the problem, if the check found one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match &self.0 {
            Outcome::Problem(problem) => Some(problem),
            Outcome::Ok { .. } | Outcome::NotTried { .. } => None,
        }
    }
}

impl Serialize for CheckResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (detail, fix) = (self.detail(), self.fix());
        let fields = 3 + usize::from(!detail.is_empty()) + usize::from(fix.is_some());
        let mut item = serializer.serialize_struct("CheckResult", fields)?;
        item.serialize_field("code", self.code())?;
        item.serialize_field("result", self.verdict().json())?;
        item.serialize_field("text", &self.text())?;
        if !detail.is_empty() {
            item.serialize_field("detail", detail)?;
        }
        if let Some(fix) = fix {
            item.serialize_field("fix", fix)?;
        }
        item.end()
    }
}

/// Collects the results of checks.
#[derive(Debug, Default)]
pub(super) struct Results(Vec<CheckResult>);

impl Results {
    pub(super) fn ok(&mut self, code: &Code, text: impl Into<String>) {
        self.ok_with(code, text, String::new());
    }

    pub(super) fn ok_with(&mut self, code: &Code, text: impl Into<String>, detail: String) {
        self.0.push(CheckResult(Outcome::Ok { code: code.name, text: text.into(), detail }));
    }

    pub(super) fn warn(&mut self, code: &Code, text: impl Into<String>, fix: impl Into<String>) {
        self.host_problem(Severity::Warning, code.name, text, fix);
    }

    pub(super) fn fail(&mut self, code: &Code, text: impl Into<String>, fix: impl Into<String>) {
        self.host_problem(Severity::Failure, code.name, text, fix);
    }

    /// Adds a problem of the host as a whole.
    pub(super) fn host_problem(
        &mut self,
        severity: Severity,
        code: &str,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.problem(Problem {
            code: code.to_owned(),
            subject: String::new(),
            text: text.into(),
            next: fix.into(),
            about: Subject::Host,
            severity,
        });
    }

    pub(super) fn problem(&mut self, problem: Problem) {
        self.0.push(CheckResult(Outcome::Problem(problem)));
    }

    pub(super) fn not_tried(&mut self, code: &Code, text: impl Into<String>, next: Option<&str>) {
        let next = next.map(str::to_owned);
        self.0.push(CheckResult(Outcome::NotTried { code: code.name, text: text.into(), next }));
    }

    pub(super) fn into_inner(self) -> Vec<CheckResult> {
        self.0
    }
}
