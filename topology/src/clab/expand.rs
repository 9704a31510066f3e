//! Shell-like texts of a lab file: variables of the caller's environment, and commands split into words.

/// Replaces `$NAME`, `${NAME}`, `${NAME:-default}` (also `-`, `:=`, `=`) as containerlab does before it reads a file;
/// `$$` is a plain `$`.
///
/// # Errors
/// The name of a variable that is not set and has no default, or the text of a `${` that is not closed.
pub(super) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if let Some(tail) = after.strip_prefix('$') {
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
                // `$` before anything else, and `$1`, are no variables of an environment.
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

/// Splits a command into words as a shell does with quotes and backslashes; nothing else is special.
///
/// # Errors
/// When a quote is not closed or a backslash ends the text.
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

/// The candidate nearest to a misspelt `word`, when it is near enough to be meant.
pub(super) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates.map(|c| (distance(word, c), c)).filter(|(d, c)| *d <= 1 + c.len() / 4).min().map(|(_, c)| c)
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut left = i + 1;
        let mut above_left = std::mem::replace(&mut row[0], left);
        for (cell, cb) in row.iter_mut().skip(1).zip(&b) {
            left = (above_left + usize::from(ca != *cb)).min(*cell + 1).min(left + 1);
            above_left = std::mem::replace(cell, left);
        }
    }
    row[b.len()]
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
