//! MRT and BMP of a running agent: a file is replayed into it, and its recordings, dumps and BMP messages
//! have the same contents.

mod scrape;
mod station;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tortie_bgp::attr::{AsPath, Attributes};
use tortie_bgp::mrt::{Body, EntryList, PeerEntry, PeerIndex, Record, Rib, Stamp, encode_attributes};
use tortie_net::Cidr;

use crate::rig::net::with_others;

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const SOON: Duration = Duration::from_secs(60);
const PREFIXES: [&str; 4] = ["198.51.100.0/24", "198.51.100.128/25", "203.0.113.0/24", "203.0.113.7/32"];

/// Independent MRT readers with the same output format: RIPE's bgpdump, and mrtparse.
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
        with_others();
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

    /// Returns a page as text.
    fn text(&self, path: &str) -> String {
        let mut stream = UnixStream::connect(self.path("tortie.sock")).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// Sends one request to the socket. Returns status and body.
    fn get(&self, path: &str) -> (u16, serde_json::Value) {
        let mut stream = UnixStream::connect(self.path("tortie.sock")).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    fn put(&self, key: &str, value: &str) {
        let output = self.run(&["store", "put", key, value]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Sets a filter `in` that rejects a prefix and sets LOCAL_PREF of all others.
    fn filter(&self, refused: &str, pref: u32) {
        let rules = format!(
            r#"{{"import": [{{"match": {{"prefixes": ["{refused}"]}}, "then": "reject"}},
                {{"set": {{"local_pref": {pref}}}, "then": "accept"}}]}}"#
        );
        self.put("/calico/bgp/v1/global/filters/in", &rules);
    }

    /// Assigns this filter to the peer 127.0.0.2.
    fn filtered(&self) {
        let peer = r#"{"ip":"127.0.0.2","as_num":"65002","filters":["in"]}"#;
        self.put("/calico/bgp/v1/global/peer_v4/127.0.0.2", peer);
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

    /// Replays the sample; exits after `hold` seconds.
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

/// Writes a table as a collector does: one peer, four prefixes.
fn sample(path: &Path) {
    table(path, &PREFIXES, 1);
}

/// Writes a table with this number of communities per route.
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
    // In prefix order, whatever the order of the table.
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

    // Requests the pages of the API directly.
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

/// Returns a tool from the peers' folder or the system; a missing one is a failure in CI.
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
    let incoming: BTreeSet<String> = lines
        .iter()
        .filter(|l| l["type"] == "announce" && l["direction"] == "received")
        .flat_map(|l| l["prefixes"].as_array().unwrap().iter().map(|p| p.as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(incoming, all());
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

/// The dump has this host's block, and independent readers show it.
#[test]
fn a_dump_has_what_this_host_originates() {
    let agent = Agent::start(&[]);
    for words in [
        &["ipam", "pool", "create", "10.244.0.0/16"][..],
        &["ipam", "claim", "10.244.1.0/26", "--node", "h1"],
    ] {
        let output = agent.run(words);
        assert!(output.status.success(), "{output:?}");
    }
    let dump = agent.path("dump.mrt");
    agent.wait_for("the block", |a| {
        String::from_utf8(a.run(&["bgp", "routes"]).stdout).unwrap().contains("10.244.1.0/26")
    });
    assert!(agent.run(&["bgp", "mrt", "dump", dump.to_str().unwrap()]).status.success());
    let routes: Vec<_> = agent.show(&dump).into_iter().filter(|l| l["type"] == "route").collect();
    let [route] = &routes[..] else { panic!("{routes:?}") };
    assert_eq!((&route["prefix"], &route["peer"]), (&"10.244.1.0/26".into(), &"0.0.0.0".into()));
    assert_eq!((&route["nextHop"], &route["malformed"]), (&"0.0.0.0".into(), &serde_json::Value::Null));
    for referee in REFEREES.iter().filter_map(|name| tool(name)) {
        let output = Command::new(referee).arg("-m").arg(&dump).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("|B|0.0.0.0|64512|10.244.1.0/26||IGP|0.0.0.0|"), "{text}");
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
