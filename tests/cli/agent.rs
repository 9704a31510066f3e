//! Commands that query an agent: one that does not run, one without permission, and one that answers.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::command::{Running, SECRET, Store, TORTIE, command, fails, stderr, stdout, tortie};

#[test]
fn without_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let socket = socket.to_str().unwrap();
    for words in [
        &["status"][..],
        &["bgp", "peers"],
        &["bgp", "peer", "x"],
        &["bgp", "ranges"],
        &["bgp", "routes"],
        &["bgp", "reset", "x"],
        &["bgp", "reset", "--all", "--soft-in"],
        &["route", "list"],
        &["route", "get", "192.0.2.1"],
        &["store", "accept"],
        &["endpoint", "list"],
        &["endpoint", "show", "x"],
        &["policy", "list"],
        &["policy", "show", "x"],
        &["diff"],
        &["store", "rm", "/calico/v1/Ready", "--dry-run", "dataplane"],
        &["policy", "trace", "--from", "a", "--to", "b", "--proto", "icmp"],
        &["why", "packet", "--from", "a", "--to", "b", "--proto", "icmp"],
    ] {
        fails(3, "no-agent", &[&["--socket", socket], words].concat(), &[socket, "systemctl"]);
    }
    // A socket file without a listener.
    let dead = dir.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    fails(3, "no-agent", &["--socket", dead.to_str().unwrap(), "status"], &["dead.sock", "does not answer"]);
}

/// Runs the program from a public folder as an unprivileged user.
fn nobody(dir: &Path, words: &[&str]) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "needs root to become somebody else");
        eprintln!("skipped: needs root to become somebody else");
        return None;
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.join("tortie");
    if !program.exists() {
        crate::common::command::copy_program(TORTIE, &program);
    }
    Some(Command::new(program).args(words).uid(65534).gid(65534).output().unwrap())
}

#[test]
fn without_permission() {
    let store = Store::with(&[("/calico/v1/Ready", "true")]);
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(store.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let Some(output) = nobody(dir.path(), &["--datastore", &store.url, "store", "ls"]) else { return };
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(stderr(&output).contains("store.db") && stderr(&output).contains("sudo"), "{output:?}");
    std::fs::set_permissions(store.dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let output = nobody(dir.path(), &["--datastore", &store.url, "store", "export"]).unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    // The socket.
    let path = dir.path().join("tortie.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
    let output = nobody(dir.path(), &["--socket", path.to_str().unwrap(), "status", "-o", "json"]).unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], "denied");
    assert!(error["error"]["text"].as_str().unwrap().contains("group tortie"), "{error}");
}

/// An agent without kernel access, with its own store and socket.
pub(crate) struct Agent {
    running: Running,
    pub(crate) store: Store,
    socket: String,
    /// Address on which it accepts BGP sessions.
    pub(crate) listen: std::net::SocketAddr,
}

/// Returns the command line of an agent that does not use the kernel.
pub(crate) fn words<'a>(store: &'a str, socket: &'a str, cache: &'a str, listen: &'a str) -> [&'a str; 17] {
    [
        "--datastore",
        store,
        "--socket",
        socket,
        "--node",
        "h1",
        "agent",
        "--kernel",
        "off",
        "--http",
        "none",
        "--cache",
        cache,
        "--ip4",
        "127.0.0.1/8",
        "--bgp-listen",
        listen,
    ]
}

impl Agent {
    pub(crate) fn start(entries: &[(&str, &str)]) -> Self {
        Self::start_as(entries, |_| ())
    }

    /// Starts an agent; `more` extends its command.
    pub(crate) fn start_as(entries: &[(&str, &str)], more: impl FnOnce(&mut Command)) -> Self {
        let store = Store::with(entries);
        let socket = store.dir.path().join("tortie.sock").display().to_string();
        let cache = store.dir.path().join("cache").display().to_string();
        let log = std::fs::File::create(store.dir.path().join("log")).unwrap();
        let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let listen = at.to_string();
        let mut command = command(&words(&store.url, &socket, &cache, &listen));
        command.stdout(Stdio::null()).stderr(log);
        more(&mut command);
        let child = command.spawn().unwrap();
        let this = Self { running: Running(child), store, socket, listen: at };
        let until = Instant::now() + Duration::from_secs(60);
        while this.run(&["bgp", "peers"]).status.code() != Some(0) {
            assert!(Instant::now() < until, "{}", this.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        this
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.store.dir.path().join("log")).unwrap()
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        tortie(&[&["--socket", &self.socket], words].concat())
    }

    /// Returns the flags that select this agent.
    pub(crate) fn flags(&self) -> [&str; 6] {
        ["--socket", &self.socket, "--datastore", &self.store.url, "--node", "h1"]
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Stops the agent with SIGTERM; returns its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let pid = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.running.0.wait().unwrap().code()
    }
}

#[test]
fn what_an_agent_does_not_have_is_an_honest_no() {
    let peer = format!(r#"{{"ip":"127.0.0.2","as_num":"65000","port":1,"password":"{SECRET}"}}"#);
    let broken = format!(r#"{{"ip":"127.0.0.3","as_num":"x","password":"{SECRET}"}}"#);
    let mut agent = Agent::start(&[
        ("/calico/v1/Ready", "true"),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.2", &peer),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.3", &broken),
    ]);
    let with = |words: &[&'static str]| {
        [
            &["--socket".to_owned(), agent.socket.clone()][..],
            &words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(),
        ]
        .concat()
    };
    let no = |code: i32, name: &str, words: &[&'static str], named: &[&str]| {
        let all = with(words);
        let output =
            tortie(&[&all.iter().map(String::as_str).collect::<Vec<_>>()[..], &["-o", "json"]].concat());
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(error["error"]["code"], name, "{error}");
        for word in named {
            assert!(error["error"]["text"].as_str().unwrap().contains(word), "{words:?}: {error}");
        }
    };
    no(1, "not-found", &["bgp", "peer", "nobody"], &["nobody", "tortie bgp peers"]);
    no(1, "not-found", &["bgp", "reset", "nobody"], &["nobody"]);
    no(1, "not-found", &["bgp", "routes", "--from", "nobody"], &["nobody"]);
    no(1, "not-found", &["bgp", "routes", "192.0.2.0/24"], &["BGP table"]);
    no(1, "no-route", &["route", "get", "192.0.2.1"], &["192.0.2.1"]);
    no(1, "not-ready", &["status"], &["h1", "not ready"]);
    // A second agent on the same socket.
    let words = [
        "--datastore",
        &agent.store.url,
        "--socket",
        &agent.socket,
        "--node",
        "h2",
        "agent",
        "--kernel",
        "off",
        "--http",
        "none",
    ];
    let second = tortie(&words);
    assert_eq!(second.status.code(), Some(7), "{second:?}");
    assert!(stderr(&second).contains("another agent") && stderr(&second).contains("--socket"), "{second:?}");
    // `--watch` prints again when an event occurs, long before its interval of 10 s; with JSON, one answer
    // per line.
    for (words, key, value, word) in [
        (
            &["--socket", &agent.socket, "--watch", "-o", "json", "bgp", "peers"][..],
            "/calico/bgp/v1/global/peer_v4/127.0.0.4",
            r#"{"ip":"127.0.0.4","as_num":"65000"}"#,
            "127.0.0.4",
        ),
        (
            &["--datastore", &agent.store.url, "--watch", "-o", "json", "ipam", "pools"],
            "/calico/v1/ipam/v4/pool/10.65.0.0-16",
            r#"{"cidr":"10.65.0.0/16"}"#,
            "10.65.0.0/16",
        ),
    ] {
        let mut child = command(words).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let watching = Running(child);
        let is_whole = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        let first = lines.next().unwrap();
        assert!(is_whole(&first) && !first.contains(word), "{first}");
        let begin = Instant::now();
        assert!(agent.store.run(&["store", "put", key, value]).status.success());
        let reported = lines.find(|line| is_whole(line) && line.contains(word));
        assert!(
            reported.is_some() && begin.elapsed() < Duration::from_secs(8),
            "{words:?}: {:?}",
            begin.elapsed()
        );
        drop(watching);
    }
    // All output of the agent about peers with passwords.
    let mut said = String::new();
    for words in [
        &["status", "-o", "json"][..],
        &["status"],
        &["bgp", "peers", "-o", "yaml"],
        &["bgp", "peer", "127.0.0.2"],
    ] {
        let output = agent.run(words);
        said += &(stdout(&output) + &stderr(&output));
    }
    assert!(said.contains("127.0.0.2") && said.contains("peer_v4/127.0.0.3"), "{said}");
    let pid = agent.running.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(agent.running.0.wait().unwrap().success());
    said += &agent.log();
    assert!(!said.contains(SECRET), "{said}");
}
