//! The files of a release: the same program gives the same octets for any user, folder and time; the image is one that any runtime
//! reads; and the bill of materials lists the crates that cargo lists.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::common::command::{stderr, stdout};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// 2023-11-14T22:13:20Z.
const EPOCH: &str = "1700000000";

/// A program for the packages: a small one, as it is packed twice.
fn program(dir: &Path) -> PathBuf {
    let path = dir.join("tortie");
    std::fs::write(&path, "#!/bin/sh\n[ \"$1\" = version ] && echo 'tortie 1.2.3'\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs a script of `packaging/` with this umask and this time zone.
fn run(script: &str, words: &[&Path], umask: &str, zone: &str) {
    let script = format!("umask {umask}; exec \"{ROOT}/packaging/{script}\" \"$@\"");
    let output = Command::new("bash")
        .args(["-c", &script, "bash"])
        .args(words)
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .env("TZ", zone)
        .env("DEB_COMPRESS", "none")
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
}

fn digest(octets: &[u8]) -> String {
    Sha256::digest(octets).iter().map(|octet| format!("{octet:02x}")).collect()
}

#[test]
fn package_and_image_are_the_same_octets_again() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let deb = Command::new("dpkg-deb").arg("--version").output().is_ok_and(|o| o.status.success());
    for (dir, umask, zone) in [(&first, "022", "UTC"), (&second, "077", "Asia/Tokyo")] {
        let program = program(dir.path());
        run("docker/archive.sh", &[&program, &dir.path().join("image.tar")], umask, zone);
        if deb {
            run("deb.sh", &[&program, dir.path()], umask, zone);
        }
    }
    let mut names: Vec<_> =
        std::fs::read_dir(&first).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), if deb { 3 } else { 2 }, "{names:?}");
    for name in names {
        let read = |dir: &tempfile::TempDir| digest(&std::fs::read(dir.path().join(&name)).unwrap());
        assert_eq!(read(&first), read(&second), "{name:?}");
    }
}

/// Every digest and size that a descriptor of an image names is that of its blob.
#[test]
fn the_image_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path());
    let file = dir.path().join("image.tar");
    run("docker/archive.sh", &[&program, &file], "022", "UTC");
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(std::fs::File::open(&file).unwrap()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        assert_eq!(entry.header().mtime().unwrap().to_string(), EPOCH, "{name}");
        let mut octets = Vec::new();
        entry.read_to_end(&mut octets).unwrap();
        files.insert(name, octets);
    }
    let json = |name: &str| -> Value { serde_json::from_slice(&files[name]).unwrap() };
    let blob = |descriptor: &Value| {
        let name = format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"));
        let octets = &files[&name];
        assert_eq!(descriptor["size"], octets.len(), "{name}");
        assert!(name.ends_with(&digest(octets)), "{name}");
        name
    };
    assert_eq!(json("oci-layout")["imageLayoutVersion"], "1.0.0");
    let manifest = json(&blob(&json("index.json")["manifests"][0]));
    let (config, layer) = (blob(&manifest["config"]), blob(&manifest["layers"][0]));
    // What docker reads names the same two.
    let of_docker = &json("manifest.json")[0];
    assert_eq!(
        (&of_docker["Config"], &of_docker["Layers"][0]),
        (&config.as_str().into(), &layer.as_str().into())
    );
    assert_eq!(of_docker["RepoTags"][0], "tortie:1.2.3");
    let config = json(&config);
    let settings = &config["config"];
    assert_eq!(
        (&settings["Entrypoint"][0], &settings["Cmd"][0]),
        (&"/usr/bin/tortie".into(), &"agent".into())
    );
    assert_eq!(settings["Volumes"], serde_json::json!({ "/var/lib/tortie": {}, "/run/tortie": {} }));
    let mut octets = Vec::new();
    flate2::read::GzDecoder::new(&files[&layer][..]).read_to_end(&mut octets).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", digest(&octets)));
    let mut layer = tar::Archive::new(&octets[..]);
    let entry = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let entry = entry.unwrap();
        let (header, path) = (entry.header(), entry.path().unwrap());
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0), "{path:?}");
        (path.to_string_lossy().into_owned(), header.mode().unwrap())
    };
    let content: BTreeMap<String, u32> = layer.entries().unwrap().map(entry).collect();
    assert_eq!((content["usr/bin/tortie"], content["tmp/"]), (0o755, 0o1777));
}

#[test]
fn the_bill_of_materials_lists_what_cargo_lists() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sbom.json");
    let made = Command::new(format!("{ROOT}/packaging/sbom.sh")).arg(&file).output().unwrap();
    assert!(made.status.success() && stdout(&made).contains(" components"), "{}", stderr(&made));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains(ROOT), "a path of this machine");
    let bom: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&bom["bomFormat"], &bom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));

    let tree = ["tree", "--locked", "--package", "tortie", "--edges", "normal", "--prefix", "none"];
    let tree = Command::new(env!("CARGO")).args(tree).current_dir(ROOT).output().unwrap();
    assert!(tree.status.success(), "{}", stderr(&tree));
    let listed: BTreeSet<String> = stdout(&tree)
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .map(|(name, rest)| format!("{name}@{}", rest.split(' ').next().unwrap()))
        .collect();
    let product = &bom["metadata"]["component"];
    let all: Vec<&Value> = bom["components"].as_array().unwrap().iter().chain([product]).collect();
    let named: BTreeSet<String> = all
        .iter()
        .map(|component| {
            format!("{}@{}", component["name"].as_str().unwrap(), component["version"].as_str().unwrap())
        })
        .collect();
    assert_eq!(named, listed);
    assert_eq!(all.len(), named.len());
    assert_eq!(product["name"], "tortie");
    for component in &all {
        assert_eq!(component["licenses"].as_array().map(Vec::len), Some(1), "{component}");
        let own = component["name"].as_str().unwrap().starts_with("tortie");
        assert_eq!(component["hashes"].is_array(), !own, "{component}");
    }
    // The graph has each of them once, and leads to no other.
    let graph = bom["dependencies"].as_array().unwrap();
    let refs: BTreeSet<&str> = graph.iter().map(|node| node["ref"].as_str().unwrap()).collect();
    assert_eq!((refs.len(), graph.len()), (named.len(), named.len()));
    let used = graph.iter().flat_map(|node| node["dependsOn"].as_array().unwrap());
    assert!(
        used.clone().count() > named.len() && used.clone().all(|key| refs.contains(key.as_str().unwrap()))
    );
}
