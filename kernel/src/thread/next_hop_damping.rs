//! Damping: next hops whose reachability changes too often are reported as unreachable for a while.
//!
//! Reported reachability determines the paths that BGP selects, and learned routes determine how next hops
//! resolve. If such decisions are made one after the other, they converge. But two paths that would each
//! resolve over the other's route may both be selected, and both be dropped, again and again, if both are
//! decided at the same time. Holding a next hop down ends that; several holds end at different times. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tortie_net::ScopedAddr;

/// Maximum number of changes within [`WINDOW`].
const CHANGES_MAX: u32 = 8;
const WINDOW: Duration = Duration::from_secs(5);
/// Duration of a hold, and the extra time per hold that is already running.
const HOLD: Duration = Duration::from_secs(10);
const STAGGER: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Changes {
    reachable: bool,
    since: Instant,
    count: u32,
    held: Option<Instant>,
}

/// The reported next hops.
#[derive(Debug, Default)]
pub(super) struct NextHopDamping {
    hops: BTreeMap<ScopedAddr, Changes>,
}

impl NextHopDamping {
    /// Decides on a report for a next hop that is or was reached over learned routes. `false` means that it
    /// must be reported as unreachable.
    #[must_use]
    pub(super) fn admits(&mut self, addr: ScopedAddr, reachable: bool, now: Instant) -> bool {
        let held = self.hops.values().filter(|hop| hop.held.is_some()).count();
        let hop = self.hops.entry(addr).or_insert(Changes { reachable, since: now, count: 0, held: None });
        if hop.held.is_some_and(|until| now < until) {
            hop.reachable = reachable;
            return !reachable;
        }
        hop.held = None;
        if now > hop.since + WINDOW {
            (hop.since, hop.count) = (now, 0);
        }
        if std::mem::replace(&mut hop.reachable, reachable) != reachable {
            hop.count += 1;
        }
        if hop.count >= CHANGES_MAX && reachable {
            let stagger = STAGGER * u32::try_from(held).unwrap_or(u32::MAX).min(60);
            hop.held = Some(now + HOLD + stagger);
            hop.count = 0;
            return false;
        }
        true
    }

    /// Forgets a next hop that is no longer tracked.
    pub(super) fn forget(&mut self, addr: ScopedAddr) {
        self.hops.remove(&addr);
    }

    /// Returns the time of the next [`NextHopDamping::released`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.hops.values().filter_map(|hop| hop.held).min()
    }

    /// Returns the next hops whose hold has ended, which must be reported as they are.
    pub(super) fn released(&mut self, now: Instant) -> Vec<ScopedAddr> {
        let mut released = Vec::new();
        for (addr, hop) in &mut self.hops {
            if hop.held.is_some_and(|until| until <= now) {
                hop.held = None;
                released.push(*addr);
            }
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_next_hop_that_comes_and_goes_without_end_is_held_and_others_are_not() {
        let start = Instant::now();
        let [a, b]: [ScopedAddr; 2] = ["10.8.0.1".parse().unwrap(), "10.9.0.1".parse().unwrap()];
        let mut damping = NextHopDamping::default();
        let millis = |n: u64| start + Duration::from_millis(n);
        // Changes at this rate cause no hold.
        for n in 0..100 {
            assert!(damping.admits(a, n % 2 == 0, start + WINDOW * 2 * n / 3), "{n}");
        }
        let start_of = |n: u64| millis(1_000_000 + n);
        let mut held = None;
        for n in 0..100 {
            let reachable = n % 2 == 0;
            let both = [a, b].map(|addr| damping.admits(addr, reachable, start_of(n)));
            if both == [false; 2] && reachable {
                held = Some(n);
                break;
            }
        }
        assert!(held.is_some_and(|n| n <= u64::from(CHANGES_MAX) + 1), "{held:?}");
        assert!(damping.admits(a, false, start_of(200)), "unreachable is what it is reported as anyway");
        assert!(!damping.admits(a, true, start_of(201)));
        // The holds end one after the other.
        let first = damping.deadline().unwrap();
        assert_eq!(damping.released(first).len(), 1);
        let second = damping.deadline().unwrap();
        assert!(second >= first + STAGGER / 2);
        assert_eq!(damping.released(second).len(), 1);
        assert!(
            damping.deadline().is_none()
                && damping.admits(a, true, second)
                && damping.admits(b, true, second)
        );
        damping.forget(a);
        assert_eq!(damping.hops.len(), 1);
    }
}
