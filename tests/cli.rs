//! The command line as people and scripts use it: what is wrong is said once, with place and next step, and nothing is
//! changed by it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it must be"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(TORTIE);
    command.args(words).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TORTIE_") {
            command.env_remove(name);
        }
    }
    command
}

fn tortie(words: &[&str]) -> Output {
    command(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with a SQLite store in it.
struct Store {
    dir: tempfile::TempDir,
    url: String,
}

impl Store {
    /// A store that does not exist yet.
    fn none() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("store.db").display());
        Self { dir, url }
    }

    fn with(entries: &[(&str, &str)]) -> Self {
        let this = Self::none();
        for (key, value) in entries {
            let output = this.run(&["store", "put", "--raw", key, value]);
            assert!(output.status.success(), "{output:?}");
        }
        this
    }

    fn run(&self, words: &[&str]) -> Output {
        tortie(&[&["--datastore", &self.url], words].concat())
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn export(&self) -> BTreeMap<String, String> {
        let output = self.run(&["store", "export"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Exit 2, nothing on stdout, and all of these words on stderr; with `-o json` the same as one object.
fn refused(words: &[&str], named: &[&str]) {
    fails(2, "invalid", words, named);
}

fn fails(code: i32, name: &str, words: &[&str], named: &[&str]) {
    let output = tortie(words);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{words:?}: {output:?}");
    for word in named {
        assert!(text.contains(word), "{words:?} does not say {word:?}: {text}");
    }
    let json = tortie(&[words, &["-o", "json"]].concat());
    assert_eq!(json.status.code(), Some(code), "{words:?}: {json:?}");
    let error: serde_json::Value =
        serde_json::from_slice(&json.stderr).unwrap_or_else(|e| panic!("{words:?}: {e}: {}", stderr(&json)));
    assert_eq!(error["error"]["code"], name, "{words:?}: {error}");
    let said = error["error"]["text"].as_str().unwrap();
    for word in named {
        assert!(said.contains(word), "{words:?} does not say {word:?} in JSON: {error}");
    }
    assert_eq!(error.as_object().unwrap().len(), 1);
    assert_eq!(error["error"].as_object().unwrap().len(), 2);
}

#[test]
fn flags_and_addresses() {
    refused(&["nonsense"], &["nonsense", "Usage"]);
    refused(&["status", "--nonsense"], &["--nonsense"]);
    refused(&["agent", "--ip4", "192.0.2.1"], &["--ip4", "192.0.2.1", "ADDRESS/LENGTH"]);
    refused(&["agent", "--ip4", "192.0.2.1/33"], &["--ip4", "192.0.2.1/33"]);
    refused(&["agent", "--ip4", "fd00::1/64"], &["--ip4", "use --ip6"]);
    refused(&["agent", "--ip6", "192.0.2.1/24"], &["--ip6", "use --ip4"]);
    refused(&["agent", "--as", "0"], &["--as", "1..="]);
    refused(&["agent", "--as", "4294967296"], &["--as"]);
    refused(&["agent", "--route-protocol", "4"], &["--route-protocol", "5..="]);
    refused(&["agent", "--route-metric", "x"], &["--route-metric"]);
    refused(&["agent", "--kernel", "both"], &["--kernel", "program", "observe", "off"]);
    refused(&["agent", "--http", "nowhere"], &["--http", "nowhere", "ADDRESS:PORT"]);
    refused(&["agent", "--bgp-listen", "127.0.0.1"], &["--bgp-listen", "127.0.0.1"]);
    refused(&["agent", "--node", ""], &["--node"]);
    refused(&["status", "--etcd-cert", "/x"], &["--etcd-key"]);
    refused(&["route", "get", "192.0.2"], &["192.0.2"]);
    refused(&["bgp", "routes", "10.0.0.0/33"], &["10.0.0.0/33"]);
    refused(&["bgp", "routes", "--within", "10.0.0.0/x"], &["--within", "10.0.0.0/x"]);
    refused(&["bgp", "routes", "--max", "many"], &["--max", "many"]);
    refused(&["bgp", "routes", "--from", "a", "--to", "b"], &["--from", "--to"]);
    refused(&["route", "list", "somewhere"], &["somewhere"]);
    // The form itself cannot be JSON here.
    let output = tortie(&["-o", "xml", "status"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("json"), "{output:?}");
    // Asking for help is no mistake.
    for words in [&["--help"][..], &["store", "import", "--help"], &["--version"], &["version"]] {
        let output = tortie(words);
        assert!(
            output.status.success() && output.stderr.is_empty() && !output.stdout.is_empty(),
            "{words:?}"
        );
    }
}

#[test]
fn the_environment_is_named_as_the_flag_is() {
    let output = command(&["agent"]).env("TORTIE_IP4", "192.0.2.1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--ip4"), "{output:?}");
    let output = command(&["store", "ls"]).env("TORTIE_DATASTORE", "mysql://x").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("mysql://x"), "{output:?}");
}

#[test]
fn urls_and_files_of_the_store() {
    let unusable = |words: &[&str], named: &[&str]| fails(2, "unusable", words, named);
    let forms = "etcd://HOST:PORT";
    for url in [
        "mysql://x",
        "store.db",
        "",
        "sqlite:",
        "etcd://",
        "etcd://h",
        "etcd://h:99999",
        "etcd://h:1,",
        "http://h:2379",
    ] {
        unusable(&["--datastore", url, "store", "ls"], &[url, forms, "sqlite:PATH"]);
        unusable(&["--datastore", url, "agent", "--http", "none"], &[url, forms]);
    }
    let none = Store::none();
    for words in [
        &["ls"][..],
        &["get", "/calico/v1/Ready"],
        &["export"],
        &["validate"],
        &["watch"],
        &["rm", "/calico/x"],
    ] {
        let all = [&["--datastore", &none.url, "store"], words].concat();
        unusable(&all, &["no store at", "store.db", "--datastore"]);
    }
    assert_eq!(std::fs::read_dir(none.dir.path()).unwrap().count(), 0, "asking makes nothing");
    let etcds = ["--datastore", "etcds://127.0.0.1:1", "store", "ls"];
    unusable(&[&etcds[..], &["--etcd-ca", "/no/such/ca.pem"]].concat(), &["--etcd-ca", "/no/such/ca.pem"]);
    unusable(
        &[&etcds[..], &["--etcd-user", "u", "--etcd-password-file", "/no/such/file"]].concat(),
        &["/no/such/file"],
    );
    // Something else under that name.
    let other = none.file("notes.txt", "a text that is no database, and longer than its header is");
    let url = format!("sqlite:{}", other.display());
    unusable(&["--datastore", &url, "store", "ls"], &["notes.txt"]);
    // Right, but away.
    fails(
        3,
        "store-away",
        &["--datastore", "etcd://127.0.0.1:1", "store", "ls"],
        &["127.0.0.1:1", "--datastore"],
    );
}

#[test]
fn keys_and_values() {
    let store = Store::with(&[("/calico/v1/Ready", "true")]);
    let before = store.export();
    let put = |key: &str, value: &str, named: &[&str]| {
        refused(
            &["--datastore", &store.url, "store", "put", key, value],
            &[&[key, "Nothing was written", "--raw"], named].concat(),
        );
    };
    put("calico/v1/Ready", "true", &["/calico/"]);
    put("/calico/v1/Ready", "yes", &["yes", "true or false"]);
    put("/calico/bgp/v1/global/as_num", "0", &["AS number"]);
    put("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.300", &["192.0.2.300", "IPv4 address"]);
    put("/calico/bgp/v1/host/h1/ip_addr_v4", "fd00::1", &["fd00::1"]);
    put("/calico/bgp/v1/global/node_mesh", "{", &["JSON"]);
    put("/calico/v1/ipam/v4/pool/10.0.0.0-16", r#"{"cidr":"10.0.0.0/99"}"#, &["cidr", "10.0.0.0/99"]);
    put("/calico/bgp/v1/global/peer_v4/192.0.2.1", r#"{"ip":"192.0.2.1","as_num":"x"}"#, &["as_num"]);
    put(
        "/calico/v1/policy/tier/default/policy/p",
        r#"{"selector":"a ==","order":1,"inbound_rules":[],"outbound_rules":[]}"#,
        &["selector"],
    );
    assert_eq!(store.export(), before);
    // What is not there is an honest no.
    let get = ["--datastore", &store.url, "store", "get", "/calico/v1/config/LogPrefix"];
    fails(1, "not-found", &get, &["/calico/v1/config/LogPrefix", "store ls"]);
    let rm = ["--datastore", &store.url, "store", "rm", "/calico/v1/config/LogPrefix"];
    fails(1, "not-found", &rm, &["/calico/v1/config/LogPrefix", "nothing deleted"]);
    // Raw bytes go in as they are, are found, and only they.
    let raw = store.run(&["store", "put", "--raw", "/calico/bgp/v1/global/as_num", "x"]);
    assert!(raw.status.success(), "{raw:?}");
    let found = store.run(&["store", "validate"]);
    assert_eq!(found.status.code(), Some(1));
    assert!(
        stdout(&found).contains("/calico/bgp/v1/global/as_num") && stdout(&found).contains("AS number"),
        "{found:?}"
    );
    assert!(!stdout(&found).contains("Ready"));
    let found = store.run(&["store", "validate", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!(list[0]["key"], "/calico/bgp/v1/global/as_num");
    // A prefix is deleted only when that is said.
    assert_eq!(store.run(&["store", "rm", "/calico/bgp/"]).status.code(), Some(1));
    let rm = store.run(&["store", "rm", "--prefix", "/calico/bgp/"]);
    assert!(rm.status.success() && stdout(&rm).contains("1 keys deleted"), "{rm:?}");
    assert_eq!(store.export(), before);
}

#[test]
fn one_bad_value_keeps_a_whole_import_out() {
    let store = Store::none();
    let import = |file: &Path, named: &[&str]| {
        refused(&["--datastore", &store.url, "store", "import", file.to_str().unwrap()], named);
    };
    import(Path::new("/no/such/file.json"), &["/no/such/file.json", "standard input"]);
    let shape = "one JSON object";
    import(&store.file("cut.json", "{\"/calico/v1/Ready\": \"tr"), &["cut.json", "line 1", shape]);
    import(&store.file("list.json", "[]"), &["list.json", shape]);
    import(&store.file("empty.json", ""), &["empty.json", shape]);
    let twice = r#"{"/calico/v1/Ready": "true", "/calico/v1/Ready": "false"}"#;
    import(&store.file("twice.json", twice), &["twice.json", "/calico/v1/Ready is there twice", "line 1"]);
    let mixed = r#"{
        "/calico/v1/Ready": "true",
        "/calico/bgp/v1/global/as_num": "many",
        "/calico/bgp/v1/global/node_mesh": {"enabled": true},
        "calico/v1/config/LogPrefix": "x"
    }"#;
    let file = store.file("mixed.json", mixed);
    import(
        &file,
        &[
            "mixed.json",
            "3 values",
            "nothing was written",
            "as_num",
            "many",
            "node_mesh",
            "no text",
            "begins with /",
        ],
    );
    let exists = store.dir.path().join("store.db").exists();
    assert!(!exists, "not even an empty store was made");
    // From standard input, with its name.
    let mut child = command(&["--datastore", &store.url, "store", "import", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("standard input"), "{output:?}");
}

#[test]
fn export_and_import_are_each_others_inverse() {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("topology/labs/tor-bird/store.json");
    let wanted: BTreeMap<String, String> = serde_json::from_slice(&std::fs::read(&lab).unwrap()).unwrap();
    let (first, second) = (Store::none(), Store::none());
    let done = first.run(&["store", "import", lab.to_str().unwrap()]);
    assert!(done.status.success() && stdout(&done).contains(&format!("{} keys", wanted.len())), "{done:?}");
    assert_eq!(first.export(), wanted);
    let text = stdout(&first.run(&["store", "export"]));
    let file = second.file("export.json", &text);
    assert!(second.run(&["store", "import", file.to_str().unwrap()]).status.success());
    assert_eq!(stdout(&second.run(&["store", "export"])), text);
    assert!(second.run(&["store", "validate"]).status.success());
}

const SECRET: &str = "corvid-7-lantern";

#[test]
fn passwords_are_shown_only_to_who_asks_for_the_value() {
    let peer = format!(r#"{{"ip":"192.0.2.1","as_num":"65000","password":"{SECRET}"}}"#);
    let mesh = format!(r#"{{"enabled":true,"password":"{SECRET}"}}"#);
    let store = Store::with(&[
        ("/calico/bgp/v1/global/peer_v4/192.0.2.1", peer.as_str()),
        ("/calico/bgp/v1/global/node_mesh", mesh.as_str()),
    ]);
    let redacted = stdout(&store.run(&["store", "export", "--redact"]));
    assert!(
        !redacted.contains(SECRET) && redacted.contains("***") && redacted.contains("192.0.2.1"),
        "{redacted}"
    );
    assert!(stdout(&store.run(&["store", "export"])).contains(SECRET));
    // No complaint repeats it, whatever is wrong beside it or with it.
    let bad = [
        format!(r#"{{"ip":"192.0.2.1","as_num":"65000","password":"{SECRET}""#),
        format!(r#"{{"ip":"192.0.2.1","as_num":"x","password":"{SECRET}"}}"#),
        format!(r#"{{"ip":"192.0.2.1","as_num":"65000","password":["{SECRET}"]}}"#),
        format!(r#"{{"ip":"192.0.2.1","as_num":"65000","password":{{"x":"{SECRET}"}}}}"#),
        format!(r#"{{"ip":"192.0.2.1","as_num":"65000","password":"{}"}}"#, SECRET.repeat(20)),
        format!(
            r#"{{"ip":"192.0.2.1","as_num":"65000","password":"{SECRET}","password_file":"/etc/{SECRET}"}}"#
        ),
        format!("password={SECRET}"),
    ];
    for value in &bad {
        let key = "/calico/bgp/v1/global/peer_v4/192.0.2.1";
        let put = store.run(&["store", "put", key, value]);
        let said = stderr(&put) + &stdout(&put);
        assert!(!said.contains(SECRET), "{value}: {said}");
        let raw = store.run(&["store", "put", "--raw", key, value]);
        assert!(!(stderr(&raw) + &stdout(&raw)).contains(SECRET));
        let found = store.run(&["store", "validate"]);
        assert!(!(stderr(&found) + &stdout(&found)).contains(SECRET), "{found:?}");
        let list = serde_json::to_string(&BTreeMap::from([(key, value)])).unwrap();
        let file = store.file("peer.json", &list);
        let import = store.run(&["store", "import", file.to_str().unwrap()]);
        assert!(!(stderr(&import) + &stdout(&import)).contains(SECRET), "{import:?}");
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn watch_sees_a_write_and_a_deletion() {
    let store = Store::with(&[("/calico/v1/Ready", "true")]);
    let mut child = command(&["--datastore", &store.url, "store", "watch", "/calico/v1/", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = child.stderr.take().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let _running = Running(child);
    let mut first = String::new();
    BufReader::new(said).read_line(&mut first).unwrap();
    assert!(first.contains("watching /calico/v1/"), "{first}");
    let (send, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    assert!(store.run(&["store", "put", "/calico/bgp/v1/global/as_num", "1"]).status.success());
    assert!(store.run(&["store", "put", "/calico/v1/Ready", "false"]).status.success());
    assert!(store.run(&["store", "rm", "/calico/v1/Ready"]).status.success());
    let next = || -> serde_json::Value {
        serde_json::from_str(&seen.recv_timeout(Duration::from_secs(20)).expect("a line")).unwrap()
    };
    let put = next();
    assert_eq!(
        (&put["mark"], &put["key"], &put["value"]),
        (&"+".into(), &"/calico/v1/Ready".into(), &"false".into())
    );
    let gone = next();
    assert_eq!(
        (&gone["mark"], &gone["key"], &gone["value"]),
        (&"-".into(), &"/calico/v1/Ready".into(), &serde_json::Value::Null)
    );
    assert!(gone["revision"].as_u64() > put["revision"].as_u64());
}

#[test]
fn selectors_say_where() {
    refused(&["selector", "eval", "role == 'db"], &["column 9", "^", "quote"]);
    refused(&["selector", "eval", "role = 'db'"], &["column", "^"]);
    refused(&["selector", "eval", "(has(a)"], &["column", "^"]);
    refused(&["selector", "eval", "--labels", "{", "all()"], &["--labels", "JSON object"]);
    refused(&["selector", "eval", "--labels", r#"{"a":1}"#, "all()"], &["--labels", "JSON object"]);
    let eval = |expr: &str| tortie(&["selector", "eval", "--labels", r#"{"role":"db"}"#, expr]);
    assert_eq!(eval("role == 'db'").status.code(), Some(0));
    let no = eval("role == 'web'");
    assert_eq!(no.status.code(), Some(1));
    assert!(no.stderr.is_empty(), "no is an answer and no error: {no:?}");
}

#[test]
fn the_settings_file() {
    let store = Store::none();
    let agent = |file: &Path, named: &[&str]| {
        let words = ["--datastore", &store.url, "agent", "--config", file.to_str().unwrap()];
        refused(&words, named);
    };
    agent(Path::new("/no/such/tortie.toml"), &["/no/such/tortie.toml", "--config"]);
    agent(&store.file("a.toml", "as = 64512\nkernal = \"off\"\n"), &["a.toml", "line 2", "kernal", "kernel"]);
    agent(&store.file("b.toml", "as = \"many\"\n"), &["b.toml", "line 1"]);
    agent(&store.file("c.toml", "as = 0\n"), &["c.toml", "as 0"]);
    agent(&store.file("d.toml", "ip4 = \"192.0.2.1\"\n"), &["d.toml", "ADDRESS/LENGTH"]);
    agent(&store.file("e.toml", "route-protocol = 2\n"), &["e.toml", "route-protocol", "5"]);
    agent(&store.file("f.toml", "as = \n"), &["f.toml", "line 1"]);
    assert!(!store.dir.path().join("store.db").exists());
}

#[test]
fn without_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let socket = socket.to_str().unwrap();
    for words in [
        &["status"][..],
        &["bgp", "peers"],
        &["bgp", "peer", "x"],
        &["bgp", "routes"],
        &["bgp", "reset", "x"],
        &["route", "list"],
        &["route", "get", "192.0.2.1"],
        &["store", "accept"],
    ] {
        fails(3, "no-agent", &[&["--socket", socket], words].concat(), &[socket, "systemctl"]);
    }
    // A file that nobody listens on any more.
    let dead = dir.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    fails(3, "no-agent", &["--socket", dead.to_str().unwrap(), "status"], &["dead.sock", "does not answer"]);
}

/// The program where anybody may run it, as somebody who may nothing.
fn nobody(dir: &Path, words: &[&str]) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "needs root to become somebody else");
        eprintln!("skipped: needs root to become somebody else");
        return None;
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.join("tortie");
    if !program.exists() {
        std::fs::copy(TORTIE, &program).unwrap();
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

/// An agent that touches no kernel, on a store and a socket of its own.
struct Agent {
    running: Running,
    store: Store,
    socket: String,
}

impl Agent {
    fn start(entries: &[(&str, &str)]) -> Self {
        let store = Store::with(entries);
        let socket = store.dir.path().join("tortie.sock").display().to_string();
        let cache = store.dir.path().join("cache").display().to_string();
        let log = std::fs::File::create(store.dir.path().join("log")).unwrap();
        let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let words = [
            "--datastore",
            &store.url,
            "--socket",
            &socket,
            "--node",
            "h1",
            "agent",
            "--kernel",
            "off",
            "--http",
            "none",
            "--cache",
            &cache,
            "--ip4",
            "127.0.0.1/8",
            "--bgp-listen",
            &listen,
        ];
        let child = command(&words).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let this = Self { running: Running(child), store, socket };
        let until = Instant::now() + Duration::from_secs(60);
        while this.run(&["bgp", "peers"]).status.code() != Some(0) {
            assert!(Instant::now() < until, "{}", this.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        this
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.store.dir.path().join("log")).unwrap()
    }

    fn run(&self, words: &[&str]) -> Output {
        tortie(&[&["--socket", &self.socket], words].concat())
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
    // `--watch` prints again until it is ended.
    let mut child = command(&["--socket", &agent.socket, "--watch", "bgp", "peers"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let watching = Running(child);
    assert_eq!(lines.lines().map_while(Result::ok).filter(|l| l.starts_with("PEER")).take(2).count(), 2);
    drop(watching);
    // All that the agent says of peers with passwords.
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
