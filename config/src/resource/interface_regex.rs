//! Pattern of interface names: a regular expression.

use std::borrow::Cow;

use regex_lite::Regex;

use super::setting_value::SettingValue;

/// Maximum length of a pattern in octets.
const LEN_MAX: usize = 1_000;
/// Names of network cards, and of those of virtual machines.
const CARDS: &str = "^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)";

/// A regular expression for names of interfaces. It matches a part of a name unless it has `^` and `$`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceRegex(Cow<'static, str>);

impl InterfaceRegex {
    /// Returns a function that returns true for the names that match. It compiles the pattern once.
    pub fn matcher(&self) -> impl Fn(&str) -> bool + use<> {
        let regex = Regex::new(&self.0).ok();
        move |name| regex.as_ref().is_some_and(|regex| regex.is_match(name))
    }
}

impl Default for InterfaceRegex {
    fn default() -> Self {
        Self(Cow::Borrowed(CARDS))
    }
}

impl SettingValue for InterfaceRegex {
    const EXPECTED: &'static str =
        "write a regular expression of at most 1000 characters for names of interfaces, such as ^(eth|bond)";

    fn from_text(text: &str) -> Option<Self> {
        (text.len() <= LEN_MAX && Regex::new(text).is_ok()).then(|| Self(Cow::Owned(text.to_owned())))
    }

    fn to_text(&self) -> String {
        self.0.clone().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cards_match_and_those_of_bonds_bridges_and_tunnels_do_not() {
        let matches = InterfaceRegex::default().matcher();
        for name in ["eth0", "enp3s0f1", "eno1", "ens192", "enx0a1b2c3d4e5f", "wlan0", "ib0"] {
            assert_eq!(matches(name), name != "ib0", "{name}");
        }
        for name in ["bond0", "br-lan", "tunl0", "vxlan.calico", "cali12345", "lo", "veth1", "docker0"] {
            assert!(!matches(name), "{name}");
        }
    }

    #[test]
    fn a_pattern_that_is_no_regular_expression_or_needs_much_memory_is_refused() {
        let bonds = InterfaceRegex::from_text("^(bond|team)[0-9]+$").unwrap().matcher();
        assert!(bonds("bond0") && !bonds("bond0.7"));
        for wrong in ["eth(", "[", "*", "(?P<x", "(a{1000}){1000}", &"x".repeat(1_001)] {
            assert_eq!(InterfaceRegex::from_text(wrong), None, "{wrong}");
        }
    }
}
