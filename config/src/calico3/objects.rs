//! The objects that sections need as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bgp::NodeBgp;
use super::{Kind, Object, ObjectKey};

/// Objects of the kinds that sections read, by key. They are shared, because a copy of all is made where a
/// query and a change meet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::calico3) struct Objects(BTreeMap<ObjectKey, Stored>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Stored {
    object: Arc<Object>,
    /// What a Node says about BGP: a change of one needs that of all, and there may be 5,000.
    node: Option<NodeBgp>,
}

impl Objects {
    pub(in crate::calico3) fn insert(&mut self, object: impl Into<Arc<Object>>) {
        let object = object.into();
        let node = (object.key.kind == Kind::Node).then(|| NodeBgp::of(&object));
        self.0.insert(object.key.clone(), Stored { object, node });
    }

    pub(in crate::calico3) fn remove(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }

    pub(in crate::calico3) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the objects of a kind, sorted by namespace and name.
    pub(in crate::calico3) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        self.stored(kind).map(|stored| &*stored.object)
    }

    fn stored(&self, kind: Kind) -> impl Iterator<Item = &Stored> {
        let first = ObjectKey { kind, namespace: None, name: String::new() };
        self.0.range(first..).take_while(move |(key, _)| key.kind == kind).map(|(_, stored)| stored)
    }

    /// Returns the Nodes with what they say about BGP, sorted by name.
    pub(in crate::calico3) fn nodes(&self) -> impl Iterator<Item = (&Object, &NodeBgp)> {
        self.stored(Kind::Node).filter_map(|stored| Some((&*stored.object, stored.node.as_ref()?)))
    }

    /// Returns an object without namespace by name.
    pub(in crate::calico3) fn get(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.0.get(&ObjectKey::global(kind, name)).map(|stored| &*stored.object)
    }
}

impl Objects {
    /// Returns the newest revision of some objects; 0 if none of them is kept.
    pub(in crate::calico3) fn newest(&self, keys: &[ObjectKey]) -> u64 {
        keys.iter().filter_map(|key| self.0.get(key)).map(|stored| stored.object.revision).max().unwrap_or(0)
    }
}
