//! Comparison of packet filter rules: Felix's chains of each endpoint, the rules that jump to them, and their
//! targets.
//!
//! The comparison covers the policies and profiles that packets of an endpoint traverse, their order, and the
//! matches of their rules where Felix writes these in the simple form. It does not cover failsafe ports,
//! access of workloads to their host, the end of a tier, IPIP and VXLAN.
//!
//! The name of a policy's chain depends on the release of Felix: it has the name of the policy, or since 3.32
//! its kind, too. Felix 3 writes a chain for a group of policies of one selector; the group counts as its
//! policies.

use std::collections::{BTreeMap, BTreeSet};

use super::comparison::{CompareResult, Comparison, Plane};
use crate::foreign::compare::rule_bodies::{Line, of_felix, of_store, pass_mark};
use crate::foreign::felix::chain_name;
use crate::foreign::intent::HostIntent;
use crate::foreign::types::{Backend, FelixRule, FelixTable, ForeignState};
use tortie_engine::policy::{ChainId, Direction, EndpointPolicy, Source, Stages, host_interfaces};

/// Prefixes of Felix's endpoint chains: to and from workloads, to and from host interfaces.
const ENDS: [&str; 4] = ["cali-tw-", "cali-fw-", "cali-th-", "cali-fh-"];
/// Prefixes of Felix's chains of policies and profiles, inbound and outbound.
const SOURCES: [&str; 4] = ["cali-pi-", "cali-po-", "cali-pri-", "cali-pro-"];

/// Prefixes of Felix's chains of groups of policies, inbound and outbound.
const GROUPS: [&str; 2] = ["cali-gi-", "cali-go-"];
/// Beginning of the comment of the rule that begins a tier, which Felix writes since it has tiers.
const TIER: &str = "Start of ";

/// Reason for not comparing the rules of Calico 1.
const OLD: &str = "Felix of Calico 1 wrote them, whose chains are not compared";

/// The desired chain of an endpoint.
struct Chain<'a> {
    interface: String,
    prefix: &'static str,
    /// Prefix of the dispatch chains that jump to it.
    dispatch: &'static str,
    /// True if the chain filters packets that arrive by the interface.
    comes: bool,
    active: bool,
    stages: &'a Stages,
}

pub(super) fn compare(wanted: &HostIntent, found: &ForeignState, out: &mut Comparison) {
    let chains = chains(wanted, found);
    for v4 in [true, false] {
        if !v4 && !wanted.globals.ipv6 {
            continue;
        }
        let unread: Vec<&str> = Backend::ALL
            .into_iter()
            .filter(|backend| !found.felix.read.contains(&(*backend, v4)))
            .map(|backend| backend.tool(v4))
            .collect();
        match found.felix.table(v4, "filter") {
            Some(table) => filter(wanted, table, &chains, out),
            None if !unread.is_empty() || found.felix.has_old(v4, "filter") => {
                let why = match found.felix.has_old(v4, "filter") {
                    true => OLD.to_owned(),
                    false => format!("the rules of {} could not be listed", unread.join(" and ")),
                };
                for name in names(&chains) {
                    out.put(Plane::Rule, CompareResult::NotCompared, subject(v4, name), why.as_str());
                }
            }
            None => {
                for name in names(&chains) {
                    out.put(
                        Plane::Rule,
                        CompareResult::Missing,
                        subject(v4, name),
                        "Felix has no chains in the table `filter`",
                    );
                }
            }
        }
        twice(v4, found, out);
        if v4 || found.felix.table(v4, "nat").is_some() {
            nat(v4, wanted, found, &unread, out);
        }
    }
}

fn subject(v4: bool, name: &str) -> String {
    if v4 { name.to_owned() } else { format!("{name} (IPv6)") }
}

fn names<'a>(chains: &'a [Chain<'_>]) -> BTreeSet<&'a str> {
    chains.iter().map(|chain| chain.interface.as_str()).collect()
}

fn chains<'a>(wanted: &'a HostIntent, found: &ForeignState) -> Vec<Chain<'a>> {
    let mut all = Vec::new();
    for policy in wanted.ruleset.endpoints.values() {
        let EndpointPolicy::Workload(workload) = &**policy else { continue };
        let one = |prefix, dispatch, comes, stages| Chain {
            interface: workload.interface.to_string(),
            prefix,
            dispatch,
            comes,
            active: workload.active,
            stages,
        };
        all.push(one("cali-tw-", "cali-to-wl-dispatch", false, &workload.inbound));
        all.push(one("cali-fw-", "cali-from-wl-dispatch", true, &workload.outbound));
    }
    let interfaces = found.look.interfaces();
    let interfaces = interfaces.iter().map(|(name, addrs)| (*name, addrs.iter().copied()));
    for (interface, key) in host_interfaces(&wanted.ruleset, &wanted.globals, interfaces) {
        let Some(EndpointPolicy::Host(host)) = wanted.ruleset.endpoints.get(&key).map(|policy| &**policy)
        else {
            continue;
        };
        let one = |prefix, dispatch, comes, stages| Chain {
            interface: interface.to_string(),
            prefix,
            dispatch,
            comes,
            active: true,
            stages,
        };
        all.push(one("cali-th-", "cali-to-host-endpoint", false, &host.outbound));
        all.push(one("cali-fh-", "cali-from-host-endpoint", true, &host.inbound));
    }
    all
}

/// Compares the filter table of one family.
fn filter(wanted: &HostIntent, table: &FelixTable, chains: &[Chain<'_>], out: &mut Comparison) {
    for hook in ["INPUT", "FORWARD", "OUTPUT"] {
        let target = format!("cali-{hook}");
        let leads = table.hooks.iter().any(|(chain, rule)| chain == hook && rule.target() == Some(&target));
        if leads {
            out.equal(Plane::Rule);
        } else {
            let text = format!("no rule of {hook} leads to {target}: Felix's rules do not act there");
            out.put(Plane::Rule, CompareResult::Missing, subject(table.v4, hook), text);
        }
    }
    let mut known: BTreeSet<String> = BTreeSet::new();
    let names = Names::of(wanted, table.backend);
    for chain in chains {
        known.insert(chain_name(table.backend, chain.prefix, &chain.interface));
        one(chain, &names, table, out);
    }
    bodies(wanted, &names, table, out);
    if !chains.is_empty() {
        let text = "failsafe ports, access of workloads to their host, ends of tiers, and permitted sources of IPIP and \
                    VXLAN are not compared";
        out.put(Plane::Rule, CompareResult::NotCompared, subject(table.v4, "frame"), text);
    }
    for name in table.chains.keys() {
        let ours = ENDS.iter().any(|prefix| name.starts_with(prefix));
        if ours && !known.contains(name) {
            let text = "a chain of an endpoint that this host does not have";
            out.put(Plane::Rule, CompareResult::Extra, subject(table.v4, name), text);
        }
    }
}

/// Compares one endpoint chain.
fn one(chain: &Chain<'_>, names: &Names, table: &FelixTable, out: &mut Comparison) {
    let name = chain_name(table.backend, chain.prefix, &chain.interface);
    let place = subject(table.v4, &name);
    let Some(rules) = table.chains.get(&name) else {
        return out.put(
            Plane::Rule,
            CompareResult::Missing,
            place,
            format!("the chain of {}", chain.interface),
        );
    };
    let leads = table.chains.iter().filter(|(from, _)| from.starts_with(chain.dispatch)).any(|(_, rules)| {
        rules.iter().any(|rule| {
            let by = if chain.comes { rule.comes_by() } else { rule.leaves_by() };
            rule.target() == Some(&name) && by == Some(chain.interface.as_str())
        })
    });
    if !leads {
        let text = format!("no rule of {} sends packets of {} there", chain.dispatch, chain.interface);
        return out.put(Plane::Rule, CompareResult::Different, place, text);
    }
    let there: Vec<&str> = sources(rules, table).map(|target| names.usual(target)).collect();
    if !chain.active {
        return match there.first() {
            None if rules.iter().any(|rule| rule.target() == Some("DROP")) => out.equal(Plane::Rule),
            _ => out.put(
                Plane::Rule,
                CompareResult::Different,
                place,
                "the endpoint is not active, and the chain lets packets on",
            ),
        };
    }
    let has_tiers = rules.iter().flat_map(|rule| &rule.words).any(|word| word.starts_with(TIER));
    if chain.stages.tiers.len() > 1 && !has_tiers {
        let why = "its policies are in several tiers, which Felix 2 takes for one";
        return out.put(Plane::Rule, CompareResult::NotCompared, place, why);
    }
    let wanted: Vec<String> = chain.stages.chains().map(|id| name_of(table.backend, id)).collect();
    if wanted.iter().map(String::as_str).eq(there.iter().copied()) {
        return out.equal(Plane::Rule);
    }
    let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let text = format!("packets should pass {}, and pass {}", list(&wanted), list(&there));
    out.put(Plane::Rule, CompareResult::Different, place, text);
}

/// Returns the chains of policies and profiles to which a chain leads, also by groups.
fn sources<'a>(rules: &'a [FelixRule], table: &'a FelixTable) -> impl Iterator<Item = &'a str> {
    let group = move |target: &str| {
        let is_group = GROUPS.iter().any(|prefix| target.starts_with(prefix));
        table.chains.get(target).filter(|_| is_group)
    };
    let within = move |rule: &'a FelixRule| {
        let target = rule.target()?;
        Some(group(target).map_or(std::slice::from_ref(rule), Vec::as_slice))
    };
    let all = rules.iter().filter_map(within).flatten().filter_map(FelixRule::target);
    all.filter(|target| SOURCES.iter().any(|prefix| target.starts_with(prefix)))
}

/// Names of the chains of policies and profiles.
struct Names {
    /// The usual name by each possible one.
    usual: BTreeMap<String, String>,
}

impl Names {
    /// Returns the names of all chains of this host, of both directions: Felix writes both of an applied policy,
    /// even if only one is used.
    fn of(wanted: &HostIntent, backend: Backend) -> Self {
        let sources: BTreeSet<&Source> = wanted.ruleset.chains.keys().map(|id| &id.source).collect();
        let ids = sources.into_iter().flat_map(|source| {
            [Direction::Inbound, Direction::Outbound]
                .map(|direction| ChainId { source: source.clone(), direction })
        });
        let names = |id: ChainId| {
            let usual = name_of(backend, &id);
            names_of(backend, &id).into_iter().map(move |name| (name, usual.clone()))
        };
        Self { usual: ids.flat_map(names).collect() }
    }

    fn usual<'a>(&'a self, name: &'a str) -> &'a str {
        self.usual.get(name).map_or(name, String::as_str)
    }

    fn is_known(&self, name: &str) -> bool {
        self.usual.contains_key(name)
    }
}

/// Returns Felix's usual name for the chain of a policy or profile.
fn name_of(backend: Backend, id: &ChainId) -> String {
    let (prefix, name) = parts_of(id);
    chain_name(backend, prefix, name)
}

/// Returns all names that releases of Felix give to the chain of a policy or profile, the usual one first.
fn names_of(backend: Backend, id: &ChainId) -> Vec<String> {
    /// Prefix of names of policies of the tier `default` before 3.32.
    const DEFAULT: &str = "default.";
    let (prefix, name) = parts_of(id);
    let mut names = vec![name.to_owned()];
    if matches!(id.source, Source::Policy { .. }) {
        let plain = |name: &str| name.strip_prefix(DEFAULT).unwrap_or(name).to_owned();
        match name.split_once('/') {
            Some((namespace, of)) => {
                names.push(format!("np/{namespace}/{of}"));
                names.push(format!("np/{namespace}/{}", plain(of)));
            }
            None => names.extend([format!("gnp/{name}"), format!("gnp/{}", plain(name))]),
        }
    }
    names.iter().map(|name| chain_name(backend, prefix, name)).collect()
}

fn parts_of(id: &ChainId) -> (&'static str, &str) {
    match (&id.source, id.direction) {
        (Source::Policy { name, .. }, Direction::Inbound) => ("cali-pi-", name),
        (Source::Policy { name, .. }, Direction::Outbound) => ("cali-po-", name),
        (Source::Profile(name), Direction::Inbound) => ("cali-pri-", name),
        (Source::Profile(name), Direction::Outbound) => ("cali-pro-", name),
    }
}

/// Describes the first difference between two chains.
fn first_difference(ours: &[Line], theirs: &[Line]) -> String {
    let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let word = |line: Option<&Line>| line.map_or_else(|| "nothing".to_owned(), |line| format!("`{line}`"));
    format!("has as rule {}: {}, and should have: {}", same + 1, word(theirs.get(same)), word(ours.get(same)))
}

/// Compares the chains of policies and profiles: their presence, and their rules if these can be converted.
fn bodies(wanted: &HostIntent, names: &Names, table: &FelixTable, out: &mut Comparison) {
    let here: BTreeSet<&ChainId> = wanted
        .ruleset
        .endpoints
        .values()
        .flat_map(|policy| match &**policy {
            EndpointPolicy::Workload(w) => w.inbound.chains().chain(w.outbound.chains()),
            EndpointPolicy::Host(h) => h.inbound.chains().chain(h.outbound.chains()),
        })
        .collect();
    let early = wanted.ruleset.chains.keys().filter(|id| !here.contains(id)).count();
    if early > 0 {
        let text = format!(
            "{early} chains act before connection tracking or DNAT: the tables raw and mangle are not compared"
        );
        out.put(Plane::Rule, CompareResult::NotCompared, subject(table.v4, "raw, mangle"), text);
    }
    let ids: BTreeMap<String, &ChainId> = here.iter().map(|id| (name_of(table.backend, id), *id)).collect();
    let pass = pass_mark(table);
    for (name, id) in &ids {
        let place = subject(table.v4, name);
        let there = names_of(table.backend, id).into_iter().find_map(|name| table.chains.get(&name));
        match there {
            None => {
                out.put(Plane::Rule, CompareResult::Missing, place, format!("the chain of {}", id.source))
            }
            Some(rules) => {
                let chain = wanted.ruleset.chains.get(*id);
                let ours = chain.and_then(|chain| of_store(&chain.rules, table.v4));
                match (ours, of_felix(rules, pass, table.v4)) {
                    (Some(ours), Some(theirs)) if ours == theirs => out.equal(Plane::Rule),
                    (Some(ours), Some(theirs)) => {
                        let text = format!("the chain of {} {}", id.source, first_difference(&ours, &theirs));
                        out.put(Plane::Rule, CompareResult::Different, place, text);
                    }
                    _ => {
                        let text = format!(
                            "the chain of {} is there; its {} rules are not of the simple kind that is compared",
                            id.source,
                            rules.len()
                        );
                        out.put(Plane::Rule, CompareResult::NotCompared, place, text);
                    }
                }
            }
        }
    }
    for name in table.chains.keys() {
        if SOURCES.iter().any(|prefix| name.starts_with(prefix)) && !names.is_known(name) {
            let text = "a chain of a policy or profile that acts on no endpoint of this host";
            out.put(Plane::Rule, CompareResult::Extra, subject(table.v4, name), text);
        }
    }
}

/// Reports chains in several forms, because all filter packets.
fn twice(v4: bool, found: &ForeignState, out: &mut Comparison) {
    let all: Vec<&FelixTable> =
        found.felix.tables.iter().filter(|table| table.v4 == v4 && table.name == "filter").collect();
    if let [first, second, ..] = all.as_slice() {
        let less = (first.old, second.chains.len()) > (second.old, first.chains.len());
        let old = if less { first } else { second };
        let text = format!(
            "{} has chains of Felix, too, and they act on every packet: what an earlier Felix left",
            old.backend.tool(true)
        );
        out.put(Plane::Rule, CompareResult::Extra, subject(v4, old.backend.tool(true)), text);
    }
}

/// Compares the masquerading of pools.
fn nat(v4: bool, wanted: &HostIntent, found: &ForeignState, unread: &[&str], out: &mut Comparison) {
    let wants = wanted.globals.masquerade.iter().any(|pool| pool.is_v4() == v4);
    let there = found.felix.table(v4, "nat").is_some_and(|table| {
        let leads = |(chain, rule): &(String, _)| {
            let rule: &FelixRule = rule;
            chain == "POSTROUTING" && rule.target() == Some("cali-POSTROUTING")
        };
        table.hooks.iter().any(leads)
            && table.chains.get("cali-nat-outgoing").is_some_and(|rules| {
                rules.iter().any(|rule| matches!(rule.target(), Some("MASQUERADE" | "SNAT")))
            })
    });
    let place = subject(v4, "cali-nat-outgoing");
    match (wants, there) {
        (true, true) => out.equal(Plane::Rule),
        (false, false) => {}
        (true, false) if found.felix.has_old(v4, "nat") => {
            out.put(Plane::Rule, CompareResult::NotCompared, place, OLD);
        }
        (true, false) if !unread.is_empty() => {
            out.put(
                Plane::Rule,
                CompareResult::NotCompared,
                place,
                format!("the rules of {} could not be listed", unread.join(" and ")),
            );
        }
        (true, false) => out.put(
            Plane::Rule,
            CompareResult::Missing,
            place,
            "pools ask for masquerading, and no rule does it",
        ),
        (false, true) => out.put(
            Plane::Rule,
            CompareResult::Extra,
            place,
            "no pool asks for masquerading, and a rule does it",
        ),
    }
}
