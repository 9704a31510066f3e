//! Comparison of address sets: the sets of selectors, of pools and of hosts.

use std::collections::{BTreeMap, BTreeSet};

use tortie_config::counted;
use tortie_net::Cidr;

use super::comparison::{CompareResult, Comparison, Plane};
use crate::foreign::felix::{id_of_set, is_old, set_id};
use crate::foreign::intent::HostIntent;
use crate::foreign::types::{FelixSet, ForeignState};

/// Maximum number of members that a difference lists.
const NAMED: usize = 3;

/// A desired address set.
struct Set {
    /// Felix's name without the prefix of family and generation.
    id: String,
    /// Name in later versions of Felix.
    also: Option<&'static str>,
    /// Description of the set.
    what: String,
    members: BTreeSet<Cidr>,
}

pub(super) fn compare(wanted: &HostIntent, found: &ForeignState, out: &mut Comparison) {
    let felix = &found.felix;
    let families = if wanted.globals.ipv6 { &[true, false][..] } else { &[true] };
    for v4 in families.iter().copied() {
        let all = sets(wanted, v4);
        if !felix.sets_read {
            for set in &all {
                out.put(
                    Plane::Set,
                    CompareResult::NotCompared,
                    &set.what,
                    "the sets of Felix could not be listed",
                );
            }
            continue;
        }
        let there: BTreeMap<&str, (&String, &FelixSet)> = felix
            .sets
            .iter()
            .filter(|(_, set)| set.v4 == v4)
            .map(|(name, set)| (id_of_set(name), (name, set)))
            .collect();
        let old = there.values().any(|(name, _)| is_old(name));
        let mut met: BTreeSet<&str> = BTreeSet::new();
        // Felix has no sets for a family that it does not support.
        let none = there.is_empty() && !v4;
        for set in all.iter().filter(|set| !(none && set.members.is_empty())) {
            let named = there.get(set.id.as_str()).or_else(|| there.get(set.also?));
            // A selector in another spelling has another set name, so sets with equal members match, too.
            let alike =
                || there.values().find(|(_, found)| found.others == 0 && found.members == set.members);
            match named.or_else(|| alike().filter(|_| !set.members.is_empty())) {
                Some((name, found)) => {
                    met.insert(name);
                    one(set, name, found, out);
                }
                None if old => {
                    let text = "Felix of Calico 1 names its sets otherwise, and none has these members";
                    out.put(Plane::Set, CompareResult::NotCompared, &set.what, text);
                }
                None => out.put(
                    Plane::Set,
                    CompareResult::Missing,
                    &set.what,
                    counted(set.members.len(), "member"),
                ),
            }
        }
        for (id, (name, set)) in &there {
            if id.starts_with("s:") && !met.contains(name.as_str()) {
                let text = format!(
                    "{} of a selector that no rule of this host uses",
                    counted(set.members.len(), "member")
                );
                out.put(Plane::Set, CompareResult::Extra, name.as_str(), text);
            }
        }
    }
}

fn sets(wanted: &HostIntent, v4: bool) -> Vec<Set> {
    let of = |all: &mut dyn Iterator<Item = Cidr>| all.filter(|cidr| cidr.is_v4() == v4).collect();
    let mut list: Vec<Set> = wanted
        .ruleset
        .sets
        .iter()
        .map(|(id, members)| Set {
            id: set_id(id.selector()),
            also: None,
            what: id.selector().to_owned(),
            members: of(&mut members.iter().copied()),
        })
        .collect();
    let globals = &wanted.globals;
    if globals.masquerade.iter().any(|pool| pool.is_v4() == v4) {
        let set = |id: &str, what: &str, members| Set {
            id: id.to_owned(),
            also: None,
            what: what.to_owned(),
            members,
        };
        list.push(Set {
            also: Some("network-ip-pools"),
            ..set("all-ipam-pools", "all pools", of(&mut globals.pools.iter().copied()))
        });
        list.push(set(
            "masq-ipam-pools",
            "pools that masquerade",
            of(&mut globals.masquerade.iter().copied()),
        ));
    }
    if let Some(hosts) = globals.ipip_hosts.as_ref().filter(|_| v4) {
        list.push(Set {
            id: "all-hosts".to_owned(),
            also: Some("all-hosts-net"),
            what: "hosts that may send IPIP".to_owned(),
            members: hosts.clone(),
        });
    }
    if let Some(vxlan) = globals.vxlan.as_ref().filter(|_| wanted.intent.vxlan.device(v4).is_some()) {
        list.push(Set {
            id: "all-vxlan-net".to_owned(),
            also: None,
            what: "hosts that may send VXLAN".to_owned(),
            members: of(&mut vxlan.hosts.iter().copied()),
        });
    }
    list
}

fn one(set: &Set, name: &str, found: &FelixSet, out: &mut Comparison) {
    if found.others > 0 {
        let text =
            format!("{name} has {} with ports, which are not compared", counted(found.others, "member"));
        return out.put(Plane::Set, CompareResult::NotCompared, &set.what, text);
    }
    let few = |list: Vec<&Cidr>| {
        let shown: Vec<String> = list.iter().take(NAMED).map(|member| plain(member)).collect();
        let more = list.len().saturating_sub(NAMED);
        if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
    };
    let missing: Vec<&Cidr> = set.members.difference(&found.members).collect();
    let extra: Vec<&Cidr> = found.members.difference(&set.members).collect();
    let mut words = Vec::new();
    if !missing.is_empty() {
        words.push(format!("lacks {}", few(missing)));
    }
    if !extra.is_empty() {
        words.push(format!("has {} too much", few(extra)));
    }
    if words.is_empty() {
        out.equal(Plane::Set);
    } else {
        out.put(Plane::Set, CompareResult::Different, &set.what, format!("{name} {}", words.join(" and ")));
    }
}

fn plain(member: &Cidr) -> String {
    if member.is_host() { member.addr().to_string() } else { member.to_string() }
}
