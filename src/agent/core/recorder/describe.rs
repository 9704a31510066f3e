//! Describes changes for the flight recorder and the log: their keys and the resulting routing intent.

use std::collections::BTreeMap;

use tortie_config::Key;
use tortie_config::counted;
use tortie_net::Cidr;

use super::unreadable::consequence;
use super::{Entry, Plane, SINGLE_ENTRIES_MAX};
use crate::agent::core::Core;
use crate::agent::core::effect::{Effect, LogLine, Severity, Subsystem};
use tortie_engine::model::{ChangedKey, InvalidKey, ModelChanges, is_projected};
use tortie_engine::routing::{ChangeId, RoutingIntent};

impl Core {
    /// Records the keys of a change.
    pub(in crate::agent) fn record_keys(&mut self, changes: &ModelChanges, change: ChangeId) {
        let time = self.now.text();
        let mut record = |mark, subject: String, key: Option<&Key>, text: &str, revision| {
            let text = text.to_owned();
            let entry = Entry { change, plane: Plane::Store, mark, subject, text, revision };
            self.recorder.record_key(time.clone(), key, entry);
        };
        let how = |deleted: bool| if deleted { ('-', "deleted") } else { ('+', "written") };
        // In a store of Calico 3 the object was written, and not the keys that it becomes.
        let named = |key: &&ChangedKey| changes.objects.is_empty() || !is_projected(&key.text);
        let keys: Vec<&ChangedKey> = changes.keys.iter().filter(named).collect();
        let count = keys.len() + changes.objects.len();
        if count > SINGLE_ENTRIES_MAX {
            let newest = changes.keys.iter().map(|t| t.revision).max().unwrap_or_default();
            record('~', counted(count, "key"), None, "read", newest);
            return;
        }
        for object in &changes.objects {
            let (mark, text) = how(object.deleted);
            record(mark, object.key.title(), None, text, object.revision);
        }
        for key in keys {
            let (mark, text) = how(key.deleted);
            record(mark, key.text.clone(), key.key.as_ref(), text, key.revision);
        }
    }

    /// Logs and records unreadable values, each once: all of a first snapshot, else those among the changes.
    pub(in crate::agent) fn report_unreadable(&mut self, changes: &ModelChanges, first: bool) {
        let mut written: BTreeMap<&str, u64> = BTreeMap::new();
        if !first && self.model.invalid_keys().next().is_some() {
            written.extend(changes.keys.iter().map(|key| (key.text.as_str(), key.revision)));
        }
        let is_new = |problem: &&InvalidKey| {
            first || written.get(problem.key.as_str()).is_some_and(|revision| *revision >= problem.revision)
        };
        let found: Vec<InvalidKey> = self.model.invalid_keys().filter(is_new).cloned().collect();
        let more = found.len().saturating_sub(SINGLE_ENTRIES_MAX);
        for problem in found.iter().take(SINGLE_ENTRIES_MAX) {
            let text = format!(
                "cannot be read: {}; {}",
                problem.error,
                consequence(problem.parsed().as_ref(), problem.last_good)
            );
            let name = self.model.name_of_text(&problem.key);
            self.log_and_record(ChangeId::default(), Plane::Store, '!', &name, &text);
        }
        if more > 0 {
            let text = format!("{more} more cannot be read: `tortie store validate` lists them");
            self.log_and_record(ChangeId::default(), Plane::Store, '!', "values", &text);
        }
    }

    /// Records the differences between the new intent and the current one.
    pub(in crate::agent) fn record_intent(&mut self, new: &RoutingIntent, change: ChangeId, revision: u64) {
        let old = self.intent.clone();
        let old = old.as_deref();
        let (no_routes, no_ranges, no_peers) = Default::default();
        let mut entries: Vec<(char, String, String)> = Vec::new();
        let mut gone = Vec::new();
        for (prefix, _, now) in new.originated.differences(old.map_or(&no_routes, |o| &o.originated)) {
            match now {
                Some(route) => {
                    entries.push(('+', prefix.to_string(), format!("originated, from {}", route.key)));
                }
                None => gone.push(('-', prefix.to_string(), "no longer originated".to_owned())),
            }
        }
        entries.append(&mut gone);
        for (name, _, now) in new.ranges.differences(old.map_or(&no_ranges, |o| &o.ranges)) {
            match now {
                Some(range) => {
                    let text =
                        format!("dynamic peers may connect from {}: {}", range.prefix, range.peer.source);
                    entries.push(('+', name.clone(), text));
                }
                None => {
                    let text = "no longer a range of dynamic peers".to_owned();
                    gone.push(('-', name.clone(), text));
                }
            }
        }
        entries.append(&mut gone);
        let old_peers = old.map_or(&no_peers, |o| &o.peers);
        let (changed, gone): (Vec<_>, Vec<_>) =
            new.peers.differences(old_peers).into_iter().partition(|(.., now)| now.is_some());
        for (mark, list, word) in [('+', changed, "wanted"), ('-', gone, "no longer desired")] {
            if list.len() > SINGLE_ENTRIES_MAX {
                entries.push((mark, counted(list.len(), "peer"), word.to_owned()));
                continue;
            }
            for (name, _, now) in list {
                let reason = now.map_or_else(String::new, |p| p.source.to_string());
                entries.push((mark, name.clone(), format!("{word} {reason}").trim_end().to_owned()));
            }
        }
        if old.is_some_and(|o| o.view != new.view) {
            entries.push((
                '~',
                "routing view".to_owned(),
                "pools, networks or advertisements changed".to_owned(),
            ));
        }
        let time = self.now.text();
        for (mark, subject, text) in entries {
            self.effects.push(Effect::Log(LogLine {
                change: Some(change),
                revision: Some(revision),
                prefix: subject.parse::<Cidr>().is_ok().then(|| subject.clone()),
                ..LogLine::new(Severity::Info, Subsystem::Agent, format!("{mark} {subject}: {text}"))
            }));
            let entry = Entry { change, plane: Plane::Routing, mark, subject, text, revision };
            self.recorder.record(time.clone(), entry);
        }
    }

    pub(in crate::agent) fn log_and_record(
        &mut self,
        change: ChangeId,
        plane: Plane,
        mark: char,
        subject: &str,
        text: &str,
    ) {
        // BGP has a log level of its own. The subject is also a structured field, so that journald can filter
        // by it.
        let severity = if mark == '!' { Severity::Warn } else { Severity::Info };
        let rib = plane == Plane::Rib;
        let subsystem = if rib { Subsystem::Bgp } else { Subsystem::Agent };
        self.effects.push(Effect::Log(LogLine {
            change: (change != ChangeId::default()).then_some(change),
            peer: rib.then(|| subject.to_owned()),
            prefix: (!rib && subject.parse::<Cidr>().is_ok()).then(|| subject.to_owned()),
            ..LogLine::new(severity, subsystem, format!("{subject}: {text}"))
        }));
        let entry = Entry {
            change,
            plane,
            mark,
            subject: subject.to_owned(),
            text: text.to_owned(),
            revision: self.link.revision,
        };
        self.recorder.record(self.now.text(), entry);
    }

    /// Logs a debug line about a peer; it is not recorded.
    pub(in crate::agent::core) fn log_debug(&mut self, subsystem: Subsystem, peer: &str, text: String) {
        let line = LogLine::new(Severity::Debug, subsystem, text);
        self.effects.push(Effect::Log(LogLine { peer: Some(peer.to_owned()), ..line }));
    }
}
