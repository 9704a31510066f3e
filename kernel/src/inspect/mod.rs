//! One-shot reads of the host for questions: nothing is written and nothing is followed.

pub(super) mod address_use;
pub(super) mod attached;
pub(super) mod capabilities;
pub(super) mod connected;
pub(super) mod default_address;
pub(super) mod lookup;
pub(super) mod snapshot;
