//! Two BFD ends and the link between them, on a virtual clock.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tortie_bgp::bfd::{Bfd, Change, Endpoint, Packet, Parameters, Path, Received, Refused, State, Status};

pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) fn address(end: usize) -> IpAddr {
    IpAddr::from([192, 0, 2, 1 + u8::try_from(end).unwrap()])
}

/// Returns the endpoint of an end's session with the other end.
pub(crate) fn endpoint(end: usize) -> Endpoint {
    Endpoint { remote: address(1 - end), local: Some(address(end)), interface: 0, path: Path::SingleHop }
}

pub(crate) fn times(interval: u64, multiplier: u8) -> Parameters {
    Parameters::new(MS * u32::try_from(interval).unwrap(), multiplier)
}

/// Returns a datagram of the other end as `end` receives it.
pub(crate) fn datagram(end: usize, payload: &[u8]) -> Received<'_> {
    Received {
        path: Path::SingleHop,
        source: address(1 - end),
        destination: address(end),
        interface: 2,
        ttl: Some(255),
        payload,
    }
}

/// A sent packet, with time and sender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) from: usize,
    pub(crate) packet: Packet,
}

pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) ends: [Bfd; 2],
    pub(crate) changes: [Vec<(Instant, Change)>; 2],
    pub(crate) sent: Vec<Sent>,
    pub(crate) delay: Duration,
    /// Returns true if the next packet from this end is lost.
    pub(crate) lose: Box<dyn FnMut(usize) -> bool>,
    flying: BTreeMap<(Instant, u64), (usize, [u8; 24])>,
    count: u64,
}

impl Net {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            now,
            ends: [Bfd::new(1), Bfd::new(2)],
            changes: [Vec::new(), Vec::new()],
            sent: Vec::new(),
            delay: MS,
            lose: Box::new(|_| false),
            flying: BTreeMap::new(),
            count: 0,
        }
    }

    /// Creates both ends with these parameters.
    pub(crate) fn both(a: Parameters, b: Parameters) -> Self {
        let mut net = Self::new();
        net.ends[0].set(endpoint(0), a, net.now);
        net.ends[1].set(endpoint(1), b, net.now);
        net
    }

    /// Advances the clock.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut iterations = 0;
        loop {
            self.flush();
            let next = self
                .flying
                .keys()
                .map(|(at, _)| *at)
                .chain(self.ends.iter().filter_map(Bfd::poll_timeout))
                .min();
            let Some(next) = next.filter(|at| *at <= end) else { break };
            iterations += 1;
            assert!(iterations < 2_000_000, "time does not advance");
            self.now = self.now.max(next);
            while let Some(first) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to, payload) = first.remove();
                let _ = self.ends[to].receive(&datagram(to, &payload), self.now);
            }
            for bfd in &mut self.ends {
                bfd.handle_timeout(self.now);
            }
        }
        self.now = end;
    }

    fn flush(&mut self) {
        for end in 0..2 {
            while let Some(transmit) = self.ends[end].poll_transmit(self.now) {
                let packet = Packet::decode(&transmit.payload).unwrap();
                self.sent.push(Sent { at: self.now, from: end, packet });
                if !(self.lose)(end) {
                    self.count += 1;
                    self.flying.insert((self.now + self.delay, self.count), (1 - end, transmit.payload));
                }
            }
            while let Some(change) = self.ends[end].poll_event() {
                self.changes[end].push((self.now, change));
            }
        }
    }

    pub(crate) fn status(&self, end: usize) -> Status {
        self.ends[end].status(&endpoint(end), self.now).unwrap()
    }

    pub(crate) fn states(&self) -> [State; 2] {
        [self.status(0).state, self.status(1).state]
    }

    pub(crate) fn refused(&self, end: usize, why: Refused) -> u64 {
        self.ends[end].refused().find(|(r, _)| *r == why).unwrap().1
    }

    /// Returns the intervals between an end's periodic packets during the next `time`.
    pub(crate) fn gaps(&mut self, end: usize, time: Duration) -> Vec<Duration> {
        let from = self.sent.len();
        self.run(time);
        let at: Vec<Instant> =
            self.sent[from..].iter().filter(|s| s.from == end && !s.packet.r#final).map(|s| s.at).collect();
        at.windows(2).map(|w| w[1] - w[0]).collect()
    }

    /// Passes a forged packet to an end.
    pub(crate) fn inject(&mut self, end: usize, packet: &Packet) -> Result<(), Refused> {
        let done = self.ends[end].receive(&datagram(end, &packet.encode()), self.now);
        self.flush();
        done
    }
}
