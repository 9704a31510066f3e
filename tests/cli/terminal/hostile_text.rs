//! Texts from others have no effect on a terminal: keys, names, values and labels are printed as text,
//! whatever they contain.

use serde_json::Value;

use crate::agent::Agent;
use crate::common::command::tortie;

/// Escape sequences of ECMA-48 for a colour, a title and clearing the screen; C1 controls, DEL; other line
/// ends; writing direction.
const HOSTILE: &str = "x\u{1b}[31m\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\u{7f}\r\u{8}\u{202e}\u{2028}y";

fn acts(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns commands that read the store or query the agent, with this name, and the endpoint with this name.
pub(crate) fn commands<'a>(h: &'a str, long: &'a str) -> Vec<Vec<&'a str>> {
    vec![
        vec!["status"],
        vec!["status", "--all-nodes"],
        vec!["bgp", "peers"],
        vec!["bgp", "peer", "127.0.0.2"],
        vec!["bgp", "peer", h],
        vec!["bgp", "peers", "--all-nodes"],
        vec!["bgp", "routes"],
        vec!["bgp", "ranges"],
        vec!["route", "list"],
        vec!["endpoint", "list"],
        vec!["endpoint", "list", "--all", "--offline"],
        vec!["endpoint", "show", "w1"],
        vec!["endpoint", "show", long],
        vec!["endpoint", "show", h, "--offline"],
        vec!["policy", "list", "--all"],
        vec!["policy", "list", "--all", "--offline"],
        vec!["policy", "show", h],
        vec!["policy", "show", "good", "--offline"],
        vec!["policy", "trace", "--from", "10.244.0.1", "--to", "10.244.0.9", "--proto", "icmp"],
        vec!["policy", "trace", "--from", h, "--to", "10.244.0.9", "--proto", "icmp", "--offline"],
        vec!["selector", "match", "has(role)"],
        vec!["selector", "match", "has(web)", "--offline"],
        vec!["selector", "eval", h],
        vec!["why", "peer", "127.0.0.2"],
        vec!["why", "peer", "127.0.0.9"],
        vec!["why", "ip", "10.244.0.1"],
        vec!["why", "route", "10.244.0.0/26"],
        vec!["history"],
        vec!["diff"],
        vec!["ipam", "pools"],
        vec!["ipam", "blocks"],
        vec!["ipam", "show", "10.244.0.1"],
        vec!["ipam", "check", "--store-only"],
        vec!["node", "list"],
        vec!["node", "show", h],
        vec!["node", "show", "h1"],
        vec!["node", "settings", "h1"],
        vec!["store", "ls"],
        vec!["store", "get", "/calico/v1/config/LogPrefix"],
        vec!["store", "get", h],
        vec!["store", "export"],
        vec!["store", "export", "--redact"],
        vec!["store", "validate"],
        vec!["store", "put", "/calico/v1/Ready", h],
        vec!["store", "rm", h],
    ]
}

/// Every command that reads the store or queries the agent, in every output format.
#[test]
fn nothing_that_acts_on_a_terminal_comes_out_of_any_command() {
    let h = HOSTILE;
    let label = serde_json::json!({ "role": h, h: "v" });
    let endpoint = serde_json::json!({
        "state": "active", "name": "cali1", "profile_ids": ["p", h], "labels": {"role": h}, "ipv4_nets": ["10.244.0.1/32"],
        "annotations": label,
    });
    let entries: Vec<(String, String)> = vec![
        ("/calico/v1/ipam/v4/pool/10.244.0.0-16".into(), r#"{"cidr":"10.244.0.0/16"}"#.into()),
        (format!("/calico/v1/config/{h}"), h.into()),
        ("/calico/v1/config/LogPrefix".into(), h.into()),
        ("/calico/v1/config/LogSeverityScreen".into(), h.into()),
        (format!("/calico/bgp/v1/host/{h}/ip_addr_v4"), "127.0.0.9".into()),
        (format!("/calico/bgp/v1/host/h7/{h}"), h.into()),
        (format!("/calico/v1/host/{h}/metadata"), "{}".into()),
        ("/calico/v1/host/h1/workload/cni/w1/endpoint/eth0".into(), endpoint.to_string()),
        (format!("/calico/v1/host/h1/workload/cni/{h}/endpoint/eth1"), endpoint.to_string().replace("cali1", "cali2")),
        (format!("/calico/v1/host/h1/workload/cni/w2/endpoint/{h}"), h.into()),
        (format!("/calico/v1/policy/profile/{h}/rules"), r#"{"inbound_rules":[],"outbound_rules":[]}"#.into()),
        (format!("/calico/v1/policy/profile/{h}/tags"), serde_json::json!(["web"]).to_string()),
        (format!("/calico/v1/policy/tier/default/policy/{h}"), format!("{{\"selector\":\"{h}")),
        (
            format!("/calico/v1/policy/tier/{h}/policy/good"),
            r#"{"selector":"all()","order":1,"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#.into(),
        ),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.2".into(), r#"{"ip":"127.0.0.2","as_num":"65000","port":1}"#.into()),
        (format!("/calico/bgp/v1/global/filters/{h}"), h.into()),
        (format!("/calico/ipam/v2/handle/{h}"), serde_json::json!({ "id": h, "block": {} }).to_string()),
        (format!("/calico/tortie/v1/status/{h}"), serde_json::json!({ "node": h, "verdict": h }).to_string()),
    ];
    let borrowed: Vec<(&str, &str)> =
        entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let agent = Agent::start(&borrowed);
    let long = format!("cni/{h}/eth1");
    let commands = commands(h, &long);
    let mut tried = 0;
    for words in &commands {
        for form in ["table", "wide", "json", "yaml"] {
            let all = [&["--datastore", &agent.store.url], words.as_slice(), &["-o", form]].concat();
            let output = agent.run(&all);
            for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
                let text = std::str::from_utf8(bytes).unwrap();
                let found = text.chars().find(|c| acts(*c));
                assert_eq!(found, None, "{name} of {words:?} -o {form}: {text:?}");
            }
            if form == "json" && !output.stdout.is_empty() {
                let json: Result<Value, _> = serde_json::from_slice(&output.stdout);
                assert!(json.is_ok(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
            }
            tried += 1;
        }
    }
    // In JSON, texts are those of the store.
    let got = agent.run(&[
        "--datastore",
        &agent.store.url,
        "store",
        "get",
        "/calico/v1/config/LogPrefix",
        "-o",
        "json",
    ]);
    assert_eq!(serde_json::from_slice::<Value>(&got.stdout).unwrap()["value"], h);
    // Also for names that are not arguments of this program.
    let wrong = tortie(&["store", "get", h, "--nonsense"]);
    assert!(wrong.status.code() == Some(2));
    println!("{tried} answers of {} commands, none with anything that acts", commands.len());
}
