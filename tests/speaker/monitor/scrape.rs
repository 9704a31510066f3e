//! Cost of a scrape with 1,000 peers and 100,000 routes: response time, and no blocked event loop.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Agent, table};

/// Returns the value of the sample with this prefix.
fn value(text: &str, start: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(start));
    line.and_then(|line| line.rsplit(' ').next()).and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

#[test]
#[ignore = "takes a minute: a thousand peers and a hundred thousand routes"]
fn long_a_scrape_with_a_thousand_peers_and_a_hundred_thousand_routes() {
    let agent = Agent::start(&[]);
    let hosts: BTreeMap<String, String> = (0..1_000)
        .map(|n| {
            let key = format!("/calico/bgp/v1/host/m{n}/ip_addr_v4");
            (key, format!("127.9.{}.{}", n / 250, n % 250 + 1))
        })
        .collect();
    let file = agent.path("hosts.json");
    std::fs::write(&file, serde_json::to_vec(&hosts).unwrap()).unwrap();
    assert!(agent.run(&["store", "import", file.to_str().unwrap()]).status.success());
    let prefixes: Vec<String> =
        (0..100_000_u32).map(|n| format!("{}.{}.{}.0/24", 20 + n / 65_536, n / 256 % 256, n % 256)).collect();
    let file = agent.path("table.mrt");
    table(&file, &prefixes, 1);
    let _player = agent.replay(&file, "600");
    let full = "tortie_rib_routes{rib=\"loc\",afi=\"ipv4\",safi=\"unicast\",source=\"bgp\"}";
    agent.wait_for("the table", |agent| value(&agent.text("/metrics"), full) >= 100_000.0);
    agent.wait_for("a thousand peers", |agent| {
        value(&agent.text("/metrics"), "tortie_bgp_peers_expected{type=\"mesh\"}") >= 1_000.0
    });
    let mut times: Vec<Duration> = Vec::new();
    let slow = |text: &str, of: &str| {
        let bucket = |le: &str| {
            value(text, &format!("tortie_event_loop_stall_seconds_bucket{{loop=\"{of}\",le=\"{le}\"}}"))
        };
        bucket("+Inf") - bucket("0.05")
    };
    let before = agent.text("/metrics");
    for _ in 0..50 {
        let begin = Instant::now();
        let text = agent.text("/metrics");
        times.push(begin.elapsed());
        assert!(text.contains(full));
    }
    let after = agent.text("/metrics");
    times.sort_unstable();
    println!(
        "scrape: median {:?}, slowest {:?}, {} octets, {} lines",
        times[25],
        times[49],
        after.len(),
        after.lines().count()
    );
    for of in ["core", "speaker", "kernel"] {
        let stalls = slow(&after, of) - slow(&before, of);
        println!("{of}: {stalls} turns of more than 50 ms in 50 scrapes");
        assert!(stalls <= 2.0, "{of} stood still for scrapes");
    }
}
