//! What the flight recorder and the log are told of a change: the keys that it comes from, and what routing made of them.

use tortie_net::Cidr;

use super::recorder::{Entry, Plane};
use crate::agent::core::{Core, SINGLES, now_text};
use tortie_engine::model::Dirty;
use tortie_engine::routing::{ChangeId, RoutingIntent};

impl Core {
    /// Records the keys that a change comes from.
    pub(in crate::agent) fn describe_store(&mut self, dirty: &Dirty, change: ChangeId) {
        let time = now_text();
        let mut record = |mark, subject: String, text: &str, revision| {
            let text = text.to_owned();
            let entry = Entry { change, plane: Plane::Store, mark, subject, text, revision };
            self.recorder.record(time.clone(), entry);
        };
        if dirty.touched.len() > SINGLES {
            let newest = dirty.touched.iter().map(|t| t.revision).max().unwrap_or_default();
            record('~', format!("{} keys", dirty.touched.len()), "read", newest);
            return;
        }
        for key in &dirty.touched {
            let (mark, text) = if key.deleted { ('-', "deleted") } else { ('+', "written") };
            record(mark, key.key.clone(), text, key.revision);
        }
    }

    /// Records what is new in an intent.
    pub(in crate::agent) fn describe(&mut self, new: &RoutingIntent, change: ChangeId, revision: u64) {
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
                    let text = format!("sessions are taken from {}: {}", range.prefix, range.peer.reason);
                    entries.push(('+', name.clone(), text));
                }
                None => {
                    let text = "no longer a range that sessions are taken from".to_owned();
                    gone.push(('-', name.clone(), text));
                }
            }
        }
        entries.append(&mut gone);
        let old_peers = old.map_or(&no_peers, |o| &o.peers);
        let (changed, gone): (Vec<_>, Vec<_>) =
            new.peers.differences(old_peers).into_iter().partition(|(.., now)| now.is_some());
        for (mark, list, word) in [('+', changed, "wanted"), ('-', gone, "no longer wanted")] {
            if list.len() > SINGLES {
                entries.push((mark, format!("{} peers", list.len()), word.to_owned()));
                continue;
            }
            for (name, _, now) in list {
                let reason = now.map_or("", |p| p.reason.as_str());
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
        let time = now_text();
        for (mark, subject, text) in entries {
            let prefix = subject.parse::<Cidr>().is_ok().then_some(subject.as_str());
            tracing::info!(target: "tortie", change = %change, revision, prefix, "{mark} {subject}: {text}");
            let entry = Entry { change, plane: Plane::Routing, mark, subject, text, revision };
            self.recorder.record(time.clone(), entry);
        }
    }

    pub(in crate::agent) fn say(
        &mut self,
        change: ChangeId,
        plane: Plane,
        mark: char,
        subject: &str,
        text: &str,
    ) {
        // BGP has a level of its own. What a log line is about stands in fields, too: journald finds it by them.
        let peer = (plane == Plane::Rib).then_some(subject);
        let prefix = subject.parse::<Cidr>().is_ok().then_some(subject);
        let number = (change != ChangeId::default()).then(|| tracing::field::display(change));
        match (plane, mark) {
            (Plane::Rib, '!') => {
                tracing::warn!(target: "tortie::speaker", change = number, peer, "{subject}: {text}");
            }
            (Plane::Rib, _) => {
                tracing::info!(target: "tortie::speaker", change = number, peer, "{subject}: {text}");
            }
            (_, '!') => {
                tracing::warn!(target: "tortie", change = number, prefix, "{subject}: {text}");
            }
            _ => tracing::info!(target: "tortie", change = number, prefix, "{subject}: {text}"),
        }
        let entry = Entry {
            change,
            plane,
            mark,
            subject: subject.to_owned(),
            text: text.to_owned(),
            revision: self.link.revision,
        };
        self.recorder.record(now_text(), entry);
    }
}
