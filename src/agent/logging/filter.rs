//! Which log lines pass: what the store wants, and above it what somebody asked for, for a while.
//!
//! The targets of the first are tracing-subscriber's. Its EnvFilter cannot do the second: it reads fields of spans, and a peer
//! is a field of an event.

use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Filter};

/// Longest time that a level may be asked for.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);
/// Most of them at once.
const MOST: usize = 32;

/// What can be named, and the targets that it stands for.
const SUBJECTS: [(&str, &[&str]); 7] = [
    ("all", &["tortie", "bgp"]),
    ("bgp", &["tortie::speaker", "bgp"]),
    ("bfd", &["tortie::bfd"]),
    ("docker", &["tortie::docker"]),
    ("ipam", &["tortie::ipam"]),
    ("kernel", &["tortie::kernel"]),
    ("store", &["tortie::store"]),
];

/// A level that somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct Wish {
    /// As it was written, without the level.
    pub(in crate::agent) what: String,
    targets: &'static [&'static str],
    /// Only lines of this peer.
    peer: Option<String>,
    pub(in crate::agent) level: LevelFilter,
    pub(in crate::agent) until: Instant,
}

impl Wish {
    /// Reads `SUBJECT:LEVEL` or `SUBJECT.peer=NAME:LEVEL`.
    ///
    /// # Errors
    /// A sentence that says what can be written.
    pub(in crate::agent) fn read(rule: &str, lasts: Duration, now: Instant) -> Result<Self, String> {
        let names: Vec<&str> = SUBJECTS.iter().map(|(name, _)| *name).collect();
        let wrong = |what: &str| {
            format!(
                "`{rule}`: {what}; write SUBJECT:LEVEL or bgp.peer=NAME:LEVEL, with a subject of {} and a level of off, \
                 error, warn, info, debug, trace",
                names.join(", ")
            )
        };
        let (what, level) = rule.rsplit_once(':').ok_or_else(|| wrong("there is no level"))?;
        let level: LevelFilter = match level {
            "off" | "error" | "warn" | "info" | "debug" | "trace" => {
                level.parse().map_err(|_| wrong("no such level"))?
            }
            _ => return Err(wrong("no such level")),
        };
        let (subject, peer) = match what.split_once(".peer=") {
            Some((_, "")) => return Err(wrong("there is no peer")),
            Some((subject, peer)) => (subject, Some(peer.to_owned())),
            None => (what, None),
        };
        let (_, targets) =
            SUBJECTS.iter().find(|(name, _)| *name == subject).ok_or_else(|| wrong("no such subject"))?;
        if lasts.is_zero() || lasts > LONGEST {
            return Err(format!("{} s: a level lasts from 1 s to 24 h", lasts.as_secs()));
        }
        Ok(Self { what: what.to_owned(), targets, peer, level, until: now + lasts })
    }

    fn covers(&self, target: &str) -> bool {
        let below =
            |t: &str| target.strip_prefix(t).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        self.targets.iter().any(|t| below(t))
    }
}

/// Those that are in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::agent) struct Wishes(Vec<Wish>);

impl Wishes {
    /// Takes one; it takes the place of an older one of the same subject.
    ///
    /// # Errors
    /// When there are too many.
    pub(in crate::agent) fn take(&mut self, wish: Wish) -> Result<(), String> {
        self.0.retain(|other| other.what != wish.what);
        if self.0.len() >= MOST {
            return Err(format!("{MOST} levels are in force: `tortie log level --reset` ends them"));
        }
        self.0.push(wish);
        Ok(())
    }

    /// Ends all; gives how many there were.
    pub(in crate::agent) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.0).len()
    }

    /// Ends those whose time is over; whether there were any.
    pub(in crate::agent) fn expire(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|wish| wish.until > now);
        self.0.len() != before
    }

    pub(in crate::agent) fn iter(&self) -> impl Iterator<Item = &Wish> {
        self.0.iter()
    }
}

/// The filter of one sink.
#[derive(Debug, Clone)]
pub(in crate::agent) struct Levels {
    pub(in crate::agent) base: Targets,
    pub(in crate::agent) wishes: Wishes,
}

impl Levels {
    /// Whether a line of this kind passes whatever its fields say; `None`: its peer decides.
    fn passes(&self, meta: &Metadata<'_>) -> Option<bool> {
        let (target, level) = (meta.target(), meta.level());
        let whole = self.wishes.iter().filter(|w| w.peer.is_none() && w.covers(target)).last();
        let passes = match whole {
            Some(wish) => *level <= wish.level,
            None => self.base.would_enable(target, level),
        };
        let of_peers = self.wishes.iter().any(|w| w.peer.is_some() && w.covers(target) && *level <= w.level);
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
        let of_peer = |w: &Wish| w.peer.is_some() && w.peer == found.0 && w.covers(meta.target());
        self.wishes.iter().any(|w| of_peer(w) && *meta.level() <= w.level)
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
        Some(self.wishes.iter().map(|w| w.level).fold(base, LevelFilter::max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_or_refused_by_name() {
        let now = Instant::now();
        let read = |rule| Wish::read(rule, Duration::from_secs(600), now);
        let wish = read("bgp.peer=2001:db8::1:debug").unwrap();
        assert_eq!((wish.peer.as_deref(), wish.level), (Some("2001:db8::1"), LevelFilter::DEBUG));
        assert!(wish.covers("tortie::speaker") && wish.covers("tortie::speaker::sockets"));
        assert!(!wish.covers("tortie") && !wish.covers("tortie::speakers"));
        assert!(read("all:trace").unwrap().covers("tortie::store::feed"));
        for (rule, why) in [
            ("bgp", "no level"),
            ("bgp:loud", "no such level"),
            ("bgpd:info", "no such subject"),
            ("bgp.peer=:info", "no peer"),
        ] {
            let error = read(rule).unwrap_err();
            assert!(error.contains(why) && error.contains(rule), "{error}");
        }
        assert!(Wish::read("bgp:info", Duration::ZERO, now).is_err());
        assert!(Wish::read("bgp:info", LONGEST * 2, now).is_err());
    }

    #[test]
    fn the_latest_of_a_subject_holds_until_its_time_is_over() {
        let now = Instant::now();
        let wish = |rule, secs| Wish::read(rule, Duration::from_secs(secs), now).unwrap();
        let mut wishes = Wishes::default();
        wishes.take(wish("bgp:debug", 10)).unwrap();
        wishes.take(wish("store:trace", 30)).unwrap();
        wishes.take(wish("bgp:error", 20)).unwrap();
        assert_eq!(
            wishes.iter().map(|w| w.level).collect::<Vec<_>>(),
            [LevelFilter::TRACE, LevelFilter::ERROR]
        );
        assert!(!wishes.expire(now + Duration::from_secs(19)));
        assert!(wishes.expire(now + Duration::from_secs(20)));
        assert_eq!(wishes.clear(), 1);
    }
}
