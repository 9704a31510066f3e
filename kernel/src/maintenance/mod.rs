//! Kernel maintenance without a running agent: purging an agent's objects, and the hand-over of
//! `tortie migrate`.

pub mod handover;
pub(super) mod purge;
