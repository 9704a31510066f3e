//! Converts the text of a lab file to a [`Topology`]: variables, YAML, and checks of the whole document.

use std::path::Path;

use super::context::{Context, name};
use super::raw::RawFile;
use super::topology::Topology;
use super::{expand, links, nodes};
use crate::error::{Invalid, LabError};

impl Topology {
    /// Reads and checks a lab file, using the environment variables of this process.
    ///
    /// # Errors
    /// [`LabError::File`] if it cannot be read, otherwise [`LabError::Invalid`] with the position and the
    /// next step.
    pub fn read(file: &Path) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(file).map_err(LabError::file(file))?;
        let file = std::path::absolute(file).map_err(LabError::file(file))?;
        Self::parse(&text, &file)
    }

    /// Parses and checks the text of a lab file. Relative binds start at the directory of `file`, which need
    /// not exist.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn parse(text: &str, file: &Path) -> Result<Self, LabError> {
        topology(text, file, &|name| std::env::var(name).ok()).map_err(|e| LabError::Invalid(Box::new(e)))
    }
}

/// Parses the text of a lab file. `lookup` returns the values of environment variables.
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
        // Merge keys must be resolved before keys are checked; this loses the line numbers.
        let mut value: serde_yaml_ng::Value = serde_yaml_ng::from_str(text)?;
        value.apply_merge()?;
        return serde_yaml_ng::from_value(value);
    }
    serde_yaml_ng::from_str(text)
}

/// Converts a message of the YAML parser, `PLACE: TEXT at line L column C`, to an [`Invalid`].
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
        // The parser reports the position of the map, while the key itself often occurs on a single line.
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
