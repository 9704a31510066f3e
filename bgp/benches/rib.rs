//! Scenarios of the daemon comparison without sockets: cost of a speaker between octets in and octets out.
//!
//! `A`: 1,000,000 prefixes from one eBGP peer to another, then all withdrawn. `B`: the same 100,000 prefixes
//! from ten iBGP peers to one eBGP peer. `C`: 10,000 prefixes to 200 iBGP receivers. `D`: 1,000 and 5,000
//! iBGP peers with four blocks each, connecting one after the other, and one eBGP observer. Resident memory
//! is printed too.

#![allow(missing_docs, clippy::unwrap_used, clippy::cast_possible_truncation)]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock and its memory")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use tortie_bgp::wire::write_keepalive;
use tortie_bgp::{ConnId, Dial, Event, Input, NextHopState, PeerId, Speaker, Transmit};
use tortie_net::Cidr;

use support::{
    TakeAll, announce, attributes, global, greeting, open, peer, policy, route, session, withdraw,
};

const OUR_AS: u32 = 64512;

fn address(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0aff_0000 + n))
}

/// Builds the feed of the comparison: eight prefixes per attribute set, AS_PATHs of 1 to 6 ASes, a quarter
/// with MED, three quarters with communities.
fn feed(peer: u32, asn: Option<u32>, prefixes: u32, salt: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for set in 0..prefixes.div_ceil(8) {
        let h = (set ^ salt).wrapping_mul(2_654_435_761);
        let mut path: Vec<u32> = asn.into_iter().collect();
        path.extend((u32::from(asn.is_some())..=h % 6).map(|k| 1000 + (h >> k) % 60_000));
        let mut a = attributes(address(peer), &path);
        a.med = h.is_multiple_of(4).then_some(h % 1000);
        let communities: Vec<u32> = (0..h % 4).map(|k| h.wrapping_add(k)).collect();
        a.add_communities(&communities);
        let prefixes = set * 8..(set * 8 + 8).min(prefixes);
        announce(&mut out, &session(asn.is_some()), &a, prefixes.map(nth));
    }
    out
}

fn nth(n: u32) -> (u32, u8) {
    (0x0100_0000 + (n << 8), 24)
}

fn withdrawals(prefixes: u32) -> Vec<u8> {
    let mut out = Vec::new();
    withdraw(&mut out, &session(true), (0..prefixes).map(nth));
    out
}

struct Bench {
    speaker: Speaker,
    now: Instant,
    waiting: Vec<ConnId>,
    /// Octets sent per connection.
    sent: Vec<u64>,
    buf: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        let mut speaker = Speaker::new(global(OUR_AS, 1), policy(TakeAll), now);
        speaker.handle(Input::LocalReady, now);
        Self { speaker, now, waiting: Vec::new(), sent: Vec::new(), buf: Vec::with_capacity(1 << 17) }
    }

    fn events(&mut self) {
        let mut best = Vec::new();
        while let Some(event) = self.speaker.poll_event() {
            match event {
                Event::WantWrite(conn) => self.waiting.push(conn),
                Event::TrackNextHop(a) => {
                    let state = NextHopState::Reachable { metric: 0, on_link: true };
                    self.speaker.handle(Input::NextHop(a, state), self.now);
                }
                Event::BestChanged => {
                    while self.speaker.take_best(1024, &mut best) {
                        black_box(&best);
                        best.clear();
                    }
                }
                _ => {}
            }
        }
    }

    fn give(&mut self, input: Input<'_>) {
        self.speaker.handle(input, self.now);
        self.events();
    }

    /// Writes up to 64 KiB for each connection with output.
    fn transmit(&mut self) {
        for conn in std::mem::take(&mut self.waiting) {
            self.buf.clear();
            let more = self.speaker.poll_transmit(conn, &mut self.buf, 1 << 16, self.now) == Transmit::More;
            if let Some(sent) = self.sent.get_mut(conn.0 as usize) {
                *sent += self.buf.len() as u64;
            }
            if more {
                self.waiting.push(conn);
            }
        }
        self.events();
    }

    fn rest(&mut self) {
        while !self.waiting.is_empty() || self.speaker.poll_timeout().is_some_and(|t| t <= self.now) {
            self.give(Input::Tick);
            self.transmit();
        }
    }

    /// Adds a peer that is configured, connects and reaches Established.
    fn peer(&mut self, n: u32, asn: u32) -> ConnId {
        let mut config = peer(address(n), asn);
        config.dial = Dial::Passive;
        self.give(Input::Peer(PeerId(n), Box::new(config)));
        let conn = ConnId(u64::from(n));
        self.sent.resize(self.sent.len().max(n as usize + 1), 0);
        let local = SocketAddr::new(address(0), 179);
        self.give(Input::Accepted { conn, local, remote: SocketAddr::new(address(n), 40_000) });
        let bytes = greeting(&open(asn, 0x0aff_0000 + n));
        self.give(Input::Data(conn, &bytes));
        self.transmit();
        conn
    }

    /// Passes a whole feed, as fast as the speaker accepts it.
    fn data(&mut self, conn: ConnId, feed: &[u8]) {
        let mut at = 0;
        while at < feed.len() {
            let room = self.speaker.read_room(conn).min(1 << 16).min(feed.len() - at);
            if room > 0 {
                self.give(Input::Data(conn, &feed[at..at + room]));
                at += room;
            } else {
                self.give(Input::Tick);
            }
            self.transmit();
        }
    }
}

/// Returns resident memory in MiB: current and peak.
fn memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |key: &str| {
        let line = text.lines().find(|l| l.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    (of("VmRSS:").unwrap_or(0) / 1024, of("VmHWM:").unwrap_or(0) / 1024)
}

fn scenario_a(prefixes: u32, feed: &[u8], gone: &[u8], print: bool) -> (Duration, Duration) {
    let mut bench = Bench::new();
    let sender = bench.peer(1, 65001);
    bench.peer(2, 65002);
    bench.rest();
    let before = memory().0;
    let start = Instant::now();
    bench.data(sender, feed);
    bench.rest();
    let up = start.elapsed();
    let held = bench.speaker.peer(PeerId(2), bench.now).unwrap().families[0].advertised;
    assert_eq!(held, prefixes);
    let totals = bench.speaker.totals();
    let full = memory();
    let start = Instant::now();
    bench.data(sender, gone);
    bench.rest();
    let down = start.elapsed();
    assert_eq!(bench.speaker.totals().paths, [0, 0]);
    if print {
        println!(
            "A {prefixes}: in and out {up:?}, withdrawn {down:?}; RSS {before} -> {} (peak {}) -> {} MiB, counted {} MiB, {} sets",
            full.0,
            full.1,
            memory().0,
            totals.memory >> 20,
            totals.attribute_sets
        );
    }
    (up, down)
}

fn scenario_b(feeds: &[Vec<u8>], prefixes: u32, print: bool) -> Duration {
    let mut bench = Bench::new();
    let senders: Vec<ConnId> = (1..=10).map(|n| bench.peer(n, OUR_AS)).collect();
    bench.peer(11, 65001);
    bench.rest();
    let start = Instant::now();
    // All feeds in parallel, in steps of 64 KiB.
    let mut at = vec![0; feeds.len()];
    while at.iter().zip(feeds).any(|(at, feed)| *at < feed.len()) {
        for ((at, feed), conn) in at.iter_mut().zip(feeds).zip(&senders) {
            let room = bench.speaker.read_room(*conn).min(1 << 16).min(feed.len() - *at);
            if room > 0 {
                bench.give(Input::Data(*conn, &feed[*at..*at + room]));
                *at += room;
            }
        }
        bench.give(Input::Tick);
        bench.transmit();
    }
    bench.rest();
    let time = start.elapsed();
    let totals = bench.speaker.totals();
    assert_eq!((totals.prefixes[0], totals.paths[0]), (u64::from(prefixes), u64::from(prefixes) * 10));
    if print {
        println!("B: {time:?}, RSS {:?} MiB, counted {} MiB", memory(), totals.memory >> 20);
    }
    time
}

fn scenario_c(feed: &[u8], print: bool) -> Duration {
    let mut bench = Bench::new();
    let sender = bench.peer(1, 65001);
    for n in 2..202 {
        bench.peer(n, OUR_AS);
    }
    bench.rest();
    let start = Instant::now();
    bench.data(sender, feed);
    bench.rest();
    let time = start.elapsed();
    assert!(bench.sent[2..202].iter().all(|s| *s > 40_000 && *s == bench.sent[2]));
    if print {
        println!("C: {time:?}, {} octets to each of 200, RSS {:?} MiB", bench.sent[2], memory());
    }
    time
}

fn scenario_d(peers: u32, print: bool) -> Duration {
    let mut bench = Bench::new();
    let locals: Vec<_> =
        (0..4u32).map(|n| (Cidr::v4(Ipv4Addr::from(0x0a00_0000 + (n << 6)), 26), Some(route()))).collect();
    bench.give(Input::Local(&locals));
    let before = memory().0;
    let start = Instant::now();
    bench.peer(peers + 1, 65001);
    for n in 1..=peers {
        let conn = bench.peer(n, OUR_AS);
        let mut bytes = Vec::new();
        let blocks = (0..4).map(|k| (0x0b00_0000 + ((n * 4 + k) << 6), 26));
        announce(&mut bytes, &session(false), &attributes(address(n), &[]), blocks);
        bench.give(Input::Data(conn, &bytes));
        bench.transmit();
    }
    bench.rest();
    let time = start.elapsed();
    let observer = bench.speaker.peer(PeerId(peers + 1), bench.now).unwrap();
    assert_eq!(observer.families[0].advertised, peers * 4 + 4);
    let one = bench.speaker.peer(PeerId(peers / 2), bench.now).unwrap();
    assert_eq!((one.families[0].advertised, one.families[0].received), (4, 4));
    if print {
        // One idle hour: KEEPALIVEs only.
        let idle = Instant::now();
        let mut keepalives = Vec::new();
        write_keepalive(&mut keepalives);
        for _ in 0..120 {
            bench.now += Duration::from_secs(30);
            for n in 1..=peers + 1 {
                bench.give(Input::Data(ConnId(u64::from(n)), &keepalives));
            }
            bench.rest();
        }
        println!(
            "D {peers}: {time:?}, RSS {before} -> {} MiB; an idle hour costs {:?}",
            memory().0,
            idle.elapsed()
        );
    }
    time
}

fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("speaker");
    group.sample_size(10);
    let million = (feed(1, Some(65001), 1_000_000, 0), withdrawals(1_000_000));
    scenario_a(1_000_000, &million.0, &million.1, true);
    group.bench_function("A 1M in and out", |b| {
        b.iter_custom(|n| (0..n).map(|_| scenario_a(1_000_000, &million.0, &million.1, false).0).sum());
    });
    group.bench_function("F 1M withdrawn", |b| {
        b.iter_custom(|n| (0..n).map(|_| scenario_a(1_000_000, &million.0, &million.1, false).1).sum());
    });
    drop(million);
    let feeds: Vec<Vec<u8>> = (1..=10).map(|n| feed(n, None, 100_000, n)).collect();
    scenario_b(&feeds, 100_000, true);
    group.bench_function("B 10 x 100k", |b| {
        b.iter_custom(|n| (0..n).map(|_| scenario_b(&feeds, 100_000, false)).sum());
    });
    let ten = feed(1, Some(65001), 10_000, 0);
    scenario_c(&ten, true);
    group.bench_function("C 10k to 200", |b| {
        b.iter_custom(|n| (0..n).map(|_| scenario_c(&ten, false)).sum());
    });
    for peers in [1000, 5000] {
        scenario_d(peers, true);
        group.bench_function(format!("D {peers} peers"), |b| {
            b.iter_custom(|n| (0..n).map(|_| scenario_d(peers, false)).sum());
        });
    }
    group.finish();
}

criterion_group!(rib, benches);
criterion_main!(rib);
