//! The types that own a thread's state: their fields are visible in their own folder only, and their `impl` blocks stand in few files.

use std::collections::BTreeSet;

use super::Violation;
use super::uses::{is_mark, word};
use crate::lexer::{Token, is_cfg_test, item_end, lex};

/// Files with `impl` blocks of one type, at most.
pub(crate) const MOST: usize = 5;

/// A type with the folder (or the file) that it belongs to.
pub(crate) const OWNERS: &[(&str, &str)] = &[
    ("Core", "src/agent/core"),
    ("Agent", "src/agent/event_loop"),
    ("Server", "src/agent/api"),
    ("EventLoop", "src/speaker/event_loop"),
    ("Speaker", "bgp/src/speaker"),
    ("Table", "kernel/src/fib"),
    ("Endpoints", "kernel/src/endpoints"),
    ("Firewall", "kernel/src/nft/firewall"),
    ("Renderer", "kernel/src/nft/render/renderer"),
    ("Thread", "kernel/src/thread/event_loop"),
    ("State", "kernel/src/thread"),
];

type Tokens<'a> = Vec<(usize, Token<'a>)>;

/// The tokens without test code.
fn tokens(source: &str) -> Tokens<'_> {
    let all = lex(source);
    let mut kept = Vec::new();
    let mut at = 0;
    while at < all.len() {
        if is_cfg_test(&all, at) {
            at = item_end(&all, at) + 1;
        } else {
            if let (line, Token::Word(word)) = &all[at] {
                kept.push((*line, Token::Word(word)));
            } else if let (line, Token::Mark(mark)) = &all[at] {
                kept.push((*line, Token::Mark(*mark)));
            }
            at += 1;
        }
    }
    kept
}

/// Fields of `struct name { .. }` with their line and visibility: none is empty.
fn fields(tokens: &Tokens<'_>, name: &str) -> Option<Vec<(usize, String, String)>> {
    let start = (1..tokens.len())
        .find(|at| word(tokens, *at) == Some(name) && word(tokens, *at - 1) == Some("struct"))?;
    let open = (start..tokens.len()).find(|at| matches!(tokens[*at].1, Token::Mark('{' | ';' | '(')))?;
    let mut found = Vec::new();
    if !is_mark(tokens, open, '{') {
        return Some(found);
    }
    let mut depth = 0_i32;
    let mut visible = String::new();
    let mut at = open;
    while at < tokens.len() {
        match &tokens[at].1 {
            Token::Mark('{' | '(' | '<' | '[') => depth += 1,
            // `->` closes nothing.
            Token::Mark('>') if is_mark(tokens, at - 1, '-') => {}
            Token::Mark('}' | ')' | '>' | ']') => depth -= 1,
            Token::Word("pub") if depth == 1 => {
                visible = "pub".to_owned();
                if is_mark(tokens, at + 1, '(') {
                    let end = (at..tokens.len()).find(|at| is_mark(tokens, *at, ')')).unwrap();
                    let inside = tokens[at + 2..end].iter().map(|(_, token)| match token {
                        Token::Word(word) => (*word).to_owned(),
                        Token::Mark(mark) => mark.to_string(),
                        _ => String::new(),
                    });
                    visible = format!("pub({})", inside.collect::<String>());
                    at = end;
                }
            }
            Token::Word(field)
                if depth == 1
                    && is_mark(tokens, at + 1, ':')
                    && !is_mark(tokens, at + 2, ':')
                    && !is_mark(tokens, at - 1, ':') =>
            {
                found.push((tokens[at].0, (*field).to_owned(), std::mem::take(&mut visible)));
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
        at += 1;
    }
    Some(found)
}

/// Whether there is an `impl` block of the type, of its own or of a trait.
fn has_impl(tokens: &Tokens<'_>, name: &str) -> bool {
    (0..tokens.len()).filter(|at| word(tokens, *at) == Some("impl")).any(|start| {
        // Not `-> impl Trait` or `: impl Trait`: a block begins an item.
        let begins = start == 0
            || matches!(tokens[start - 1].1, Token::Mark('}' | ';' | ']' | '{') | Token::Word("unsafe"));
        let mut depth = 0_i32;
        let mut last = "";
        for at in start + 1..tokens.len() {
            match &tokens[at].1 {
                Token::Mark('<') => depth += 1,
                Token::Mark('>') if !is_mark(tokens, at - 1, '-') => depth -= 1,
                Token::Mark('{') => break,
                Token::Word("where") => break,
                Token::Word("for") if depth == 0 => last = "",
                Token::Word(word) if depth == 0 => last = word,
                _ => {}
            }
        }
        begins && last == name
    })
}

/// What a visibility in this file lets see: a folder or a file's module, by its path without `.rs`.
fn scope(file: &str, visible: &str, source: &str) -> String {
    let own = file.trim_end_matches(".rs").trim_end_matches("/mod").to_owned();
    let parent = own.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
    match visible {
        "" | "pub(self)" => own,
        "pub(super)" => parent,
        _ => match visible.strip_prefix("pub(incrate::").and_then(|path| path.strip_suffix(')')) {
            Some(path) => format!("{source}/{}", path.replace("::", "/")),
            None => source.to_owned(),
        },
    }
}

/// Of one owner in the files of its crate (path and text): open fields, and `impl` blocks that are strewn.
pub(crate) fn check(owner: (&str, &str), source: &str, files: &[(String, String)]) -> Vec<Violation> {
    let (name, folder) = owner;
    let inside = |path: &str| path == folder || path.starts_with(&format!("{folder}/"));
    let mut found = Vec::new();
    let mut declared = false;
    let (mut at_home, mut elsewhere) = (BTreeSet::new(), BTreeSet::new());
    for (file, text) in files {
        let tokens = tokens(text);
        let is_home = inside(file.trim_end_matches(".rs"));
        let own = fields(&tokens, name);
        if has_impl(&tokens, name) && (is_home || own.is_none()) {
            if is_home {
                at_home.insert(file)
            } else {
                elsewhere.insert(file)
            };
        }
        for (line, field, visible) in own.into_iter().flatten().filter(|_| is_home) {
            declared = true;
            let seen = scope(file, &visible, source);
            if !inside(&seen) {
                found.push(format!("{file}:{line}: {field} is {visible}, visible in {seen}"));
            }
        }
    }
    let violation = |part: &str, text: String| Violation { key: format!("{name}: {part}"), text };
    let mut out = Vec::new();
    if !declared {
        out.push(violation("no such struct", format!("not declared in {folder}")));
    }
    if !found.is_empty() {
        out.push(violation("open fields", format!("{}\n    {}", found.len(), found.join("\n    "))));
    }
    if !elsewhere.is_empty() {
        out.push(violation("impl outside of its folder", format!("{elsewhere:?}")));
    }
    if at_home.len() > MOST {
        out.push(violation(
            "impl in too many files",
            format!("{}, {MOST} are the most: {at_home:?}", at_home.len()),
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: (&str, &str) = ("Core", "src/agent/core");

    fn keys(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        check(OWNER, "src", &files).into_iter().map(|violation| violation.key).collect()
    }

    #[test]
    fn private_fields_and_few_impls_are_right() {
        let parent = "pub struct Core<T: A> { a: u8, pub(in crate::agent::core) b: Fn(u8) -> T, #[x] c: std::io::D }\nimpl<T: A> Core<T> {}";
        let child = "impl<'a> B<'a> for super::Core { fn f() -> impl C {} }\n#[cfg(test)] impl Core {}";
        assert_eq!(keys(&[("src/agent/core/mod.rs", parent), ("src/agent/core/child.rs", child)]), [""; 0]);
    }

    #[test]
    fn an_open_field_is_found() {
        for visible in ["pub", "pub(crate)", "pub(super)", "pub(in crate::agent)"] {
            let parent = format!("struct Core {{ a: u8, {visible} b: u8 }}");
            assert_eq!(keys(&[("src/agent/core/mod.rs", &parent)]), ["Core: open fields"], "{visible}");
        }
        assert_eq!(keys(&[("src/agent/core/types.rs", "struct Core { pub(super) b: u8 }")]), [""; 0]);
    }

    #[test]
    fn an_impl_elsewhere_and_a_sixth_are_found() {
        let mut files =
            vec![("src/agent/core/mod.rs".to_owned(), "struct Core { a: u8 }\nimpl Core {}".to_owned())];
        for child in ["a", "b", "c", "d", "e"] {
            assert_eq!(check(OWNER, "src", &files).len(), 0);
            files.push((format!("src/agent/core/{child}.rs"), "impl super::Core {}".to_owned()));
        }
        assert_eq!(check(OWNER, "src", &files)[0].key, "Core: impl in too many files");
        let away = ("src/agent/api/mod.rs", "fn a() -> impl Core {}\nimpl From<u8> for Core {}");
        assert_eq!(
            keys(&[("src/agent/core/mod.rs", &files[0].1), away]),
            ["Core: impl outside of its folder"]
        );
    }
}
