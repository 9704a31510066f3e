//! BGPFilters as functions of BIRD, and the other parts of its filters.

use serde_json::Value;

use super::super::objects::Objects;
use super::node::as_number;

/// The value that LOCAL_PREF and metric add up to.
pub(crate) const PRIORITY_MAX: u64 = 2_147_483_647;

/// Returns the member of a BGPFilter with the rules of this direction and family.
pub(crate) fn list(export: bool, v6: bool) -> &'static str {
    match (export, v6) {
        (true, false) => "exportV4",
        (true, true) => "exportV6",
        (false, false) => "importV4",
        (false, true) => "importV6",
    }
}

/// Returns the name of the function of a filter.
pub(crate) fn function(name: &str, export: bool, v6: bool) -> String {
    let direction = if export { "export" } else { "import" };
    format!("'bgp_{name}_{direction}FilterV{}'", if v6 { 6 } else { 4 })
}

/// Returns the functions of all filters.
pub(crate) fn functions(objects: &Objects) -> String {
    let mut text = String::new();
    for filter in objects.of("bgpfilters") {
        for (export, v6) in [(false, false), (true, false), (false, true), (true, true)] {
            let rules = filter.spec(list(export, v6)).as_array().cloned().unwrap_or_default();
            text += &format!("function {}(bool same_as) {{\n", function(filter.name, export, v6));
            for rule in &rules {
                text += &format!("  {}\n", rule_text(rule, v6));
            }
            text += "}\n";
        }
    }
    text
}

fn rule_text(rule: &Value, v6: bool) -> String {
    let mut matches: Vec<String> = Vec::new();
    let text = |member: &str| rule[member].as_str();
    if let Some(cidr) = text("cidr") {
        matches.push(format!(
            "net {} {}",
            operator(text("matchOperator").unwrap()),
            prefixes(cidr, rule, v6)
        ));
    }
    if text("source") == Some("RemotePeers") {
        matches.push("defined(source) && source ~ [ RTS_BGP ]".to_owned());
    }
    if let Some(interface) = text("interface") {
        matches.push(format!("defined(ifname) && ifname ~ \"{interface}\""));
    }
    if let Some(community) = rule["communities"]["values"][0].as_str() {
        let (value, attribute) = community_of(community);
        matches.push(format!("{value} ~ {attribute}"));
    }
    if let Some(path) = rule["asPathPrefix"].as_array() {
        let path: Vec<String> = path.iter().map(|asn| as_number(asn).unwrap().to_string()).collect();
        matches.push(format!("bgp_path ~ [= {} * =]", path.join(" ")));
    }
    if let Some(priority) = rule["priority"].as_u64() {
        matches.push(format!("defined(bgp_local_pref) && bgp_local_pref = {}", PRIORITY_MAX - priority));
    }
    let mut body: String = rule["operations"].as_array().into_iter().flatten().map(operation).collect();
    body += if rule["action"] == "Accept" { "accept;" } else { "reject;" };
    let matches: Vec<String> = matches.iter().map(|m| format!("({m})")).collect();
    let body = match matches.is_empty() {
        true => body,
        false => format!("if ({}) then {{ {body} }}", matches.join(" && ")),
    };
    match text("peerType") {
        Some("iBGP") => format!("if (same_as) then {{ {body} }}"),
        Some("eBGP") => format!("if (!same_as) then {{ {body} }}"),
        _ => body,
    }
}

fn operator(name: &str) -> &'static str {
    match name {
        "Equal" => "=",
        "NotEqual" => "!=",
        "In" => "~",
        "NotIn" => "!~",
        other => panic!("{other}"),
    }
}

/// Returns the right side of a match: a prefix, or a set of prefixes with their lengths.
fn prefixes(cidr: &str, rule: &Value, v6: bool) -> String {
    let length = &rule["prefixLength"];
    if length.is_null() {
        return cidr.to_owned();
    }
    let own: u64 = cidr.rsplit_once('/').unwrap().1.parse().unwrap();
    let longest = if v6 { 128 } else { 32 };
    let min = length["min"].as_u64().map_or(own, |min| min.max(own));
    let max = length["max"].as_u64().map_or(longest, |max| max.min(longest));
    format!("[ {cidr}{{{min},{max}}} ]")
}

/// Returns a community as BIRD writes it, and the attribute that has it.
fn community_of(text: &str) -> (String, &'static str) {
    let parts: Vec<&str> = text.split(':').collect();
    let attribute = if parts.len() == 2 { "bgp_community" } else { "bgp_large_community" };
    (format!("({})", parts.join(", ")), attribute)
}

/// Returns the statement that adds a community.
pub(crate) fn add_community(text: &str) -> String {
    let (value, attribute) = community_of(text);
    format!("{attribute}.add({value}); ")
}

fn operation(operation: &Value) -> String {
    if let Some(community) = operation["addCommunity"]["value"].as_str() {
        return add_community(community);
    }
    if let Some(path) = operation["prependASPath"]["prefix"].as_array() {
        // The last one that is prepended is the first of the path.
        let path = path.iter().rev().map(|asn| as_number(asn).unwrap());
        return path.map(|asn| format!("bgp_path.prepend({asn}); ")).collect();
    }
    format!("bgp_local_pref = {}; ", PRIORITY_MAX - operation["setPriority"]["value"].as_u64().unwrap())
}
