//! MRT and BMP of a running agent: a file is played into it, and what it records, dumps and tells a station is the same.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tortie_bgp::attr::{AsPath, Attributes};
use tortie_bgp::bmp::{Message, PeerDown, PeerHeader};
use tortie_bgp::mrt::{Body, EntryList, PeerEntry, PeerIndex, Record, Rib, Stamp, encode_attributes};
use tortie_bgp::wire::{Frame, Open, Update};
use tortie_config::Cidr;

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const SOON: Duration = Duration::from_secs(30);
const PREFIXES: [&str; 4] = ["198.51.100.0/24", "198.51.100.128/25", "203.0.113.0/24", "203.0.113.7/32"];

/// Others' readers of MRT, which print the same form: that of RIPE, and that of mrtparse.
const REFEREES: [&str; 2] = ["bgpdump", "mrt2bgpdump"];

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Agent {
    dir: tempfile::TempDir,
    listen: String,
    running: Running,
}

fn command(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(TORTIE);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TORTIE_") {
            command.env_remove(name);
        }
    }
    command
        .env("TORTIE_DATASTORE", format!("sqlite:{}", dir.join("store.db").display()))
        .env("TORTIE_SOCKET", dir.join("tortie.sock"))
        .args(words)
        .stdin(Stdio::null());
    command
}

impl Agent {
    fn start(more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let peer = r#"{"ip":"127.0.0.2","as_num":"65002"}"#;
        for (key, value) in [("/calico/v1/Ready", "true"), ("/calico/bgp/v1/global/peer_v4/127.0.0.2", peer)]
        {
            assert!(command(dir.path(), &["store", "put", key, value]).output().unwrap().status.success());
        }
        let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let cache = dir.path().join("cache").display().to_string();
        let words = ["--node", "h1", "agent", "--kernel", "off", "--http", "none", "--ip4", "127.0.0.1/8"];
        let words = [&words[..], &["--cache", &cache, "--bgp-listen", &listen], more].concat();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = command(dir.path(), &words).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let this = Self { dir, listen, running: Running(child) };
        this.wait_for("the API", |a| a.run(&["bgp", "peers"]).status.success());
        this
    }

    fn run(&self, words: &[&str]) -> Output {
        command(self.dir.path(), words).output().unwrap()
    }

    /// One request on the socket: status and body.
    fn get(&self, path: &str) -> (u16, serde_json::Value) {
        let mut stream = UnixStream::connect(self.path("tortie.sock")).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    fn wait_for(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let until = Instant::now() + SOON;
        while !is(self) {
            assert!(Instant::now() < until, "{what} does not come\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Plays the sample; ends by itself after so many seconds.
    fn replay(&self, file: &Path, hold: &str) -> Running {
        let words = ["--to", &self.listen, "--from", "127.0.0.2", "--as", "65002", "--hold", hold];
        let file = file.to_str().unwrap();
        let words = [&["bgp", "mrt", "replay", file][..], &words].concat();
        let quiet = || Stdio::null();
        Running(command(self.dir.path(), &words).stdout(quiet()).stderr(quiet()).spawn().unwrap())
    }

    fn show(&self, file: &Path) -> Vec<serde_json::Value> {
        let output = self.run(&["-o", "json", "bgp", "mrt", "show", file.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

/// A table as a collector writes it: one peer, four prefixes.
fn sample(path: &Path) {
    table(path, &PREFIXES, 1);
}

/// With so many communities on each route.
fn table(path: &Path, prefixes: &[impl AsRef<str>], communities: u32) {
    let stamp = Stamp { seconds: 1_700_000_000, micros: None };
    let address = IpAddr::from([192, 0, 2, 7]);
    let peer = PeerEntry { router_id: Ipv4Addr::new(192, 0, 2, 7), address, asn: 64500 };
    let index = PeerIndex { collector: Ipv4Addr::new(192, 0, 2, 1), view: b"", peers: vec![peer] };
    let mut out = Vec::new();
    Record { stamp, body: Body::PeerIndex(index) }.write(&mut out);
    for (sequence, prefix) in (0..).zip(prefixes) {
        let prefix: Cidr = prefix.as_ref().parse().unwrap();
        let mut attributes = Attributes::new(address);
        attributes.as_path = AsPath::from_sequence(&[64500, 200_000 + sequence]);
        attributes.communities = (0..communities).map(|n| 64500 << 16 | (7 + n)).collect();
        let mut octets = Vec::new();
        assert!(encode_attributes(&attributes, &mut octets));
        let mut list = EntryList::new(false);
        assert!(list.push(0, stamp.seconds, 0, &octets));
        let rib = Rib { sequence, prefix, entries: list.entries() };
        Record { stamp, body: Body::Rib(rib) }.write(&mut out);
    }
    std::fs::write(path, out).unwrap();
}

#[test]
fn a_listing_of_many_routes_comes_in_pages_that_the_command_follows() {
    let agent = Agent::start(&[]);
    let file = agent.path("in.mrt");
    let prefixes: Vec<String> = (0..12_000).map(|n| format!("11.{}.{}.0/24", n / 256, n % 256)).collect();
    table(&file, &prefixes, 1);
    let _replay = agent.replay(&file, "60");
    let list = |words: &[&str]| -> (Vec<String>, bool) {
        let output = agent.run(&[&["bgp", "routes", "-o", "json"], words].concat());
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        (items.map(|r| r["prefix"].as_str().unwrap().to_owned()).collect(), list["more"] == true)
    };
    // In the order of prefixes, whatever the order of the table.
    agent.wait_for("the table", |_| list(&[]).0.len() == prefixes.len());
    let mut sorted: Vec<Cidr> = prefixes.iter().map(|p| p.parse().unwrap()).collect();
    sorted.sort_unstable();
    assert!(list(&[]).0.into_iter().eq(sorted.iter().map(ToString::to_string)));
    assert_eq!(list(&["--from", "127.0.0.2"]), (list(&[]).0, false));
    let (some, more) = list(&["--max", "10500"]);
    assert_eq!((some.len(), more), (10_500, true));
    let (inside, more) = list(&["--within", "11.3.0.0/16"]);
    assert_eq!((inside.len(), more), (256, false));
    assert!(inside.iter().all(|p| p.starts_with("11.3.")));

    // The pages of the API, by hand.
    let (mut seen, mut after, mut pages) = (BTreeSet::new(), String::new(), 0);
    loop {
        let (code, page) = agent.get(&format!("/v1/bgp/routes?within=11.3.0.0/16&max=100{after}"));
        assert_eq!(code, 200, "{page}");
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 100 && items.iter().all(|r| seen.insert(r["prefix"].to_string())), "twice");
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 256);
    assert!(pages >= 3, "{pages}");
    let (code, error) = agent.get("/v1/bgp/routes?after=11.0.0.0/24");
    assert!(
        code == 400 && error.to_string().contains("`11.0.0.0/24` is not the `next` of a page"),
        "{error}"
    );
}

fn all() -> BTreeSet<String> {
    PREFIXES.map(str::to_owned).into()
}

/// A tool of the peers' folder, or of the system; a missing one is a failure in CI.
fn tool(name: &str) -> Option<PathBuf> {
    let peers = std::env::var_os("TORTIE_PEERS").map(PathBuf::from);
    let found = peers.into_iter().chain(["/usr/bin".into()]).map(|d| d.join(name)).find(|p| p.exists());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "{name} is missing");
        eprintln!("skipped: {name} is missing");
    }
    found
}

#[test]
fn a_file_is_played_recorded_and_dumped() {
    let agent = Agent::start(&[]);
    let (file, dump, updates) = (agent.path("in.mrt"), agent.path("dump.mrt"), agent.path("updates.mrt"));
    sample(&file);
    let words = ["bgp", "mrt", "updates", updates.to_str().unwrap(), "--peer", "127.0.0.2"];
    let said = std::fs::File::create(agent.path("said")).unwrap();
    let recorder = Running(command(agent.dir.path(), &words).stderr(said).spawn().unwrap());
    agent.wait_for("the recording", |a| std::fs::read_to_string(a.path("said")).unwrap().contains("ctrl-c"));

    let replay = agent.replay(&file, "60");
    agent.wait_for("the table", |a| {
        let list = String::from_utf8(a.run(&["bgp", "routes"]).stdout).unwrap();
        PREFIXES.iter().all(|p| list.contains(p))
    });
    let output = agent.run(&["bgp", "mrt", "dump", dump.to_str().unwrap()]);
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stderr).contains("4 prefixes"),
        "{output:?}"
    );
    let routes: Vec<_> = agent.show(&dump).into_iter().filter(|l| l["type"] == "route").collect();
    assert_eq!(
        routes.iter().map(|r| r["prefix"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(),
        all()
    );
    for route in &routes {
        assert_eq!((&route["peer"], &route["peerAs"]), (&"127.0.0.2".into(), &65002.into()));
        assert!(route["asPath"].as_str().unwrap().starts_with("65002 64500 20000"), "{route}");
        assert_eq!(route["communities"], serde_json::json!(["64500:7"]));
    }
    for referee in REFEREES.iter().filter_map(|name| tool(name)) {
        let output = Command::new(referee).arg("-m").arg(&dump).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            text.contains("|B|127.0.0.2|65002|198.51.100.0/24|65002 64500 200000|IGP|192.0.2.254|"),
            "{text}"
        );
    }

    drop(replay);
    let interrupt = rustix::process::Pid::from_child(&recorder.0);
    agent.wait_for("the end of the session", |a| {
        String::from_utf8(a.run(&["bgp", "peers"]).stdout).unwrap().contains("0 established")
    });
    rustix::process::kill_process(interrupt, rustix::process::Signal::INT).unwrap();
    let mut recorder = recorder;
    assert!(recorder.0.wait().unwrap().success(), "{}", std::fs::read_to_string(agent.path("said")).unwrap());
    let lines = agent.show(&updates);
    let heard: BTreeSet<String> = lines
        .iter()
        .filter(|l| l["type"] == "announce" && l["direction"] == "received")
        .flat_map(|l| l["prefixes"].as_array().unwrap().iter().map(|p| p.as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(heard, all());
    assert_eq!(lines.iter().filter(|l| l["type"] == "open").count(), 2);
    assert!(lines.iter().any(|l| l["type"] == "state" && l["to"] == "Established"), "{lines:?}");
    assert!(lines.iter().any(|l| l["type"] == "state" && l["from"] == "Established"), "{lines:?}");
    // mrtparse 1.6 fails on every record with microseconds.
    if let Some(bgpdump) = tool("bgpdump") {
        let output = Command::new(bgpdump).arg("-m").arg(&updates).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().filter(|l| l.contains("|A|127.0.0.2|65002|")).count(), 4, "{text}");
    }
}

#[test]
fn a_replay_is_for_labs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in.mrt");
    sample(&file);
    let file = file.to_str().unwrap();
    let output = command(dir.path(), &["bgp", "mrt", "replay", file, "--to", "10.0.0.1", "--as", "1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--yes"), "{output:?}");
    std::fs::write(dir.path().join("x.gz"), [0x1f, 0x8b, 8, 0]).unwrap();
    let zipped = dir.path().join("x.gz").display().to_string();
    let output = command(dir.path(), &["bgp", "mrt", "show", &zipped]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("zcat"), "{output:?}");
}

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

    /// After its Initiation.
    fn begun(listener: &TcpListener) -> Self {
        let mut station = Self::accept(listener);
        let octets = station.next();
        assert!(matches!(Message::next(&octets).unwrap().unwrap().0, Message::Initiation(_)), "{octets:?}");
        station
    }

    /// The octets of the next message.
    fn next(&mut self) -> Vec<u8> {
        loop {
            if let Some((_, len)) = Message::next(&self.octets).unwrap() {
                return self.octets.drain(..len).collect();
            }
            let mut part = [0; 4096];
            let n = self.stream.read(&mut part).unwrap();
            assert!(n > 0, "the agent ended the connection");
            self.octets.extend_from_slice(part.get(..n).unwrap());
        }
    }

    /// Reads until so many prefixes were told, and gives them.
    fn routes(&mut self, count: usize) -> BTreeSet<String> {
        let mut heard = BTreeSet::new();
        while heard.len() < count {
            let octets = self.next();
            if let Message::RouteMonitoring { peer, update } = Message::next(&octets).unwrap().unwrap().0 {
                assert_eq!((peer.address, peer.asn, peer.post_policy), ([127, 0, 0, 2].into(), 65002, false));
                let update = decoded(&peer, 64512, update);
                heard.extend(update.reach.iter().flat_map(|r| r.nlri.cidrs()).map(|c| c.to_string()));
            }
        }
        heard
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
fn a_station_hears_everything_in_order_and_again_after_a_break() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut agent = Agent::start(&["--bmp-station", &address]);
    let file = agent.path("in.mrt");
    sample(&file);
    let mut station = Station::accept(&listener);
    let octets = station.next();
    let Message::Initiation(tlvs) = Message::next(&octets).unwrap().unwrap().0 else { panic!("{octets:?}") };
    assert!(tlvs.iter().any(|t| t.kind == 2 && t.value == b"h1"));

    // As it comes.
    let mut replay = agent.replay(&file, "4");
    station.up();
    assert_eq!(station.routes(4), all());

    // A station that comes later hears the table of the session that is up.
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
    let put = |key: &str, value: &str| {
        let output = agent.run(&["store", "put", key, value]);
        assert!(output.status.success(), "{output:?}");
    };
    let over = |station: &mut Station| {
        let octets = station.next();
        assert!(matches!(Message::next(&octets).unwrap().unwrap().0, Message::Termination(_)), "{octets:?}");
    };
    put(global, &list(&v6));
    let mut first = Station::begun(&v6);
    // What is told does not depend on how it is told.
    let file = agent.path("in.mrt");
    sample(&file);
    let replay = agent.replay(&file, "60");
    first.up();
    assert_eq!(first.routes(4), all());
    drop(replay);
    // The host's own list replaces the global one; an empty one is none.
    put(own, &list(&v4));
    let mut second = Station::begun(&v4);
    while !matches!(Message::next(&first.next()).unwrap().unwrap().0, Message::Termination(_)) {}
    // One that is away is told of by name.
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
fn a_station_that_does_not_read_holds_nobody_up_and_hears_all_later() {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.set_recv_buffer_size(4096).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    listener.listen(8).unwrap();
    let listener = TcpListener::from(listener);
    let agent = Agent::start(&["--bmp-station", &listener.local_addr().unwrap().to_string()]);
    // It connects and is silent from then on, while 12 MB come for it: more than buffers on the way hold.
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
    agent.wait_for("its end", |a| a.log().contains("it takes nothing any more"));
    drop(silent);
    let mut station = Station::begun(&listener);
    station.up();
    assert_eq!(station.routes(prefixes.len()).len(), prefixes.len());
    let (_, peer) = agent.get("/v1/bgp/peers/127.0.0.2");
    assert_eq!((&peer["state"], &peer["flaps"]), (&"Established".into(), &0.into()), "{peer}");
}

/// What a station knows of the routes of 127.0.0.2, before policy and after it: LOCAL_PREF by prefix.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
struct Told {
    pre: BTreeSet<String>,
    post: BTreeMap<String, Option<u32>>,
    /// End-of-RIBs after policy.
    ends: usize,
}

/// An UPDATE as a station is told it, of the session of AS 65002 with one in this AS.
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
    /// Reads until it is told this.
    fn until(&mut self, told: &mut Told, want: impl Fn(&Told) -> bool) {
        while !want(told) {
            let octets = self.next();
            let Message::RouteMonitoring { peer, update } = Message::next(&octets).unwrap().unwrap().0 else {
                continue;
            };
            // As inside an AS: LOCAL_PREF of an eBGP peer would not be read.
            let update = decoded(&peer, 65002, update);
            let withdrawn = update.withdrawn.iter().flat_map(|n| n.cidrs()).map(|c| c.to_string());
            let reach = update.reach.iter();
            let reach = reach.flat_map(|r| r.nlri.cidrs().map(|c| (c.to_string(), r.attributes.local_pref)));
            if peer.post_policy {
                told.ends += usize::from(update.end_of_rib.is_some());
                withdrawn.for_each(|prefix| _ = told.post.remove(&prefix));
                told.post.extend(reach);
            } else {
                withdrawn.for_each(|prefix| _ = told.pre.remove(&prefix));
                told.pre.extend(reach.map(|(prefix, _)| prefix));
            }
        }
    }
}

#[test]
fn a_station_may_hear_what_import_policy_makes_of_routes() {
    let (both, post) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let agent = Agent::start(&[]);
    let put = |key: &str, value: &str| {
        let output = agent.run(&["store", "put", key, value]);
        assert!(output.status.success(), "{output:?}");
    };
    let filter = |refused: &str, pref: u32| {
        let rules = format!(
            r#"{{"import": [{{"match": {{"prefixes": ["{refused}"]}}, "then": "reject"}},
                {{"set": {{"local_pref": {pref}}}, "then": "accept"}}]}}"#
        );
        put("/calico/bgp/v1/global/filters/in", &rules);
    };
    filter("203.0.113.0/24", 200);
    put("/calico/bgp/v1/global/peer_v4/127.0.0.2", r#"{"ip":"127.0.0.2","as_num":"65002","filters":["in"]}"#);
    let key = "/calico/bgp/v1/host/h1/bmp_stations";
    let [first, second] = [(&both, "both"), (&post, "post")]
        .map(|(l, policy)| format!(r#"{{"address": "{}", "policy": "{policy}"}}"#, l.local_addr().unwrap()));
    put(key, &format!("[{first}]"));
    let mut station = Station::begun(&both);
    let file = agent.path("in.mrt");
    sample(&file);
    let _replay = agent.replay(&file, "60");
    station.up();
    let mut told = Told::default();
    let accepted = |refused: &str, pref: u32| -> BTreeMap<String, Option<u32>> {
        PREFIXES.iter().filter(|p| **p != refused).map(|p| ((*p).to_owned(), Some(pref))).collect()
    };
    // As it comes.
    let want = accepted("203.0.113.0/24", 200);
    station.until(&mut told, |t| t.pre == all() && t.post == want);
    // The policy changes, the peer says nothing: what is refused now is withdrawn.
    filter("198.51.100.0/24", 50);
    let want = accepted("198.51.100.0/24", 50);
    station.until(&mut told, |t| t.pre == all() && t.post == want);
    // A station that comes later hears the table, and only what it asked for.
    put(key, &format!("[{first}, {second}]"));
    let mut late = Station::begun(&post);
    late.up();
    let mut heard = Told::default();
    late.until(&mut heard, |t| t.post == want && t.ends > 0);
    assert_eq!(heard.pre, BTreeSet::new());
}
