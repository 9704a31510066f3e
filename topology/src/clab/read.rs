//! From text to [`Topology`]: variables, YAML, and the faults that concern the whole document.

use std::path::Path;

use super::raw::RawFile;
use super::{Topology, links, nodes};
use crate::clab::expand;
use crate::error::Invalid;

/// What the checks share: the text for finding lines, and the file for naming it.
pub(super) struct Context<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    pub(super) lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Context<'_> {
    /// A fault at a place of the document. The line is told when `needle` stands on exactly one line of the file.
    pub(super) fn fault(&self, place: impl Into<String>, needle: &str, text: String, next: &str) -> Invalid {
        Invalid {
            file: self.file.to_owned(),
            line: self.line_of(needle),
            place: place.into(),
            text,
            next: next.to_owned(),
        }
    }

    fn line_of(&self, needle: &str) -> Option<usize> {
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

/// Reads a lab file's text. `lookup` gives the variables of the environment.
pub(super) fn topology(
    text: &str,
    file: &Path,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Topology, Invalid> {
    let context = Context { file, text, lookup };
    let expanded = expand::expand(text, lookup).map_err(|name| {
        let (text, next) = if name.starts_with("${") {
            (format!("`{name}` is not closed"), "add the `}`".to_owned())
        } else {
            let bare: String = name.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let next = format!("set {bare}, write ${{{bare}:-default}}, or $$ for a plain $");
            (format!("the variable {name} is not set"), next)
        };
        context.fault("", &name, text, &next)
    })?;
    let context = Context { text: &expanded, ..context };
    let raw = yaml(&expanded).map_err(|e| syntax(&context, &e))?;
    name(&context, "name", &raw.name)?;
    if let Some(prefix) = raw.prefix.as_deref().filter(|p| !p.is_empty() && *p != "__lab-name") {
        name(&context, "prefix", prefix)?;
    }
    let mut notes = Vec::new();
    let nodes = nodes::resolve(&context, &raw, &mut notes)?;
    let links = links::resolve(&context, &raw, &nodes)?;
    Ok(Topology { file: file.to_owned(), name: raw.name, prefix: raw.prefix, nodes, links, notes })
}

fn yaml(text: &str) -> Result<RawFile, serde_yaml_ng::Error> {
    if text.contains("<<:") {
        // Merge keys have to be resolved before the keys are checked; lines are lost on this way.
        let mut value: serde_yaml_ng::Value = serde_yaml_ng::from_str(text)?;
        value.apply_merge()?;
        return serde_yaml_ng::from_value(value);
    }
    serde_yaml_ng::from_str(text)
}

/// Turns the YAML reader's message `PLACE: TEXT at line L column C` into ours.
fn syntax(context: &Context<'_>, error: &serde_yaml_ng::Error) -> Invalid {
    let message = error.to_string();
    let message = message.split_once(" at line ").map_or(message.as_str(), |(m, _)| m);
    let (place, text) = match message.split_once(": ") {
        Some((place, text)) if !place.contains(' ') => (place, text),
        _ => ("", message),
    };
    let mut invalid = context.fault(place, "", text.to_owned(), "");
    invalid.line = error.location().map(|l| l.line());
    let mut quoted = text.split('`').skip(1).step_by(2);
    if text.starts_with("unknown field") {
        let wrong = quoted.next().unwrap_or_default();
        invalid.text = format!("unknown key `{wrong}`");
        invalid.next = match expand::nearest(wrong, quoted.clone().filter(|k| !k.starts_with('_'))) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known keys: {}", quoted.collect::<Vec<_>>().join(", ")),
        };
        let key_place = if place.is_empty() { wrong.to_owned() } else { format!("{place}.{wrong}") };
        // The reader reports the place of the map; the key itself often stands on one line only.
        invalid.line =
            context.line_of(&format!("{wrong}:")).or_else(|| context.line_of(wrong)).or(invalid.line);
        if !place.ends_with(wrong) {
            invalid.place = key_place;
        }
    } else if text.starts_with("missing field") {
        let missing = quoted.next().unwrap_or_default();
        invalid.text = format!("`{missing}` is missing");
        invalid.next = format!("add `{missing}:`");
    } else if text.contains("stands twice") || text.starts_with("duplicate field") {
        let twice = quoted.next().unwrap_or_default().to_owned();
        invalid.text = format!("`{twice}` stands twice");
        invalid.next = "remove or rename one of the two".to_owned();
    } else if place.is_empty() {
        invalid.next = "the file is not YAML from here on: look at indentation, colons and quotes".to_owned();
    } else {
        invalid.next = "see https://containerlab.dev/manual/topo-def-file/".to_owned();
    }
    invalid
}

/// Names of labs, prefixes and nodes: letters, digits, `-`, `_` and `.`, beginning with a letter or digit.
pub(super) fn name(context: &Context<'_>, place: &str, name: &str) -> Result<(), Invalid> {
    let good = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if good && name.len() <= 64 {
        return Ok(());
    }
    let next = "use up to 64 letters, digits, `-`, `_` and `.`, beginning with a letter or digit";
    Err(context.fault(place, name, format!("`{name}` is no name"), next))
}
