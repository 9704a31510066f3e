//! The data model's sentences on traffic and the tests that prove them: every test that the table names is there and runs
//! with all others. That they ran is checked in the log of CI (`tests/sentences/ran`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const NOTHING: &str = "not about traffic";

/// One sentence, or a part of one.
struct Row {
    text: String,
    section: String,
    first: usize,
    last: usize,
    tests: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn table() -> Vec<Row> {
    let text = fs::read_to_string(root().join("tests/sentences/table.txt")).unwrap();
    let mut section = String::new();
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("== ") {
            section = name.to_owned();
            continue;
        }
        let columns: Vec<&str> = line.split(" | ").collect();
        let [lines, _, tests] = columns[..] else { panic!("not three columns: {line}") };
        let (first, last) = lines.split_once('-').unwrap_or((lines, lines));
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("no line number: {line}"));
        rows.push(Row {
            text: line.to_owned(),
            section: section.clone(),
            first: number(first),
            last: number(last),
            tests: if tests == NOTHING { Vec::new() } else { tests.split(' ').map(str::to_owned).collect() },
        });
    }
    rows
}

/// Follows `mod` declarations from a crate's root to the text of a module.
fn module(krate: &str, path: &[&str]) -> Result<String, String> {
    let mut dir: PathBuf = match krate {
        "tortie" => root().join("src"),
        _ => match krate.strip_prefix("tortie_").map(|folder| root().join(folder).join("src")) {
            Some(dir) if dir.exists() => dir,
            _ => return Err(format!("no crate {krate}")),
        },
    };
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let mut text = read(&dir.join("lib.rs"))?;
    for name in path {
        let declares = |with: &str| {
            let lines = text.lines().map(str::trim);
            lines
                .map(|line| line.trim_start_matches("pub(crate) ").trim_start_matches("pub "))
                .any(|line| line == with)
        };
        if declares(&format!("mod {name} {{")) {
            let begin = text.find(&format!("mod {name} {{")).unwrap();
            text = text.split_off(begin);
            continue;
        }
        if !declares(&format!("mod {name};")) {
            return Err(format!("no module {name}"));
        }
        let file = dir.join(format!("{name}.rs"));
        dir = dir.join(name);
        text = read(&if file.exists() { file } else { dir.join("mod.rs") })?;
    }
    Ok(text)
}

/// Whether a test of this name is there and runs when nothing but `cargo test` is said.
fn runs(test: &str) -> Result<(), String> {
    let path: Vec<&str> = test.split("::").collect();
    let [krate, modules @ .., name] = &path[..] else { return Err("no path".to_owned()) };
    let text = module(krate, modules)?;
    let mut attributes = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with(&format!("fn {name}(")) {
            return match &attributes[..] {
                _ if attributes
                    .iter()
                    .any(|a: &&str| a.starts_with("#[ignore") || a.starts_with("#[cfg")) =>
                {
                    Err(format!("{name} is not always run"))
                }
                _ if attributes.contains(&"#[test]") => Ok(()),
                _ => Err(format!("{name} is no test")),
            };
        }
        if line.starts_with("#[") {
            attributes.push(line);
        } else if !line.starts_with("//") {
            attributes.clear();
        }
    }
    Err(format!("no function {name}"))
}

#[test]
fn every_test_of_the_table_is_there_and_runs() {
    let named: BTreeSet<String> = table().into_iter().flat_map(|row| row.tests).collect();
    let wrong: Vec<String> =
        named.iter().filter_map(|test| runs(test).err().map(|why| format!("{test}: {why}"))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named.len() > 40, "{}", named.len());
}

#[test]
fn the_table_is_in_the_order_of_the_document() {
    let rows = table();
    let mut before = 0;
    for row in &rows {
        assert!(before <= row.first && row.first <= row.last, "{}", row.text);
        assert!(row.last - row.first < 10 && !row.section.is_empty(), "{}", row.text);
        before = row.first;
    }
    // As many as the document has; who takes one out has to say so here.
    assert_eq!(rows.len(), 83);
    assert_eq!(rows.iter().filter(|row| row.tests.is_empty()).count(), 9);
}

#[test]
fn a_name_that_is_wrong_anywhere_is_found() {
    for (test, says) in [
        ("tortie_engine::policy::nowhere::tests::a", "no module nowhere"),
        ("tortie_engine::policy::hosts::tests::nobody", "no function nobody"),
        ("tortie_engine::policy::hosts::tests::found", "found is no test"),
        ("elsewhere::policy::a", "no crate elsewhere"),
        ("tortie_config::selector::tests::depth_is_bounded_and_length_is_not", ""),
    ] {
        assert_eq!(runs(test).err().unwrap_or_default(), says, "{test}");
    }
}

#[test]
fn everything_is_run_by_make_and_looked_for_by_ci() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let (_, rest) = makefile.split_once("\ntest:").unwrap();
    let recipe: Vec<&str> = rest.lines().skip(1).take_while(|line| line.starts_with('\t')).collect();
    assert_eq!(recipe, ["\t$(CARGO) test --workspace --no-fail-fast"], "all tests, without a filter");
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(ci.contains("tests/sentences/ran \"$log\""));
}
