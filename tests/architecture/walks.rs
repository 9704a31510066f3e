//! The walks of `docs/concepts/architecture.md`: each file is there, and the types of its row stand in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::lexer::{Token, lex};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What stands in `code` in a text.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Faults of the rows `| file | what | types |` of a page.
fn faults(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let columns: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let Some(file) = code(columns[0]).next().filter(|name| name.ends_with(".rs") && name.contains('/'))
        else {
            continue;
        };
        let Ok(source) = fs::read_to_string(root().join(file)) else {
            found.push(format!("{file}: no such file"));
            continue;
        };
        let words: BTreeSet<&str> = lex(&source)
            .into_iter()
            .filter_map(|(_, token)| match token {
                Token::Word(word) => Some(word),
                _ => None,
            })
            .collect();
        let types = columns[1..].iter().flat_map(|column| code(column)).flat_map(|path| path.split("::"));
        for name in types.filter(|name| name.starts_with(char::is_uppercase)) {
            let of_linux = name.starts_with("RTM_");
            if !of_linux && !words.contains(name.trim_end_matches('s')) && !words.contains(name) {
                found.push(format!("{file}: no {name}"));
            }
        }
    }
    found
}

/// Files and folders that the page names anywhere, from the workspace's root.
fn gone(page: &str) -> Vec<&str> {
    let is_path = |name: &&str| name.contains('/') && !name.contains(' ') && !name.starts_with('/');
    let of_tree = |name: &&str| {
        ["src/", "kernel/", "engine/", "bgp/", "store/", "tests/"].iter().any(|f| name.starts_with(f))
    };
    code(page).filter(is_path).filter(of_tree).filter(|name| !root().join(name).exists()).collect()
}

#[test]
fn the_walks_name_files_and_types_that_are_there() {
    let page = fs::read_to_string(root().join("docs/concepts/architecture.md")).unwrap();
    assert_eq!(faults(&page), [""; 0]);
    // Rooms of a table stand below the folder of its head.
    let rooms = gone(&page);
    assert_eq!(rooms, [""; 0]);
    let hops = page.lines().filter(|line| line.starts_with("| `") && line.contains(".rs` |")).count();
    assert!(hops > 25, "{hops}");
}

#[test]
fn a_wrong_row_is_found() {
    assert_eq!(faults("| `src/nowhere.rs` | a | `B` |"), ["src/nowhere.rs: no such file"]);
    assert_eq!(faults("| `tests/architecture/walks.rs` | `Nowhere` | `Token::Word` |").len(), 1);
}
