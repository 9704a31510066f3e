//! The tables of both families, each with the update groups that follow it.

pub(crate) mod family;
