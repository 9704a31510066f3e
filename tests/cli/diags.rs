//! The archive that users attach to reports: it is complete, lists missing parts, and contains no secret.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use flate2::read::MultiGzDecoder;
use serde_json::Value;

use crate::agent::Agent;
use crate::common::command::{SECRET, Store, stderr, stdout, tortie};

/// Unpacks an archive; returns the text of each file by its name below the top folder.
fn unpack(archive: &Path) -> Option<BTreeMap<String, String>> {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().to_str().unwrap();
    let output = Command::new("tar").args(["-xzf", archive.to_str().unwrap(), "-C", to]).output().ok()?;
    assert!(output.status.success(), "{output:?}");
    let mut folders = vec![dir.path().to_owned()];
    let mut files = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            let below = entry.strip_prefix(dir.path()).unwrap();
            let name: std::path::PathBuf = below.components().skip(1).collect();
            let octets = std::fs::read(&entry).unwrap();
            let mut text = String::new();
            match entry.extension() {
                Some(end) if end == "gz" => MultiGzDecoder::new(&*octets).read_to_string(&mut text).map(drop),
                _ => (&*octets).read_to_string(&mut text).map(drop),
            }
            .unwrap();
            files.insert(name.display().to_string(), text);
        }
    }
    Some(files)
}

#[test]
fn no_secret_leaves_and_what_is_there_can_be_read() {
    const TOKEN: &str = "weasel-41-brook";
    let peer = format!(r#"{{"ip":"127.0.0.2","as_num":"65000","port":1,"password":"{SECRET}"}}"#);
    // Problems describe an unreadable value; any key may contain a secret of an unknown kind.
    let broken = format!(r#"{{"ip":"127.0.0.3","as_num":"x","password":"{SECRET}"}}"#);
    let unknown = format!(r#"{{"apiToken":"{TOKEN}","note":"{SECRET} again"}}"#);
    let agent = Agent::start(&[
        ("/calico/v1/Ready", "true"),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.2", &peer),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.3", &broken),
        ("/calico/v1/config/Unknown", &unknown),
        ("/calico/v1/config/Plain", &format!("token={TOKEN} etcd://root:{SECRET}@192.0.2.1")),
    ]);
    let file = agent.store.dir.path().join("diags.tar.gz");
    let words = ["--datastore", &agent.store.url, "diags", file.to_str().unwrap(), "-o", "json"];
    let output = agent.run(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let Some(files) = unpack(&file) else { return eprintln!("skipped: no tar") };
    for (name, text) in &files {
        for secret in [SECRET, TOKEN] {
            assert!(!text.contains(secret), "{name} has {secret}:\n{text}");
        }
    }
    let status: Value = serde_json::from_str(&files["status.json"]).unwrap();
    assert_eq!(status["node"], "h1");
    // The page with these answers; a test in tests/cli/page opens one.
    let (_, kept) = files["page.html"].split_once("id=\"kept\">").unwrap();
    let kept: Value = serde_json::from_str(kept.split_once("</script>").unwrap().0).unwrap();
    assert_eq!((&kept["status"], &kept["bgp/peers"]["items"][0]["address"]), (&status, &"127.0.0.2".into()));
    let journal = &files["journal.jsonl.gz"];
    assert!(journal.contains("redacted-") && journal.contains("peer_v4/127.0.0.2"), "{journal}");
    let replay = tortie(&["replay", file.to_str().unwrap(), "-o", "json"]);
    assert_eq!(replay.status.code(), Some(0), "{replay:?}");
    let report: Value = serde_json::from_slice(&replay.stdout).unwrap();
    assert_eq!(
        (&report["node"], &report["different"], &report["wordedDifferently"]),
        (&"h1".into(), &0.into(), &0.into())
    );
    let store: Value = serde_json::from_str(&files["store.json"]).unwrap();
    let peer = store["/calico/bgp/v1/global/peer_v4/127.0.0.2"].as_str().unwrap();
    assert!(peer.contains("***") && peer.contains("65000"), "{peer}");
    assert!(files["metrics.txt"].contains("tortie_"), "{}", files["metrics.txt"]);
    assert!(files["doctor.txt"].contains("failure") && files["versions.txt"].starts_with("tortie "));
    // The index lists each file of the archive, and each missing one with the reason.
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for part in report["parts"].as_array().unwrap() {
        let name = part["name"].as_str().unwrap();
        assert_eq!(files.contains_key(name), part.get("missing").is_none(), "{part}");
        assert!(files["index.txt"].contains(name), "{name}");
    }
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn without_agent_and_store_there_is_the_rest_and_it_says_so() {
    let store = Store::none();
    let file = store.dir.path().join("diags.tar.gz");
    let socket = store.dir.path().join("none.sock");
    let words =
        ["--socket", socket.to_str().unwrap(), "--datastore", &store.url, "diags", file.to_str().unwrap()];
    let output = tortie(&words);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert!(stderr(&output).contains("neither the agent nor the store"), "{output:?}");
    assert!(stdout(&output).contains("missing: status.json"), "{output:?}");
    let Some(files) = unpack(&file) else { return eprintln!("skipped: no tar") };
    assert!(files.contains_key("sysctls.txt") && !files.contains_key("status.json"), "{:?}", files.keys());
    assert!(!files.contains_key("page.html") && files["index.txt"].contains("page.html"));
    assert!(files["index.txt"].contains("Missing:") && files["index.txt"].contains("none.sock"));
}

#[test]
fn doctor_answers_on_any_host_and_its_exit_code_is_its_answer() {
    let store = Store::with(&[("/calico/v1/Ready", "false")]);
    let output = store.run(&["doctor", "-o", "json"]);
    // A frozen store is a failure on every machine.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let items = report["items"].as_array().unwrap();
    let frozen = items.iter().find(|i| i["code"] == "frozen").unwrap();
    assert_eq!(frozen["result"], "fail");
    assert!(frozen["fix"].as_str().unwrap().contains("Ready true"), "{frozen}");
    let of = |result: &str| items.iter().filter(|i| i["result"] == result).count();
    assert_eq!(report["failures"], of("fail"));
    assert_eq!(report["warnings"], of("warn"));
    assert!(items.iter().any(|i| i["code"] == "kernel"), "{report:#}");
    let screen = stdout(&store.run(&["doctor"]));
    assert!(screen.contains("FAIL  /calico/v1/Ready") && screen.contains("      fix: "), "{screen}");
}
