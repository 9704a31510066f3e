//! Next hops whose reachability changes all the time are reported as unreachable for a while.
//!
//! What is reported decides which paths BGP uses, and learned routes decide how next hops are reached. Decided one after the other that comes to
//! rest, but two paths that would each rest on the other one's route can both be taken, and both be dropped, again and again,
//! where both are decided at the same time. A next hop that is held ends that; holds of several end at different times. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tortie_net::ScopedAddr;

/// So many changes within [`WINDOW`] are too many.
const CHANGES_MAX: u32 = 8;
const WINDOW: Duration = Duration::from_secs(5);
/// How long a next hop is held, and how much longer the next one.
const HOLD: Duration = Duration::from_secs(10);
const STAGGER: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Changes {
    reachable: bool,
    since: Instant,
    count: u32,
    held: Option<Instant>,
}

/// The next hops that were reported.
#[derive(Debug, Default)]
pub(super) struct NextHopDamping {
    hops: BTreeMap<ScopedAddr, Changes>,
}

impl NextHopDamping {
    /// A next hop that is reached by learned routes, or was, is to be reported. `false`: it is to be reported as unreachable instead.
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

    /// Nobody follows it any more.
    pub(super) fn forget(&mut self, addr: ScopedAddr) {
        self.hops.remove(&addr);
    }

    /// When [`NextHopDamping::released`] has something.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.hops.values().filter_map(|hop| hop.held).min()
    }

    /// Next hops that are held no longer: they are to be reported as they are.
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
        // Seldom is often enough for no hold.
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
        // One after the other.
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
