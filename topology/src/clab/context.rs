//! Helpers for the checks of a lab file: error positions and valid names.

use std::path::Path;

use crate::error::Invalid;

/// Path and text of the lab file, for positions in errors.
pub(super) struct Context<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    pub(super) lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Context<'_> {
    /// Creates an error at a place of the document. It includes the line number if `needle` occurs on exactly
    /// one line of the file.
    pub(super) fn fault(&self, place: impl Into<String>, needle: &str, text: String, next: &str) -> Invalid {
        Invalid {
            file: self.file.to_owned(),
            line: self.line_of(needle),
            place: place.into(),
            text,
            next: next.to_owned(),
        }
    }

    pub(super) fn line_of(&self, needle: &str) -> Option<usize> {
        let name_like = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        let stands_in = |line: &str| {
            line.match_indices(needle).any(|(at, _)| {
                let before = line.get(..at).and_then(|s| s.chars().next_back());
                let after = line.get(at + needle.len()..).and_then(|s| s.chars().next());
                !before.is_some_and(name_like) && !after.is_some_and(name_like)
            })
        };
        let mut hits =
            self.text.lines().enumerate().filter(|(_, line)| !needle.is_empty() && stands_in(line));
        let (line, _) = hits.next()?;
        hits.next().is_none().then_some(line + 1)
    }
}

/// Checks the name of a lab, prefix or node: letters, digits, `-`, `_` and `.`, beginning with a letter or
/// digit.
pub(super) fn name(context: &Context<'_>, place: &str, name: &str) -> Result<(), Invalid> {
    let good = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if good && name.len() <= 64 {
        return Ok(());
    }
    let next = "use up to 64 letters, digits, `-`, `_` and `.`, beginning with a letter or digit";
    Err(context.fault(place, name, format!("`{name}` is no name"), next))
}
