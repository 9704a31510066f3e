//! Units that start at boot: `adopt` enables Tortie's unit and disables Calico's, `rollback` restores both.
//!
//! Only named units are changed: Calico's by `--unit`, Tortie's by `--agent-with 'systemctl start UNIT'`; and
//! only if both are named, so that no host boots without either. Changes are recorded in the journal before
//! they are made.

use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::args::AdoptCommand;
use super::daemons::systemctl;
use crate::cli::failure::Failure;

/// Units of Calico and of Tortie that replace each other at boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnitPair<'a> {
    pub(super) theirs: &'a [String],
    pub(super) ours: &'a str,
}

/// Changed units, for the rollback.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Boot {
    /// Units of Calico that were enabled.
    #[serde(default)]
    disabled: Vec<String>,
    /// Unit of Tortie that was not enabled.
    #[serde(default)]
    enabled: Vec<String>,
}

impl AdoptCommand {
    /// Returns the units, if both sides are named as units.
    pub(super) fn pair(&self) -> Option<UnitPair<'_>> {
        let ours = self.agent_with.strip_prefix("systemctl start ").map(str::trim)?;
        let theirs = self.stop.unit.as_slice();
        (!theirs.is_empty() && !ours.contains(char::is_whitespace)).then_some(UnitPair { theirs, ours })
    }
}

impl UnitPair<'_> {
    /// Describes the change for people.
    pub(super) fn words(self) -> String {
        format!("{} starts at the next boot, and {} no longer", self.ours, self.theirs.join(", "))
    }
}

impl Boot {
    /// Adds the changes that this pair still needs.
    pub(super) fn and(mut self, pair: UnitPair<'_>) -> Self {
        let mut add = |unit: &str, enabled: bool| {
            let list = if enabled { &mut self.disabled } else { &mut self.enabled };
            if is_enabled(unit) == enabled && !list.iter().any(|known| known == unit) {
                list.push(unit.to_owned());
            }
        };
        pair.theirs.iter().for_each(|unit| add(unit, true));
        add(pair.ours, false);
        self
    }

    /// Enables and disables the units.
    ///
    /// # Errors
    /// If the service manager fails.
    pub(super) fn change(&self) -> Result<(), Failure> {
        each("enable", &self.enabled)?;
        each("disable", &self.disabled)
    }

    /// Restores the units.
    ///
    /// # Errors
    /// As [`Boot::change`].
    pub(super) fn undo(&self) -> Result<(), Failure> {
        each("enable", &self.disabled)?;
        each("disable", &self.enabled)
    }
}

fn each(verb: &str, units: &[String]) -> Result<(), Failure> {
    units.iter().try_for_each(|unit| systemctl(&[verb, unit]))
}

/// True if the unit itself is enabled; a `static` unit is started by others and does not count.
fn is_enabled(unit: &str) -> bool {
    let asked = Command::new("systemctl").args(["is-enabled", unit]).stdin(Stdio::null()).output();
    asked.is_ok_and(|text| text.stdout.trim_ascii() == b"enabled")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        adopt: AdoptCommand,
    }

    #[test]
    fn units_change_places_only_where_both_are_known() {
        let words = |line: &[&str]| {
            let line = Line::try_parse_from([&["adopt"], line].concat()).unwrap();
            line.adopt.pair().map(UnitPair::words)
        };
        let both = words(&["--unit", "bird.service", "--unit", "calico-felix.service"]);
        let text = "tortie.service starts at the next boot, and bird.service, calico-felix.service no longer";
        assert_eq!(both.as_deref(), Some(text));
        assert_eq!(words(&["--stop-with", "docker kill calico-node"]), None);
        for command in ["sh /lab/agent", "systemctl start a b", "true"] {
            assert_eq!(words(&["--unit", "bird.service", "--agent-with", command]), None, "{command}");
        }
    }
}
