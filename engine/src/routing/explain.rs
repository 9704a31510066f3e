//! The recording hook: explanations are the live decisions, run with somebody listening.

/// What one step of a decision said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    /// It did not apply, the next one was asked.
    Passed,
    /// It decided: yes.
    Yes,
    /// It decided: no.
    No,
    /// An earlier step had decided.
    NotReached,
}

impl StepOutcome {
    /// `passed`, `yes`, `no` or `not-reached`.
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

/// One step of a decision, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The stable name, the same in metrics.
    pub name: &'static str,
    /// What it said.
    pub outcome: StepOutcome,
    /// Why, in words; empty when not reached.
    pub text: String,
}

/// Listens to a decision. `()` hears nothing and costs nothing.
pub(super) trait Recorder {
    /// One step was taken; `text` is only called when somebody reads it.
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

/// Adds the steps of `order` that were not taken.
pub(super) fn fill_not_reached(steps: &mut Vec<Step>, order: &[&'static str]) {
    for &name in order {
        if !steps.iter().any(|s| s.name == name) {
            steps.push(Step { name, outcome: StepOutcome::NotReached, text: String::new() });
        }
    }
}
