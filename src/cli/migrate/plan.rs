//! Descriptions of the steps: actions, effect on traffic, and rollback. It does no I/O; `adopt` and
//! `rollback` carry out exactly these steps.

use super::daemons::StopWith;
use super::journal::{Snapshot, Step};
use super::report::{Line, line, named};
use super::rules;
use crate::cli::migrate::boot_units::UnitPair;
use crate::host_checks::CalicoDaemon;
use tortie_config::counted;
use tortie_kernel::maintenance::handover::BIRD;

/// Number of objects to migrate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    pub(super) routes: usize,
    pub(super) blackholes: usize,
    /// True if some of the routes are Felix's.
    pub(super) has_felix_routes: bool,
    /// True if some of the routes are BIRD's.
    pub(super) has_bird_routes: bool,
    /// Number of rules by the tool that writes them, or by the table of nftables.
    pub(super) rules: Vec<(String, usize)>,
    pub(super) sets: usize,
}

impl Inventory {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let blackholes = snapshot.routes.iter().filter(|route| route.blackhole).count();
        let of_felix = snapshot.routes.iter().filter(|route| route.protocol != BIRD).count();
        let rules = snapshot.rules.iter().map(|saved| (saved.tool(), saved.listing().felix_rules()));
        let tables = snapshot.tables.iter().map(|saved| (saved.words(), saved.listing().rules()));
        Self {
            routes: snapshot.routes.len() - blackholes,
            blackholes,
            has_felix_routes: of_felix > 0,
            has_bird_routes: of_felix < snapshot.routes.len(),
            rules: rules.filter(|(_, rules)| *rules > 0).chain(tables).collect(),
            sets: rules::felix_sets(&snapshot.sets).1.len(),
        }
    }

    pub(super) fn rules_in_words(&self) -> String {
        let parts: Vec<String> = self.rules.iter().map(|(tool, n)| format!("{n} of {tool}")).collect();
        if parts.is_empty() { "no rules".to_owned() } else { format!("rules: {}", parts.join(", ")) }
    }

    /// Names the daemons that wrote the routes.
    pub(super) fn writers(&self) -> &'static str {
        match (self.has_bird_routes, self.has_felix_routes) {
            (_, false) => "BIRD",
            (false, true) => "Felix",
            (true, true) => "BIRD and Felix",
        }
    }

    pub(super) fn in_words(&self) -> String {
        let Self { routes, blackholes, sets, .. } = self;
        format!(
            "{} and {} of {}, {}, {} of Felix",
            counted(routes, "route"),
            counted(blackholes, "blackhole"),
            self.writers(),
            self.rules_in_words(),
            counted(sets, "set")
        )
    }
}

/// Data for the description of the steps.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) there: &'a Inventory,
    pub(super) daemons: &'a [CalicoDaemon],
    pub(super) stop: &'a StopWith,
    pub(super) agent_with: &'a str,
    /// Units that replace each other at boot.
    pub(super) pair: Option<UnitPair<'a>>,
    pub(super) protocol: u8,
    pub(super) metric: u32,
    pub(super) state_dir: &'a str,
}

impl Plan<'_> {
    /// Describes a step of `adopt`.
    pub(super) fn line(&self, step: Step) -> Line {
        let Self { there, protocol, metric, agent_with, state_dir, .. } = self;
        let rollback = "tortie migrate rollback";
        let (what, traffic, back): (String, &str, String) = match step {
            Step::Compare => (
                "compare the desired state of an observing agent with the state that BIRD and Felix left"
                    .to_owned(),
                "none: nothing is written",
                "nothing to undo".to_owned(),
            ),
            Step::Save => {
                (format!("keep {} in {state_dir}", there.in_words()), "none", "nothing to undo".to_owned())
            }
            Step::Stop => (
                match (self.daemons.is_empty(), self.stop.is_empty()) {
                    (true, _) => "nothing: no daemon of Calico runs".to_owned(),
                    (false, true) => format!(
                        "end {}: no option says how; suggested: {}",
                        names(self.daemons),
                        StopWith::suggested(self.daemons)
                    ),
                    (false, false) => format!("end {}: {}", names(self.daemons), self.stop.words()),
                },
                "none: kernel routes and rules stay, BGP peers keep this host's routes for the restart time \
                 (Calico: 120 s)",
                "rollback, then start them again".to_owned(),
            ),
            Step::Copy => (
                format!(
                    "write our own routes next to those of {} (protocol {protocol}, metric {metric})",
                    there.writers()
                ),
                "none: each is a copy, with the same next hop",
                format!("{rollback} removes protocol {protocol}"),
            ),
            Step::Start => (
                format!("start our agent: {agent_with}"),
                "none: it announces to peers that it restarted and kept its forwarding state (RFC 4724); a \
                 packet has to pass both its rules and Felix's",
                format!("{rollback} stops it; it ends without a NOTIFICATION to peers"),
            ),
            Step::Settle => (
                format!(
                    "wait until sessions, routes, rules and endpoints are in force, and there is a route of ours for each \
                     of {}",
                    there.writers()
                ),
                "none",
                "as for start".to_owned(),
            ),
            Step::RemoveRules => (
                format!(
                    "take Felix's rules away, each table in one transaction ({})",
                    there.rules_in_words()
                ),
                "none: ours are in force; connections stay tracked",
                format!("{rollback} restores them from {state_dir} before ours go"),
            ),
            Step::RemoveSets => (
                format!(
                    "destroy {} of Felix, which no rule uses any more",
                    counted(there.sets, "address set")
                ),
                "none",
                format!("{rollback} restores them"),
            ),
            Step::RemoveRoutes => (
                format!(
                    "remove {} and {} of {}",
                    counted(there.routes, "route"),
                    counted(there.blackholes, "blackhole"),
                    there.writers()
                ),
                "none: for each there is a route of ours with the same next hop, which takes over at the \
                 same moment; the tunnel devices stay",
                format!("{rollback} writes theirs next to ours before ours go"),
            ),
            Step::Verify => match self.pair {
                None => (
                    "compare the kernel with the desired state once more".to_owned(),
                    "none",
                    "nothing to undo".to_owned(),
                ),
                Some(pair) => (
                    format!("compare the kernel with the desired state once more; {}", pair.words()),
                    "none",
                    format!("{rollback} enables and disables them as before"),
                ),
            },
        };
        line(step, &what, traffic, &back)
    }

    /// Describes all steps of `adopt`.
    pub(super) fn lines(&self) -> Vec<Line> {
        Step::ALL.into_iter().map(|step| self.line(step)).collect()
    }
}

/// Steps of `rollback`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    Sets,
    Rules,
    Agent,
    Routes,
    Ours,
    Start,
    OurRules,
}

impl Back {
    /// Order if the saved rules are restored; otherwise it is [`Back::FRESH`].
    pub(super) const SAVED: [Self; 7] =
        [Self::Sets, Self::Rules, Self::Agent, Self::Routes, Self::Ours, Self::OurRules, Self::Start];
    /// Order if endpoints were added since the snapshot: Felix writes its rules while Tortie's are in force.
    pub(super) const FRESH: [Self; 5] = [Self::Agent, Self::Routes, Self::Ours, Self::Start, Self::OurRules];

    /// Describes a step. `start_with` is the command that starts Calico, if given.
    pub(super) fn line(self, start_with: Option<&str>) -> Line {
        let resume = "run rollback again: each step finds what is left to do";
        let (id, what, traffic) = match self {
            Self::Sets => ("restore-sets", "restore Felix's address sets".to_owned(), "none"),
            Self::Rules => (
                "restore-rules",
                "restore Felix's rules, each table in one transaction".to_owned(),
                "none: they allow what they allowed when they were saved, and ours are still in force",
            ),
            Self::Agent => (
                "stop-agent",
                "stop our agent".to_owned(),
                "none: kernel routes and rules stay, BGP peers keep this host's routes for the restart time",
            ),
            Self::Routes => (
                "restore-routes",
                "write the routes of BIRD and Felix next to ours, as they are now".to_owned(),
                "none: they have the same next hops",
            ),
            Self::Ours => (
                "remove-routes",
                "remove our routes; those of endpoints stay and become the plugin's, tunnel devices become Felix's"
                    .to_owned(),
                "none: those of BIRD and Felix are in the kernel",
            ),
            Self::OurRules => (
                "remove-rules",
                "remove our packet rules and nexthop objects".to_owned(),
                "none: Felix's are in force",
            ),
            Self::Start => (
                "start",
                match start_with {
                    Some(command) => format!("start Calico: {command}"),
                    None => "start Calico: by hand, see below".to_owned(),
                },
                "none: BIRD takes over the routes that it finds, peers see a graceful restart",
            ),
        };
        named(id, &what, traffic, resume)
    }
}

/// Formats a list of daemons.
pub(super) fn names(daemons: &[CalicoDaemon]) -> String {
    let names: Vec<String> = daemons.iter().map(|d| format!("{} (pid {})", d.role, d.pid)).collect();
    if names.is_empty() { "no daemon".to_owned() } else { names.join(", ") }
}
