//! Many peers at once.

use crate::load;

use std::net::Ipv4Addr;
use std::time::Duration;

use tortie::speaker::{SpeakerFact, SpeakerOptions};
use tortie_bgp::State;

use crate::net;
use crate::node::{Node, intent, peer, wait_for};

#[test]
fn a_thousand_peers_connect_in_the_same_instant() {
    if !net::enter(&[]) {
        return;
    }
    let peers: Vec<Ipv4Addr> =
        (0..1000).map(|i| Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 65, 0, 1)) + i)).collect();
    let mut a =
        intent("192.0.2.1:1790", 64512, &["10.1.0.0/26", "10.1.0.64/26", "10.1.0.128/26", "10.1.0.192/26"]);
    for address in &peers {
        let mut p = peer(&format!("{address}:1790"), "192.0.2.1", 64512);
        p.dial_after = None;
        a.peers.insert(address.to_string(), p);
    }
    let mut observer = peer("192.0.2.2:1790", "192.0.2.1", 65000);
    observer.dial_after = None;
    a.peers.insert("observer".into(), observer);
    // A start that says it is a restart: routes are taken once every peer has sent its End-of-RIB.
    let options = SpeakerOptions { restarting: Some(Vec::new()), ..SpeakerOptions::default() };
    let a = Node::start_with(a, options);
    a.fact("listening", |f| matches!(f, SpeakerFact::Listening(_)));
    let plan = load::Plan {
        target: "192.0.2.1:1790".parse().unwrap(),
        asn: 64512,
        at_once: peers.len(),
        peers,
        blocks: 4,
        base: Ipv4Addr::new(10, 128, 0, 0),
        observer: Some((Ipv4Addr::new(192, 0, 2, 2), 65000)),
        originated: 4,
        timeout: Duration::from_secs(60),
        idle: Duration::from_secs(1),
        pid: None,
        fib: false,
    };
    // The thread lives in the same namespace; it keeps the sessions for a while after all is there.
    let load = std::thread::spawn(move || load::run(&plan).unwrap());
    wait_for(Duration::from_secs(60), "the kernel to have all", || match a.routes() {
        4000 => Ok(()),
        n => Err(n.to_string()),
    });
    assert_eq!(a.route("10.128.0.64/26"), Some(vec!["10.65.0.1".parse().unwrap()]));
    let ups =
        a.facts().iter().filter(|f| matches!(f, SpeakerFact::Peer { to: State::Established, .. })).count();
    assert_eq!(ups, 1001);
    let report = load.join().unwrap();
    assert_eq!(
        (report.established, report.observed, report.lost, report.retries),
        (1000, 4004, 0, 0),
        "{report:?}"
    );
    assert!(report.up.is_some() && report.observer.is_some() && report.peers.is_some(), "{report:?}");
    wait_for(Duration::from_secs(10), "the kernel to have none", || match a.routes() {
        0 => Ok(()),
        n => Err(n.to_string()),
    });
}
