//! What others did to own routes, and differences that are held for a while.
//!
//! Repair goes on by itself; while a hold lasts, routes that another process changed or deleted, and packet rules, are left as
//! they were found. What is newly wanted is written all the same, and so is what the kernel itself dropped with a link. A
//! hold ends by itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tortie_net::Cidr;

/// Routes of which is remembered what became of them; more are repaired at once, hold or not.
const CHANGES_KEPT: usize = 10_000;
/// Of so many who did it is looked up.
const ATTRIBUTED_MAX: usize = 64;
/// The longest hold.
pub const HOLD_MAX: Duration = Duration::from_secs(3_600);

/// What another process did to an own route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForeignChange {
    pub(crate) at: Instant,
    /// `deleted`, `changed`, `replaced`.
    pub(crate) action: &'static str,
    /// The netlink port that did it.
    pub(crate) port: u32,
    /// The process of that number when it was looked for; `None`: not looked for yet.
    pub(crate) process: Option<String>,
    /// Left as it is.
    held: bool,
}

/// Deeds of others, and the hold.
#[derive(Debug, Default)]
pub(crate) struct DriftHold {
    changes: BTreeMap<Cidr, ForeignChange>,
    until: Option<Instant>,
    /// Deeds whose process is still to be looked up.
    unattributed: Vec<Cidr>,
}

impl DriftHold {
    /// Another process touched a route.
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

    /// Whether a route is left as another process made it.
    pub(crate) fn holds(&self, prefix: &Cidr) -> bool {
        self.until.is_some() && self.changes.get(prefix).is_some_and(|change| change.held)
    }

    /// Something else is wanted, or it is as it should be.
    pub(crate) fn forget(&mut self, prefix: &Cidr) {
        if !self.changes.is_empty() {
            self.changes.remove(prefix);
        }
    }

    /// What was done to a route.
    pub(crate) fn change(&self, prefix: &Cidr) -> Option<&ForeignChange> {
        self.changes.get(prefix)
    }

    /// Leaves differences alone until then.
    pub(crate) fn hold(&mut self, until: Instant) {
        self.until = Some(until);
    }

    /// When the hold ends.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Ends the hold; gives what was held.
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

    /// Looks up who did what is new, by a function from a port to a process.
    pub(crate) fn attribute(&mut self, process: impl Fn(u32) -> String) {
        for prefix in std::mem::take(&mut self.unattributed) {
            if let Some(change) = self.changes.get_mut(&prefix) {
                change.process = Some(process(change.port));
            }
        }
    }
}

/// The process whose number a netlink port is, as it often is (netlink(7)): a hint and no proof.
pub(crate) fn process(port: u32) -> String {
    match std::fs::read_to_string(format!("/proc/{port}/comm")) {
        Ok(name) => format!("process {port} is `{}`", name.trim_end()),
        Err(_) => "no such process any more".to_owned(),
    }
}

/// A difference between what is wanted and what the kernel holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteDifference {
    /// `-` missing, `~` different, `+` too much.
    pub mark: char,
    /// In words.
    pub text: String,
    /// How long ago it came about, as far as that was notified.
    pub since: Option<Duration>,
    /// Who did it, as far as the kernel shows.
    pub hint: Option<String>,
    /// It is held.
    pub held: bool,
}

impl ForeignChange {
    /// Who did it, in words.
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
        // Something else is wanted: that is written.
        drift_hold.record(prefix(3), "deleted", 8);
        drift_hold.forget(&prefix(3));
        assert!(!drift_hold.holds(&prefix(3)));
        assert_eq!(drift_hold.release(), [prefix(2)]);
        assert!(!drift_hold.holds(&prefix(2)) && drift_hold.release().is_empty());
    }
}
