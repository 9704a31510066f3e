//! Who asks for which prefix. One endpoint is the rule, so that is what costs nothing.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tortie_config::Cidr;
use tortie_config::key::EndpointKey;

/// Endpoints by the prefixes that they ask for.
#[derive(Debug, Default)]
pub(super) struct Claims(FxHashMap<Cidr, SmallVec<[EndpointKey; 1]>>);

impl Claims {
    pub(super) fn add(&mut self, prefix: Cidr, key: &EndpointKey) {
        let keys = self.0.entry(prefix).or_default();
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }

    pub(super) fn remove(&mut self, prefix: &Cidr, key: &EndpointKey) {
        if let Some(keys) = self.0.get_mut(prefix) {
            keys.retain(|k| k != key);
            if keys.is_empty() {
                self.0.remove(prefix);
            }
        }
    }

    /// Who asks for a prefix, in no order.
    pub(super) fn of(&self, prefix: &Cidr) -> &[EndpointKey] {
        self.0.get(prefix).map_or(&[], SmallVec::as_slice)
    }

    /// Whether any IPv4 prefix is asked for.
    pub(super) fn any_v4(&self) -> bool {
        self.0.keys().any(Cidr::is_v4)
    }
}
