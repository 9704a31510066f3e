//! Keys of peers and ranges: derives the guard from an intent and reports problems with keys.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tortie_engine::routing::{PeerIntent, Persistent};

use crate::speaker::faults::PeerProblem;
use crate::speaker::sockets::guard::Guard;
use crate::speaker::sockets::secret::Key;

/// Problems with keys by name of the peer or range, as last reported.
#[derive(Clone, Default)]
pub(crate) struct KeyProblems(BTreeMap<Arc<str>, String>);

impl KeyProblems {
    /// Removes problems of peers that are no longer configured; returns their ends to report.
    pub(crate) fn keep<T>(&mut self, wanted: &Persistent<String, T>) -> impl Iterator<Item = PeerProblem> {
        self.0.extract_if(.., |name, _| !wanted.contains_key(&**name)).map(|(name, _)| (name, None))
    }

    /// Sets or ends the problem of a peer; returns the transition to report, if any.
    pub(crate) fn set(&mut self, name: &Arc<str>, problem: Option<String>) -> Option<PeerProblem> {
        if problem.as_ref() == self.0.get(name) {
            return None;
        }
        match &problem {
            Some(text) => self.0.insert(name.clone(), text.clone()),
            None => self.0.remove(name),
        };
        Some((name.clone(), problem))
    }
}

/// True if a session cannot continue with the new guard: it gains or loses a key, or the key is a TCP-AO key,
/// which one side alone cannot change.
pub(crate) fn restarts(old: &Guard, new: &Guard) -> bool {
    let fixed = |key: &Option<Key>| key.as_ref().is_none_or(|key| key.ao().is_some());
    old.key != new.key && (fixed(&old.key) || fixed(&new.key))
}

/// Returns the guard to use (`None` if no key is usable) and the problem. A key that worked stays in use.
pub(crate) fn guard_of(
    intent: &PeerIntent,
    secrets: &Path,
    old: Option<&Guard>,
) -> (Option<Guard>, Option<String>) {
    let min_ttl = intent.ttl_security.map_or(0, min_ttl);
    let guard = |key| Some(Guard { key, min_ttl, shut: false });
    let key = match (&intent.password, &intent.tcp_ao) {
        (Some(password), _) => Key::read(password, secrets),
        (None, Some(ao)) => Key::read_ao(ao, secrets),
        (None, None) => return (guard(None), None),
    };
    match key {
        Ok(key) => (guard(Some(key)), None),
        Err(text) => (old.and_then(|old| old.key.clone()).and_then(|key| guard(Some(key))), Some(text)),
    }
}

/// RFC 5082, section 3: a packet that crossed at most `hops` links was sent with TTL 255.
fn min_ttl(hops: u8) -> u8 {
    255 - hops.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_become_the_least_ttl() {
        assert_eq!([min_ttl(1), min_ttl(2), min_ttl(255), min_ttl(0)], [255, 254, 1, 255]);
    }
}
