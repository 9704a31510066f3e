//! Tests of the explanation of a session, with fabricated evidence and complete texts.

use super::*;
use crate::api::bgp::{PeerError, PeerFamily};
use crate::api::explain::Certainty;

fn peer(state: &str, error: Option<(&str, &str)>) -> Peer {
    Peer {
        session: "Mesh_192_0_2_15".to_owned(),
        address: "192.0.2.15".to_owned(),
        dials: String::new(),
        port: 179,
        name: "rack1-n05".to_owned(),
        kind: "mesh".to_owned(),
        range: None,
        reason: "node-to-node mesh with rack1-n05".to_owned(),
        remote_as: 64512,
        state: state.to_owned(),
        state_since: "2026-11-20T14:02:41.000Z".to_owned(),
        state_seconds: 372,
        flaps: 1,
        last_error: error.map(|(code, text)| PeerError {
            code: code.to_owned(),
            text: text.to_owned(),
            time: "2026-11-20T14:08:50.000Z".to_owned(),
        }),
        last_message_error: None,
        families: vec![PeerFamily {
            afi: "ipv4".to_owned(),
            safi: "unicast".to_owned(),
            received: 0,
            accepted: 0,
            best: 0,
            advertised: 0,
            stale: 0,
        }],
        hold_seconds: 0,
        keepalive_seconds: 0,
        router_id: None,
        messages_in: 0,
        messages_out: 0,
        capabilities: Vec::new(),
        graceful_restart: "idle".to_owned(),
        drain: "off".to_owned(),
        drain_sent: false,
        shutdown: None,
        notes: Vec::new(),
        bfd: None,
    }
}

fn near(state: &'static str) -> Path {
    let mac = (state != "failed").then_some([0x52, 0x54, 0, 0xab, 0x15, 1]);
    Path::Via {
        interface: "eth0".to_owned(),
        up: true,
        mtu: 1500,
        gateway: None,
        route: "route 192.0.2.0/24 of protocol kernel".to_owned(),
        neighbour: Some(NeighbourEntry { mac, state }),
    }
}

fn down(code: &str, text: &str) -> PeerEvidence {
    PeerEvidence {
        peer: peer("Active", Some((code, text))),
        key: Some("/calico/bgp/v1/host/rack1-n05/ip_addr_v4".to_owned()),
        revision: Some(918_101),
        attempts: Attempts {
            failed: 74,
            next: Some(Duration::from_secs(2)),
            connects: true,
            from: "192.0.2.13".parse().ok(),
            refused: None,
        },
        notification: None,
        last_session: None,
        down: None,
        protection: TcpProtection::default(),
        local_as: 64512,
        max_prefixes: None,
        problem: None,
        path: near("reachable"),
        remote: RemoteStatus::Absent,
        blocks: Some(vec![
            ("10.244.5.0/26".parse().unwrap(), false),
            ("10.244.5.64/26".parse().unwrap(), false),
        ]),
        status: Vec::new(),
        dropped: TcpDropped::default(),
    }
}

fn ask(e: &PeerEvidence) -> Why {
    answer(Why::new("WhyPeer", "rack1-n03", 918_273, String::new(), "Mesh_192_0_2_15"), e)
}

#[test]
fn a_refused_connection_is_explained_in_full() {
    let mut e = down("connect_failed", "connection refused by 192.0.2.15:179");
    e.down = Some(372);
    e.peer.state_seconds = 2;
    e.last_session = Some(EndedSession {
        time: "2026-11-20T14:02:41.000Z".to_owned(),
        text: "the peer closed the connection".to_owned(),
        lasted: Duration::from_secs(9 * 86_400 + 7_200),
        helper: true,
    });
    let expected = "peer 192.0.2.15 (rack1-n05, node-to-node mesh, AS 64512) is Active, down for 6m12s

  \
                    ok    configured by  node-to-node mesh with rack1-n05, AS 64512   \
                    /calico/bgp/v1/host/rack1-n05/ip_addr_v4   rev 918101
        last session   up 9d02h, \
                    ended 2026-11-20T14:02:41.000Z: the peer closed the connection
        flaps          1 \
                    since the agent started
  STOP  attempts       74 failed, the last at \
                    2026-11-20T14:08:50.000Z: connect() = ECONNREFUSED from 192.0.2.13: connection refused \
                    by 192.0.2.15:179; next in 2s
  ok    path           route 192.0.2.0/24 of protocol \
                    kernel, on-link on eth0 (up, MTU 1500), neighbour 52:54:00:ab:15:01 reachable
        \
                    guard          no TCP key here; no ttl_security here
        peer's view    no status \
                    key: no agent runs there, or it cannot reach the store

Conclusion:  rack1-n05 answers, \
                    but no process listens on tcp/179: its agent does not run (it has no status key)   \
                    [certain, connection-refused]
Effect:      2 blocks (10.244.5.0/26, 10.244.5.64/26) are \
                    unreachable from here
Try:         on rack1-n05: systemctl status tortie
Not looked at: \
                    the configuration and the log of the peer; firewalls outside of table inet tortie; no \
                    packet was sent for this answer
";
    let why = ask(&e);
    assert_eq!(why.to_string(), expected);
    assert!(!why.good);
}

/// Returns code, certainty and text of the conclusion.
fn concluded(e: &PeerEvidence) -> (String, Certainty, String) {
    let why = ask(e);
    (why.code, why.certainty, why.conclusion.unwrap_or_default())
}

#[test]
fn silence_refusal_and_a_refused_open_are_three_things() {
    let quiet = down("connect_failed", "no answer from 192.0.2.15:179");
    let (code, certainty, text) = concluded(&quiet);
    assert_eq!((code.as_str(), certainty), ("connect-timeout", Certainty::Implied));
    assert!(text.contains("TCP key that is not set here"), "{text}");

    let keyed = PeerEvidence {
        protection: TcpProtection { key: Some("TCP MD5 (RFC 2385)"), hops: None },
        ..quiet.clone()
    };
    let (code, certainty, text) = concluded(&keyed);
    assert_eq!((code.as_str(), certainty), ("connect-timeout", Certainty::Implied));
    assert!(text.contains("TCP MD5 (RFC 2385) is set here: with another key"), "{text}");

    let counted = |key, ttl| TcpDropped { key, ttl };
    let (code, certainty, text) = concluded(&PeerEvidence { dropped: counted(3, 0), ..quiet.clone() });
    assert_eq!((code.as_str(), certainty), ("tcp-key", Certainty::Implied));
    assert!(text.contains("dropped 3 segments for their TCP key (none is set here)"), "{text}");
    let near_by = PeerEvidence {
        protection: TcpProtection { key: None, hops: Some(1) },
        dropped: counted(0, 12),
        ..quiet.clone()
    };
    assert_eq!(concluded(&near_by).0, "ttl-security");
    // Dropped segments of other peers prove nothing about a peer without ttl_security.
    assert_eq!(concluded(&PeerEvidence { dropped: counted(0, 12), ..quiet.clone() }).0, "connect-timeout");
    let waiting = PeerEvidence { peer: peer("OpenSent", None), ..near_by };
    assert_eq!(concluded(&waiting).0, "ttl-security", "TCP stands, and no OPEN comes");
    let (code, certainty, _) = concluded(&PeerEvidence { path: near("failed"), ..quiet });
    assert_eq!((code.as_str(), certainty), ("no-neighbour", Certainty::Certain));

    let refused = PeerEvidence { notification: Some((2, 2)), ..down("notification_received", "bad peer AS") };
    let (code, certainty, text) = concluded(&refused);
    assert_eq!((code.as_str(), certainty), ("bad-peer-as", Certainty::Certain));
    assert!(text.contains("it expects another AS number than ours (64512)"), "{text}");

    let refuses = PeerEvidence { notification: Some((2, 2)), ..down("notification_sent", "bad peer AS") };
    let (code, _, text) = concluded(&refuses);
    assert!(code == "bad-peer-as" && text.contains("this host expects AS 64512"), "{text}");
}

#[test]
fn what_this_host_knows_for_sure_comes_before_what_the_wire_says() {
    let failed = || down("connect_failed", "no answer from 192.0.2.15:179");
    let table = [
        ("no-route", PeerEvidence { path: Path::None, ..failed() }),
        ("own-address", PeerEvidence { path: Path::Own, ..failed() }),
        (
            "peer-configuration",
            PeerEvidence { problem: Some("the file is readable by others".into()), ..failed() },
        ),
        ("peer-shutdown-here", {
            let mut e = failed();
            e.peer.shutdown = Some("maintenance".to_owned());
            e
        }),
        ("link-down", {
            let mut e = failed();
            if let Path::Via { up, .. } = &mut e.path {
                *up = false;
            }
            e
        }),
    ];
    for (code, evidence) in table {
        assert_eq!(concluded(&evidence).0, code);
        assert!(ask(&evidence).stop().is_some(), "{code}: no step stands in the way");
    }
}

#[test]
fn each_end_of_a_session_has_its_code() {
    let by = |code, sub, sent| {
        let how = if sent { "notification_sent" } else { "notification_received" };
        PeerEvidence { notification: Some((code, sub)), ..down(how, "text") }
    };
    let table = [
        ((2, 3), "bad-identifier"),
        ((2, 6), "unacceptable-hold-time"),
        ((2, 7), "unsupported-capability"),
        ((2, 11), "role-mismatch"),
        ((2, 4), "open-refused"),
        ((3, 11), "message-error"),
        ((4, 0), "hold-timer"),
        ((6, 1), "max-prefixes"),
        ((6, 2), "peer-shutdown"),
        ((6, 3), "peer-deconfigured"),
        ((6, 4), "admin-reset"),
        ((6, 5), "connection-rejected"),
        ((6, 7), "collision"),
        ((6, 8), "out-of-resources"),
        ((6, 10), "bfd"),
        ((6, 6), "cease"),
        ((8, 0), "send-hold-timer"),
    ];
    for ((code, sub), name) in table {
        for sent in [false, true] {
            assert_eq!(concluded(&by(code, sub, sent)).0, name, "{code}/{sub} sent {sent}");
        }
    }
    for (code, name) in [
        ("hold_timer", "hold-timer"),
        ("bfd", "bfd"),
        ("link_down", "link-down"),
        ("tcp_closed", "tcp-closed"),
    ] {
        assert_eq!(concluded(&down(code, "text")).0, name);
    }
}

/// The conclusion fits both the kernel's path and the result of the last attempt.
#[test]
fn a_way_that_was_not_found_is_no_conclusion_where_the_last_attempt_met_the_peer() {
    let connect = |text| ("connect_failed", text);
    let table = [
        (connect("connection refused by 192.0.2.15:179"), "connection-refused", Certainty::Implied),
        (connect("no answer from 192.0.2.15:179"), "no-route", Certainty::Certain),
        (connect("192.0.2.15:179 is unreachable"), "no-route", Certainty::Certain),
        (("tcp_closed", "the peer closed the connection"), "tcp-closed", Certainty::Implied),
        (connect("no route to 192.0.2.15:179"), "no-route", Certainty::Certain),
        (("hold_timer", "hold timer expired"), "no-route", Certainty::Certain),
        (("link_down", "interface eth0 is down"), "no-route", Certainty::Certain),
    ];
    for ((code, text), name, certainty) in table {
        let mut e = down(code, text);
        e.path = Path::None;
        let (found, said, _) = concluded(&e);
        assert_eq!((found.as_str(), said), (name, certainty), "{text}");
        let stops = ask(&e).steps.iter().any(|step| step.name == "path" && step.verdict == Verdict::Stop);
        assert_eq!(stops, name == "no-route", "{text}");
    }
}

#[test]
fn a_peer_whose_connections_are_refused_for_now_is_reported_as_such() {
    let mut e = down("notification_sent", "sent NOTIFICATION 3/1");
    e.attempts.connects = false;
    e.attempts.refused = Some(Duration::from_secs(42));
    let (code, certainty, text) = concluded(&e);
    assert_eq!((code.as_str(), certainty), ("damped", Certainty::Certain));
    assert!(text.contains("42s") && text.contains("NOTIFICATION 3/1"), "{text}");
}

#[test]
fn stale_routes_are_said_and_an_established_session_has_nothing_to_say() {
    let mut e = down("tcp_closed", "the peer closed the connection");
    e.peer.families[0].stale = 3;
    e.peer.graceful_restart = "helper, 43s left".to_owned();
    assert_eq!(
        ask(&e).effect.as_deref(),
        Some("3 of its routes are kept as stale and still used (helper, 43s left)")
    );

    e.peer.state = "Established".to_owned();
    let why = ask(&e);
    assert!(why.good && why.stop().is_none() && why.effect.is_none());
    assert_eq!((why.code.as_str(), why.certainty), ("ok", Certainty::Certain));
}

#[test]
fn a_session_that_stands_and_whose_peer_takes_nothing_is_not_well() {
    let mut e = down("tcp_closed", "the peer closed the connection");
    e.peer.state = "Established".to_owned();
    e.status = vec![("slow-peer".to_owned(), "has not read its queue for 34s".to_owned())];
    let why = ask(&e);
    let (code, certainty, text) = concluded(&e);
    assert_eq!((code.as_str(), certainty), ("slow-peer", Certainty::Implied));
    assert!(text.contains("but rack1-n05 has not read its queue for 34s"), "{text}");
    assert!(why.answer.ends_with("is Established, up for 6m12s"), "{}", why.answer);
    assert!(!why.good && why.effect.is_some_and(|effect| effect.contains("including withdrawals")));
    assert_eq!(why.steps.iter().filter(|step| step.verdict == Verdict::Stop).count(), 1);
    // Other problems in `status` do not affect the session's verdict.
    e.status =
        vec![("prefix-limit".to_owned(), "announces 9 prefixes, and its max_prefixes is 10".to_owned())];
    assert!(ask(&e).good && ask(&e).stop().is_none());
}

#[test]
fn offending_octets_are_shown_and_cut() {
    let mut e = down("notification_sent", "malformed AS_PATH");
    e.notification = Some((3, 11));
    e.peer.last_message_error = Some(MessageError {
        code: "notification_sent".to_owned(),
        text: "malformed AS_PATH".to_owned(),
        time: "2026-11-20T14:08:50.000Z".to_owned(),
        notification: Some([3, 11]),
        data: "400200".to_owned(),
        message: "ff".repeat(100),
    });
    let text = ask(&e).to_string();
    let wanted = format!(
        "we sent NOTIFICATION 3/11: malformed AS_PATH (2026-11-20T14:08:50.000Z); data 400200; \
                          offending message {}...",
        "ff".repeat(MESSAGE_OCTETS_MAX)
    );
    assert!(text.contains(&wanted), "{text}");
}
