//! A whole agent while another process changes 50,000 routes per second for ten seconds, and while the agent
//! cannot read for a while.

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "enters a lab's namespace; a test ends where something is not as it must be"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::concurrency;
use crate::common::hosts::{Hosts, PATIENCE, Plan, block, block_keys, lab_data, within};
use crate::common::route_churn::RouteFlood;
use crate::interop::rig::stalled;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tortie_topology::Signal;

const PER_SECOND: u32 = 55_000;
const CHURN: Duration = Duration::from_secs(10);
/// Number of routes deleted under the flood that prove that the agent repairs: more than were there.
const ATTACKS: usize = 20;
/// Maximum time to the right state after the flood. Without a comparison for the loss it would take minutes.
const MOST: Duration = Duration::from_secs(2);
const MOST_IF_BUSY: Duration = Duration::from_secs(15);
const OWN: u32 = 50;
const LEARNED: u32 = 200;

/// Returns the blocks of a host in numerical order.
fn cidr(host: u32, i: u32) -> String {
    format!("10.244.{}.{}/26", 100 * host + i / 4, i % 4 * 64)
}

fn data() -> BTreeMap<String, String> {
    let mut data = lab_data(2, false);
    let own = (0..OWN).map(|i| (cidr(1, i), "host1"));
    for (cidr, host) in own.chain((0..LEARNED).map(|i| (cidr(2, i), "host2"))) {
        let [affinity, assignment] = block_keys(&cidr, host);
        data.insert(affinity, String::new());
        data.insert(assignment, block(&cidr, host));
    }
    data
}

/// Returns the number of notifications that the agent's sockets in its namespace have lost, as counted by the
/// kernel.
fn drops(pid: i32) -> u64 {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/netlink")).unwrap();
    let lines = table.lines().skip(1);
    lines.filter_map(|l| l.split_whitespace().nth(8)?.parse::<u64>().ok()).sum()
}

/// Returns the overrun counter as a scraper reads it.
fn overruns(hosts: &Hosts) -> f64 {
    let (code, body) = hosts.ask(1, "GET", "/metrics", "").unwrap();
    assert_eq!(code, 200, "{body}");
    let line = body.lines().find(|l| l.starts_with("tortie_kernel_netlink_overruns_total")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Returns the routes of the main table without ids of nexthop objects, which may change when a route is
/// restored.
fn routes(hosts: &Hosts, own: bool) -> Vec<String> {
    let text = hosts.run("host1", "ip route show");
    let mut lines: Vec<String> = text
        .lines()
        .filter(|l| l.contains("proto 179") == own)
        .map(|l| {
            let words: Vec<&str> = l.split_whitespace().collect();
            let id = words.iter().position(|w| *w == "nhid");
            let kept = words.iter().enumerate().filter(|(i, _)| id.is_none_or(|id| *i != id && *i != id + 1));
            kept.map(|(_, w)| *w).collect::<Vec<_>>().join(" ")
        })
        .collect();
    lines.sort();
    lines
}

/// Permission for the flood to end, given at the latest when this is dropped.
#[derive(Default)]
struct MayEnd(Arc<AtomicBool>);

impl Drop for MayEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes routes in the namespace at this path, from a thread that moves there: for [`CHURN`], and until
/// `may_end` is set. Returns the mean rate.
fn churn_in(netns: &Path, may_end: &AtomicBool) -> f64 {
    let netns = File::open(netns).unwrap();
    move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    let (flood, begin) = (RouteFlood::new(), Instant::now());
    let (mut sum, mut parts) = (0.0, 0.0);
    while begin.elapsed() < CHURN || !may_end.load(Ordering::Relaxed) {
        sum += flood.churn(PER_SECOND, 5_000, CHURN / 10);
        parts += 1.0;
    }
    sum / parts
}

#[test]
fn an_agent_that_cannot_read_under_a_flood_counts_it_and_is_right_within_two_seconds() {
    let _group = concurrency::ROUTE_FLOODS.join();
    let Some(mut hosts) = Hosts::up(Plan { hosts: 2, data: Some(data()), ..Plan::default() }) else { return };
    let wanted = (OWN + LEARNED + 2) as usize;
    within(PATIENCE, "all routes are there", || {
        let found = hosts.routes(1).len();
        if found == wanted { Ok(()) } else { Err(format!("{found} of {wanted}\n{}", hosts.log(1))) }
    });
    hosts.until(1, "stale routes are settled", |s| s["bgp"]["gracefulRestart"] == "idle");
    // Foreign routes inside own prefixes: with another protocol number, and without one.
    for words in [
        "add blackhole 10.244.2.0/26 proto 77 metric 5",
        "add 10.244.2.9/32 via 172.30.0.77 proto 99",
        "add 10.244.1.7/32 dev eth1 proto 99 metric 1790",
        "add 198.51.100.0/24 via 172.30.0.77",
    ] {
        hosts.run("host1", &format!("ip route {words}"));
    }
    let (own, others) = (routes(&hosts, true), routes(&hosts, false));
    assert_eq!(own.len(), wanted);
    let (pid, before) = (hosts.pid(1), overruns(&hosts));
    assert!(before < 0.5, "{}", hosts.log(1));

    let netns = hosts.lab.netns("host1").unwrap();
    let may_end = MayEnd::default();
    let ends = Arc::clone(&may_end.0);
    let churn = std::thread::spawn(move || churn_in(&netns, &ends));
    std::thread::sleep(Duration::from_secs(2));
    // As on an overloaded or suspended host: the socket is not read until it is full.
    let lost = drops(pid);
    hosts.signal("host1", Signal::STOP);
    let held = Instant::now();
    for i in 0..40 {
        hosts.run("host1", &format!("ip route del {} metric 1790", cidr(2, i)));
    }
    for i in 0..10 {
        hosts.run("host1", &format!("ip route del blackhole {} metric 1790", cidr(1, i)));
    }
    hosts.run("host1", "ip nexthop flush proto 179");
    assert_eq!(routes(&hosts, true).len(), OWN as usize - 10 + 1, "the routes over nexthop objects went too");
    within(PATIENCE, "the agent's buffer is full", || {
        if drops(pid) > lost { Ok(()) } else { Err("no notification was lost".to_owned()) }
    });
    std::thread::sleep(Duration::from_secs(1).saturating_sub(held.elapsed()));
    hosts.signal("host1", Signal::CONT);
    let held = held.elapsed();
    // The agent continues during the flood; more own routes are deleted.
    let (mut attacks, begin) = (0, Instant::now());
    while !churn.is_finished() {
        if attacks > ATTACKS || begin.elapsed() > PATIENCE {
            may_end.0.store(true, Ordering::Relaxed);
        }
        for i in 40..60 {
            let gone =
                hosts.lab.exec("host1", &["ip", "route", "del", &cidr(2, i), "metric", "1790"]).unwrap();
            attacks += usize::from(gone.status.success());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let rate = churn.join().unwrap();
    let (end, stalls) = (Instant::now(), stalled());
    let foreign = others.len() + 5_000;
    within(PATIENCE, "the end state is right", || {
        let now = routes(&hosts, true);
        if now != own {
            return Err(format!("{} of {} own routes", now.len(), own.len()));
        }
        let status = hosts.get(1, "/v1/status")?;
        let (drifted, seen) = (&status["routes"]["drifted"], &status["routes"]["foreign"]);
        // The agent's view of foreign routes matches the kernel, since next hops are resolved by it.
        let there = routes(&hosts, false).len() + hosts.run("host1", "ip -6 route show").lines().count();
        if *drifted == 0 && *seen == there {
            Ok(())
        } else {
            Err(format!("{drifted} drifted, {seen} of {there} foreign"))
        }
    });
    let took = end.elapsed();
    // The machine counts as busy if tasks waited for a processor for a quarter of the time.
    let waited = stalls.zip(stalled()).map(|(then, now)| now.saturating_sub(then));
    let is_busy = waited.is_none_or(|waited| waited > took / 4);
    let lost = overruns(&hosts);
    println!(
        "{rate:.0} changes/s for {CHURN:?}, held for {held:?}, {attacks} attacks later, {lost} overruns counted, right after {took:?}"
    );
    assert!(
        took < if is_busy { MOST_IF_BUSY } else { MOST },
        "right within two seconds: {:#}",
        hosts.get(1, "/v1/history?max=40").unwrap()
    );
    assert!(lost > before, "an overrun is counted");
    assert!(
        attacks > ATTACKS,
        "the agent repaired under the flood, so that there was something to take away: {attacks}"
    );
    // A busy machine proves the same with fewer changes; below this limit nothing would be proved.
    assert!(rate > 5_000.0, "the generator is too slow: {rate}");
    let now = routes(&hosts, false);
    assert_eq!(now.len(), foreign, "the flood's own routes are all there");
    let gone: Vec<&String> = others.iter().filter(|r| !now.contains(r)).collect();
    assert!(gone.is_empty(), "routes of others were touched: {gone:?}");
    let events = hosts.get(1, "/v1/history?subject=netlink").unwrap();
    assert!(events["items"].to_string().contains("notifications lost"), "{events}");
}
