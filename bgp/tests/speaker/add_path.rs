//! The number of paths sent per prefix (RFC 7911) follows the configuration without a session reset.

use tortie_bgp::{Drain, Family, Input, PeerId, RouteTable};

use crate::net::Net;
use crate::support::cidr;

const ORIGINS: usize = 4;
const RECEIVER: usize = ORIGINS + 1;

fn configure(net: &mut Net, paths: u8) {
    net.half(0, RECEIVER, &|_: usize, c: &mut tortie_bgp::PeerConfig| {
        c.asn = 65000 + RECEIVER as u32;
        c.add_path_send = paths;
    });
    net.secs(2);
}

/// Returns the path identifiers of the prefix at the receiver.
fn ids(net: &Net) -> Vec<u32> {
    let table = net.table(RECEIVER, RouteTable::AdjIn(PeerId(0)), Family::Ipv4Unicast);
    let mut ids: Vec<u32> =
        table.get(&cidr("10.0.0.0/24")).into_iter().flatten().filter_map(|p| p.path_id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn as_many_paths_as_the_configuration_says_come_and_go_within_a_session() {
    let mut net = Net::new(1);
    for n in 0..=RECEIVER {
        net.node(if n == 0 { 64512 } else { 65000 + n as u32 });
    }
    net.ready_all();
    for n in 1..=RECEIVER {
        net.join(0, n, |at, c| {
            c.asn = if at == 0 { 65000 + n as u32 } else { 64512 };
            c.add_path_receive = at == RECEIVER;
            c.add_path_send = u8::from(at == 0 && n == RECEIVER);
        });
    }
    for n in 1..=ORIGINS {
        net.originate(n, &["10.0.0.0/24"]);
    }
    net.secs(60);
    assert_eq!(ids(&net), [1]);
    let flaps = |net: &Net| net.status(0, RECEIVER).flaps;
    let before = flaps(&net);
    net.nodes[0].speaker.set_tap(true);
    for (paths, want) in
        [(3, &[1, 2, 3][..]), (2, &[1, 2]), (8, &[1, 2, 3, 4]), (1, &[1]), (255, &[1, 2, 3, 4])]
    {
        configure(&mut net, paths);
        assert_eq!(ids(&net), want, "{paths} paths");
        let status = net.status(0, RECEIVER);
        assert_eq!(
            (status.families[0].advertised as usize, status.up_to_date),
            (want.len(), true),
            "{paths} paths"
        );
    }
    // A lower number remains in effect when all routes are drained and restored.
    configure(&mut net, 2);
    for (drain, want) in [(Drain::Withdraw, &[][..]), (Drain::Announce, &[1, 2]), (Drain::Off, &[1, 2])] {
        net.give(0, Input::Drain(None, drain));
        net.secs(2);
        assert_eq!(ids(&net), want, "{drain:?}");
    }
    // The session is still the same: End-of-RIB is not sent again (RFC 4724 2).
    let tapped = net.nodes[0].speaker.take_tapped().unwrap();
    let ends = tapped.iter().filter(|(item, message)| {
        item.peer == PeerId(RECEIVER as u32) && message.get(18..) == Some(&[2, 0, 0, 0, 0])
    });
    assert_eq!((ends.count(), tapped.dropped), (0, 0));
    net.withdraw(1, &["10.0.0.0/24"]);
    net.withdraw(2, &["10.0.0.0/24"]);
    net.withdraw(3, &["10.0.0.0/24"]);
    net.secs(2);
    assert_eq!(ids(&net), [1]);
    assert_eq!(flaps(&net), before);
    // Offering add-path at all is part of the OPEN.
    configure(&mut net, 0);
    net.secs(60);
    assert_eq!(flaps(&net), before + 1);
}
