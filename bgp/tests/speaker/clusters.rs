//! Clusters of route reflectors (RFC 4456).

use tortie_bgp::{Input, PeerId};

use crate::net::Net;
use crate::support::cidr;

/// Two reflectors, 0 and 1, with one client each, 2 and 3, in these clusters.
fn reflectors(clusters: [u32; 2]) -> Net {
    let mut net = Net::new(7);
    for _ in 0..4 {
        net.node(64512);
    }
    net.ready_all();
    net.join(0, 1, |_, _| ());
    for (at, cluster) in clusters.into_iter().enumerate() {
        net.join(at, at + 2, |n, c| c.reflector_client = (n == at).then_some(cluster));
        net.originate(at + 2, &[["10.2.0.0/24", "10.3.0.0/24"][at]]);
    }
    net.secs(3);
    net
}

#[test]
fn another_cluster_acts_at_once_both_ways() {
    let mut net = reflectors([5, 5]);
    let clusters = |net: &Net, at: usize, from: usize, prefix: &str| {
        net.received(at, from).get(&cidr(prefix)).map(|a| a.cluster_list().to_vec())
    };
    // RFC 4456 8: routes reflected by the other reflector of the same cluster are not used.
    assert_eq!(
        (net.best_prefixes(0), net.best_prefixes(1)),
        (vec!["10.2.0.0/24".into()], vec!["10.3.0.0/24".into()])
    );
    let change = |net: &mut Net, cluster: Option<u32>| {
        net.half(0, 2, &|_, c| c.reflector_client = cluster);
        net.secs(1);
    };
    change(&mut net, Some(6));
    for n in 0..2 {
        assert_eq!(net.best_prefixes(n), ["10.2.0.0/24", "10.3.0.0/24"], "node {n}");
    }
    assert_eq!(clusters(&net, 1, 0, "10.2.0.0/24"), Some(vec![6]));
    assert_eq!(clusters(&net, 3, 1, "10.2.0.0/24"), Some(vec![5, 6]));
    assert_eq!(clusters(&net, 2, 0, "10.3.0.0/24"), Some(vec![6, 5]));
    change(&mut net, Some(5));
    assert_eq!((net.best_prefixes(0).len(), net.best_prefixes(1).len()), (1, 1), "a loop again");
    // The same when the client is removed, and the cluster with it.
    net.give(0, Input::RemovePeer(PeerId(2)));
    net.secs(1);
    assert_eq!(net.best_prefixes(0), ["10.3.0.0/24"]);
    net.half(0, 2, &|_, c| c.reflector_client = Some(5));
    net.secs(60);
    assert_eq!(net.best_prefixes(0), ["10.2.0.0/24"]);
    assert_eq!((net.status(0, 1).flaps, net.status(1, 3).flaps), (0, 0));
}
