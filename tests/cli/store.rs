//! `tortie store` directly on a store: rejected input, and unchanged round trips.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::command::{Running, SECRET, Store, command, fails, refused, stderr, stdout};

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
    // A different file under that name.
    let other = none.file("notes.txt", "a text that is no database, and longer than its header is");
    let url = format!("sqlite:{}", other.display());
    unusable(&["--datastore", &url, "store", "ls"], &["notes.txt"]);
    // Tables of another version: a later one, and one that never existed. Neither is opened, changed or
    // created again.
    let store = Store::with(&[("/calico/v1/Ready", "true")]);
    let file = store.dir.path().join("store.db");
    let version = |version: Option<i32>| -> i32 {
        let tables = rusqlite::Connection::open(&file).unwrap();
        if let Some(version) = version {
            tables.pragma_update(None, "user_version", version).unwrap();
        }
        tables.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    let path = file.display().to_string();
    for (number, named) in [
        (2, ["has schema 2", "supports up to 1", "run the newer version"]),
        (0, ["has schema 0", "no version of tortie wrote", "import an export"]),
    ] {
        version(Some(number));
        for words in [
            &["store", "get", "/calico/v1/Ready"][..],
            &["store", "put", "/calico/v1/Ready", "false"],
            &["ipam", "assign", "--node", "h1"],
            &["agent", "--http", "none", "--kernel", "off"],
        ] {
            let all = [&["--datastore", &store.url], words].concat();
            unusable(&all, &[&[path.as_str()][..], &named].concat());
        }
        assert_eq!(version(None), number);
    }
    version(Some(1));
    assert_eq!(store.export()["/calico/v1/Ready"], "true");
    // Valid, but unreachable.
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
    // An absent key is reported as not found.
    let get = ["--datastore", &store.url, "store", "get", "/calico/v1/config/LogPrefix"];
    fails(1, "not-found", &get, &["/calico/v1/config/LogPrefix", "store ls"]);
    let rm = ["--datastore", &store.url, "store", "rm", "/calico/v1/config/LogPrefix"];
    fails(1, "not-found", &rm, &["/calico/v1/config/LogPrefix", "nothing deleted"]);
    // Raw octets are written unchanged and found, and only they.
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
    // Deleting a prefix requires `--prefix`.
    assert_eq!(store.run(&["store", "rm", "/calico/bgp/"]).status.code(), Some(1));
    let rm = store.run(&["store", "rm", "--prefix", "/calico/bgp/"]);
    assert!(rm.status.success() && stdout(&rm).contains("1 key deleted"), "{rm:?}");
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
    import(&store.file("twice.json", twice), &["twice.json", "/calico/v1/Ready occurs twice", "line 1"]);
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
            "not text",
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
    // Keys that import rejects come back unchanged if an export lists them.
    let broken =
        [("/calico/v1/Ready", "true"), ("/calico/bgp/v1/global/as_num", "x"), ("/calico/v1/no/such", "y")];
    let (damaged, copy) = (Store::none(), Store::none());
    for (key, value) in broken {
        assert!(damaged.run(&["store", "put", "--raw", key, value]).status.success());
    }
    let text = stdout(&damaged.run(&["store", "export"]));
    let file = copy.file("export.json", &text);
    assert!(copy.run(&["store", "import", file.to_str().unwrap()]).status.success());
    assert_eq!(stdout(&copy.run(&["store", "export"])), text);
    let whole: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    assert!(broken.iter().all(|(key, value)| whole[*key] == *value), "{text}");
    // The status of a running agent would be restored permanently, so it is not exported.
    let alive = ("/calico/tortie/v1/status/h7", r#"{"node":"h7","ready":true}"#);
    let running = Store::with(&[("/calico/v1/Ready", "true"), alive]);
    let exported = running.run(&["store", "export"]);
    assert!(
        stderr(&exported).contains("2 keys of sqlite:") && stderr(&exported).contains("at revision 2"),
        "{exported:?}"
    );
    let file = running.file("export.json", &stdout(&exported));
    let restored = Store::none();
    let done = restored.run(&["store", "import", file.to_str().unwrap()]);
    assert!(done.status.success() && stderr(&done).contains(alive.0), "{done:?}");
    assert_eq!(restored.export().into_keys().collect::<Vec<_>>(), ["/calico/v1/Ready"]);
    let raw = restored.run(&["store", "import", "--raw", file.to_str().unwrap()]);
    assert!(raw.status.success() && restored.export().contains_key(alive.0), "{raw:?}");
}

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
    // In any form: nested, or truncated so that its end is unknown.
    let odd = Store::with(&[
        (
            "/calico/bgp/v1/global/peer_v4/192.0.2.2",
            &format!(r#"{{"password":["{SECRET}"],"token":{{"a":"{SECRET}"}}}}"#),
        ),
        ("/calico/bgp/v1/global/peer_v4/192.0.2.3", &format!(r#"{{"ip":"192.0.2.3","password":"{SECRET}"#)),
    ]);
    assert!(!stdout(&odd.run(&["store", "export", "--redact"])).contains(SECRET));
    // A redacted export is no backup and is not accepted as one.
    let file = store.file("redacted.json", &redacted);
    let into = Store::none();
    let words = ["--datastore", &into.url, "store", "import", file.to_str().unwrap()];
    refused(&words, &["node_mesh", "peer_v4/192.0.2.1", "--redact", "nothing was written"]);
    // No error message repeats it, whatever the error is.
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
        serde_json::from_str(&seen.recv_timeout(Duration::from_secs(60)).expect("a line")).unwrap()
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
