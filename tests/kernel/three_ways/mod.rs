//! Three implementations agree on every packet: the evaluator, an interpreter of the rendered rules, and the
//! kernel. Endpoints, labels, profiles, policies, pools, floating addresses, settings and packets are random.
//! The packets are really sent and searched for everywhere; some are answered.
//!
//! `TORTIE_SEED` repeats a run, `TORTIE_ROUNDS` makes it longer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says with a panic what is wrong"
)]

mod atomic;
mod generate;
mod net;
mod packets;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::common::concurrency;
use crate::common::kernel_thread::Rig;
use crate::common::policy_store::Policy;
use net::{Arrivals, Net};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tortie_engine::policy::path::{Flow, Node, Path, Place, Reason, Routes, Stage, State};
use tortie_engine::policy::{ChainId, Direction, Packet, Verdict, host_interfaces};
use tortie_kernel::{Mode, Options};
use tortie_net::Cidr;

/// Number of new connections between two policy changes.
const PACKETS: usize = 120;
/// Number of these that are answered and continue.
const ANSWERED: usize = 12;
/// Minimum number of packets that a test in CI sends.
const LEAST: u32 = 5_000;

/// Returns the kernel's routing, as input of evaluator and interpreter.
fn routes() -> Routes {
    let via = net::NETS.iter().flat_map(|(name, nets)| {
        nets.iter().map(|net| (net.parse::<Cidr>().unwrap(), Box::<str>::from(*name)))
    });
    let own = net::HOST.into_iter().chain([generate::LOOPBACK]);
    Routes { local: own.map(|addr| addr.parse().unwrap()).collect(), via: via.collect() }
}

/// Returns the paths of packets according to the evaluator.
fn paths(policy: &Policy, routes: &Routes, flows: &[Flow]) -> Vec<Path> {
    let interfaces = net::INTERFACES.iter().map(|name| {
        let addrs: &[&str] = if *name == "eth0" { &net::HOST } else { &[] };
        (*name, addrs.iter().map(|addr| addr.parse::<IpAddr>().unwrap()))
    });
    let hosts = host_interfaces(&policy.ruleset, &policy.globals, interfaces);
    let node = Node { ruleset: &policy.ruleset, globals: &policy.globals, hosts: &hosts, routes };
    let prepared = node.prepared();
    flows.iter().map(|flow| prepared.path(flow)).collect()
}

fn is_masqueraded(path: &Path) -> bool {
    path.steps.iter().any(|step| step.stage == Stage::Snat && step.reason == Reason::Masquerade)
}

/// Returns the packet as it leaves the host.
fn final_packet(path: &Path) -> Packet {
    let own = net::HOST[usize::from(path.packet.dst.is_ipv6())].parse().unwrap();
    Packet { src: if is_masqueraded(path) { own } else { path.packet.src }, ..path.packet }
}

type Tuple = (u8, IpAddr, IpAddr, Option<(u16, u16)>);

fn tuple(packet: &Packet) -> Tuple {
    (packet.protocol, packet.src, packet.dst, packet.ports)
}

/// Returns the reverse direction of a packet, which belongs to the same connection.
fn reverse(packet: &Packet) -> Packet {
    Packet { src: packet.dst, dst: packet.src, ports: packet.ports.map(|(src, dst)| (dst, src)), ..*packet }
}

/// Connections of one round: tuples at ingress and at egress.
#[derive(Default)]
struct Connections {
    begun: BTreeSet<Tuple>,
    left: BTreeMap<Tuple, Tuple>,
}

impl Connections {
    /// Returns true if connection tracking has no entry for this packet, so that the rules decide.
    fn is_fresh(&self, packet: &Packet, last: &Packet) -> bool {
        let (is, was) = (tuple(packet), tuple(last));
        !self.left.contains_key(&tuple(&reverse(packet)))
            && !self.begun.contains(&tuple(&reverse(last)))
            && !self.begun.contains(&tuple(&reverse(packet)))
            && self.left.get(&was).is_none_or(|first| *first == is)
    }

    fn take(&mut self, packet: &Packet, last: &Packet) {
        self.begun.insert(tuple(packet));
        self.left.insert(tuple(last), tuple(packet));
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn the_evaluator_the_rules_and_the_kernel_agree() {
    crate::common::netns::in_netns(|| {
        agree(setting("TORTIE_SEED", rand::random()), setting("TORTIE_ROUNDS", 42))
    });
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn long_the_evaluator_the_rules_and_the_kernel_agree() {
    crate::common::netns::in_netns(|| {
        agree(setting("TORTIE_SEED", rand::random()), setting("TORTIE_ROUNDS", 2_000))
    });
}

/// Number of matches per rule of policies and profiles.
type Hits = BTreeMap<(ChainId, usize), u64>;

/// A sent packet.
struct Sent {
    flow: Flow,
    path: Path,
    /// For an answer: the address that its receiver expects as the source.
    source: Option<IpAddr>,
    number: u32,
}

impl Sent {
    /// Returns the expected egress, with source and destination address.
    fn wanted(&self, routes: &Routes) -> Option<(Place, IpAddr, IpAddr)> {
        let last = final_packet(&self.path);
        let to = routes.place(last.dst).filter(|_| self.path.verdict == Verdict::Allow)?;
        Some((to, self.source.unwrap_or(last.src), last.dst))
    }
}

/// One policy, and packets under it.
struct Round<'a> {
    policy: &'a Policy,
    rig: &'a Rig,
    net: &'a Net,
    routes: &'a Routes,
    what: String,
}

impl Round<'_> {
    /// Sends new packets, then answers to some, then more packets of the same connections. Returns them, and
    /// what has arrived so far.
    fn send(&self, rng: &mut StdRng, number: &mut u32) -> (Vec<Sent>, Arrivals) {
        let mut connections = Connections::default();
        let mut all = Vec::new();
        while all.len() < PACKETS {
            let (from, packet, state) = generate::packet(rng);
            let flow = Flow { packet, from, state };
            let Some(path) = paths(self.policy, self.routes, std::slice::from_ref(&flow)).pop() else {
                break;
            };
            if packet.icmp.is_none() {
                let last = final_packet(&path);
                if !connections.is_fresh(&packet, &last) {
                    continue;
                }
                if !path.untracked && path.verdict == Verdict::Allow {
                    connections.take(&packet, &last);
                }
            }
            self.put(Sent { flow, path, source: None, number: 0 }, number, &mut all);
        }
        let answers = |sent: &Sent| {
            let path = &sent.path;
            let kept = final_packet(path).src == sent.flow.packet.src && !path.untracked;
            path.verdict == Verdict::Allow && sent.flow.packet.protocol == 17 && kept
        };
        let mut seen = BTreeSet::new();
        let chosen: Vec<(Flow, Packet)> = all
            .iter()
            .filter(|sent| answers(sent) && seen.insert(tuple(&sent.flow.packet)))
            .take(ANSWERED)
            .map(|sent| (sent.flow.clone(), final_packet(&sent.path)))
            .collect();
        // Connection tracking knows a connection once its first packet has passed.
        let mut seen_packets = Arrivals::new();
        self.arrive(&all, &mut seen_packets, Duration::from_millis(2));
        let mut answered = Vec::new();
        for (first, last) in chosen {
            let Some(from) = self.routes.place(last.dst) else { continue };
            if from == Place::Host && first.from == Place::Host {
                continue;
            }
            let flow = Flow { packet: reverse(&last), from, state: State::Established { reply: true } };
            let Some(path) = paths(self.policy, self.routes, std::slice::from_ref(&flow)).pop() else {
                break;
            };
            if path.untracked {
                continue;
            }
            if path.verdict == Verdict::Allow {
                answered.push(first.clone());
            }
            self.put(Sent { flow, path, source: Some(first.packet.dst), number: 0 }, number, &mut all);
        }
        self.arrive(&all, &mut seen_packets, Duration::from_millis(2));
        for first in answered {
            let flow = Flow { state: State::Established { reply: false }, ..first };
            let Some(path) = paths(self.policy, self.routes, std::slice::from_ref(&flow)).pop() else {
                break;
            };
            self.put(Sent { flow, path, source: None, number: 0 }, number, &mut all);
        }
        (all, seen_packets)
    }

    /// Waits until all packets that should arrive have arrived, and so much longer. Returns their number.
    fn arrive(&self, all: &[Sent], seen: &mut Arrivals, longer: Duration) -> usize {
        let wanted = all.iter().filter(|sent| sent.wanted(self.routes).is_some()).count();
        self.net.arrivals(seen, &all.iter().map(|sent| sent.number).collect(), wanted, longer);
        wanted
    }

    fn put(&self, mut sent: Sent, number: &mut u32, all: &mut Vec<Sent>) {
        *number += 1;
        sent.number = *number;
        self.net.send(&sent.flow.from, &sent.flow.packet, *number);
        all.push(sent);
    }

    /// Checks that the interpreter agrees with the evaluator on each packet.
    fn check_rules(&self, all: &[Sent]) -> Hits {
        let flows: Vec<Flow> = all.iter().map(|sent| sent.flow.clone()).collect();
        let routes = self.routes.clone();
        let rehearsed = self.rig.ask(move |view| view.simulate(&flows, &routes));
        assert_eq!(rehearsed.len(), all.len());
        let mut hits = Hits::new();
        for rule in rehearsed.iter().flat_map(|is| &is.matched) {
            *hits.entry(rule.clone()).or_default() += 1;
        }
        for (sent, is) in all.iter().zip(&rehearsed) {
            let path = &sent.path;
            let matched = path.steps.iter().flat_map(|step| match &step.reason {
                Reason::Policy(decision) => decision.matched.clone(),
                _ => Vec::new(),
            });
            let same = is.dropped.is_none() == (path.verdict == Verdict::Allow)
                && is.packet == path.packet
                && is.masqueraded == is_masqueraded(path)
                && is.untracked == path.untracked
                && is.matched == matched.collect::<Vec<_>>();
            assert!(same, "the interpreter says {is:#?} of {}", self.describe(sent));
        }
        hits
    }

    /// Returns the kernel's rule counters.
    fn counted(&self) -> Hits {
        let sources: BTreeSet<_> = self.policy.ruleset.chains.keys().map(|id| id.source.clone()).collect();
        let count = move |view: &tortie_kernel::KernelView<'_>| {
            let mut hits = Hits::new();
            for source in sources {
                let both = view.rule_hits(&source).unwrap();
                for (direction, of) in [Direction::Inbound, Direction::Outbound].into_iter().zip(both) {
                    let id = ChainId { source: source.clone(), direction };
                    hits.extend(of.iter().enumerate().map(|(at, hit)| ((id.clone(), at), hit.packets)));
                }
            }
            hits
        };
        self.rig.ask(count)
    }

    /// Checks that the kernel's counters increased as predicted or more: the kernel sends some packets
    /// itself.
    fn check_counters(&self, before: &Hits, expected: &Hits) {
        let now = self.counted();
        for (rule, count) in expected {
            let is =
                now.get(rule).copied().unwrap_or_default() - before.get(rule).copied().unwrap_or_default();
            assert!(
                is >= *count,
                "{}: {rule:?} counted {is}, not {count}\n{}",
                self.what,
                self.policy.dump()
            );
        }
    }

    /// Checks that the kernel agrees with the evaluator on each packet.
    fn check_kernel(&self, all: &[Sent], mut seen: Arrivals) -> usize {
        let wanted = self.arrive(all, &mut seen, Duration::from_millis(20));
        let none = BTreeMap::new();
        for sent in all {
            let (seen, wanted) = (seen.get(&sent.number).unwrap_or(&none), sent.wanted(self.routes));
            let same = match &wanted {
                None => seen.is_empty(),
                Some((place, src, dst)) => {
                    let ends = seen.get(place);
                    seen.len() == 1 && ends.is_some_and(|ends| ends.is_none_or(|ends| ends == (*src, *dst)))
                }
            };
            assert!(same, "seen {seen:?}, wanted {wanted:?} of {}", self.describe(sent));
        }
        wanted
    }

    fn describe(&self, sent: &Sent) -> String {
        format!(
            "packet {}, {}: {:?}: the evaluator says {:#?}\n{}\n{}",
            sent.number,
            self.what,
            sent.flow,
            sent.path,
            self.policy.dump(),
            self.rig.ask(|view| view.rules_text()),
        )
    }
}

fn agree(seed: u64, rounds: u64) {
    let _group = concurrency::PACKETS.join();
    eprintln!("TORTIE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let net = Net::make();
    let rig =
        Rig::start(&Options { policy: Mode::Program, log_group: Some(5), ..Options::new(Mode::Observe) });
    let mut policy = Policy::new();
    let routes = routes();
    let (mut number, mut passed) = (0u32, 0);
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for round in 0..rounds {
        policy.change(&rig, &generate::change(&mut rng, round == 0));
        if round == 0 {
            Net::believe_checksums();
        }
        Net::forget_connections();
        let what = format!("round {round}, seed {seed}");
        let round = Round { policy: &policy, rig: &rig, net: &net, routes: &routes, what };
        let before = round.counted();
        let (all, seen) = round.send(&mut rng, &mut number);
        let hits = round.check_rules(&all);
        passed += round.check_kernel(&all, seen);
        round.check_counters(&before, &hits);
        for sent in &all {
            let mut count = |kind, of: bool| *kinds.entry(kind).or_default() += usize::from(of);
            let passes = sent.path.verdict == Verdict::Allow;
            let (first, last) = (sent.flow.packet, final_packet(&sent.path));
            count("translated inwards", passes && first.dst != last.dst);
            count("masqueraded", passes && is_masqueraded(&sent.path));
            count(
                "to themselves by a floating address",
                passes && last.src != first.src && !is_masqueraded(&sent.path),
            );
            count("untracked by policy", passes && sent.path.untracked && !sent.flow.is_never_tracked());
            count("of connections that were answered", matches!(sent.flow.state, State::Established { .. }));
            count("IPv6 while it is off", !policy.globals.ipv6 && first.src.is_ipv6());
            count("to 127/8", first.dst.is_loopback());
        }
    }
    eprintln!("{rounds} rounds, {number} packets, {passed} of them passed: {kinds:?}");
    assert!(number >= LEAST || rounds < 40);
    // Some kinds are rare.
    assert!(rounds < 400 || kinds.values().all(|count| *count > 0), "{kinds:?}");
    rig.stop();
}
