//! When routing holds still although the store says otherwise.
//!
//! The model always follows the store. While the guard says frozen, nothing is computed from it: sessions, kernel and
//! rules stay as they are. That is so while
//!
//! - the store needs a program of a later schema (`newer-schema`), which nobody can accept;
//! - `Ready` has another value than `true` (`not-ready`), or is gone although this store had it (`ready-vanished`);
//! - the store has another identity than the one that the state in force came from (`other-store`);
//! - a relist lost every pool, every own block, or more than half of the hosts or of the endpoints (`lost-pools`,
//!   `lost-own-blocks`, `lost-hosts`, `lost-endpoints`).
//!
//! It ends by itself when the reason is gone (the keys or the store return), or when an operator accepts the new state.
//! A deletion that the watch shows is somebody's will and freezes nothing, but for `Ready`. The loss of one single host
//! or endpoint never counts as "more than half": in a small network that is a container that ended while the store was
//! away.

use super::state::Model;
use super::value::Ready;

/// How much there is of what must not vanish unnoticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ObjectCounts {
    /// Pools of both families.
    pub pools: usize,
    /// Own blocks: affinity confirmed and the block names this host.
    pub own_blocks: usize,
    /// Hosts.
    pub hosts: usize,
    /// Endpoints of all hosts.
    pub endpoints: usize,
}

/// Why routing holds still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freeze {
    /// Stable, for metrics and machines.
    pub code: &'static str,
    /// In words, and what ends it.
    pub text: String,
    /// The command that is the next step.
    pub next: &'static str,
}

/// For what an operator may find right as it is.
const ACCEPT: &str = "tortie store accept, if the store is right as it is";

/// Watches over relists and `Ready`.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Guard {
    /// `Ready` was `true` on the store of `store_id`.
    was_ready: bool,
    /// Identity of the store that the state in force came from; empty: none yet.
    store_id: String,
    /// Identity of the store that the last snapshot came from, when it differs.
    other_store: Option<String>,
    /// What there was before a relist that lost too much.
    before_loss: Option<ObjectCounts>,
}

impl Guard {
    /// A guard that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// To be told after each [`Model::apply`].
    pub fn after_delta(&mut self, model: &Model) {
        self.observe(model);
    }

    /// To be told after each [`Model::replace`], with the census of before and the identity of the store.
    pub fn after_replace(&mut self, before: ObjectCounts, model: &Model, store_id: &str) {
        if self.store_id.is_empty() {
            store_id.clone_into(&mut self.store_id);
        }
        self.other_store = (self.store_id != store_id).then(|| store_id.to_owned());
        let reference = self.before_loss.unwrap_or(before);
        if loss_text(&reference, &model.object_counts()).is_some() {
            self.before_loss = Some(reference);
        }
        self.observe(model);
    }

    /// Why nothing may be computed now; `None`: go on.
    #[must_use]
    pub fn frozen(&self, model: &Model) -> Option<Freeze> {
        if let Err(text) = model.schema() {
            let text = format!("{text}; everything stays as it is");
            // Nobody can accept that: this program does not know what the values mean.
            let next = "tortie status --all-nodes, which shows the versions of the other hosts";
            return Some(Freeze { code: "newer-schema", text, next });
        }
        if let Some(other) = &self.other_store {
            let text = format!(
                "the store is another one ({other} instead of {}): everything stays as it is until the former one \
                 returns or `tortie store accept`",
                self.store_id
            );
            return Some(Freeze { code: "other-store", text, next: ACCEPT });
        }
        if let Some((code, what)) =
            self.before_loss.as_ref().and_then(|before| loss_text(before, &model.object_counts()))
        {
            let text = format!(
                "a relist lost {what}: everything stays as it is until they return or `tortie store accept`"
            );
            return Some(Freeze { code, text, next: ACCEPT });
        }
        match model.ready() {
            Ready::True => None,
            Ready::Absent if !self.was_ready => None,
            Ready::Absent => Some(Freeze {
                code: "ready-vanished",
                text: "/calico/v1/Ready is gone: everything stays as it is until it is `true` again or \
                       `tortie store accept`"
                    .to_owned(),
                next: ACCEPT,
            }),
            Ready::Other(value) => Some(Freeze {
                code: "not-ready",
                text: format!(
                    "/calico/v1/Ready is `{value}`: everything stays as it is until it is `true` again"
                ),
                next: "tortie store put /calico/v1/Ready true, when the process that cleared it has finished",
            }),
        }
    }

    /// An operator says that the state of the store is right as it is.
    pub fn accept(&mut self, model: &Model) {
        if let Some(store_id) = self.other_store.take() {
            self.store_id = store_id;
        }
        self.before_loss = None;
        self.was_ready = *model.ready() == Ready::True;
    }

    fn observe(&mut self, model: &Model) {
        if self.other_store.is_none() {
            self.was_ready |= *model.ready() == Ready::True;
        }
        if self.before_loss.is_some_and(|before| loss_text(&before, &model.object_counts()).is_none()) {
            self.before_loss = None;
        }
    }
}

/// What a relist lost that it should not.
fn loss_text(before: &ObjectCounts, now: &ObjectCounts) -> Option<(&'static str, String)> {
    let all = |before: usize, now: usize| before > 0 && now == 0;
    let half = |before: usize, now: usize| now < before && now * 2 < before && before - now > 1;
    if all(before.pools, now.pools) {
        return Some(("lost-pools", format!("all {} pools", before.pools)));
    }
    if all(before.own_blocks, now.own_blocks) {
        return Some(("lost-own-blocks", format!("all {} blocks of this host", before.own_blocks)));
    }
    if half(before.hosts, now.hosts) {
        return Some(("lost-hosts", format!("{} of {} hosts", before.hosts - now.hosts, before.hosts)));
    }
    half(before.endpoints, now.endpoints).then(|| {
        let lost = before.endpoints - now.endpoints;
        ("lost-endpoints", format!("{lost} of {} endpoints", before.endpoints))
    })
}
