//! Properties of the terminal that decide on colour and control sequences.

use std::io::IsTerminal;

/// True if the terminal interprets no control sequences (`TERM=dumb`).
#[must_use]
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Default for coloured output: true for a terminal that is not dumb, unless `NO_COLOR` is set and not empty
/// (no-color.org).
#[must_use]
pub fn takes_colors(stream: &impl IsTerminal) -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !unwanted && !is_dumb() && stream.is_terminal()
}
