//! Reports to the agent: facts, and the current faults by subject.
//!
//! A fault lasts until it is reported as over, and only transitions are sent, so that the agent shows exactly
//! the current ones. A transient problem, such as a connection that could not be secured, is sent and not
//! stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::speaker::facts::{FactSink, SpeakerFact};

/// Name of a peer or range, and its problem; `None` when it is over.
pub(crate) type PeerProblem = (Arc<str>, Option<String>);

/// Current faults without a peer, as last reported.
#[derive(Default)]
struct Faults(BTreeMap<&'static str, Vec<String>>);

impl Faults {
    /// Replaces the faults of a subject; returns the fact to send, or `None` if nothing changed.
    fn set(&mut self, about: &'static str, texts: Vec<String>) -> Option<SpeakerFact> {
        let current = self.0.entry(about).or_default();
        if *current == texts {
            return None;
        }
        current.clone_from(&texts);
        Some(SpeakerFact::Problems { about: about.into(), texts })
    }
}

/// Sends facts and faults to the agent.
pub(crate) struct Reporter {
    sink: FactSink,
    faults: Faults,
}

impl Reporter {
    pub(crate) fn new(sink: FactSink) -> Self {
        Self { sink, faults: Faults::default() }
    }

    /// Sends a fact.
    pub(crate) fn fact(&mut self, fact: SpeakerFact) {
        (self.sink)(fact);
    }

    /// Replaces the faults of a subject; an empty list ends them.
    pub(crate) fn faults(&mut self, about: &'static str, texts: impl IntoIterator<Item = String>) {
        if let Some(fact) = self.faults.set(about, texts.into_iter().collect()) {
            self.fact(fact);
        }
    }

    /// Sends a transient problem.
    pub(crate) fn transient(&mut self, text: String) {
        self.fact(SpeakerFact::TransientProblem(text));
    }

    /// Sends the problem of a peer or range, or its end.
    pub(crate) fn peer(&mut self, (name, problem): PeerProblem) {
        self.fact(SpeakerFact::PeerProblem { name, problem });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transitions_of_a_fault_are_reported() {
        let mut faults = Faults::default();
        let report = |texts: &[&str]| {
            let texts = texts.iter().map(|t| (*t).to_owned()).collect();
            Some(SpeakerFact::Problems { about: "BFD".into(), texts })
        };
        assert_eq!(faults.set("BFD", Vec::new()), None);
        assert_eq!(faults.set("BFD", vec!["a".into()]), report(&["a"]));
        assert_eq!(faults.set("BFD", vec!["a".into()]), None);
        assert_eq!(faults.set("BFD", Vec::new()), report(&[]));
        assert_eq!(faults.set("BFD", Vec::new()), None);
    }
}
