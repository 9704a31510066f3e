//! Output to a terminal.

mod colors;
mod hostile_text;
