//! Rules and sets as Felix leaves them in the kernel.

pub(crate) mod calico1;
pub(crate) mod calico2;
