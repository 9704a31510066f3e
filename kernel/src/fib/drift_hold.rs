//! Changes of Tortie's routes by other processes, and the drift hold, during which they are not repaired.
//!
//! Normally drift is repaired at once. During a hold, routes that another process changed or deleted, and
//! packet rules, are left as found. New routes are still installed during a hold, and routes that the kernel
//! itself removed with a link are restored. A hold ends after its time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tortie_net::Cidr;

/// Maximum number of routes whose changes are recorded; further ones are repaired at once, even during a
/// hold.
const CHANGES_KEPT: usize = 10_000;
/// Maximum number of changes whose process is looked up.
const ATTRIBUTED_MAX: usize = 64;
/// Maximum duration of a hold.
pub const HOLD_MAX: Duration = Duration::from_secs(3_600);

/// A change of a Tortie route by another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForeignChange {
    pub(crate) at: Instant,
    /// `deleted`, `changed` or `replaced`.
    pub(crate) action: &'static str,
    /// Netlink port of the process that made the change.
    pub(crate) port: u32,
    /// Description of the process with that number at the time of the lookup; `None` before the lookup.
    pub(crate) process: Option<String>,
    /// True if the change is not repaired.
    held: bool,
}

/// Changes by other processes, and the end of the hold.
#[derive(Debug, Default)]
pub(crate) struct DriftHold {
    changes: BTreeMap<Cidr, ForeignChange>,
    until: Option<Instant>,
    /// Prefixes of changes whose process was not looked up yet.
    unattributed: Vec<Cidr>,
}

impl DriftHold {
    /// Records a change of a route by another process.
    pub(crate) fn record(&mut self, prefix: Cidr, action: &'static str, port: u32) {
        if self.changes.len() < CHANGES_KEPT || self.changes.contains_key(&prefix) {
            let held = self.until.is_some();
            self.changes
                .insert(prefix, ForeignChange { at: Instant::now(), action, port, process: None, held });
            if self.unattributed.len() < ATTRIBUTED_MAX {
                self.unattributed.push(prefix);
            }
        }
    }

    /// Returns true if the change of this route by another process is kept.
    pub(crate) fn holds(&self, prefix: &Cidr) -> bool {
        self.until.is_some() && self.changes.get(prefix).is_some_and(|change| change.held)
    }

    /// Forgets a change, since another route is desired or the route is as desired again.
    pub(crate) fn forget(&mut self, prefix: &Cidr) {
        if !self.changes.is_empty() {
            self.changes.remove(prefix);
        }
    }

    /// Returns the recorded change of a route.
    pub(crate) fn change(&self, prefix: &Cidr) -> Option<&ForeignChange> {
        self.changes.get(prefix)
    }

    /// Begins a hold until this time.
    pub(crate) fn hold(&mut self, until: Instant) {
        self.until = Some(until);
    }

    /// Returns the end of the hold.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Ends the hold; returns the prefixes that were held.
    pub(crate) fn release(&mut self) -> Vec<Cidr> {
        self.until = None;
        let mut held = Vec::new();
        for (prefix, change) in &mut self.changes {
            if std::mem::take(&mut change.held) {
                held.push(*prefix);
            }
        }
        held
    }

    /// Looks up the processes of new changes with a function from netlink port to process.
    pub(crate) fn attribute(&mut self, process: impl Fn(u32) -> String) {
        for prefix in std::mem::take(&mut self.unattributed) {
            if let Some(change) = self.changes.get_mut(&prefix) {
                change.process = Some(process(change.port));
            }
        }
    }
}

/// Describes the process whose number is this netlink port. Often, but not always, the port is the process ID
/// (netlink(7)), so this is a hint.
pub(crate) fn process(port: u32) -> String {
    match std::fs::read_to_string(format!("/proc/{port}/comm")) {
        Ok(name) => format!("process {port} is `{}`", name.trim_end()),
        Err(_) => "the process has ended".to_owned(),
    }
}

/// A difference between the desired and the actual routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteDifference {
    /// `-` missing, `~` different, `+` extra.
    pub mark: char,
    /// Description of the difference.
    pub text: String,
    /// Age of the difference, if it was notified.
    pub since: Option<Duration>,
    /// Process that caused it, if known.
    pub hint: Option<String>,
    /// True if it is kept by a drift hold.
    pub held: bool,
}

impl ForeignChange {
    /// Describes the change and the process that made it.
    pub(crate) fn hint(&self) -> String {
        let process = self.process.as_deref().unwrap_or("not looked up");
        format!("{} via netlink port {}: {process}", self.action, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_keeps_what_others_did_after_it_began_and_gives_it_back() {
        let prefix = |n: u8| Cidr::v4([10, 0, n, 0].into(), 24);
        let mut drift_hold = DriftHold::default();
        drift_hold.record(prefix(1), "deleted", 7);
        assert!(!drift_hold.holds(&prefix(1)), "without a hold all is repaired");
        drift_hold.hold(Instant::now() + HOLD_MAX);
        assert!(!drift_hold.holds(&prefix(1)), "what was before goes its way");
        drift_hold.record(prefix(2), "changed", 8);
        assert!(drift_hold.holds(&prefix(2)));
        drift_hold.attribute(|port| format!("p{port}"));
        assert_eq!(drift_hold.change(&prefix(2)).unwrap().hint(), "changed via netlink port 8: p8");
        // Another route is desired: it is installed.
        drift_hold.record(prefix(3), "deleted", 8);
        drift_hold.forget(&prefix(3));
        assert!(!drift_hold.holds(&prefix(3)));
        assert_eq!(drift_hold.release(), [prefix(2)]);
        assert!(!drift_hold.holds(&prefix(2)) && drift_hold.release().is_empty());
    }
}
