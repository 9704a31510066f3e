//! Measures the rate of installing and removing routes through the kernel thread, in a network namespace of
//! its own.
//!
//! `cargo run --release --example kernel_routes -- [ROUTES] [NEXT_HOPS] [plain]` as root.

#![allow(
    unsafe_code,
    clippy::expect_used,
    reason = "enters a network namespace; a measurement, not a program"
)]

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use smallvec::smallvec;
use tortie_engine::routing::ChangeId;
use tortie_kernel::{KernelFact, LearnedChange, Mode, Options, ToKernel, spawn};
use tortie_net::Cidr;

fn main() {
    let mut words = std::env::args().skip(1);
    let mut number = |default: u32| words.next().and_then(|w| w.parse().ok()).unwrap_or(default);
    let (routes, next_hops) = (number(100_000), number(1000));
    // SAFETY: the process has one thread; only its network namespace changes.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("run as root");
    for command in [
        "link add eth0 type veth peer name peer0",
        "address add 172.16.0.1/16 dev eth0",
        "link set eth0 up",
        "link set peer0 up",
    ] {
        assert!(Command::new("ip").args(command.split(' ')).status().expect("iproute2").success());
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    let mut options = Options::new(Mode::Program);
    if words.next().as_deref() == Some("plain") {
        options.nexthop_objects = Some(false);
    }
    let (sink, facts) = channel();
    let handle = spawn(&options, Box::new(move |fact| drop(sink.send(fact)))).expect("netlink");
    let changes: Vec<LearnedChange> = (0..routes)
        .map(|i| LearnedChange {
            prefix: Cidr::v4(Ipv4Addr::from(0x0a00_0000 + i * 64), 26),
            next_hops: smallvec![Ipv4Addr::from(0xac10_0100 + i % next_hops).into()],
            local_pref: None,
            change: ChangeId(0),
        })
        .collect();
    for round in ["add", "delete", "add again", "delete again"] {
        let begin = Instant::now();
        for batch in changes.chunks(1024) {
            let mut batch = batch.to_vec();
            if round.starts_with("delete") {
                batch.iter_mut().for_each(|c| c.next_hops.clear());
            }
            handle.sender().send(ToKernel::Learned(batch.into())).expect("running");
            learned(&facts);
        }
        let took = begin.elapsed().as_secs_f64();
        println!(
            "{round}: {routes} routes over {next_hops} next hops in {took:.3} s, {:.0}/s",
            f64::from(routes) / took
        );
    }
    handle.stop().expect("no panic");
}

fn learned(facts: &Receiver<KernelFact>) {
    while let Ok(fact) = facts.recv() {
        if let KernelFact::Learned { failed, .. } = fact {
            assert!(failed.is_empty(), "{failed:?}");
            return;
        }
    }
}
