//! Session setup, protection and end.

mod drain;
mod graceful;
mod limits;
mod pair;
pub(crate) mod ranges;
mod roles;
mod send_hold;
mod transport;
mod unnumbered;
