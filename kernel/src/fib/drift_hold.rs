//! What others did to own routes, and differences that are left for study for a while.
//!
//! Repair goes on by itself; while a hold lasts, routes that somebody else changed or deleted, and packet rules, are left as
//! they were found. What is newly wanted is written all the same, and so is what the kernel itself dropped with a link. A
//! hold ends by itself.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tortie_net::Cidr;

/// Routes of which is remembered what became of them; more are repaired at once, hold or not.
const REMEMBERED: usize = 10_000;
/// Of so many who did it is looked up.
const LOOKED_UP: usize = 64;
/// The longest hold.
pub const LONGEST_HOLD: Duration = Duration::from_secs(3_600);

/// What somebody else did to an own route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deed {
    pub(crate) at: Instant,
    /// `deleted`, `changed`, `replaced`.
    pub(crate) verb: &'static str,
    /// The netlink port that did it.
    pub(crate) port: u32,
    /// The process of that number when it was looked for; `None`: not looked for yet.
    pub(crate) who: Option<String>,
    /// Left as it is.
    held: bool,
}

/// Deeds of others, and the hold.
#[derive(Debug, Default)]
pub(crate) struct Study {
    deeds: FxHashMap<Cidr, Deed>,
    until: Option<Instant>,
    /// Deeds whose process is still to be looked up.
    new: Vec<Cidr>,
}

impl Study {
    /// Somebody else touched a route.
    pub(crate) fn note(&mut self, prefix: Cidr, verb: &'static str, port: u32) {
        if self.deeds.len() < REMEMBERED || self.deeds.contains_key(&prefix) {
            let held = self.until.is_some();
            self.deeds.insert(prefix, Deed { at: Instant::now(), verb, port, who: None, held });
            if self.new.len() < LOOKED_UP {
                self.new.push(prefix);
            }
        }
    }

    /// Whether a route is left as somebody else made it.
    pub(crate) fn holds(&self, prefix: &Cidr) -> bool {
        self.until.is_some() && self.deeds.get(prefix).is_some_and(|deed| deed.held)
    }

    /// Something else is wanted, or it is as it should be.
    pub(crate) fn forget(&mut self, prefix: &Cidr) {
        if !self.deeds.is_empty() {
            self.deeds.remove(prefix);
        }
    }

    /// What was done to a route.
    pub(crate) fn deed(&self, prefix: &Cidr) -> Option<&Deed> {
        self.deeds.get(prefix)
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
        for (prefix, deed) in &mut self.deeds {
            if std::mem::take(&mut deed.held) {
                held.push(*prefix);
            }
        }
        held
    }

    /// Looks up who did what is new, by a function from a port to a process.
    pub(crate) fn look_up(&mut self, process: impl Fn(u32) -> String) {
        for prefix in std::mem::take(&mut self.new) {
            if let Some(deed) = self.deeds.get_mut(&prefix) {
                deed.who = Some(process(deed.port));
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
pub struct Difference {
    /// `-` missing, `~` different, `+` too much.
    pub mark: char,
    /// In words.
    pub text: String,
    /// How long ago it came about, as far as that was heard.
    pub since: Option<Duration>,
    /// Who did it, as far as the kernel tells.
    pub hint: Option<String>,
    /// It is left for study.
    pub held: bool,
}

impl Deed {
    /// Who did it, in words.
    pub(crate) fn hint(&self) -> String {
        let who = self.who.as_deref().unwrap_or("not looked up");
        format!("{} via netlink port {}: {who}", self.verb, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_keeps_what_others_did_after_it_began_and_gives_it_back() {
        let prefix = |n: u8| Cidr::v4([10, 0, n, 0].into(), 24);
        let mut study = Study::default();
        study.note(prefix(1), "deleted", 7);
        assert!(!study.holds(&prefix(1)), "without a hold all is repaired");
        study.hold(Instant::now() + LONGEST_HOLD);
        assert!(!study.holds(&prefix(1)), "what was before goes its way");
        study.note(prefix(2), "changed", 8);
        assert!(study.holds(&prefix(2)));
        study.look_up(|port| format!("p{port}"));
        assert_eq!(study.deed(&prefix(2)).unwrap().hint(), "changed via netlink port 8: p8");
        // Something else is wanted: that is written.
        study.note(prefix(3), "deleted", 8);
        study.forget(&prefix(3));
        assert!(!study.holds(&prefix(3)));
        assert_eq!(study.release(), [prefix(2)]);
        assert!(!study.holds(&prefix(2)) && study.release().is_empty());
    }
}
