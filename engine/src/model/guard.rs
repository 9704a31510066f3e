//! Freeze conditions: states of the store that routing must not follow.
//!
//! The model always follows the store. While the guard reports a freeze, nothing is computed from the model:
//! sessions, kernel routes and rules stay as they are. The conditions are:
//!
//! - the store has another data model than the one that the current state came from (`calico-3`): objects of
//!   Calico 3 appeared in a v1 store, or all of them are gone;
//! - another machine runs under this host's name (`duplicate-node`), or this host runs under another name
//!   than the one that its workloads are registered for (`host-renamed`);
//! - the store requires a later schema (`newer-schema`), which cannot be accepted;
//! - the store was restored to an earlier state (`store-rewound`);
//! - workloads are attached that are not in the store (`unknown-workloads`);
//! - `Ready` has another value than `true` (`not-ready`), or was deleted although this store had it
//!   (`ready-vanished`);
//! - the store has another identity than the one that the current state came from (`other-store`);
//! - a relist lost every pool, every own block, or more than half of the hosts or of the endpoints
//!   (`lost-pools`, `lost-own-blocks`, `lost-hosts`, `lost-endpoints`).
//!
//! A freeze ends when its reason is gone (the keys or the store return), or when an operator accepts the new
//! state. A deletion that the watch reports was intended by its writer and freezes nothing, except for
//! `Ready`. The loss of one single host or endpoint never counts as "more than half": in a small network it
//! is a container that ended while the store was unreachable.

use tortie_config::Dialect;
use tortie_config::key::Key;

use super::state::Model;
use super::value::Ready;

/// Number of objects of each kind whose loss must not go unnoticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ObjectCounts {
    /// Pools of both families.
    pub pools: usize,
    /// Own blocks: the affinity is confirmed and the block names this host.
    pub own_blocks: usize,
    /// Hosts with at least one key.
    pub hosts: usize,
    /// Endpoints of all hosts.
    pub endpoints: usize,
}

/// Reason why routing is frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freeze {
    /// Stable code for metrics and programs.
    pub code: &'static str,
    /// Explanation for people, with the condition that ends the freeze.
    pub text: String,
    /// Command to run next.
    pub next: String,
    /// True if the agent may start from its cache during the freeze. False if the cached state may belong to
    /// another host or to another data model.
    pub cache_counts: bool,
}

impl Freeze {
    fn new(code: &'static str, text: String, next: &str) -> Self {
        Self { code, text, next: next.to_owned(), cache_counts: true }
    }
}

/// Next step for a state that an operator may accept as it is.
const ACCEPT: &str = "tortie store accept, if the store is right as it is";

/// Next step for a store that lost recent writes, which must be written again first.
const ACCEPT_EARLIER: &str =
    "tortie store accept, after the lost keys were written again (tortie history shows the last changes)";

/// Next step for a store whose data model changed.
const OTHER_MODEL: &str = "tortie store ls /calico/resources/v3/; tortie store accept follows the store as it is now, and --data-model \
                           v1 ignores these keys";

/// State of the freeze conditions, updated by relists, deltas and the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Guard {
    /// True if `Ready` was `true` on the store of `store_id`.
    was_ready: bool,
    /// Identity of the store that the current state came from; empty before the first snapshot.
    store_id: String,
    /// Identity of the store that the last snapshot came from, if it differs.
    other_store: Option<String>,
    /// Object counts before a relist that lost too many.
    before_loss: Option<ObjectCounts>,
    /// Data model of the store that the current state came from; `None` before the first snapshot.
    #[serde(default)]
    dialect: Option<Dialect>,
    /// Data model that the store has now, before its entries were read.
    #[serde(default)]
    announced: Option<Dialect>,
    /// True if the agent only observes, and may follow any store.
    #[serde(default)]
    observes: bool,
    /// Proof that the store was restored to an earlier state.
    #[serde(default)]
    put_back: Option<String>,
    /// Other machine that runs under this host's name.
    #[serde(default)]
    twin: Option<String>,
    /// Attached workloads that the store does not explain.
    #[serde(default)]
    attached: Option<Unexplained>,
}

/// Workloads attached to this host that are not among its endpoints in the store.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Unexplained {
    /// The store assigns them to another host name: this host was renamed.
    Renamed {
        /// Former name of this host.
        former: String,
        /// Evidence for the former name, for people.
        evidence: String,
    },
    /// No host has them in the store.
    Unknown {
        /// Address and interface of the first one.
        first: String,
        /// Number of such workloads, including the first.
        count: usize,
    },
}

impl Guard {
    /// Creates a guard without a reference state. One that observes follows a change of the data model.
    #[must_use]
    pub fn new(observes: bool) -> Self {
        Self { observes, ..Self::default() }
    }

    /// Updates the guard after each [`Model::apply`].
    pub fn after_delta(&mut self, model: &Model) {
        self.observe(model);
    }

    /// Updates the guard after each [`Model::replace`]. `before` has the object counts before it, and
    /// `store_id` is the identity of the store.
    pub fn after_replace(&mut self, before: ObjectCounts, model: &Model, store_id: &str) {
        if self.store_id.is_empty() {
            store_id.clone_into(&mut self.store_id);
        }
        self.other_store = (self.store_id != store_id).then(|| store_id.to_owned());
        self.announced = None;
        if self.observes {
            self.dialect = None;
        }
        self.dialect.get_or_insert(model.dialect());
        let reference = self.before_loss.unwrap_or(before);
        if loss_text(&reference, &model.object_counts()).is_some() {
            self.before_loss = Some(reference);
        }
        self.observe(model);
    }

    /// Records the data model that the store has now; its entries follow.
    pub fn set_dialect(&mut self, now: Dialect) {
        self.announced = Some(now);
    }

    /// Records that the store was restored to an earlier state, with the proof.
    pub fn set_put_back(&mut self, proof: String) {
        self.put_back = Some(proof);
    }

    /// Records another machine that runs under this host's name; `None` if there is none any more.
    pub fn set_twin(&mut self, machine: Option<String>) {
        self.twin = machine;
    }

    /// Records the attached workloads that the store did not explain when the agent started.
    pub fn set_attached(&mut self, unexplained: Option<Unexplained>) {
        self.attached = unexplained;
    }

    /// Returns the reason for a freeze, or `None` if routing may follow the model.
    #[must_use]
    pub fn frozen(&self, model: &Model) -> Option<Freeze> {
        self.wrong_place(model).or_else(|| self.wrong_state(model))
    }

    /// Returns a freeze because this host, under this name, should not use this store.
    fn wrong_place(&self, model: &Model) -> Option<Freeze> {
        let node = model.node();
        let now = self.announced.unwrap_or(model.dialect());
        if self.dialect.is_some_and(|dialect| dialect != now) && !self.observes {
            let found = match now {
                Dialect::V3 => "objects of Calico 3 appeared in this store of the v1 data model",
                Dialect::V1 => "this store of Calico 3 has no objects any more",
            };
            let text = format!("{found}: everything stays as it is until `tortie store accept`");
            return Some(Freeze { cache_counts: false, ..Freeze::new("calico-3", text, OTHER_MODEL) });
        }
        if let Some(twin) = &self.twin {
            let text = format!("{twin}: everything stays as it is until one of them has another name");
            let next = "--node NAME (TORTIE_NODE) on one of the two machines, or stop the agent there";
            return Some(Freeze { cache_counts: false, ..Freeze::new("duplicate-node", text, next) });
        }
        match &self.attached {
            Some(Unexplained::Renamed { former, evidence }) => {
                let text = format!(
                    "this host was {former} until now and starts as {node}: {evidence}; nothing of {former} \
                     is removed until an operator decides"
                );
                let next = format!(
                    "--node {former} (TORTIE_NODE) keeps the name; or drain the host, `tortie node delete {former}`, and \
                     `tortie store accept`"
                );
                Some(Freeze { next, cache_counts: false, ..Freeze::new("host-renamed", text, "") })
            }
            Some(Unexplained::Unknown { first, count }) => {
                let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
                let text = format!(
                    "{first}{more}: attached to this host, and the store has no endpoint of {node}; nothing \
                     of that is removed or dropped until an operator decides"
                );
                let next =
                    "check --datastore and --node; if no store has these workloads: tortie store accept";
                Some(Freeze::new("unknown-workloads", text, next))
            }
            None => None,
        }
    }

    /// Returns a freeze because of the state of the store.
    fn wrong_state(&self, model: &Model) -> Option<Freeze> {
        if let Err(text) = model.schema() {
            let text = format!("{text}; everything stays as it is");
            // An operator cannot accept this: the program does not know the meaning of the values.
            let next = "tortie status --all-nodes, which shows the versions of the other hosts";
            return Some(Freeze::new("newer-schema", text, next));
        }
        if let Some(other) = &self.other_store {
            let text = format!(
                "the store is another one ({other} instead of {}): everything stays as it is until the former one \
                 returns or `tortie store accept`",
                self.store_id
            );
            return Some(Freeze::new("other-store", text, ACCEPT));
        }
        if let Some(proof) = &self.put_back {
            let text = format!(
                "the store was restored to an earlier state ({proof}): later writes are lost, and \
                 everything stays as it is until `tortie store accept`"
            );
            return Some(Freeze::new("store-rewound", text, ACCEPT_EARLIER));
        }
        if let Some((code, what)) =
            self.before_loss.as_ref().and_then(|before| loss_text(before, &model.object_counts()))
        {
            let text = format!(
                "a relist lost {what}: everything stays as it is until they return or `tortie store accept`"
            );
            return Some(Freeze::new(code, text, ACCEPT));
        }
        match model.ready() {
            Ready::True => None,
            Ready::Absent if !self.was_ready => None,
            Ready::Absent => Some(Freeze::new(
                "ready-vanished",
                format!(
                    "{} is gone: everything stays as it is until it is `true` again or `tortie store accept`",
                    model.name_of(&Key::Ready)
                ),
                ACCEPT,
            )),
            Ready::Other(_) if model.lacks_cluster() => Some(Freeze::new(
                "not-ready",
                format!(
                    "there is no {}, which says that the store is ready: everything stays as it is until \
                     there is one",
                    model.name_of(&Key::Ready)
                ),
                "tortie agent in program mode creates it, if it starts on a store that never had one",
            )),
            Ready::Other(_) if model.dialect() == Dialect::V3 => Some(Freeze::new(
                "not-ready",
                format!(
                    "{} has not `datastoreReady: true`: everything stays as it is until it has",
                    model.name_of(&Key::Ready)
                ),
                "calicoctl datastore migrate unlock, when the process that locked the store has finished",
            )),
            Ready::Other(value) => Some(Freeze::new(
                "not-ready",
                format!(
                    "{} is `{value}`: everything stays as it is until it is `true` again",
                    model.name_of(&Key::Ready)
                ),
                "tortie store put /calico/v1/Ready true, when the process that cleared it has finished",
            )),
        }
    }

    /// Accepts the current state of the store on behalf of an operator.
    pub fn accept(&mut self, model: &Model) {
        if self.announced.is_none() && self.dialect.is_some() {
            self.dialect = Some(model.dialect());
        }
        if let Some(store_id) = self.other_store.take() {
            self.store_id = store_id;
        }
        self.before_loss = None;
        self.put_back = None;
        self.attached = None;
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

/// Returns the code and the description of a loss between two counts that freezes routing.
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
