//! Neighbours' addresses that the kernel thread follows.

pub(crate) mod fallover;
