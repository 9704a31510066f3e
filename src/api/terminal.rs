//! What a terminal may be sent besides text.

use std::io::IsTerminal;

/// The terminal shows text and acts on nothing.
#[must_use]
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Whether what goes there is coloured, when nobody says: to a terminal that can, unless `NO_COLOR` is set (an empty one counts as
/// absent: no-color.org).
#[must_use]
pub fn takes_colors(stream: &impl IsTerminal) -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !unwanted && !is_dumb() && stream.is_terminal()
}
