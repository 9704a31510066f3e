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

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use kernel_rig::Rig;
use net::Net;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tortie::kernel::{KernelFact, Mode, Options, PolicyChange, ToKernel};
use tortie::model::Model;
use tortie::policy::path::{Flow, Node, Path, Place, Routes};
use tortie::policy::{Engine, Globals, Packet, Ruleset, Verdict, host_interfaces};
use tortie::routing::ChangeId;
use tortie::store::{Change, Delta, KeyValue};
use tortie_config::Cidr;

/// Packets between two changes of policy.
const PACKETS: usize = 120;

/// What the core does, without the core.
struct Policy {
    model: Model,
    engine: Engine,
    ruleset: Ruleset,
    globals: Globals,
    serial: u64,
    store: BTreeMap<String, String>,
}

impl Policy {
    fn new() -> Self {
        let model = Model::new("h1");
        let (engine, _) = Engine::new(&model);
        let globals = Globals::of(&model);
        Self { model, engine, ruleset: Ruleset::default(), globals, serial: 0, store: BTreeMap::new() }
    }

    fn change(&mut self, rig: &Rig, keys: &[(String, Option<String>)]) {
        self.serial += 1;
        let revision = self.serial;
        let change = |(key, value): &(String, Option<String>)| match value {
            Some(value) => {
                self.store.insert(key.clone(), value.clone());
                let value = value.clone().into_bytes();
                let key = key.clone();
                Change::Put(KeyValue { key, value, mod_revision: revision, create_revision: revision })
            }
            None => {
                self.store.remove(key);
                Change::Delete { key: key.clone() }
            }
        };
        let changes = keys.iter().map(change).collect();
        let dirty = self.model.apply(&Delta { revision, changes });
        let delta = if self.serial == 1 {
            let (engine, delta) = Engine::new(&self.model);
            self.engine = engine;
            delta
        } else {
            self.engine.update(&self.model, &dirty.touched)
        };
        delta.apply(&mut self.ruleset);
        let globals = Globals::of(&self.model);
        let globals = (self.serial == 1 || globals != self.globals).then(|| Arc::new(globals));
        if let Some(globals) = &globals {
            self.globals = (**globals).clone();
        }
        let (serial, change) = (self.serial, ChangeId(self.serial));
        rig.send(ToKernel::Policy(Box::new(PolicyChange { serial, change, delta, globals })));
        let failed = rig.wait("Enforced", |fact| match fact {
            KernelFact::Enforced { serial: of, failed, .. } if *of == serial => Some(failed.clone()),
            KernelFact::Rules(Some(trouble)) => panic!("{trouble}\n{}", self.told()),
            _ => None,
        });
        assert!(failed.is_empty(), "{failed:?}\n{}", self.told());
    }

    /// The same store, by a process that has just begun.
    fn anew(&mut self, rig: &Rig) {
        let store = std::mem::take(&mut self.store);
        let keys: Vec<_> = store.into_iter().map(|(key, value)| (key, Some(value))).collect();
        *self = Self::new();
        self.change(rig, &keys);
    }

    fn told(&self) -> String {
        self.store.iter().fold(String::new(), |mut text, (key, value)| {
            let _ = writeln!(text, "{key} {value}");
            text
        })
    }

    fn path(
        &self,
        from: &Place,
        packet: &Packet,
        state: tortie::policy::path::State,
    ) -> (Path, Option<Place>) {
        let interfaces = net::INTERFACES.iter().map(|name| {
            let addrs: &[&str] = if *name == "eth0" { &net::HOST } else { &[] };
            (*name, addrs.iter().map(|addr| addr.parse::<IpAddr>().unwrap()))
        });
        let hosts = host_interfaces(&self.ruleset, &self.globals, interfaces);
        let via = net::NETS.iter().flat_map(|(name, nets)| {
            nets.iter().map(|net| (net.parse::<Cidr>().unwrap(), Box::<str>::from(*name)))
        });
        let routes = Routes {
            local: net::HOST.iter().map(|addr| addr.parse().unwrap()).collect(),
            via: via.collect(),
        };
        let node = Node { ruleset: &self.ruleset, globals: &self.globals, hosts: &hosts, routes: &routes };
        let path = node.path(&Flow { packet: *packet, from: from.clone(), state });
        let to = routes.place(path.packet.dst);
        (path, to)
    }
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
            let (path, to) = policy.path(&from, &packet, state);
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
