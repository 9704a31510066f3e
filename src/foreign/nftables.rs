//! Felix's own tables of nftables (Calico 3.29 and later) in the text of `nft list table`: parses them, and
//! converts chains and sets to those of iptables and ipset. It does no I/O.
//!
//! One table has what iptables has in four: chain `filter-cali-FORWARD` is `cali-FORWARD` of the table
//! `filter`, and a base chain `filter-FORWARD` leads there. Workloads are dispatched by verdict maps instead of
//! rules. Of a rule the interfaces, the verdict and the comment are converted; everything else stays a word
//! that the comparison does not know, so that it concludes nothing from it.

use std::collections::{BTreeMap, BTreeSet};

use super::felix::{is_chain, member, split};
use super::types::{Backend, FelixRule, FelixSet, FelixTable};

/// Names of the tables of iptables, with which chain names begin.
const LAYERS: [&str; 4] = ["filter", "nat", "mangle", "raw"];

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    chains: BTreeMap<String, Vec<String>>,
    /// Sets and maps.
    sets: BTreeMap<String, Set>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Set {
    kind: String,
    elements: Vec<String>,
}

/// Kind of a block within a table.
enum Block {
    Chain(String),
    Set(String),
    Other,
}

impl Listing {
    /// Parses the output of `nft list table`; what is unknown is left out.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut listing = Self::default();
        let mut block: Option<Block> = None;
        // Elements may continue on further lines.
        let mut elements: Option<String> = None;
        for line in text.lines().map(str::trim) {
            if let Some(open) = &mut elements {
                open.push(' ');
                open.push_str(line);
                if !line.ends_with('}') {
                    continue;
                }
            } else if let Some(rest) = line.strip_prefix("elements = {").filter(|_| block.is_some()) {
                elements = Some(rest.to_owned());
                if !rest.ends_with('}') {
                    continue;
                }
            }
            if let Some(whole) = elements.take() {
                if let Some(Block::Set(name)) = &block
                    && let Some(set) = listing.sets.get_mut(name)
                {
                    let list = whole.trim_end_matches('}').split(',').map(|one| one.trim().to_owned());
                    set.elements.extend(list.filter(|one| !one.is_empty()));
                }
                continue;
            }
            match &block {
                None => block = listing.begin(line),
                Some(_) if line == "}" => block = None,
                Some(Block::Chain(name)) if !line.is_empty() && !line.starts_with("type ") => {
                    listing.chains.entry(name.clone()).or_default().push(line.to_owned());
                }
                Some(Block::Set(name)) => {
                    if let Some((kind, set)) = line.strip_prefix("type ").zip(listing.sets.get_mut(name)) {
                        kind.clone_into(&mut set.kind);
                    }
                }
                Some(Block::Chain(_) | Block::Other) => {}
            }
        }
        listing
    }

    fn begin(&mut self, line: &str) -> Option<Block> {
        let mut words = line.strip_suffix('{')?.split_whitespace();
        let (kind, name) = (words.next()?, words.next()?.to_owned());
        Some(match kind {
            "chain" => {
                self.chains.entry(name.clone()).or_default();
                Block::Chain(name)
            }
            "set" | "map" => {
                self.sets.entry(name.clone()).or_default();
                Block::Set(name)
            }
            "table" => return None,
            _ => Block::Other,
        })
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn rules(&self) -> usize {
        self.chains.values().map(Vec::len).sum()
    }

    /// Returns the names of interfaces to or from which packets of workloads are dispatched.
    #[must_use]
    pub fn interfaces(&self) -> BTreeSet<String> {
        let maps = self.sets.iter().filter(|(name, _)| name.ends_with("-wl-dispatch"));
        let pairs = maps.flat_map(|(_, map)| &map.elements).filter_map(|one| dispatch(one));
        let in_maps = pairs.map(|(interface, _)| interface.to_owned());
        let rules = self.tables(true).into_iter().filter(|table| table.name == "filter");
        let rules: Vec<FelixRule> = rules.flat_map(|table| table.chains.into_values().flatten()).collect();
        let named = rules.iter().flat_map(|rule| [rule.comes_by(), rule.leaves_by()]).flatten();
        let in_rules = named.filter(|name| !name.ends_with('+')).map(str::to_owned);
        in_maps.chain(in_rules).collect()
    }

    /// Converts the chains, as tables of iptables.
    #[must_use]
    pub fn tables(&self, v4: bool) -> Vec<FelixTable> {
        LAYERS.iter().filter_map(|layer| self.table(layer, v4)).collect()
    }

    fn table(&self, layer: &str, v4: bool) -> Option<FelixTable> {
        let (mut chains, mut hooks) = (BTreeMap::new(), Vec::new());
        for (name, rules) in &self.chains {
            let Some(name) = name.strip_prefix(layer).and_then(|rest| rest.strip_prefix('-')) else {
                continue;
            };
            let rules = rules.iter().flat_map(|rule| self.convert(rule, layer));
            if is_chain(name) {
                chains.insert(name.to_owned(), rules.collect());
            } else {
                let leads = |rule: &FelixRule| rule.target().is_some_and(is_chain);
                hooks.extend(rules.filter(leads).map(|rule| (name.to_owned(), rule)));
            }
        }
        let (backend, name) = (Backend::Nftables, layer.to_owned());
        (!chains.is_empty()).then_some(FelixTable { backend, v4, old: false, name, chains, hooks })
    }

    /// Converts a rule; one that looks an interface up in a verdict map becomes one for each element.
    fn convert(&self, rule: &str, layer: &str) -> Vec<FelixRule> {
        let local = |chain: &str| {
            let rest = chain.strip_prefix(layer).and_then(|rest| rest.strip_prefix('-'));
            rest.unwrap_or(chain).to_owned()
        };
        let all = split(rule);
        let mut from = all.iter().map(String::as_str).peekable();
        let mut words: Vec<String> = Vec::new();
        while let Some(word) = from.next() {
            match word {
                "iifname" | "oifname" => {
                    let option = if word == "iifname" { "-i" } else { "-o" };
                    match from.next() {
                        Some("vmap") => {
                            let map = from.next().and_then(|name| self.sets.get(name.strip_prefix('@')?));
                            let pairs = map.into_iter().flat_map(|map| &map.elements);
                            let one = |(interface, chain): (&str, &str)| {
                                let words = [option, interface, "-g", &local(chain)].map(str::to_owned);
                                FelixRule { words: words.to_vec() }
                            };
                            return pairs.filter_map(|pair| dispatch(pair)).map(one).collect();
                        }
                        Some("!=") => {
                            words.extend(["!".to_owned(), option.to_owned()]);
                            words.extend(from.next().map(interface));
                        }
                        Some(name) => words.extend([option.to_owned(), interface(name)]),
                        None => words.push(word.to_owned()),
                    }
                }
                "jump" | "goto" => {
                    words.push(if word == "jump" { "-j" } else { "-g" }.to_owned());
                    words.extend(from.next().map(&local));
                }
                "drop" | "accept" | "return" | "masquerade" | "snat" | "reject" => {
                    words.extend(["-j".to_owned(), word.to_uppercase()]);
                }
                "comment" => {
                    words.extend(["-m", "comment", "--comment"].map(str::to_owned));
                    words.extend(from.next().map(str::to_owned));
                }
                "counter" => {}
                other => words.push(other.to_owned()),
            }
        }
        vec![FelixRule { words }]
    }

    /// Converts the address sets, under their names in ipset.
    #[must_use]
    pub fn sets(&self, v4: bool) -> Vec<(String, FelixSet)> {
        let felix =
            self.sets.iter().filter(|(name, set)| name.starts_with("cali") && !set.kind.contains(" : "));
        felix
            .map(|(name, set)| {
                let mut found = FelixSet { kind: set.kind.clone(), v4, ..FelixSet::default() };
                for element in &set.elements {
                    match member(element) {
                        Some(cidr) => drop(found.members.insert(cidr)),
                        None => found.others += 1,
                    }
                }
                (name_in_ipset(name), found)
            })
            .collect()
    }
}

/// Returns interface and chain of an element of a verdict map: `"cali1" : goto CHAIN`.
fn dispatch(element: &str) -> Option<(&str, &str)> {
    let (interface, verdict) = element.split_once(" : ")?;
    let chain = verdict.trim().strip_prefix("goto ")?;
    Some((interface.trim().trim_matches('"'), chain.trim()))
}

fn interface(name: &str) -> String {
    match name.strip_suffix('*') {
        Some(prefix) => format!("{prefix}+"),
        None => name.to_owned(),
    }
}

/// Returns the name of a set in ipset: nftables takes no colon, and Felix writes a dash instead.
fn name_in_ipset(name: &str) -> String {
    let (head, id) = name.split_at_checked(6).unwrap_or((name, ""));
    let kind = id.split_once('-').filter(|(kind, _)| matches!(*kind, "s" | "n" | "svc" | "svcnoport" | "d"));
    match kind {
        Some((kind, hash)) => format!("{head}{kind}:{hash}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of nft 1.0.6 for a table as Felix 3.30 writes it, shortened.
    pub(crate) const TABLE: &str = r#"table ip calico {
	set cali40s-abc-_x {
		type ipv4_addr
		flags interval
		elements = { 10.0.0.1, 10.1.0.0/16,
			     10.2.0.4-10.2.0.7 }
	}

	set cali40all-ipam-pools {
		type ipv4_addr
		flags interval
	}

	map filter-cali-from-wl-dispatch {
		type ifname : verdict
		elements = { "cali1" : goto filter-cali-fw-cali1,
			     "cali2" : goto filter-cali-fw-cali2 }
	}

	flowtable calico {
		hook ingress priority filter
		devices = { cali1, eth0 }
	}

	chain filter-FORWARD {
		type filter hook forward priority filter; policy accept;
		counter jump filter-cali-FORWARD comment "cali:abc;"
	}

	chain filter-cali-FORWARD {
		iifname "cali*" counter jump filter-cali-from-wl-dispatch
		iifname != "eth0" counter accept
	}

	chain filter-cali-from-wl-dispatch {
		iifname vmap @filter-cali-from-wl-dispatch
		counter drop comment "cali:x; Unknown interface"
	}

	chain filter-cali-fw-cali1 {
		meta mark & 0x00020000 == 0x00000000 counter jump filter-cali-po-gnp/x
	}

	chain nat-POSTROUTING {
		type nat hook postrouting priority srcnat + 10; policy accept;
		counter jump nat-cali-POSTROUTING
	}

	chain nat-cali-POSTROUTING {
		ip saddr 10.0.0.0/8 counter masquerade fully-random
	}
}
"#;

    #[test]
    fn chains_and_maps_become_those_of_iptables() {
        let listing = Listing::read(TABLE);
        assert_eq!(listing.rules(), 8);
        assert_eq!(listing.interfaces().into_iter().collect::<Vec<_>>(), ["cali1", "cali2"]);
        let tables = listing.tables(true);
        let names: Vec<(&str, usize)> = tables.iter().map(|t| (t.name.as_str(), t.chains.len())).collect();
        assert_eq!(names, [("filter", 3), ("nat", 1)]);
        let filter = &tables[0];
        assert_eq!(filter.hooks.len(), 1);
        assert_eq!(
            (filter.hooks[0].0.as_str(), filter.hooks[0].1.target()),
            ("FORWARD", Some("cali-FORWARD"))
        );
        let forward = &filter.chains["cali-FORWARD"];
        assert_eq!(
            (forward[0].comes_by(), forward[0].target()),
            (Some("cali+"), Some("cali-from-wl-dispatch"))
        );
        assert_eq!((forward[1].comes_by(), forward[1].target()), (None, Some("ACCEPT")), "negated");
        let dispatch = &filter.chains["cali-from-wl-dispatch"];
        assert_eq!((dispatch[1].comes_by(), dispatch[1].target()), (Some("cali2"), Some("cali-fw-cali2")));
        assert_eq!(dispatch[2].target(), Some("DROP"));
        assert!(dispatch[2].words.contains(&"cali:x; Unknown interface".to_owned()), "{dispatch:?}");
        assert_eq!(filter.chains["cali-fw-cali1"][0].target(), Some("cali-po-gnp/x"));
        assert_eq!(tables[1].chains["cali-POSTROUTING"][0].target(), Some("MASQUERADE"));
    }

    #[test]
    fn sets_have_their_names_in_ipset() {
        let sets = Listing::read(TABLE).sets(true);
        let names: Vec<&str> = sets.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cali40all-ipam-pools", "cali40s:abc-_x"]);
        let members: Vec<String> = sets[1].1.members.iter().map(ToString::to_string).collect();
        assert_eq!((members, sets[1].1.others), (vec!["10.0.0.1/32".into(), "10.1.0.0/16".into()], 1));
        assert_eq!(Listing::read("nonsense {\n}\n"), Listing::default());
    }
}
