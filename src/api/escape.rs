//! Escapes control characters in text of external origin before it reaches a terminal or a log.
//!
//! The form is JSON's, `\\u001b`, and it is the same in tables, JSON and log lines.

use std::borrow::Cow;
use std::fmt::Write as _;

/// True for characters that a terminal or a log may interpret instead of showing them: C0, C1 and DEL
/// (ECMA-48), line and paragraph separators, and controls of writing direction, which make a text appear in
/// another order.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Escapes a text of several lines, except line feeds and tabs, which the program itself writes.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| acts(c) && c != '\n' && c != '\t')
}

/// Escapes a text that must stay on one line and in one table cell, including line feeds and tabs.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, acts)
}

fn escaped(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' if hidden(c) => out.push_str("\\n"),
            '\t' if hidden(c) => out.push_str("\\t"),
            c if hidden(c) => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_shown() {
        assert_eq!(lines("a\u{1b}[31mb\r\n\tc\u{7f}\u{9b}2J"), "a\\u001b[31mb\\u000d\n\tc\\u007f\\u009b2J");
        assert_eq!(line("a\nb\tc"), "a\\nb\\tc");
        assert_eq!(line("x\u{202e}y"), "x\\u202ey");
        assert!(matches!(lines("caf\u{e9} \u{1f431}\n"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn nothing_is_left_that_acts(text in any::<String>()) {
            prop_assert!(!line(&text).chars().any(acts));
            prop_assert!(!lines(&text).chars().any(|c| acts(c) && c != '\n' && c != '\t'));
        }

        /// Escaping a JSON document changes only its strings, and uses JSON's own form, so its meaning is
        /// unchanged.
        #[test]
        fn json_means_the_same(text in any::<String>()) {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&lines(&json)).unwrap(), text);
        }
    }
}
