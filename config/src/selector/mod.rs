//! Selectors: boolean expressions over labels, with exactly the grammars of Calico's parsers.
//!
//! ```text
//!  text --lex.rs--> tokens --parse.rs--> Expr --mod.rs--> matches(labels), canonical text
//! ```
//!
//! ```text
//!  or         = and { "||" and }
//!  and        = operation { "&&" operation }
//!  operation  = { "!" } ( "(" or ")" | "has(" label ")" | "all()" | "global()" | comparison )
//!  comparison = label ( "==" | "!=" | "contains" | "starts with" | "ends with" ) string
//!             | label ( "in" | "not in" ) "{" [ string { "," string } [ "," ] ] "}"
//! ```
//!
//! `!` binds tightest and applies to a whole comparison: `!a == "b" && c != "d"` negates only the first one.
//! White space is blank and tab. Strings are enclosed in `"` or `'`, have no escapes and may contain the
//! other quote. An empty or blank selector means `all()`. No white space is allowed between `has`, `all` or
//! `global` and the parenthesis. Operators in words are lower case; those of two words may be written as one
//! (`notin`, `startswith`).
//!
//! This is the grammar of Calico 3 (`FromStr`), which recognizes an operator in words only after a label. The
//! grammar of v1 ([`Selector::parse_v1`]) is a part of it: without `contains`, `starts with`, `ends with` and
//! `global()`, and a word that starts with `in`, `notin` or `not in`, followed by a character that is not a
//! letter, digit or `_`, is the operator wherever it stands. Labels such as `in`, `in.x` or `notin` can
//! therefore only be used in `has(...)` there (and a label `not` not before `in`); `inner` and `not.in` are
//! ordinary labels.
//!
//! A missing label makes `==`, `in`, `contains`, `starts with`, `ends with` and `has` false, and `!=` and
//! `not in` true. A label with an empty value is present. `global()` matches everything, like `all()`; Calico
//! 3's policies give it a meaning in selectors of namespaces.
//!
//! Time and memory are linear in the length of the text. Parentheses nest at most [`MAX_DEPTH`] deep, so that
//! no selector can exhaust the stack when it is parsed, evaluated, printed or dropped.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod lex;
mod parse;
#[cfg(test)]
mod tests;

/// Grammar of a selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grammar {
    /// That of Calico's v1 parser.
    V1,
    /// That of Calico 3.
    V3,
}

/// Maximum nesting depth of parentheses.
pub const MAX_DEPTH: usize = 128;

/// Maximum length of a label name, in bytes.
pub const MAX_LABEL: usize = 512;

/// A parsed selector. Cheap to clone. Two selectors are equal exactly if their canonical texts are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selector(Arc<Expr>);

/// Expression tree of a [`Selector`]. Groups are kept as written: `(a && b) && c` differs from `a && b && c`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expr {
    /// `all()`: matches everything.
    All,
    /// `global()`: matches everything.
    Global,
    /// `has(label)`: true if the label is present, with any value.
    Has(Box<str>),
    /// `label == "value"`: true if the label is present and equal.
    Eq(Box<str>, Box<str>),
    /// `label != "value"`; also true if the label is missing.
    Ne(Box<str>, Box<str>),
    /// `label contains "value"`: true if the label is present and its value contains the text.
    Contains(Box<str>, Box<str>),
    /// `label starts with "value"`: true if the label is present and its value starts with the text.
    StartsWith(Box<str>, Box<str>),
    /// `label ends with "value"`: true if the label is present and its value ends with the text.
    EndsWith(Box<str>, Box<str>),
    /// `label in {...}`: true if the label is present and its value is listed. Sorted, without duplicates.
    In(Box<str>, Box<[Box<str>]>),
    /// `label not in {...}`; also true if the label is missing.
    NotIn(Box<str>, Box<[Box<str>]>),
    /// `!x`; never nested directly.
    Not(Box<Self>),
    /// `x && y && ...`, at least two operands.
    And(Box<[Self]>),
    /// `x || y || ...`, at least two operands.
    Or(Box<[Self]>),
}

/// Error in a selector, with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectorError {
    /// Byte offset of the error; the length of the text if it ends too early.
    pub offset: usize,
    /// Column of the error in characters, counted from 1 as in editors.
    pub column: usize,
    /// Kind of error.
    pub kind: SelectorErrorKind,
}

/// Kind of error in a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelectorErrorKind {
    /// Unexpected token.
    Expected {
        /// Tokens allowed here, for people.
        expected: &'static str,
        /// Token found here, for people.
        found: String,
    },
    /// A string without closing quote; the position is that of the opening quote.
    UnterminatedString,
    /// A label name longer than [`MAX_LABEL`] bytes.
    LabelTooLong,
    /// Parentheses nested deeper than [`MAX_DEPTH`].
    TooDeep,
}

impl std::error::Error for SelectorError {}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: ", self.column)?;
        match &self.kind {
            SelectorErrorKind::Expected { expected, found } => {
                write!(f, "expected {expected}, found {found}")
            }
            SelectorErrorKind::UnterminatedString => {
                f.write_str("this string has no closing quote (strings know no escapes)")
            }
            SelectorErrorKind::LabelTooLong => write!(f, "a label name has at most {MAX_LABEL} characters"),
            SelectorErrorKind::TooDeep => write!(f, "parentheses nest at most {MAX_DEPTH} deep"),
        }
    }
}

/// A source of label values.
pub trait Labels {
    /// Returns the value of a label; `None` if it is missing.
    fn label(&self, name: &str) -> Option<&str>;
}

impl<V: AsRef<str>> Labels for BTreeMap<String, V> {
    fn label(&self, name: &str) -> Option<&str> {
        self.get(name).map(AsRef::as_ref)
    }
}

impl<V: AsRef<str>, S: BuildHasher> Labels for HashMap<String, V, S> {
    fn label(&self, name: &str) -> Option<&str> {
        self.get(name).map(AsRef::as_ref)
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Labels for [(K, V)] {
    fn label(&self, name: &str) -> Option<&str> {
        self.iter().find(|(k, _)| k.as_ref() == name).map(|(_, v)| v.as_ref())
    }
}

impl Selector {
    /// Returns the selector that matches everything.
    #[must_use]
    pub fn all() -> Self {
        Self(Arc::new(Expr::All))
    }

    /// Parses a selector in the grammar of Calico's v1 parser. `FromStr` has that of Calico 3, which includes
    /// it.
    ///
    /// # Errors
    /// The first error, with its position.
    pub fn parse_v1(text: &str) -> Result<Self, SelectorError> {
        parse::parse(Grammar::V1, text).map(|expr| Self(Arc::new(expr)))
    }

    /// Returns the selector with a prefix before the name of each label.
    #[must_use]
    pub fn prefixed(&self, prefix: &str) -> Self {
        Self(Arc::new(self.0.renamed(&|name| format!("{prefix}{name}").into())))
    }

    /// Returns the selector `has(tag)` for a tag in a rule; `None` if the tag is not a valid label name.
    #[must_use]
    pub fn has(label: &str) -> Option<Self> {
        let valid = !label.is_empty() && label.len() <= MAX_LABEL && label.bytes().all(lex::is_label_byte);
        valid.then(|| Self(Arc::new(Expr::Has(label.into()))))
    }

    /// Returns the expression tree, for building indexes.
    #[must_use]
    pub fn expr(&self) -> &Expr {
        &self.0
    }

    /// Returns true if the labels match.
    #[must_use]
    pub fn matches<L: Labels + ?Sized>(&self, labels: &L) -> bool {
        self.0.matches(&|name| labels.label(name))
    }

    /// As [`Selector::matches`], with labels that a function computes (inherited ones, for example).
    #[must_use]
    pub fn matches_with<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.matches(&label)
    }
}

impl Default for Selector {
    fn default() -> Self {
        Self::all()
    }
}

impl Expr {
    /// Returns the expression with other names of its labels. The depth of the tree is bounded.
    pub(crate) fn renamed(&self, name: &dyn Fn(&str) -> Box<str>) -> Self {
        let all = |list: &[Self]| -> Box<[Self]> { list.iter().map(|e| e.renamed(name)).collect() };
        match self {
            Self::All => Self::All,
            Self::Global => Self::Global,
            Self::Has(label) => Self::Has(name(label)),
            Self::Eq(label, value) => Self::Eq(name(label), value.clone()),
            Self::Ne(label, value) => Self::Ne(name(label), value.clone()),
            Self::Contains(label, value) => Self::Contains(name(label), value.clone()),
            Self::StartsWith(label, value) => Self::StartsWith(name(label), value.clone()),
            Self::EndsWith(label, value) => Self::EndsWith(name(label), value.clone()),
            Self::In(label, values) => Self::In(name(label), values.clone()),
            Self::NotIn(label, values) => Self::NotIn(name(label), values.clone()),
            Self::Not(inner) => Self::Not(Box::new(inner.renamed(name))),
            Self::And(list) => Self::And(all(list)),
            Self::Or(list) => Self::Or(all(list)),
        }
    }

    fn matches<'a>(&self, label: &dyn Fn(&str) -> Option<&'a str>) -> bool {
        let in_set = |set: &[Box<str>], value: &str| set.binary_search_by(|v| (**v).cmp(value)).is_ok();
        match self {
            Self::All | Self::Global => true,
            Self::Has(name) => label(name).is_some(),
            Self::Eq(name, value) => label(name) == Some(value),
            Self::Ne(name, value) => label(name) != Some(value),
            Self::Contains(name, part) => label(name).is_some_and(|v| v.contains(&**part)),
            Self::StartsWith(name, start) => label(name).is_some_and(|v| v.starts_with(&**start)),
            Self::EndsWith(name, end) => label(name).is_some_and(|v| v.ends_with(&**end)),
            Self::In(name, set) => label(name).is_some_and(|v| in_set(set, v)),
            Self::NotIn(name, set) => !label(name).is_some_and(|v| in_set(set, v)),
            Self::Not(inner) => !inner.matches(label),
            Self::And(list) => list.iter().all(|e| e.matches(label)),
            Self::Or(list) => list.iter().any(|e| e.matches(label)),
        }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        parse::parse(Grammar::V3, text).map(|expr| Self(Arc::new(expr)))
    }
}

/// Formats the canonical text: groups in parentheses, sets sorted, double quotes unless the value contains
/// one.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all()"),
            Self::Global => f.write_str("global()"),
            Self::Has(name) => write!(f, "has({name})"),
            Self::Eq(name, value) => write!(f, "{name} == {}", Quoted(value)),
            Self::Ne(name, value) => write!(f, "{name} != {}", Quoted(value)),
            Self::Contains(name, part) => write!(f, "{name} contains {}", Quoted(part)),
            Self::StartsWith(name, start) => write!(f, "{name} starts with {}", Quoted(start)),
            Self::EndsWith(name, end) => write!(f, "{name} ends with {}", Quoted(end)),
            Self::In(name, set) => write!(f, "{name} in {}", Set(set)),
            Self::NotIn(name, set) => write!(f, "{name} not in {}", Set(set)),
            Self::Not(inner) => write!(f, "!{inner}"),
            Self::And(list) => write_group(f, list, " && "),
            Self::Or(list) => write_group(f, list, " || "),
        }
    }
}

fn write_group(f: &mut fmt::Formatter<'_>, list: &[Expr], operator: &str) -> fmt::Result {
    f.write_str("(")?;
    for (i, expr) in list.iter().enumerate() {
        if i > 0 {
            f.write_str(operator)?;
        }
        fmt::Display::fmt(expr, f)?;
    }
    f.write_str(")")
}

struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.0.contains('"') { '\'' } else { '"' };
        write!(f, "{quote}{}{quote}", self.0)
    }
}

struct Set<'a>(&'a [Box<str>]);

impl fmt::Display for Set<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, value) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            fmt::Display::fmt(&Quoted(value), f)?;
        }
        f.write_str("}")
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
