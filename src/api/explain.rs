//! The answers of `why peer`, `why route` and `why ip`: one form, so that the command line and the page paint all alike.
//!
//! An answer is made by running the functions that decide, with somebody listening. It changes nothing and counts nothing.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

/// Why something is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// [`API_VERSION`](crate::api::status::API_VERSION).
    pub api_version: String,
    /// `WhyPeer`, `WhyRoute` or `WhyIp`.
    pub kind: String,
    /// The host that answers.
    pub node: String,
    /// The store revision that the answer rests on.
    pub revision: u64,
    /// When it was made, RFC 3339.
    pub time: String,
    /// What was asked about: a session, a prefix, `PREFIX -> SESSION`, an address.
    pub subject: String,
    /// It is as one would wish: the session stands, the route is announced or in use. The exit code is 0 then, else 1.
    pub good: bool,
    /// The answer in a line.
    pub answer: String,
    /// Stable: `ok`, or the name of what is in the way (a gate, a reject reason, a problem of `status`).
    pub code: String,
    /// What was looked at, in the order of the decision.
    pub steps: Vec<Step>,
    /// What follows from the steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
    /// How sure `conclusion` is; of `answer` where there is none.
    pub certainty: Certainty,
    /// What it does to traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// What to do, one command or step an entry.
    pub fix: Vec<String>,
    /// What this answer does not know.
    pub not_looked_at: Vec<String>,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// What it says.
    pub verdict: Verdict,
    /// Its stable name, of at most 13 characters: `wanted by`, `Loc-RIB`, a gate.
    pub name: String,
    /// In words.
    pub text: String,
    /// The store key that it rests on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The revision of that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// What a step says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It does not stand in the way, or it decided: yes.
    Ok,
    /// It stands in the way.
    Stop,
    /// An earlier step had decided.
    Skipped,
    /// It decides nothing, but people want to know.
    Note,
}

/// How sure a conclusion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// It was observed.
    Certain,
    /// It follows from what was observed.
    Implied,
    /// It is not known.
    Unknown,
}

impl Certainty {
    /// `certain`, `implied` or `unknown`.
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
    /// A step without a key.
    #[must_use]
    pub fn new(verdict: Verdict, name: &str, text: impl Into<String>) -> Self {
        Self { verdict, name: name.to_owned(), text: text.into(), key: None, revision: None }
    }

    /// The same, resting on a key of the store.
    #[must_use]
    pub fn of(self, key: impl Into<String>, revision: Option<u64>) -> Self {
        Self { key: Some(key.into()), revision: revision.filter(|r| *r > 0), ..self }
    }
}

impl Why {
    /// An answer of this kind without content.
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

    /// The step that stands in the way.
    #[must_use]
    pub fn stop(&self) -> Option<&Step> {
        self.steps.iter().find(|step| step.verdict == Verdict::Stop)
    }
}

/// For people: the answer, a line a step, what follows.
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
            // Texts that are a key, or name theirs, say it once.
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
