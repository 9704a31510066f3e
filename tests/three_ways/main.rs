//! Three ways agree: what the evaluator says of a packet and what the kernel does with it, over random endpoints, labels,
//! profiles, policies, settings and packets. The packets are really sent, and looked for everywhere.
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
#[path = "../common/kernel_rig.rs"]
mod kernel_rig;
mod net;
#[path = "../common/netns.rs"]
mod netns;
mod packets;
#[path = "../common/policy_rig.rs"]
mod policy_rig;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kernel_rig::Rig;
use net::Net;
use policy_rig::Policy;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tortie::kernel::{Mode, Options};
use tortie::policy::path::{Flow, Node, Path, Place, Routes};
use tortie::policy::{Packet, Verdict, host_interfaces};
use tortie_config::Cidr;

/// Packets between two changes of policy.
const PACKETS: usize = 120;

/// The way of a packet as the evaluator sees it, and where it ends.
fn path(
    policy: &Policy,
    from: &Place,
    packet: &Packet,
    state: tortie::policy::path::State,
) -> (Path, Option<Place>) {
    let interfaces = net::INTERFACES.iter().map(|name| {
        let addrs: &[&str] = if *name == "eth0" { &net::HOST } else { &[] };
        (*name, addrs.iter().map(|addr| addr.parse::<IpAddr>().unwrap()))
    });
    let hosts = host_interfaces(&policy.ruleset, &policy.globals, interfaces);
    let via = net::NETS.iter().flat_map(|(name, nets)| {
        nets.iter().map(|net| (net.parse::<Cidr>().unwrap(), Box::<str>::from(*name)))
    });
    let routes =
        Routes { local: net::HOST.iter().map(|addr| addr.parse().unwrap()).collect(), via: via.collect() };
    let node = Node { ruleset: &policy.ruleset, globals: &policy.globals, hosts: &hosts, routes: &routes };
    let path = node.path(&Flow { packet: *packet, from: from.clone(), state });
    let to = routes.place(path.packet.dst);
    (path, to)
}

/// A packet that was seen the other way round belongs to that connection.
fn tuple(packet: &Packet, reverse: bool) -> (u8, IpAddr, IpAddr, Option<(u16, u16)>) {
    if reverse {
        (packet.protocol, packet.dst, packet.src, packet.ports.map(|(src, dst)| (dst, src)))
    } else {
        (packet.protocol, packet.src, packet.dst, packet.ports)
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn the_evaluator_and_the_kernel_agree() {
    netns::in_netns(|| agree(setting("TORTIE_SEED", rand::random()), setting("TORTIE_ROUNDS", 40)));
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn long_the_evaluator_and_the_kernel_agree() {
    netns::in_netns(|| agree(setting("TORTIE_SEED", rand::random()), setting("TORTIE_ROUNDS", 2_000)));
}

fn agree(seed: u64, rounds: u64) {
    eprintln!("TORTIE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let net = Net::make();
    let rig =
        Rig::start(&Options { policy: Mode::Program, log_group: Some(5), ..Options::new(Mode::Observe) });
    let mut policy = Policy::new();
    let mut connections = BTreeSet::new();
    let (mut number, mut passed) = (0u32, 0);
    for round in 0..rounds {
        policy.change(&rig, &generate::change(&mut rng, round == 0));
        if round == 0 {
            Net::believe_checksums();
        }
        let (mut sent, mut wanted, mut ways) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        while sent.len() < PACKETS {
            let (from, packet, state) = generate::packet(&mut rng);
            let is_icmp = packet.icmp.is_some();
            if !is_icmp && connections.contains(&tuple(&packet, true)) {
                continue;
            }
            let (path, to) = path(&policy, &from, &packet, state);
            if !is_icmp && !path.untracked {
                connections.insert(tuple(&packet, false));
            }
            number += 1;
            sent.insert(number, from.clone());
            if path.verdict == Verdict::Allow
                && let Some(to) = to
            {
                wanted.insert(number, BTreeSet::from([to]));
            }
            net.send(&from, &packet, number);
            ways.insert(number, (from, packet, state, path));
        }
        let seen = net.seen(&sent, wanted.len());
        passed += wanted.len();
        if seen == wanted {
            continue;
        }
        let none = BTreeSet::new();
        for (number, (from, packet, state, path)) in &ways {
            let (seen, wanted) = (seen.get(number).unwrap_or(&none), wanted.get(number).unwrap_or(&none));
            assert_eq!(
                seen,
                wanted,
                "round {round}, seed {seed}: {packet:?}, {state:?}, from {from:?}: the evaluator says {path:#?}\n{}\n{}",
                policy.told(),
                rig.ask(|view| view.rules_text()),
            );
        }
    }
    eprintln!("{rounds} rounds, {number} packets, {passed} of them passed");
    rig.stop();
}
