//! Dynamic peers and TCP-AO for an operator: the store, an agent, and a scripted peer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tortie_bgp::RouterId;
use tortie_bgp::wire::{Capabilities, Open, write_keepalive};

use crate::agent::Agent;
use crate::common::command::{SECRET, stderr, stdout};

const RANGE: &str = "/calico/bgp/v1/host/h1/peer_range/127.0.8.0-24";

/// Opens a connection from this address and sends OPEN and KEEPALIVE.
fn dial(from: &str, to: SocketAddr, asn: u32) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&format!("{from}:0").parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    let capabilities = Capabilities { as4: Some(asn), ..Capabilities::default() };
    let open = Open { asn, hold_time: 90, router_id: RouterId(9), capabilities };
    let mut bytes = Vec::new();
    open.write(&mut bytes);
    write_keepalive(&mut bytes);
    stream.write_all(&bytes).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Returns code and subcode of the NOTIFICATION that ended a connection.
fn last_words(mut stream: TcpStream) -> Option<(u8, u8)> {
    let mut said = Vec::new();
    // A connection that is closed before our KEEPALIVE was read ends with a reset, after what was said.
    let _ = stream.read_to_end(&mut said);
    let mut last = None;
    let mut rest = &said[..];
    while let [header @ .., _] = rest.get(..19)? {
        let length = usize::from(u16::from_be_bytes([header[16], header[17]]));
        let (message, tail) = rest.split_at(length);
        if message[18] == 3 {
            last = Some((message[19], message[20]));
        }
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    last
}

fn json(agent: &Agent, words: &[&str]) -> serde_json::Value {
    let output = agent.run(&[words, &["-o", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{words:?}: {output:?}"))
}

fn wait(agent: &Agent, words: &[&str], is: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let value = json(agent, words);
        if is(&value) {
            return value;
        }
        assert!(Instant::now() < until, "{words:?}: {value:#}\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn dynamic_peers_are_shown_with_their_range_and_go_with_it() {
    let protected = format!(
        r#"{{"ip": "127.0.0.2", "as_num": "65000", "port": 1, "tcp_ao": {{"id": 1, "password": "{SECRET}"}}}}"#
    );
    let agent = Agent::start(&[
        ("/calico/v1/Ready", "true"),
        ("/calico/bgp/v1/global/peer_range/127.0.8.0-24", r#"{"as_num": "65000", "max_sessions": 9}"#),
        (RANGE, r#"{"as_num": "external", "max_sessions": 1}"#),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.2", &protected),
    ]);
    let status = wait(&agent, &["status"], |s| s["bgp"]["listen"][0].is_string());
    let at: SocketAddr = status["bgp"]["listen"][0].as_str().unwrap().parse().unwrap();
    let range = &status["bgp"]["ranges"][0];
    assert_eq!(
        (&range["prefix"], &range["maxSessions"]),
        (&"127.0.8.0/24".into(), &1.into()),
        "the host's own"
    );

    let stream = dial("127.0.8.9", at, 65009);
    let is_up = |list: &serde_json::Value| {
        list["items"].as_array().unwrap().iter().any(|p| p["state"] == "Established")
    };
    let list = wait(&agent, &["bgp", "peers"], is_up);
    let peer = list["items"].as_array().unwrap().iter().find(|p| p["state"] == "Established").unwrap();
    assert_eq!(
        (&peer["session"], &peer["type"], &peer["range"], &peer["remoteAs"], &peer["reason"]),
        (
            &"Dynamic_127.0.8.9".into(),
            &"dynamic".into(),
            &"127.0.8.0/24".into(),
            &65009.into(),
            &RANGE.into()
        )
    );
    assert!(stdout(&agent.run(&["bgp", "peer", "127.0.8.9"])).contains("came from     127.0.8.0/24"));
    let status = wait(&agent, &["status"], |s| s["bgp"]["dynamic"]["up"] == 1);
    assert_eq!(status["bgp"]["ranges"][0]["sessions"], 1);
    // A peer beyond the limit gets a NOTIFICATION and is counted.
    assert_eq!(last_words(dial("127.0.8.10", at, 65010)), Some((6, 5)));
    let shown = stdout(&agent.run(&["status"]));
    assert!(shown.contains("1 of 1 dynamic sessions, FULL   1 refused"), "{shown}");
    let ranges = stdout(&agent.run(&["bgp", "ranges"]));
    assert!(
        ranges.contains("127.0.8.0/24") && ranges.contains("external") && ranges.contains(RANGE),
        "{ranges}"
    );

    // The host's own range is removed: its peers are not those of the other range.
    assert!(agent.store.run(&["store", "rm", RANGE]).status.success());
    assert_eq!(last_words(stream), Some((6, 3)));
    wait(&agent, &["bgp", "peers"], |list| !list.to_string().contains("Dynamic_"));
    let range = wait(&agent, &["bgp", "ranges"], |list| list["items"][0]["maxSessions"] == 9);
    assert_eq!((&range["items"][0]["sessions"], &range["items"][0]["remoteAs"]), (&0.into(), &65000.into()));

    // On kernels without TCP-AO nothing is sent unprotected, and the reason is shown with the peer.
    let peer = wait(&agent, &["bgp", "peer", "127.0.0.2"], |p| p["lastError"]["text"].is_string());
    let text = peer["lastError"]["text"].as_str().unwrap();
    if !text.contains("refused by") {
        assert!(text.contains("CONFIG_TCP_AO") && text.contains("nothing is sent unprotected"), "{text}");
        let shown = agent.run(&["status"]);
        assert!(stdout(&shown).contains("CONFIG_TCP_AO"), "{shown:?}");
    }
    let export = agent.store.run(&["store", "export", "--redact"]);
    let said =
        agent.log() + &stdout(&export) + &stdout(&agent.run(&["status", "-o", "json"])) + &stderr(&export);
    assert!(said.contains("tcp_ao") && !said.contains(SECRET), "{said}");
}
