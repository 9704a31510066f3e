//! Tables without boxes, JSON and YAML; data to stdout, everything else to stderr.

use std::io::{self, Write};

use serde::Serialize;

use super::failure::{Exit, Failure};
pub use crate::serve::span;

/// The form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For people, with more columns.
    Wide,
    /// For machines.
    Json,
    /// For machines and people.
    Yaml,
}

impl Format {
    /// Whether people read it.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Prints for people with `text`, or the value as JSON or YAML.
///
/// # Errors
/// When the output cannot be written; a closed pipe is no error.
pub fn print<T: Serialize>(
    format: Format,
    value: &T,
    text: impl FnOnce(&mut String, bool),
) -> Result<(), Failure> {
    let mut out = String::new();
    match format {
        Format::Table => text(&mut out, false),
        Format::Wide => text(&mut out, true),
        Format::Json => {
            out = serde_json::to_string_pretty(value).map_err(|e| internal(&e))?;
            out.push('\n');
        }
        Format::Yaml => out = serde_yaml_ng::to_string(value).map_err(|e| internal(&e))?,
    }
    write_out(&out)
}

/// Writes to stdout.
///
/// # Errors
/// When the output cannot be written; a closed pipe is no error.
pub fn write_out(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Partial, "output", format!("cannot write the answer: {error}")))
        }
        _ => Ok(()),
    }
}

fn internal(error: &dyn std::error::Error) -> Failure {
    Failure::new(Exit::Partial, "output", format!("the answer cannot be printed: {error}"))
}

/// A table whose columns are as wide as their longest cell, two blanks apart, without lines.
#[must_use]
pub fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut out = String::new();
    for line in table.lines() {
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_no_lines_and_no_trailing_blanks() {
        let text = table(&["PEER", "STATE"], vec![vec!["192.0.2.1".into(), "Established".into()]]);
        assert_eq!(text, "PEER       STATE\n192.0.2.1  Established\n");
    }
}
