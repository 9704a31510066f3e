//! Configuration of FRR for what its language can say: no match on interfaces, and no comparison of priorities.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::super::objects::Objects;
use super::bird::{PASSWORD, advertisements, disabled, enabled};
use super::filters::{PRIORITY_MAX, list};
use super::node::{Cluster, NodeValues, as_number, normal_priority, service_ranges};
use super::peers::{Session, sessions};

/// Tag of routes from peers.
const LEARNED: u32 = 1;

/// Returns true if FRR can say all that the sessions of a node need.
pub(crate) fn can_say(objects: &Objects, node: &str, sessions: &[Session]) -> bool {
    let plain = |rule: &Value| {
        let equal = matches!(rule["matchOperator"].as_str(), Some("Equal" | "NotEqual"));
        rule["interface"].is_null() && (rule["prefixLength"].is_null() || !equal)
    };
    let cluster = Cluster::of(objects);
    let own_as = cluster.as_of(cluster.node(node));
    // It refuses another local AS towards the host's own.
    let refused = |session: &Session| session.local_as.is_some() && session.asn == own_as;
    if sessions.iter().any(refused) {
        return false;
    }
    sessions.iter().all(|session| {
        [(&session.import, false), (&session.export, true)].into_iter().all(|(names, export)| {
            names.iter().all(|name| {
                let filter = objects.get("bgpfilters", name).unwrap();
                filter.spec(list(export, session.is_v6())).as_array().into_iter().flatten().all(plain)
            })
        })
    })
}

/// Lists and route maps, under construction.
#[derive(Default)]
struct Lines {
    lists: String,
    maps: String,
    count: usize,
}

/// An entry of a route map.
#[derive(Default)]
struct Entry {
    permits: bool,
    /// Continues with the next entry after its changes.
    goes_on: bool,
    lines: Vec<String>,
}

impl Lines {
    fn name(&mut self, kind: &str) -> String {
        self.count += 1;
        format!("{kind}{}", self.count)
    }

    fn map(&mut self, name: &str, entries: &[Entry]) {
        for (at, entry) in entries.iter().enumerate() {
            let action = if entry.permits { "permit" } else { "deny" };
            writeln!(self.maps, "route-map {name} {action} {}", 10 * (at + 1)).unwrap();
            for line in &entry.lines {
                writeln!(self.maps, " {line}").unwrap();
            }
            if entry.goes_on {
                self.maps += " on-match next\n";
            }
            self.maps += "exit\n";
        }
    }

    /// Returns the match of prefixes equal to or inside of a prefix, with lengths from `min` to `max`, or of all
    /// others.
    fn prefixes(&mut self, cidr: &str, min: u64, max: u64, negated: bool) -> String {
        let v6 = cidr.contains(':');
        let (ip, any) = if v6 { ("ipv6", "any") } else { ("ip", "any") };
        let own: u64 = cidr.rsplit_once('/').unwrap().1.parse().unwrap();
        let name = self.name("P");
        let lengths = match (min, max) {
            (min, max) if min == own && max == own => String::new(),
            (min, max) if min == own => format!(" le {max}"),
            (min, max) => format!(" ge {min} le {max}"),
        };
        let (yes, rest) = if negated { ("deny", "permit") } else { ("permit", "deny") };
        if min <= max {
            writeln!(self.lists, "{ip} prefix-list {name} seq 5 {yes} {cidr}{lengths}").unwrap();
        }
        writeln!(self.lists, "{ip} prefix-list {name} seq 10 {rest} {any}").unwrap();
        format!("match {ip} address prefix-list {name}")
    }

    fn inside(&mut self, cidr: &str) -> String {
        let own: u64 = cidr.rsplit_once('/').unwrap().1.parse().unwrap();
        self.prefixes(cidr, own, if cidr.contains(':') { 128 } else { 32 }, false)
    }

    fn equal(&mut self, cidr: &str) -> String {
        let own: u64 = cidr.rsplit_once('/').unwrap().1.parse().unwrap();
        self.prefixes(cidr, own, own, false)
    }

    /// Returns the entry of a rule; `None` if it is for sessions of the other kind.
    fn rule(&mut self, rule: &Value, internal: bool, v6: bool) -> Option<Entry> {
        let kind = rule["peerType"].as_str();
        if kind.is_some_and(|kind| (kind == "iBGP") != internal) {
            return None;
        }
        let mut lines = Vec::new();
        if let Some(cidr) = rule["cidr"].as_str() {
            let own: u64 = cidr.rsplit_once('/').unwrap().1.parse().unwrap();
            let longest = if v6 { 128 } else { 32 };
            let operator = rule["matchOperator"].as_str().unwrap();
            let exact = operator.ends_with("qual");
            let min = rule["prefixLength"]["min"].as_u64().map_or(own, |min| min.max(own));
            let max = rule["prefixLength"]["max"].as_u64().unwrap_or(if exact { own } else { longest });
            lines.push(self.prefixes(cidr, min, max, operator.starts_with("Not")));
        }
        if rule["source"] == "RemotePeers" {
            lines.push(format!("match tag {LEARNED}"));
        }
        if let Some(value) = rule["communities"]["values"][0].as_str() {
            let large = if value.matches(':').count() == 2 { "large-" } else { "" };
            let name = self.name("C");
            writeln!(self.lists, "bgp {large}community-list standard {name} permit {value}").unwrap();
            lines.push(format!("match {large}community {name}"));
        }
        if let Some(path) = rule["asPathPrefix"].as_array() {
            let path: Vec<String> = path.iter().map(|asn| as_number(asn).unwrap().to_string()).collect();
            let name = self.name("A");
            writeln!(self.lists, "bgp as-path access-list {name} permit ^{}_", path.join("_")).unwrap();
            lines.push(format!("match as-path {name}"));
        }
        if let Some(priority) = rule["priority"].as_u64() {
            lines.push(format!("match local-preference {}", PRIORITY_MAX - priority));
        }
        let (mut prepended, mut plain, mut large): (Vec<String>, Vec<&str>, Vec<&str>) = Default::default();
        for operation in rule["operations"].as_array().into_iter().flatten() {
            if let Some(value) = operation["addCommunity"]["value"].as_str() {
                if value.matches(':').count() == 2 { &mut large } else { &mut plain }.push(value);
            } else if let Some(path) = operation["prependASPath"]["prefix"].as_array() {
                let path = path.iter().map(|asn| as_number(asn).unwrap().to_string());
                prepended.splice(0..0, path);
            } else {
                let priority = operation["setPriority"]["value"].as_u64().unwrap();
                lines.retain(|line| !line.starts_with("set local-preference"));
                lines.push(format!("set local-preference {}", PRIORITY_MAX - priority));
            }
        }
        for (kind, values) in [("", plain), ("large-", large)] {
            if !values.is_empty() {
                lines.push(format!("set {kind}community {} additive", values.join(" ")));
            }
        }
        if !prepended.is_empty() {
            lines.push(format!("set as-path prepend {}", prepended.join(" ")));
        }
        Some(Entry { permits: rule["action"] == "Accept", goes_on: false, lines })
    }

    fn rules(&mut self, objects: &Objects, session: &Session, export: bool, internal: bool) -> Vec<Entry> {
        let mut entries = Vec::new();
        let v6 = session.is_v6();
        for name in if export { &session.export } else { &session.import } {
            let filter = objects.get("bgpfilters", name).unwrap();
            for rule in filter.spec(list(export, v6)).as_array().into_iter().flatten() {
                entries.extend(self.rule(rule, internal, v6));
            }
        }
        entries
    }
}

/// Returns the configuration of a node.
pub(crate) fn configuration(objects: &Objects, node: &str) -> String {
    let cluster = Cluster::of(objects);
    let own = cluster.node(node);
    let own_as = cluster.as_of(own);
    let mut lines = Lines::default();
    let mut router = format!(
        "router bgp {own_as}\n bgp router-id {}\n no bgp ebgp-requires-policy\n no bgp network import-check\n \
         no bgp default ipv4-unicast\n bgp bestpath compare-routerid\n",
        own.router_id()
    );
    if !own.cluster_id.is_empty() {
        // Without the second line, route maps change nothing of reflected routes.
        writeln!(router, " bgp cluster-id {}\n bgp route-reflector allow-outbound-policy", own.cluster_id)
            .unwrap();
    }
    let mut families = [String::new(), String::new()];
    for v6 in [false, true] {
        let name = format!("LOCAL{}", if v6 { 6 } else { 4 });
        let pref = PRIORITY_MAX - normal_priority(objects, v6);
        let set = vec![format!("set local-preference {pref}")];
        lines.map(&name, &[Entry { permits: true, goes_on: false, lines: set }]);
        for prefix in networks(objects, own, v6) {
            writeln!(families[usize::from(v6)], "  network {prefix} route-map {name}").unwrap();
        }
    }
    for (at, session) in sessions(&cluster, objects, node).iter().enumerate().filter(|(_, s)| s.asn != 0) {
        let internal = session.is_internal(own_as);
        let mut option = |text: String| writeln!(router, " neighbor {} {text}", session.address).unwrap();
        option(format!("remote-as {}", session.asn));
        option("timers connect 2".to_owned());
        option("disable-connected-check".to_owned());
        if let Some(port) = session.port {
            option(format!("port {port}"));
        }
        if let Some(asn) = session.local_as.filter(|asn| *asn != own_as) {
            option(format!("local-as {asn} no-prepend replace-as"));
        }
        if let Some(source) = session.source {
            option(format!("update-source {source}"));
        }
        match session.ttl_security {
            Some(hops) => option(format!("ttl-security hops {hops}")),
            None if !internal => option("ebgp-multihop 255".to_owned()),
            None => {}
        }
        if session.passive {
            option("passive".to_owned());
        }
        if session.password {
            option(format!("password {PASSWORD}"));
        }
        if let Some(time) = session.keepalive_time {
            option(format!("timers {time} 240"));
        }
        let family = &mut families[usize::from(session.is_v6())];
        let mut option = |text: String| writeln!(family, "  neighbor {} {text}", session.address).unwrap();
        option("activate".to_owned());
        option(format!("route-map IN{at} in"));
        option(format!("route-map OUT{at} out"));
        if session.client.is_some() {
            option("route-reflector-client".to_owned());
        }
        match session.next_hop {
            Some("self") => option("next-hop-self force".to_owned()),
            Some(_) => option("attribute-unchanged next-hop".to_owned()),
            None => {}
        }
        if let Some(count) = session.allow_local_as {
            option(format!("allowas-in {count}"));
        }
        let mut import = lines.rules(objects, session, false, internal);
        import.push(Entry { permits: true, ..Entry::default() });
        for entry in import.iter_mut().filter(|entry| entry.permits) {
            entry.lines.push(format!("set tag {LEARNED}"));
        }
        lines.map(&format!("IN{at}"), &import);
        let mut export = lines.rules(objects, session, true, internal);
        export.extend(export_rules(objects, own, session.is_v6(), &mut lines));
        // The next hop of a third party on the same link is not kept.
        if !internal && session.next_hop != Some("keep") {
            let ip = if session.is_v6() { "ipv6" } else { "ip" };
            let line = format!("set {ip} next-hop peer-address");
            export.iter_mut().filter(|entry| entry.permits).for_each(|entry| entry.lines.push(line.clone()));
        }
        lines.map(&format!("OUT{at}"), &export);
    }
    let [v4, v6] = families;
    format!(
        "bgp route-map delay-timer 0\n{}{}{router} address-family ipv4 unicast\n{v4} exit-address-family\n \
         address-family ipv6 unicast\n{v6} exit-address-family\nexit\n",
        lines.lists, lines.maps
    )
}

/// Returns the prefixes that the node has routes for by itself.
fn networks(objects: &Objects, own: &NodeValues, v6: bool) -> BTreeSet<String> {
    let blocks = objects.affinities(&own.name).into_iter().map(|(block, _)| block);
    let mut all: BTreeSet<String> =
        blocks.filter(|block| !block.ends_with("/32") && !block.ends_with("/128")).collect();
    for endpoint in
        objects.of("workloadendpoints").iter().filter(|endpoint| endpoint.text("node") == own.name)
    {
        all.extend(endpoint.texts("ipNetworks").into_iter().map(str::to_owned));
    }
    all.retain(|prefix| prefix.contains(':') == v6);
    all.extend(service_ranges(objects, own, v6).announced);
    all
}

fn export_rules(objects: &Objects, own: &NodeValues, v6: bool, lines: &mut Lines) -> Vec<Entry> {
    let mut entries = Vec::new();
    let entry = |permits: bool, line: String| Entry { permits, goes_on: false, lines: vec![line] };
    for cidr in disabled(objects, v6) {
        entries.push(entry(false, lines.inside(&cidr)));
    }
    for (cidr, communities) in advertisements(objects, &own.name, v6) {
        let (large, plain): (Vec<String>, Vec<String>) =
            communities.into_iter().partition(|value| value.matches(':').count() == 2);
        let mut all = vec![lines.inside(&cidr)];
        for (kind, values) in [("", plain), ("large-", large)] {
            if !values.is_empty() {
                all.push(format!("set {kind}community {} additive", values.join(" ")));
            }
        }
        entries.push(Entry { permits: true, goes_on: true, lines: all });
    }
    for (block, state) in objects.affinities(&own.name) {
        if block.contains(':') == v6 && matches!(state.as_str(), "" | "confirmed") {
            entries.push(entry(true, lines.equal(&block)));
            entries.push(entry(false, lines.inside(&block)));
        }
    }
    let ranges = service_ranges(objects, own, v6);
    let external = if own.cluster_id.is_empty() { Vec::new() } else { ranges.external };
    for cidr in ranges.announced.into_iter().chain(external).chain(enabled(objects, v6)) {
        entries.push(entry(true, lines.inside(&cidr)));
    }
    entries.push(Entry::default());
    entries
}
