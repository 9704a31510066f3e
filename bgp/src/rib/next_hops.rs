//! Next hops of attribute sets, and their resolution by the embedder.

use std::collections::HashMap;

use tortie_net::{Cidr, HashKey, ScopedAddr};

use super::pool::Pool;
use crate::api::NextHopState;
use crate::types::Family;

/// Number that stands for no next hop, as for local routes.
pub(crate) const NO_HOP: u32 = u32::MAX;

#[derive(Debug, Clone, Default)]
struct NextHopEntry {
    address: Option<ScopedAddr>,
    refs: u32,
    state: Option<NextHopState>,
    /// State for routes to these prefixes; `state` itself may depend on routes to them.
    within: Vec<(Cidr, NextHopState)>,
    /// Changed since the last complete reevaluation began.
    dirty: bool,
    /// Slots queued until the next hop is resolved. `None`: too many; a reevaluation is required.
    waiting: Option<Vec<(Family, u32)>>,
}

impl NextHopEntry {
    fn state_within(&self, prefix: Cidr) -> Option<NextHopState> {
        let within = self.within.iter().find(|(within, _)| *within == prefix);
        within.map(|(_, state)| *state).or(self.state)
    }
}

/// Maximum number of slots queued per unresolved next hop.
const WAITING_MAX: usize = 64;

/// Effect of a resolution.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextHopUpdate {
    /// No change.
    Same,
    /// These slots have to be decided again.
    Slots(Vec<(Family, u32)>),
    /// All routes have to be checked.
    All,
}

/// All next hops, reference-counted by the attribute sets.
#[derive(Debug, Clone)]
pub(crate) struct NextHopTable {
    pool: Pool<NextHopEntry>,
    by_address: HashMap<ScopedAddr, u32, HashKey>,
    /// New next hops that the embedder has to resolve.
    pub(crate) track: Vec<ScopedAddr>,
    /// Next hops that may have lost their last reference.
    idle: Vec<u32>,
    dirty: Vec<u32>,
    unanswered: usize,
}

impl NextHopTable {
    /// Creates an empty table.
    pub(crate) fn new(key: HashKey) -> Self {
        Self {
            pool: Pool::default(),
            by_address: HashMap::with_hasher(key),
            track: Vec::new(),
            idle: Vec::new(),
            dirty: Vec::new(),
            unanswered: 0,
        }
    }

    pub(crate) fn retain(&mut self, address: ScopedAddr) -> u32 {
        if let Some(id) = self.by_address.get(&address)
            && let Some(hop) = self.pool.get_mut(*id)
        {
            hop.refs += 1;
            return *id;
        }
        let hop = NextHopEntry {
            address: Some(address),
            refs: 1,
            state: None,
            within: Vec::new(),
            dirty: false,
            waiting: Some(Vec::new()),
        };
        let id = self.pool.insert(hop);
        self.unanswered += 1;
        self.by_address.insert(address, id);
        self.track.push(address);
        id
    }

    pub(crate) fn release(&mut self, id: u32) {
        if let Some(hop) = self.pool.get_mut(id) {
            hop.refs = hop.refs.saturating_sub(1);
            if hop.refs == 0 {
                self.idle.push(id);
            }
        }
    }

    /// Removes unreferenced next hops and calls `gone` for each. Called between inputs, so that a next hop
    /// that disappears and reappears within one input is not resolved again.
    pub(crate) fn collect(&mut self, mut gone: impl FnMut(ScopedAddr)) {
        while let Some(id) = self.idle.pop() {
            if self.pool.get(id).is_some_and(|h| h.refs == 0 && h.address.is_some())
                && let Some(hop) = self.pool.remove(id)
                && let Some(address) = hop.address
            {
                self.unanswered -= usize::from(hop.state.is_none());
                self.by_address.remove(&address);
                gone(address);
            }
        }
    }

    /// Sets the resolution of a next hop.
    pub(crate) fn set(&mut self, address: ScopedAddr, state: NextHopState) -> NextHopUpdate {
        let Some(id) = self.by_address.get(&address) else { return NextHopUpdate::Same };
        let Some(hop) = self.pool.get_mut(*id) else { return NextHopUpdate::Same };
        let old = hop.state.replace(state);
        if old.is_none() {
            self.unanswered = self.unanswered.saturating_sub(1);
        }
        match (old, hop.waiting.take()) {
            (Some(old), _) if old == state => return NextHopUpdate::Same,
            (None, _) if state == NextHopState::Unreachable => return NextHopUpdate::Same,
            (None, Some(slots)) => return NextHopUpdate::Slots(slots),
            _ => {}
        }
        if !hop.dirty {
            hop.dirty = true;
            self.dirty.push(*id);
        }
        NextHopUpdate::All
    }

    /// Sets the state for routes to certain prefixes; for all others [`NextHopTable::set`] applies. Returns
    /// the prefixes whose state may have changed.
    pub(crate) fn set_within(&mut self, address: ScopedAddr, within: Vec<(Cidr, NextHopState)>) -> Vec<Cidr> {
        let id = self.by_address.get(&address);
        let Some(hop) = id.and_then(|id| self.pool.get_mut(*id)) else { return Vec::new() };
        if hop.within == within {
            return Vec::new();
        }
        let old = std::mem::replace(&mut hop.within, within);
        old.iter().chain(&hop.within).map(|(prefix, _)| *prefix).collect()
    }

    /// Returns the number of next hops not resolved yet.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Queues a slot for the first resolution of a next hop; no effect if it is resolved.
    #[inline]
    pub(crate) fn wait(&mut self, id: u32, family: Family, slot: u32) {
        let Some(hop) = self.pool.get_mut(id) else { return };
        if hop.state.is_some() {
            return;
        }
        if let Some(waiting) = &mut hop.waiting {
            waiting.push((family, slot));
            if waiting.len() > WAITING_MAX {
                hop.waiting = None;
            }
        }
    }

    /// Marks all changes as processed, after a complete reevaluation.
    pub(crate) fn clean(&mut self) {
        for id in self.dirty.drain(..) {
            if let Some(hop) = self.pool.get_mut(id) {
                hop.dirty = false;
            }
        }
    }

    pub(crate) fn is_dirty(&self, id: u32) -> bool {
        self.pool.get(id).is_some_and(|h| h.dirty)
    }

    /// Returns the resolution. `None` until the embedder answers.
    pub(crate) fn state(&self, id: u32) -> Option<NextHopState> {
        self.pool.get(id)?.state
    }

    /// Returns the metric of a next hop for a route to this prefix; 0 for local routes. `None` if it is
    /// unreachable or unresolved.
    #[inline]
    pub(crate) fn metric(&self, id: u32, prefix: impl FnOnce() -> Cidr) -> Option<u32> {
        if id == NO_HOP {
            return Some(0);
        }
        let hop = self.pool.get(id)?;
        let state = if hop.within.is_empty() { hop.state? } else { hop.state_within(prefix())? };
        match state {
            NextHopState::Reachable { metric, .. } => Some(metric),
            NextHopState::Unreachable => None,
        }
    }
}
