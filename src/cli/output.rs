//! Output of commands: tables without borders, JSON and YAML; data on stdout, everything else on stderr.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::Serialize;

use super::failure::{Exit, Failure};
pub use crate::api::span;
use crate::api::{escape, terminal};
use tortie_engine::model::endpoint_name::short_id;

/// Output format.
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
    /// True if the output is for people.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Conditions under which words of state are coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Code of the pseudo failure that ends `--watch` after its reader has closed the pipe.
pub(super) const CLOSED: &str = "closed";

/// Style of the output, set once.
#[derive(Debug, Clone, Copy)]
struct Style {
    headers: bool,
    color: bool,
    /// True to print each JSON answer on one line.
    lines: bool,
    /// True if answers are text.
    people: bool,
    /// True to shorten container ids.
    short_ids: bool,
}

static STYLE: OnceLock<Style> = OnceLock::new();
/// Separator before the next answer, as an index of [`BETWEEN`].
static BEFORE: AtomicU8 = AtomicU8::new(0);
/// Separators: nothing, an empty line, a cleared screen, a new YAML document.
const BETWEEN: [&str; 4] = ["", "\n", "\x1b[H\x1b[J", "---\n"];

/// Sets the style before anything is printed. `lines` prints each JSON answer on one line; with `keys`, the
/// answer contains store keys, which must not be shortened.
pub(super) fn style(no_headers: bool, color: Color, lines: bool, keys: bool, format: Format) {
    let color = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => terminal::takes_colors(&io::stdout()),
    };
    let short_ids = format == Format::Table && !keys;
    let _ = STYLE.set(Style { headers: !no_headers, color, lines, people: format.is_text(), short_ids });
}

/// True if answers are printed as text.
pub(super) fn for_people() -> bool {
    styled().people
}

/// Announces one of several answers: on a terminal it replaces the answer before.
pub(super) fn again(format: Format) {
    static FIRST: OnceLock<()> = OnceLock::new();
    let first = FIRST.set(()).is_ok();
    let before = match format {
        Format::Json => 0,
        Format::Yaml => 3,
        _ if io::stdout().is_terminal() && !terminal::is_dumb() => 2,
        _ => u8::from(!first),
    };
    BEFORE.store(before, Ordering::Relaxed);
}

fn styled() -> Style {
    let unset = Style { headers: true, color: false, lines: false, people: false, short_ids: false };
    STYLE.get().copied().unwrap_or(unset)
}

/// Colours words of state. The word carries the meaning; the colour only helps to find it.
fn paint(text: &str) -> String {
    let color = |word: &str| match word {
        "READY" | "Established" | "installed" | "confirmed" | "ok" | "ALLOW" => Some("32"),
        "degraded" | "STARTING" | "starting" | "pending" | "withheld" | "stale" | "inactive" | "BEHIND"
        | "WARN" | "silent" | "disputed" => Some("33"),
        "FROZEN" | "NOT" | "AWAY" | "FULL" | "DOWN" | "failed" | "frozen" | "not-ready" | "Idle"
        | "Connect" | "Active" | "OpenSent" | "OpenConfirm" | "DENY" | "STOP" | "FAIL" | "!" => Some("31"),
        _ => None,
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '!';
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let (between, from) = rest.split_at(start);
        let (word, after) = from.split_at(from.find(|c| !is_part(c)).unwrap_or(from.len()));
        out.push_str(between);
        // A count of zero is not a state: `0 failed`.
        match color(word).filter(|_| !counts_none(&out)) {
            Some(code) => out.push_str(&format!("\x1b[{code}m{word}\x1b[0m")),
            None => out.push_str(word),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// True if the text ends with the number 0 and a blank.
fn counts_none(text: &str) -> bool {
    text.strip_suffix("0 ").is_some_and(|text| text.chars().next_back().is_none_or(char::is_whitespace))
}

/// Prints a value with `text` for people, or as JSON or YAML.
///
/// # Errors
/// If the output cannot be written; a closed pipe is no error.
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
            let form = if styled().lines { serde_json::to_string } else { serde_json::to_string_pretty };
            out = form(value).map_err(|e| internal(&e))?;
            out.push('\n');
        }
        Format::Yaml => out = serde_yaml_ng::to_string(value).map_err(|e| internal(&e))?,
    }
    // Text of external origin is escaped before colours are added.
    let out = shown(&out);
    if format.is_text() && styled().color { send(&paint(&out)) } else { send(&out) }
}

/// Prints a text; for programs, it is the member `text` of an object.
///
/// # Errors
/// If the output cannot be written; a closed pipe is no error.
pub fn text(format: Format, text: &str) -> Result<(), Failure> {
    print(format, &serde_json::json!({ "text": text }), |out, _| out.push_str(text))
}

/// Writes to stdout with control characters escaped.
///
/// # Errors
/// If the output cannot be written; a closed pipe is no error.
pub fn write_out(text: &str) -> Result<(), Failure> {
    send(&shown(text))
}

/// Escapes control characters, and shortens container ids if the style says so.
fn shown(text: &str) -> Cow<'_, str> {
    let text = escape::lines(text);
    if styled().short_ids { Cow::Owned(with_short_ids(&text)) } else { text }
}

/// Shortens ids of 64 hexadecimal digits to twelve, as `docker ps` does. Commands that a user may copy are
/// unchanged.
fn with_short_ids(text: &str) -> String {
    let short = |line: &str| {
        let (before, command) = line.split_at(line.find("tortie store ").unwrap_or(line.len()));
        let mut out = String::with_capacity(line.len());
        let mut rest = before;
        while let Some(start) = rest.find(|c: char| c.is_ascii_hexdigit()) {
            let (between, from) = rest.split_at(start);
            let end = from.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(from.len());
            let (digits, after) = from.split_at(end);
            out.push_str(between);
            let id = short_id(digits);
            out.push_str(id);
            if id.len() < digits.len() {
                out.push_str("...");
            }
            rest = after;
        }
        out.extend([rest, command]);
        out
    };
    text.split_inclusive('\n').map(short).collect()
}

/// Prints a diagnostic on standard error, with control characters escaped.
pub fn diagnose(text: &str) {
    eprintln!("{}", escape::lines(text));
}

/// Writes to stdout unchanged, for cursor control and texts that are already escaped.
pub(super) fn send(text: &str) -> Result<(), Failure> {
    let before = BETWEEN.get(usize::from(BEFORE.swap(0, Ordering::Relaxed))).copied().unwrap_or_default();
    let mut stdout = io::stdout().lock();
    let wrote = stdout.write_all(before.as_bytes()).and_then(|()| stdout.write_all(text.as_bytes()));
    match wrote.and_then(|()| stdout.flush()) {
        // The reader has closed the pipe, so no further answer is needed.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe && styled().lines => {
            Err(Failure::new(Exit::Partial, CLOSED, ""))
        }
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Partial, "output", format!("cannot write the answer: {error}")))
        }
        _ => Ok(()),
    }
}

fn internal(error: &dyn std::error::Error) -> Failure {
    Failure::new(Exit::Partial, "output", format!("the answer cannot be printed: {error}"))
}

/// Formats a table whose columns are as wide as their longest cell, separated by two blanks.
#[must_use]
pub fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    if styled().headers {
        table.set_header(head.to_vec());
    }
    for row in rows {
        // A cell must stay on one line, whatever its text contains.
        table.add_row(row.iter().map(|cell| escape::line(cell).into_owned()).collect::<Vec<_>>());
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
    fn words_of_state_are_coloured_and_nothing_else_changes() {
        let text = "h1  READY, degraded: 1 down\n  Routes  0 failed  3 pending\nready-made Established\n";
        let painted = paint(text);
        assert_eq!(
            painted,
            "h1  \x1b[32mREADY\x1b[0m, \x1b[33mdegraded\x1b[0m: 1 down\n  Routes  0 failed  3 \x1b[33mpending\x1b[0m\n\
             ready-made \x1b[32mEstablished\x1b[0m\n"
        );
        assert_eq!(paint("100 failed"), "100 \x1b[31mfailed\x1b[0m");
        let plain = painted.replace("\x1b[0m", "").replace("\x1b[32m", "").replace("\x1b[33m", "");
        assert_eq!(plain, text);
    }

    #[test]
    fn ids_of_containers_are_shortened_but_in_commands_to_be_copied() {
        let (id, longer) = ("0123456789abcdef".repeat(4), "0".repeat(65));
        assert_eq!(
            with_short_ids(&format!("of net.{id}.eth1\n/x/{id}/y: tortie store get /x/{id}\n{longer}")),
            format!("of net.0123456789ab....eth1\n/x/0123456789ab.../y: tortie store get /x/{id}\n{longer}")
        );
    }

    #[test]
    fn tables_have_no_lines_and_no_trailing_blanks() {
        let text = table(&["PEER", "STATE"], vec![vec!["192.0.2.1".into(), "Established".into()]]);
        assert_eq!(text, "PEER       STATE\n192.0.2.1  Established\n");
    }
}
