//! Hosts as they are found, and what is said of each.

use super::super::ports::Owner;
use super::*;
use crate::cli::doctor::host_state::{SocketFile, StoreState};

fn ability(name: &'static str, optional: bool, outcome: ProbeOutcome) -> KernelCapability {
    KernelCapability { name, about: "it", needed_for: "work", optional, outcome }
}

/// A host that is ready for an agent.
fn good() -> HostState {
    HostState {
        kernel: "6.1.0".to_owned(),
        kernel_features: vec![
            ability("routes", false, ProbeOutcome::Works("in 4.1 ms".to_owned())),
            ability("nft-sets", false, ProbeOutcome::Works(String::new())),
        ],
        capabilities: Some(u64::MAX),
        felix_rules: [Some(0), Some(0)],
        group: true,
        store: Some(Ok(StoreState { describe: "sqlite:x".to_owned(), pools: 1, ..StoreState::default() })),
        agent: Some(Err((Exit::Unreachable, "no agent".to_owned()))),
        ..HostState::default()
    }
}

fn wrong(seen: &HostState) -> Vec<(CheckResult, String)> {
    let found = check(seen);
    for finding in &found {
        let fixes = finding.fix.is_some();
        let needs = matches!(finding.result, CheckResult::Warn | CheckResult::Fail);
        assert_eq!(fixes, needs, "{finding:?}");
    }
    found.into_iter().filter(|f| f.result != CheckResult::Ok).map(|f| (f.result, f.code)).collect()
}

#[test]
fn a_host_that_is_well() {
    assert_eq!(wrong(&good()), []);
    let first = check(&good()).remove(0);
    assert_eq!(first.text, "kernel 6.1.0: routes (in 4.1 ms), nft-sets (tried in a throw-away namespace)");
}

#[test]
fn each_thing_that_is_wrong_is_said_once_with_its_weight() {
    use CheckResult::{Fail, NotTried, Warn};
    let owner = |pid, name: &str| Owner { pid, name: name.to_owned() };
    let refused = || ProbeOutcome::Refused("Operation not supported".to_owned());
    let store = |store: StoreState| Some(Ok(StoreState { describe: "etcd".to_owned(), ..store }));
    let away = |exit, text: &str| Some(Err((exit, text.to_owned())));
    let file = |is_socket, mode| Some(SocketFile { is_socket, mode, of_group: true });
    type Change = Box<dyn Fn(&mut HostState)>;
    let cases: Vec<(&str, CheckResult, Change)> = vec![
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
        ("store-away", Fail, Box::new(move |s| s.store = away(Exit::Unreachable, "etcd: refused"))),
        (
            "store-absent",
            Warn,
            Box::new(move |s| s.store = away(Exit::Usage, "there is no store at /x/store.db")),
        ),
        ("store", NotTried, Box::new(move |s| s.store = away(Exit::Permission, "not allowed"))),
        ("agent", Warn, Box::new(|s| s.agent = Some(Err((Exit::Permission, "not in group".to_owned()))))),
        ("socket", Fail, Box::new(move |s| s.socket = file(false, 0o644))),
        ("socket", Warn, Box::new(move |s| s.socket = file(true, 0o666))),
    ];
    for (code, verdict, change) in cases {
        let mut seen = good();
        change(&mut seen);
        assert_eq!(wrong(&seen), [(verdict, code.to_owned())]);
    }
}
