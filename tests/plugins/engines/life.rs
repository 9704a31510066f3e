//! What every engine is put through.

use crate::engines::site::{HOSTS, Site, Workload};

/// An engine that runs on both hosts.
pub(crate) trait Engine {
    /// Starts a container.
    fn start(&mut self, site: &Site, host: usize, name: &str) -> Workload;
    /// Ends it and removes it whole.
    fn remove(&mut self, site: &Site, host: usize, name: &str);
}

/// A container on each host reaches the other's. That is all that is asked of networks that are not ours: it shows that
/// what follows is a statement about us.
pub(crate) fn reference(site: &Site, engine: &mut dyn Engine) {
    let pair = HOSTS.map(|host| engine.start(site, host, &format!("ref{host}")));
    site.wait_until_reachable(&pair[0], &pair[1]);
    for host in HOSTS {
        engine.remove(site, host, &format!("ref{host}"));
    }
}

/// Containers on both hosts: they reach each other, a policy between them holds, what they held is given back, and
/// nothing is left after `rounds` of them.
pub(crate) fn life(site: &mut Site, engine: &mut dyn Engine, rounds: usize) {
    // The first container of a host leaves what is there once: blocks, the profile, a routes' blackhole.
    let first = HOSTS.map(|host| engine.start(site, host, "web0"));
    site.wait_until_reachable(&first[0], &first[1]);
    assert_eq!(site.given(), 2, "one address a container");
    site.policy_holds(&first[0], &first[1]);
    // Both agents crash: packets pass, and they take up where they were.
    for host in HOSTS {
        site.hosts.kill(&format!("host{host}"));
    }
    for (from, to) in [(0, 1), (1, 0)] {
        site.pings(&first[from], &first[to].addr).unwrap_or_else(|e| panic!("without agents: {e}"));
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

/// Containers with both families, on etcd: both are reached from the other host, and both are given back.
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
