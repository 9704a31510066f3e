//! Effect of BFD down on a session and on stale routes (RFC 5882 3.2 and 4.3, RFC 9384).

use tortie_bgp::{DownCode, Input, PeerId, RestartPhase};

use crate::net::Net;

/// Two speakers with graceful restart; the second has two routes of the first.
fn pair(seed: u64) -> Net {
    let mut net = Net::new(seed);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    net.join(a, b, |_, _| ());
    net.originate(0, &["10.0.0.0/24", "10.0.1.0/24"]);
    net.secs(3);
    assert_eq!(net.nodes[1].best.len(), 2);
    net
}

fn lost(independent: bool) -> Input<'static> {
    Input::BfdDown { peer: PeerId(0), text: "control detection time expired".into(), independent }
}

#[test]
fn a_session_ends_with_its_subcode_and_its_routes_go_at_once() {
    for independent in [false, true] {
        let mut net = pair(1);
        net.give(1, lost(independent));
        let status = net.status(1, 0);
        let down = status.last_down.unwrap().0;
        assert_eq!((down.code, down.notification, down.helper), (DownCode::Bfd, Some((6, 10)), false));
        assert_eq!(down.text, "BFD: control detection time expired");
        assert_eq!((status.restart, status.families[0].stale), (RestartPhase::Idle, 0));
        net.run(std::time::Duration::from_millis(100));
        assert!(net.nodes[1].best.is_empty());
        assert_eq!(net.ended_with(0), [(6, 10)]);
        // BGP may come up without BFD.
        net.secs(5);
        assert!(net.is_up(0, 1));
        assert_eq!(net.nodes[1].best.len(), 2);
    }
}

#[test]
fn routes_of_a_peer_that_restarts_stay_unless_its_bfd_is_independent() {
    let mut net = pair(2);
    net.kill(0);
    net.secs(1);
    assert!(matches!(net.status(1, 0).restart, RestartPhase::Waiting(_)));
    // RFC 5882 4.3.2: its BFD shares fate with its control plane.
    net.give(1, lost(false));
    net.secs(1);
    assert_eq!(net.nodes[1].best.len(), 2);
    assert!(matches!(net.status(1, 0).restart, RestartPhase::Waiting(_)));
    // RFC 5882 4.3.1: its forwarding has failed.
    net.give(1, lost(true));
    net.secs(1);
    assert!(net.nodes[1].best.is_empty());
    assert_eq!(net.status(1, 0).restart, RestartPhase::Idle);
}

#[test]
fn a_peer_without_a_session_and_an_unknown_peer_lose_nothing() {
    let mut net = pair(3);
    net.give(1, Input::BfdDown { peer: PeerId(77), text: String::new(), independent: true });
    net.secs(1);
    assert!(net.is_up(0, 1));
    net.give(1, lost(false));
    net.give(1, lost(false));
    net.secs(5);
    assert!(net.is_up(0, 1));
    assert_eq!(net.status(1, 0).flaps, 1);
}
