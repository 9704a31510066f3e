//! Pages of a table: routes that do not change during a scan are returned once.

use std::collections::BTreeSet;

use proptest::{
    prelude::{ProptestConfig, any},
    prop_assert, prop_assert_eq, proptest,
};
use tortie_bgp::{Family, Input, PeerId, RouteMatch, RouteQuery, RouteTable};
use tortie_net::Cidr;

use crate::net::Net;
use crate::support::{Rng, cidr, route};

/// Node 0 with two neighbours that each announce 60 prefixes of 10.0.0.0/8, which stay, and changing ones of
/// 20.0.0.0/8 and 2001:db8::/32.
fn net(seed: u64) -> Net {
    let mut net = Net::new(seed);
    for n in 0..3 {
        net.node(65000 + n);
    }
    net.ready_all();
    for n in 1..3 {
        net.join(0, n, |at, c| c.asn = if at == 0 { 65000 + n as u32 } else { 65000 });
    }
    for n in 1..3 {
        let stay: Vec<_> = (0..60).map(|p| (cidr(&format!("10.{n}.{p}.0/24")), Some(route()))).collect();
        net.give(n, Input::Local(&stay));
        change(&mut net, n, &mut Rng(seed ^ n as u64), 80);
    }
    net.secs(30);
    net
}

fn change(net: &mut Net, node: usize, rng: &mut Rng, count: usize) {
    let changes: Vec<(Cidr, _)> = (0..count)
        .map(|_| (cidr(&format!("20.{node}.{}.0/24", rng.below(100))), (rng.below(2) == 0).then(route)))
        .collect();
    net.give(node, Input::Local(&changes));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// For any page size and query, and any changes in between.
    #[test]
    fn pages_together_are_the_whole_listing(
        seed in any::<u64>(), max in 1usize..30, slots in 1u32..200, pick in 0usize..4, busy in any::<bool>()
    ) {
        let mut net = net(seed);
        let mut rng = Rng(seed ^ 0x5eed);
        let all = RouteMatch::All(Family::Ipv4Unicast);
        let (table, matching) = [
            (RouteTable::Loc, all),
            (RouteTable::AdjIn(PeerId(2)), all),
            (RouteTable::AdjOut(PeerId(1)), all),
            (RouteTable::Loc, RouteMatch::Within(cidr("10.1.0.0/16"))),
        ][pick];
        let query = RouteQuery { table, matching };
        let whole: Vec<_> = net.nodes[0].speaker.routes(&query, None, 10_000);
        let stays = |p: &Cidr| cidr("10.0.0.0/8").covers(p);
        let (mut from, mut pages, mut prefixes) = (Some(0), 0, Vec::new());
        let mut read = Vec::new();
        while let Some(place) = from {
            let (page, next) = net.nodes[0].speaker.scan(&query, place, slots, max);
            prop_assert!(page.len() <= max);
            prop_assert!(next.is_none_or(|n| n > place && n <= place + slots));
            prefixes.extend(page.iter().map(|r| r.prefix));
            read.extend(page);
            (from, pages) = (next, pages + 1);
            if busy {
                for n in 1..3 {
                    let count = rng.below(40);
                    change(&mut net, n, &mut rng, count);
                }
                net.run(std::time::Duration::from_millis(200));
            }
        }
        let listed: Vec<Cidr> = whole.iter().map(|r| r.prefix).filter(|p| !busy || stays(p)).collect();
        if busy {
            prefixes.retain(stays);
            read.retain(|r| stays(&r.prefix));
        }
        prefixes.sort_unstable();
        prop_assert_eq!(&prefixes, &listed, "{} pages", pages);
        let least = if pick == 0 { 120 } else { 60 };
        prop_assert!(prefixes.iter().collect::<BTreeSet<_>>().len() >= least);
        read.sort_by_key(|r| r.prefix);
        for (one, other) in read.iter().zip(whole.iter().filter(|r| !busy || stays(&r.prefix))) {
            prop_assert_eq!(one, other);
        }
    }
}
