//! Configuration of BIRD 2: one daemon with the sessions of both families, while Calico runs a BIRD 1.6 for each.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::objects::Objects;
use super::filters::{PRIORITY_MAX, add_community, function, functions};
use super::node::{Cluster, NodeValues, normal_priority, service_ranges};
use super::peers::{Session, sessions};

/// Password of all sessions that have one.
pub(crate) const PASSWORD: &str = "right";

/// Returns the configuration of a node.
pub(crate) fn configuration(objects: &Objects, node: &str) -> String {
    let cluster = Cluster::of(objects);
    let own = cluster.node(node);
    let default = objects.get("bgpconfigurations", "default");
    let ignored: Vec<String> = default
        .map(|default| default.texts("ignoredInterfaces"))
        .unwrap_or_default()
        .iter()
        .map(|i| format!("-\"{i}\", "))
        .collect();
    let mut text = format!(
        "log stderr all;\nrouter id {};\n{}\nprotocol device {{ scan time 2; }}\n\
         protocol direct {{ ipv4; ipv6; interface {}-\"cali*\", -\"kube-ipvs*\", \"*\"; }}\n",
        own.router_id(),
        functions(objects),
        ignored.concat(),
    );
    for v6 in [false, true] {
        let channel = if v6 { "ipv6" } else { "ipv4" };
        text += &export_rules(objects, own, v6);
        text += &format!(
            "protocol kernel kernel_{channel} {{ learn; persist; scan time 2; merge paths on; \
             {channel} {{ import all; export none; }}; }}\n"
        );
        text += &format!(
            "protocol static static_{channel} {{ {channel};\n{}}}\n",
            statics(&cluster, objects, own, v6)
        );
    }
    for session in sessions(&cluster, objects, node).iter().filter(|session| session.asn != 0) {
        text += &protocol(&cluster, objects, own, session);
    }
    text
}

fn statics(cluster: &Cluster, objects: &Objects, own: &NodeValues, v6: bool) -> String {
    let mut blackholes: BTreeSet<String> = objects
        .affinities(&own.name)
        .into_iter()
        .map(|(block, _)| block)
        .filter(|block| block.contains(':') == v6 && !block.ends_with(if v6 { "/128" } else { "/32" }))
        .collect();
    blackholes.extend(service_ranges(objects, own, v6).announced);
    let mut text: String = blackholes.iter().map(|cidr| format!("  route {cidr} blackhole;\n")).collect();
    let sessions = sessions(cluster, objects, &own.name);
    let mut gateways = BTreeSet::new();
    for session in sessions.iter().filter(|session| session.is_v6() == v6) {
        if let Some(gateway) = &session.reachable_by {
            gateways.insert((session.address, gateway.clone()));
        }
    }
    for (address, gateway) in gateways {
        text += &format!("  route {address}/{} via {gateway};\n", if v6 { 128 } else { 32 });
    }
    text
}

/// Returns the pools of a family whose routes are not exported.
pub(crate) fn disabled(objects: &Objects, v6: bool) -> BTreeSet<String> {
    pools(objects, v6, true)
}

/// Returns the other pools of a family.
pub(crate) fn enabled(objects: &Objects, v6: bool) -> BTreeSet<String> {
    pools(objects, v6, false)
}

fn pools(objects: &Objects, v6: bool, disabled: bool) -> BTreeSet<String> {
    let all = objects.of("ippools").into_iter();
    let fits = all.filter(|pool| (pool.spec("disableBGPExport") == &Value::Bool(true)) == disabled);
    fits.map(|pool| pool.text("cidr").to_owned()).filter(|cidr| cidr.contains(':') == v6).collect()
}

/// Returns the advertisements of a node in a family: prefixes with their communities.
pub(crate) fn advertisements(objects: &Objects, node: &str, v6: bool) -> Vec<(String, BTreeSet<String>)> {
    let of = |name: &str| {
        objects.get("bgpconfigurations", name).filter(|c| c.spec("prefixAdvertisements").is_array())
    };
    let Some(configuration) = of(&format!("node.{node}")).or_else(|| of("default")) else {
        return Vec::new();
    };
    let named = configuration.spec("communities").as_array().cloned().unwrap_or_default();
    let value = |text: &str| -> Option<String> {
        if text.contains(':') {
            return Some(text.to_owned());
        }
        let found = named.iter().find(|community| community["name"] == text)?;
        Some(found["value"].as_str()?.to_owned())
    };
    let list = configuration.spec("prefixAdvertisements").as_array().cloned().unwrap_or_default();
    let cidr = |one: &Value| one["cidr"].as_str().unwrap_or_default().to_owned();
    let communities = |one: &Value| -> BTreeSet<String> {
        let texts = one["communities"].as_array().cloned().unwrap_or_default();
        texts.iter().filter_map(|text| value(text.as_str()?)).collect()
    };
    let all = list.iter().map(|one| (cidr(one), communities(one)));
    all.filter(|(cidr, _)| cidr.contains(':') == v6).collect()
}

/// Returns the function with the export rules that all sessions of a family have.
fn export_rules(objects: &Objects, own: &NodeValues, v6: bool) -> String {
    let default = objects.get("bgpconfigurations", "default");
    let mut rules = String::new();
    for cidr in disabled(objects, v6) {
        rules += &format!("  if (net ~ {cidr}) then reject;\n");
    }
    let by_bird =
        matches!(default.map(|d| d.text("programClusterRoutes")), Some("Enabled" | "EnabledIPIPOnly"));
    let ipip = if by_bird { "" } else { " || (ifname ~ \"tunl0\")" };
    rules += &format!(
        "  if (same_as) then {{ if (defined(ifname)) then {{ \
         if ((ifname ~ \"*.cali\") || (ifname ~ \"*.calico\"){ipip}) then reject; }} }}\n  \
         if (defined(ifname)) then {{ if (ifname ~ \"bpf*.cali\") then reject; }}\n"
    );
    for (cidr, communities) in advertisements(objects, &own.name, v6) {
        let adds: String = communities.iter().map(|community| add_community(community)).collect();
        if !adds.is_empty() {
            rules += &format!("  if (net ~ {cidr}) then {{ {adds} }}\n");
        }
    }
    let normal = normal_priority(objects, v6);
    for (block, state) in objects.affinities(&own.name) {
        if block.contains(':') == v6 && matches!(state.as_str(), "" | "confirmed") {
            rules += &format!(
                "  if (net = {block}) then accept;\n  if (net ~ {block} && krt_metric < {normal}) then accept;\n  \
                 if (net ~ {block}) then reject;\n"
            );
        }
    }
    let ranges = service_ranges(objects, own, v6);
    let external = if own.cluster_id.is_empty() { Vec::new() } else { ranges.external };
    for cidr in ranges.announced.into_iter().chain(external).chain(enabled(objects, v6)) {
        rules += &format!("  if (net ~ {cidr}) then accept;\n");
    }
    format!("function export_rules_{}(bool same_as) {{\n{rules}}}\n", if v6 { 6 } else { 4 })
}

fn protocol(cluster: &Cluster, objects: &Objects, own: &NodeValues, session: &Session) -> String {
    let v6 = session.is_v6();
    let own_as = cluster.as_of(own);
    let internal = session.is_internal(own_as);
    let normal = normal_priority(objects, v6);
    let calls = |names: &[String], export: bool| -> String {
        names.iter().map(|name| format!("      {}({internal});\n", function(name, export, v6))).collect()
    };
    let mut options = String::new();
    let mut option = |text: String| options += &format!("  {text};\n");
    let listen = cluster.port_of(own).unwrap_or(179);
    let address = session.source.map_or_else(String::new, |address| format!("{address} "));
    option(format!("local {address}port {listen} as {}", session.local_as.unwrap_or(own_as)));
    let port = session.port.map_or_else(String::new, |port| format!(" port {port}"));
    option(format!("neighbor {}{port} as {}", session.address, session.asn));
    match session.ttl_security {
        Some(hops) => option(format!("ttl security on; multihop {hops}")),
        None => option("ttl security off; multihop".to_owned()),
    }
    if session.passive {
        option("passive on".to_owned());
    }
    option(
        "graceful restart on; connect delay time 2; connect retry time 5; error wait time 5, 30".to_owned(),
    );
    for (name, value) in [
        ("graceful restart time", session.restart_time),
        ("keepalive time", session.keepalive_time),
        ("allow local as", session.allow_local_as),
    ] {
        if let Some(value) = value {
            option(format!("{name} {value}"));
        }
    }
    if let Some(id) = &session.client {
        option(format!("rr client; rr cluster id {id}"));
    }
    if session.password {
        option(format!("password \"{PASSWORD}\""));
    }
    let next_hop = session.next_hop.map_or_else(String::new, |mode| format!("next hop {mode};"));
    format!(
        "protocol bgp '{}' {{\n{options}  {} {{\n    gateway recursive; add paths on; {next_hop}
    import filter {{\n{}      if (defined(bgp_local_pref) && bgp_local_pref > {}) then preference = 200;\n      accept;\n    }};
    export filter {{
      if (defined(source) && source = RTS_BGP && defined(bgp_local_pref)) then {{
        krt_metric = {PRIORITY_MAX} - bgp_local_pref;
      }} else {{
        if (!defined(krt_metric)) then krt_metric = {normal};
        bgp_local_pref = {PRIORITY_MAX} - krt_metric;
      }}\n{}      export_rules_{}({internal});\n      reject;\n    }};\n  }};\n}}\n",
        session.name,
        if v6 { "ipv6" } else { "ipv4" },
        calls(&session.import, false),
        PRIORITY_MAX - normal,
        calls(&session.export, true),
        if v6 { 6 } else { 4 },
    )
}
