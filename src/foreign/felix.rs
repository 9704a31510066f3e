//! Reads Felix's chains and sets from `iptables-save` of both backends, from `ipset save` and from `nft`, and
//! computes Felix's names for them. It only lists and changes nothing.
//!
//! The tools are used instead of netlink, because `iptables-nft` writes iptables matches into nftables that
//! only the tool itself can decode. A tool that would make the kernel load its tables is not run.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha224, Sha256};
use tortie_net::Cidr;

use super::{nftables, tools};
use crate::foreign::types::{Backend, Felix, FelixRule, FelixSet, FelixTable, Unreadable};

/// Prefix of Felix's chain names.
const CHAIN_PREFIX: &str = "cali-";
/// Prefix of the names of chains and sets of Calico 1.
const OLD_PREFIX: &str = "felix-";
/// Maximum length of a chain name of Felix (2.1 on) in iptables, in characters.
const CHAIN_LENGTH: usize = 28;
/// Maximum length of a chain name of Felix in nftables, in characters.
const NFTABLES_CHAIN_LENGTH: usize = 256;
/// Maximum length of a set name (`IPSET_MAXNAMELEN`), in characters.
const SET_LENGTH: usize = 31;
/// Prefixes of set names: Felix 2.2 on, then Felix 2.0 and 2.1. All have the length of the prefix of Calico
/// 1.
const SET_PREFIXES: [&str; 4] = ["cali40", "cali60", "cali4-", "cali6-"];

/// Reads all tables and sets. Blocks while the tools run.
#[must_use]
pub fn read() -> (Felix, Vec<Unreadable>) {
    let (mut felix, mut unreadable) = (Felix::default(), Vec::new());
    for (backend, v4) in Backend::IPTABLES.into_iter().flat_map(|backend| [(backend, true), (backend, false)])
    {
        let tool = backend.tool(v4);
        match output_of(&format!("{tool}-save"), tools::saved_rules(backend, v4)) {
            Ok(text) => {
                felix.tables.extend(tables(backend, v4, &text));
                felix.read.insert((backend, v4));
            }
            Err(why) => unreadable.push(Unreadable { what: format!("rules of {tool}"), why }),
        }
    }
    match output_of("ipset", tools::saved_sets()) {
        Ok(text) => {
            for (name, set) in sets(&text) {
                felix.sets.insert(name, set);
            }
            felix.sets_read = true;
        }
        Err(why) => unreadable.push(Unreadable { what: "address sets (ipset)".to_owned(), why }),
    }
    read_nftables(&mut felix, &mut unreadable);
    (felix, unreadable)
}

/// Reads Felix's tables of nftables, if it has some.
fn read_nftables(felix: &mut Felix, unreadable: &mut Vec<Unreadable>) {
    let what = |table: &str| Unreadable { what: format!("table {table} of nftables"), why: String::new() };
    let there = match tools::felix_tables() {
        Ok(there) => there,
        Err(why) => return unreadable.push(Unreadable { why, ..what("calico") }),
    };
    for (family, v4) in [("ip", true), ("ip6", false)] {
        let Some((_, name)) = there.iter().find(|table| table.0 == family) else {
            felix.read.insert((Backend::Nftables, v4));
            continue;
        };
        match output_of("nft", tools::listed_table(family, name)) {
            Ok(text) => {
                let listing = nftables::Listing::read(&text);
                felix.tables.extend(listing.tables(v4));
                felix.sets.extend(listing.sets(v4));
                felix.read.insert((Backend::Nftables, v4));
            }
            Err(why) => {
                felix.sets_read = false;
                unreadable.push(Unreadable { why, ..what(&format!("{family} {name}")) });
            }
        }
    }
}

/// Returns the output of a tool, or an error that asks to install a missing one.
fn output_of(tool: &str, said: Result<Option<String>, String>) -> Result<String, String> {
    said?.ok_or_else(|| format!("{tool} is not installed here: install it on this host"))
}

/// True if the name is that of a chain of any version of Felix.
#[must_use]
pub fn is_chain(name: &str) -> bool {
    name.starts_with(CHAIN_PREFIX) || is_old(name)
}

/// True if the name is that of a chain or set of Calico 1.
#[must_use]
pub fn is_old(name: &str) -> bool {
    name.starts_with(OLD_PREFIX)
}

/// Parses the output of `iptables-save` and returns Felix's chains per table; those of Calico 1 are a table
/// of their own.
#[must_use]
pub fn tables(backend: Backend, v4: bool, listing: &str) -> Vec<FelixTable> {
    let mut all: Vec<FelixTable> = Vec::new();
    let mut name = String::new();
    let mut put = |table: &str, of: &str, change: &mut dyn FnMut(&mut FelixTable)| {
        let old = is_old(of);
        let at = all.iter().position(|known| known.name == table && known.old == old);
        let at = at.unwrap_or_else(|| {
            let (chains, hooks) = (Default::default(), Vec::new());
            all.push(FelixTable { backend, v4, old, name: table.to_owned(), chains, hooks });
            all.len() - 1
        });
        if let Some(table) = all.get_mut(at) {
            change(table);
        }
    };
    for line in listing.lines() {
        if let Some(table) = line.strip_prefix('*') {
            table.trim().clone_into(&mut name);
        } else if let Some(chain) = line.strip_prefix(':') {
            let chain = chain.split_whitespace().next().unwrap_or_default();
            if is_chain(chain) {
                put(&name, chain, &mut |table| {
                    table.chains.entry(chain.to_owned()).or_default();
                });
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let mut words = split(rule);
            if words.is_empty() {
                continue;
            }
            let chain = words.remove(0);
            let rule = FelixRule { words };
            let target = rule.target().filter(|target| is_chain(target)).map(str::to_owned);
            if is_chain(&chain) {
                put(&name, &chain, &mut |table| {
                    table.chains.entry(chain.clone()).or_default().push(rule.clone());
                });
            } else if let Some(target) = target {
                put(&name, &target, &mut |table| table.hooks.push((chain.clone(), rule.clone())));
            }
        }
    }
    all.retain(|table| !table.chains.is_empty());
    all
}

/// Splits a line into words, with the quoting of iptables-save.
pub(super) fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut begun, mut quoted) = (Vec::new(), String::new(), false, false);
    let mut flags = line.chars();
    while let Some(flag) = flags.next() {
        match flag {
            '"' => (quoted, begun) = (!quoted, true),
            '\\' if quoted => word.extend(flags.next()),
            ' ' if !quoted => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            other => {
                word.push(other);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

/// Parses the output of `ipset save` and returns Felix's sets, without the temporary sets that it fills
/// before a swap.
#[must_use]
pub fn sets(listing: &str) -> Vec<(String, FelixSet)> {
    let mut found: std::collections::BTreeMap<String, FelixSet> = Default::default();
    for line in listing.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("create"), Some(name)) if is_set(name) => {
                let kind = words.next().unwrap_or_default().to_owned();
                let v4 = !line.contains("family inet6");
                found.insert(name.to_owned(), FelixSet { kind, v4, members: BTreeSet::new(), others: 0 });
            }
            (Some("add"), Some(name)) => {
                if let Some(set) = found.get_mut(name) {
                    match words.next().and_then(member) {
                        Some(member) => drop(set.members.insert(member)),
                        None => set.others += 1,
                    }
                }
            }
            _ => {}
        }
    }
    found.into_iter().collect()
}

fn is_set(name: &str) -> bool {
    SET_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || is_old(name) && !name.contains("tmp")
}

pub(super) fn member(text: &str) -> Option<Cidr> {
    if text.contains('/') { text.parse().ok() } else { text.parse().ok().map(Cidr::host) }
}

/// Returns the chain name for a prefix and a subject. A name that is too long ends in a hash instead
/// (`GetLengthLimitedID` of Felix).
#[must_use]
pub fn chain_name(backend: Backend, prefix: &str, of: &str) -> String {
    let limit = if backend == Backend::Nftables { NFTABLES_CHAIN_LENGTH } else { CHAIN_LENGTH };
    let length = prefix.len() + of.len();
    if length > limit || (length == limit && of.starts_with('_')) {
        let hash = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(of));
        let left = limit.saturating_sub(prefix.len() + 1);
        return format!("{prefix}_{}", hash.get(..left).unwrap_or(&hash));
    }
    format!("{prefix}{of}")
}

/// Returns the set name of a selector after its first six letters, which encode family and generation; the
/// input is the selector's canonical text (`MakeUniqueID` of libcalico-go).
#[must_use]
pub fn set_id(selector: &str) -> String {
    let hash = BASE64_URL_SAFE_NO_PAD.encode(Sha224::digest(format!("s:{selector}")));
    cut(&format!("s:{hash}"))
}

/// Returns a set name without its first six letters.
#[must_use]
pub fn id_of_set(name: &str) -> &str {
    name.get(6..).unwrap_or_default()
}

fn cut(id: &str) -> String {
    id.get(..SET_LENGTH - 6).unwrap_or(id).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output on a host with Felix 2.6, shortened.
    const FILTER: &str = r#"# Generated by iptables-save v1.8.9
*filter
:INPUT ACCEPT [0:0]
:DOCKER - [0:0]
:cali-FORWARD - [0:0]
:cali-fw-cali1 - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-tw-cali1 - [0:0]
-A INPUT -m comment --comment "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -o docker0 -j DOCKER
-A cali-FORWARD -i cali+ -m comment --comment "cali:8ZoYfO5HKXWbB3pk" -j cali-from-wl-dispatch
-A cali-from-wl-dispatch -i cali1 -m comment --comment "cali:x" -g cali-fw-cali1
-A cali-from-wl-dispatch -m comment --comment "cali:y" -m comment --comment "Unknown \"x\" interface" -j DROP
-A cali-fw-cali1 ! -i cali2 -m mark --mark 0x0/0x2000000 -j cali-po-deny
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
COMMIT
"#;

    #[test]
    fn chains_of_felix_are_found_with_what_leads_to_them() {
        let all = tables(Backend::Legacy, true, FILTER);
        assert_eq!(all.len(), 1, "the other table has nothing of Felix");
        let table = &all[0];
        assert_eq!((table.name.as_str(), table.chains.len()), ("filter", 4));
        let hooks: Vec<&str> = table.hooks.iter().map(|(chain, _)| chain.as_str()).collect();
        assert_eq!(hooks, ["INPUT", "FORWARD"]);
        let dispatch = &table.chains["cali-from-wl-dispatch"];
        assert_eq!((dispatch[0].comes_by(), dispatch[0].target()), (Some("cali1"), Some("cali-fw-cali1")));
        assert_eq!(dispatch[1].target(), Some("DROP"));
        assert!(dispatch[1].words.contains(&"Unknown \"x\" interface".to_owned()), "{dispatch:?}");
        let rule = &table.chains["cali-fw-cali1"][0];
        assert_eq!((rule.comes_by(), rule.target()), (None, Some("cali-po-deny")), "negated");
        assert!(table.chains["cali-tw-cali1"].is_empty());
    }

    /// Output on a host with Felix 1.4, shortened: chains and sets with other names in the same tables.
    #[test]
    fn chains_and_sets_of_calico_1_are_found_and_kept_apart() {
        let listing = "*filter\n:INPUT ACCEPT [0:0]\n:felix-INPUT - [0:0]\n:felix-FROM-ENDPOINT - [0:0]\n:felix-from-1234 - [0:0]\n:cali-INPUT - [0:0]\n-A INPUT -j felix-INPUT\n-A INPUT -j cali-INPUT\n-A felix-FROM-ENDPOINT -i tap1234 -g felix-from-1234\nCOMMIT\n";
        let all = tables(Backend::Legacy, true, listing);
        let seen: Vec<(bool, usize, usize)> =
            all.iter().map(|table| (table.old, table.chains.len(), table.hooks.len())).collect();
        assert_eq!(seen, [(true, 3, 1), (false, 1, 1)]);
        let felix = Felix { tables: all, ..Felix::default() };
        assert!(felix.table(true, "filter").is_some_and(|table| table.chains.contains_key("cali-INPUT")));
        let found = sets(
            "create felix-v4-abc hash:ip family inet\nadd felix-v4-abc 10.0.0.1\ncreate felix-masq-ipam-pools hash:net family inet\ncreate felix-tmp-x hash:ip family inet\n",
        );
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["felix-masq-ipam-pools", "felix-v4-abc"]);
        assert_eq!(id_of_set(names[0]), "masq-ipam-pools");
    }

    #[test]
    fn sets_are_read_without_temporary_ones_and_those_of_others() {
        let text = "create cali40s:abc hash:net family inet hashsize 1024 maxelem 1048576\nadd cali40s:abc 10.0.0.1\nadd cali40s:abc 10.1.0.0/16\ncreate cali4t0 hash:net family inet\nadd cali4t0 10.9.9.9\ncreate cali60s:abc hash:net family inet6\nadd cali60s:abc fd00::1\ncreate mine hash:ip family inet\nadd mine 10.0.0.9\ncreate cali40s:np hash:ip,port family inet\nadd cali40s:np 10.0.0.1,tcp:80\n";
        let found = sets(text);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cali40s:abc", "cali40s:np", "cali60s:abc"]);
        let members: Vec<String> = found[0].1.members.iter().map(ToString::to_string).collect();
        assert_eq!(members, ["10.0.0.1/32", "10.1.0.0/16"]);
        assert_eq!((found[1].1.members.len(), found[1].1.others), (0, 1));
        assert!(!found[2].1.v4);
    }

    #[test]
    fn names_are_felix_s() {
        assert_eq!(chain_name(Backend::Legacy, "cali-tw-", "cali1234567890a"), "cali-tw-cali1234567890a");
        assert_eq!(chain_name(Backend::Legacy, "cali-pi-", "default.allow-web"), "cali-pi-default.allow-web");
        assert_eq!(chain_name(Backend::Legacy, "cali-pri-", "kns.kube-system"), "cali-pri-kns.kube-system");
        // These names appear in many listings of Kubernetes clusters.
        assert_eq!(chain_name(Backend::Legacy, "cali-pri-", "kns.default-but-longer-than-that").len(), 28);
        assert_eq!(
            chain_name(Backend::Legacy, "cali-pri-", "ksa.kube-system.coredns"),
            "cali-pri-_u2Tn2rSoAPffvE7JO6"
        );
        assert_eq!(
            chain_name(Backend::Legacy, "cali-pri-", "ksa.default.default"),
            "cali-pri-ksa.default.default"
        );
        // From a listing of Felix 2.1 (projectcalico/felix issue 1421): the set of the tag `subnet1`.
        assert_eq!(set_id("has(subnet1)"), id_of_set("cali6-s:mHDOqpY19uvpC-3qX-0xeq2"));
    }
}
