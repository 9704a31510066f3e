//! What is wrong and is no peer's: kept by what it is about, told where it changes, so that whoever shows it knows when
//! it is over. What happened once and is over at once (a connection that could not be secured) is only told.

use std::collections::BTreeMap;

use crate::speaker::api::SpeakerFact;
use crate::speaker::event_loop::Driver;

/// What is wrong now, as it was told last.
#[derive(Default)]
pub(crate) struct Standing(BTreeMap<&'static str, Vec<String>>);

impl Standing {
    /// This is wrong from now on, nothing else of the same; `None`: that is known.
    fn news(&mut self, about: &'static str, texts: Vec<String>) -> Option<SpeakerFact> {
        let known = self.0.entry(about).or_default();
        if *known == texts {
            return None;
        }
        known.clone_from(&texts);
        Some(SpeakerFact::Trouble { about, texts })
    }
}

impl Driver {
    /// This is wrong with something from now on; empty: nothing any more.
    pub(crate) fn trouble(&mut self, about: &'static str, texts: impl IntoIterator<Item = String>) {
        if let Some(fact) = self.standing.news(about, texts.into_iter().collect()) {
            (self.facts)(fact);
        }
    }

    /// Something went wrong, and is over.
    pub(crate) fn mishap(&mut self, text: String) {
        (self.facts)(SpeakerFact::Mishap(text));
    }

    /// Keys that listeners lack, and those of which only one can be in force.
    pub(crate) fn tell_keys(&mut self) {
        let texts: Vec<String> =
            self.intent.clashes().iter().chain(self.listeners.wrong()).cloned().collect();
        self.trouble("BGP passwords", texts);
    }
}
