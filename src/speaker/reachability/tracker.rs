//! Addresses that the kernel thread tracks for the speaker thread, each for one or more purposes.

use std::collections::BTreeMap;
use tortie_net::ScopedAddr;

use crate::speaker::facts::SpeakerFact;
use crate::speaker::faults::Reporter;

/// Purpose of tracking an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Next hop of routes, for the BGP core.
    NextHop = 1,
    /// Distance of a peer, which decides between BFD single hop and multihop.
    BfdPath = 2,
    /// Link of a neighbour, for fast external fallover.
    Link = 4,
}

/// All tracked addresses.
pub(crate) struct Tracker {
    /// True if there is a kernel thread.
    kernel: bool,
    /// Purposes of each address, as a bit set.
    purposes: BTreeMap<ScopedAddr, u8>,
}

impl Tracker {
    /// Creates the tracker; without a kernel thread nothing is tracked.
    pub(crate) fn new(kernel: bool) -> Self {
        Self { kernel, purposes: BTreeMap::new() }
    }

    /// True if there is a kernel thread.
    pub(crate) fn has_kernel(&self) -> bool {
        self.kernel
    }

    /// Tracks an address for a purpose. The kernel thread reports its state even if it was tracked already.
    pub(crate) fn track(&mut self, addr: ScopedAddr, purpose: Purpose, reporter: &mut Reporter) {
        if self.kernel {
            *self.purposes.entry(addr).or_default() |= purpose as u8;
            reporter.fact(SpeakerFact::TrackNextHop(addr));
        }
    }

    /// Ends the tracking of an address for this purpose.
    pub(crate) fn untrack(&mut self, addr: ScopedAddr, purpose: Purpose, reporter: &mut Reporter) {
        if !self.kernel {
            return;
        }
        let left = self.purposes.get(&addr).copied().unwrap_or_default() & !(purpose as u8);
        if left == 0 {
            self.purposes.remove(&addr);
            reporter.fact(SpeakerFact::UntrackNextHop(addr));
        } else {
            self.purposes.insert(addr, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn an_address_is_followed_until_its_last_purpose_ends() {
        let facts = Arc::new(Mutex::new(Vec::new()));
        let sink = facts.clone();
        let mut reporter = Reporter::new(Box::new(move |fact| sink.lock().unwrap().push(fact)));
        let addr = "192.0.2.1".parse().unwrap();
        let mut tracker = Tracker::new(true);
        tracker.track(addr, Purpose::NextHop, &mut reporter);
        tracker.track(addr, Purpose::Link, &mut reporter);
        tracker.untrack(addr, Purpose::NextHop, &mut reporter);
        let track = SpeakerFact::TrackNextHop(addr);
        assert_eq!(*facts.lock().unwrap(), [track.clone(), track], "its state is asked for each time");
        tracker.untrack(addr, Purpose::Link, &mut reporter);
        assert_eq!(facts.lock().unwrap().last(), Some(&SpeakerFact::UntrackNextHop(addr)));
        let mut none = Tracker::new(false);
        none.track(addr, Purpose::NextHop, &mut reporter);
        none.untrack(addr, Purpose::NextHop, &mut reporter);
        assert_eq!(facts.lock().unwrap().len(), 3);
    }
}
