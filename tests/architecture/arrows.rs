//! The rooms may only use each other in one direction; this test reads the sources and checks it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Who may use whom inside the root crate. A room may always use itself.
const MAY_USE: &[(&str, &[&str])] = &[
    ("serve", &[]),
    ("speaker", &[]),
    ("beside", &[]),
    ("plugins", &["serve"]),
    ("agent", &["serve", "speaker", "beside", "plugins"]),
    ("cli", &["agent", "serve", "speaker", "beside", "plugins"]),
];

/// What the library crates may depend on, of the workspace and of what does I/O.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    ("net", &[]),
    ("metrics", &[]),
    ("config", &["tortie-net"]),
    ("bgp", &["tortie-net"]),
    ("store", &["tortie-config", "tortie-metrics", "tokio"]),
    ("engine", &["tortie-net", "tortie-config", "tortie-metrics", "tortie-store", "tokio"]),
    (
        "kernel",
        &[
            "tortie-net",
            "tortie-config",
            "tortie-metrics",
            "tortie-store",
            "tortie-engine",
            "libc",
            "socket2",
        ],
    ),
    ("topology", &["tortie-net", "tortie-config", "libc"]),
];

/// Which rooms may name which crates.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("tortie_bgp", &["speaker", "agent", "cli"]),
    ("tortie_topology", &["cli"]),
    ("axum", &["serve", "cli", "plugins"]),
    ("clap", &["cli", "agent"]),
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, out);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            out.push(entry);
        }
    }
}

/// The code of a file without comments, so that prose may name anything.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn rooms() -> BTreeMap<String, Vec<PathBuf>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut rooms = BTreeMap::new();
    for entry in fs::read_dir(&src).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() {
            let mut files = Vec::new();
            sources(&entry, &mut files);
            rooms.insert(entry.file_name().unwrap().to_string_lossy().into_owned(), files);
        }
    }
    rooms
}

#[test]
fn every_room_uses_only_the_rooms_below_it() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut wrong = Vec::new();
    for (room, files) in rooms() {
        let Some(may) = allowed.get(room.as_str()) else {
            panic!("src/{room} has no place in the layout: name it in tests/architecture/arrows.rs");
        };
        for file in files {
            let text = code(&file);
            for other in allowed.keys().filter(|o| **o != room && !may.contains(o)) {
                if text.contains(&format!("crate::{other}::")) || text.contains(&format!("crate::{other};")) {
                    wrong.push(format!("{} uses {other}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_library_stays_in_its_room() {
    let mut wrong = Vec::new();
    for (room, files) in rooms() {
        for file in files {
            let text = code(&file);
            for (library, may) in MAY_NAME {
                if !may.contains(&room.as_str()) && text.contains(&format!("{library}::")) {
                    wrong.push(format!("{} names {library}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_crates_point_one_way_and_the_libraries_are_free_of_runtimes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |krate: &str| {
        let text = fs::read_to_string(root.join(krate).join("Cargo.toml")).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let dependencies = table.get("dependencies").and_then(|d| d.as_table()).unwrap();
        dependencies.keys().cloned().collect::<Vec<_>>()
    };
    let watched = |name: &str| {
        name.starts_with("tortie") || ["tokio", "mio", "socket2", "libc", "rusqlite"].contains(&name)
    };
    for (krate, may) in MAY_DEPEND {
        for name in names(krate).iter().filter(|name| watched(name)) {
            let own = *krate == "store" && name == "rusqlite";
            assert!(may.contains(&name.as_str()) || own, "{krate} must not depend on {name}");
        }
    }
    // The speaker library asks no clock and opens nothing.
    let mut files = Vec::new();
    sources(&root.join("bgp/src"), &mut files);
    for file in files {
        let text = code(&file);
        for clock in ["Instant::now", "SystemTime::now", "std::net::TcpStream", "std::fs"] {
            let tests = file.components().any(|c| c.as_os_str() == "tests") || file.ends_with("tests.rs");
            assert!(tests || !text.contains(clock), "{} uses {clock}", file.display());
        }
    }
}
