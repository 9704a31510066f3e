//! The writer of OpenStack as referee: the syncers of networking-calico write security groups and ports to a
//! real etcd, and the policy that Tortie reads there must be what Neutron means by them. Tortie's reading
//! must not make the writer's next resync find anything to change.

use serde_json::{Value, json};

use crate::common::command::tortie;
use crate::common::etcd::{Cluster, Security};
use crate::common::neutron::Neutron;

/// Host of all ports.
const HOST: &str = "Compute-1.example";

fn port(neutron: &mut Neutron, name: &str, addr: &str, groups: &[&str]) {
    let (id, device) = (format!("{name}-0000-aaaa"), format!("vm-{name}"));
    neutron.port(&id, (HOST, &device, "fa:16:3e:00:00:01"), addr, groups);
}

/// Returns true if the policy in the store allows a TCP connection to a port; panics if the answer is none.
fn allows(url: &str, from: &str, to: &str, port: &str) -> bool {
    let out = tortie(&[
        "--datastore",
        url,
        "--node",
        HOST,
        "policy",
        "trace",
        "--offline",
        "--from",
        from,
        "--to",
        to,
        "--proto",
        "tcp",
        "--dport",
        port,
        "-o",
        "json",
    ]);
    let text = String::from_utf8_lossy(&out.stdout);
    match out.status.code() {
        Some(0) => true,
        Some(1) => false,
        code => panic!("{from} to {to}:{port}: {code:?} {text} {}", String::from_utf8_lossy(&out.stderr)),
    }
}

#[test]
fn security_groups_mean_what_neutron_means() {
    let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
    let Some(mut neutron) = Neutron::start(&cluster.endpoints()) else { return };
    let url = cluster.url();
    neutron.ask(&json!({"op": "start"}));
    neutron.ask(&json!({"op": "subnet", "id": "s", "cidr": "10.65.0.0/24", "gateway": "10.65.0.1"}));
    let egress = json!({"direction": "egress"});
    let http =
        json!({"protocol": "tcp", "port_range_min": 80, "port_range_max": 89, "remote_group_id": "app"});
    let ssh = json!({"protocol": "tcp", "port_range_min": 22, "port_range_max": 22, "remote_ip_prefix": "10.65.0.8/29"});
    neutron.group("app", "App servers", &[&egress]);
    neutron.group("web", "web", &[&http, &ssh]);
    port(&mut neutron, "web", "10.65.0.2", &["web"]);
    port(&mut neutron, "app", "10.65.0.3", &["app"]);
    port(&mut neutron, "admin", "10.65.0.9", &["app"]);
    port(&mut neutron, "none", "10.65.0.4", &[]);

    // From, to, port, and whether Neutron's rules allow it.
    let table = [
        ("10.65.0.3", "10.65.0.2", "80", true),
        ("10.65.0.3", "10.65.0.2", "89", true),
        ("10.65.0.3", "10.65.0.2", "90", false),
        ("10.65.0.3", "10.65.0.2", "22", false),
        ("10.65.0.9", "10.65.0.2", "22", true),
        ("10.65.0.2", "10.65.0.3", "80", false),
        ("10.65.0.4", "10.65.0.2", "80", false),
        ("10.65.0.3", "10.65.0.4", "80", false),
    ];
    for (from, to, port, allowed) in table {
        assert_eq!(allows(&url, from, to, port), allowed, "{from} to {to}:{port}");
    }
    assert_eq!(neutron.resync(), json!({"changes": []}));

    // A port leaves a group, and a group loses a rule.
    port(&mut neutron, "app", "10.65.0.3", &["web"]);
    assert!(!allows(&url, "10.65.0.3", "10.65.0.2", "80"), "it has no group with egress any more");
    neutron.group("web", "web", &[&http]);
    assert!(!allows(&url, "10.65.0.9", "10.65.0.2", "22"), "the rule for SSH is gone");
    assert_eq!(neutron.resync(), json!({"changes": []}));
    neutron.ask(&json!({"op": "delete-port", "id": "web-0000-aaaa"}));
    let out = tortie(&["--datastore", &url, "--node", HOST, "endpoint", "list", "--offline", "-o", "json"]);
    let listed: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(listed["items"].as_array().unwrap().len(), 3, "{listed:#}");
}
