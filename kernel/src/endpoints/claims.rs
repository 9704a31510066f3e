//! Claims of endpoints on prefixes. Almost every prefix is claimed by one endpoint, and that case needs no
//! allocation.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

/// The endpoints that claim each prefix.
#[derive(Debug, Default)]
pub(super) struct PrefixClaims {
    keys: BTreeMap<Cidr, SmallVec<[EndpointKey; 1]>>,
    v4_and_v6: [usize; 2],
}

impl PrefixClaims {
    pub(super) fn add(&mut self, prefix: Cidr, key: &EndpointKey) {
        let keys = self.keys.entry(prefix).or_default();
        if keys.is_empty() {
            keys.push(key.clone());
            self.count(&prefix, |n| n + 1);
        } else if !keys.contains(key) {
            keys.push(key.clone());
        }
    }

    pub(super) fn remove(&mut self, prefix: &Cidr, key: &EndpointKey) {
        if let Some(keys) = self.keys.get_mut(prefix) {
            keys.retain(|k| k != key);
            if keys.is_empty() {
                self.keys.remove(prefix);
                self.count(prefix, |n| n.saturating_sub(1));
            }
        }
    }

    /// Returns the endpoints that claim a prefix, in no order.
    pub(super) fn of(&self, prefix: &Cidr) -> &[EndpointKey] {
        self.keys.get(prefix).map_or(&[], SmallVec::as_slice)
    }

    /// Returns true if any prefix of this family is claimed.
    pub(super) fn any(&self, v4: bool) -> bool {
        self.v4_and_v6.get(usize::from(!v4)).is_some_and(|count| *count > 0)
    }

    fn count(&mut self, prefix: &Cidr, change: impl FnOnce(usize) -> usize) {
        if let Some(count) = self.v4_and_v6.get_mut(usize::from(!prefix.is_v4())) {
            *count = change(*count);
        }
    }
}
