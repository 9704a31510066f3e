//! Shell-like syntax in lab files: environment variables, and commands that are split into words.

/// Expands `$NAME`, `${NAME}`, `${NAME:-default}` (and `-`, `:=`, `=`) as containerlab does before it parses
/// a file; `$$` is a literal `$`. Variables in YAML comments are not expanded.
///
/// # Errors
/// The name of a variable that is not set and has no default, or the text of an unclosed `${`.
pub(super) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let comments = comments(text);
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let at = text.len() - after.len() - 1;
        if comments.iter().any(|comment| comment.contains(&at)) {
            out.push('$');
            rest = after;
        } else if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some(braced) = after.strip_prefix('{') {
            let Some((inside, tail)) = braced.split_once('}') else {
                return Err(format!("${{{}", braced.lines().next().unwrap_or_default()));
            };
            let end = inside.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(inside.len());
            let (name, operator) = inside.split_at(end);
            let default =
                [":-", ":=", "-", "="].into_iter().find_map(|o| Some((o, operator.strip_prefix(o)?)));
            match (lookup(name), default) {
                (Some(value), Some((o, default))) if value.is_empty() && o.starts_with(':') => {
                    out.push_str(default);
                }
                (_, None) if !operator.is_empty() || name.is_empty() => return Err(format!("${{{inside}")),
                (Some(value), _) => out.push_str(&value),
                (None, Some((_, default))) => out.push_str(default),
                (None, None) => return Err(name.to_owned()),
            }
            rest = tail;
        } else {
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
            let (name, tail) = after.split_at(end);
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
                // `$` before any other character, and `$1`, are not environment variables.
                out.push('$');
                out.push_str(name);
            } else {
                out.push_str(&lookup(name).ok_or_else(|| name.to_owned())?);
            }
            rest = tail;
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Splits a command into words, with a shell's quotes and backslashes; no other character is special.
///
/// # Errors
/// If a quote is not closed, or a backslash ends the text.
pub(super) fn split(text: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err("a ' is not closed"),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('"') => break,
                        Some('\\') => match chars.next() {
                            Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                            Some(c) => word.extend(['\\', c]),
                            None => return Err("a \" is not closed"),
                        },
                        Some(c) => word.push(c),
                        None => return Err("a \" is not closed"),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next().ok_or("a backslash ends the command")?),
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Returns the candidate most similar to a misspelt `word`, if it is similar enough to be the intended one.
pub(super) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|c| (strsim::levenshtein(word, c), c))
        .filter(|(d, c)| *d <= 1 + c.len() / 4)
        .min()
        .map(|(_, c)| c)
}

/// Returns the ranges of YAML comments: from a `#` that begins a line or follows a blank, outside of quotes
/// and block scalars (YAML 1.2, sections 6.6 and 8.1), to the end of the line.
fn comments(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    // Indentation of the line that introduces a block scalar; lines with more indentation are its text.
    let mut block: Option<usize> = None;
    let mut quote: Option<char> = None;
    let mut begin = 0;
    for line in text.split_inclusive('\n') {
        let (at, content) = (begin, line.trim_end());
        begin += line.len();
        let indent = content.len() - content.trim_start().len();
        match block {
            Some(parent) if content.is_empty() || indent > parent => continue,
            _ => block = None,
        }
        let mut before = ' ';
        let mut end = content.len();
        let mut escaped = false;
        for (column, c) in content.char_indices() {
            match quote {
                Some('"') if escaped => escaped = false,
                Some('"') if c == '\\' => escaped = true,
                Some(open) if c == open => quote = None,
                Some(_) => {}
                // Inside a word a quote is an ordinary character. A second quote continues the quoted text.
                None if matches!(c, '"' | '\'') && (" \t[{,:".contains(before) || before == c) => {
                    quote = Some(c)
                }
                None if c == '#' && before.is_whitespace() => {
                    found.push(at + column..at + content.len());
                    end = column;
                    break;
                }
                None => {}
            }
            before = c;
        }
        let code = content.get(..end).unwrap_or_default().trim_end();
        let header = code.rsplit(' ').next().unwrap_or_default();
        let marks = header.strip_prefix(['|', '>']);
        let is_header = marks.is_some_and(|marks| marks.chars().all(|c| matches!(c, '+' | '-' | '1'..='9')));
        if quote.is_none() && is_header {
            block = Some(indent);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "TAG" => Some("1.2".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables_of_the_environment() {
        for (text, want) in [
            ("image: x:${TAG}", "image: x:1.2"),
            ("$TAG/$TAG", "1.2/1.2"),
            ("${NONE:-dev}", "dev"),
            ("${EMPTY:-dev}${EMPTY-dev}", "dev"),
            ("${TAG:=dev}", "1.2"),
            ("echo $$HOME $1 $", "echo $HOME $1 $"),
        ] {
            assert_eq!(expand(text, &env).as_deref(), Ok(want), "{text}");
        }
        // Comments, and text that only looks like a comment.
        for (text, want) in [
            ("# ${NONE} $TAG ${\na: $TAG", "# ${NONE} $TAG ${\na: 1.2"),
            ("a: $TAG # $TAG $$ ${NONE\nb: ${TAG}", "a: 1.2 # $TAG $$ ${NONE\nb: 1.2"),
            ("a: x#$TAG", "a: x#1.2"),
            ("a: \"x # $TAG\" # $NONE", "a: \"x # 1.2\" # $NONE"),
            ("a: 'it''s # $TAG' # '$NONE", "a: 'it''s # 1.2' # '$NONE"),
            ("a: it's # $NONE", "a: it's # $NONE"),
            ("a: \"\\\" # $TAG\"", "a: \"\\\" # 1.2\""),
            ("a: |\n  # $TAG\n\n  b # $TAG\nc: 1 # $NONE", "a: |\n  # 1.2\n\n  b # 1.2\nc: 1 # $NONE"),
            ("- >- # $NONE\n  # $TAG\n# $NONE", "- >- # $NONE\n  # 1.2\n# $NONE"),
        ] {
            assert_eq!(expand(text, &env).as_deref(), Ok(want), "{text}");
        }
        assert_eq!(expand("a ${NONE} b", &env), Err("NONE".to_owned()));
        assert_eq!(expand("$NONE", &env), Err("NONE".to_owned()));
        assert_eq!(expand("${TAG\nb", &env), Err("${TAG".to_owned()));
        assert_eq!(expand("${TAG x}", &env), Err("${TAG x".to_owned()));
    }

    #[test]
    fn commands_become_words() {
        let words = |text| split(text).map(|w| w.join("|"));
        assert_eq!(
            words("ip addr  add 10.0.0.1/24 dev eth1"),
            Ok("ip|addr|add|10.0.0.1/24|dev|eth1".to_owned())
        );
        assert_eq!(words("bash -c 'a \"b\" $x'"), Ok("bash|-c|a \"b\" $x".to_owned()));
        assert_eq!(words(r#"echo "a \" \n" b\ c '' "#), Ok(r#"echo|a " \n|b c|"#.to_owned()));
        assert_eq!(words("echo 'a"), Err("a ' is not closed"));
        assert_eq!(words("echo \"a"), Err("a \" is not closed"));
        assert_eq!(words("echo \\"), Err("a backslash ends the command"));
        assert_eq!(words("   "), Ok(String::new()));
    }

    #[test]
    fn misspelt_keys_find_their_neighbour() {
        let keys = ["cmd", "exec", "binds", "startup-delay"];
        assert_eq!(nearest("cmdd", keys.into_iter()), Some("cmd"));
        assert_eq!(nearest("bind", keys.into_iter()), Some("binds"));
        assert_eq!(nearest("startup_delay", keys.into_iter()), Some("startup-delay"));
        assert_eq!(nearest("wholly-else", keys.into_iter()), None);
    }
}
