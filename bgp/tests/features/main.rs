//! Checks the tables of the README: no empty cell, and only names of tests in this repository.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test reads sources and asks daemons for their version"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const README: &str = include_str!("../../README.md");
/// Folders with tests of the wire format, the speaker and whole daemons.
const SOURCES: [&str; 4] = ["src", "tests", "../tests", "../src"];

/// Returns every function with `#[test]`, and true if it is ignored.
fn tests() -> BTreeMap<String, bool> {
    let mut files: Vec<PathBuf> = SOURCES
        .iter()
        .map(|s| Path::new(env!("CARGO_MANIFEST_DIR")).join(s))
        .filter(|p| p.is_dir())
        .collect();
    let mut all = BTreeMap::new();
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()));
        } else if path.extension().is_some_and(|e| e == "rs") {
            let (mut test, mut ignored) = (false, false);
            for line in std::fs::read_to_string(path).unwrap().lines().map(str::trim) {
                test |= line == "#[test]" || line.starts_with("#[tokio::test");
                ignored |= line.starts_with("#[ignore");
                let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
                if let Some((name, _)) = function.and_then(|f| f.split_once('(')) {
                    if test {
                        all.insert(name.to_owned(), ignored);
                    }
                    (test, ignored) = (false, false);
                }
            }
        }
    }
    all
}

/// Returns the rows of the first table after this heading, header row first.
fn table(heading: &str) -> Vec<Vec<String>> {
    let (_, rest) = README.split_once(heading).unwrap();
    rest.lines()
        .skip_while(|l| !l.starts_with('|'))
        .take_while(|l| l.starts_with('|'))
        .filter(|l| !l.starts_with("|--"))
        .map(|l| {
            let inner = l.trim().strip_prefix('|').and_then(|l| l.strip_suffix('|')).unwrap();
            inner.split('|').map(|c| c.trim().to_owned()).collect()
        })
        .collect()
}

/// Returns the names between backticks.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn wrong_names(cell: &str, tests: &BTreeMap<String, bool>) -> Option<String> {
    names(cell).into_iter().find_map(|name| match tests.get(name) {
        None => Some(format!("there is no test {name}")),
        Some(true) => Some(format!("{name} is ignored, so CI does not run it")),
        Some(false) => None,
    })
}

/// Returns the reason why a cell is invalid. `None`: valid.
fn wrong(cell: &str, version: &str, tests: &BTreeMap<String, bool>) -> Option<String> {
    if cell == "peer lacks it" {
        return None;
    }
    if let Some(bug) = cell.strip_prefix("peer's bug: ") {
        let number = version.split(' ').next_back().unwrap();
        if !bug.contains(number) {
            return Some(format!("a bug of which version? {cell}"));
        }
        return wrong_names(cell, tests);
    }
    if names(cell).is_empty() {
        return Some(format!("names no test: {cell:?}"));
    }
    wrong_names(cell, tests)
}

#[test]
fn every_cell_names_a_test_that_runs() {
    let (tests, rows) = (tests(), table("## What is proven with whom"));
    assert!(tests.len() > 300 && rows.len() > 5, "{} tests, {} rows", tests.len(), rows.len());
    let heads = &rows[0];
    let peers = ["BIRD 2.0.12", "FRR 8.4.4", "GoBGP 3.10", "OpenBGPD 7.7", "ExaBGP 4.2"];
    assert_eq!(heads[3..], peers);
    for row in &rows[1..] {
        assert_eq!(row.len(), heads.len(), "{row:?}");
        assert!(row[..3].iter().all(|c| !c.is_empty()), "{row:?}");
        assert!(row[1].starts_with("RFC ") || row[1].starts_with("draft-"), "{row:?}");
        for (cell, head) in row.iter().zip(heads).skip(3) {
            assert_eq!(wrong(cell, head, &tests), None, "{} {}, {head}", row[0], row[2]);
        }
        assert!(row[3..].iter().any(|c| !names(c).is_empty()), "nobody proves {}", row[0]);
    }
}

#[test]
fn what_needs_no_daemon_names_its_tests() {
    let (tests, rows) = (tests(), table("### Proven without these daemons"));
    assert_eq!(rows[0], ["feature", "document", "proven by"]);
    assert!(rows.len() > 1);
    for row in &rows[1..] {
        assert!(row.len() == 3 && row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        assert!(!names(&row[2]).is_empty(), "{row:?}");
        assert_eq!(wrong_names(&row[2], &tests), None, "{}", row[0]);
    }
}

#[test]
fn what_is_not_proven_says_what_it_lacks() {
    let (tests, rows) = (tests(), table("### Not proven yet"));
    assert_eq!(rows[0], ["feature", "document", "proven by", "lacks"]);
    for row in &rows[1..] {
        assert_eq!(wrong_names(&row[2], &tests), None, "{}", row[0]);
        assert!(row.len() == 4 && [0, 1, 3].iter().all(|n| !row[*n].is_empty()), "{row:?}");
    }
}

/// Test of the check itself: invalid cells fail.
#[test]
fn empty_cells_and_wrong_names_are_found() {
    let tests = BTreeMap::from([("good".to_owned(), false), ("slow".to_owned(), true)]);
    let wrong = |cell: &str| wrong(cell, "FRR 8.4.4", &tests).is_some();
    assert!(!wrong("`good`") && !wrong("peer lacks it") && !wrong("peer's bug: 8.4.4 sends nothing"));
    assert!(wrong("") && wrong("yes") && wrong("`gone`") && wrong("`good`, `slow`"));
    assert!(wrong("peer's bug: sends nothing") && wrong("peer's bug: 8.4.4 sends nothing (`gone`)"));
    assert!(is_version("4.2", "ExaBGP : 4.2.21\n") && is_version("8.4.4", "bgpd version 8.4.4"));
    assert!(
        !is_version("4.2", "ExaBGP : 4.20.1")
            && !is_version("7.7", "OpenBGPD 8.7.7")
            && !is_version("7.7", "")
    );
}

/// Returns true if the version that a daemon reports is this one, possibly with more components.
fn is_version(number: &str, said: &str) -> bool {
    said.split_whitespace()
        .any(|word| word.strip_prefix(number).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// A newer daemon may have fixed a bug, or have a feature that the table lists as missing.
#[test]
fn the_versions_of_the_table_are_those_that_are_tested() {
    let heads = table("## What is proven with whom").remove(0);
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers/bin"));
    let dirs = std::env::var_os("TORTIE_PEERS").map(PathBuf::from).into_iter().chain([own]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = dirs.chain(std::env::split_paths(&path)).collect();
    let asked = [
        ("bird", "--version"),
        ("frr-bgpd", "--version"),
        ("gobgpd", "--version"),
        ("openbgpd", "-V"),
        ("exabgp", "--version"),
    ];
    assert_eq!(heads.len(), 3 + asked.len());
    for (head, (program, option)) in heads[3..].iter().zip(asked) {
        let Some(found) = dirs.iter().map(|d| d.join(program)).find(|p| p.is_file()) else {
            assert!(
                std::env::var_os("CI").is_none(),
                "{program} is neither in target/peers (make peers) nor in PATH"
            );
            eprintln!("SKIPPED: no {program}");
            continue;
        };
        let said = std::process::Command::new(found).arg(option).output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        let number = head.split(' ').next_back().unwrap();
        assert!(is_version(number, &said), "the table is about {head}, and here is {said}");
    }
}
