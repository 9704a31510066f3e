//! Flags, environment variables, the settings file and selectors.

use std::path::Path;

use crate::common::command::{Store, command, refused, stderr, tortie};

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
    refused(&["bgp", "reset"], &["NAME"]);
    refused(&["bgp", "reset", "x", "--all"], &["--all"]);
    refused(&["route", "list", "somewhere"], &["somewhere"]);
    // This error cannot be printed as JSON.
    let output = tortie(&["-o", "xml", "status"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("json"), "{output:?}");
    // A request for help is no error.
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
