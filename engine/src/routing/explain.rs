//! Records the steps of routing decisions. Explanations run the live decision code with a recorder attached.

/// Outcome of one step of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    /// The step did not apply, and the next one was evaluated.
    Passed,
    /// The step accepted.
    Yes,
    /// The step rejected.
    No,
    /// The step was not evaluated, because an earlier one decided.
    NotReached,
}

impl StepOutcome {
    /// Returns `passed`, `yes`, `no` or `not-reached`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Yes => "yes",
            Self::No => "no",
            Self::NotReached => "not-reached",
        }
    }
}

/// One step of a decision, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Stable name of the step, which metrics use as well.
    pub name: &'static str,
    /// Outcome of the step.
    pub outcome: StepOutcome,
    /// Reason for the outcome; empty if the step was not reached.
    pub text: String,
}

/// Receives the steps of a decision. The implementation for `()` discards them at no cost.
pub(super) trait Recorder {
    /// Records a step. `text` is only called if the recorder keeps it.
    fn step(&mut self, name: &'static str, outcome: StepOutcome, text: impl FnOnce() -> String);
}

impl Recorder for () {
    fn step(&mut self, _: &'static str, _: StepOutcome, _: impl FnOnce() -> String) {}
}

impl Recorder for Vec<Step> {
    fn step(&mut self, name: &'static str, outcome: StepOutcome, text: impl FnOnce() -> String) {
        self.push(Step { name, outcome, text: text() });
    }
}

/// Adds the steps of `order` that were not recorded, as not reached.
pub(super) fn fill_not_reached(steps: &mut Vec<Step>, order: &[&'static str]) {
    for &name in order {
        if !steps.iter().any(|s| s.name == name) {
            steps.push(Step { name, outcome: StepOutcome::NotReached, text: String::new() });
        }
    }
}
