//! Results of a simulated agent in observe mode: one difference of each kind between BIRD, Felix and the
//! intent.

use serde_json::{Value, json};
use tortie::api::policy::Diff;

/// Returns its part of `status`.
pub(crate) fn status() -> Value {
    let plane = |plane: &str, equal, different, missing, extra, unknown| json!({ "plane": plane, "equal": equal, "different": different, "missing": missing, "extra": extra, "notJudged": unknown });
    json!({
        "bird": ["BIRD 1.6.8 at /var/run/calico/bird.ctl: 22 of 23 sessions up, 47 routes"],
        "felix": ["iptables-legacy filter IPv4: 12 chains, 40 rules", "ipset: 3 sets"],
        "planes": [plane("route", 41, 1, 1, 1, 0), plane("interface", 12, 0, 0, 0, 1), plane("rule", 30, 0, 0, 0, 1)],
        "unseen": ["rules of ip6tables-nft: ip6tables-nft-save is not installed here"],
        "comparedSeconds": 75,
    })
}

/// Returns its answer to `diff`. Parts that were not compared are first here, so that the page must move them
/// to the end.
pub(crate) fn diff() -> Diff {
    let line = |mark: &str, text: &str| json!({ "mark": mark, "text": text });
    let section = |what: &str, lines: Vec<Value>| json!({ "what": what, "mode": "observe", "count": 3, "lines": lines, "trouble": "", "equal": 53, "notJudged": 1 });
    let routes = vec![
        line("?", "neighbours: static neighbours and sysctls of 12 workloads are not compared"),
        line("-", &format!("10.244.3.0/26: route to block of {}: missing", super::fake_agent::HOSTILE)),
        line("~", "10.244.2.0/26: should be via 10.0.0.2 dev eth0, and is via 10.0.0.9 dev eth0"),
        line("+", "10.244.77.0/26: no peer announces it any more"),
    ];
    let rules = vec![line("?", "frame: failsafe ports are not compared")];
    serde_json::from_value(json!({ "sections": [section("routes", routes), section("rules", rules)],
        "unseen": ["rules of ip6tables-nft: ip6tables-nft-save is not installed here"] }))
    .unwrap()
}
