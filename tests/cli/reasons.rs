//! Reasons for which a route is not used or not announced, chosen by a printed seed: `status` reports each,
//! and the command that `status` names shows it. A scripted BGP speaker on the loopback causes it.
//!
//! Reasons that need a kernel are rows of tests/agent/life/faults.rs.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tortie::api::codes::{EXPORT_REASONS, IMPORT_REASONS, KERNEL_REASONS};

use crate::agent::Agent;
use crate::common::command::{stderr, stdout};
use crate::common::concurrency::uninterrupted;

const OURS: u32 = 64_512;
const THEIRS: u32 = 65_001;
const SENDER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const TAKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// Next hop of the announcements, which no host here has.
const HOP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const OUTSIDE: &[u8] = &[24, 203, 0, 113];
const IN_POOL: &[u8] = &[26, 10, 244, 5, 0];

/// Gates that announce, and one that this agent never reports: it always configures a policy for its peers.
const NO_FAULT: &[&str] = &["own-block", "advertised", "pool", "no_policy"];
/// Reasons of a Calico 3 store, which an agent only observes: covered by the tests of routing.
const OF_CALICO_3: &[&str] = &["disable-bgp-export", "tunnel-device", "service-range", "reflected-range"];
/// Covered by tests/agent/life/faults.rs; the last four by the tests of routing, since an agent announces no
/// service ranges, writes its host's network, and has no VXLAN and no routes of the store here.
const IN_KERNEL: &[&str] =
    &["unresolved", "no-tunnel", "foreign-route", "service-range", "no-network", "ipip-pool", "vxlan-pool"];

/// A fault of a whole UPDATE, not of a route.
const MALFORMED: &str = "malformed-update";

/// Setup that causes a reason.
struct Scene {
    reason: &'static str,
    import: bool,
    /// AS number of the sender.
    asn: u32,
    /// Additional fields of both peers' values.
    sender: Value,
    taker: Value,
    /// Additional keys of the store.
    store: Vec<(&'static str, String)>,
    /// Additional capabilities of the sender.
    capabilities: Vec<u8>,
    /// Attributes and prefixes of the sender's UPDATE.
    attributes: Vec<u8>,
    prefixes: Vec<u8>,
    /// Command of the operator once both sessions are established.
    command: &'static [&'static str],
}

fn attribute(flags: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    let long = value.len() > 255;
    let mut out = vec![if long { flags | 0x10 } else { flags }, kind];
    let length = u16::try_from(value.len()).unwrap().to_be_bytes();
    out.extend(if long { &length[..] } else { &length[1..] });
    out.extend(value);
    out
}

fn as_path(path: &[u32]) -> Vec<u8> {
    let mut value = Vec::new();
    if !path.is_empty() {
        value.extend([2, u8::try_from(path.len()).unwrap()]);
        value.extend(path.iter().flat_map(|asn| asn.to_be_bytes()));
    }
    attribute(0x40, 2, &value)
}

/// Encodes the well-known attributes, for iBGP including LOCAL_PREF.
fn base(path: &[u32], next_hop: Ipv4Addr) -> Vec<u8> {
    let mut all = [attribute(0x40, 1, &[0]), as_path(path), attribute(0x40, 3, &next_hop.octets())].concat();
    if path.is_empty() {
        all.extend(attribute(0x40, 5, &100_u32.to_be_bytes()));
    }
    all
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(19 + body.len()).unwrap().to_be_bytes();
    [&[0xff; 16][..], &length, &[kind], body].concat()
}

fn open(asn: u32, id: Ipv4Addr, capabilities: &[u8]) -> Vec<u8> {
    let mut all = vec![1, 4, 0, 1, 0, 1, 65, 4];
    all.extend(asn.to_be_bytes());
    all.extend(capabilities);
    let mut body = vec![4];
    body.extend(u16::try_from(asn).unwrap().to_be_bytes());
    body.extend(90_u16.to_be_bytes());
    body.extend(id.octets());
    let length = u8::try_from(all.len()).unwrap();
    body.extend([length + 2, 2, length]);
    body.extend(all);
    message(1, &body)
}

fn update(attributes: &[u8], prefixes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(attributes.len()).unwrap().to_be_bytes();
    message(2, &[&[0, 0][..], &length, attributes, prefixes].concat())
}

/// Returns an established session from this address, over which `octets` were sent.
fn session(from: Ipv4Addr, to: SocketAddr, octets: &[u8]) -> TcpStream {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&to.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // A connection from an unknown peer is closed without a message.
        if stream.write_all(octets).is_ok() && matches!(uninterrupted(|| stream.read(&mut [0; 1])), Ok(1)) {
            let mut rest = stream.try_clone().unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                loop {
                    match uninterrupted(|| rest.read(&mut buffer)) {
                        Ok(0) => return,
                        Err(error) if !matches!(error.kind(), std::io::ErrorKind::WouldBlock) => return,
                        _ => {}
                    }
                }
            });
            return stream;
        }
        assert!(Instant::now() < until, "no session from {from}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn import(reason: &'static str) -> Scene {
    Scene {
        reason,
        import: true,
        asn: THEIRS,
        sender: json!({}),
        taker: json!({}),
        store: Vec::new(),
        capabilities: Vec::new(),
        attributes: base(&[THEIRS], HOP),
        prefixes: OUTSIDE.to_vec(),
        command: &[],
    }
}

fn export(reason: &'static str) -> Scene {
    Scene { import: false, prefixes: IN_POOL.to_vec(), ..import(reason) }
}

fn filter(text: &str) -> Vec<(&'static str, String)> {
    vec![("/calico/bgp/v1/global/filters/f", text.to_owned())]
}

fn scenes() -> Vec<Scene> {
    let ibgp = |reason, more: Vec<u8>| Scene {
        asn: OURS,
        attributes: [base(&[], HOP), more].concat(),
        ..import(reason)
    };
    let v6 = || ("/calico/bgp/v1/host/h1/ip_addr_v6", "fd00::1".to_owned());
    let us = Ipv4Addr::LOCALHOST;
    let block = json!({
        "cidr": "10.244.0.0/26", "affinity": "host:h1", "strictAffinity": false,
        "allocations": vec![Value::Null; 64], "unallocated": (0..64).collect::<Vec<u32>>(), "attributes": [],
    });
    let own = || {
        vec![
            ("/calico/ipam/v2/host/h1/ipv4/block/10.244.0.0-26", String::new()),
            ("/calico/ipam/v2/assignment/ipv4/block/10.244.0.0-26", block.to_string()),
        ]
    };
    let endpoint = json!({
        "state": "active", "name": "cali1", "profile_ids": [], "ipv4_nets": ["10.244.0.1/32"], "ipv6_nets": [],
    });
    // A message of 4,096 octets, which an additional AS number makes too long.
    let around = update(&base(&[THEIRS], HOP), IN_POOL).len() + 4;
    let large = attribute(0xc0, 99, &vec![7; 4_096 - around]);
    // fd00:5::/64 with the next hop fd00::N, as MP_REACH_NLRI (RFC 4760).
    let six = |n: u8| {
        let mut reach = vec![0, 2, 1, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n, 0];
        reach.extend([64, 0xfd, 0, 0, 5, 0, 0, 0, 0]);
        [attribute(0x40, 1, &[0]), as_path(&[THEIRS]), attribute(0x80, 14, &reach)].concat()
    };
    vec![
        Scene {
            store: vec![("/calico/v1/host/h1/workload/cni/w1/endpoint/eth0", endpoint.to_string())],
            prefixes: vec![32, 10, 244, 0, 1],
            ..import("own-endpoint")
        },
        Scene {
            sender: json!({ "import_pools": false }),
            prefixes: IN_POOL.to_vec(),
            ..import("inside-pool")
        },
        Scene {
            sender: json!({ "filters": ["f"] }),
            store: filter(r#"{"import": [], "export": [], "default": "reject"}"#),
            ..import("filter")
        },
        Scene { prefixes: vec![8, 239], ..import("martian") },
        Scene {
            sender: json!({ "role": "provider" }),
            capabilities: vec![9, 1, 3],
            attributes: [base(&[THEIRS], HOP), attribute(0xc0, 35, &THEIRS.to_be_bytes())].concat(),
            ..import("route_leak")
        },
        Scene { attributes: base(&[THEIRS, OURS], HOP), ..import("as_loop") },
        ibgp("originator_loop", attribute(0x80, 9, &us.octets())),
        ibgp(
            "cluster_loop",
            [attribute(0x80, 9, &[127, 0, 0, 9]), attribute(0x80, 10, &us.octets())].concat(),
        ),
        Scene {
            sender: json!({ "families": ["ipv4", "ipv6"] }),
            store: vec![v6()],
            capabilities: vec![1, 4, 0, 2, 0, 1],
            attributes: six(1),
            prefixes: Vec::new(),
            ..import("next_hop_self")
        },
        Scene {
            sender: json!({ "filters": ["f"], "families": ["ipv4", "ipv6"] }),
            store: [
                filter(r#"{"import": [{"set": {"next_hop": "192.0.2.9"}, "then": "accept"}]}"#),
                vec![v6()],
            ]
            .concat(),
            capabilities: vec![1, 4, 0, 2, 0, 1],
            attributes: six(2),
            prefixes: Vec::new(),
            ..import("next_hop_family")
        },
        Scene {
            sender: json!({ "add_path": "receive" }),
            capabilities: vec![69, 4, 0, 1, 1, 2],
            prefixes: (0..300_u32).flat_map(|id| [&id.to_be_bytes()[..], OUTSIDE].concat()).collect(),
            ..import("too_many_paths")
        },
        // A next hop on the loopback network is invalid (RFC 4271, section 6.3; RFC 7606).
        Scene { attributes: base(&[THEIRS], SENDER), ..import(MALFORMED) },
        Scene { prefixes: OUTSIDE.to_vec(), ..export("none") },
        Scene { store: own(), prefixes: vec![32, 10, 244, 0, 5], ..export("inside-own-block") },
        Scene { taker: json!({ "own_only": true }), ..export("own-only") },
        Scene {
            taker: json!({ "filters": ["f"] }),
            store: filter(r#"{"import": [], "export": [], "default": "reject"}"#),
            ..export("filter")
        },
        Scene {
            store: own(),
            command: &["bgp", "drain", "127.0.0.3", "--withdraw", "--grace", "0"],
            ..export("drain")
        },
        Scene {
            taker: json!({ "filters": ["f"] }),
            store: filter(r#"{"export": [{"set": {"next_hop": "fd00::9"}, "then": "accept"}]}"#),
            ..export("next-hop")
        },
        Scene { attributes: [base(&[THEIRS], HOP), large].concat(), ..export("size") },
    ]
}

/// Causes the reason and checks the reports.
fn is_reported(scene: &Scene) -> Result<(), String> {
    let peer = |ip: Ipv4Addr, asn: u32, more: &Value| {
        let mut value = json!({ "ip": ip.to_string(), "as_num": asn, "passive_mode": true });
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        value.to_string()
    };
    let (sender, taker) = (peer(SENDER, scene.asn, &scene.sender), peer(TAKER, 65_003, &scene.taker));
    let mut entries = vec![
        ("/calico/v1/Ready", "true"),
        ("/calico/bgp/v1/global/node_mesh", r#"{"enabled": false}"#),
        ("/calico/v1/ipam/v4/pool/10.244.0.0-16", r#"{"cidr":"10.244.0.0/16"}"#),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.2", &sender),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.3", &taker),
    ];
    entries.extend(scene.store.iter().map(|(key, value)| (*key, value.as_str())));
    let agent = Agent::start(&entries);
    let said = [
        open(scene.asn, SENDER, &scene.capabilities),
        message(4, &[]),
        update(&scene.attributes, &scene.prefixes),
        update(&[], &[]),
    ];
    let _sender = session(SENDER, agent.listen, &said.concat());
    let said = [open(65_003, TAKER, &[]), message(4, &[]), update(&[], &[])];
    let _taker = session(TAKER, agent.listen, &said.concat());
    if !scene.command.is_empty() {
        let output = agent.run(scene.command);
        if !output.status.success() {
            return Err(format!("{:?}: {output:?}", scene.command));
        }
    }
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match ask(&agent, scene) {
            Err(error) if Instant::now() > until => return Err(format!("{error}\n{}", agent.log())),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
            Ok(()) => return Ok(()),
        }
    }
}

/// Checks that `status` names the reason, and so does the command that it names.
fn ask(agent: &Agent, scene: &Scene) -> Result<(), String> {
    let output = agent.run(&["status", "-o", "json"]);
    let status: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{e}: {}", stderr(&output)))?;
    let code = if scene.import { "routes-refused" } else { "routes-held-back" };
    let listed = ["notes", "problems"].map(|list| status[list].as_array().unwrap().iter());
    let found = |note: &&Value| {
        note["code"] == MALFORMED && scene.reason == MALFORMED
            || [code, "all-routes-refused"].contains(&note["code"].as_str().unwrap_or_default())
                && note["text"].as_str().unwrap().split([' ', ',']).any(|word| word == scene.reason)
    };
    let command = match listed.into_iter().flatten().find(found) {
        Some(note) => note["next"].as_str().unwrap().to_owned(),
        // Routes that no gate selects are withheld on purpose: no note, but a count.
        None if status["bgp"]["withheld"][scene.reason].as_u64() > Some(0)
            && ["none", "inside-own-block"].contains(&scene.reason) =>
        {
            "tortie status -o wide".to_owned()
        }
        // Paths beyond the limit are not stored, only counted.
        None if scene.reason == "too_many_paths"
            && status["bgp"]["refused"][scene.reason].as_u64() > Some(0) =>
        {
            "tortie status -o wide".to_owned()
        }
        None => return Err(format!("status does not tell of {}: {status:#}", scene.reason)),
    };
    let words: Vec<&str> = command.strip_prefix("tortie ").ok_or(command.clone())?.split(' ').collect();
    let output = agent.run(&words);
    let screen = stdout(&output);
    if screen.lines().count() > 50 || !screen.contains(scene.reason) {
        return Err(format!(
            "`{command}` does not show {} on one screen:\n{screen}{}",
            scene.reason,
            stderr(&output)
        ));
    }
    Ok(())
}

#[test]
fn a_reason_drawn_by_chance_is_reported() {
    let scenes = scenes();
    let known: Vec<&str> = scenes.iter().map(|scene| scene.reason).collect();
    for code in EXPORT_REASONS.iter().chain(IMPORT_REASONS) {
        let excepted = [NO_FAULT, OF_CALICO_3].iter().any(|list| list.contains(&code.name));
        assert!(known.contains(&code.name) || excepted, "no scene has {code}");
    }
    assert_eq!(KERNEL_REASONS.iter().map(|code| code.name).collect::<Vec<_>>(), IN_KERNEL);
    let seed = std::env::var("TORTIE_SEED").ok().map(|text| text.parse().expect("TORTIE_SEED is a number"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed: u64 = seed.unwrap_or_else(|| u64::from(now.subsec_micros()));
    let scene = &scenes[usize::try_from(seed % scenes.len() as u64).unwrap()];
    println!("TORTIE_SEED={seed}: {}", scene.reason);
    is_reported(scene).unwrap_or_else(|missed| panic!("TORTIE_SEED={seed}, {}: {missed}", scene.reason));
}

#[test]
#[ignore = "an agent for each reason"]
fn long_every_reason_is_reported() {
    let missed: Vec<String> = scenes()
        .iter()
        .filter_map(|scene| is_reported(scene).err().map(|missed| format!("{}: {missed}", scene.reason)))
        .collect();
    assert!(missed.is_empty(), "{}:\n{}", missed.len(), missed.join("\n"));
}
