//! Tests of the firewall with the real kernel, while another process interferes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tortie_net::Cidr;

use crate::fib::network::NetworkState;
use crate::intent::PolicyChange;
use crate::netlink::codec::Writer;
use crate::nft::dump;
use crate::nft::firewall::Firewall;
use crate::nft::ir::{Edit, KeyType, Set, SetKey, SetValue, ValueType};
use crate::nft::render::Options;
use crate::nft::socket::Socket;
use crate::nft::tests::fixtures::set_of;
use crate::nft::tests::kernel::in_netns;
use crate::nft::uapi::*;
use crate::options::Mode;
use tortie_engine::model::Model;
use tortie_engine::policy::{Engine, Globals, RulesetDelta};
use tortie_engine::routing::ChangeId;
use tortie_store::fixtures::{delete, put};

fn firewall() -> Firewall {
    let options = Options { log_group: None, deny_group: 179 };
    Firewall::open(Mode::Program, options, Instant::now())
}

fn first() -> [PolicyChange; 1] {
    let globals = Some(Arc::new(Globals::of(&Model::new("h1"))));
    [PolicyChange { serial: 1, change: ChangeId(1), delta: RulesetDelta::default(), globals, routings: None }]
}

/// Creates the table as owned by the socket: the kernel refuses writes by others.
fn own(socket: &mut Socket) {
    let done = socket.0.transaction(|buf, base| {
        let kinds = [NFNL_MSG_BATCH_BEGIN, SUBSYSTEM << 8 | NFT_MSG_NEWTABLE, NFNL_MSG_BATCH_END];
        for (kind, seq) in kinds.into_iter().zip(base..) {
            let table = kind > NFNL_MSG_BATCH_END;
            // NLM_F_ACK and NLM_F_CREATE.
            let mut w = Writer::begin(buf, kind, if table { 0x404 } else { 0 }, seq);
            let [high, low] = SUBSYSTEM.to_be_bytes();
            let family = if table { [NFPROTO_INET, 0, 0, 0] } else { [0, 0, high, low] };
            w.raw(&family);
            if table {
                // NFT_TABLE_F_OWNER.
                w.attr_text(NFTA_TABLE, "tortie").attr_be32(NFTA_TABLE_FLAGS, 2);
            }
            w.end();
        }
        3
    });
    assert!(matches!(done, Ok(Ok(()))), "{done:?}");
}

/// Waits until the kernel has the desired state.
fn settle(firewall: &mut Firewall) {
    let begin = Instant::now();
    while !firewall.settled() || firewall.problem().is_some() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", firewall.problem());
        std::thread::sleep(Duration::from_millis(5));
        firewall.check_generation(Instant::now(), &mut |_| ()).unwrap();
    }
}

#[test]
fn while_the_kernel_refuses_a_burst_of_changes_shares_its_comparisons() {
    in_netns(|| {
        let mut owner = Socket::open().unwrap();
        own(&mut owner);
        let (mut firewall, network) = (firewall(), NetworkState::default());
        firewall.accept(&first(), &network, &mut |_| ()).unwrap();
        assert!(firewall.is_refused() && !firewall.settled());
        assert!(firewall.problem().unwrap().contains("the kernel refuses"), "{:?}", firewall.problem());
        let begin = Instant::now();
        for _ in 0..500 {
            firewall.accept(&first(), &network, &mut |_| ()).unwrap();
        }
        // Comparisons take a fifth of the time, and each took more than 50 us.
        let most = 2 + begin.elapsed().as_micros() / 250;
        let compares = firewall.counts().compares;
        assert!(u128::from(compares) <= most && compares < 250, "{compares}, {most}");
        // The kernel deletes the table with its owner.
        drop(owner);
        settle(&mut firewall);
        let found = dump::table(&mut Socket::open().unwrap(), "tortie").unwrap().unwrap();
        assert!(found.chains.contains_key("forward-from"));
    });
}

#[test]
fn a_host_endpoint_takes_the_place_of_another_that_allows_the_same() {
    let key = |id: &str| format!("/calico/v1/host/h1/endpoint/{id}");
    let value = r#"{"name":"eth0","profile_ids":["p"]}"#;
    in_netns(move || {
        let (mut firewall, network) = (firewall(), NetworkState::default());
        let mut model = Model::new("h1");
        model.apply(&put(1, &key("a"), value));
        let (mut engine, delta) = Engine::new(&model);
        let [change] = first();
        firewall.accept(&[PolicyChange { delta, ..change }], &network, &mut |_| ()).unwrap();
        let mut touched = model.apply(&delete(2, &key("a"))).keys;
        touched.extend(model.apply(&put(3, &key("b"), value)).keys);
        let delta = engine.update(&model, &touched);
        assert_eq!(delta.endpoints.len(), 2);
        let second = PolicyChange { serial: 2, change: ChangeId(2), delta, globals: None, routings: None };
        firewall.accept(&[second], &network, &mut |_| ()).unwrap();
        assert!(firewall.settled() && firewall.hosts().len() == 1);
        assert_eq!(firewall.counts().refused, 0);
    });
}

/// Two selectors with one FNV-1a hash of 64 bits; such a pair can be found in an hour.
const TWINS: [&str; 2] = ["has(Ldpso80yeCEG)", "has(L.MlrBDFmcSM)"];

#[test]
fn selectors_that_collide_under_a_hash_of_64_bits_have_sets_of_their_own_and_stop_nobody() {
    let policy = |n: usize| format!("/calico/v1/policy/tier/default/policy/p{n}");
    let rules = |selector: &str| {
        format!(r#"{{"selector":"all()","inbound_rules":[{{"action":"deny","src_selector":"{selector}"}}]}}"#)
    };
    in_netns(move || {
        let (mut firewall, network) = (firewall(), NetworkState::default());
        let mut model = Model::new("h1");
        let w1 = r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],"profile_ids":[]}"#;
        model.apply(&put(1, "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0", w1));
        let (mut engine, delta) = Engine::new(&model);
        let [change] = first();
        firewall.accept(&[PolicyChange { delta, ..change }], &network, &mut |_| ()).unwrap();
        for (serial, selector) in (2..).zip([TWINS[0], TWINS[1], "has(other)"]) {
            let number = usize::try_from(serial).unwrap();
            let touched = model.apply(&put(serial, &policy(number), &rules(selector))).keys;
            let change = PolicyChange {
                serial,
                change: ChangeId(serial),
                delta: engine.update(&model, &touched),
                globals: None,
                routings: None,
            };
            firewall.accept(&[change], &network, &mut |_| ()).unwrap();
            assert!(firewall.settled() && firewall.problem().is_none(), "{selector}");
        }
        let found = dump::table(&mut Socket::open().unwrap(), "tortie").unwrap().unwrap();
        assert_eq!(crate::nft::diff::diff(firewall.renderer().table(), Some(&found)), Vec::new());
        let chains =
            |n: usize| found.chains.keys().filter(|name| name.contains(&format!("default.p{n}-"))).count();
        assert_eq!([chains(2), chains(3), chains(4)], [2; 3]);
    });
}

#[test]
fn rules_that_others_change_all_the_time_delay_a_comparison_and_end_nothing() {
    in_netns(|| {
        let (mut firewall, network) = (firewall(), NetworkState::default());
        // Dumping the table takes longer than a transaction of the other process.
        let mut globals = Globals::of(&Model::new("h1"));
        globals.pools =
            (0..60_000u32).map(|i| Cidr::host(Ipv4Addr::from(0x0a00_0000 + i * 2).into())).collect();
        let [change] = first();
        firewall
            .accept(&[PolicyChange { globals: Some(Arc::new(globals)), ..change }], &network, &mut |_| ())
            .unwrap();
        settle(&mut firewall);
        let of = set_of(KeyType::Addr { v4: true }, ValueType::Member, false);
        let one = BTreeMap::from([(SetKey::Addr("10.0.0.1/32".parse().unwrap()), SetValue::Member)]);
        let mut socket = Socket::open().unwrap();
        let set = Set { of, comment: "".into(), elements: BTreeMap::new() };
        socket.batch(&[Edit::Set("s".into(), set)], "others").unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        // The new thread is in the network namespace of its parent.
        let busy = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let nothing = BTreeMap::new();
                while !stop.load(Ordering::Relaxed) {
                    for (add, remove) in [(&one, &nothing), (&nothing, &one)] {
                        let (add, remove) = (add.clone(), remove.clone());
                        let edit = Edit::Elements { set: "s".into(), of, add, remove };
                        socket.batch(&[edit], "others").unwrap();
                    }
                }
            }
        });
        let mut reader = Socket::open().unwrap();
        let interrupted = |e: std::io::Error| e.kind() == std::io::ErrorKind::Interrupted;
        assert!(
            (0..5).any(|_| dump::table(&mut reader, "tortie").is_err_and(interrupted)),
            "they are too slow"
        );
        let (begin, compares) = (Instant::now(), firewall.counts().compares);
        while begin.elapsed() < Duration::from_secs(3) {
            firewall.check_generation(Instant::now(), &mut |_| ()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(firewall.counts().compares > compares, "it was never in anybody's way");
        assert_eq!(firewall.problem(), None, "what was written is in force");
        stop.store(true, Ordering::Relaxed);
        busy.join().unwrap();
        settle(&mut firewall);
    });
}
