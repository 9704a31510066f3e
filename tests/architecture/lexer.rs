//! Rust sources as tokens: identifiers and their parts, string literals, marks; and the words of a text.

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    Word(&'a str),
    Text(&'a str),
    /// Documentation of an item.
    Doc(&'a str),
    Mark(char),
}

/// The tokens of a source file with their lines; no comments, numbers, characters and lifetimes.
pub(crate) fn lex(source: &str) -> Vec<(usize, Token<'_>)> {
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < source.len() {
        let rest = &source[at..];
        let first = rest.chars().next().unwrap();
        let start = at;
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            if rest.starts_with("///") && !rest.starts_with("////") {
                tokens.push((line, Token::Doc(&source[start + 3..at])));
            }
        } else if rest.starts_with("/*") {
            at += block_comment(rest);
        } else if let Some((open, close)) = string(rest) {
            let end = rest[open..].find(&close).map_or(rest.len(), |end| open + end);
            tokens.push((line, Token::Text(&rest[open..end])));
            at += (end + close.len()).min(rest.len());
        } else if first == '"' || rest.starts_with("b\"") || rest.starts_with("c\"") {
            let open = rest.find('"').unwrap() + 1;
            let end = open + escaped(&rest[open..], '"');
            tokens.push((line, Token::Text(&rest[open..end])));
            at += (end + 1).min(rest.len());
        } else if first == '\'' || rest.starts_with("b'") {
            at += character(rest);
        } else if first.is_alphabetic() || first == '_' {
            let end =
                |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
            at += rest.strip_prefix("r#").map_or_else(|| end(rest), |name| 2 + end(name));
            tokens.push((line, Token::Word(source[start..at].trim_start_matches("r#"))));
        } else if first.is_ascii_digit() {
            at += rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        } else {
            at += first.len_utf8();
            if !first.is_whitespace() {
                tokens.push((line, Token::Mark(first)));
            }
        }
        line += source[start..at].matches('\n').count();
    }
    tokens
}

/// Whether the tokens from `at` on are `#[cfg(test)]`.
pub(crate) fn is_cfg_test(tokens: &[(usize, Token<'_>)], at: usize) -> bool {
    let attribute = [
        Token::Mark('#'),
        Token::Mark('['),
        Token::Word("cfg"),
        Token::Mark('('),
        Token::Word("test"),
        Token::Mark(')'),
    ];
    tokens.get(at..at + attribute.len()).is_some_and(|t| t.iter().map(|(_, token)| token).eq(&attribute))
}

/// Where the item ends whose attributes stand at `at`.
pub(crate) fn item_end(tokens: &[(usize, Token<'_>)], at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, (_, token)) in tokens.iter().enumerate().skip(at) {
        match token {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') if depth == 1 => return index,
            Token::Mark('}') => depth = depth.saturating_sub(1),
            Token::Mark(';') if depth == 0 => return index,
            _ => {}
        }
    }
    tokens.len()
}

fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().unwrap().len_utf8();
        }
    }
    at
}

/// The opening's length and the end of a raw string that starts here.
fn string(text: &str) -> Option<(usize, String)> {
    let raw = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let hashes = raw.find(|c| c != '#')?;
    raw[hashes..]
        .starts_with('"')
        .then(|| (text.len() - raw.len() + hashes + 1, "\"".to_owned() + &raw[..hashes]))
}

/// Octets up to the quote that ends a literal.
fn escaped(text: &str, quote: char) -> usize {
    let mut escape = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escape => escape = false,
            '\\' => escape = true,
            c if c == quote => return at,
            _ => {}
        }
    }
    text.len()
}

/// Octets of a character literal, or of a lifetime's quote.
fn character(text: &str) -> usize {
    let open = text.find('\'').unwrap() + 1;
    let mut chars = text[open..].chars();
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => open + escaped(&text[open..], '\'') + 1,
        (Some(c), Some('\'')) => open + c.len_utf8() + 1,
        _ => open,
    }
}

/// The parts of an identifier in lower case, at `_` and where the case rises: `PeerTold`, `told_at`, `BGPTold`.
pub(crate) fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let all: Vec<char> = identifier.chars().collect();
    for (at, &c) in all.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| all[at]);
        let rises = c.is_uppercase()
            && before.is_some_and(|b| {
                !b.is_uppercase() || all.get(at + 1).is_some_and(|next| next.is_lowercase())
            });
        if c == '_' || rises {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().unwrap().extend(c.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The words of a text in lower case; names in `code` or in {braces}, paths and flags are none.
pub(crate) fn prose(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let (mut code, mut brace) = (false, 0_usize);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '`' => code = !code,
            '{' => brace += 1,
            '}' => brace = brace.saturating_sub(1),
            '\\' => _ = chars.next(),
            _ if code || brace > 0 => continue,
            _ => {
                plain.push(c);
                continue;
            }
        }
        plain.push(' ');
    }
    let words =
        plain.split_whitespace().filter(|word| !word.contains(['/', '_', '=']) && !word.starts_with('-'));
    words.flat_map(|word| word.split(|c: char| !c.is_alphabetic())).map(str::to_lowercase).collect()
}

#[test]
fn identifiers_are_read_part_by_part() {
    for (identifier, expected) in [
        ("told_at", &["told", "at"][..]),
        ("PeerTold", &["peer", "told"]),
        ("BMPTold", &["bmp", "told"]),
        ("ALL_TOLD", &["all", "told"]),
        ("retold", &["retold"]),
        ("return_", &["return"]),
    ] {
        assert_eq!(parts(identifier), expected, "{identifier}");
    }
}
