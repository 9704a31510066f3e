//! The files of a folder: more than fifteen side by side are a heap, unless they are a list of like things.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::Violation;

pub(crate) const MOST: usize = 15;

/// Folders that hold a list, with what each of its files is.
const LISTS: &[(&str, &str)] = &[
    ("src/cli", "a command"),
    ("config/src/resource", "a resource of the data model"),
    ("bgp/tests/speaker", "a feature of the speaker"),
];

/// All `.rs` files below a folder, without what is built and what the fuzzer is fed.
pub(crate) fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "corpus", "seeds"].contains(&name.as_str()) {
                sources(&path, out);
            }
        } else if name.ends_with(".rs") {
            out.push(path);
        }
    }
}

pub(crate) fn all(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    sources(root, &mut found);
    found.iter().map(|path| path.strip_prefix(root).unwrap().to_string_lossy().into_owned()).collect()
}

/// Folders of `files` with too many of them, and rows of `LISTS` that nothing needs.
pub(crate) fn heaps(files: &[String]) -> Vec<Violation> {
    let mut folders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        folders.entry(folder).or_default().push(name);
    }
    folders.retain(|folder, names| names.len() > MOST && !LISTS.iter().any(|(list, _)| list == folder));
    let too_many = |(folder, names): (&str, Vec<&str>)| Violation {
        key: folder.to_owned(),
        text: format!("{} files, {MOST} are the most: {}", names.len(), names.join(" ")),
    };
    folders.into_iter().map(too_many).collect()
}

/// Rows of `LISTS` whose folder is no longer full.
pub(crate) fn idle_lists(files: &[String]) -> Vec<&'static str> {
    let count = |list: &str| {
        files.iter().filter(|file| file.rsplit_once('/').is_some_and(|(folder, _)| folder == list)).count()
    };
    LISTS.iter().filter(|(list, _)| count(list) <= MOST).map(|(list, _)| *list).collect()
}
