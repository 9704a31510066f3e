//! Many peers at once, played by the load generator of the benchmarks.

use std::time::Duration;

use serde_json::json;
use tortie::speaker::{SpeakerFact, SpeakerOptions};
use tortie_bgp::State;

use crate::bgp_load::measure::Processes;
use crate::bgp_load::run::{self, Options};
use crate::bgp_load::scenario::{OWN_AS, Scenario};
use crate::rig::net;
use crate::rig::node::{Node, intent, peer, wait_for};

/// Time limit for a thousand sessions at once on a loaded machine.
const LONG: Duration = Duration::from_secs(180);

#[test]
fn a_thousand_peers_connect_in_the_same_instant() {
    if !net::enter(&["10.64.0.1/32"]) {
        return;
    }
    let scenario = Scenario::named("Dburst", false, &[]).unwrap();
    let blocks = ["10.127.0.0/26", "10.127.0.64/26", "10.127.0.128/26", "10.127.0.192/26"];
    let mut a = intent("10.64.0.1:1790", OWN_AS, &blocks);
    for other in &scenario.peers {
        let mut p = peer(&format!("{}:1790", other.address), "10.64.0.1", other.asn);
        p.dial_after = None;
        a.peers.insert(other.address.to_string(), p);
    }
    // A restart: best paths are used after every peer has sent End-of-RIB.
    let options = SpeakerOptions { restarting: Some(Vec::new()), ..SpeakerOptions::default() };
    let a = Node::start_with(a, options);
    a.fact("listening", |f| matches!(f, SpeakerFact::Listening(_)));
    // The thread is in the same namespace; it keeps the sessions for a while after everything has arrived.
    let load = std::thread::spawn(move || {
        let options = Options {
            port: 1790,
            daemon: Processes::default(),
            seed: 1,
            timeout: LONG,
            started: None,
            idle: Duration::from_millis(1),
        };
        run::run(&scenario, &options).unwrap()
    });
    wait_for(LONG, "the kernel to have all", || match a.routes() {
        4000 => Ok(()),
        n => Err(n.to_string()),
    });
    // The first peer is the observer.
    assert_eq!(a.route("10.128.0.64/26"), Some(vec!["10.65.0.2".parse().unwrap()]));
    // The facts have another queue than the routes.
    let ups =
        || a.facts().iter().filter(|f| matches!(f, SpeakerFact::Peer { to: State::Established, .. })).count();
    wait_for(LONG, "each peer to be reported", || match ups() {
        1001.. => Ok(()),
        n => Err(n.to_string()),
    });
    assert_eq!(ups(), 1001);
    let rows = load.join().unwrap();
    let row = rows.first().unwrap();
    // Every peer has the daemon's prefixes, the observer all 4,004, and no peer was sent others.
    for (name, value) in [("established", json!(1001)), ("lost", json!(0)), ("retries", json!(0))] {
        assert_eq!(row[name], value, "{name}: {row:?}");
    }
    for name in ["seconds", "upSeconds", "observerSeconds", "peersSeconds"] {
        assert!(row[name].is_number(), "{name}: {row:?}");
    }
    assert!(!row.contains_key("strangePrefixes"), "{row:?}");
    wait_for(LONG, "the kernel to have none", || match a.routes() {
        0 => Ok(()),
        n => Err(n.to_string()),
    });
}
