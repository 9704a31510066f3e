//! Batches of learned routes sent from the speaker to the kernel thread, with the credits that limit their
//! number.

use std::ops::Deref;
use std::sync::Arc;

use super::LearnedChange;

/// Permission to send one more batch. It returns to the sender when it is dropped: after the batch was
/// acknowledged, or when the receiving thread ended.
pub struct Credit(Arc<dyn Fn() + Send + Sync>);

impl Credit {
    /// Creates a credit. `give_back` is called once, on the thread that drops the credit; it must not block.
    #[must_use]
    pub fn new(give_back: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self(give_back)
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Credit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credit")
    }
}

/// Up to 4,096 learned routes. The batch is dropped when the kernel has acknowledged them.
#[derive(Debug)]
pub struct LearnedBatch {
    changes: Vec<LearnedChange>,
    /// Credit to return; `None` without flow control.
    _credit: Option<Credit>,
}

impl LearnedBatch {
    /// Creates a batch that holds a credit of its sender.
    #[must_use]
    pub fn new(changes: Vec<LearnedChange>, credit: Credit) -> Self {
        Self { changes, _credit: Some(credit) }
    }
}

/// Creates a batch without flow control.
impl From<Vec<LearnedChange>> for LearnedBatch {
    fn from(changes: Vec<LearnedChange>) -> Self {
        Self { changes, _credit: None }
    }
}

impl Deref for LearnedBatch {
    type Target = [LearnedChange];

    fn deref(&self) -> &[LearnedChange] {
        &self.changes
    }
}
