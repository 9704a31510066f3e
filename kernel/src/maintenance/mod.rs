//! What is done to the kernel without an agent: removal of what an agent left, and the hand-over of `tortie migrate`.

pub mod handover;
pub(super) mod purge;
