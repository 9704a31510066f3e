//! When routing holds still although the store says otherwise.
//!
//! The model always follows the store. While the guard says frozen, nothing is computed from it: sessions, kernel and
//! rules stay as they are. That is so while
//!
//! - the store is Calico 3's (`calico-3`), which nobody can accept: the v1 model says nothing of its workloads;
//! - another machine runs under this host's name (`duplicate-node`), or this host runs under another name than the one that
//!   its workloads are known by (`host-renamed`);
//! - the store needs a program of a later schema (`newer-schema`), which nobody can accept;
//! - the store was put back to an earlier state (`store-rewound`);
//! - workloads are attached that the store knows nothing of (`unknown-workloads`);
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
use tortie_store::{CALICO_3, CALICO_3_NEXT};

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
    pub next: String,
    /// Whether a start may run meanwhile from what the disk has. Not where that is another host's or another model's.
    pub cache_counts: bool,
}

impl Freeze {
    fn new(code: &'static str, text: String, next: &str) -> Self {
        Self { code, text, next: next.to_owned(), cache_counts: true }
    }
}

/// For what an operator may find right as it is.
const ACCEPT: &str = "tortie store accept, if the store is right as it is";

/// For a state that lacks what was written last: that is written again first.
const ACCEPT_EARLIER: &str =
    "tortie store accept, when what is missing was written again (tortie history shows the last changes)";

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
    /// The store has objects of Calico 3.
    #[serde(default)]
    calico_3: bool,
    /// The proof that the store was put back to an earlier state.
    #[serde(default)]
    put_back: Option<String>,
    /// The other machine that runs under this host's name.
    #[serde(default)]
    twin: Option<String>,
    /// What is attached to this host that the store does not explain.
    #[serde(default)]
    attached: Option<Unexplained>,
}

/// Workloads that are attached to this host and that the store does not know as its own.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Unexplained {
    /// They are another host's by the store: this host's former name, and what says so.
    Renamed {
        /// The former name.
        former: String,
        /// What says so, in words.
        evidence: String,
    },
    /// Nobody's: the first of them, in words, and how many there are.
    Unknown {
        /// Address and interface.
        first: String,
        /// How many.
        count: usize,
    },
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

    /// The store has objects of Calico 3, or has none any more.
    pub fn set_calico_3(&mut self, found: bool) {
        self.calico_3 = found;
    }

    /// The store was put back to an earlier state, as this says.
    pub fn set_put_back(&mut self, proof: String) {
        self.put_back = Some(proof);
    }

    /// Another machine runs under this host's name; `None`: none any more.
    pub fn set_twin(&mut self, machine: Option<String>) {
        self.twin = machine;
    }

    /// What is attached to this host at its start, and that the store does not explain.
    pub fn set_attached(&mut self, unexplained: Option<Unexplained>) {
        self.attached = unexplained;
    }

    /// Why nothing may be computed now; `None`: go on.
    #[must_use]
    pub fn frozen(&self, model: &Model) -> Option<Freeze> {
        self.wrong_place(model).or_else(|| self.wrong_state(model))
    }

    /// The store is no place for this host under this name.
    fn wrong_place(&self, model: &Model) -> Option<Freeze> {
        let node = model.node();
        if self.calico_3 {
            let text = format!(
                "{CALICO_3}: nothing is written, allocated, announced or programmed, and what is in force stays as it is"
            );
            let next = format!("tortie agent --kernel observe looks without writing; {CALICO_3_NEXT}");
            return Some(Freeze { cache_counts: false, ..Freeze::new("calico-3", text, &next) });
        }
        if let Some(twin) = &self.twin {
            let text = format!("{twin}: everything stays as it is until one of them has another name");
            let next = "--node NAME (TORTIE_NODE) on one of the two machines, or stop the agent there";
            return Some(Freeze { cache_counts: false, ..Freeze::new("duplicate-node", text, next) });
        }
        match &self.attached {
            Some(Unexplained::Renamed { former, evidence }) => {
                let text = format!(
                    "this host was {former} until now and starts as {node}: {evidence}; nothing of {former} is taken away until an \
                     operator decides"
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
                    "{first}{more}: attached to this host, and the store knows no endpoint of {node}; nothing of that is removed \
                     or dropped until an operator decides"
                );
                let next = "is --datastore right, and --node? If they are nobody's: tortie store accept";
                Some(Freeze::new("unknown-workloads", text, next))
            }
            None => None,
        }
    }

    /// The store is in a state that is not followed.
    fn wrong_state(&self, model: &Model) -> Option<Freeze> {
        if let Err(text) = model.schema() {
            let text = format!("{text}; everything stays as it is");
            // Nobody can accept that: this program does not know what the values mean.
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
                "the store was put back to an earlier state ({proof}): what was written after that is lost, and everything stays \
                 as it is until `tortie store accept`"
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
                "/calico/v1/Ready is gone: everything stays as it is until it is `true` again or `tortie store accept`".to_owned(),
                ACCEPT,
            )),
            Ready::Other(value) => Some(Freeze::new(
                "not-ready",
                format!("/calico/v1/Ready is `{value}`: everything stays as it is until it is `true` again"),
                "tortie store put /calico/v1/Ready true, when the process that cleared it has finished",
            )),
        }
    }

    /// An operator says that the state of the store is right as it is.
    pub fn accept(&mut self, model: &Model) {
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
