//! Felix's own tables of nftables as text: what restores one. It does no I/O.
//!
//! A table is restored in one transaction, which also removes what is there under its name.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::foreign::nftables::Listing;

/// A table as `nft list table` prints it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::cli::migrate) struct SavedTable {
    /// Family in nft: `ip`, `ip6` or `arp`.
    pub(in crate::cli::migrate) family: String,
    pub(in crate::cli::migrate) name: String,
    pub(in crate::cli::migrate) text: String,
}

impl SavedTable {
    pub(in crate::cli::migrate) fn listing(&self) -> Listing {
        Listing::read(&self.text)
    }

    /// Describes the table for people.
    pub(in crate::cli::migrate) fn words(&self) -> String {
        format!("nft table {} {}", self.family, self.name)
    }

    /// True if both are the same table of the kernel.
    pub(in crate::cli::migrate) fn is_same(&self, other: &Self) -> bool {
        (&self.family, &self.name) == (&other.family, &other.name)
    }

    /// Returns the input of `nft -f` that puts this table in the place of any of its name. Of the devices of
    /// flowtables only those in `devices` are named: the kernel refuses others, and Felix adds its own.
    pub(in crate::cli::migrate) fn restoration(&self, devices: &BTreeSet<String>) -> String {
        let Self { family, name, text } = self;
        let mut out = format!("table {family} {name} {{\n}}\ndelete table {family} {name}\n");
        let mut in_flowtable = false;
        for line in text.lines() {
            let words = line.trim();
            if words.starts_with("flowtable ") {
                in_flowtable = true;
            } else if words == "}" {
                in_flowtable = false;
            }
            match words.strip_prefix("devices = {").filter(|_| in_flowtable) {
                None => {
                    let _ = writeln!(out, "{line}");
                }
                Some(list) => {
                    let all = list.trim_end_matches('}').split(',').map(|name| name.trim().trim_matches('"'));
                    let here: Vec<String> = all
                        .filter(|name| devices.contains(*name))
                        .map(|name| format!("\"{name}\""))
                        .collect();
                    if !here.is_empty() {
                        let _ = writeln!(out, "\t\tdevices = {{ {} }}", here.join(", "));
                    }
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_restored_without_devices_that_are_gone() {
        let text = "table ip calico {\n\tflowtable calico {\n\t\thook ingress priority filter\n\t\tdevices = { cali1, eth0 }\n\t}\n\n\
                    \tset x {\n\t\ttype ifname\n\t\telements = { \"cali1\" }\n\t}\n}\n";
        let saved = SavedTable { family: "ip".to_owned(), name: "calico".to_owned(), text: text.to_owned() };
        let with = |names: &[&str]| saved.restoration(&names.iter().map(|name| (*name).to_owned()).collect());
        let head = "table ip calico {\n}\ndelete table ip calico\n";
        let whole = with(&["cali1", "eth0"]);
        assert_eq!(whole, format!("{head}{}", text.replace("cali1, eth0", "\"cali1\", \"eth0\"")));
        assert!(with(&["eth0", "lo"]).contains("devices = { \"eth0\" }"));
        let bare = with(&[]);
        assert!(!bare.contains("devices") && bare.contains("elements = { \"cali1\" }"), "{bare}");
    }
}
