//! Who may use whom: the order of the crates, of the rooms inside them, circles of modules, folders with too many files, and who
//! sees the state of a thread. All of it is computed from the `use` lines, the paths in the code and the manifests; the tables are in
//! `rules.rs`.
//!
//! `cargo test --test architecture arrows` fails with the file, the line and the chain of names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

mod fields;
pub(crate) mod files;
mod graph;
mod order;
pub(crate) mod rules;
mod samples;
mod uses;

/// The most modules that a circle may have.
const CIRCLE: usize = 3;

/// Something against a rule; `NOT_YET` names it by its key.
#[derive(Debug)]
pub(crate) struct Violation {
    key: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Circles of a crate that are too large; the key is the folder that they have in common.
fn circles(name: &str, arrows: &[graph::Arrow]) -> Vec<Violation> {
    let too_large = graph::circles(arrows).into_iter().filter(|circle| circle.len() > CIRCLE);
    let violation = |circle: BTreeSet<graph::Name>| {
        let (first, last) = (circle.first().unwrap(), circle.last().unwrap());
        let common: Vec<String> =
            first.iter().zip(last).take_while(|(a, b)| a == b).map(|(a, _)| a.clone()).collect();
        let key = [&[name.to_owned()], &common[..]].concat().join("::");
        Violation { key, text: graph::describe(&circle, arrows) }
    };
    too_large.map(violation).collect()
}

/// Fails for violations that `not_yet` does not name, and for rows of it that nothing needs.
fn settle(rule: &str, found: Vec<Violation>, not_yet: &[(&str, &str)]) -> Result<(), String> {
    let rows: BTreeSet<&str> = not_yet.iter().filter(|(of, _)| *of == rule).map(|(_, key)| *key).collect();
    let keys: BTreeSet<String> = found.iter().map(|violation| violation.key.clone()).collect();
    let mut wrong: Vec<String> = Vec::new();
    for Violation { key, text, .. } in found.iter().filter(|violation| !rows.contains(violation.key.as_str()))
    {
        wrong.push(format!("(\"{rule}\", \"{key}\"): {text}"));
    }
    for row in rows.iter().filter(|row| !keys.contains(**row)) {
        wrong.push(format!("(\"{rule}\", \"{row}\") of NOT_YET holds now: take the row out"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn holds(rule: &str, found: Vec<Violation>) {
    if let Err(wrong) = settle(rule, found, rules::NOT_YET) {
        panic!("{wrong}");
    }
}

#[test]
fn no_circle_has_more_than_three_modules() {
    let found = rules::CRATES
        .iter()
        .flat_map(|(name, source)| circles(name, &graph::Crate::load(root(), source).arrows()));
    holds("circle", found.collect());
}

#[test]
fn rooms_are_used_in_their_order() {
    let mut found = Vec::new();
    for order in rules::ORDERS {
        let inside = |source: &str| order.folder == source || order.folder.starts_with(&format!("{source}/"));
        let source = rules::CRATES.iter().map(|(_, source)| *source).find(|source| inside(source)).unwrap();
        let krate = graph::Crate::load(root(), source);
        found.extend(order::against(order, &krate, source, &krate.arrows()));
    }
    holds("order", found);
}

#[test]
fn no_folder_is_a_heap() {
    let files = files::all(root());
    assert_eq!(files::idle_lists(&files), [""; 0], "lists that are short now need no row");
    holds("files", files::heaps(&files));
}

#[test]
fn the_state_of_a_thread_is_private_and_in_one_place() {
    let mut found = Vec::new();
    for (name, folder) in fields::OWNERS {
        let inside = |source: &str| folder.starts_with(&format!("{source}/"));
        let source = rules::CRATES.iter().map(|(_, source)| *source).find(|source| inside(source)).unwrap();
        let of_crate = files::all(root()).into_iter().filter(|file| file.starts_with(&format!("{source}/")));
        let texts = of_crate.map(|file| (fs::read_to_string(root().join(&file)).unwrap(), file));
        let texts: Vec<_> = texts.map(|(text, file)| (file, text)).collect();
        found.extend(fields::check((name, folder), source, &texts));
    }
    holds("owner", found);
}

/// `name | list` rows.
fn table(text: &'static str) -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let row = |line: &'static str| {
        let (name, list) = line.split_once('|').unwrap();
        (name.trim(), list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect())
    };
    lines.map(row).collect()
}

/// Dependencies that a manifest names, without those of tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_table = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            is_table = section == "dependencies" || section.ends_with("'.dependencies");
            found.extend(section.strip_prefix("dependencies.").map(str::to_owned));
        } else if is_table && !line.starts_with('#') && line.contains('=') {
            found.insert(line.split(['.', '=', ' ']).next().unwrap().to_owned());
        }
    }
    found
}

fn manifest(name: &str) -> String {
    let folder = if name == "tortie" { root().to_owned() } else { root().join(name) };
    fs::read_to_string(folder.join("Cargo.toml")).unwrap()
}

#[test]
fn crates_depend_on_those_below_them() {
    let mut wrong = Vec::new();
    let order = table(rules::CRATE_ORDER);
    let crates: BTreeSet<&str> = rules::CRATES.iter().map(|(name, _)| *name).collect();
    assert_eq!(crates, order.keys().copied().collect());
    let members = manifest("tortie").lines().find(|line| line.starts_with("members = ")).unwrap().to_owned();
    assert_eq!(members.matches('"').count() / 2 + 1, crates.len(), "a crate without a row: {members}");
    for (name, may) in order {
        for used in dependencies(&manifest(name)).iter().filter_map(|used| used.strip_prefix("tortie-")) {
            if !may.contains(used) {
                wrong.push(format!("{name} depends on {used}; it may on {may:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_library_is_named_in_its_rooms() {
    let mut wrong = Vec::new();
    let libraries = table(rules::LIBRARIES);
    let mut idle: BTreeSet<(&str, &str)> =
        libraries.iter().flat_map(|(name, places)| places.iter().map(move |place| (*name, *place))).collect();
    for (_, source) in rules::CRATES {
        for outside in graph::Crate::load(root(), source).outside() {
            let Some((name, places)) = libraries.get_key_value(outside.library.as_str()) else { continue };
            let inside = |place: &&&str| {
                outside.place.strip_prefix(**place).is_some_and(|rest| rest.starts_with(['/', ':', '.']))
            };
            match places.iter().find(inside) {
                Some(place) => _ = idle.remove(&(name, place)),
                None => wrong.push(format!("{}: names {name}, which may {places:?}", outside.place)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(idle.is_empty(), "places that name the library no more: {idle:?}");
}

/// The key types of maps and sets without a secret key in a source, and other uses of their hash.
fn unkeyed_hashes(text: &str) -> Vec<String> {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap().to_owned() + "\n").collect();
    let mut found = Vec::new();
    for (at, name) in code.match_indices("Fx") {
        let rest = &code[at + name.len()..];
        let Some(of) = ["HashMap<", "HashSet<"].iter().find_map(|kind| rest.strip_prefix(kind)) else {
            let plain = [
                "HashMap::",
                "HashSet::",
                "HashMap,",
                "HashSet,",
                "HashMap;",
                "HashSet;",
                "HashMap}",
                "HashSet}",
            ];
            if rest.starts_with("Hash") && !plain.iter().any(|kind| rest.starts_with(kind))
                || rest.starts_with("Build")
            {
                found.push(rest.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned());
            }
            continue;
        };
        let mut depth = 0;
        let end = of.find(|c: char| {
            depth += i32::from(matches!(c, '<' | '(')) - i32::from(matches!(c, '>' | ')'));
            depth < 0 || depth == 0 && c == ','
        });
        found.push(of[..end.unwrap()].trim().to_owned());
    }
    found
}

/// A peer or the store chooses the octets of addresses, prefixes, names and attributes: a hash without a secret key lets it choose
/// what collides. What is hashed without one are numbers that we give out ourselves.
#[test]
fn only_numbers_of_our_own_are_hashed_without_a_key() {
    assert_eq!(
        unkeyed_hashes(
            "FxHashMap<Cidr, (u8, A<B>)>, &FxHashSet<(IpAddr, u32)>; FxHashMap::default() FxBuildHasher.x FxHasher"
        ),
        ["Cidr", "(IpAddr, u32)", "BuildHasher", "Hasher"]
    );
    let mut wrong = Vec::new();
    for file in files::all(root()).iter().filter(|file| file.ends_with(".rs") && !file.starts_with("tests/"))
    {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let found = unkeyed_hashes(&text);
        wrong.extend(
            found
                .into_iter()
                .filter(|of| !rules::OWN_NUMBERS.contains(&&**of))
                .map(|of| format!("{file}: {of}")),
        );
    }
    assert!(wrong.is_empty(), "hashed without a key (see net/src/hash.rs): {}", wrong.join("\n"));
}
