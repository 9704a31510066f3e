//! What is sent to a terminal.

mod colors;
mod hostile_text;
