//! From text to [`Topology`]: variables, YAML, and the faults that concern the whole document.

use std::path::Path;

use super::context::{Context, name};
use super::raw::RawFile;
use super::topology::Topology;
use super::{expand, links, nodes};
use crate::error::{Invalid, LabError};

impl Topology {
    /// Reads and checks a lab file. Variables come from the environment of this process.
    ///
    /// # Errors
    /// [`LabError::File`] when it cannot be read, [`LabError::Invalid`] with the place and the next step otherwise.
    pub fn read(file: &Path) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(file).map_err(LabError::file(file))?;
        let file = std::path::absolute(file).map_err(LabError::file(file))?;
        Self::parse(&text, &file)
    }

    /// The same for a text; relative binds are taken from the folder of `file`, which need not exist.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn parse(text: &str, file: &Path) -> Result<Self, LabError> {
        topology(text, file, &|name| std::env::var(name).ok()).map_err(|e| LabError::Invalid(Box::new(e)))
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
