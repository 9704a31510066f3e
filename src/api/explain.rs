//! The answers of `why peer`, `why route` and `why ip`, in one form that the command line and the web page
//! render alike.
//!
//! An answer comes from the functions that make the decision, run again with a recorder attached. It changes
//! no state and no counter.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

/// An explanation of the state of one peer, route or address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// Version of the API, see [`API_VERSION`](crate::api::status::API_VERSION).
    pub api_version: String,
    /// Kind of the answer: `WhyPeer`, `WhyRoute` or `WhyIp`.
    pub kind: String,
    /// Host whose agent answers.
    pub node: String,
    /// Store revision on which the answer is based.
    pub revision: u64,
    /// Time of the answer, RFC 3339.
    pub time: String,
    /// Subject of the question: a session, a prefix, `PREFIX -> SESSION` or an address.
    pub subject: String,
    /// True if the subject is in its desired state: the session is established, the route is announced or in
    /// use. The exit code is then 0, otherwise 1.
    pub good: bool,
    /// The answer in one line.
    pub answer: String,
    /// Stable code: `ok`, or the name of the obstacle (a gate, a reject reason, a problem of `status`).
    pub code: String,
    /// The steps that were evaluated, in the order of the decision.
    pub steps: Vec<Step>,
    /// Conclusion from the steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    /// Certainty of `conclusion`, or of `answer` if there is no conclusion.
    pub certainty: Certainty,
    /// Effect on traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// Suggested remedies, one command or step per entry.
    pub fix: Vec<String>,
    /// Aspects that the answer does not cover.
    pub not_looked_at: Vec<String>,
}

/// One evaluated step of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Outcome of the step.
    pub verdict: Verdict,
    /// Stable name of at most 13 characters: `wanted by`, `Loc-RIB` or the name of a gate.
    pub name: String,
    /// Description for people.
    pub text: String,
    /// Store key on which the step is based.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Store revision of that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The step passes, or decides in favour.
    Ok,
    /// The step is the obstacle.
    Stop,
    /// The step was not evaluated, because an earlier one decided.
    Skipped,
    /// Information that does not affect the decision.
    Note,
}

/// Certainty of a conclusion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// The conclusion was directly observed.
    Certain,
    /// The conclusion is inferred from observations.
    Implied,
    /// The cause is not known.
    Unknown,
}

impl Certainty {
    /// Returns the certainty as text: `certain`, `implied` or `unknown`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Certain => "certain",
            Self::Implied => "implied",
            Self::Unknown => "unknown",
        }
    }
}

impl Step {
    /// Creates a step without a key.
    #[must_use]
    pub fn new(verdict: Verdict, name: &str, text: impl Into<String>) -> Self {
        Self { verdict, name: name.to_owned(), text: text.into(), key: None, revision: None }
    }

    /// Adds the store key, with its revision, on which the step is based.
    #[must_use]
    pub fn of(self, key: impl Into<String>, revision: Option<u64>) -> Self {
        Self { key: Some(key.into()), revision: revision.filter(|r| *r > 0), ..self }
    }
}

impl Why {
    /// Creates an answer of this kind without content.
    #[must_use]
    pub fn new(kind: &str, node: &str, revision: u64, time: String, subject: impl Into<String>) -> Self {
        Self {
            api_version: crate::api::status::API_VERSION.to_owned(),
            kind: kind.to_owned(),
            node: node.to_owned(),
            revision,
            time,
            subject: subject.into(),
            good: false,
            answer: String::new(),
            code: String::new(),
            steps: Vec::new(),
            conclusion: None,
            certainty: Certainty::Certain,
            effect: None,
            fix: Vec::new(),
            not_looked_at: Vec::new(),
        }
    }

    /// Returns the first step that is an obstacle.
    #[must_use]
    pub fn stop(&self) -> Option<&Step> {
        self.steps.iter().find(|step| step.verdict == Verdict::Stop)
    }
}

/// Text for people: the answer, one line per step, and the conclusion.
impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.answer)?;
        for step in &self.steps {
            let verdict = match step.verdict {
                Verdict::Ok => "ok",
                Verdict::Stop => "STOP",
                Verdict::Skipped => "--",
                Verdict::Note => "",
            };
            let mut line = format!("  {verdict:<4}  {:<13}  {}", step.name, step.text);
            // The key is appended only if the text does not contain it.
            if let Some(key) = step.key.as_deref().filter(|key| !step.text.contains(*key)) {
                let _ = write!(line, "   {key}");
            }
            if let Some(revision) = step.revision {
                let _ = write!(line, "   rev {revision}");
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        writeln!(f)?;
        let certainty = self.certainty.as_str();
        match &self.conclusion {
            Some(text) => writeln!(f, "Conclusion:  {text}   [{certainty}, {}]", self.code)?,
            None => writeln!(f, "Conclusion:  {}   [{certainty}]", self.code)?,
        }
        if let Some(text) = &self.effect {
            writeln!(f, "Effect:      {text}")?;
        }
        for (at, text) in self.fix.iter().enumerate() {
            writeln!(f, "{}{text}", if at == 0 { "Try:         " } else { "             " })?;
        }
        if !self.not_looked_at.is_empty() {
            writeln!(f, "Not looked at: {}", self.not_looked_at.join("; "))?;
        }
        Ok(())
    }
}
