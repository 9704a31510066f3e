//! Test sequence for every container engine.

use crate::common::hosts::within;
use crate::engines::site::{HOSTS, PATIENCE, Site, Workload};

/// A container engine that runs on both hosts.
pub(crate) trait Engine {
    /// Starts a container.
    fn start(&mut self, site: &Site, host: usize, name: &str) -> Workload;
    /// Stops and removes a container.
    fn remove(&mut self, site: &Site, host: usize, name: &str);
}

/// Checks that containers of both hosts reach each other in a network of other plugins, which validates the
/// setup of later tests.
pub(crate) fn reference(site: &Site, engine: &mut dyn Engine) {
    let pair = HOSTS.map(|host| engine.start(site, host, &format!("ref{host}")));
    site.wait_until_reachable(&pair[0], &pair[1]);
    for host in HOSTS {
        engine.remove(site, host, &format!("ref{host}"));
    }
}

/// Checks containers on both hosts: they reach each other, a policy between them is enforced, their addresses
/// are released, and nothing is left after `rounds` rounds.
pub(crate) fn life(site: &mut Site, engine: &mut dyn Engine, rounds: usize) {
    // The first container of a host creates permanent state: blocks, the profile, a blackhole route.
    let first = HOSTS.map(|host| engine.start(site, host, "web0"));
    site.wait_until_reachable(&first[0], &first[1]);
    assert_eq!(site.given(), 2, "one address a container");
    site.policy_holds(&first[0], &first[1]);
    // Both agents crash: packets still pass, and the agents resume their work.
    for host in HOSTS {
        site.hosts.kill(&format!("host{host}"));
    }
    for (from, to) in [(0, 1), (1, 0)] {
        within(PATIENCE, "an answer without agents", || site.pings(&first[from], &first[to].addr));
    }
    for host in HOSTS {
        site.hosts.start(&format!("host{host}"));
    }
    site.hosts.until_sessions(1);
    site.wait_until_reachable(&first[0], &first[1]);
    for host in HOSTS {
        engine.remove(site, host, "web0");
    }
    site.nothing_held();
    let before = HOSTS.map(|host| site.remains(host));
    let keys = site.keys();
    for round in 1..=rounds {
        let name = format!("web{round}");
        let pair = HOSTS.map(|host| engine.start(site, host, &name));
        site.wait_until_reachable(&pair[0], &pair[1]);
        for host in HOSTS {
            engine.remove(site, host, &name);
        }
    }
    site.nothing_held();
    site.as_before(&before, &format!("after {rounds} containers on each host"));
    let names = |keys: &std::collections::BTreeMap<String, _>| keys.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&site.keys()), names(&keys), "the store has the keys that it had");
}

/// Checks containers with both families on etcd: both addresses are reachable from the other host, and both
/// are released.
pub(crate) fn dual(site: &Site, engine: &mut dyn Engine, rounds: usize) {
    let mut before = None;
    for round in 0..=rounds {
        let name = format!("both{round}");
        let pair = HOSTS.map(|host| engine.start(site, host, &name));
        let six = [site.ipv6_of(&pair[0]), site.ipv6_of(&pair[1])];
        site.wait_until_reachable(&pair[0], &pair[1]);
        site.wait_until_reachable(&six[0], &six[1]);
        assert_eq!(site.given(), 4, "an address of each family for each");
        for host in HOSTS {
            engine.remove(site, host, &name);
        }
        site.nothing_held();
        before.get_or_insert_with(|| HOSTS.map(|host| site.remains(host)));
    }
    site.as_before(&before.unwrap(), "after containers with both families");
}
