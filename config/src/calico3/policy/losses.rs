//! Members of a rule that cannot be used, and what the rule does without them.
//!
//! A rule that loses a match would match more traffic than was meant. It never widens what is allowed: one
//! that allows or logs is left out, one that denies keeps its other matches, and one that passes to the next
//! tier denies instead, because later rules or tiers could allow what it was meant to pass by.

use crate::resource::{Action, Fields, ValueError};

/// Text about a member that no release of Calico known here has.
pub(super) const UNKNOWN: &str = "this match is not known and cannot be enforced; remove it";

/// Member that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    code: &'static str,
    text: String,
}

/// Findings of one rule.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Matches that the rule loses.
    lost: Vec<Finding>,
    /// Members that are left out without effect on the rest.
    noted: Vec<Finding>,
}

impl Losses {
    /// Records a match that cannot be parsed.
    pub(super) fn lose(&mut self, error: &ValueError) {
        self.lost.push(Finding { code: "invalid-value", text: error.to_string() });
    }

    /// Records a match that can be parsed and not be enforced.
    pub(super) fn lose_unsupported(&mut self, path: &str, text: &str) {
        self.lost.push(Finding { code: "unsupported-setting", text: format!("`{path}`: {text}") });
    }

    /// Records the remaining members of an object, which would restrict the rule in a way that is not known.
    pub(super) fn lose_unknown(&mut self, fields: Fields) {
        for (name, _) in fields.rest().0.into_iter().filter(|(_, value)| !value.is_null()) {
            self.lose_unsupported(&name, UNKNOWN);
        }
    }

    /// Records an element of a list that is skipped, while others remain.
    pub(super) fn skip(&mut self, error: &ValueError) {
        self.noted.push(Finding { code: "invalid-value", text: format!("{error}; it is skipped") });
    }

    /// Returns the value, or records the match that cannot be parsed.
    pub(super) fn keep<T>(&mut self, result: Result<Option<T>, ValueError>) -> Option<T> {
        result.unwrap_or_else(|error| {
            self.lose(&error);
            None
        })
    }

    /// Adds the findings of a part of the rule, whose paths are below `path`.
    pub(super) fn within(&mut self, path: &str, part: Self) {
        let below = |finding: Finding| Finding { text: below(path, &finding.text), ..finding };
        self.lost.extend(part.lost.into_iter().map(below));
        self.noted.extend(part.noted.into_iter().map(below));
    }

    /// Returns the action of the rule without its lost matches; `None` if it is left out.
    pub(super) fn action(&self, action: Action) -> Option<Action> {
        match action {
            _ if self.lost.is_empty() => Some(action),
            Action::Allow | Action::Log => None,
            Action::Deny | Action::NextTier => Some(Action::Deny),
        }
    }

    /// Returns code and text of each finding of a rule with this action.
    pub(super) fn problems(self, action: Action) -> impl Iterator<Item = (&'static str, String)> {
        let effect = match action {
            Action::Allow => "until then this rule allows nothing",
            Action::Log => "until then this rule logs nothing",
            Action::Deny => "until then this rule denies all that its other matches select",
            Action::NextTier => {
                "until then this rule denies all that its other matches select, which it was meant to pass"
            }
        };
        let lost = self.lost.into_iter().map(move |lost| (lost.code, format!("{}; {effect}", lost.text)));
        lost.chain(self.noted.into_iter().map(|noted| (noted.code, noted.text)))
    }
}

/// Prepends a path to the path at the beginning of a text.
fn below(path: &str, text: &str) -> String {
    match text.strip_prefix('`') {
        Some(rest) if rest.starts_with('[') => format!("`{path}{rest}"),
        Some(rest) => format!("`{path}.{rest}"),
        None => format!("`{path}`: {text}"),
    }
}
