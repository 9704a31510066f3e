//! Packets that pass while tables change: those that both the old and the new rules allow must pass all the
//! time.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::nft::diff;
use crate::nft::dump;
use crate::nft::edit_order;
use crate::nft::ir::*;
use crate::nft::socket::Socket;
use crate::nft::tests::fixtures::{cidr, set_of};
use crate::nft::tests::kernel::{in_netns, nft, run};

/// Number of rounds; each takes about 30 ms, including the start of nft.
const ROUNDS: usize = 60;

/// Sends packets over loopback while `work` runs in the same namespace. The kernel reports packets dropped on
/// output to the sender, so that each packet is accounted for. Returns the numbers of sent and of refused
/// packets.
fn sending(work: impl FnOnce()) -> (usize, usize) {
    let ip = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(ip.success());
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    from.connect(to.local_addr().unwrap()).unwrap();
    let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (end, counted) = (Arc::clone(&stop), Arc::clone(&refused));
    let sender = std::thread::spawn(move || {
        let mut sent = 0usize;
        while !end.load(Ordering::Relaxed) {
            sent += 1;
            if from.send(b"x").is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
        sent
    });
    work();
    stop.store(true, Ordering::Relaxed);
    let sent = sender.join().unwrap();
    drop(to);
    (sent, refused.load(Ordering::Relaxed))
}

#[test]
fn a_table_goes_without_dropping_what_it_let_through() {
    let Some(nft) = nft() else { return };
    in_netns(move || {
        let text = "table inet tortie-goes {
            chain fine { accept; }
            map ways { type ifname : verdict; elements = { \"lo\" : jump fine }; }
            chain out { type filter hook output priority 0; oifname vmap @ways; drop; }
        }";
        let (sent, refused) = sending(|| {
            let mut socket = Socket::open().unwrap();
            for _ in 0..ROUNDS {
                run(&nft, &["-f", "-"], text);
                socket.close("tortie-goes").unwrap();
            }
            socket.close("tortie-goes").unwrap();
        });
        assert!(sent > ROUNDS * 100, "{sent} packets in {ROUNDS} rounds");
        assert_eq!(refused, 0, "of {sent} packets");
    });
}

/// Returns a table with a chain `chain` whose rules look up `set`: packets that leave by lo to 127.0.0.1 pass
/// and all others are dropped, or vice versa. Packets that meet no rule of that chain get the opposite
/// verdict.
fn table(chain: &str, set: &str, interval: bool, passes: bool) -> Table {
    let rule = |matches, statement| Rule { matches, statement, counted: true, ..Rule::default() };
    let known = vec![
        Match::Family { v4: true },
        Match::InSet { not: false, key: vec![Field::Addr(Side::Dst)], set: set.into() },
    ];
    let decides = rule(known, if passes { Statement::Accept } else { Statement::Drop });
    let ways = Statement::VerdictMap { key: vec![Field::OutInterface], map: "ways".into() };
    let end = passes.then(|| rule(vec![], Statement::Drop));
    let hook = Some(Hook { kind: Kind::Filter, at: At::Output, priority: 0 });
    let nets = set_of(KeyType::Addr { v4: true }, ValueType::Member, interval);
    let to = set_of(KeyType::Interface, ValueType::Verdict, false);
    let one = |of, key, value| Set { of, comment: "".into(), elements: BTreeMap::from([(key, value)]) };
    Table {
        chains: BTreeMap::from([
            (chain.into(), Chain { hook: None, rules: vec![decides] }),
            ("out".into(), Chain { hook, rules: std::iter::once(rule(vec![], ways)).chain(end).collect() }),
        ]),
        sets: BTreeMap::from([
            (set.into(), one(nets, SetKey::Addr(cidr("127.0.0.1/32")), SetValue::Member)),
            ("ways".into(), one(to, SetKey::Interface("lo".into()), SetValue::Jump(chain.into()))),
        ]),
    }
}

#[test]
fn a_table_that_others_changed_is_repaired_without_dropping_what_it_lets_through() {
    let Some(nft) = nft() else { return };
    // A foreign element that can only be removed by refilling the set, and a dormant table.
    for tampering in [
        "add element inet t ways { \"other0\" : accept }",
        "add element inet t nets { 192.0.2.3-192.0.2.9 }",
        "add table inet t { flags dormant; }",
    ] {
        let nft = nft.clone();
        in_netns(move || {
            let wanted = table("fine", "nets", true, true);
            let mut socket = Socket::open().unwrap();
            socket.batch(&diff::diff(&wanted, None), "t").unwrap();
            let (sent, refused) = sending(|| {
                for _ in 0..ROUNDS {
                    run(&nft, &[tampering], "");
                    let found = dump::table(&mut socket, "t").unwrap();
                    let edits = diff::diff(&wanted, found.as_ref());
                    assert_ne!(edits, [], "{tampering}: it shows");
                    socket.batch(&edits, "t").unwrap();
                    let found = dump::table(&mut socket, "t").unwrap();
                    assert_eq!(diff::diff(&wanted, found.as_ref()), [], "{tampering}: it is repaired");
                }
            });
            assert!(sent > ROUNDS * 100, "{sent} packets in {ROUNDS} rounds");
            assert_eq!(refused, 0, "{tampering}: of {sent} packets");
        });
    }
}

/// Number of changes; a wrong order of edits affects a packet in 3 % to 30 % of them.
const CHANGES: usize = 300;
/// Pause between two transactions. Packets are not delayed for that long, and the kernel makes no guarantee
/// to those that are.
const APART: Duration = Duration::from_micros(300);

#[test]
fn another_way_with_the_same_end_loses_nothing_and_passes_nothing() {
    let others = [("rules", ("fine", "other")), ("a chain", ("other", "nets")), ("both", ("a", "b"))];
    let kinds = [(false, true), (false, false), (true, true), (true, false)];
    for ((what, (chain, set)), (interval, passes)) in
        others.into_iter().flat_map(|other| kinds.map(|kind| (other, kind)))
    {
        in_netns(move || {
            let tables = [table("fine", "nets", interval, passes), table(chain, set, interval, passes)];
            let mut socket = Socket::open().unwrap();
            let edits = [(1, 0), (0, 1)].map(|(from, to): (usize, usize)| {
                socket.remove("t").unwrap();
                socket.batch(&diff::diff(&tables[from], None), "t").unwrap();
                let found = dump::table(&mut socket, "t").unwrap();
                diff::diff(&tables[to], found.as_ref())
            });
            let (sent, refused) = sending(|| {
                for edits in edits.iter().rev().cycle().take(CHANGES) {
                    for part in edit_order::of(edits) {
                        socket.batch(part, "t").unwrap();
                        std::thread::sleep(APART);
                    }
                }
            });
            assert!(sent > CHANGES, "{sent} packets in {CHANGES} changes");
            let what = format!("{what}, networks {interval}: of {sent} packets");
            assert_eq!(refused, if passes { 0 } else { sent }, "{what}");
        });
    }
}
