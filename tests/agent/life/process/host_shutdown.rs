//! A host before its shutdown: drained by an operator, or because the machine shuts down; and the messages to
//! its peers.

use std::time::Instant;

use serde_json::{Value, json};
use tortie_topology::Signal;

use crate::common::hosts::{Hosts, PATIENCE, Plan, stderr, stdout, within};
use crate::life::up;

const BLOCK: &str = "10.244.1.0/26";

/// State of host 1's block at a neighbour: `None` if absent, else true if it is marked with
/// GRACEFUL_SHUTDOWN.
type RouteMark = Option<bool>;

/// Returns the state at the router, an eBGP neighbour.
fn at_bird(hosts: &Hosts) -> RouteMark {
    let query = format!("birdc show route {BLOCK} protocol host1 all");
    let text = stdout(&hosts.lab.exec("switch", &query.split(' ').collect::<Vec<_>>()).unwrap());
    text.contains(BLOCK).then(|| text.contains("(65535,0)"))
}

/// Returns the state at the other host inside the AS, where the mark implies local preference 0.
fn at_host2(hosts: &Hosts) -> RouteMark {
    let output = hosts.tortie(2, &["bgp", "routes", BLOCK, "--from", "host1", "-o", "json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let path = list["items"].get(0)?["paths"].get(0)?;
    let marked = path["communities"].as_array().unwrap().contains(&json!("65535:0"));
    assert_eq!(path["localPref"] == 0, marked, "{path}");
    Some(marked)
}

fn until(hosts: &Hosts, bird: RouteMark, host2: RouteMark) {
    within(PATIENCE, "what neighbours have", || {
        let seen = (at_bird(hosts), at_host2(hosts));
        if seen == (bird, host2) { Ok(()) } else { Err(format!("{seen:?}\n{}", hosts.log(1))) }
    });
}

fn drain(hosts: &Hosts, words: &[&str]) -> Value {
    let output = hosts.tortie(1, &[&["bgp", "drain", "-o", "json"], words].concat());
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_host_that_leaves_announces_it_to_its_neighbours_first() {
    let Some(mut hosts) = up(Plan { hosts: 2, router: true, ..Plan::default() }) else { return };
    hosts.until_sessions(2);
    until(&hosts, Some(false), Some(false));

    // All peers: the state is reported per peer and correct.
    let report = drain(&hosts, &[]);
    let rows = report["items"].as_array().unwrap();
    assert_eq!((rows.len(), &report["drain"]), (2, &json!("announce")), "{report}");
    assert!(rows.iter().all(|r| r["result"] == "taken" && r["advertised"].as_u64() > Some(0)), "{report}");
    until(&hosts, Some(true), Some(true));
    hosts.until(1, "status says so", |s| s["notes"].to_string().contains("drained"));
    drain(&hosts, &["--undo"]);
    until(&hosts, Some(false), Some(false));
    hosts.until(1, "status says nothing", |s| !s["notes"].to_string().contains("drained"));

    // One peer by name, up to the withdrawal; the other keeps its routes.
    let report = drain(&hosts, &["host2", "--withdraw", "--grace", "0"]);
    assert_eq!((&report["drain"], &report["items"][0]["advertised"]), (&json!("withdraw"), &json!(0)));
    until(&hosts, Some(false), None);
    drain(&hosts, &["--undo"]);
    until(&hosts, Some(false), Some(false));

    // An invalid request is rejected with the name, and changes nothing.
    let output = hosts.tortie(1, &["bgp", "drain", "172.30.0.254", "host9"]);
    assert!(!output.status.success() && stderr(&output).contains("host9"), "{output:?}");
    for (body, code) in [(r#"{"drain":"sideways"}"#, 400), (r#"{"drain":"off","peers":["host9"]}"#, 404)] {
        let (found, text) = hosts.ask(1, "POST", "/v1/bgp/drain", body).unwrap();
        assert_eq!(found, code, "{text}");
    }
    assert_eq!((at_bird(&hosts), at_host2(&hosts)), (Some(false), Some(false)));

    // The router's operators can read the reason of a reset (RFC 9003).
    let text = "moved to rack 7, see OPS-4711";
    let reset = hosts.tortie(1, &["bgp", "reset", "172.30.0.254", "--text", text]);
    assert!(reset.status.success(), "{reset:?}");
    within(PATIENCE, "BIRD has the text", || {
        let said = hosts.run("switch", "birdc show protocols all host1");
        if said.contains(text) && said.contains("Administrative reset") { Ok(()) } else { Err(said) }
    });
    hosts.until(1, "the session is back", |s| s["bgp"]["peers"]["up"] == 1);
    until(&hosts, Some(false), Some(false));

    // The machine shuts down: routes are marked first, then withdrawn at once, also at graceful-restart
    // helpers.
    hosts.tool("systemctl", "echo stopping; exit 1");
    let kernel = hosts.routes(1);
    let begin = Instant::now();
    hosts.signal("host1", Signal::TERM);
    // The mark is there for a second. The agent is stopped meanwhile, so that a busy machine sees it.
    within(PATIENCE, "all routes are sent", || match hosts.log(1) {
        log if log.contains("drained: all routes were sent to 2 sessions") => Ok(()),
        log => Err(log),
    });
    hosts.signal("host1", Signal::STOP);
    within(PATIENCE, "BIRD has the mark", || match at_bird(&hosts) {
        Some(true) => Ok(()),
        seen => Err(format!("{seen:?}\n{}", hosts.log(1))),
    });
    hosts.signal("host1", Signal::CONT);
    hosts.until_ended(1);
    until(&hosts, None, None);
    println!("{:?} from SIGTERM to the withdrawal", begin.elapsed());
    assert_eq!(hosts.tortie(2, &["bgp", "routes", BLOCK]).status.code(), Some(1));
    assert_eq!(hosts.routes(1), kernel, "the kernel forwards to the last");
}
