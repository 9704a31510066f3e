//! A member of a FelixConfiguration: its names, its type, and what this agent does with it.

use crate::resource::Setting;

/// A member.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    /// Name in `spec`.
    pub(super) name: &'static str,
    /// Name of the setting of the v1 model, with its unit.
    pub(super) v1: &'static str,
    /// Type of the value.
    pub(super) kind: Type,
    /// Default of Calico in the v1 form; empty if unset. Words that mean no more than the default follow
    /// after `|`.
    pub(super) default: &'static str,
    /// What this agent does with a value.
    pub(super) answer: Answer,
}

/// Creates a member.
pub(super) const fn m(
    name: &'static str,
    v1: &'static str,
    kind: Type,
    default: &'static str,
    answer: Answer,
) -> Member {
    Member { name, v1, kind, default, answer }
}

/// What this agent does with the value of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is in force as soon as [`Setting`] has it, and reported as `setting-not-in-force` until then.
    Honored,
    /// The agent cannot do it, and reports it as `unsupported-setting`. The text is the consequence.
    Refused(&'static str),
    /// The agent works in another way, and reports it as `setting-noted`. The text says how.
    Noted(&'static str),
    /// It does not concern this agent.
    Ignored,
}

/// Type of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// `true` or `false`.
    Bool,
    /// A number within bounds.
    Int(i64, i64),
    /// Packet mark bits, at least two.
    Mask,
    /// Any text.
    Text,
    /// One of some words, in any case.
    Words(&'static [&'static str]),
    /// A duration, in seconds in v1.
    Seconds,
    /// A duration, in milliseconds in v1.
    Millis,
    /// An IPv4 address.
    Address4,
    /// An IPv6 address.
    Address6,
    /// A list of texts.
    Texts,
    /// A list of networks.
    Prefixes,
    /// A list of protocol, port and network.
    Failsafes,
    /// A port, or a range of ports `a:b`.
    Ports,
    /// A list of ports and ranges.
    PortLists,
    /// An object with `min` and `max`.
    TableRange,
    /// A list of objects with `min` and `max`.
    TableRanges,
    /// A map of texts.
    Pairs,
    /// A list of objects with `name` and `timeout`.
    Timeouts,
}

impl Member {
    /// Returns the name with which the setting is written: that of [`Setting`], if it has it.
    pub(super) fn setting(&self) -> &'static str {
        setting(self.v1).unwrap_or(self.v1)
    }

    /// Returns the default in the v1 form; empty if unset.
    pub(super) fn default_text(&self) -> &'static str {
        match self.kind {
            Type::Words(_) => self.default.split('|').next().unwrap_or_default(),
            _ => self.default,
        }
    }

    /// Returns true if a valid text means no more than the default.
    pub(super) fn is_default(&self, text: &str) -> bool {
        let number = |text: &str| text.parse::<f64>().ok();
        match self.kind {
            Type::Words(_) => self.default.split('|').any(|word| word.eq_ignore_ascii_case(text)),
            Type::Int(..) | Type::Seconds | Type::Millis => {
                number(text).is_some() && number(text) == number(self.default)
            }
            _ => self.default.eq_ignore_ascii_case(text),
        }
    }
}

/// Returns the spelling of a setting in [`Setting::NAMES`].
pub(super) fn setting(name: &str) -> Option<&'static str> {
    Setting::NAMES.iter().copied().find(|known| known.eq_ignore_ascii_case(name))
}

/// Settings that have an effect on a store of Calico 3 only, by their v1 name.
const OF_CALICO_3: [&str; 7] = [
    "FloatingIPs",
    "IPv4ElevatedRoutePriority",
    "IPv6ElevatedRoutePriority",
    "LiveMigrationRouteConvergenceTime",
    "MetadataAddr",
    "MetadataPort",
    "WorkloadSourceSpoofing",
];

/// Returns true if a setting has an effect here.
pub(super) fn is_in_force(name: &str) -> bool {
    OF_CALICO_3.iter().any(|known| known.eq_ignore_ascii_case(name))
        || setting(name).is_some_and(|known| !Setting::WITHOUT_EFFECT.contains(&known))
}
