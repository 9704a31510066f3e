//! Felix's packet filter rules in the format of `iptables-save`: finds, removes and restores them. It does no
//! I/O.
//!
//! Felix owns the chains whose names begin with `cali-` (`felix-` in Calico 1.x), all rules in them, and
//! rules of other chains that jump there, have its comment (`cali:` and a hash) or match Calico 1's sets. All
//! other rules are neither changed nor moved. Of nftables it owns whole tables (`rules/nft_tables.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::foreign::felix::{is_chain, is_old};

mod nft_tables;

pub(super) use self::nft_tables::SavedTable;

/// Rules of one backend and family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listing(BTreeMap<String, Table>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Table {
    /// Policy by chain name; `-` for chains without one.
    chains: BTreeMap<String, String>,
    /// Rules of each chain, in order, without `-A CHAIN`.
    rules: BTreeMap<String, Vec<String>>,
}

/// True if the name is that of an address set of Felix.
pub(super) fn is_felix_set(name: &str) -> bool {
    name.starts_with("cali4") || name.starts_with("cali6") || is_old(name)
}

/// True if Felix put this rule into a chain of another owner.
fn is_felix_rule(rule: &str) -> bool {
    let mut words = rule.split_whitespace();
    let leads = words.any(|word| word == "-j" || word == "-g") && words.next().is_some_and(is_chain);
    // Calico 1 masquerades by a rule in POSTROUTING that only its sets identify.
    let by_sets = rule.contains("--match-set felix-");
    leads || by_sets || rule.contains("--comment \"cali:") || rule.contains("--comment cali:")
}

impl Listing {
    /// Parses the output of `iptables-save`; other lines are ignored.
    pub(super) fn read(text: &str) -> Self {
        let mut tables: BTreeMap<String, Table> = BTreeMap::new();
        let mut now: Option<String> = None;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('*') {
                tables.entry(name.to_owned()).or_default();
                now = Some(name.to_owned());
                continue;
            }
            let Some(table) = now.as_ref().and_then(|name| tables.get_mut(name)) else { continue };
            if let Some(chain) = line.strip_prefix(':') {
                let mut words = chain.split_whitespace();
                if let Some(name) = words.next() {
                    table.chains.insert(name.to_owned(), words.next().unwrap_or("-").to_owned());
                }
            } else if let Some((chain, rule)) =
                line.strip_prefix("-A ").map(|l| l.split_once(' ').unwrap_or((l, "")))
            {
                table.rules.entry(chain.to_owned()).or_default().push(rule.to_owned());
            }
        }
        Self(tables)
    }

    /// Returns the number of Felix's rules.
    pub(super) fn felix_rules(&self) -> usize {
        self.0.values().map(Table::felix_rules).sum()
    }

    /// Returns the number of Felix's chains.
    pub(super) fn felix_chains(&self) -> usize {
        self.0.values().map(|table| table.chains.keys().filter(|name| is_chain(name)).count()).sum()
    }

    /// True if there are rules or chains of Felix.
    pub(super) fn has_felix(&self) -> bool {
        self.felix_rules() + self.felix_chains() > 0
    }

    /// Returns the input of `iptables-restore --noflush` that removes everything of Felix, each table in one
    /// transaction; `None` if there is nothing. Tables that filter come first, then those that only translate
    /// addresses.
    pub(super) fn removal(&self) -> Option<String> {
        let mut out = String::new();
        for (name, table) in self.in_order() {
            let chains: Vec<&String> = table.chains.keys().filter(|name| is_chain(name)).collect();
            let hooks = table.hooks();
            if chains.is_empty() && hooks.is_empty() {
                continue;
            }
            let _ = writeln!(out, "*{name}");
            for (chain, rule) in hooks {
                let _ = writeln!(out, "-D {chain} {rule}");
            }
            for chain in &chains {
                let _ = writeln!(out, "-F {chain}");
            }
            for chain in &chains {
                let _ = writeln!(out, "-X {chain}");
            }
            out.push_str("COMMIT\n");
        }
        Some(out).filter(|out| !out.is_empty())
    }

    /// Returns the input of `iptables-restore --noflush` that changes Felix's rules from `now` to `self`;
    /// `None` if they are equal. Rules of other owners keep their order. A rule of Felix gets its old
    /// position if the other rules of its chain are unchanged; otherwise it is inserted before them, or
    /// appended if it was after one of them.
    pub(super) fn restoration(&self, now: &Self) -> Option<String> {
        let mut out = String::new();
        for (name, saved) in self.in_order() {
            let empty = Table::default();
            let there = now.0.get(name).unwrap_or(&empty);
            if saved.felix() == there.felix() {
                continue;
            }
            let _ = writeln!(out, "*{name}");
            for chain in saved.chains.keys().filter(|name| is_chain(name)) {
                let _ = writeln!(out, ":{chain} - [0:0]");
            }
            for (chain, rule) in there.hooks() {
                let _ = writeln!(out, "-D {chain} {rule}");
            }
            for (chain, rules) in saved.rules.iter().filter(|(name, _)| is_chain(name)) {
                for rule in rules {
                    let _ = writeln!(out, "-A {chain} {rule}");
                }
            }
            for (chain, rules) in saved.rules.iter().filter(|(name, _)| !is_chain(name)) {
                let others = |table: &Table| -> Vec<String> {
                    let rules = table.rules.get(chain).into_iter().flatten();
                    rules.filter(|rule| !is_felix_rule(rule)).cloned().collect()
                };
                let same = others(saved) == others(there);
                let mut before = true;
                for (at, rule) in rules.iter().enumerate() {
                    if !is_felix_rule(rule) {
                        before = false;
                    } else if same || before {
                        let _ = writeln!(out, "-I {chain} {} {rule}", at + 1);
                    } else {
                        let _ = writeln!(out, "-A {chain} {rule}");
                    }
                }
            }
            let gone: Vec<&String> = there
                .chains
                .keys()
                .filter(|name| is_chain(name) && !saved.chains.contains_key(*name))
                .collect();
            for chain in &gone {
                let _ = writeln!(out, "-F {chain}");
            }
            for chain in &gone {
                let _ = writeln!(out, "-X {chain}");
            }
            out.push_str("COMMIT\n");
        }
        Some(out).filter(|out| !out.is_empty())
    }

    /// Returns the interfaces that Felix's filter chains name in full.
    pub(super) fn interfaces(&self) -> BTreeSet<String> {
        let rules = self.0.get("filter").into_iter().flat_map(|t| &t.rules);
        let rules = rules.filter(|(chain, _)| is_chain(chain)).flat_map(|(_, rules)| rules);
        let mut found = BTreeSet::new();
        for rule in rules {
            let words: Vec<&str> = rule.split_whitespace().collect();
            for pair in words.windows(2) {
                if let [option, name] = pair
                    && matches!(*option, "-i" | "-o" | "--in-interface" | "--out-interface")
                    && !name.ends_with('+')
                {
                    found.insert((*name).to_owned());
                }
            }
        }
        found
    }

    /// Describes how rules of other owners would drop packets of workloads that only Felix's rules accept:
    /// the chain and the reason. `None` if they would not, or if there is no Felix.
    pub(super) fn drops_without_felix(&self, prefix: &str) -> Option<String> {
        let filter = self.0.get("filter")?;
        let forward = filter.rules.get("FORWARD").map(Vec::as_slice).unwrap_or_default();
        if !forward.iter().any(|rule| is_felix_rule(rule)) {
            return None;
        }
        let others: Vec<&String> = forward.iter().filter(|rule| !is_felix_rule(rule)).collect();
        let lets = |option: &str| {
            let wanted = format!("{option} {prefix}+");
            others.iter().any(|rule| {
                rule.starts_with(&wanted) && rule.ends_with("-j ACCEPT") && !rule.contains("--ctstate")
            })
        };
        if lets("-i") && lets("-o") {
            return None;
        }
        if filter.chains.get("FORWARD").is_some_and(|policy| policy == "DROP") {
            return Some("FORWARD has the policy DROP".to_owned());
        }
        let all = others.iter().find(|rule| rule.starts_with("-j DROP") || rule.starts_with("-j REJECT"))?;
        Some(format!("FORWARD ends with `{all}`"))
    }

    /// Returns the tables in order: `filter` and `mangle` first, because after them only `raw` has rules of
    /// Felix that drop.
    fn in_order(&self) -> Vec<(&str, &Table)> {
        let rank = |name: &str| match name {
            "filter" => 0,
            "mangle" => 1,
            "raw" => 2,
            _ => 3,
        };
        let mut all: Vec<(&str, &Table)> =
            self.0.iter().map(|(name, table)| (name.as_str(), table)).collect();
        all.sort_by_key(|(name, _)| rank(name));
        all
    }
}

impl Table {
    fn hooks(&self) -> Vec<(&str, &str)> {
        let others = self.rules.iter().filter(|(chain, _)| !is_chain(chain));
        others
            .flat_map(|(chain, rules)| rules.iter().map(move |rule| (chain.as_str(), rule.as_str())))
            .filter(|(_, rule)| is_felix_rule(rule))
            .collect()
    }

    fn felix_rules(&self) -> usize {
        let inside = self.rules.iter().filter(|(chain, _)| is_chain(chain));
        inside.map(|(_, rules)| rules.len()).sum::<usize>() + self.hooks().len()
    }

    /// Returns all chains and rules of Felix, for comparison.
    fn felix(&self) -> (BTreeSet<&str>, BTreeMap<&str, Vec<&str>>) {
        let chains = self.chains.keys().map(String::as_str).filter(|name| is_chain(name)).collect();
        let mut rules: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (chain, all) in &self.rules {
            let whole = is_chain(chain);
            let of = all.iter().map(String::as_str).filter(|rule| whole || is_felix_rule(rule));
            let of: Vec<&str> = of.collect();
            if !of.is_empty() {
                rules.insert(chain, of);
            }
        }
        (chains, rules)
    }
}

/// Returns Felix's sets in the output of `ipset save`: the text without other sets, and their names.
pub(super) fn felix_sets(saved: &str) -> (String, Vec<String>) {
    let (mut text, mut names) = (String::new(), Vec::new());
    for line in saved.lines() {
        let mut words = line.split_whitespace();
        let (verb, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if is_felix_set(name) && matches!(verb, "create" | "add") {
            let _ = writeln!(text, "{line}");
            if verb == "create" {
                names.push(name.to_owned());
            }
        }
    }
    (text, names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output on a host with Felix 2.6, shortened; with rules of Docker and of an administrator.
    const SAVED: &str = "# Generated by iptables-save v1.8.9 on Sun Nov 22 09:17:07 2026
*raw
:PREROUTING ACCEPT [0:0]
:cali-PREROUTING - [0:0]
-A PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" -j cali-PREROUTING
-A cali-PREROUTING -i cali+ -m comment --comment \"cali:pTl\" -j MARK --set-xmark 0x4000000/0x4000000
COMMIT
*filter
:INPUT ACCEPT [1:60]
:FORWARD DROP [0:0]
:DOCKER-USER - [0:0]
:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-fw-cali0123456789a - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-A FORWARD -j DOCKER-USER
-A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x1000000/0x1000000 -j ACCEPT
-A cali-FORWARD -i cali+ -m comment --comment \"cali:8ZoYfO5HKXWbB3pk\" -j cali-from-wl-dispatch
-A cali-from-wl-dispatch -i cali0123456789a -m comment --comment \"cali:l1\" -g cali-fw-cali0123456789a
-A cali-from-wl-dispatch -m comment --comment \"cali:l2\" -m comment --comment \"Unknown interface\" -j DROP
COMMIT
";

    #[test]
    fn what_is_felixs_is_taken_away_table_by_table_and_nothing_else() {
        let listing = Listing::read(SAVED);
        assert_eq!((listing.felix_rules(), listing.felix_chains()), (7, 4));
        let expected = "*filter
-D FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-D FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x1000000/0x1000000 -j ACCEPT
-F cali-FORWARD
-F cali-from-wl-dispatch
-F cali-fw-cali0123456789a
-X cali-FORWARD
-X cali-from-wl-dispatch
-X cali-fw-cali0123456789a
COMMIT
*raw
-D PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" -j cali-PREROUTING
-F cali-PREROUTING
-X cali-PREROUTING
COMMIT
";
        assert_eq!(listing.removal().unwrap(), expected);
        assert_eq!(
            Listing::read("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -i califax -j DROP\nCOMMIT\n").removal(),
            None
        );
        assert_eq!(listing.interfaces().into_iter().collect::<Vec<_>>(), ["cali0123456789a"]);
        // Rules of Calico 1.x.
        let old = Listing::read("*filter\n:felix-FORWARD - [0:0]\n-A FORWARD -j felix-FORWARD\nCOMMIT\n");
        assert_eq!(
            old.removal().unwrap(),
            "*filter\n-D FORWARD -j felix-FORWARD\n-F felix-FORWARD\n-X felix-FORWARD\nCOMMIT\n"
        );
        let masquerade = "-m set --match-set felix-masq-ipam-pools src -m set ! --match-set felix-all-ipam-pools dst -j MASQUERADE";
        let old = Listing::read(&format!("*nat\n-A POSTROUTING {masquerade}\nCOMMIT\n"));
        assert_eq!(old.removal().unwrap(), format!("*nat\n-D POSTROUTING {masquerade}\nCOMMIT\n"));
    }

    #[test]
    fn what_was_saved_stands_again_in_its_place() {
        let saved = Listing::read(SAVED);
        assert_eq!(saved.restoration(&saved), None);
        let without =
            "*filter\n:FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\nCOMMIT\n";
        let text = saved.restoration(&Listing::read(without)).unwrap();
        let filter = text.split("COMMIT").next().unwrap();
        assert!(filter.contains(":cali-FORWARD - [0:0]\n"), "{filter}");
        let hooks: Vec<&str> = filter
            .lines()
            .filter(|l| l.contains("FORWARD ") && !l.contains("-A cali") && !l.starts_with(':'))
            .collect();
        assert_eq!(
            hooks,
            [
                "-I FORWARD 1 -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD",
                "-I FORWARD 3 -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m mark --mark 0x1000000/0x1000000 -j ACCEPT",
            ]
        );
        assert_eq!(text.matches("COMMIT").count(), 2, "{text}");
        // The chain has changed since: its other rules are kept, and half-written rules of Felix are
        // replaced.
        let other = "*filter\n:FORWARD DROP [0:0]\n:cali-FORWARD - [0:0]\n:cali-new - [0:0]\n-A FORWARD -j cali-FORWARD\n\
            -A FORWARD -j NEW\n-A FORWARD -j DOCKER-USER\nCOMMIT\n";
        let text = saved.restoration(&Listing::read(other)).unwrap();
        assert!(
            text.contains("-D FORWARD -j cali-FORWARD\n")
                && text.contains("-F cali-new\n-X cali-new\nCOMMIT"),
            "{text}"
        );
        assert!(
            text.contains("-I FORWARD 1 -m comment")
                && text.contains("-A FORWARD -m comment --comment \"cali:S93"),
            "{text}"
        );
    }

    #[test]
    fn packets_that_only_felix_let_pass_are_found() {
        let drops = |text: &str| Listing::read(text).drops_without_felix("cali");
        assert_eq!(drops(SAVED).unwrap(), "FORWARD has the policy DROP");
        let repaired = SAVED.replace(
            "-A FORWARD -j DOCKER-USER",
            "-A FORWARD -j DOCKER-USER\n-A FORWARD -i cali+ -j ACCEPT\n-A FORWARD -o cali+ -j ACCEPT",
        );
        assert_eq!(drops(&repaired), None);
        let open = SAVED.replace("FORWARD DROP", "FORWARD ACCEPT");
        assert_eq!(drops(&open), None);
        let last = open
            .replace("-A FORWARD -j DOCKER-USER", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited");
        assert!(drops(&last).unwrap().contains("REJECT"));
        assert_eq!(drops("*filter\n:FORWARD DROP [0:0]\nCOMMIT\n"), None);
    }

    #[test]
    fn sets_of_others_are_left_alone() {
        let text = "create cali40s:abc hash:net family inet hashsize 1024 maxelem 1048576\nadd cali40s:abc 10.244.1.2\n\
            create docker hash:ip family inet\nadd docker 10.0.0.1\ncreate cali4t0 hash:net family inet\n";
        let (kept, names) = felix_sets(text);
        assert_eq!(names, ["cali40s:abc", "cali4t0"]);
        assert_eq!(kept.lines().count(), 3);
    }
}
