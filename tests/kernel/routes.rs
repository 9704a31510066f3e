//! The kernel thread with the real kernel, each test in its own network namespace.

use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

use crate::common::kernel_thread::{PATIENCE, Rig, blocks, blocks_v6, cidr, eventually};
use crate::common::netns::{in_netns, ip, try_ip, veth};
use smallvec::SmallVec;
use tortie_engine::routing::ChangeId;
use tortie_kernel::{KernelFact, LearnedChange, RouteCondition, ToKernel};
use tortie_net::ScopedAddr;

/// Returns own routes as `ip` lists them.
fn own(family: &str) -> Vec<String> {
    ip(&format!("{family} route show proto 179")).lines().map(|l| l.trim().to_owned()).collect()
}

#[test]
fn blackholes_and_learned_routes_reach_the_kernel_and_leave_it() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24", "2001:db8::1/64"]);
        let mut rig = Rig::program();
        assert_eq!(rig.started, (0, 0));
        assert_eq!(rig.blackholes(&["10.65.0.0/26", "fd00:65::/122"]), vec![]);
        assert_eq!(own("-4"), ["blackhole 10.65.0.0/26 metric 1790"]);
        assert!(own("-6")[0].starts_with("blackhole fd00:65::/122 dev lo metric 1790"), "{:?}", own("-6"));
        assert_eq!(rig.learn("10.65.1.0/26", &["192.0.2.9"]), (1, 0));
        assert_eq!(rig.learn("fd00:65:1::/122", &["2001:db8::9"]), (1, 0));
        let v4 = ip("-4 route show 10.65.1.0/26");
        assert!(v4.contains("nhid 1409286144 via 192.0.2.9 dev eth0 proto 179 metric 1790"), "{v4}");
        let v6 = ip("-6 route show fd00:65:1::/122");
        assert!(v6.contains("via 2001:db8::9 dev eth0 proto 179 metric 1790"), "{v6}");
        assert_eq!(rig.learn("10.65.1.0/26", &[]), (0, 1));
        assert_eq!(rig.learn("fd00:65:1::/122", &[]), (0, 1));
        assert_eq!(rig.blackholes(&[]), vec![]);
        assert_eq!((own("-4"), own("-6")), (vec![], vec![]));
        assert_eq!(ip("nexthop show"), "", "unused nexthop objects are deleted");
        rig.stop();
    });
}

#[test]
fn a_restart_writes_nothing_that_was_right_and_sweeps_the_rest() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24", "2001:db8::1/64"]);
        let learn = |rig: &Rig| {
            let one = rig.learn_all(blocks(3000), &["192.0.2.9"]);
            let two = rig.learn_all(blocks_v6(500), &["2001:db8::9", "2001:db8::8"]);
            let three = rig.learn("10.65.1.0/26", &["192.0.2.7", "192.0.2.8"]);
            one.0 + two.0 + three.0
        };
        let mut rig = Rig::program();
        rig.blackholes(&["10.65.0.0/26"]);
        assert_eq!(learn(&rig), 3501);
        rig.learn("10.99.0.0/26", &["192.0.2.66"]);
        rig.stop();
        let healthy = || ip("route show proto 179") + &ip("-6 route show proto 179") + &ip("nexthop show");
        let before = healthy();
        let mut rig = Rig::program();
        assert_eq!(rig.started, (3002, 500));
        rig.blackholes(&["10.65.0.0/26"]);
        assert_eq!(learn(&rig), 0);
        assert_eq!(rig.writes(), 0, "everything was right");
        assert_eq!(healthy(), before);
        assert_eq!(
            rig.ask(|v| v.route(&cidr("10.99.0.0/26")).map(|r| r.condition)),
            Some(RouteCondition::Stale)
        );
        assert_eq!(rig.sweep(), 1);
        assert_eq!(rig.writes(), 2, "the stale route and its nexthop");
        assert!(!ip("route show").contains("10.99.0.0/26"));
        assert!(!ip("nexthop show").contains("192.0.2.66"));
        rig.stop();
    });
}

#[test]
fn foreign_routes_survive_at_our_prefixes_and_are_never_replaced() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        ip("route add 10.65.1.0/26 via 192.0.2.50 proto 12");
        ip("route add 10.65.2.0/26 via 192.0.2.51 proto 12 metric 1790");
        ip("route add 10.65.3.0/26 via 192.0.2.52 proto 179 metric 7");
        let rig = Rig::program();
        for prefix in ["10.65.1.0/26", "10.65.2.0/26"] {
            rig.learn(prefix, &["192.0.2.9"]);
        }
        let text = ip("route show 10.65.1.0/26");
        assert!(text.contains("via 192.0.2.50 dev eth0 proto bird"), "{text}");
        assert!(text.contains("via 192.0.2.9 dev eth0 proto 179 metric 1790"), "{text}");
        // The same prefix and metric is taken: reported with the reason, and installed once it is free.
        let condition = |rig: &Rig, p: &'static str| rig.ask(move |v| v.route(&cidr(p)).map(|r| r.condition));
        let Some(RouteCondition::Failed(why)) = condition(&rig, "10.65.2.0/26") else { panic!("not failed") };
        assert!(why.contains("protocol 12"), "{why}");
        assert_eq!(ip("route show 10.65.2.0/26").lines().count(), 1);
        ip("route del 10.65.2.0/26 via 192.0.2.51 proto 12 metric 1790");
        eventually("our route takes the free place", PATIENCE, || {
            ip("route show 10.65.2.0/26").contains("proto 179")
        });
        // A route that another process puts there by force is kept too.
        ip("route replace 10.65.2.0/26 via 192.0.2.51 proto 12 metric 1790");
        std::thread::sleep(Duration::from_millis(300));
        let text = ip("route show 10.65.2.0/26");
        assert!(text.contains("proto bird") && text.lines().count() == 1, "{text}");
        // A route of our protocol with another metric is from an earlier configuration: kept until the sweep.
        assert!(ip("route show 10.65.3.0/26").contains("metric 7"));
        assert_eq!(rig.sweep(), 1);
        assert_eq!(ip("route show 10.65.3.0/26"), "");
        rig.learn("10.65.1.0/26", &[]);
        assert!(ip("route show 10.65.1.0/26").contains("proto bird"));
        rig.stop();
    });
}

#[test]
fn what_somebody_deletes_or_changes_is_right_again_and_counted() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24", "2001:db8::1/64"]);
        let mut rig = Rig::program();
        rig.blackholes(&["10.65.0.0/26"]);
        rig.learn_all(blocks(100), &["192.0.2.9"]);
        rig.learn_all(blocks_v6(100), &["2001:db8::9"]);
        rig.learn("10.65.1.0/26", &["192.0.2.7", "192.0.2.8"]);
        rig.sweep();
        let healthy = || ip("route show proto 179") + &ip("-6 route show proto 179") + &ip("nexthop show");
        let before = healthy();
        let nexthop = |address: &str| {
            let line = ip("nexthop show").lines().find(|l| l.contains(address)).map(str::to_owned);
            line.and_then(|l| l.split_whitespace().nth(1).map(str::to_owned)).expect("nexthop")
        };
        for (index, attack) in [
            "route del 10.128.0.0/26 metric 1790".to_owned(),
            "-6 route del 2001:db8:1::/122 metric 1790".to_owned(),
            "route del blackhole 10.65.0.0/26 metric 1790".to_owned(),
            "route replace 10.128.0.64/26 via 192.0.2.77 proto 179 metric 1790".to_owned(),
            format!("nexthop del id {}", nexthop("192.0.2.9 ")),
            format!("nexthop del id {}", nexthop("2001:db8::9 ")),
            format!("nexthop del id {}", nexthop("192.0.2.7 ")),
            format!("nexthop del id {}", nexthop("group")),
            format!("nexthop replace id {} via 192.0.2.77 dev eth0", nexthop("192.0.2.9 ")),
            "nexthop flush proto 179".to_owned(),
            "route flush proto 179".to_owned(),
            "route add 10.77.0.0/26 via 192.0.2.77 proto 179 metric 1790".to_owned(),
            "route add 10.77.0.0/26 via 192.0.2.77 proto 179 metric 5".to_owned(),
        ]
        .iter()
        .enumerate()
        {
            rig.drain();
            // `ip route flush` reads until no route is left, so our repair makes it fail.
            let done = try_ip(attack);
            assert!(done.0 || attack.contains("flush"), "{attack}: {}", done.1);
            let took = eventually(attack, PATIENCE, || healthy() == before);
            rig.wait(attack, |f| matches!(f, KernelFact::Repaired { objects: 1.., .. }).then_some(()));
            eprintln!("{index}: {attack}: right after {took:?}");
        }
        rig.stop();
    });
}

#[test]
fn each_change_of_a_blackhole_is_acknowledged_once_and_routes_report_their_change_and_rule() {
    use tortie_kernel::BlackholeOutcome::{Kept, Removed, Written};
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        ip("route add blackhole 10.65.3.0/26 proto 179 metric 1790");
        // Blocks the second blackhole: same prefix and metric.
        ip("route add 10.65.2.0/26 dev eth0 metric 1790");
        let mut rig = Rig::program();
        assert!(rig.ask(|v| v.last_compare()).is_some(), "the dump at start compares everything");
        rig.intend(&[("10.65.1.0/26", 41), ("10.65.2.0/26", 42), ("10.65.3.0/26", 43)]);
        let reported = |list: &[(&str, u64, tortie_kernel::BlackholeOutcome)]| -> Vec<_> {
            list.iter().map(|(p, c, o)| ((*p).to_owned(), *c, *o)).collect()
        };
        assert_eq!(
            rig.acknowledged(),
            reported(&[("10.65.1.0/26", 41, Written), ("10.65.3.0/26", 43, Kept)])
        );
        // Rejected at first, acknowledged when it is written.
        ip("route del 10.65.2.0/26 dev eth0 metric 1790");
        assert_eq!(rig.acknowledged(), reported(&[("10.65.2.0/26", 42, Written)]));
        rig.intend(&[("10.65.1.0/26", 41), ("10.65.2.0/26", 42)]);
        assert_eq!(rig.acknowledged(), reported(&[("10.65.3.0/26", 2, Removed)]));
        rig.learn("10.65.9.0/26", &["192.0.2.9"]);
        rig.learn("10.65.8.0/26", &["203.0.113.9"]);
        let of = |prefix: &str| {
            let prefix = cidr(prefix);
            rig.ask(move |v| v.route(&prefix).map(|r| (r.change.0, r.why)))
        };
        assert_eq!(of("10.65.2.0/26"), Some((42, Some("own-block"))));
        assert_eq!(of("10.65.9.0/26"), Some((1, Some("outside-pools"))));
        assert_eq!(of("10.65.8.0/26"), Some((1, None)), "withheld: its reason is its condition");
        assert_eq!(of("10.65.3.0/26"), None);
        rig.stop();
    });
}

#[test]
fn questions_are_answered_while_everything_is_compared_and_changes_wait_for_the_end() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        let rig = Rig::program();
        rig.learn_all(blocks(40_000), &["192.0.2.9"]);
        let (before, new) = (rig.ask(|v| v.counters().compares), cidr("203.0.113.0/24"));
        let (sender, done) = channel();
        // The end of a drift hold starts a resync at once.
        rig.send(ToKernel::HoldDrift(None, Box::new(move || sender.send(()).unwrap())));
        let next_hops = ["192.0.2.9".parse().unwrap()].into_iter().collect();
        rig.send(ToKernel::Learned(
            vec![LearnedChange { prefix: new, next_hops, local_pref: None, change: ChangeId(1) }].into(),
        ));
        let mut meanwhile = 0;
        loop {
            let (compares, counts, known) =
                rig.ask(move |v| (v.counters().compares, v.counts(), v.route(&new).is_some()));
            if done.try_recv() != Err(TryRecvError::Empty) {
                break;
            }
            assert_eq!((compares, counts.installed, known), (before + 1, 40_000, false));
            meanwhile += 1;
        }
        assert!(meanwhile > 10, "{meanwhile} questions were answered while 40,000 routes were compared");
        rig.wait("Learned", |fact| matches!(fact, KernelFact::Learned { .. }).then_some(()));
        assert_eq!(rig.ask(|v| (v.counts().installed, v.drift(1).count)), (40_001, 0));
        assert_eq!(rig.ask(|v| v.counters().external_changes), 0, "what was ours is no news");
        rig.stop();
    });
}

#[test]
fn questions_are_answered_while_routes_are_written() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        let rig = Rig::program();
        let next_hops: SmallVec<[ScopedAddr; 2]> = ["192.0.2.9".parse().unwrap()].into_iter().collect();
        let learned = |prefix| LearnedChange {
            prefix,
            next_hops: next_hops.clone(),
            local_pref: None,
            change: ChangeId(1),
        };
        rig.send(ToKernel::Learned(blocks(40_000).map(learned).collect::<Vec<_>>().into()));
        let mut meanwhile = 0;
        while rig.ask(|v| v.counts().installed) == 0 {
            meanwhile += 1;
        }
        assert!(meanwhile > 10, "{meanwhile} questions were answered before 40,000 routes were written");
        rig.wait("Learned", |fact| matches!(fact, KernelFact::Learned { written: 40_000, .. }).then_some(()));
        assert_eq!(rig.ask(|v| (v.counts().installed, v.drift(1).count)), (40_000, 0));
        rig.stop();
    });
}

#[test]
fn batches_on_each_others_heels_end_as_one_after_the_other_would() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        let all: Vec<_> = blocks(8_000).collect();
        ip(&format!("route add {} via 192.0.2.66 proto 12 metric 1790", all[2_600]));
        let rig = Rig::program();
        // The nexthop objects exist, so batches can run ahead.
        rig.learn("203.0.113.0/25", &["192.0.2.8"]);
        rig.learn("203.0.113.128/25", &["192.0.2.9"]);
        let sent = [
            (0..2_000, "192.0.2.9"),
            (2_000..4_000, "192.0.2.9"),
            (4_000..6_000, "192.0.2.8"),
            (5_000..6_500, ""),
            (0..2_000, "192.0.2.8"),
            (2_000..2_500, ""),
            (6_500..8_000, "192.0.2.9"),
        ];
        for (change, (blocks, hop)) in (1..).zip(&sent) {
            let next_hops: SmallVec<[ScopedAddr; 2]> = hop.parse().into_iter().collect();
            let learned = |p: &_| LearnedChange {
                prefix: *p,
                next_hops: next_hops.clone(),
                local_pref: None,
                change: ChangeId(change),
            };
            rig.send(ToKernel::Learned(all[blocks.clone()].iter().map(learned).collect::<Vec<_>>().into()));
        }
        let reported: Vec<_> = sent
            .iter()
            .map(|_| {
                rig.wait("Learned", |fact| match fact {
                    KernelFact::Learned { change, prefixes, written, deleted, failed, sample, .. } => {
                        let last = sample.last().map(|(.., outcome)| outcome.to_string());
                        Some((
                            change.0,
                            *prefixes,
                            *written,
                            *deleted,
                            failed.len(),
                            last.unwrap_or_default(),
                        ))
                    }
                    _ => None,
                })
            })
            .collect();
        let expected = [
            (1, 2_000, 2_000, 0, 0, "installed"),
            (2, 2_000, 1_999, 0, 1, "installed"),
            (3, 2_000, 2_000, 0, 0, "installed"),
            (4, 1_500, 0, 1_000, 0, "gone"),
            (5, 2_000, 2_000, 0, 0, "installed"),
            (6, 500, 0, 500, 0, "gone"),
            (7, 1_500, 1_500, 0, 0, "installed"),
        ];
        let expected = expected.map(|(c, p, w, d, f, last)| (c, p, w, d, f, last.to_owned()));
        assert_eq!(reported, expected);
        assert_eq!(rig.ask(|v| (v.counts().installed, v.counts().failed)), (6_001, 1));
        let over = |hop| own("-4").iter().filter(|l| l.contains(&format!("via {hop} "))).count();
        assert_eq!((over("192.0.2.8"), over("192.0.2.9")), (3_001, 3_000));
        rig.stop();
    });
}

/// A next hop behind a multipath route of another daemon uses all of its working legs.
#[test]
fn routes_behind_a_multipath_route_of_another_process_have_all_of_its_legs() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24", "2001:db8::1/64"]);
        veth("eth1", "peer1", &["198.51.100.1/24", "2001:db8:51::1/64"]);
        ip("route add 203.0.113.0/24 proto static nexthop via 192.0.2.254 nexthop via 198.51.100.254");
        ip("-6 route add 2001:db8:9::/48 proto static nexthop via 2001:db8::fe nexthop via 2001:db8:51::fe");
        let rig = Rig::program();
        rig.learn("10.65.1.0/26", &["203.0.113.9"]);
        rig.learn("fd00:65::/122", &["2001:db8:9::9"]);
        let legs = || {
            let [v4, v6] = ["route show 10.65.1.0/26", "-6 route show fd00:65::/122"].map(ip);
            [v4.matches(" via ").count(), v6.matches(" via ").count()]
        };
        eventually("both legs of both families", PATIENCE, || legs() == [2, 2]);
        ip("link set peer1 down");
        eventually("the leg that carries", PATIENCE, || legs() == [1, 1]);
        ip("link set peer1 up");
        ip("route replace 203.0.113.0/24 proto static nexthop via 192.0.2.254 nexthop via 198.51.100.254");
        ip(
            "-6 route replace 2001:db8:9::/48 proto static nexthop via 2001:db8::fe nexthop via 2001:db8:51::fe",
        );
        eventually("both again", PATIENCE, || legs() == [2, 2]);
        rig.stop();
    });
}

/// Forwarding as the agent requires it, whatever process disables it; and other sysctls that it sets.
#[test]
fn forwarding_that_another_process_switches_off_is_on_again_and_reported() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24", "2001:db8::1/64"]);
        let net = |path: &str| format!("/proc/sys/net/{path}");
        let read = |path: &str| std::fs::read_to_string(net(path)).unwrap().trim().to_owned();
        let write = |path: &str, value: &str| std::fs::write(net(path), value).unwrap();
        let mut rig = Rig::program();
        rig.blackholes(&["10.65.0.0/26", "fd00:65::/122"]);
        let accepts = "ipv6/conf/eth0/accept_ra";
        assert_eq!(read(accepts), "2", "the host still listens to its routers");
        for (path, name, value) in [
            ("ipv4/ip_forward", "net.ipv4.ip_forward was set to 0", "1"),
            ("ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding was set to 0", "1"),
            (accepts, "net.ipv6.conf.eth0.accept_ra was set to 1", "2"),
        ] {
            assert_eq!(read(path), value);
            let before = rig.ask(|view| view.counters().external_changes);
            write(path, if path == accepts { "1" } else { "0" });
            eventually(name, PATIENCE, || read(path) == value);
            let (first, held) = rig.wait("Repaired", |fact| match fact {
                KernelFact::Repaired { first, held, .. } => Some((first.clone(), *held)),
                _ => None,
            });
            assert_eq!((first.as_str(), held), (name, false));
            assert_eq!(rig.ask(|view| view.counters().external_changes), before + 1);
        }
        // During a drift hold it is reported and not repaired.
        rig.send(ToKernel::HoldDrift(Some(Duration::from_secs(60)), Box::new(|| ())));
        write("ipv4/ip_forward", "0");
        let held = rig.wait("Repaired", |fact| match fact {
            KernelFact::Repaired { held, .. } => Some(*held),
            _ => None,
        });
        assert_eq!((held, read("ipv4/ip_forward").as_str()), (true, "0"));
        rig.send(ToKernel::HoldDrift(None, Box::new(|| ())));
        eventually("forwarding is on again", PATIENCE, || read("ipv4/ip_forward") == "1");
        rig.stop();
    });
}
