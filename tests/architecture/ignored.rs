//! Tests that `make test` leaves out: each has a name that a scheduled stage of CI runs it by, and a reason in docs/reference/testing.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::arrows::files::sources;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Names of ignored tests with the reason that stands there.
fn ignored() -> BTreeMap<String, String> {
    let mut files = Vec::new();
    sources(root(), &mut files);
    let mut found = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let mut reason: Option<&str> = None;
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("#[ignore") {
                let said = rest.strip_prefix(" = \"").and_then(|rest| rest.strip_suffix("\"]"));
                assert!(said.is_some(), "{}: an ignored test without a reason: {line}", file.display());
                reason = said;
            } else if let Some((_, rest)) = line.split_once("fn ")
                && let Some(reason) = reason.take()
            {
                let name = rest.split('(').next().unwrap().to_owned();
                assert!(found.insert(name.clone(), reason.to_owned()).is_none(), "twice: {name}");
            }
        }
    }
    found
}

/// Rows of the page's table: test and stage.
fn listed() -> BTreeMap<String, String> {
    let page = fs::read_to_string(root().join("docs/reference/testing.md")).unwrap();
    let rows = page.lines().filter_map(|line| {
        let columns: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [test, _, stage, reason] = columns[..] else { return None };
        let test = test.strip_prefix('`')?.strip_suffix('`')?;
        let known = ["long", "soak"].contains(&stage) && !reason.is_empty();
        known.then(|| (test.to_owned(), stage.to_owned()))
    });
    rows.collect()
}

#[test]
fn every_ignored_test_is_run_by_a_stage_and_has_its_reason() {
    let (ignored, listed) = (ignored(), listed());
    assert!(listed.len() > 20, "{listed:?}");
    for (test, reason) in &ignored {
        let half = reason.contains("child of")
            || reason.contains("run by other tests")
            || reason.contains("started by");
        let stage = listed.get(test).map(String::as_str);
        assert!(half != stage.is_some(), "docs/reference/testing.md: `{test}` ({reason})");
        assert!(
            half || stage.is_some_and(|stage| test.starts_with(&format!("{stage}_"))),
            "{test}: no stage runs it"
        );
    }
    let gone: BTreeSet<&String> = listed.keys().filter(|test| !ignored.contains_key(*test)).collect();
    assert!(
        gone.is_empty(),
        "docs/reference/testing.md names tests that are not there or not ignored: {gone:?}"
    );
}

#[test]
fn the_stages_run_what_they_are_named_for() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for (target, prefix) in [("test-long", "long_"), ("soak", "soak_")] {
        let (_, rest) = makefile.split_once(&format!("\n{target}:")).unwrap();
        let recipe = rest.lines().skip(1).take_while(|line| line.starts_with('\t')).last().unwrap();
        let wanted =
            format!("\t$(CARGO) test --workspace --no-fail-fast -- --ignored {prefix} --test-threads 1");
        assert_eq!(recipe, wanted);
    }
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    for line in ["logged test-long", "logged soak", "listed_ran \"${CI_STAGE}_\" \"$log\""] {
        assert!(ci.contains(line), "{line}");
    }
}

/// Each binary links the whole product: a ninth is a module of one of the eight.
#[test]
fn the_package_has_at_most_eight_test_binaries() {
    let entries = fs::read_dir(root().join("tests")).unwrap().map(|entry| entry.unwrap().path());
    let binaries: BTreeSet<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|ending| ending == "rs") || path.join("main.rs").exists())
        .collect();
    assert!(binaries.len() <= 8, "{binaries:?}");
    let page = fs::read_to_string(root().join("docs/reference/testing.md")).unwrap();
    for binary in &binaries {
        let name = binary.file_stem().unwrap().to_string_lossy();
        assert!(
            page.contains(&format!("| `{name}` |")),
            "docs/reference/testing.md does not say what {name} is"
        );
    }
}
