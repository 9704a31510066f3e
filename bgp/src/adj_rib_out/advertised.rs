//! Adj-RIB-Out of an update group: the announcement of each table slot, stored in pages, so that a group with
//! few announcements is small.

use std::sync::Arc;

/// Slots per page.
pub(crate) const PAGE: u32 = if crate::types::TINY { 16 } else { 1024 };

/// State of a slot that was never announced.
pub(crate) const NEVER: u32 = 0;
/// Flag: not announced now; the lower bits are the number of the export gate that withholds it, if any.
const NOT: u32 = 1 << 31;
/// Flag: announced before, so a lagging member may still have to withdraw it.
const WAS: u32 = 1 << 30;

/// State of a slot: [`NEVER`], the number of an attribute set plus 1, or a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(u32);

impl State {
    pub(crate) fn announced(out: u32) -> Self {
        Self(out + 1)
    }

    /// Returns the state of a route that is not announced, because of an export gate or for another reason.
    pub(crate) fn withheld(gate: Option<u8>) -> Self {
        Self(gate.map_or(NEVER, |g| NOT | (u32::from(g) + 1)))
    }

    /// Returns the announced attribute set.
    pub(crate) fn attr_set(self) -> Option<u32> {
        if self.0 & NOT != 0 { None } else { self.0.checked_sub(1) }
    }

    /// Returns the export gate that withholds the route.
    pub(crate) fn gate(self) -> Option<u8> {
        if self.0 & NOT == 0 {
            return None;
        }
        u8::try_from((self.0 & !(NOT | WAS)).checked_sub(1)?).ok()
    }

    /// Returns true if lagging members have to be sent a withdrawal.
    pub(crate) fn was(self) -> bool {
        self.0 & NOT != 0 && self.0 & WAS != 0
    }

    fn after(self, old: Self) -> Self {
        let was = old.attr_set().is_some() || old.was();
        if self.attr_set().is_none() && was { Self(self.0 | NOT | WAS) } else { self }
    }

    /// Returns true if both states are equal except for past announcements.
    pub(crate) fn same(self, other: Self) -> bool {
        self.attr_set() == other.attr_set() && self.gate() == other.gate()
    }
}

/// The slots of one page.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    states: Box<[u32]>,
    announced: u16,
    used: u16,
    /// Changes with each modification.
    pub(crate) version: u32,
}

/// All slots. Cloning is cheap, because unchanged pages are shared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Advertised {
    pages: Vec<Option<Arc<Page>>>,
    announced: u32,
    versions: u32,
}

fn split(slot: u32) -> (usize, usize) {
    ((slot / PAGE) as usize, (slot % PAGE) as usize)
}

impl Advertised {
    pub(crate) fn get(&self, slot: u32) -> State {
        let (page, item) = split(slot);
        let page = self.pages.get(page).and_then(Option::as_ref);
        State(page.and_then(|p| p.states.get(item)).copied().unwrap_or(NEVER))
    }

    /// Sets the state of a slot. Returns the previous state.
    pub(crate) fn set(&mut self, slot: u32, state: State) -> State {
        let old = self.get(slot);
        self.put(slot, old, state.after(old));
        old
    }

    /// Clears a slot that was freed, including its past. Returns the previous state.
    pub(crate) fn clear(&mut self, slot: u32) -> State {
        let old = self.get(slot);
        self.put(slot, old, State(NEVER));
        old
    }

    fn put(&mut self, slot: u32, old: State, new: State) {
        if old == new {
            return;
        }
        let (number, item) = split(slot);
        if self.pages.len() <= number {
            self.pages.resize(number + 1, None);
        }
        self.versions = self.versions.wrapping_add(1);
        let Some(place) = self.pages.get_mut(number) else { return };
        let page = place.get_or_insert_with(|| {
            Arc::new(Page {
                states: vec![NEVER; PAGE as usize].into_boxed_slice(),
                announced: 0,
                used: 0,
                version: 0,
            })
        });
        let page = Arc::make_mut(page);
        if let Some(state) = page.states.get_mut(item) {
            *state = new.0;
        }
        let step = |n: u16, before: bool, after: bool| match (before, after) {
            (false, true) => n + 1,
            (true, false) => n.saturating_sub(1),
            _ => n,
        };
        let (before, after) = (old.attr_set().is_some(), new.attr_set().is_some());
        page.announced = step(page.announced, before, after);
        page.used = step(page.used, old.0 != NEVER, new.0 != NEVER);
        page.version = self.versions;
        match (before, after) {
            (false, true) => self.announced += 1,
            (true, false) => self.announced = self.announced.saturating_sub(1),
            _ => {}
        }
        if page.used == 0 {
            *place = None;
        }
    }

    /// Returns a page that has an announced slot.
    pub(crate) fn page(&self, number: u32) -> Option<&Page> {
        self.pages.get(number as usize)?.as_deref().filter(|p| p.announced > 0)
    }

    /// Returns the number of announced slots.
    pub(crate) fn announced(&self) -> u32 {
        self.announced
    }

    /// Iterates over all slots that are or were announced.
    pub(crate) fn traces(&self) -> impl Iterator<Item = u32> {
        let pages = (0u32..).zip(&self.pages).filter_map(|(n, p)| Some((n, p.as_deref()?)));
        pages.flat_map(|(n, page)| {
            let states = (n * PAGE..).zip(&page.states).map(|(slot, s)| (slot, State(*s)));
            states.filter(|(_, s)| s.attr_set().is_some() || s.was()).map(|(slot, _)| slot)
        })
    }

    pub(crate) fn memory(&self) -> usize {
        let pages = self.pages.iter().flatten().count();
        self.pages.capacity() * 8 + pages * (PAGE as usize * 4 + 64)
    }
}

impl Page {
    /// Iterates over the announced slots with their attribute sets. `number` is the number of the page.
    pub(crate) fn attr_sets(&self, number: u32) -> impl Iterator<Item = (u32, u32)> {
        (number * PAGE..).zip(&self.states).filter_map(|(slot, s)| Some((slot, State(*s).attr_set()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_remembers_that_it_was_announced() {
        let mut advertised = Advertised::default();
        assert_eq!(advertised.set(5000, State::withheld(Some(2))).attr_set(), None);
        assert!(!advertised.get(5000).was());
        advertised.set(5000, State::announced(0));
        assert_eq!((advertised.get(5000).attr_set(), advertised.announced()), (Some(0), 1));
        let copy = advertised.clone();
        advertised.set(5000, State::withheld(None));
        assert!(advertised.get(5000).was() && advertised.get(5000).attr_set().is_none());
        advertised.set(5000, State::withheld(Some(2)));
        assert!(advertised.get(5000).was());
        assert_eq!(advertised.get(5000).gate(), Some(2));
        assert!(advertised.get(5000).same(State::withheld(Some(2))));
        assert_eq!(copy.get(5000).attr_set(), Some(0));
        advertised.clear(5000);
        assert_eq!(advertised.get(5000), State(NEVER));
        assert!(advertised.pages.iter().all(Option::is_none));
    }
}
