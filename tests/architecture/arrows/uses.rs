//! What one source file names: its `use` lines, the paths in its code, and the items that it defines.

use std::collections::{BTreeSet, HashMap};

use crate::lexer::{Token, is_cfg_test, item_end, lex};

/// One name that a `use` brings in: `use a::{b, c as d}` are two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) line: usize,
    pub(crate) path: Vec<String>,
    /// The name here; `None` for `*` and for `as _`.
    pub(crate) alias: Option<String>,
    pub(crate) is_glob: bool,
    /// A re-export: `pub use`, `pub(crate) use`, `pub(super) use`.
    pub(crate) is_public: bool,
    /// Modules with a body in this file that it stands in.
    pub(crate) inline: Vec<String>,
}

/// A path in the code: `crate::a::b::c()`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) line: usize,
    pub(crate) segments: Vec<String>,
    pub(crate) inline: Vec<String>,
}

/// A file without its comments and without what is compiled for tests only.
#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) uses: Vec<Use>,
    pub(crate) paths: Vec<Path>,
    /// Items that stand directly in the file.
    pub(crate) defines: BTreeSet<String>,
    /// How often each identifier stands outside of `use` lines.
    pub(crate) words: HashMap<String, usize>,
    /// Modules that it declares for tests only.
    pub(crate) test_modules: BTreeSet<String>,
}

type Tokens<'a> = [(usize, Token<'a>)];

pub(crate) fn word<'a>(tokens: &Tokens<'a>, at: usize) -> Option<&'a str> {
    match tokens.get(at) {
        Some((_, Token::Word(word))) => Some(word),
        _ => None,
    }
}

pub(crate) fn is_mark(tokens: &Tokens<'_>, at: usize, mark: char) -> bool {
    matches!(tokens.get(at), Some((_, Token::Mark(found))) if *found == mark)
}

fn is_colons(tokens: &Tokens<'_>, at: usize) -> bool {
    is_mark(tokens, at, ':') && is_mark(tokens, at + 1, ':')
}

/// Reads a file; whatever does not look like Rust is passed over.
pub(crate) fn read(source: &str) -> File {
    let tokens = lex(source);
    let mut file = File::default();
    let mut inline: Vec<(String, usize)> = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while at < tokens.len() {
        let names = || inline.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        if is_cfg_test(&tokens, at) {
            let end = item_end(&tokens, at);
            let declared = (at..end).find(|at| word(&tokens, *at) == Some("mod"));
            if let Some(name) = declared.and_then(|at| word(&tokens, at + 1)) {
                file.test_modules.insert(name.to_owned());
            }
            at = end + 1;
            continue;
        }
        match &tokens[at].1 {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') => {
                if inline.last().is_some_and(|(_, outside)| *outside + 1 == depth) {
                    inline.pop();
                }
                depth = depth.saturating_sub(1);
            }
            Token::Word("use") if !is_mark(&tokens, at + 1, '<') => {
                let is_public = at > 0
                    && (word(&tokens, at - 1) == Some("pub")
                        || is_mark(&tokens, at - 1, ')') && before_bracket(&tokens, at - 1) == Some("pub"));
                let first = file.uses.len();
                at = tree(&tokens, at + 1, &[], &mut file.uses);
                for found in &mut file.uses[first..] {
                    (found.is_public, found.inline) = (is_public, names());
                }
                continue;
            }
            Token::Word("mod") if word(&tokens, at + 1).is_some() && is_mark(&tokens, at + 2, '{') => {
                inline.push((word(&tokens, at + 1).unwrap().to_owned(), depth));
                (depth, at) = (depth + 1, at + 3);
                continue;
            }
            Token::Word(found) => {
                *file.words.entry((*found).to_owned()).or_default() += 1;
                if depth == 0
                    && let Some(name) = defined(&tokens, at)
                {
                    file.defines.insert(name.to_owned());
                }
                // `pub(in crate::a)` names a place and uses nothing.
                let is_visibility =
                    at > 2 && word(&tokens, at - 1) == Some("in") && is_mark(&tokens, at - 2, '(');
                if is_colons(&tokens, at + 1) && !(at > 1 && is_colons(&tokens, at - 2)) && !is_visibility {
                    let line = tokens[at].0;
                    let mut segments = vec![(*found).to_owned()];
                    while is_colons(&tokens, at + 1)
                        && let Some(next) = word(&tokens, at + 3)
                    {
                        segments.push(next.to_owned());
                        at += 3;
                    }
                    file.paths.push(Path { line, segments, inline: names() });
                }
            }
            _ => {}
        }
        at += 1;
    }
    file
}

/// The word before the bracket that closes at `at`: `pub` of `pub(super)`.
fn before_bracket<'a>(tokens: &Tokens<'a>, at: usize) -> Option<&'a str> {
    let open = (0..at).rev().find(|at| is_mark(tokens, *at, '('))?;
    word(tokens, open.checked_sub(1)?)
}

/// The name of the item whose keyword stands at `at`.
fn defined<'a>(tokens: &Tokens<'a>, at: usize) -> Option<&'a str> {
    match word(tokens, at)? {
        "struct" | "enum" | "trait" | "type" | "fn" | "const" | "static" | "union" => word(tokens, at + 1),
        "macro_rules" => word(tokens, at + 2),
        _ => None,
    }
}

/// Reads a tree of a `use` line from `at` on; returns where it goes on.
fn tree(tokens: &Tokens<'_>, mut at: usize, before: &[String], out: &mut Vec<Use>) -> usize {
    let line = tokens.get(at).map_or(0, |(line, _)| *line);
    let mut path = before.to_vec();
    let found = |path: Vec<String>, alias: Option<String>, is_glob| Use {
        line,
        path,
        alias,
        is_glob,
        is_public: false,
        inline: Vec::new(),
    };
    loop {
        if is_colons(tokens, at) {
            at += 2;
        } else if is_mark(tokens, at, '*') {
            out.push(found(path, None, true));
            return at + 1;
        } else if is_mark(tokens, at, '{') {
            at += 1;
            while at < tokens.len() && !is_mark(tokens, at, '}') {
                at = if is_mark(tokens, at, ',') { at + 1 } else { tree(tokens, at, &path, out) };
            }
            return at + 1;
        } else if word(tokens, at) == Some("as") {
            let alias = word(tokens, at + 1).filter(|alias| *alias != "_").map(str::to_owned);
            out.push(found(path, alias, false));
            return at + 2;
        } else if let Some(segment) = word(tokens, at) {
            // `a::{self}` is `a`.
            if segment != "self" || path.is_empty() {
                path.push(segment.to_owned());
            }
            at += 1;
            if !is_colons(tokens, at) && word(tokens, at) != Some("as") {
                let alias = path.last().cloned();
                out.push(found(path, alias, false));
                return at;
            }
        } else {
            return at + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_lines_are_read_name_by_name() {
        let file = read(
            "pub(super) use crate::a::{self, b::{C, D as E}, f::*};\nuse super::g;\n// use h;\n\
             #[cfg(test)] mod tests { use i::j; }\nmod k { use l::M; }\nfn n() -> impl O + use<'_> {}\n",
        );
        let found: Vec<String> = file
            .uses
            .iter()
            .map(|u| {
                let public = if u.is_public { "pub " } else { "" };
                format!("{} {public}{} {:?} {:?}", u.line, u.path.join("::"), u.alias, u.inline)
            })
            .collect();
        assert_eq!(
            found,
            [
                "1 pub crate::a Some(\"a\") []",
                "1 pub crate::a::b::C Some(\"C\") []",
                "1 pub crate::a::b::D Some(\"E\") []",
                "1 pub crate::a::f None []",
                "2 super::g Some(\"g\") []",
                "5 l::M Some(\"M\") [\"k\"]",
            ]
        );
        assert!(file.test_modules.contains("tests") && file.defines.contains("n"));
    }

    #[test]
    fn paths_in_the_code_are_read_whole() {
        let file = read("fn a(b: crate::c::D<e::F>) { let g = crate::h::i::<J>(); K::l() }\n");
        let found: Vec<String> = file.paths.iter().map(|path| path.segments.join("::")).collect();
        assert_eq!(found, ["crate::c::D", "e::F", "crate::h::i", "K::l"]);
    }
}
