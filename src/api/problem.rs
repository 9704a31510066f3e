//! The problem type: code, subject, severity, cause and next step, the same in `status`, `doctor`, `migrate
//! check`, the web page and metrics.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

use super::codes::{self, Code, Severity};

/// An error, a degradation or a note. Its JSON has the members `code`, `subject`, `text` and `next`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "ProblemJson")]
pub struct Problem {
    /// Stable code, one of [`codes`].
    pub code: String,
    /// Object with the problem, for people; empty for the host, where `text` needs no subject.
    pub subject: String,
    /// Cause, for people.
    pub text: String,
    /// The next command or step.
    pub next: String,
    /// Typed subject, for use inside this process only; not part of the JSON.
    #[serde(skip)]
    pub about: Subject,
    /// Severity. It is not part of the JSON: readers derive it from the code.
    #[serde(skip)]
    pub severity: Severity,
}

/// JSON form of a problem.
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
    /// Sets the typed subject.
    #[must_use]
    pub fn about(self, about: Subject) -> Self {
        Self { about, ..self }
    }
}

impl Code {
    /// Creates a problem or note of this code with the severity of its list; `name` fills in the next step.
    /// Its subject is the host unless [`Problem::about`] sets another.
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

/// Object that a problem concerns. The explanation of an object uses it to find the problems of that object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Subject {
    /// The host or its agent as a whole.
    #[default]
    Host,
    /// A peer, by its session name.
    Peer(String),
    /// A range of dynamic peers, by its name.
    Range(String),
    /// A store key.
    Key(String),
    /// A route or a block, by its prefix.
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
