//! Lexer of selectors: one token at a time, without backtracking.

use super::{Grammar, MAX_LABEL, SelectorError, SelectorErrorKind};

/// A token; its text borrows from the selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Label(&'a str),
    String(&'a str),
    Has(&'a str),
    All,
    Global,
    In,
    NotIn,
    Contains,
    StartsWith,
    EndsWith,
    Eq,
    Ne,
    Not,
    And,
    Or,
    Open,
    Close,
    OpenSet,
    CloseSet,
    Comma,
    End,
}

/// Operators in words, after a label.
const OPERATORS: [(&[&str], Token<'static>); 5] = [
    (&["contains"], Token::Contains),
    (&["starts", "with"], Token::StartsWith),
    (&["ends", "with"], Token::EndsWith),
    (&["not", "in"], Token::NotIn),
    (&["in"], Token::In),
];

/// Expected text after a label in Calico 3's grammar.
pub(super) const OPERATOR_AFTER_LABEL: &str =
    "`==`, `!=`, `in`, `not in`, `contains`, `starts with` or `ends with` after the label";

/// Lexer with one token of lookahead.
pub(super) struct Lexer<'a> {
    pub(super) grammar: Grammar,
    text: &'a str,
    /// Byte offset of the next token.
    pub(super) start: usize,
    /// Byte offset of the end of the next token.
    end: usize,
    /// Next token.
    pub(super) token: Token<'a>,
}

pub(super) fn is_label_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/' | b'-')
}

fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

fn skip_blanks(text: &str) -> &str {
    text.trim_start_matches([' ', '\t'])
}

impl<'a> Lexer<'a> {
    pub(super) fn new(grammar: Grammar, text: &'a str) -> Result<Self, SelectorError> {
        let mut lexer = Self { grammar, text, start: 0, end: 0, token: Token::End };
        lexer.advance()?;
        Ok(lexer)
    }

    /// Advances to the token after the current one.
    pub(super) fn advance(&mut self) -> Result<(), SelectorError> {
        let rest = skip_blanks(self.rest_from(self.end));
        self.start = self.text.len() - rest.len();
        let (token, len) = self.read(rest)?;
        self.token = token;
        self.end = self.start + len;
        Ok(())
    }

    /// Returns an error at the next token that lists the tokens allowed there.
    pub(super) fn expected(&self, expected: &'static str) -> SelectorError {
        let found = match self.token {
            Token::End => "the end of the selector".to_owned(),
            Token::In => {
                "the operator `in` (a label of that name can only be asked for with has(...))".to_owned()
            }
            Token::NotIn => {
                "the operator `not in` (a label of that name can only be asked for with has(...))".to_owned()
            }
            _ => format!("`{}`", shorten(self.text.get(self.start..self.end).unwrap_or_default())),
        };
        self.error(self.start, SelectorErrorKind::Expected { expected, found })
    }

    pub(super) fn error(&self, offset: usize, kind: SelectorErrorKind) -> SelectorError {
        let column = self.text.get(..offset).map_or(offset, |before| before.chars().count()) + 1;
        SelectorError { offset, column, kind }
    }

    fn rest_from(&self, offset: usize) -> &'a str {
        self.text.get(offset..).unwrap_or_default()
    }

    /// Reads the token at the start of `rest`, which is at `self.start`. Returns the token and its length in
    /// bytes.
    fn read(&self, rest: &'a str) -> Result<(Token<'a>, usize), SelectorError> {
        let Some(&first) = rest.as_bytes().first() else { return Ok((Token::End, 0)) };
        Ok(match first {
            b'(' => (Token::Open, 1),
            b')' => (Token::Close, 1),
            b'{' => (Token::OpenSet, 1),
            b'}' => (Token::CloseSet, 1),
            b',' => (Token::Comma, 1),
            b'!' if rest.starts_with("!=") => (Token::Ne, 2),
            b'!' => (Token::Not, 1),
            b'=' if rest.starts_with("==") => (Token::Eq, 2),
            b'=' => return Err(self.unreadable("`==`", rest)),
            b'&' if rest.starts_with("&&") => (Token::And, 2),
            b'&' => return Err(self.unreadable("`&&`", rest)),
            b'|' if rest.starts_with("||") => (Token::Or, 2),
            b'|' => return Err(self.unreadable("`||`", rest)),
            b'"' | b'\'' => {
                let inner = rest.get(1..).unwrap_or_default();
                let len = inner
                    .find(char::from(first))
                    .ok_or_else(|| self.error(self.start, SelectorErrorKind::UnterminatedString))?;
                (Token::String(inner.get(..len).unwrap_or_default()), len + 2)
            }
            b if is_label_byte(b) => {
                return match self.grammar {
                    Grammar::V1 => self.read_word(rest),
                    Grammar::V3 => self.read_word_v3(rest),
                };
            }
            _ => {
                return Err(
                    self.unreadable("a label, a string or an operator (white space is blank and tab)", rest)
                );
            }
        })
    }

    fn read_word(&self, rest: &'a str) -> Result<(Token<'a>, usize), SelectorError> {
        if let Some(function) = self.read_function(rest)? {
            return Ok(function);
        }
        if let Some(len) = operator(rest, &["in"], is_word_byte) {
            return Ok((Token::In, len));
        }
        if let Some(len) = operator(rest, &["not", "in"], is_word_byte) {
            return Ok((Token::NotIn, len));
        }
        let label = self.label(rest, self.start)?;
        Ok((Token::Label(label), label.len()))
    }

    /// Reads a word in Calico 3's grammar: an operator after a label, otherwise a function or a label.
    fn read_word_v3(&self, rest: &'a str) -> Result<(Token<'a>, usize), SelectorError> {
        // While a token is read, `self.token` is the one before it.
        if matches!(self.token, Token::Label(_)) {
            let found = OPERATORS
                .iter()
                .find_map(|(words, token)| operator(rest, words, is_label_byte).map(|len| (*token, len)));
            return found.ok_or_else(|| self.error_at_word(OPERATOR_AFTER_LABEL, rest));
        }
        if let Some(function) = self.read_function(rest)? {
            return Ok(function);
        }
        let label = self.label(rest, self.start)?;
        Ok((Token::Label(label), label.len()))
    }

    /// Reads `has(label)`, `all()` or `global()`.
    fn read_function(&self, rest: &'a str) -> Result<Option<(Token<'a>, usize)>, SelectorError> {
        if rest.starts_with("has(") {
            return self.read_has(rest).map(Some);
        }
        let (token, inner, expected) = match (rest.strip_prefix("all("), rest.strip_prefix("global(")) {
            (Some(inner), _) => (Token::All, inner, "`)`: all() has no argument"),
            (None, Some(inner)) if self.grammar == Grammar::V3 => {
                (Token::Global, inner, "`)`: global() has no argument")
            }
            _ => return Ok(None),
        };
        let after = skip_blanks(inner);
        if !after.starts_with(')') {
            return Err(self.error_at_rest(expected, after));
        }
        Ok(Some((token, rest.len() - after.len() + 1)))
    }

    fn read_has(&self, rest: &'a str) -> Result<(Token<'a>, usize), SelectorError> {
        let inner = skip_blanks(rest.get(4..).unwrap_or_default());
        let label = self.label(inner, self.text.len() - inner.len())?;
        if label.is_empty() {
            return Err(self.error_at_rest("a label name (letters, digits and `-_./`)", inner));
        }
        let after = skip_blanks(inner.get(label.len()..).unwrap_or_default());
        if !after.starts_with(')') {
            return Err(self.error_at_rest("`)` after the label name", after));
        }
        Ok((Token::Has(label), rest.len() - after.len() + 1))
    }

    /// Returns the label name, possibly empty, at the start of `rest`.
    fn label(&self, rest: &'a str, offset: usize) -> Result<&'a str, SelectorError> {
        let len = rest.bytes().take_while(|&b| is_label_byte(b)).count();
        if len > MAX_LABEL {
            return Err(self.error(offset, SelectorErrorKind::LabelTooLong));
        }
        Ok(rest.get(..len).unwrap_or_default())
    }

    /// Returns an error at the word that `rest` starts with.
    fn error_at_word(&self, expected: &'static str, rest: &str) -> SelectorError {
        let len = rest.bytes().take_while(|&b| is_label_byte(b)).count();
        let found = format!("`{}`", shorten(rest.get(..len).unwrap_or_default()));
        self.error(self.text.len() - rest.len(), SelectorErrorKind::Expected { expected, found })
    }

    fn unreadable(&self, expected: &'static str, rest: &str) -> SelectorError {
        self.error_at_rest(expected, rest)
    }

    /// Returns an error at the start of `rest`, which is a suffix of the text.
    fn error_at_rest(&self, expected: &'static str, rest: &str) -> SelectorError {
        let found = match rest.chars().next() {
            None => "the end of the selector".to_owned(),
            Some(c) if c.is_control() => format!("the character {c:?}"),
            Some(c) => format!("`{c}`"),
        };
        self.error(self.text.len() - rest.len(), SelectorErrorKind::Expected { expected, found })
    }
}

/// Returns the length of the operator that `rest` starts with: these words, with or without blanks between
/// them, of which the last one is not continued.
fn operator(rest: &str, words: &[&str], continues: fn(u8) -> bool) -> Option<usize> {
    let mut after = rest;
    for (at, word) in words.iter().enumerate() {
        let next = if at == 0 { after } else { skip_blanks(after) };
        after = next.strip_prefix(word)?;
    }
    (!after.bytes().next().is_some_and(continues)).then_some(rest.len() - after.len())
}

fn shorten(text: &str) -> String {
    const MAX: usize = 40;
    match text.char_indices().nth(MAX) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}
