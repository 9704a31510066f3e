//! The modules of a crate and who names whom.
//!
//! A module is a file; `mod.rs` and `lib.rs` count as any other. A re-export is no use: `pub use child::Name` in `mod.rs` makes no
//! arrow (unless the file names `Name` in its own code), and who names it there is taken to name it where it is defined. So a folder
//! whose `mod.rs` only lists and re-exports is in no circle; one whose `mod.rs` has code of its own, which names its children while
//! they name it, is. A module's name alone is no use either. Test code may name anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

use super::uses::{self, File, Use};

/// `["agent", "core"]`; the crate's root is empty.
pub(crate) type Name = Vec<String>;

#[derive(Debug)]
pub(crate) struct Module {
    /// From the workspace: `src/agent/core/mod.rs`.
    pub(crate) file: String,
    pub(crate) code: File,
}

#[derive(Debug, Default)]
pub(crate) struct Crate {
    pub(crate) modules: BTreeMap<Name, Module>,
}

/// `from` names something of `to`.
#[derive(Debug, Clone)]
pub(crate) struct Arrow {
    pub(crate) from: Name,
    pub(crate) to: Name,
    /// `src/agent/core/mod.rs:12`.
    pub(crate) place: String,
    pub(crate) name: String,
}

/// A path that leaves the crate: its first segment is a library.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) place: String,
    pub(crate) library: String,
}

pub(crate) fn show(name: &[String]) -> String {
    if name.is_empty() { "lib".to_owned() } else { name.join("::") }
}

impl Crate {
    /// Reads the crate whose sources are below `root/folder`.
    pub(crate) fn load(root: &Path, folder: &str) -> Self {
        let mut files = Vec::new();
        super::files::sources(&root.join(folder), &mut files);
        let texts = files.into_iter().map(|path| {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).unwrap();
            (name, text)
        });
        Self::new(folder, texts.collect())
    }

    /// The crate of these files, `folder/a/b.rs` with its text.
    pub(crate) fn new(folder: &str, files: Vec<(String, String)>) -> Self {
        let mut modules = BTreeMap::new();
        for (file, text) in files {
            let inside = file.strip_prefix(folder).unwrap().trim_start_matches('/').trim_end_matches(".rs");
            let mut name: Name = inside.split('/').map(str::to_owned).collect();
            if name.last().is_some_and(|last| last == "mod") || name == ["lib"] {
                name.pop();
            }
            modules.insert(name, Module { file, code: uses::read(&text) });
        }
        let tests: BTreeSet<Name> = modules
            .iter()
            .flat_map(|(name, module)| {
                module
                    .code
                    .test_modules
                    .iter()
                    .map(move |test| [&name[..], std::slice::from_ref(test)].concat())
            })
            .collect();
        // Some name their file with `#[path]`.
        let is_test = |part: &String| part == "tests" || part.ends_with("_tests");
        modules.retain(|name, _| {
            !name.iter().any(is_test) && !(0..=name.len()).any(|length| tests.contains(&name[..length]))
        });
        Self { modules }
    }

    /// The whole path inside of the crate of what `path` means at `at`; `None` where it leaves the crate.
    fn absolute(&self, at: &[String], path: &[String], depth: usize) -> Option<Name> {
        let first = path.first()?;
        let join = |base: &[String], rest: &[String]| Some([base, rest].concat());
        match first.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => join(at, &path[1..]),
            "super" => {
                let supers = path.iter().take_while(|segment| *segment == "super").count();
                join(&at[..at.len().checked_sub(supers)?], &path[supers..])
            }
            _ if self.modules.contains_key(&[at, &path[..1]].concat()) => join(at, path),
            _ if depth < 16 => {
                let (file, inline) = self.file_of(at)?;
                let uses = self.modules[file].code.uses.iter();
                let mut named = uses.filter(|u| u.inline == inline && u.alias.as_ref() == Some(first));
                let by = named.find(|u| u.path != path)?;
                let whole = self.absolute(at, &by.path, depth + 1)?;
                join(&whole, &path[1..])
            }
            _ => None,
        }
    }

    /// The file that a module stands in, and the modules with a body in it around it.
    fn file_of<'a>(&self, at: &'a [String]) -> Option<(&'a [String], &'a [String])> {
        let length = (0..=at.len()).rev().find(|length| self.modules.contains_key(&at[..*length]))?;
        Some(at.split_at(length))
    }

    /// The module that defines what an absolute path means, and its name there; `None` where a re-export leaves the crate.
    fn locate(&self, path: &[String], depth: usize) -> Option<(Name, String)> {
        let length = (0..=path.len()).rev().find(|length| self.modules.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(length);
        let Some(name) = rest.first() else { return Some((module.to_vec(), "self".to_owned())) };
        let here = Some((module.to_vec(), name.clone()));
        let code = &self.modules[module].code;
        if code.defines.contains(name) || depth > 16 {
            return here;
        }
        let outer = |u: &&Use| u.inline.is_empty();
        if let Some(by) = code.uses.iter().filter(outer).find(|u| u.alias.as_ref() == Some(name)) {
            let whole = self.absolute(module, &by.path, 0)?;
            let whole = [&whole[..], &rest[1..]].concat();
            return if whole == path { here } else { self.locate(&whole, depth + 1) };
        }
        for glob in code.uses.iter().filter(outer).filter(|u| u.is_glob) {
            let Some(from) = self.absolute(module, &glob.path, 0) else { continue };
            let Some(target) = self.modules.get(&from) else { continue };
            let has = target.code.defines.contains(name)
                || target.code.uses.iter().any(|u| u.alias.as_ref() == Some(name));
            if has && from != module {
                return self.locate(&[&from[..], rest].concat(), depth + 1);
            }
        }
        here
    }

    fn each_path(&self, mut f: impl FnMut(&Name, &Module, &[String], &[String], usize)) {
        for (name, module) in &self.modules {
            for found in &module.code.uses {
                let named = |alias: &String| module.code.words.contains_key(alias);
                if found.is_public && !found.alias.as_ref().is_some_and(named) {
                    continue;
                }
                let at = [&name[..], &found.inline].concat();
                f(name, module, &at, &found.path, found.line);
            }
            for path in &module.code.paths {
                let at = [&name[..], &path.inline].concat();
                f(name, module, &at, &path.segments, path.line);
            }
        }
    }

    pub(crate) fn arrows(&self) -> Vec<Arrow> {
        let mut found = Vec::new();
        self.each_path(|from, module, at, path, line| {
            let Some((to, name)) = self.absolute(at, path, 0).and_then(|path| self.locate(&path, 0)) else {
                return;
            };
            // A module's name alone brings in nothing: what is named through it makes an arrow.
            if to != *from && name != "self" {
                found.push(Arrow { from: from.clone(), to, place: format!("{}:{line}", module.file), name });
            }
        });
        found
    }

    pub(crate) fn outside(&self) -> Vec<Outside> {
        let mut found = Vec::new();
        for (name, module) in &self.modules {
            let uses = module.code.uses.iter().map(|u| (u.line, &u.path, &u.inline));
            let paths = module.code.paths.iter().map(|p| (p.line, &p.segments, &p.inline));
            for (line, path, inline) in uses.chain(paths) {
                if self.absolute(&[&name[..], inline].concat(), path, 0).is_none() {
                    let library = path.first().cloned().unwrap_or_default();
                    found.push(Outside { place: format!("{}:{line}", module.file), library });
                }
            }
        }
        found
    }
}

/// Strongly connected components of more than one module.
pub(crate) fn circles(arrows: &[Arrow]) -> Vec<BTreeSet<Name>> {
    let mut next: BTreeMap<&Name, BTreeSet<&Name>> = BTreeMap::new();
    for arrow in arrows {
        next.entry(&arrow.from).or_default().insert(&arrow.to);
    }
    let reach = |start: &Name| {
        let mut found: BTreeSet<&Name> = BTreeSet::new();
        let mut open: Vec<&Name> = next.get(start).into_iter().flatten().copied().collect();
        while let Some(name) = open.pop() {
            if found.insert(name) {
                open.extend(next.get(name).into_iter().flatten());
            }
        }
        found
    };
    let reached: BTreeMap<&Name, BTreeSet<&Name>> = next.keys().map(|name| (*name, reach(name))).collect();
    let mut circles: Vec<BTreeSet<Name>> = Vec::new();
    for (name, from) in &reached {
        if from.contains(name) && !circles.iter().any(|circle| circle.contains(*name)) {
            let back = |other: &&&Name| reached.get(**other).is_some_and(|back| back.contains(name));
            circles.push(from.iter().filter(back).map(|other| (**other).clone()).collect());
        }
    }
    circles
}

/// The shortest way round through as many modules of the circle as a shortest way has, then every other arrow of it.
pub(crate) fn describe(circle: &BTreeSet<Name>, arrows: &[Arrow]) -> String {
    let inside: Vec<&Arrow> =
        arrows.iter().filter(|arrow| circle.contains(&arrow.from) && circle.contains(&arrow.to)).collect();
    let mut names: BTreeMap<(&Name, &Name), (&str, BTreeSet<&str>)> = BTreeMap::new();
    for arrow in inside {
        let entry = names.entry((&arrow.from, &arrow.to)).or_insert((&arrow.place, BTreeSet::new()));
        entry.1.insert(&arrow.name);
    }
    let chain = |start: &Name| {
        let mut came: BTreeMap<&Name, &Name> = BTreeMap::new();
        let mut open = VecDeque::from([circle.get(start).unwrap()]);
        while let Some(name) = open.pop_front() {
            for (_, to) in names.keys().filter(|(from, _)| *from == name) {
                if *to == start {
                    let mut way = vec![show(start), show(name)];
                    let mut at = name;
                    while let Some(before) = came.get(at) {
                        way.push(show(before));
                        at = before;
                    }
                    way.reverse();
                    return way;
                }
                if !came.contains_key(to) {
                    came.insert(to, name);
                    open.push_back(to);
                }
            }
        }
        Vec::new()
    };
    let longest = circle.iter().map(chain).max_by_key(Vec::len).unwrap_or_default();
    let mut out = format!("{} modules, one way round: {}\n", circle.len(), longest.join(" -> "));
    for ((from, to), (place, names)) in &names {
        let names: Vec<&str> = names.iter().copied().collect();
        out.push_str(&format!("    {place}: {} -> {} ({})\n", show(from), show(to), names.join(", ")));
    }
    out
}
