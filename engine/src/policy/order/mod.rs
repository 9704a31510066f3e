//! Order in which tiers and policies act, and the end actions of tiers.
//!
//! In a v1 store, tiers without order come last, and equal orders are sorted by name. A Calico 3 store does
//! the same with its tier objects; the policies of a tier without an object act after all of those, and end
//! in deny. Equal orders of policies are sorted there by the text of name, namespace and kind.

mod object;

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_config::key::Key;
use tortie_config::resource::{EndAction, Order, Tier};
use tortie_config::{Dialect, Resource};

use crate::model::Model;

pub use object::PolicyObject;

/// Tiers of a store, as far as they order policies.
#[derive(Debug, Clone, Default)]
pub struct TierOrder {
    dialect: Dialect,
    tiers: BTreeMap<Arc<str>, Tier>,
}

/// Place of a policy in the order of action, for sorting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyPlace {
    /// True for a tier without an object in a Calico 3 store.
    tier_is_missing: bool,
    tier: Place,
    policy: Place,
}

/// Place by order, then by name; those without order come last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    has_no_order: bool,
    order: Option<Order>,
    name: Box<str>,
}

impl TierOrder {
    /// Creates the order of a store without tiers.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, tiers: BTreeMap::new() }
    }

    /// Collects the tiers of a model.
    #[must_use]
    pub fn of(model: &Model) -> Self {
        let mut order = Self::new(model.dialect());
        for (key, resource) in model.policy_resources() {
            order.set(key, Some(resource));
        }
        order
    }

    /// Applies the value of a key, if it is that of a tier. Returns true if it is.
    pub(super) fn set(&mut self, key: &Key, resource: Option<&Resource>) -> bool {
        let ((Key::TierMetadata { tier: name }, Dialect::V1) | (Key::Tier { tier: name }, Dialect::V3)) =
            (key, self.dialect)
        else {
            return false;
        };
        let tier = match resource {
            Some(Resource::Tier(tier)) => Some(*tier),
            Some(Resource::TierMetadata(metadata)) => {
                Some(Tier { order: metadata.order, end: EndAction::Deny })
            }
            _ => None,
        };
        match tier {
            Some(tier) => drop(self.tiers.insert(name.as_str().into(), tier)),
            None => drop(self.tiers.remove(name.as_str())),
        }
        true
    }

    /// Returns the data model of the store.
    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Replaces the data model of the store, and forgets the tiers of another one. Returns true if it differs.
    pub(super) fn set_dialect(&mut self, dialect: Dialect) -> bool {
        let differs = self.dialect != dialect;
        if differs {
            *self = Self::new(dialect);
        }
        differs
    }

    /// Returns the action at the end of a tier.
    #[must_use]
    pub fn end(&self, tier: &str) -> EndAction {
        self.tiers.get(tier).map_or(EndAction::Deny, |tier| tier.end)
    }

    /// Returns the place of a policy. `name` is that of its key.
    #[must_use]
    pub fn place(&self, tier: &str, name: &str, order: Option<Order>) -> PolicyPlace {
        let known = self.tiers.get(tier);
        let of_v3 = self.dialect == Dialect::V3;
        let name = if of_v3 { PolicyObject::of(name).sort_text().into() } else { name.into() };
        PolicyPlace {
            tier_is_missing: of_v3 && known.is_none(),
            tier: Place::of(known.and_then(|known| known.order), tier.into()),
            policy: Place::of(order, name),
        }
    }
}

impl Place {
    fn of(order: Option<Order>, name: Box<str>) -> Self {
        Self { has_no_order: order.is_none(), order, name }
    }
}
