//! A problem: code, subject, severity, cause and next step, the same in `status`, `doctor`, `migrate check`, the page and
//! metrics.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

use super::codes::{self, Code, Severity};

/// Something that is wrong or unexpected. Its JSON is `code`, `subject`, `text` and `next`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "ProblemJson")]
pub struct Problem {
    /// Stable: one of [`codes`].
    pub code: String,
    /// The object with the problem, for people; empty: the host, and `text` stands alone.
    pub subject: String,
    /// The cause, for people.
    pub text: String,
    /// The next command or step.
    pub next: String,
    /// The subject, typed; of this process alone, so it is no part of the JSON.
    #[serde(skip)]
    pub about: Subject,
    /// How grave it is. No part of the JSON: a reader takes it from the code.
    #[serde(skip)]
    pub severity: Severity,
}

/// A problem as the JSON has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProblemJson {
    code: String,
    subject: String,
    text: String,
    next: String,
}

impl From<ProblemJson> for Problem {
    fn from(json: ProblemJson) -> Self {
        let ProblemJson { code, subject, text, next } = json;
        let severity = codes::severity(&code);
        Self { code, subject, text, next, about: Subject::Host, severity }
    }
}

impl Problem {
    /// The same problem of this subject.
    #[must_use]
    pub fn about(self, about: Subject) -> Self {
        Self { about, ..self }
    }
}

impl Code {
    /// A problem or note of this code, with the severity of its list; `name` fills in its next step. It concerns the host,
    /// until [`Problem::about`] says otherwise.
    #[must_use]
    pub fn problem(&self, name: &str, subject: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem {
            code: self.name.to_owned(),
            subject: subject.into(),
            text: text.into(),
            next: self.next(name),
            about: Subject::Host,
            severity: self.severity,
        }
    }
}

/// The object that a problem concerns: by it the explanation of one object finds the problems of that object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Subject {
    /// The host or its agent as a whole.
    #[default]
    Host,
    /// A peer, by the name of its session.
    Peer(String),
    /// A range that peers come from, by its name.
    Range(String),
    /// A key of the store.
    Key(String),
    /// A route or a block.
    Prefix(Cidr),
    /// An address.
    Address(IpAddr),
    /// An endpoint, by its name.
    Endpoint(String),
    /// An interface, by its name.
    Interface(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_has_four_fields_and_the_severity_comes_back_from_the_code() {
        let problem = codes::NO_POOL.problem("", "addresses", "there is none");
        let json = serde_json::to_string(&problem).unwrap();
        let expected =
            r#"{"code":"no-pool","subject":"addresses","text":"there is none","next":"tortie ipam pools"}"#;
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), problem);
        assert_eq!(problem.severity, Severity::Note);
        assert_eq!(codes::severity("of-another-version"), Severity::Warning);
    }
}
