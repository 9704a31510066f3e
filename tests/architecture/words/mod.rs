//! The words of the code are those of `docs/reference/glossary.md`: identifiers, file names and the texts that people
//! read use none of the words of `banned.txt` in this folder.
//!
//! It reads every `.rs` file of the workspace with a lexer of its own, so comments are free; of texts it reads string
//! literals with a blank in them (others are names: JSON fields, keys, codes), the documentation that clap makes help of,
//! the pages below `docs/`, the README and the page. A failure is a list of `file:line`, the word and the words to use instead.
//!
//! `WORDS=src/agent cargo test --test architecture words` lists what is below that path, `WORDS=` everything; without it there is
//! a table of counts by file for each area that has more than its row of `REMAINING`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::lexer::{Token, is_cfg_test, item_end, lex, parts, prose};

/// Violations that are still there, `area | count`; an area without a row has none. Counts only fall.
const REMAINING: &str = "";

/// Folders without source text of ours.
const SKIPPED: &[&str] = &["target", ".git", "node_modules", "corpus"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Name,
    Type,
    File,
    Text,
    /// As [`Scope::Text`], but for Markdown files.
    Program,
}

#[derive(Debug)]
struct Rule {
    instead: String,
    scopes: Vec<Scope>,
    allowed: Vec<String>,
}

impl Rule {
    fn allows(&self, path: &str, identifier: &str) -> bool {
        self.allowed.iter().any(|place| match place.strip_prefix('=') {
            Some(name) => name == identifier,
            None if place.ends_with('/') => path.starts_with(place.as_str()),
            None => path == place,
        })
    }
}

/// The rules by their first word; a word may have several, of different scopes.
#[derive(Debug, Default)]
struct Rules {
    words: HashMap<String, Vec<Rule>>,
    /// Phrases, with the words that follow the first one.
    phrases: HashMap<String, Vec<(Vec<String>, Rule)>>,
}

impl Rules {
    fn parse(list: &str) -> Result<Self, String> {
        let mut rules = Self::default();
        for (number, line) in list.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let fault = |what: &str| format!("banned.txt:{}: {what}: {line}", number + 1);
            let fields: Vec<&str> = line.split('|').map(str::trim).collect();
            let [words, instead, scopes, allowed] = fields[..] else { return Err(fault("four fields")) };
            if words.is_empty() || instead.is_empty() {
                return Err(fault("a word and what to use instead"));
            }
            let scope = |name| match name {
                "name" => Ok(Scope::Name),
                "type" => Ok(Scope::Type),
                "file" => Ok(Scope::File),
                "text" => Ok(Scope::Text),
                "program" => Ok(Scope::Program),
                _ => Err(fault("a scope is name, type, file, text or program")),
            };
            let scopes: Vec<Scope> = scopes.split_whitespace().map(scope).collect::<Result<_, _>>()?;
            let allowed: Vec<String> = allowed.split_whitespace().map(str::to_owned).collect();
            for word in words.split_whitespace() {
                let rule =
                    Rule { instead: instead.to_owned(), scopes: scopes.clone(), allowed: allowed.clone() };
                match word.split_once('_') {
                    Some((first, rest)) => {
                        let rest = rest.split('_').map(str::to_owned).collect();
                        rules.phrases.entry(first.to_owned()).or_default().push((rest, rule));
                    }
                    None => rules.words.entry(word.to_owned()).or_default().push(rule),
                }
            }
        }
        Ok(rules)
    }

    fn find(&self, word: &str, scope: Scope, path: &str, identifier: &str) -> Option<&Rule> {
        let rules = self.words.get(word)?;
        rules.iter().find(|rule| rule.scopes.contains(&scope) && !rule.allows(path, identifier))
    }

    /// The word or phrase that these words of a text begin with, and its rule.
    fn find_in_text(&self, words: &[String], scopes: &[Scope], path: &str) -> Option<(String, &Rule)> {
        let (first, rest) = words.split_first()?;
        let applies =
            |rule: &Rule| scopes.iter().any(|scope| rule.scopes.contains(scope)) && !rule.allows(path, "");
        let word = self.words.get(first).into_iter().flatten().find(|rule| applies(rule));
        let phrases = self.phrases.get(first).into_iter().flatten();
        word.map(|rule| (first.clone(), rule)).or_else(|| {
            phrases
                .filter(|(phrase, rule)| rest.starts_with(phrase) && applies(rule))
                .map(|(phrase, rule)| (format!("{first} {}", phrase.join(" ")), rule))
                .next()
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Violation {
    path: String,
    line: usize,
    word: String,
    found: String,
    instead: String,
}

fn is_test_path(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap();
    let folders = path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples" | "fuzz"));
    folders || name == "tests.rs" || name.ends_with("_tests.rs")
}

/// The violations of one source file.
fn check_source(rules: &Rules, path: &str, source: &str) -> Vec<Violation> {
    let tokens = lex(source);
    let is_test = is_test_path(path);
    let is_help = source.contains("clap::")
        && ["Parser", "Args", "Subcommand", "ValueEnum"].iter().any(|d| source.contains(d));
    let mut found: Vec<Violation> = Vec::new();
    let mut test_until = 0;
    for (at, (line, token)) in tokens.iter().enumerate() {
        if is_cfg_test(&tokens, at) {
            test_until = test_until.max(item_end(&tokens, at));
        }
        let in_test = is_test || at < test_until;
        match token {
            Token::Word(identifier) => {
                let declares = at.checked_sub(1).is_some_and(|before| {
                    matches!(tokens[before].1, Token::Word("struct" | "enum" | "trait" | "union" | "type"))
                });
                let whole = identifier.to_lowercase();
                let typed = rules.find(&whole, Scope::Type, path, identifier).filter(|_| declares);
                let violation = typed.map(|rule| (whole, rule)).or_else(|| {
                    let named = |part: String| {
                        Some((part.clone(), rules.find(&part, Scope::Name, path, identifier)?))
                    };
                    parts(identifier).into_iter().find_map(named)
                });
                if let Some((word, rule)) = violation {
                    found.push(violation_of(path, *line, word, identifier, rule));
                }
            }
            Token::Text(text) if !in_test && text.contains(' ') => {
                found.extend(check_text(rules, &PROGRAM, path, *line, text));
            }
            Token::Doc(text) if !in_test && is_help => {
                found.extend(check_text(rules, &PROGRAM, path, *line, text));
            }
            _ => {}
        }
    }
    found
}

fn violation_of(path: &str, line: usize, word: String, found: &str, rule: &Rule) -> Violation {
    let found = found.trim().chars().take(60).collect();
    Violation { path: path.to_owned(), line, word, found, instead: rule.instead.clone() }
}

/// What applies to texts of the program; to Markdown applies [`Scope::Text`] alone.
const PROGRAM: [Scope; 2] = [Scope::Text, Scope::Program];

fn check_text(rules: &Rules, scopes: &[Scope], path: &str, line: usize, text: &str) -> Vec<Violation> {
    let words: Vec<String> = prose(text).into_iter().filter(|word| !word.is_empty()).collect();
    let mut found = Vec::new();
    for at in 0..words.len() {
        if let Some((word, rule)) = rules.find_in_text(&words[at..], scopes, path) {
            found.push(violation_of(path, line, word, text, rule));
        }
    }
    found
}

/// The violations of a page for people; fenced JSON is data.
fn check_page(rules: &Rules, path: &str, page: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (number, line) in page.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language.trim()) };
        } else if fence != Some("json") {
            found.extend(check_text(rules, &[Scope::Text], path, number + 1, line));
        }
    }
    found
}

/// The violations of an HTML page with its script: quoted texts with a blank in them, outside of comments.
fn check_html(rules: &Rules, path: &str, page: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, line) in page.lines().enumerate() {
        let mut rest = line.trim_start();
        if rest.starts_with(['*', '/']) {
            continue;
        }
        while let Some((_, quoted)) = rest.split_once(['\'', '"', '`']) {
            let quote = rest.as_bytes()[rest.len() - quoted.len() - 1] as char;
            let (text, after) = quoted.split_once(quote).unwrap_or((quoted, ""));
            if text.contains(' ') {
                found.extend(check_text(rules, &PROGRAM, path, number + 1, text));
            }
            rest = after;
        }
    }
    found
}

/// The violation of a file's own name, and those of the folders above it that `done` has not.
fn check_path(rules: &Rules, path: &str, done: &mut Vec<String>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut so_far = String::new();
    for name in path.split('/') {
        if !so_far.is_empty() {
            so_far.push('/');
        }
        so_far.push_str(name);
        if done.contains(&so_far) {
            continue;
        }
        done.push(so_far.clone());
        let stem = name.split('.').next().unwrap();
        for part in stem.split(['_', '-']) {
            if let Some(rule) = rules.find(part, Scope::File, path, stem) {
                found.push(violation_of(&so_far, 0, part.to_owned(), name, rule));
            }
        }
    }
    found
}

fn workspace() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_workspace =
        |dir: &&Path| fs::read_to_string(dir.join("Cargo.toml")).is_ok_and(|t| t.contains("[workspace]"));
    package.ancestors().find(is_workspace).unwrap().to_owned()
}

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        let path = entry.path();
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            if !SKIPPED.iter().any(|skipped| name == *skipped) {
                files(&path, out);
            }
        } else {
            out.push(path);
        }
    }
}

fn violations(rules: &Rules, root: &Path) -> Vec<Violation> {
    let mut all = Vec::new();
    files(root, &mut all);
    all.sort();
    let mut found = Vec::new();
    let mut done = Vec::new();
    for file in all {
        let path = file.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let is_page = path.ends_with(".md") && !path.ends_with("CHANGELOG.md");
        let is_html = path.contains("src/") && path.ends_with(".html");
        if path == "docs/reference/glossary.md" || path.starts_with("tests/") && path.contains("/words/") {
            continue;
        }
        if path.ends_with(".rs") {
            found.extend(check_path(rules, &path, &mut done));
            found.extend(check_source(rules, &path, &fs::read_to_string(&file).unwrap()));
        } else if is_html {
            found.extend(check_html(rules, &path, &fs::read_to_string(&file).unwrap()));
        } else if is_page {
            found.extend(check_page(rules, &path, &fs::read_to_string(&file).unwrap()));
        }
    }
    found
}

/// A line a file with its count and the words that it has most.
fn table(found: &[&Violation]) -> String {
    let mut by_file: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for violation in found {
        *by_file.entry(&violation.path).or_default().entry(&violation.word).or_default() += 1;
    }
    let mut out = String::new();
    for (path, words) in by_file {
        let mut words: Vec<(&str, usize)> = words.into_iter().collect();
        words.sort_by_key(|(word, count)| (std::cmp::Reverse(*count), *word));
        let sum: usize = words.iter().map(|(_, count)| count).sum();
        let words: Vec<String> = words.iter().map(|(word, count)| format!("{word} {count}")).collect();
        _ = writeln!(out, "{sum:5}  {path}: {}", words.join(", "));
    }
    out
}

fn list(found: &[&Violation]) -> String {
    let mut out = String::new();
    for Violation { path, line, word, found, instead } in found {
        _ = writeln!(out, "{path}:{line}: `{word}` in `{found}`: use {instead}");
    }
    out
}

fn rules() -> Rules {
    Rules::parse(&fs::read_to_string(workspace().join("tests/architecture/words/banned.txt")).unwrap())
        .unwrap()
}

#[test]
fn the_words_are_those_of_the_glossary() {
    let mut found = violations(&rules(), &workspace());
    if let Ok(below) = std::env::var("WORDS") {
        found.retain(|violation| violation.path.starts_with(&below));
        let count = found.len();
        assert!(found.is_empty(), "{count} below {below}:\n{}", list(&found.iter().collect::<Vec<_>>()));
        return;
    }
    if let Err(wrong) = settle(&found, REMAINING) {
        panic!("{wrong}");
    }
}

/// Where a file belongs: a room of the root package, else the first folder, or the file itself.
fn area(path: &str) -> &str {
    let depth = if path.starts_with("src/") { 2 } else { 1 };
    path.match_indices('/').nth(depth - 1).map_or(path, |(end, _)| &path[..end])
}

/// Fails for areas with more words than their row says; who takes words away lowers the row.
fn settle(found: &[Violation], remaining: &str) -> Result<(), String> {
    let rows = remaining.lines().filter_map(|line| line.split_once('|'));
    let rows: BTreeMap<&str, usize> =
        rows.map(|(area, count)| (area.trim(), count.trim().parse().unwrap())).collect();
    let mut areas: BTreeMap<&str, Vec<&Violation>> = BTreeMap::new();
    for violation in found {
        areas.entry(area(&violation.path)).or_default().push(violation);
    }
    let mut wrong = String::new();
    for (area, found) in &areas {
        let (count, left) = (found.len(), rows.get(area).copied().unwrap_or(0));
        if count > left {
            let each = if count <= 200 { list(found) } else { String::new() };
            _ = writeln!(
                wrong,
                "{area} | {count}  (its row: {left}; WORDS={area} lists each)\n{}{each}",
                table(found)
            );
        }
    }
    for (area, left) in rows {
        let count = areas.get(area).map_or(0, Vec::len);
        if count < left {
            eprintln!("{area} | {count}  (its row: {left})");
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

const SAMPLE: &str = r##"
    //! told in a comment, and `beside` too
    struct PeerTold<'a> { told_at: &'a str, letter: char }
    enum Known { Absent }
    struct KnownPeer;
    /* a /* nested */ mishap */
    fn returns() -> char { let (seen, known) = ('"', 'b'); '\'' }
    const TEXT: &str = "it hears {told} of nobody";
    const RAW: &str = r#"an "odd" mishap"#;
    const FIELD: &str = "beside";
    #[cfg(test)]
    mod tests { fn t() { let told = "it was told this"; } }
    const AFTER: &str = "somebody, told --told";
"##;

#[test]
fn a_sample_with_banned_words_fails_at_each_of_them() {
    let found = check_source(&rules(), "src/sample.rs", SAMPLE);
    let found: Vec<(usize, &str, &str)> =
        found.iter().map(|v| (v.line, v.word.as_str(), v.found.as_str())).collect();
    assert_eq!(
        found,
        [
            (3, "told", "PeerTold"),
            (3, "told", "told_at"),
            (3, "letter", "letter"),
            (4, "known", "Known"),
            (8, "hears", "it hears {told} of nobody"),
            (8, "nobody", "it hears {told} of nobody"),
            (9, "mishap", "an \"odd\" mishap"),
            (12, "told", "told"),
            (13, "somebody", "somebody, told --told"),
            (13, "told", "somebody, told --told"),
        ]
    );
}

#[test]
fn names_of_files_and_folders_are_checked_once() {
    let mut done = Vec::new();
    let mut found = check_path(&rules(), "src/beside/known.rs", &mut done);
    found.extend(check_path(&rules(), "src/beside/unknown.rs", &mut done));
    let found: Vec<(&str, &str)> = found.iter().map(|v| (v.path.as_str(), v.word.as_str())).collect();
    assert_eq!(found, [("src/beside", "beside"), ("src/beside/known.rs", "known")]);
}

#[test]
fn a_page_is_checked_without_its_code_and_its_json() {
    let page =
        "It is told\nof `told` and /v1/told\n```json\n{\"told\": \"it is told\"}\n```\n```text\nheard\n```\n";
    let found = check_page(&rules(), "docs/sample.md", page);
    let found: Vec<(usize, &str)> = found.iter().map(|v| (v.line, v.word.as_str())).collect();
    assert_eq!(found, [(1, "told"), (7, "heard")]);
}

#[test]
fn a_phrase_is_found_in_texts_of_its_scope() {
    let rules =
        Rules::parse("given_out | allocated | text |\nas_it_should_be | as desired | program |\n").unwrap();
    let source = "const A: &str = \"addresses are given  out: as it \\\n should be\"; fn given_out() {}";
    let found = check_source(&rules, "src/sample.rs", source);
    let found: Vec<(&str, &str)> = found.iter().map(|v| (v.word.as_str(), v.instead.as_str())).collect();
    assert_eq!(found, [("given out", "allocated"), ("as it should be", "as desired")]);
    let found = check_page(&rules, "docs/a.md", "It is given `x` out.\nIt is given out, as it should be.");
    let found: Vec<(usize, &str)> = found.iter().map(|v| (v.line, v.word.as_str())).collect();
    assert_eq!(found, [(1, "given out"), (2, "given out")]);
}

#[test]
fn of_a_script_only_texts_are_checked() {
    let page = "// it was told\nconst told = K.beside, t = 'told';\nh2('Beside BIRD', `it is ${told}`)\n";
    let found = check_html(&rules(), "src/page.html", page);
    let found: Vec<(usize, &str)> = found.iter().map(|v| (v.line, v.word.as_str())).collect();
    assert_eq!(found, [(3, "beside")]);
}

#[test]
fn allowed_places_and_names_are_left_alone() {
    let rules = Rules::parse("told | sent | name text | src/a.rs src/b/ =told_by_libc\n").unwrap();
    let told = "fn told_by_libc() { told() }";
    assert_eq!(check_source(&rules, "src/a.rs", told), []);
    assert_eq!(check_source(&rules, "src/b/c.rs", told), []);
    assert_eq!(check_source(&rules, "src/c.rs", told).len(), 1);
    assert!(Rules::parse("told | sent | name\n").is_err());
    assert!(Rules::parse("told | sent | names |\n").is_err());
}

#[test]
fn an_area_hides_behind_no_other() {
    let found = |path: &str| check_source(&rules(), path, "fn told() {}");
    let all = [found("src/agent/core/mod.rs"), found("src/cli/log.rs"), found("kernel/src/lib.rs")].concat();
    assert_eq!(settle(&all, "src/agent | 1\nsrc/cli | 1\nkernel | 1\n"), Ok(()));
    let wrong = settle(&all, "src/agent | 0\nsrc/cli | 9\n").unwrap_err();
    let areas: Vec<&str> = wrong.lines().filter(|line| line.contains(" | ")).collect();
    assert_eq!(areas.len(), 2, "{wrong}");
    assert!(
        areas[0].starts_with("kernel | 1  (its row: 0") && areas[1].starts_with("src/agent | 1  (its row: 0")
    );
    assert_eq!(
        [area("src/lib.rs"), area("README.md"), area("docs/reference/cni.md")],
        ["src/lib.rs", "README.md", "docs"]
    );
}
