//! Chains of policies and profiles that the kernel refuses: they deny everything until it takes them, so that what is
//! wrong with one of them keeps no other from being in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dump::Found;
use super::ir::{Chain, Edit, Kind, Match, Name, Rule, Statement};
use super::sync;

/// First pause before they are tried again; doubles up to the last.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// With more of them it is not they that are wrong; and each costs a transaction whenever they are tried.
const MOST: usize = 16;

/// The chains, with what the kernel said of each.
#[derive(Debug)]
pub(super) struct Closed {
    of: BTreeMap<Name, String>,
    due: Option<Instant>,
    pause: Duration,
}

impl Closed {
    pub(super) fn new() -> Self {
        Self { of: BTreeMap::new(), due: None, pause: RETRY_FIRST }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &str)> {
        self.of.iter().map(|(name, why)| (name, why.as_str()))
    }

    /// Whether another chain may be closed.
    pub(super) fn has_room(&self, name: &Name) -> bool {
        self.of.len() < MOST && !self.of.contains_key(name)
    }

    /// The kernel refused a chain.
    pub(super) fn close(&mut self, name: Name, why: String) {
        self.of.insert(name, why);
        self.due = Some(Instant::now() + self.pause);
    }

    /// It is time to try them again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// They are tried again.
    pub(super) fn open(&mut self) {
        self.due = None;
        self.pause = (self.pause * 2).min(RETRY_LAST);
        self.of.clear();
    }

    /// What changes is tried as it is now.
    pub(super) fn forget(&mut self, edits: &[Edit]) {
        for edit in edits {
            if let Edit::Chain(name, _) | Edit::NoChain(name) = edit {
                self.of.remove(name);
            }
        }
        if self.of.is_empty() {
            (self.due, self.pause) = (None, RETRY_FIRST);
        }
    }

    /// The edits with these chains closed; those that are closed in the kernel already are left out.
    pub(super) fn instead(&self, edits: Vec<Edit>, found: Option<&Found>) -> Vec<Edit> {
        if self.of.is_empty() {
            return edits;
        }
        let anew = edits.contains(&Edit::NoTable);
        let one = |edit| match edit {
            Edit::Chain(name, _) if self.of.contains_key(&name) => {
                let chain = chain();
                let is = found.filter(|_| !anew).and_then(|found| found.chains.get(&name));
                let there = is.is_some_and(|is| sync::is_right(&chain, is));
                (!there).then(|| Edit::Chain(name, Arc::new(chain)))
            }
            other => Some(other),
        };
        edits.into_iter().filter_map(one).collect()
    }
}

/// What stands in the place of a chain that the kernel refuses.
fn chain() -> Chain {
    let comment = Some("the kernel refuses these rules: denied".into());
    let rule = Rule { counted: true, statement: Statement::Drop, comment, ..Rule::default() };
    Chain { hook: None, rules: vec![rule] }
}

/// The modules without which a kernel refuses an edit, when it says that it lacks something.
pub(super) fn needs(edit: &Edit, code: i32) -> Option<String> {
    if !matches!(code, libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) {
        return None;
    }
    let Edit::Chain(_, chain) = edit else { return None };
    let mut modules: Vec<&str> = Vec::new();
    if chain.hook.is_some_and(|hook| hook.kind == Kind::Nat) {
        modules.push("nft_chain_nat");
    }
    for rule in &chain.rules {
        modules.extend(rule.log.as_ref().map(|_| "nft_log"));
        modules.extend(rule.limit.map(|_| "nft_limit"));
        modules.extend(rule.matches.iter().filter_map(|m| match m {
            Match::Established | Match::Invalid => Some("nft_ct"),
            Match::Local { .. } => Some("nft_fib_inet"),
            _ => None,
        }));
        modules.extend(match &rule.statement {
            Statement::Untrack(_) => Some("nft_ct"),
            Statement::Masquerade => Some("nft_masq"),
            Statement::DestinationNat { .. } | Statement::SourceNat { .. } => Some("nft_nat"),
            _ => None,
        });
    }
    modules.sort_unstable();
    modules.dedup();
    (!modules.is_empty()).then(|| format!("; it may lack {}", modules.join(", ")))
}
