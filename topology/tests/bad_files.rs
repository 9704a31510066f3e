//! Errors in lab files are reported with file, line, place and next step.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::path::Path;

use serde_json::{Value, json};
use tortie_topology::Lab;

/// Returns a file with two nodes and the given rest of the topology.
fn two(rest: &str) -> String {
    format!("name: t\ntopology:\n  nodes:\n    a: {{kind: linux}}\n    b: {{kind: linux}}\n{rest}")
}

fn links(list: &str) -> String {
    two(&format!("  links:\n{list}"))
}

fn node(keys: &str) -> String {
    format!("name: t\ntopology:\n  nodes:\n    a:\n      kind: linux\n{keys}")
}

fn refused(text: &str, want: &str) {
    let got = match Lab::from_text(text, Path::new("/lab/t.clab.yml")) {
        Ok(_) => "accepted".to_owned(),
        Err(e) => e.to_string(),
    };
    assert_eq!(got, format!("/lab/t.clab.yml{want}"), "for\n{text}");
}

#[test]
fn documents() {
    refused(
        "name: t\ntopology: {nodes: {a: {kind: linux}\n",
        ":3: did not find expected ',' or '}'; the file is not YAML from here on: look at indentation, colons and quotes",
    );
    refused("topology: {nodes: {a: {kind: linux}}}\n", ":1: `name` is missing; add `name:`");
    refused("name: t\ntopology: {nodes: {}}\n", ":2: topology.nodes: there is no node; add one");
    refused(
        "name: -t\ntopology: {nodes: {a: {kind: linux}}}\n",
        ":1: name: `-t` is no name; use up to 64 letters, digits, `-`, `_` and `.`, beginning with a letter or digit",
    );
    refused(
        "name: t\nversion: 3\ntopology: {nodes: {a: {kind: linux}}}\n",
        ":2: version: unknown key `version`; known keys: name, prefix, topology, mgmt, settings, debug",
    );
    refused(
        "name: t\ntopology: {nodes: {a: {image: \"x:${NOBODY_SETS_THIS}\"}}}\n",
        ":2: the variable NOBODY_SETS_THIS is not set; set NOBODY_SETS_THIS, write ${NOBODY_SETS_THIS:-default}, or $$ for a plain $",
    );
    refused(
        "name: t\ntopology: {nodes: {a: {image: \"x:${TAG\"}}}\n",
        ":2: `${TAG\"` is not closed; add the `}`",
    );
}

#[test]
fn nodes() {
    refused(
        "name: t\ntopology:\n  nodes:\n    a:\n      image: x\n",
        ":4: topology.nodes.a: `kind` is missing; write kind: linux",
    );
    refused(
        &node("      cmdd: sleep 1\n"),
        ":6: topology.nodes.a.cmdd: unknown key `cmdd`; did you mean `cmd`?",
    );
    refused(
        &node("      startup_delay: 1\n"),
        ":6: topology.nodes.a.startup_delay: unknown key `startup_delay`; did you mean `startup-delay`?",
    );
    refused(
        "name: t\ntopology:\n  nodes:\n    a: {kind: nokia_srlinux}\n",
        ":4: topology.nodes.a.kind: nodes of kind `nokia_srlinux` cannot be built from namespaces; use linux, bridge or host, or run this file under containerlab",
    );
    refused(
        "name: t\ntopology:\n  nodes:\n    a: {kind: linux}\n    a: {kind: linux}\n",
        ":4: topology.nodes: `a` stands twice; remove or rename one of the two",
    );
    refused(
        &node("      group: spines\n"),
        ":6: topology.nodes.a.group: there is no group `spines`; add it to topology.groups",
    );
    refused(
        &node("      network-mode: host\n"),
        ":6: topology.nodes.a.network-mode: network-mode host cannot be built from namespaces; use none, or kind: host for the machine's own network",
    );
    refused(
        &node("      user: nobody\n"),
        ":6: topology.nodes.a.user: nodes run as root here, not as user nobody; remove `user`",
    );
    refused(
        &node("      cmd: sh -c 'oops\n"),
        ":6: topology.nodes.a.cmd: a ' is not closed in `sh -c 'oops`; close it",
    );
    refused(
        &node("      binds: [\"conf:etc/x\"]\n"),
        ":6: topology.nodes.a.binds: the target `etc/x` is no absolute path below /; write SOURCE:/PATH/IN/NODE",
    );
    refused(
        &node("      binds: [\"conf:/etc/../x\"]\n"),
        ":6: topology.nodes.a.binds: the target `/etc/../x` is no absolute path below /; write SOURCE:/PATH/IN/NODE",
    );
    refused(
        &node("      binds: [\"conf:/x:rx\"]\n"),
        ":6: topology.nodes.a.binds: unknown bind option `rx`; use ro or rw",
    );
    refused(
        &node("      binds: [conf]\n"),
        ":6: topology.nodes.a.binds: `conf` is no bind; write SOURCE:TARGET or SOURCE:TARGET:ro",
    );
    refused(
        &node("      volumes: [data:/x]\n"),
        ":6: topology.nodes.a.volumes: Docker's volume data:/x cannot be built from namespaces; use `binds`",
    );
    refused(
        &node("      sysctls: {kernel.hostname: x}\n"),
        ":6: topology.nodes.a.sysctls: `kernel.hostname` is no setting of a node's network; use names that begin with net.",
    );
    refused(
        &node("      healthcheck: {test: [sleep]}\n"),
        ": topology.nodes.a.healthcheck.test: `test` is no command; write [CMD, program, ...] or [CMD-SHELL, \"command\"]",
    );
    refused(
        &node("      exec: ip\n"),
        ":6: topology.nodes.a.exec: invalid type: string \"ip\", expected a sequence; see https://containerlab.dev/manual/topo-def-file/",
    );
}

#[test]
fn names_with_a_meaning() {
    refused(
        "name: t\ntopology:\n  nodes:\n    host:\n      kind: linux\n",
        ":4: topology.nodes.host: in links `host` means something else than a node; give the node another name",
    );
}

#[test]
fn stages() {
    let wait = |list: &str| node(&format!("      stages: {{create: {{wait-for: [{list}]}}}}\n"));
    refused(
        &wait("{node: c, stage: create}"),
        ":6: topology.nodes.a.stages.create.wait-for: there is no node `c`; name a node",
    );
    refused(
        &wait("{node: a, stage: create}"),
        ": topology.nodes.a.stages.create.wait-for: a waits for itself; name another node",
    );
    refused(
        &wait("{node: b, stage: ready}"),
        ":6: topology.nodes.a.stages.create.wait-for: there is no stage `ready`; use create, create-links, configure, healthy or exit",
    );
    refused(
        &(wait("{node: b, stage: healthy}") + "    b: {kind: linux}\n"),
        ": topology.nodes.a.stages.create.wait-for: b has no health check and would never be healthy; give it `healthcheck`, or wait for configure",
    );
    refused(
        &node("      stages: {create: {exec: {on-enter: [ls]}}}\n"),
        ": topology.nodes.a.stages.create.exec: nothing can run in a node before it exists; use on-exit of create, or on-enter of create-links",
    );
}

#[test]
fn what_the_schema_lets_pass_in_links() {
    refused(
        &links("    - {endpoints: [\"a:eth1\"]}\n"),
        ":7: topology.links[0].endpoints: a link has two ends, this one has 1; write endpoints: [\"NODE:INTERFACE\", \"NODE:INTERFACE\"]",
    );
    refused(
        &links("    - {endpoints: [\"a:eth1\", \"c:eth1\"]}\n"),
        ":7: topology.links[0]: there is no node `c`; did you mean `a`?",
    );
    refused(
        &links("    - {endpoints: [\"a:eth1\", \"router:eth1\"]}\n"),
        ":7: topology.links[0]: there is no node `router`; add `router:` to topology.nodes",
    );
    refused(
        &links("    - {endpoints: [\"a:eth1\", \"b:eth1\"]}\n    - {endpoints: [\"a:eth1\", \"b:eth2\"]}\n"),
        ": topology.links[1]: a:eth1 is already an end of topology.links[0]; give each link an interface of its own",
    );
    refused(
        &links("    - {endpoints: [\"a:eth1\", \"a:eth1\"]}\n"),
        ":7: topology.links[0]: a:eth1 is already an end of topology.links[0]; give each link an interface of its own",
    );
    refused(
        &links("    - {endpoints: [\"a:eth0\", \"b:eth1\"]}\n"),
        ":7: topology.links[0]: a:eth0: eth0 belongs to the node itself; begin with eth1 (eth0 is containerlab's management interface)",
    );
    refused(
        &links("    - {endpoints: [\"a:a-very-long-name\", \"b:eth1\"]}\n"),
        ":7: topology.links[0]: `a-very-long-name` is no interface name; use 1 to 15 characters without `/` and spaces",
    );
    refused(
        &links("    - {endpoints: [\"a\", \"b:eth1\"]}\n"),
        ": topology.links[0]: `a` is no end of a link; write NODE:INTERFACE",
    );
    refused(
        &links("    - {endpoints: [\"a:eth1\", \"b:eth1\"], mtu: 20}\n"),
        ": topology.links[0].mtu: mtu 20 is out of range; write 68 to 65535",
    );
    refused(
        &links(
            "    - {type: vxlan, endpoint: {node: a, interface: eth1}, remote: 10.0.0.1, vni: 1, dst-port: 4789}\n",
        ),
        ":7: topology.links[0].type: links of type vxlan cannot be built from namespaces; use veth, dummy or host, or run this file under containerlab",
    );
    refused(
        &links("    - {endpoints: [\"a:eth1\", \"mgmt-net:x\"]}\n"),
        ":7: topology.links[0]: `mgmt-net` ends cannot be built from namespaces; link two nodes, or run this file under containerlab",
    );
}

#[test]
fn addresses() {
    let v4 = |list: &str| links(&format!("    - {{endpoints: [\"a:eth1\", \"b:eth1\"], ipv4: [{list}]}}\n"));
    refused(
        &v4("10.0.0.1"),
        ":7: topology.links[0].ipv4: `10.0.0.1` is no address with a prefix length; write it as 10.0.0.1/24",
    );
    refused(
        &v4("10.0.0.1/33"),
        ":7: topology.links[0].ipv4: prefix length 33 is out of range: 0 to 32; write it as 10.0.0.1/24",
    );
    refused(
        &v4("10.0.0.0/24"),
        ":7: topology.links[0].ipv4: 10.0.0.0 is the network address of its prefix, no host's; write it as 10.0.0.1/24",
    );
    refused(
        &v4("10.0.0.255/24"),
        ":7: topology.links[0].ipv4: 10.0.0.255 is the broadcast address of its prefix, no host's; write it as 10.0.0.1/24",
    );
    refused(
        &v4("224.0.0.5/24"),
        ":7: topology.links[0].ipv4: 224.0.0.5 cannot be an interface's address; write it as 10.0.0.1/24",
    );
    refused(
        &v4("\"2001:db8::1/64\""),
        ":7: topology.links[0].ipv4: 2001:db8::1/64 is not of the family that this key is for; write it as 10.0.0.1/24",
    );
    refused(
        &v4("10.0.0.1/24, 10.0.0.1/24"),
        ":7: topology.links[0]: both ends have the address 10.0.0.1; give each end its own",
    );
    let full = |keys: &str| {
        links(&format!(
            "    - {{type: veth, endpoints: [{{node: a, interface: eth1, {keys}}}, {{node: b, interface: eth1}}]}}\n"
        ))
    };
    refused(
        &full("mac: \"02:00:00:00:00\""),
        ":7: topology.links[0]: `02:00:00:00:00` is no hardware address; write six octets such as 02:00:00:00:00:01",
    );
    refused(
        &full("mac: \"01:00:00:00:00:01\""),
        ":7: topology.links[0]: 01:00:00:00:00:01 is a group address; make the first octet even, such as 02:00:00:00:00:01",
    );
    refused(
        &links(
            "    - {endpoints: [\"a:eth1\", \"b:eth1\"], ipv4: [10.0.0.1/24]}\n    - {endpoints: [\"a:eth2\", \"b:eth2\"], ipv4: [10.0.0.1/16]}\n",
        ),
        ": topology.links[1]: 10.0.0.1/16 is already the address of a:eth1; give each interface its own address",
    );
    // A /31 has neither a network nor a broadcast address (RFC 3021).
    assert!(Lab::from_text(&v4("10.0.0.0/31, 10.0.0.1/31"), Path::new("t")).is_ok());
}

/// Keys of a node that have an effect; other tests check their values by that effect.
const WITH_EFFECT: &[&str] = &[
    "kind",
    "group",
    "image",
    "entrypoint",
    "cmd",
    "exec",
    "binds",
    "volumes",
    "tmpfs",
    "env",
    "env-files",
    "sysctls",
    "hostname",
    "user",
    "network-mode",
    "pid-mode",
    "startup-delay",
    "stages",
    "healthcheck",
];

/// Returns a file with the given value at one place.
type FileWith = Box<dyn Fn(&Value) -> Value>;

/// Values of every type, including some that the schema accepts or narrowly rejects.
fn values() -> Vec<Value> {
    let text = r#"[
        null, true, 5, 0, -1, 1.5, 70000, "", "x", "5", "always", "no", "unless-stopped", "docker", "host", "private", "live",
        "10.0.0.1", "10.0.0.0/24", "10.0.0.256", "auto", "fd00::1", "fd00::/64", "64MB", "1.5 gib", "64 parsec", "vepa",
        [], [5], [null], ["a"], ["a", "b"], ["a", "a"], ["80"], ["80:80"], ["127.0.0.1:53:53/udp"], ["80-90:80/tcp"], ["80-90:80-90/tcp"], ["80:x"],
        ["99999:80"], ["80:80/icmp"], [{}], [{"slot": 1}], [{"slot": 0}], [{"slot": "Z"}], [{"x": 1}], [{"slot": 1, "mda": 5}],
        [{"slot": 1, "mda": [{"slot": 1}]}], [{"slot": 1, "env": {"A": "b", "C": 1, "D": true}}], [{"slot": 1, "env": {"A": []}}],
        {}, {"a": "b"}, {"a": 5}, {"a": true}, {"a": -5}, {"a": ""}, {"a": null}, {"a": []},
        {"username": "u"}, {"username": 5}, {"vars": {"a": [1]}}, {"vars": 5}, {"issue": true}, {"issue": 5}, {"network": "n"}, {"network": 5}, {"mtu": 1400}, {"mtu": 0}, {"sans": ["a"]}, {"sans": "a"},
        {"sans": ["a", "a"]}, {"key-size": 2048}, {"key-size": "2048"}, {"validity-duration": "1h"}, {"validity-duration": 1},
        {"servers": ["9.9.9.9"]}, {"servers": "9.9.9.9"}, {"search": []}, {"options": [1]}, {"nameservers": []},
        {"ceos-copy-to-flash": ["f"]}, {"ceos-copy-to-flash": []}, {"ceos-copy-to-flash": "f"}, {"cert": "c", "key": "k"}, {"cert": "c"},
        {"cert": "c", "key": "k", "key-size": 5}, {"certificate-authority": {"cert": "c", "key": "k"}},
        {"certificate-authority": {"cert": 5, "key": "k"}}, {"certificate-authority": {}}, {"certificate-authority": {"key-size": 5}}
    ]"#;
    serde_json::from_str(text).unwrap()
}

/// For a key without effect, a file is rejected exactly if containerlab's own schema rejects it.
#[test]
fn values_without_effect_are_those_of_containerlabs_schema() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/clab.schema.json"))
        .unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    let referee = jsonschema::validator_for(&schema).unwrap();
    let keys = |of: &Value| -> Vec<String> { of.as_object().unwrap().keys().cloned().collect() };
    let node = keys(&schema["definitions"]["node-config"]["properties"]);
    let mgmt = keys(&schema["properties"]["mgmt"]["properties"]);
    let mut files: Vec<(String, FileWith)> = Vec::new();
    let base =
        || json!({"name": "t", "topology": {"nodes": {"a": {"kind": "linux"}, "b": {"kind": "linux"}}}});
    for key in node.into_iter().filter(|key| !WITH_EFFECT.contains(&key.as_str())) {
        for level in ["nodes/a", "defaults", "kinds/linux", "groups/g"] {
            let at = key.clone();
            let make = move |value: &Value| {
                let mut file = base();
                let place = level.split('/').fold(&mut file["topology"], |place, part| &mut place[part]);
                place[at.as_str()] = value.clone();
                file
            };
            files.push((format!("topology.{level}.{key}"), Box::new(make)));
        }
    }
    for key in mgmt {
        let at = key.clone();
        let make = move |value: &Value| {
            let mut file = base();
            file["mgmt"][at.as_str()] = value.clone();
            file
        };
        files.push((format!("mgmt.{key}"), Box::new(make)));
    }
    for key in ["mgmt", "settings", "debug"] {
        let make = move |value: &Value| {
            let mut file = base();
            file[key] = value.clone();
            file
        };
        files.push((key.to_owned(), Box::new(make)));
    }
    let link = move |extra: Value| {
        let mut link = json!({"type": "veth", "endpoints": [{"node": "a", "interface": "e1"}, {"node": "b", "interface": "e1"}]});
        link.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let mut file = base();
        file["topology"]["links"] = json!([link]);
        file
    };
    files.push(("link.vars".to_owned(), Box::new(move |value| link(json!({"vars": value})))));
    files.push(("link.labels".to_owned(), Box::new(move |value| link(json!({"labels": value})))));
    let end = move |value: &Value| {
        let first = json!({"node": "a", "interface": "e1", "vars": value});
        link(json!({"endpoints": [first, {"node": "b", "interface": "e1"}]}))
    };
    files.push(("link.endpoints.vars".to_owned(), Box::new(end)));
    let (values, mut wrong, mut refused) = (values(), Vec::new(), 0);
    for (place, make) in &files {
        let mut taken = 0;
        for value in &values {
            // The schema requires an address, while containerlab's documentation and its own example use a
            // network.
            if place == "mgmt.ipv6-range" && value == "fd00::/64" {
                continue;
            }
            let file = make(value);
            let by_schema = referee.is_valid(&file);
            let ours = Lab::from_text(&file.to_string(), Path::new("/lab/t.clab.yml"));
            taken += usize::from(by_schema);
            refused += usize::from(!by_schema);
            match ours {
                Ok(_) if !by_schema => wrong.push(format!("{place}: {value} is taken")),
                Err(error) if by_schema => wrong.push(format!("{place}: {value} is refused: {error}")),
                _ => {}
            }
        }
        assert!(taken > 0, "no value of the test is one for {place}");
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), files.len() * values.len(), wrong.join("\n"));
    println!("{} values at {} places, {refused} refused, as the schema has them", values.len(), files.len());
}

#[test]
fn wrong_values_without_effect_are_named_with_their_place() {
    refused(
        &node("      ports: 80\n"),
        ":6: topology.nodes.a.ports: invalid type: integer `80`, expected a list; see https://containerlab.dev/manual/topo-def-file/",
    );
    refused(
        &node("      restart-policy: sometimes\n"),
        ":6: topology.nodes.a.restart-policy: `sometimes` is not no, on-failure, always or unless-stopped; see https://containerlab.dev/manual/topo-def-file/",
    );
}
