//! Read-only view of the packet rules.

use super::KernelView;
use crate::nft::{Firewall, RuleCounts, RuleHits, RulePlace, RuleView};
use crate::options::Mode;
use std::io;
use std::time::Duration;
use tortie_engine::policy::{HostInterfaces, Ruleset, Source};

impl KernelView<'_> {
    /// Classifies the denial of packets logged with this prefix; `None` if another process or a removed rule
    /// logged them.
    #[must_use]
    pub fn denial(&self, prefix: &str) -> Option<crate::nft::Denial> {
        self.rules?.denial(prefix)
    }

    /// Returns the age of rule differences that are not repaired.
    #[must_use]
    pub fn rules_drift_age(&self) -> Option<Duration> {
        self.rules.and_then(Firewall::drift_age)
    }

    /// Returns the mode: the permitted changes of packet rules.
    #[must_use]
    pub fn rules_mode(&self) -> Mode {
        self.rules.map_or(Mode::Off, Firewall::mode)
    }

    /// Returns the reason why the packet rules are not in force, if any.
    #[must_use]
    pub fn rules_problem(&self) -> Option<&str> {
        self.rules.and_then(Firewall::problem)
    }

    /// Returns the numbers of desired rules, chains, sets and elements, and event counts; `None` if rules are
    /// off.
    #[must_use]
    pub fn rule_counts(&self) -> Option<RuleCounts> {
        self.rules.filter(|rules| rules.mode() != Mode::Off).map(Firewall::counts)
    }

    /// Returns the compiled policy of this host's endpoints.
    #[must_use]
    pub fn ruleset(&self) -> Option<&Ruleset> {
        self.rules.map(Firewall::ruleset)
    }

    /// Returns the host endpoint of each interface that has one.
    #[must_use]
    pub fn host_interfaces(&self) -> Option<&HostInterfaces> {
        self.rules.map(Firewall::hosts)
    }

    /// Explains why packets logged with this prefix are dropped; `None` if another process or a removed rule
    /// logged them.
    #[must_use]
    pub fn explain(&self, prefix: &str) -> Option<String> {
        self.rules?.explain(prefix)
    }

    /// Returns the Tortie rule that a trace reported; `None` if it no longer exists.
    #[must_use]
    pub fn rule(&self, chain: &str, place: RulePlace) -> Option<RuleView> {
        self.rules?.renderer().rule(chain, place)
    }

    /// Returns the desired packet rules in nft syntax.
    #[must_use]
    pub fn rules_text(&self) -> String {
        self.rules.map(Firewall::text).unwrap_or_default()
    }

    /// Reads the counters of the kernel's rules of a policy or a profile since they were written, by rule
    /// number, inbound and outbound; empty if it applies to no endpoint of this host.
    ///
    /// # Errors
    /// The kernel refuses to show its rules.
    pub fn rule_hits(&self, source: &Source) -> io::Result<[Vec<RuleHits>; 2]> {
        self.rules.map_or_else(|| Ok(Default::default()), |rules| rules.hits(source))
    }

    /// Predicts the treatment of packets by the desired rules, with the interpreter of the tests; empty if
    /// there are no rules.
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

    /// Returns the number of objects that differed at the last comparison and are not repaired, and
    /// descriptions of the first ones.
    #[must_use]
    pub fn rules_drift(&self) -> (usize, &[String]) {
        self.rules.map_or((0, &[]), Firewall::drift)
    }
}
