//! Filter of log lines: the levels configured in the store, and temporary overrides (`tortie log level`).
//!
//! The store's levels use the targets of tracing-subscriber. Its EnvFilter cannot implement overrides per
//! peer: it matches fields of spans, and the peer is a field of an event.

use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Filter};

/// Maximum duration of an override.
const DURATION_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Maximum number of overrides.
const OVERRIDES_MAX: usize = 32;

/// Subjects of overrides and the log targets that they cover.
const SUBJECTS: [(&str, &[&str]); 7] = [
    ("all", &["tortie", "bgp"]),
    ("bgp", &["tortie::speaker", "bgp"]),
    ("bfd", &["tortie::bfd"]),
    ("docker", &["tortie::docker"]),
    ("ipam", &["tortie::ipam"]),
    ("kernel", &["tortie::kernel"]),
    ("store", &["tortie::store"]),
];

/// Temporary log level of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct LevelOverride {
    /// Subject as given in the request.
    pub(in crate::agent) subject: String,
    targets: &'static [&'static str],
    /// Session or peer name, if the override covers only that peer's lines.
    peer: Option<String>,
    pub(in crate::agent) level: LevelFilter,
    pub(in crate::agent) until: Instant,
}

impl LevelOverride {
    /// Parses `SUBJECT:LEVEL` or `SUBJECT.peer=NAME:LEVEL`.
    ///
    /// # Errors
    /// Returns a sentence with the accepted syntax.
    pub(in crate::agent) fn read(rule: &str, lasts: Duration, now: Instant) -> Result<Self, String> {
        let names: Vec<&str> = SUBJECTS.iter().map(|(name, _)| *name).collect();
        let wrong = |what: &str| {
            format!(
                "`{rule}`: {what}; write SUBJECT:LEVEL or bgp.peer=NAME:LEVEL, with a subject of {} and a level of off, \
                 error, warn, info, debug, trace",
                names.join(", ")
            )
        };
        let (what, level) = rule.rsplit_once(':').ok_or_else(|| wrong("the level is missing"))?;
        let level: LevelFilter = match level {
            "off" | "error" | "warn" | "info" | "debug" | "trace" => {
                level.parse().map_err(|_| wrong("unknown level"))?
            }
            _ => return Err(wrong("unknown level")),
        };
        let (subject, peer) = match what.split_once(".peer=") {
            Some((_, "")) => return Err(wrong("the peer is missing")),
            Some((subject, peer)) => (subject, Some(peer.to_owned())),
            None => (what, None),
        };
        let (_, targets) =
            SUBJECTS.iter().find(|(name, _)| *name == subject).ok_or_else(|| wrong("unknown subject"))?;
        if lasts.is_zero() || lasts > DURATION_MAX {
            return Err(format!("{} s: a level lasts from 1 s to 24 h", lasts.as_secs()));
        }
        Ok(Self { subject: what.to_owned(), targets, peer, level, until: now + lasts })
    }

    fn covers(&self, target: &str) -> bool {
        let below =
            |t: &str| target.strip_prefix(t).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        self.targets.iter().any(|t| below(t))
    }
}

/// Active overrides, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::agent) struct LevelOverrides(Vec<LevelOverride>);

impl LevelOverrides {
    /// Adds an override and replaces an older one of the same subject.
    ///
    /// # Errors
    /// Returns an error when the maximum is reached.
    pub(in crate::agent) fn add(&mut self, new: LevelOverride) -> Result<(), String> {
        self.0.retain(|other| other.subject != new.subject);
        if self.0.len() >= OVERRIDES_MAX {
            return Err(format!("{OVERRIDES_MAX} levels are in force: `tortie log level --reset` ends them"));
        }
        self.0.push(new);
        Ok(())
    }

    /// Removes all overrides and returns their number.
    pub(in crate::agent) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.0).len()
    }

    /// Removes expired overrides; returns true if there were any.
    pub(in crate::agent) fn expire(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| entry.until > now);
        self.0.len() != before
    }

    pub(in crate::agent) fn iter(&self) -> impl Iterator<Item = &LevelOverride> {
        self.0.iter()
    }
}

/// Filter of one sink.
#[derive(Debug, Clone)]
pub(in crate::agent) struct Levels {
    pub(in crate::agent) base: Targets,
    pub(in crate::agent) overrides: LevelOverrides,
}

impl Levels {
    /// Decides on lines with this metadata; `None` if the decision depends on the event's peer.
    fn passes(&self, meta: &Metadata<'_>) -> Option<bool> {
        let (target, level) = (meta.target(), meta.level());
        let whole = self.overrides.iter().filter(|w| w.peer.is_none() && w.covers(target)).last();
        let passes = match whole {
            Some(entry) => *level <= entry.level,
            None => self.base.would_enable(target, level),
        };
        let of_peers =
            self.overrides.iter().any(|w| w.peer.is_some() && w.covers(target) && *level <= w.level);
        if passes || !of_peers { Some(passes) } else { None }
    }

    fn passes_for_peer(&self, meta: &Metadata<'_>, event: &Event<'_>) -> bool {
        struct Peer(Option<String>);
        impl Visit for Peer {
            fn record_str(&mut self, field: &Field, value: &str) {
                if field.name() == "peer" {
                    self.0 = Some(value.to_owned());
                }
            }
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "peer" {
                    self.0 = Some(format!("{value:?}"));
                }
            }
        }
        let mut found = Peer(None);
        event.record(&mut found);
        let of_peer = |w: &LevelOverride| w.peer.is_some() && w.peer == found.0 && w.covers(meta.target());
        self.overrides.iter().any(|w| of_peer(w) && *meta.level() <= w.level)
    }
}

impl<S: Subscriber> Filter<S> for Levels {
    fn enabled(&self, meta: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.passes(meta) != Some(false)
    }

    fn callsite_enabled(&self, meta: &'static Metadata<'static>) -> Interest {
        match self.passes(meta) {
            Some(true) => Interest::always(),
            Some(false) => Interest::never(),
            None => Interest::sometimes(),
        }
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let meta = event.metadata();
        self.passes(meta).unwrap_or_else(|| self.passes_for_peer(meta, event))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let base = Filter::<S>::max_level_hint(&self.base)?;
        Some(self.overrides.iter().map(|w| w.level).fold(base, LevelFilter::max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_or_refused_by_name() {
        let now = Instant::now();
        let read = |rule| LevelOverride::read(rule, Duration::from_secs(600), now);
        let by_peer = read("bgp.peer=2001:db8::1:debug").unwrap();
        assert_eq!((by_peer.peer.as_deref(), by_peer.level), (Some("2001:db8::1"), LevelFilter::DEBUG));
        assert!(by_peer.covers("tortie::speaker") && by_peer.covers("tortie::speaker::sockets"));
        assert!(!by_peer.covers("tortie") && !by_peer.covers("tortie::speakers"));
        assert!(read("all:trace").unwrap().covers("tortie::store::feed"));
        for (rule, why) in [
            ("bgp", "the level is missing"),
            ("bgp:loud", "unknown level"),
            ("bgpd:info", "unknown subject"),
            ("bgp.peer=:info", "the peer is missing"),
        ] {
            let error = read(rule).unwrap_err();
            assert!(error.contains(why) && error.contains(rule), "{error}");
        }
        assert!(LevelOverride::read("bgp:info", Duration::ZERO, now).is_err());
        assert!(LevelOverride::read("bgp:info", DURATION_MAX * 2, now).is_err());
    }

    #[test]
    fn the_latest_of_a_subject_holds_until_its_time_is_over() {
        let now = Instant::now();
        let level = |rule, secs| LevelOverride::read(rule, Duration::from_secs(secs), now).unwrap();
        let mut overrides = LevelOverrides::default();
        overrides.add(level("bgp:debug", 10)).unwrap();
        overrides.add(level("store:trace", 30)).unwrap();
        overrides.add(level("bgp:error", 20)).unwrap();
        assert_eq!(
            overrides.iter().map(|w| w.level).collect::<Vec<_>>(),
            [LevelFilter::TRACE, LevelFilter::ERROR]
        );
        assert!(!overrides.expire(now + Duration::from_secs(19)));
        assert!(overrides.expire(now + Duration::from_secs(20)));
        assert_eq!(overrides.clear(), 1);
    }
}
