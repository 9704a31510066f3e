//! Table of faults on hosts: `status` reports each with its code, and the command that `status` names
//! explains it.
//!
//! All faults are in place before the agents start, on three hosts and in additional agents next to the
//! third. Two readings are simulated, since no namespace has its own: the clock by a preloaded library, the
//! size of the conntrack table by a file mounted over it. On kernels without ipip, a device of another kind
//! replaces the tunnel whose MTU is too large.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fault_setups::{
    ExtraAgent, FORGETFUL_STORE, start_extra_agent, with_clock_ahead, with_forgetful_firewall,
    with_stuck_peer, with_wrong_passwords,
};
use crate::common::hosts::{Hosts, PATIENCE, Plan, TORTIE, lab_data, poll_until, stderr, stdout, within};

/// Agent that is queried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Host(usize),
    /// An additional agent in the namespace of host 3.
    ExtraAgent(&'static str),
}

struct Fault {
    name: &'static str,
    at: At,
    code: &'static str,
    /// A word in the problem's subject or text.
    of: &'static str,
    /// Texts that the command named by `status` must all print.
    says: &'static [&'static str],
}

/// Time limit of a row; most take a moment, a slow peer half a minute.
const ROW: Duration = PATIENCE;

/// Time within which a health probe has read the clock; probes run every ten seconds.
const PROBED: Duration = Duration::from_secs(15);

/// Number of lines that fit on one screen.
const SCREEN: usize = 50;

const FAULTS: &[Fault] = &[
    Fault {
        name: "a peer refuses",
        at: At::Host(2),
        code: "peer-down",
        of: "10.99.0.1",
        says: &["connection-refused"],
    },
    Fault {
        name: "a peer of another AS",
        at: At::Host(2),
        code: "peer-down",
        of: "172.30.0.254",
        says: &["bad-peer-as"],
    },
    Fault {
        name: "a filter rejects",
        at: At::Host(1),
        code: "all-routes-refused",
        of: "filter 1",
        says: &["0.0.0.0/0", "refused: filter"],
    },
    Fault {
        name: "a peer at its limit of prefixes",
        at: At::Host(3),
        code: "prefix-limit",
        of: "172.30.0.254",
        says: &["1 of 1", "prefix-limit"],
    },
    Fault {
        name: "no pool",
        at: At::ExtraAgent("empty"),
        code: "no-pool",
        of: "addresses",
        says: &["[no-pool]", "tortie ipam pool create"],
    },
    Fault {
        name: "a foreign route in the way",
        at: At::Host(3),
        code: "route-failed",
        of: "10.244.2.0/26",
        says: &["foreign-route"],
    },
    Fault {
        name: "two endpoints with one address",
        at: At::Host(1),
        code: "duplicate-address",
        of: "10.244.1.1",
        says: &["duplicate-address", "10.244.1.1", "lab/copy"],
    },
    Fault {
        name: "a leaked address",
        at: At::Host(1),
        code: "leaked-addresses",
        of: "suspect",
        says: &["leaked", "lab.gone"],
    },
    Fault {
        name: "broken JSON",
        at: At::Host(1),
        code: "invalid-value",
        of: "pool/10.9.0.0-16",
        says: &["[invalid-value]", "pool/10.9.0.0-16"],
    },
    Fault {
        name: "the store is unreachable",
        at: At::ExtraAgent("away"),
        code: "store-away",
        of: "store",
        says: &["[store-away]"],
    },
    Fault {
        name: "the port is taken",
        at: At::ExtraAgent("empty"),
        code: "listen",
        of: "another process listens",
        says: &["[listen]", "[port-taken]", "tcp/179", "busybox"],
    },
    Fault {
        name: "a capability is missing",
        at: At::ExtraAgent("bare"),
        code: "missing-capability",
        of: "CAP_NET_BIND_SERVICE",
        says: &["[missing-capability]", "AmbientCapabilities=CAP_NET_BIND_SERVICE"],
    },
    Fault {
        name: "hosts of other versions",
        at: At::Host(3),
        code: "version-skew",
        of: "host9 0.9.0",
        says: &["[version-skew]", "host9", "0.9.0"],
    },
    Fault {
        name: "packets may come by another way",
        at: At::Host(2),
        code: "rp-filter",
        of: "eth1",
        says: &["[rp-filter]", "sysctl -w net.ipv4.conf.eth1.rp_filter=2"],
    },
    Fault {
        name: "a workload sends larger packets than the way out takes",
        at: At::Host(2),
        code: "workload-mtu",
        of: "lab/web2",
        says: &["[workload-mtu]", "cali1", "1400"],
    },
    Fault {
        name: "forwarding was switched off, and cannot be switched on",
        at: At::Host(2),
        code: "forwarding-off",
        of: "net.ipv4.ip_forward",
        says: &["[forwarding-off]", "sysctl -w net.ipv4.ip_forward=1"],
    },
    Fault {
        name: "a route was deleted by hand",
        at: At::Host(1),
        code: "foreign-changes",
        of: "10.244.2.0/26",
        says: &["[foreign-changes]", "10.244.2.0/26 was deleted by port"],
    },
    Fault {
        name: "an element of a set was deleted by hand",
        at: At::Host(3),
        code: "foreign-changes",
        of: "set",
        says: &["[foreign-changes]", "set"],
    },
    Fault {
        name: "policy denies packets",
        at: At::Host(2),
        code: "packets-denied",
        of: "10.244.2.1",
        says: &["[packets-denied]", "lab/web2/eth1 (10.244.2.1)", "icmp", "policy quiet outbound, rule 0"],
    },
    Fault {
        name: "a full conntrack table",
        at: At::Host(2),
        code: "conntrack-full",
        of: "of 1 entries",
        says: &["[conntrack-full]", "nf_conntrack_max"],
    },
    Fault {
        name: "no tunnel in this kernel",
        at: At::Host(1),
        code: "tunnel",
        of: "tunl0",
        says: &["[tunnel]", "modprobe ipip"],
    },
    Fault {
        name: "packets of the tunnel that do not fit into the link below",
        at: At::Host(3),
        code: "tunnel-mtu",
        of: "tunl0",
        says: &["[tunnel-mtu]", "its MTU is 1490", "store put /calico/v1/config/IpInIpMtu"],
    },
    Fault {
        name: "a password that the peer does not have",
        at: At::ExtraAgent("guards"),
        code: "peer-down",
        of: "172.30.0.1",
        says: &["connect-timeout", "TCP MD5 (RFC 2385) is set here"],
    },
    Fault {
        name: "a peer without TTL security",
        at: At::ExtraAgent("guards"),
        code: "peer-down",
        of: "172.30.0.254",
        says: &["ttl-security", "TTL 255"],
    },
    Fault {
        name: "the clock jumps",
        at: At::ExtraAgent("clock"),
        code: "clock-jump",
        of: "forward by 3600",
        says: &["[clock-jump]", "timedatectl"],
    },
    Fault {
        name: "connections to the store are forgotten on the way",
        at: At::ExtraAgent("stale"),
        code: "stale-revision",
        of: "the store has not confirmed that revision",
        says: &["[stale-revision]", "drops idle connections"],
    },
    Fault {
        name: "a peer that takes nothing",
        at: At::ExtraAgent("slow"),
        code: "slow-peer",
        of: "172_31_0_2",
        says: &["slow-peer", "has not read its queue"],
    },
    Fault {
        name: "a next hop that the kernel does not reach",
        at: At::Host(3),
        code: "route-withheld",
        of: "next hop 172.30.0.254",
        says: &["172.30.0.254", "unresolved"],
    },
];

/// Returns the lab's data with the faults in it.
fn data() -> BTreeMap<String, String> {
    let mut data = lab_data(3, true);
    data.remove("/calico/bgp/v1/global/peer_v4/172.30.0.254");
    let mut put = |key: &str, value: Value| {
        data.insert(format!("/calico/{key}"), value.to_string());
    };
    let router = |asn: u32| json!({ "ip": "172.30.0.254", "as_num": asn });
    let mut filtered = router(65000);
    filtered["filters"] = json!(["nothing"]);
    let mut limited = router(65000);
    limited["max_prefixes"] = json!(1);
    put("bgp/v1/host/host1/peer_v4/172.30.0.254", filtered);
    put("bgp/v1/host/host2/peer_v4/172.30.0.254", router(65001));
    put("bgp/v1/host/host3/peer_v4/172.30.0.254", limited);
    put("bgp/v1/global/filters/nothing", json!({ "import": [], "export": [], "default": "reject" }));
    // Host 1 exists, but does not listen on that address.
    put(
        "bgp/v1/host/host2/peer_v4/10.99.0.1",
        json!({ "ip": "10.99.0.1", "as_num": 64700, "source_addr": "10.99.0.2" }),
    );
    let copy = json!({
        "state": "active", "name": "cali2", "mac": null, "profile_ids": ["lab"],
        "ipv4_nets": ["10.244.1.1/32"], "ipv6_nets": [],
    });
    put("v1/host/host1/workload/lab/copy/endpoint/eth1", copy);
    // Host 3 looks up members in a set; host 2 denies.
    let rule = json!({ "action": "allow", "src_selector": "app == 'web2'" });
    put(
        "v1/policy/tier/default/policy/set",
        json!({ "selector": "app == 'web3'", "order": 5, "inbound_rules": [rule], "outbound_rules": [] }),
    );
    let rule = json!({ "action": "deny", "protocol": "icmp" });
    put(
        "v1/policy/tier/default/policy/quiet",
        json!({ "selector": "app == 'web2'", "order": 6, "inbound_rules": [], "outbound_rules": [rule] }),
    );
    put("v1/ipam/v4/pool/10.11.0.0-16", json!({ "cidr": "10.11.0.0/16", "ipip": "tunl0" }));
    put("v1/config/IpInIpMtu", json!(1490));
    put("tortie/v1/status/host9", json!({ "node": "host9", "version": "0.9.0", "ready": true }));
    data
}

/// Shell script that deletes the first element of the first non-empty set.
const DELETE_ELEMENT: &str = "for i in $(seq 600); do
    nft list table inet tortie > /run/table || true
    grep -q 'elements = { *10.244.2.1' /run/table && break; sleep 0.1
  done
  set=$(awk '$1 == \"set\" { name = $2 } /elements = .*10.244.2.1/ { print name; exit }' /run/table)
  nft delete element inet tortie $set '{ 10.244.2.1 }'";

/// Runs a `tortie` command as an operator would type it there.
fn typed(hosts: &Hosts, at: At, words: &[&str]) -> std::process::Output {
    let (node, socket, store) = match at {
        At::Host(n) => (Hosts::node(n), "/run/tortie/tortie.sock".to_owned(), "sqlite:/store/store.db"),
        At::ExtraAgent("away") => {
            ("host3".to_owned(), "/run/faults-away.sock".to_owned(), "etcd://127.0.0.1:2379")
        }
        At::ExtraAgent(name) => {
            let store = match name {
                "empty" => "sqlite:/run/faults-empty.db",
                "stale" => FORGETFUL_STORE,
                _ => "sqlite:/run/faults-bare.db",
            };
            ("host3".to_owned(), format!("/run/faults-{name}.sock"), store)
        }
    };
    let store = format!("TORTIE_DATASTORE={store}");
    let socket = format!("TORTIE_SOCKET={socket}");
    let name = match at {
        At::Host(_) => node.clone(),
        At::ExtraAgent(name) => name.to_owned(),
    };
    let name = format!("TORTIE_NODE={name}");
    let mut all = vec!["env", &store, &socket, &name, TORTIE];
    all.extend(words);
    hosts.lab.exec(&node, &all).unwrap()
}

/// Returns the problem of a fault in `status`.
fn found(hosts: &Hosts, fault: &Fault) -> Result<Value, String> {
    let output = typed(hosts, fault.at, &["status", "-o", "json"]);
    let status: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{e}: {}", stderr(&output)))?;
    let lists = ["problems", "notes"].map(|list| status[list].as_array().cloned().unwrap_or_default());
    let fits = |problem: &&Value| {
        let text = format!("{} {}", problem["subject"].as_str().unwrap(), problem["text"].as_str().unwrap());
        problem["code"] == fault.code && text.contains(fault.of)
    };
    lists.iter().flatten().find(fits).cloned().ok_or_else(|| format!("{lists:#?}"))
}

fn is_reported_and_explained(hosts: &Hosts, fault: &Fault) -> Result<(), String> {
    let codes = tortie::api::codes::ALL.iter().flat_map(|(_, list)| list.iter()).map(|code| code.name);
    // A code of `ipam check`.
    let mut codes = codes.chain(["leaked"]);
    let says = fault.says.join(" ");
    assert!(codes.any(|code| says.contains(code)), "{}: no code of a cause in what is said", fault.name);
    let problem = poll_until(ROW, "`status` turns", || found(hosts, fault))?;
    let next = problem["next"].as_str().unwrap_or_default();
    let command = next.split(", ").next().unwrap_or_default();
    let words = command.strip_prefix("tortie ").ok_or_else(|| format!("no command: {next}"))?;
    let words: Vec<&str> = words.split(' ').collect();
    let text = poll_until(ROW, &format!("`{command}` says why"), || {
        let output = typed(hosts, fault.at, &words);
        let text = format!("{}{}", stdout(&output), stderr(&output));
        let missing: Vec<&&str> = fault.says.iter().filter(|word| !text.contains(**word)).collect();
        if missing.is_empty() { Ok(text) } else { Err(format!("without {missing:?}:\n{text}")) }
    })?;
    let lines = text.lines().count();
    if lines <= SCREEN { Ok(()) } else { Err(format!("`{command}` has {lines} lines")) }
}

/// Checks that the inputs in this agent's `tortie diags` replay to the same decisions.
fn replays(hosts: &Hosts, at: At) -> Result<(), String> {
    let file =
        format!("/run/replay-{}.tar.gz", format!("{at:?}").replace(|c: char| !c.is_ascii_alphanumeric(), ""));
    // If the store is unreachable, the archive contains the other parts.
    let diags = typed(hosts, at, &["diags", &file]);
    if !matches!(diags.status.code(), Some(0 | 6)) {
        return Err(format!("diags: {}", stderr(&diags)));
    }
    let replay = typed(hosts, at, &["replay", &file, "-o", "json"]);
    let report: Value = serde_json::from_slice(&replay.stdout).map_err(|_| stderr(&replay))?;
    let (inputs, different, words) = (&report["inputs"], &report["different"], &report["wordedDifferently"]);
    if replay.status.success() && inputs.as_u64() > Some(0) && *different == 0 && *words == 0 {
        return Ok(());
    }
    Err(format!("{different} of {inputs} inputs differ, {words} in words: {}", report["differences"]))
}

#[test]
fn status_reports_each_fault_and_names_the_command_that_explains_it() {
    let plan = Plan { hosts: 3, router: true, data: Some(data()), later: vec![1, 2, 3], ..Plan::default() };
    let Some(hosts) = Hosts::up(plan) else { return };
    let run = |node: &str, script: &str| {
        let output = hosts.lab.exec(node, &["sh", "-ec", script]).unwrap();
        assert!(output.status.success(), "{node}: {script}: {}", stderr(&output));
    };
    hosts.put("/calico/v1/ipam/v4/pool/10.9.0.0-16", "{");
    run(
        "host2",
        "cd /proc/sys/net/ipv4/conf; echo 0 > all/rp_filter; echo 1 > eth1/rp_filter; ip link set eth1 mtu 1400; \
         ip link add cali1 type veth peer name w1; ip link set cali1 up; \
         ip netns add web; ip link set w1 netns web; ip -n web link set w1 up; \
         ip -n web address add 10.244.2.1/32 dev w1; ip -n web route add 169.254.1.1 dev w1; \
         ip -n web route add default via 169.254.1.1; \
         echo 1 > /run/max; mount --bind /run/max /proc/sys/net/netfilter/nf_conntrack_max",
    );
    run(
        "host3",
        "ip route add 10.244.2.0/26 via 172.30.0.1 proto static metric 1790; \
         { ip link show tunl0 || ip link add tunl0 type veth peer name tunl0-end; } >/dev/null 2>&1; \
         ip link set tunl0-end up 2>/dev/null || true",
    );
    // The slowest faults start first.
    let _stuck = with_stuck_peer(&hosts);
    let _forgetful = with_forgetful_firewall(&hosts);
    let assigned = typed(&hosts, At::Host(1), &["ipam", "assign", "--handle", "lab.gone"]);
    assert!(assigned.status.success(), "{assigned:?}");
    (1..=3).for_each(|host| hosts.start_agent(host));
    let _away = start_extra_agent(&hosts, "away", "etcd://127.0.0.1:2379", &[], "127.0.0.1:1791");
    let bare = ["setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service"];
    let _bare = start_extra_agent(&hosts, "bare", "sqlite:/run/faults-bare.db", &bare, "127.0.0.1:179");
    // Blocks for tunnel addresses appear in addition, each at its own time.
    within(PATIENCE, "host1 has the blocks of all", || {
        let found = hosts.routes(1);
        let wanted = ["10.244.1.0/26 blackhole", "10.244.2.0/26", "10.244.3.0/26"];
        if wanted.iter().all(|w| found.contains(*w)) { Ok(()) } else { Err(format!("{found:?}")) }
    });
    run("host1", "ip route del 10.244.2.0/26 proto 179");
    run(
        "host2",
        "for i in $(seq 600); do nft list table inet tortie | grep -q '\"cali1\"' && break; sleep 0.1; done; \
         ip netns exec web ping -c 5 -i 0.2 -W 1 10.244.1.1 || true",
    );
    // The file system is read-only before the agent sees the file; otherwise the agent writes 1 into it.
    run(
        "host2",
        "mkdir /run/off; mount -t tmpfs none /run/off; echo 0 > /run/off/forward; mount -o remount,ro /run/off; \
         mount --bind /run/off/forward /proc/sys/net/ipv4/ip_forward",
    );
    run("host3", DELETE_ELEMENT);
    let _guards = with_wrong_passwords(&hosts);
    let _clock = with_clock_ahead(&hosts);
    let taker = ["busybox", "httpd", "-f", "-p", "127.0.0.9:179"];
    let silent = |command: &mut Command| {
        command.stdin(Stdio::null());
    };
    let _taker = ExtraAgent(hosts.lab.spawn("host3", &taker, silent).unwrap());
    within(PATIENCE, "the port is taken", || {
        let tcp = stdout(&hosts.lab.exec("host3", &["cat", "/proc/net/tcp"]).unwrap());
        if tcp.contains("0900007F:00B3") { Ok(()) } else { Err(tcp) }
    });
    let _empty = start_extra_agent(&hosts, "empty", "sqlite:/run/faults-empty.db", &[], "127.0.0.9:179");
    within(PATIENCE, "the agent with a clock of its own has read its store", || {
        let status = typed(&hosts, At::ExtraAgent("clock"), &["status", "-o", "json"]);
        let value: Value = serde_json::from_slice(&status.stdout).map_err(|_| stderr(&status))?;
        if value["store"]["connected"] == true { Ok(()) } else { Err(value.to_string()) }
    });
    let connected = Instant::now();
    let (last, others) = FAULTS.split_last().unwrap();
    let row =
        |fault: &Fault| is_reported_and_explained(&hosts, fault).map_err(|e| format!("{}: {e}", fault.name));
    let is_clock = |fault: &&Fault| fault.code == "clock-jump";
    let (clock, others): (Vec<&Fault>, Vec<&Fault>) = others.iter().partition(is_clock);
    let mut missed: Vec<String> = others.into_iter().filter_map(|fault| row(fault).err()).collect();
    std::thread::sleep(PROBED.saturating_sub(connected.elapsed()));
    run("host3", "touch /run/faults-later");
    missed.extend(clock.into_iter().filter_map(|fault| row(fault).err()));
    // This fault affects the sessions with the router, so it is last.
    run("host3", "ip route add unreachable 172.30.0.254/32");
    missed.extend(row(last).err());
    let agents = (1..=3).map(At::Host).chain(["away", "bare", "empty", "stale"].map(At::ExtraAgent));
    missed.extend(agents.filter_map(|at| replays(&hosts, at).err().map(|error| format!("{at:?}: {error}"))));
    assert!(missed.is_empty(), "{} of {} faults:\n{}", missed.len(), FAULTS.len(), missed.join("\n"));
}
