//! What a query may read of the packet rules.

use super::KernelView;
use crate::nft::{Firewall, RuleCounts, RuleHits, RulePlace, RuleView};
use crate::options::Mode;
use std::io;
use std::time::Duration;
use tortie_engine::policy::{HostInterfaces, Ruleset, Source};

impl KernelView<'_> {
    /// Who is denied what by packets that are logged with this prefix; `None`: by another process, or by a rule that is gone.
    #[must_use]
    pub fn denial(&self, prefix: &str) -> Option<crate::nft::Denial> {
        self.rules?.denial(prefix)
    }

    /// How long ago rules were found to differ that are not repaired.
    #[must_use]
    pub fn rules_drift_age(&self) -> Option<Duration> {
        self.rules.and_then(Firewall::drift_age)
    }

    /// What may be done to the packet rules.
    #[must_use]
    pub fn rules_mode(&self) -> Mode {
        self.rules.map_or(Mode::Off, Firewall::mode)
    }

    /// What keeps the packet rules from being in force.
    #[must_use]
    pub fn rules_problem(&self) -> Option<&str> {
        self.rules.and_then(Firewall::problem)
    }

    /// How many rules, chains, sets and elements are wanted, and what was counted; `None`: rules are off.
    #[must_use]
    pub fn rule_counts(&self) -> Option<RuleCounts> {
        self.rules.filter(|rules| rules.mode() != Mode::Off).map(Firewall::counts)
    }

    /// What endpoints of this host are allowed, as the rules have it.
    #[must_use]
    pub fn ruleset(&self) -> Option<&Ruleset> {
        self.rules.map(Firewall::ruleset)
    }

    /// Which host endpoint governs which interface.
    #[must_use]
    pub fn host_interfaces(&self) -> Option<&HostInterfaces> {
        self.rules.map(Firewall::hosts)
    }

    /// Why packets are dropped that are logged with this prefix; `None`: by another process, or by a rule that is gone.
    #[must_use]
    pub fn explain(&self, prefix: &str) -> Option<String> {
        self.rules?.explain(prefix)
    }

    /// A rule of ours that a trace saw; `None`: there is no such rule any more.
    #[must_use]
    pub fn rule(&self, chain: &str, place: RulePlace) -> Option<RuleView> {
        self.rules?.renderer().rule(chain, place)
    }

    /// The wanted packet rules as nft writes them.
    #[must_use]
    pub fn rules_text(&self) -> String {
        self.rules.map(Firewall::text).unwrap_or_default()
    }

    /// What the kernel's rules of a policy or a profile counted since they were written, by their number, inbound and
    /// outbound; empty for those that act on nothing here.
    ///
    /// # Errors
    /// When the kernel shows no rules.
    pub fn rule_hits(&self, source: &Source) -> io::Result<[Vec<RuleHits>; 2]> {
        self.rules.map_or_else(|| Ok(Default::default()), |rules| rules.hits(source))
    }

    /// What the wanted rules would do with packets, by the interpreter of tests; empty when there are no rules.
    #[cfg(feature = "test-hooks")]
    #[doc(hidden)]
    #[must_use]
    pub fn simulate(
        &self,
        flows: &[tortie_engine::policy::path::Flow],
        routes: &tortie_engine::policy::path::Routes,
    ) -> Vec<crate::nft::Simulated> {
        self.rules.map(|rules| crate::nft::simulate(rules.renderer(), flows, routes)).unwrap_or_default()
    }

    /// How the rules differed from what the kernel held at the last comparison that found anything which is not repaired:
    /// how many objects, and the first ones in words.
    #[must_use]
    pub fn rules_drift(&self) -> (usize, &[String]) {
        self.rules.map_or((0, &[]), Firewall::drift)
    }
}
