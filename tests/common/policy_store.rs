//! Processing of store changes by model, engine and kernel thread, without the core.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "test helper; not every test uses all of it"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use tortie_config::Key;
use tortie_engine::model::Model;
use tortie_engine::policy::{Engine, Globals, Ruleset, RulesetDelta};
use tortie_engine::routing::ChangeId;
use tortie_kernel::{KernelFact, PolicyChange, ToKernel};
use tortie_store::{Change, Delta, KeyValue};

use super::kernel_thread::Rig;

/// Performs the core's work on policy changes.
pub(crate) struct Policy {
    pub(crate) model: Model,
    engine: Engine,
    pub(crate) ruleset: Ruleset,
    pub(crate) globals: Globals,
    serial: u64,
    store: BTreeMap<String, String>,
}

impl Policy {
    pub(crate) fn new() -> Self {
        let model = Model::new("h1");
        let (engine, _) = Engine::new(&model);
        let globals = Globals::of(&model);
        Self { model, engine, ruleset: Ruleset::default(), globals, serial: 0, store: BTreeMap::new() }
    }

    pub(crate) fn change(&mut self, rig: &Rig, keys: &[(String, Option<String>)]) {
        self.change_with(rig, keys, |_| ());
        let serial = self.serial;
        let failed = rig.wait("Enforced", |fact| match fact {
            KernelFact::Enforced { serial: of, failed, .. } if *of == serial => Some(failed.clone()),
            KernelFact::RulesProblem(Some(problem)) => panic!("{problem}\n{}", self.dump()),
            _ => None,
        });
        assert!(failed.is_empty(), "{failed:?}\n{}", self.dump());
    }

    /// The same without a requirement that the kernel accepts the change. Returns the endpoints that fail.
    /// `edit` may modify the change before it is sent.
    pub(crate) fn try_change(
        &mut self,
        rig: &Rig,
        keys: &[(String, Option<String>)],
        edit: impl FnOnce(&mut RulesetDelta),
    ) -> BTreeMap<String, String> {
        self.change_with(rig, keys, edit);
        let serial = self.serial;
        let failed = rig.wait("Enforced", |fact| match fact {
            KernelFact::Enforced { serial: of, failed, .. } if *of == serial => Some(failed.clone()),
            _ => None,
        });
        failed.into_iter().map(|(key, why)| (Key::Endpoint(key).to_string(), why)).collect()
    }

    /// Sends a change, possibly modified, to the kernel thread without waiting for it.
    pub(crate) fn change_with(
        &mut self,
        rig: &Rig,
        keys: &[(String, Option<String>)],
        edit: impl FnOnce(&mut RulesetDelta),
    ) {
        self.serial += 1;
        let revision = self.serial;
        let change = |(key, value): &(String, Option<String>)| match value {
            Some(value) => {
                self.store.insert(key.clone(), value.clone());
                let value = value.clone().into_bytes();
                let key = key.clone();
                Change::Put(KeyValue { key, value, mod_revision: revision, create_revision: revision })
            }
            None => {
                self.store.remove(key);
                Change::Delete { key: key.clone() }
            }
        };
        let changes = keys.iter().map(change).collect();
        let changes = self.model.apply(&Delta { revision, changes });
        let mut delta = if self.serial == 1 {
            let (engine, delta) = Engine::new(&self.model);
            self.engine = engine;
            delta
        } else {
            self.engine.update(&self.model, &changes.keys)
        };
        edit(&mut delta);
        delta.apply(&mut self.ruleset);
        let globals = Globals::of(&self.model);
        let globals = (self.serial == 1 || globals != self.globals).then(|| Arc::new(globals));
        if let Some(globals) = &globals {
            self.globals = (**globals).clone();
        }
        let (serial, change) = (self.serial, ChangeId(self.serial));
        rig.send(ToKernel::Policy(Arc::new(PolicyChange { serial, change, delta, globals, routings: None })));
    }

    /// Reloads the same store, as after a restart of the process.
    pub(crate) fn restart(&mut self, rig: &Rig) {
        let store = std::mem::take(&mut self.store);
        let keys: Vec<_> = store.into_iter().map(|(key, value)| (key, Some(value))).collect();
        *self = Self::new();
        self.change(rig, &keys);
    }

    pub(crate) fn dump(&self) -> String {
        self.store.iter().fold(String::new(), |mut text, (key, value)| {
            let _ = writeln!(text, "{key} {value}");
            text
        })
    }
}
