//! Paths that share the load of a prefix (ECMP).

use std::net::IpAddr;

use tortie_bgp::{GlobalConfig, Input, Multipath};

use crate::net::Net;
use crate::support::{Rng, cidr, global, ip};

const NEIGHBOURS: [u32; 5] = [65001, 65001, 65002, 65001, 65003];
const PREFIX: &str = "10.1.0.0/24";

/// Node 0 with neighbours in these ASes, with increasing identifiers.
fn star() -> Net {
    let mut net = Net::new(1);
    net.node(64512);
    for asn in NEIGHBOURS {
        net.node(asn);
    }
    net.ready_all();
    for (n, asn) in NEIGHBOURS.into_iter().enumerate() {
        net.join(0, n + 1, |at, c| c.asn = if at == 0 { asn } else { 64512 });
    }
    net.secs(5);
    net
}

fn set(net: &mut Net, multipath: Multipath) {
    let global = GlobalConfig { multipath, ..global(64512, 0x0aff_0001) };
    net.give(0, Input::Global(global));
}

fn hops(net: &Net) -> Vec<IpAddr> {
    net.nodes[0]
        .best
        .get(&cidr(PREFIX))
        .map(|best| best.next_hops.iter().map(|hop| hop.addr()).collect())
        .unwrap_or_default()
}

#[test]
fn as_many_as_configured_share_the_load_and_those_with_equal_paths_where_it_is_not_relaxed() {
    let mut net = star();
    for n in 1..=NEIGHBOURS.len() {
        net.originate(n, &[PREFIX]);
    }
    net.secs(2);
    assert_eq!(hops(&net).len(), 5);
    let [one, two, three, four] = ["10.255.0.2", "10.255.0.3", "10.255.0.4", "10.255.0.5"].map(ip);
    for (max, relax, wanted) in [
        (Some(1), true, vec![one]),
        (Some(3), true, vec![one, two, three]),
        (Some(3), false, vec![one, two, four]),
        (None, false, vec![one, two, four]),
        (Some(2), false, vec![one, two]),
    ] {
        set(&mut net, Multipath { max, relax });
        net.secs(1);
        assert_eq!(hops(&net), wanted, "{max:?} {relax}");
        // The change resets no session.
        assert!((1..=NEIGHBOURS.len()).all(|n| net.is_up(0, n) && net.status(0, n).flaps == 0));
    }
    net.withdraw(1, &[PREFIX]);
    net.secs(1);
    assert_eq!(hops(&net), [two, four]);
}

/// For any order of announcements and withdrawals.
#[test]
fn the_width_depends_on_nothing_but_the_paths_that_are_there() {
    let mut net = star();
    let mut rng = Rng(5);
    let mut there = [false; NEIGHBOURS.len()];
    let mut multipath = Multipath::default();
    for step in 0..400 {
        if rng.below(5) == 0 {
            let max = [None, Some(1), Some(2), Some(3)][rng.below(4)];
            multipath = Multipath { max, relax: rng.below(2) == 0 };
            set(&mut net, multipath);
        } else {
            let n = rng.below(NEIGHBOURS.len());
            there[n] = !there[n];
            if there[n] { net.originate(n + 1, &[PREFIX]) } else { net.withdraw(n + 1, &[PREFIX]) }
        }
        net.secs(1);
        let mut alive: Vec<usize> = (0..NEIGHBOURS.len()).filter(|n| there[*n]).collect();
        if let (false, Some(first)) = (multipath.relax, alive.first().copied()) {
            alive.retain(|n| NEIGHBOURS[*n] == NEIGHBOURS[first]);
        }
        alive.truncate(multipath.max.map_or(usize::MAX, usize::from));
        let wanted: Vec<IpAddr> = alive.iter().map(|n| ip(&format!("10.255.0.{}", n + 2))).collect();
        assert_eq!(hops(&net), wanted, "step {step}: {multipath:?}");
    }
}
