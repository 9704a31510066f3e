//! Tests of the checks: snapshots of hosts, and the results for each.

use tortie_kernel::{KernelCapability, ProbeOutcome, VxlanPort};

use crate::api::status::{DataplaneStatus, Landlock, ProtectionStatus, RouteStatus, Status};
use crate::host_checks::host::{Command, Host};
use crate::host_checks::owners::Owner;
use crate::host_checks::result::{CheckResult, Verdict};
use crate::host_checks::snapshot::{Disk, HostSnapshot, Role, SocketFile, StoreState, Unreadable};
use crate::host_checks::table::{CHECKS, run};

fn ability(name: &'static str, optional: bool, outcome: ProbeOutcome) -> KernelCapability {
    KernelCapability { name, about: "it", needed_for: "work", optional, outcome }
}

fn unreadable(denied: bool, text: &str) -> Unreadable {
    Unreadable { denied, damaged: text.contains("damaged"), text: text.to_owned() }
}

/// Returns the status of a healthy agent with this state of Landlock.
fn agent(landlock: Landlock) -> Status {
    let status = serde_json::json!({
        "apiVersion": "tortie/v1", "kind": "Status", "node": "host1", "version": "0.1.0", "time": "",
        "uptimeSeconds": 90, "ready": true, "verdict": "ready", "summary": "1 of 1 BGP sessions up",
        "bgp": {"as": 64512, "routerId": "", "listen": [], "mesh": {"up": 0, "of": 0},
                "peers": {"up": 1, "of": 1}, "gracefulRestart": "idle"},
        "routes": RouteStatus::default(), "blocks": [],
        "store": {"store": "", "connected": true, "revision": 7, "lagSeconds": 0.0, "away": null,
                  "fromCache": false, "frozen": null, "invalid": [], "keys": 0},
        "dataplane": DataplaneStatus::default(), "problems": [], "notes": []
    });
    let status: Status = serde_json::from_value(status).unwrap();
    assert_eq!(status.protections, ProtectionStatus::default(), "an agent of an earlier version");
    Status { protections: ProtectionStatus { landlock, ..ProtectionStatus::default() }, ..status }
}

fn check(now: &HostSnapshot) -> Vec<CheckResult> {
    run(&Host { command: Command::Doctor, now, before: None, role: &Role::default() })
}

/// Returns the snapshot of a host that is ready for an agent.
fn good() -> HostSnapshot {
    HostSnapshot {
        kernel: "6.1.0".to_owned(),
        kernel_features: vec![
            ability("routes", false, ProbeOutcome::Works("in 4.1 ms".to_owned())),
            ability("nft-sets", false, ProbeOutcome::Works(String::new())),
        ],
        capabilities: Some(u64::MAX),
        felix_rules: [Some(0), Some(0)],
        group: true,
        store: Some(Ok(StoreState { describe: "sqlite:x".to_owned(), pools: 1, ..StoreState::default() })),
        disks: vec![Disk {
            of: "the cache (/x/cache.json)".to_owned(),
            free: 17 << 20,
            size: 1 << 40,
            files: Some(1),
        }],
        agent: Some(Err(unreadable(false, "no agent"))),
        ..HostSnapshot::default()
    }
}

fn wrong(seen: &HostSnapshot) -> Vec<(Verdict, String)> {
    let found = check(seen);
    for finding in &found {
        let fixes = finding.fix().is_some();
        let needs = matches!(finding.verdict(), Verdict::Warn | Verdict::Fail);
        assert_eq!(fixes, needs, "{finding:?}");
    }
    found
        .into_iter()
        .filter(|f| f.verdict() != Verdict::Ok)
        .map(|f| (f.verdict(), f.code().to_owned()))
        .collect()
}

/// Checks that no check reports a code that is missing in the table.
fn only_codes_of_the_table(now: &HostSnapshot) {
    for command in [Command::Doctor, Command::Status, Command::MigrateCheck] {
        let host = Host { command, now, before: None, role: &Role::default() };
        // Problems of the agent are repeated with their own codes.
        for check in CHECKS.iter().filter(|check| check.name != "problems of the agent") {
            for result in check.results(&host) {
                let code = result.code();
                assert!(check.codes.iter().any(|of| of.name == code), "{}: {code}", check.name);
            }
        }
    }
}

#[test]
fn a_host_that_is_well() {
    assert_eq!(wrong(&good()), []);
    for landlock in [Landlock::Enforced, Landlock::Partial] {
        assert_eq!(wrong(&HostSnapshot { agent: Some(Ok(agent(landlock))), ..good() }), []);
    }
    let first = check(&good()).remove(0);
    assert_eq!(
        first.text(),
        "kernel 6.1.0: routes (in 4.1 ms), nft-sets (tried in a temporary network namespace)"
    );
}

#[test]
fn each_thing_that_is_wrong_is_said_once_with_its_weight() {
    use Verdict::{Fail, NotTried, Warn};
    let owner = |pid, name: &str| Owner { pid, name: name.to_owned() };
    let refused = || ProbeOutcome::Refused("Operation not supported".to_owned());
    let store = |store: StoreState| Some(Ok(StoreState { describe: "etcd".to_owned(), ..store }));
    let away = |denied, text: &str| Some(Err(unreadable(denied, text)));
    let disk = |size, free, files| Disk { of: "the store (/x/store.db)".to_owned(), free, size, files };
    let file = |is_socket, mode| Some(SocketFile { is_socket, mode, of_group: true });
    type Change = Box<dyn Fn(&mut HostSnapshot)>;
    let cases: Vec<(&str, Verdict, Change)> = vec![
        ("nft-sets", Fail, Box::new(move |s| s.kernel_features[1] = ability("nft-sets", false, refused()))),
        ("ipip", Warn, Box::new(move |s| s.kernel_features[1] = ability("ipip", true, refused()))),
        (
            "ipip",
            Fail,
            Box::new(move |s| {
                s.kernel_features[1] = ability("ipip", true, refused());
                s.store = store(StoreState { ipip: true, pools: 1, ..StoreState::default() });
            }),
        ),
        ("vxlan", Warn, Box::new(move |s| s.kernel_features[1] = ability("vxlan", true, refused()))),
        (
            "vxlan",
            Fail,
            Box::new(move |s| {
                s.kernel_features[1] = ability("vxlan", true, refused());
                s.store = store(StoreState { vxlan: Some(4789), pools: 1, ..StoreState::default() });
            }),
        ),
        (
            "vxlan",
            Warn,
            Box::new(move |s| {
                let device = |device: &str, port| VxlanPort { device: device.to_owned(), port, vni: 1 };
                s.vxlan_devices =
                    vec![device("vxlan.calico", 4789), device("later", 8472), device("flannel.1", 4789)];
                s.store = store(StoreState { vxlan: Some(4789), pools: 1, ..StoreState::default() });
            }),
        ),
        (
            "kernel",
            NotTried,
            Box::new(|s| {
                let why = ProbeOutcome::NotTried("no network namespace of its own".to_owned());
                s.kernel_features.iter_mut().for_each(|a| a.outcome = why.clone());
            }),
        ),
        (
            "tcp-md5",
            Warn,
            Box::new(|s| {
                let outcome = Err("no CONFIG_TCP_MD5SIG".to_owned());
                s.sockets =
                    vec![crate::speaker::SocketAbility { name: "tcp-md5", needed_for: "passwords", outcome }];
            }),
        ),
        ("missing-capability", Warn, Box::new(|s| s.capabilities = Some(!(1 << 12)))),
        ("port-taken", Fail, Box::new(move |s| drop(s.ports.insert(179, vec![owner(812, "bird")])))),
        ("port-taken", Fail, Box::new(move |s| drop(s.ports.insert(9099, vec![owner(0, "somebody")])))),
        ("rival", Fail, Box::new(move |s| s.other_daemons = vec![owner(900, "calico-felix")])),
        ("felix-rules", Fail, Box::new(|s| s.felix_rules[0] = Some(214))),
        ("felix-rules", Fail, Box::new(|s| s.felix_tables.push("ip calico".to_owned()))),
        ("felix-rules", NotTried, Box::new(|s| s.felix_rules[1] = None)),
        ("network-manager", Warn, Box::new(|s| s.network_manager = Some(false))),
        ("group", Warn, Box::new(|s| s.group = false)),
        ("no-pool", Warn, Box::new(move |s| s.store = store(StoreState::default()))),
        (
            "frozen",
            Fail,
            Box::new(move |s| {
                s.store =
                    store(StoreState { ready: Some("false".to_owned()), pools: 1, ..StoreState::default() });
            }),
        ),
        (
            "pool-over-network",
            Warn,
            Box::new(move |s| {
                let pool = "192.0.2.0/24".parse().unwrap();
                let overlaps = vec![(pool, "192.0.2.7, the address of host h2".to_owned())];
                s.store =
                    store(StoreState { pools: 1, prefixes: vec![pool], overlaps, ..StoreState::default() });
            }),
        ),
        (
            "pool-over-network",
            Warn,
            Box::new(move |s| {
                let prefixes = vec!["172.16.0.0/12".parse().unwrap()];
                s.networks = vec![("docker0".to_owned(), "172.17.0.0/16".parse().unwrap())];
                s.store = store(StoreState { pools: 1, prefixes, ..StoreState::default() });
            }),
        ),
        ("store-away", Fail, Box::new(move |s| s.store = away(false, "etcd: refused"))),
        ("store-damaged", Fail, Box::new(move |s| s.store = away(false, "/x/store.db is damaged"))),
        (
            "store-damaged",
            Fail,
            Box::new(move |s| {
                let no_workload = Some(("store-damaged".to_owned(), "/x/store.db is damaged".to_owned()));
                s.store = store(StoreState { pools: 1, no_workload, ..StoreState::default() });
            }),
        ),
        ("disk-full", Warn, Box::new(move |s| s.disks = vec![disk(1 << 40, 16 << 20, Some(9))])),
        ("disk-full", Warn, Box::new(move |s| s.disks = vec![disk(8 << 20, 80 << 10, None)])),
        ("disk-full", Warn, Box::new(move |s| s.disks = vec![disk(1 << 40, 1 << 39, Some(0))])),
        ("store-absent", Warn, Box::new(move |s| s.store = away(false, "there is no store at /x/store.db"))),
        ("store", NotTried, Box::new(move |s| s.store = away(true, "not allowed"))),
        ("agent", Warn, Box::new(|s| s.agent = Some(Err(unreadable(true, "not in group"))))),
        ("protections", Warn, Box::new(|s| s.agent = Some(Ok(agent(Landlock::Off))))),
        ("protections", Warn, Box::new(|s| s.agent = Some(Ok(agent(Landlock::Unsupported))))),
        ("protections", Warn, Box::new(|s| s.agent = Some(Ok(agent(Landlock::Failed))))),
        ("socket", Fail, Box::new(move |s| s.socket = file(false, 0o644))),
        ("socket", Warn, Box::new(move |s| s.socket = file(true, 0o666))),
    ];
    for (code, verdict, change) in cases {
        let mut seen = good();
        change(&mut seen);
        assert_eq!(wrong(&seen), [(verdict, code.to_owned())]);
        only_codes_of_the_table(&seen);
    }
}
