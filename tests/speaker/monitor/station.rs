//! Messages that BMP stations receive from a running agent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use tortie_bgp::bmp::{Message, PeerDown, PeerHeader, Tlvs, info};
use tortie_bgp::wire::{Frame, Open, Update};

use super::{Agent, PREFIXES, SOON, all, sample, table};

/// The station's end of a connection.
struct Station {
    stream: TcpStream,
    octets: Vec<u8>,
}

impl Station {
    fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Self { stream, octets: Vec::new() }
    }

    /// Accepts a connection and reads its Initiation.
    fn begun(listener: &TcpListener) -> Self {
        let mut station = Self::accept(listener);
        let octets = station.next();
        assert!(matches!(Message::next(&octets).unwrap().unwrap().0, Message::Initiation(_)), "{octets:?}");
        station
    }

    /// Returns the octets of the next message.
    fn next(&mut self) -> Vec<u8> {
        loop {
            if let Some((_, len)) = Message::next(&self.octets).unwrap() {
                return self.octets.drain(..len).collect();
            }
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => panic!("the agent ended the connection"),
                Ok(n) => self.octets.extend_from_slice(part.get(..n).unwrap()),
                // A read with a timeout is not restarted after a signal: signal(7).
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}"),
            }
        }
    }

    /// Reads until this number of prefixes was announced, and returns them.
    fn routes(&mut self, count: usize) -> BTreeSet<String> {
        let mut incoming = BTreeSet::new();
        while incoming.len() < count {
            let octets = self.next();
            if let Message::RouteMonitoring { peer, update } = Message::next(&octets).unwrap().unwrap().0 {
                assert_eq!((peer.address, peer.asn, peer.post_policy), ([127, 0, 0, 2].into(), 65002, false));
                let update = decoded(&peer, 64512, update);
                incoming.extend(update.reach.iter().flat_map(|r| r.nlri.cidrs()).map(|c| c.to_string()));
            }
        }
        incoming
    }

    fn up(&mut self) {
        let octets = self.next();
        let Message::PeerUp { peer, up } = Message::next(&octets).unwrap().unwrap().0 else {
            panic!("{octets:?}")
        };
        assert_eq!((peer.address, peer.asn), ([127, 0, 0, 2].into(), 65002));
        let open = |octets| Open::decode(Frame::next(octets, false).unwrap().unwrap().body).unwrap().asn;
        assert_eq!((open(up.sent), open(up.received)), (64512, 65002));
    }
}

#[test]
fn a_station_receives_everything_in_order_and_again_after_a_break() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut agent = Agent::start(&["--bmp-station", &address]);
    let file = agent.path("in.mrt");
    sample(&file);
    let mut station = Station::accept(&listener);
    let octets = station.next();
    let Message::Initiation(tlvs) = Message::next(&octets).unwrap().unwrap().0 else { panic!("{octets:?}") };
    assert!(tlvs.iter().any(|t| t.kind == 2 && t.value == b"h1"));

    // Live messages. The session has to last until the second station has its table.
    let mut replay = agent.replay(&file, "15");
    station.up();
    assert_eq!(station.routes(4), all());

    // A station that connects later receives the table of the running session.
    drop(station);
    let mut station = Station::accept(&listener);
    station.next();
    station.up();
    assert_eq!(station.routes(4), all());

    assert!(replay.0.wait().unwrap().success());
    let octets = loop {
        let octets = station.next();
        if matches!(Message::next(&octets).unwrap().unwrap().0, Message::PeerDown { .. }) {
            break octets;
        }
    };
    let Message::PeerDown { reason: PeerDown::RemoteNotification(said), .. } =
        Message::next(&octets).unwrap().unwrap().0
    else {
        panic!("{octets:?}")
    };
    // Cease, administrative shutdown.
    assert_eq!(said.get(18..21), Some(&[3, 6, 2][..]));

    let pid = rustix::process::Pid::from_child(&agent.running.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let octets = station.next();
    assert!(matches!(Message::next(&octets).unwrap().unwrap().0, Message::Termination(_)), "{octets:?}");
    assert!(agent.running.0.wait().unwrap().success());
}

#[test]
fn stations_of_the_store_come_and_go_without_a_restart() {
    let v6 = TcpListener::bind("[::1]:0").unwrap();
    let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
    let list = |listener: &TcpListener| format!("[\"{}\"]", listener.local_addr().unwrap());
    let agent = Agent::start(&[]);
    let (global, own) = ("/calico/bgp/v1/global/bmp_stations", "/calico/bgp/v1/host/h1/bmp_stations");
    let put = |key: &str, value: &str| agent.put(key, value);
    let over = |station: &mut Station| {
        let octets = station.next();
        assert!(matches!(Message::next(&octets).unwrap().unwrap().0, Message::Termination(_)), "{octets:?}");
    };
    put(global, &list(&v6));
    let mut first = Station::begun(&v6);
    // Contents do not depend on the source of the configuration.
    let file = agent.path("in.mrt");
    sample(&file);
    let replay = agent.replay(&file, "60");
    first.up();
    assert_eq!(first.routes(4), all());
    drop(replay);
    // The host's own list replaces the global one; an empty list means none.
    put(own, &list(&v4));
    let mut second = Station::begun(&v4);
    while !matches!(Message::next(&first.next()).unwrap().unwrap().0, Message::Termination(_)) {}
    // An unreachable station is reported by name.
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    put(own, &format!("[\"{away}\"]"));
    over(&mut second);
    agent.wait_for("the note", |a| {
        let (_, status) = a.get("/v1/status");
        let notes = status["notes"].as_array().unwrap();
        notes.iter().any(|n| n["code"] == "bmp-station-away" && n["subject"] == away.to_string().as_str())
    });
    put(own, "[]");
    agent.wait_for("no note", |a| !a.get("/v1/status").1["notes"].to_string().contains("bmp-station"));
    assert!(agent.run(&["store", "rm", own]).status.success());
    let mut third = Station::begun(&v6);
    let output = agent.run(&["store", "put", global, r#"["192.0.2.50"]"#]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("ADDRESS:PORT"), "{output:?}");
    assert!(agent.run(&["store", "rm", global]).status.success());
    over(&mut third);
}

#[test]
fn a_station_that_does_not_read_holds_nobody_up_and_receives_all_later() {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.set_recv_buffer_size(4096).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    listener.listen(8).unwrap();
    let listener = TcpListener::from(listener);
    let agent = Agent::start(&["--bmp-station", &listener.local_addr().unwrap().to_string()]);
    // It connects and then does not read while 12 MB are sent: more than the buffers hold.
    let silent = Station::accept(&listener);
    let file = agent.path("in.mrt");
    let prefixes: Vec<String> = (0..12_000).map(|n| format!("11.{}.{}.0/24", n / 256, n % 256)).collect();
    table(&file, &prefixes, 240);
    let _replay = agent.replay(&file, "60");
    let begin = Instant::now();
    agent.wait_for("the table", |a| {
        let (_, peer) = a.get("/v1/bgp/peers/127.0.0.2");
        peer["families"][0]["best"] == 12_000
    });
    println!("the table came in {:?}", begin.elapsed());
    agent.wait_for("its end", |a| a.log().contains("it no longer reads"));
    drop(silent);
    let mut station = Station::begun(&listener);
    station.up();
    assert_eq!(station.routes(prefixes.len()).len(), prefixes.len());
    let (_, peer) = agent.get("/v1/bgp/peers/127.0.0.2");
    assert_eq!((&peer["state"], &peer["flaps"]), (&"Established".into(), &0.into()), "{peer}");
}

/// Routes of 127.0.0.2 that a station received, pre-policy and post-policy: LOCAL_PREF by prefix.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
struct StationMessage {
    pre: BTreeSet<String>,
    post: BTreeMap<String, Option<u32>>,
    /// Loc-RIB.
    loc: BTreeMap<String, Option<u32>>,
    /// Number of End-of-RIBs, post-policy and of the Loc-RIB.
    ends: usize,
}

/// Returns the sample without the rejected prefix.
fn accepted(refused: &str, pref: u32) -> BTreeMap<String, Option<u32>> {
    PREFIXES.iter().filter(|p| **p != refused).map(|p| ((*p).to_owned(), Some(pref))).collect()
}

/// Decodes an UPDATE in BMP, of a session between AS 65002 and this AS.
fn decoded<'a>(peer: &PeerHeader, local_as: u32, update: &'a [u8]) -> Update<'a> {
    let session = tortie_bgp::mrt::Message {
        peer_as: 65002,
        local_as,
        interface: 0,
        peer: peer.address,
        local: peer.address,
        as4: !peer.as2,
        sent: false,
        add_path: false,
        octets: update,
    }
    .session();
    Update::decode(Frame::next(update, true).unwrap().unwrap().body, &session).unwrap()
}

impl Station {
    /// Reads until `want` is satisfied.
    fn until(&mut self, reported: &mut StationMessage, want: impl Fn(&StationMessage) -> bool) {
        while !want(reported) {
            let octets = self.next();
            let Message::RouteMonitoring { peer, update } = Message::next(&octets).unwrap().unwrap().0 else {
                continue;
            };
            // As on an iBGP session: LOCAL_PREF of an eBGP peer would be ignored.
            let update = decoded(&peer, 65002, update);
            let withdrawn = update.withdrawn.iter().flat_map(|n| n.cidrs()).map(|c| c.to_string());
            let reach = update.reach.iter();
            let reach = reach.flat_map(|r| r.nlri.cidrs().map(|c| (c.to_string(), r.attributes.local_pref)));
            let table = if peer.kind == PeerHeader::LOC_RIB { &mut reported.loc } else { &mut reported.post };
            if peer.post_policy || peer.kind == PeerHeader::LOC_RIB {
                reported.ends += usize::from(update.end_of_rib.is_some());
                withdrawn.for_each(|prefix| _ = table.remove(&prefix));
                table.extend(reach);
            } else {
                withdrawn.for_each(|prefix| _ = reported.pre.remove(&prefix));
                reported.pre.extend(reach.map(|(prefix, _)| prefix));
            }
        }
    }
}

#[test]
fn a_station_may_receive_what_import_policy_makes_of_routes() {
    let (both, post) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let agent = Agent::start(&[]);
    agent.filter("203.0.113.0/24", 200);
    agent.filtered();
    let key = "/calico/bgp/v1/host/h1/bmp_stations";
    let [first, second] = [(&both, "both"), (&post, "post")]
        .map(|(l, policy)| format!(r#"{{"address": "{}", "policy": "{policy}"}}"#, l.local_addr().unwrap()));
    agent.put(key, &format!("[{first}]"));
    let mut station = Station::begun(&both);
    let file = agent.path("in.mrt");
    sample(&file);
    let _replay = agent.replay(&file, "60");
    station.up();
    let mut reported = StationMessage::default();
    // Live messages.
    let want = accepted("203.0.113.0/24", 200);
    station.until(&mut reported, |t| t.pre == all() && t.post == want);
    // The policy changes without a message of the peer: newly rejected routes are withdrawn.
    agent.filter("198.51.100.0/24", 50);
    let want = accepted("198.51.100.0/24", 50);
    station.until(&mut reported, |t| t.pre == all() && t.post == want);
    // A station that connects later receives the table, limited to the parts that it is configured for.
    agent.put(key, &format!("[{first}, {second}]"));
    let mut late = Station::begun(&post);
    late.up();
    let mut incoming = StationMessage::default();
    late.until(&mut incoming, |t| t.post == want && t.ends > 0);
    assert_eq!(incoming.pre, BTreeSet::new());
}

impl Station {
    /// Expects the Peer Up of the router itself, in this AS (RFC 9069 5.2).
    fn router(&mut self, asn: u32) {
        let octets = self.next();
        let Message::PeerUp { peer, up } = Message::next(&octets).unwrap().unwrap().0 else {
            panic!("{octets:?}")
        };
        assert_eq!((peer.kind, peer.filtered, peer.asn), (PeerHeader::LOC_RIB, false, asn));
        assert_eq!((peer.address, up.local), (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()));
        assert_eq!((up.local_port, up.remote_port), (0, 0));
        let open = Open::decode(Frame::next(up.sent, false).unwrap().unwrap().body).unwrap();
        assert_eq!((open.asn, open.capabilities.as4, up.sent), (asn, Some(asn), up.received));
        assert_eq!(open.capabilities.families.iter().count(), 2);
        assert_eq!(tables(&up.information), ["global"]);
    }
}

/// Returns the table names of a Loc-RIB (RFC 9069 5.2.1).
fn tables(information: &Tlvs<'_>) -> Vec<String> {
    let named = information.iter().filter(|tlv| tlv.kind == info::TABLE);
    named.map(|tlv| String::from_utf8_lossy(tlv.value).into_owned()).collect()
}

#[test]
fn a_station_may_receive_the_loc_rib() {
    let (first, later) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let agent = Agent::start(&[]);
    agent.filter("203.0.113.0/24", 200);
    agent.filtered();
    let key = "/calico/bgp/v1/host/h1/bmp_stations";
    let [one, two] =
        [&first, &later].map(|l| format!(r#"{{"address": "{}", "policy": "loc"}}"#, l.local_addr().unwrap()));
    agent.put(key, &format!("[{one}]"));
    let mut station = Station::begun(&first);
    station.router(64512);
    let file = agent.path("in.mrt");
    sample(&file);
    let replay = agent.replay(&file, "60");
    let mut reported = StationMessage::default();
    // Live messages, after policy.
    let want = accepted("203.0.113.0/24", 200);
    station.until(&mut reported, |t| t.loc == want && t.ends == 2);
    agent.filter("198.51.100.0/24", 50);
    let want = accepted("198.51.100.0/24", 50);
    station.until(&mut reported, |t| t.loc == want);
    // A station that connects later receives the whole table.
    agent.put(key, &format!("[{one}, {two}]"));
    let mut late = Station::begun(&later);
    late.up();
    late.router(64512);
    let mut incoming = StationMessage::default();
    late.until(&mut incoming, |t| t.loc == want && t.ends == 2);
    // Routes of a lost peer are withdrawn.
    drop(replay);
    for (station, reported) in [(&mut station, &mut reported), (&mut late, &mut incoming)] {
        station.until(reported, |t| t.loc.is_empty());
        assert_eq!((&reported.pre, &reported.post), (&BTreeSet::new(), &BTreeMap::new()), "not asked for");
    }
    // With another AS it is reported as another router.
    agent.put("/calico/bgp/v1/host/h1/as_num", "64513");
    loop {
        let octets = station.next();
        if let Message::PeerDown { peer, reason: PeerDown::LocRib(information) } =
            Message::next(&octets).unwrap().unwrap().0
        {
            assert_eq!((peer.kind, peer.asn), (PeerHeader::LOC_RIB, 64512));
            assert_eq!(tables(&information), ["global"]);
            break;
        }
    }
    station.router(64513);
}
