//! How sessions come up, how they are protected, and how they end.

mod drain;
mod graceful;
mod limits;
mod pair;
pub(crate) mod ranges;
mod roles;
mod send_hold;
mod transport;
mod unnumbered;
