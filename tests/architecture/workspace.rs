//! The manifests: each crate says what it is, where it is from and where it is documented, with the address of the project in one place.

use std::fs;
use std::path::Path;

use crate::arrows::rules::CRATES;

fn manifest(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = if name == "tortie" { root.to_owned() } else { root.join(name) };
    fs::read_to_string(folder.join("Cargo.toml")).unwrap()
}

/// The lines of `[name]`.
fn section<'a>(manifest: &'a str, name: &str) -> Vec<&'a str> {
    let head = format!("[{name}]");
    let lines = manifest.lines().skip_while(move |line| *line != head).skip(1);
    lines.take_while(|line| !line.starts_with('[')).collect()
}

#[test]
fn every_crate_says_what_it_is_and_where_it_is_from() {
    let mut wrong = Vec::new();
    for (name, _) in CRATES {
        let manifest = manifest(name);
        let package = section(&manifest, "package");
        let has = |start: &str| package.iter().any(|line| line.starts_with(start));
        let is_published = !has("publish = false");
        for key in [
            "description = ",
            "keywords = [",
            "categories = [",
            "license.workspace",
            "rust-version.workspace",
        ] {
            if !has(key) {
                wrong.push(format!("{name}: no {key}"));
            }
        }
        if !has("repository.workspace") {
            wrong.push(format!("{name}: the repository is not that of the workspace"));
        }
        let documentation =
            if is_published { "documentation = \"https://docs.rs/" } else { "documentation.workspace" };
        if !has(documentation) || is_published && !has("readme = ") {
            wrong.push(format!("{name}: no {documentation} or no readme"));
        }
        if section(&manifest, "package.metadata.docs.rs").is_empty() {
            wrong.push(format!("{name}: no settings for docs.rs"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let workspace = manifest("tortie");
    let package = section(&workspace, "workspace.package");
    let value = |key: &str| {
        let line = package.iter().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim_matches([' ', '=', '"']).to_owned()
    };
    assert!(value("documentation").starts_with(&value("repository")));
}
