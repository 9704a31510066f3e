//! Every lab file of the repository is valid by containerlab's own schema and by this crate, and can be built
//! with the real routers.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tortie_topology::{Lab, Options};

fn labs() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("labs");
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|p| p.to_string_lossy().ends_with(".clab.yml")).collect();
    files.sort();
    files
}

#[test]
fn files_follow_containerlabs_schema_and_ours() {
    let schema =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/clab.schema.json"))
            .unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let files = labs();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let value: serde_json::Value = serde_yaml_ng::from_str(&text).unwrap();
        let faults: Vec<String> =
            schema.iter_errors(&value).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(faults.is_empty(), "{}: {faults:#?}", file.display());
        let lab = Lab::from_file(&file).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(lab.topology.notes, Vec::<String>::new());
        let stem = file.file_name().unwrap().to_string_lossy().replace(".clab.yml", "");
        assert_eq!(lab.topology.name, stem, "the name of a lab is the name of its file");
        // Each file begins with a drawing and a paragraph.
        assert!(text.lines().take_while(|l| l.starts_with('#')).count() > 8, "{stem} has no drawing");
        // The schema must detect an error at all.
        let broken: serde_json::Value =
            serde_yaml_ng::from_str(&text.replacen("nodes:", "nods:", 1)).unwrap();
        assert!(!schema.is_valid(&broken));
    }
}

#[test]
fn data_of_the_labs_is_a_map_of_keys_to_texts() {
    for file in labs() {
        let store = file.with_extension("").with_extension("").join("store.json");
        let text = std::fs::read_to_string(&store).unwrap();
        let map: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
        assert!(map.keys().all(|k| k.starts_with("/calico/")), "{}", store.display());
        assert_eq!(map["/calico/v1/Ready"], "true");
        for (key, value) in map.iter().filter(|(_, v)| v.starts_with(['{', '['])) {
            let parsed: Result<serde_json::Value, _> = serde_json::from_str(value);
            assert!(parsed.is_ok(), "{}: {key}", store.display());
        }
    }
}

/// Builds each lab with a substitute for `tortie` itself; order, waits, links, commands and routers are real.
#[test]
fn every_lab_can_be_built_and_its_routers_run() {
    if !common::can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let stand_in = dir.path().join("tortie");
    std::fs::write(&stand_in, "#!/bin/sh\ncase \"$*\" in *import*) exit 0 ;; esac\nexec sleep 1000\n")
        .unwrap();
    std::fs::set_permissions(&stand_in, std::fs::Permissions::from_mode(0o755)).unwrap();
    for file in labs() {
        let lab = Lab::from_file(&file).unwrap();
        let options = Options { binary: stand_in.clone(), ..common::options(dir.path()) };
        let mut steps = Vec::new();
        let mut running = lab
            .up(&options, &mut |p| steps.push(p.text.to_owned()))
            .unwrap_or_else(|e| panic!("{}: {e}\n{steps:#?}", file.display()));
        let step =
            |text: &str| steps.iter().position(|s| s == text).unwrap_or_else(|| panic!("{text}: {steps:#?}"));
        assert!(step("store: wait until exit") < step("host1: create"), "{steps:#?}");
        for node in &lab.topology.nodes {
            let router = matches!(node.name.as_str(), "tor" | "tor1" | "tor2" | "spine");
            if node.name.starts_with("host") || router {
                let log = || std::fs::read_to_string(running.log_of(&node.name).unwrap()).unwrap_or_default();
                assert!(
                    running.pid(&node.name).is_some(),
                    "{}: {} has ended: {}",
                    file.display(),
                    node.name,
                    log()
                );
                common::shows(&running, &node.name, "ip -br addr show dev eth1", &[" UP "]);
            }
        }
        assert!(running.exit_status("store").unwrap().success());
        running.down().unwrap();
    }
}
