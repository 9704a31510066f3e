//! Evidence that a restarting peer, whose routes are kept (RFC 4724), does not forward; the routes are then
//! removed.
//!
//! A link that is down removes them when the session ends ([`super::Fallover`]). This module evaluates
//! connection attempts and BFD. A neighbour on a connected network that does not answer ARP or neighbour
//! discovery is absent. A neighbour whose kernel refuses connections may be restarting only its BGP process,
//! which takes seconds; after [`REFUSED`] it is more likely a router that starts with an empty table. If BFD
//! does not come back, the path is broken.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tortie_bgp::PeerId;

/// Time for which a neighbour may refuse connections and still counts as forwarding.
const REFUSED: Duration = Duration::from_secs(10);
/// Time for which BFD may be down while a neighbour restarts.
const BFD_AWAY: Duration = Duration::from_secs(10);

/// Outcome of a failed connection attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dial {
    /// The neighbour answered with RST.
    Refused,
    /// No neighbour answers for the address.
    NoNeighbour,
    /// Any other error.
    Other,
}

impl Dial {
    pub(crate) fn of(error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Self::Refused,
            Some(libc::EHOSTUNREACH) => Self::NoNeighbour,
            _ => Self::Other,
        }
    }
}

/// Evidence collected since each peer's session ended.
#[derive(Default)]
pub(crate) struct Evidence {
    /// Time of the first refused connection, by peer.
    refused: BTreeMap<PeerId, Instant>,
    /// BFD sessions that went down, oldest first.
    bfd: VecDeque<(Instant, PeerId)>,
}

impl Evidence {
    /// Processes a failed connection attempt; `on_link` means to a neighbour on a connected network. Returns
    /// true if the neighbour does not forward.
    #[must_use]
    pub(crate) fn dial_failed(&mut self, peer: PeerId, dial: Dial, on_link: bool, now: Instant) -> bool {
        match dial {
            _ if !on_link => false,
            Dial::NoNeighbour => true,
            Dial::Refused => now >= *self.refused.entry(peer).or_insert(now) + REFUSED,
            Dial::Other => false,
        }
    }

    /// Clears the evidence: the session is established, or the peer is no longer configured.
    pub(crate) fn clear(&mut self, peer: PeerId) {
        self.refused.remove(&peer);
    }

    /// Records that the BFD session of a peer went down.
    pub(crate) fn bfd_lost(&mut self, peer: PeerId, now: Instant) {
        self.bfd.push_back((now + BFD_AWAY, peer));
    }

    /// Returns the time at which [`Self::due`] may return a peer.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.bfd.front().map(|(at, _)| *at)
    }

    /// Returns peers whose BFD session went down long enough ago; if it is still down, they do not forward.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<PeerId> {
        let mut due = Vec::new();
        while let Some((_, peer)) = self.bfd.pop_front_if(|(at, _)| *at <= now) {
            due.push(peer);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_that_nothing_is_forwarded_is_evidence() {
        let errno = std::io::Error::from_raw_os_error;
        let refused = || Dial::of(&errno(libc::ECONNREFUSED));
        let second = Duration::from_secs(1);
        // Error, on-link, times of the attempts in seconds, and true if the last one is evidence.
        let table: [(i32, bool, &[u32], bool); 9] = [
            (libc::EHOSTUNREACH, true, &[3], true),
            (libc::EHOSTUNREACH, false, &[3, 30, 60], false),
            (libc::ECONNREFUSED, true, &[1], false),
            (libc::ECONNREFUSED, true, &[1, 3, 7], false),
            (libc::ECONNREFUSED, true, &[1, 3, 7, 11], true),
            (libc::ECONNREFUSED, false, &[1, 3, 7, 15, 31], false),
            (libc::ETIMEDOUT, true, &[10, 30, 60], false),
            (libc::EADDRNOTAVAIL, true, &[1, 30], false),
            (libc::ENETUNREACH, true, &[1, 30], false),
        ];
        let start = Instant::now();
        for (error, on_link, times, expected) in table {
            let mut evidence = Evidence::default();
            let seen = times.iter().map(|at| {
                evidence.dial_failed(PeerId(1), Dial::of(&errno(error)), on_link, start + second * *at)
            });
            let seen: Vec<bool> = seen.collect();
            assert_eq!(seen.last(), Some(&expected), "{error} {on_link} {times:?}");
            assert!(seen.iter().rev().skip(1).all(|seen| !seen), "{error} {on_link} {times:?}: {seen:?}");
        }
        let mut evidence = Evidence::default();
        assert!(!evidence.dial_failed(PeerId(1), refused(), true, start));
        evidence.clear(PeerId(1));
        assert!(!evidence.dial_failed(PeerId(1), refused(), true, start + REFUSED), "it was up meanwhile");
        evidence.bfd_lost(PeerId(2), start);
        assert_eq!((evidence.deadline(), evidence.due(start)), (Some(start + BFD_AWAY), vec![]));
        assert_eq!(evidence.due(start + BFD_AWAY), [PeerId(2)]);
        assert_eq!((evidence.deadline(), evidence.due(start + BFD_AWAY)), (None, vec![]));
    }
}
