//! `tortie lab` as users run it: exit codes, output, and remaining state.

use std::path::Path;
use std::process::{Command, Output};

use tortie_topology::Sandbox;

fn tortie(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tortie")).args(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn write(dir: &Path, text: &str) -> String {
    let path = dir.join("x.clab.yml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// True if this process may create namespaces; in CI it must.
fn is_root() -> bool {
    let root = matches!(Sandbox::detect(), Ok(Sandbox::Root));
    assert!(root || std::env::var_os("CI").is_none(), "lab up needs root");
    if !root {
        eprintln!("skipped: lab up needs root");
    }
    root
}

#[test]
fn a_bad_file_is_named_with_place_and_next_step_and_nothing_is_built() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(
        dir.path(),
        "name: bad\ntopology:\n  nodes:\n    a: {kind: linux}\n  links:\n    - endpoints: [\"a:eth1\", \"b:eth1\"]\n",
    );
    for command in ["up", "down"] {
        let output = tortie(&["lab", command, &file]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = stderr(&output);
        assert!(text.contains("x.clab.yml") && text.contains("topology.links[0]"), "{text}");
        assert!(text.contains("; "), "says the next step: {text}");
        assert!(output.stdout.is_empty());
    }
    let output = tortie(&["lab", "up", &file, "-o", "json"]);
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], "invalid");
    assert!(!Path::new("/run/tortie/labs/bad").exists());

    let output = tortie(&["lab", "up", "/no/such/file.clab.yml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/no/such/file.clab.yml"), "{}", stderr(&output));
    // A command must follow after `--`.
    assert_eq!(tortie(&["lab", "exec", &file, "a"]).status.code(), Some(2));
}

#[test]
fn without_rights_it_says_what_is_missing() {
    if !is_root() {
        return;
    }
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    let name = format!("norights{}", std::process::id());
    let file = write(dir.path(), &format!("{{name: {name}, topology: {{nodes: {{a: {{kind: linux}}}}}}}}"));
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    // The program must be in a place where another user can run it.
    let program = dir.path().join("tortie");
    crate::common::command::copy_program(env!("CARGO_BIN_EXE_tortie"), &program);
    let output = Command::new(program).args(["lab", "up", &file]).uid(65534).gid(65534).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(stderr(&output).contains("sudo"), "{}", stderr(&output));
}

#[test]
fn up_exec_down() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let name = format!("labcli{}", std::process::id());
    let text = format!(
        r#"
name: {name}
topology:
  defaults: {{kind: linux, image: "alpine:3"}}
  nodes:
    a: {{cmd: sleep 1000}}
    b: {{}}
  links:
    - {{endpoints: ["a:eth1", "b:eth1"], ipv4: [10.9.1.1/24, 10.9.1.2/24]}}
"#
    );
    let file = write(dir.path(), &text);
    let absent = tortie(&["lab", "exec", &file, "a", "--", "true"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(stderr(&absent).contains("tortie lab up"), "{}", stderr(&absent));

    let up = tortie(&["lab", "up", &file, "-o", "json"]);
    assert_eq!(up.status.code(), Some(0), "{up:?}");
    assert!(stderr(&up).contains("a: create") && stderr(&up).contains("link a:eth1 - b:eth1"), "{up:?}");
    crate::common::schema::Published::read().check_output("lab up", &up.stdout).unwrap();
    let made: serde_json::Value = serde_json::from_slice(&up.stdout).unwrap();
    assert_eq!((&made["lab"], &made["links"]), (&name.clone().into(), &1.into()));
    let namespace = format!("clab-{name}-a");
    assert_eq!(made["nodes"][0]["namespace"], namespace.as_str());
    assert!(Path::new("/run/netns").join(&namespace).exists());
    let state = made["stateDir"].as_str().unwrap().to_owned();

    let again = tortie(&["lab", "up", &file]);
    assert_eq!(again.status.code(), Some(7), "{again:?}");
    assert!(stderr(&again).contains("tortie lab down"), "{}", stderr(&again));

    // The command's own output and exit status.
    let address = tortie(&["lab", "exec", &file, "b", "--", "ip", "-br", "addr", "show", "dev", "eth1"]);
    assert_eq!(address.status.code(), Some(0));
    assert!(stdout(&address).contains("10.9.1.2/24"), "{address:?}");
    let status = |words: &[&str]| {
        let mut all = vec!["lab", "exec", &file, "a", "--"];
        all.extend(words);
        tortie(&all).status.code()
    };
    assert_eq!(status(&["sh", "-c", "exit 42"]), Some(42));
    assert_eq!(status(&["sh", "-c", "kill -9 $$"]), Some(137));
    let json = tortie(&[
        "lab",
        "exec",
        "-o",
        "json",
        &file,
        "a",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 3",
    ]);
    assert_eq!(json.status.code(), Some(3));
    crate::common::schema::Published::read().check_output("lab exec", &json.stdout).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["stdout"], "out\n");
    assert_eq!(json["stderr"], "err\n");
    assert_eq!(json["status"], 3);
    let stranger = tortie(&["lab", "exec", &file, "c", "--", "true"]);
    assert_eq!(stranger.status.code(), Some(1));
    assert!(stderr(&stranger).contains("it has a, b"), "{}", stderr(&stranger));

    let down = tortie(&["lab", "down", &file]);
    assert_eq!(down.status.code(), Some(0), "{down:?}");
    assert_eq!(stdout(&down), format!("lab {name} is down\n"));
    assert!(Path::new("/run/netns").join(&namespace).symlink_metadata().is_err());
    assert!(!Path::new(&state).exists());
    assert_eq!(tortie(&["lab", "down", &file]).status.code(), Some(1));
}
