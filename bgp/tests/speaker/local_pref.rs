//! A prefix that two speakers of one AS originate, with different LOCAL_PREF: a workload that moves between them.

use tortie_bgp::attr::{Attributes, Edit, Edits};
use tortie_bgp::{Export, Import, Input, Origination, PeerView, Policy, RouteTable, RouteView};
use tortie_net::Cidr;

use crate::net::Net;
use crate::support::{cidr, global, ip, policy, route};

const PREFIX: &str = "10.65.0.5/32";

/// Sends a local route with the LOCAL_PREF of its kind.
#[derive(Debug)]
struct PreferenceOfKind;

impl Policy for PreferenceOfKind {
    fn import(&self, _: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        Import::Accept
    }

    fn export(&self, _: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        let export = Export::announce("all");
        match route.local {
            Some(kind) => export.with_edits([Edit::LocalPref(kind)].into_iter().collect::<Edits>()),
            None => export,
        }
    }
}

fn originate(net: &mut Net, node: usize, local_pref: Option<u32>) {
    let route = local_pref.map(|pref| Origination { kind: pref, local_pref: Some(pref), ..route() });
    net.give(node, Input::Local(&[(cidr(PREFIX), route)]));
}

/// Three hosts in a mesh. The second one takes over the prefix of the first one: the third one always has the
/// route of the first one until that is withdrawn, and each takes the preferred one.
#[test]
fn a_local_route_stays_announced_inside_the_as_while_a_learned_one_is_preferred() {
    let mut net = Net::new(7);
    for n in 1..=3 {
        net.node_at(ip(&format!("10.255.0.{n}")), global(64512, n), policy(PreferenceOfKind));
    }
    net.ready_all();
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        net.join(a, b, |_, config| config.asn = 64512);
    }
    let prefix = cidr(PREFIX);
    let pref = |net: &Net, at, from| net.received(at, from).get(&prefix).and_then(|route| route.local_pref);
    let peer = |net: &Net, at: usize| net.nodes[at].best.get(&prefix).map(|best| best.peer.0);
    originate(&mut net, 0, Some(100));
    net.secs(3);
    assert_eq!((pref(&net, 2, 0), peer(&net, 2)), (Some(100), Some(0)));

    originate(&mut net, 1, Some(200));
    net.secs(3);
    assert_eq!((peer(&net, 0), peer(&net, 2)), (Some(1), Some(1)), "both prefer the new one");
    assert_eq!((pref(&net, 2, 0), pref(&net, 2, 1)), (Some(100), Some(200)), "and have the other one");
    let announced = net.table(0, RouteTable::AdjOut(tortie_bgp::PeerId(2)), tortie_bgp::Family::Ipv4Unicast);
    assert_eq!(announced.len(), 1);

    // A change of the route that is not the best one is announced.
    originate(&mut net, 0, Some(150));
    net.secs(3);
    assert_eq!((pref(&net, 2, 0), peer(&net, 2)), (Some(150), Some(1)));

    // The new one ends, and comes back: the other one is there.
    originate(&mut net, 1, None);
    net.secs(3);
    assert_eq!((pref(&net, 2, 0), pref(&net, 2, 1), peer(&net, 2)), (Some(150), None, Some(0)));
    originate(&mut net, 1, Some(200));
    net.secs(3);
    originate(&mut net, 0, None);
    net.secs(3);
    assert_eq!((pref(&net, 2, 0), peer(&net, 2), peer(&net, 0)), (None, Some(1), Some(1)));
}
