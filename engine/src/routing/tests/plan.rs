//! Compares the incrementally updated intent with the one computed from scratch.

use proptest::prelude::*;
use tortie_config::resource::RouteSource;

use super::{MESH, codes, lenient, model, with};
use crate::routing::*;
use tortie_store::fixtures::{delete, put};

use crate::model::tests::{FakeStore, history};
use crate::model::{Model, WatchPart};

#[test]
fn one_hosts_change_moves_only_its_session() {
    let mut model = model(MESH);
    let mut planner = Planner::new(&model, NodeOptions::default());
    let mut step = |delta| {
        let changes = model.apply(&delta);
        let change = planner.update(&model, &changes);
        assert_eq!(*planner.intent(), intent(&model, &NodeOptions::default()));
        change.peers.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(step(put(11, "/calico/bgp/v1/host/a/as_num", "65001")), ["Mesh_192_0_2_10"]);
    assert_eq!(step(put(12, "/calico/bgp/v1/host/a/as_num", "65001")), [""; 0]);
    assert_eq!(
        step(put(13, "/calico/bgp/v1/host/a/ip_addr_v4", "192.0.2.11")),
        ["Mesh_192_0_2_10", "Mesh_192_0_2_11"]
    );
    assert_eq!(step(put(14, "/calico/bgp/v1/host/d/ip_addr_v4", "192.0.2.12")), ["Mesh_192_0_2_12"]);
    assert_eq!(step(delete(15, "/calico/bgp/v1/host/d/ip_addr_v4")), ["Mesh_192_0_2_12"]);
    let peer = "/calico/bgp/v1/global/peer_v4/198.51.100.1";
    assert_eq!(step(put(16, peer, r#"{"as_num":"65001"}"#)), ["Global_198_51_100_1"]);
    assert_eq!(step(delete(17, peer)), ["Global_198_51_100_1"]);
    let mesh = "/calico/bgp/v1/global/node_mesh";
    assert_eq!(step(put(18, mesh, r#"{"enabled":false}"#)), ["Mesh_192_0_2_11", "Mesh_192_0_2_99"]);
    assert_eq!(step(delete(19, mesh)).len(), 2);
    // An allocation in an own block, and an endpoint of another host, change no session.
    let endpoint = r#"{"state":"active","name":"cali9","ipv4_nets":["10.0.7.7/32"]}"#;
    assert_eq!(step(put(20, "/calico/v1/host/c/workload/cni/w/endpoint/e", endpoint)), [""; 0]);
}

proptest! {
    #[test]
    fn the_kept_intent_is_the_one_from_scratch(
        history in history(true),
        relists in prop::collection::vec(any::<bool>(), 40),
        connected in prop::collection::vec(0..3_usize, 40),
        flags in 0..3_usize,
    ) {
        let options = [
            NodeOptions::default(),
            NodeOptions { ip6: AddressOption::Off, asn: Some(65099), ..NodeOptions::default() },
            NodeOptions {
                ip4: AddressOption::Given("192.0.2.2".parse().unwrap(), None),
                ..NodeOptions::default()
            },
        ];
        let mut options = options[flags].clone();
        let mut store = FakeStore::default();
        let mut model = Model::new("h1");
        let mut planner = Planner::new(&model, options.clone());
        for ((transaction, relist), connected) in history.iter().zip(&relists).zip(&connected) {
            let before = planner.intent().clone();
            let delta = store.commit(transaction);
            let mut changes =
                if *relist { model.replace(WatchPart::All, &store.list()) } else { model.apply(&delta) };
            options.connected = ["172.17.0.0/16", "10.0.0.0/15"].iter().take(*connected).map(|n| n.parse().unwrap()).collect();
            changes.originated |= planner.connect(options.connected.clone());
            let change = planner.update(&model, &changes);
            let scratch = intent(&model, &options);
            prop_assert_eq!(planner.intent(), &scratch);
            // The neighbour that causes a block to be withheld is the first one found by a scan of all peers.
            for (block, _) in model.own_blocks() {
                let walked = scratch.peers.iter().find(|(_, peer)| block.contains(peer.remote.ip()));
                let reason = scratch.withheld_blocks.get(&block);
                match (walked, reason) {
                    (Some((name, _)), Some(reason)) if reason.contains("neighbour") => {
                        prop_assert!(reason.ends_with(&format!("neighbour {name}")), "{} {}", reason, name);
                    }
                    (Some((name, _)), None) => prop_assert!(false, "{} is in {}", name, block),
                    (None, Some(reason)) => prop_assert!(!reason.contains("neighbour"), "{}", reason),
                    _ => {}
                }
            }
            let differs = |name: &String| before.peers.get(name) != scratch.peers.get(name);
            let moved: std::collections::BTreeSet<String> =
                before.peers.keys().chain(scratch.peers.keys()).filter(|n| differs(n)).cloned().collect();
            prop_assert_eq!(&change.peers, &moved);
            prop_assert_eq!(change.originated, before.originated != scratch.originated);
            prop_assert_eq!(change.view, before.view != scratch.view);
            prop_assert_eq!(change.addresses, before.addresses != scratch.addresses);
            prop_assert_eq!(change.tunnel, before.tunnel != scratch.tunnel);
            prop_assert_eq!(change.vxlan, before.vxlan != scratch.vxlan);
            prop_assert_eq!(change.store_routes, before.store_routes != scratch.store_routes);
            prop_assert_eq!(change.blackholes, before.blackholes != scratch.blackholes);
            prop_assert_eq!(change.notes, before.notes != scratch.notes);
        }
    }
}

const ROUTER_WITH_FILTER: (&str, &str) =
    ("bgp/v1/global/peer_v4/198.51.100.1", r#"{"as_num":"65001","own_only":true,"filters":["f"]}"#);

#[test]
fn filters_are_host_over_global_and_closed_where_there_is_nothing_to_ask() {
    let verdict = |entries: &[(&str, &str)]| {
        let entries = with(MESH, &with(&[ROUTER_WITH_FILTER], entries));
        let intent = intent(&lenient(&entries), &NodeOptions::default());
        let policy = &intent.peers["Global_198_51_100_1"].policy;
        let route =
            FilterRoute { source: RouteSource::Ebgp, ..FilterRoute::local("10.0.0.0/8".parse().unwrap()) };
        let codes: Vec<&'static str> = intent.notes.iter().map(|note| note.code).collect();
        (import(&intent.view, &intent.addresses, policy, &route).is_ok(), codes)
    };
    let open = r#"{"import":[{"then":"accept"}]}"#;
    let shut = r#"{"import":[{"then":"reject"}]}"#;
    assert_eq!(verdict(&[]), (false, vec!["filter-missing"]));
    assert_eq!(verdict(&[("bgp/v1/global/filters/f", open)]), (true, vec![]));
    assert_eq!(verdict(&[("bgp/v1/global/filters/f", "{")]), (false, vec!["filter-unreadable"]));
    let own = "bgp/v1/host/b/filters/f";
    assert_eq!(verdict(&[("bgp/v1/global/filters/f", shut), (own, open)]), (true, vec![]));
    assert_eq!(verdict(&[("bgp/v1/global/filters/f", open), (own, "{")]), (false, vec!["filter-unreadable"]));
    assert_eq!(
        verdict(&[("bgp/v1/global/filters/f", open), ("bgp/v1/host/c/filters/f", shut)]),
        (true, vec![])
    );
}

#[test]
fn the_view_follows_filters_step_by_step_and_keeps_the_last_good_one() {
    let entries = with(MESH, &[ROUTER_WITH_FILTER]);
    let mut model = lenient(&entries);
    let mut planner = Planner::new(&model, NodeOptions::default());
    let open = r#"{"import":[{"then":"accept"}]}"#;
    let own = "bgp/v1/host/b/filters/f";
    // Revision, key, value, change of the view, notes.
    type Written<'a> = (u64, &'a str, Option<&'a str>, bool, &'a [&'a str]);
    let steps: [Written<'_>; 7] = [
        (11, "bgp/v1/global/filters/f", Some(open), true, &[]),
        (12, "bgp/v1/global/filters/f", Some("{"), false, &[]),
        (13, "bgp/v1/global/filters/unused", Some(open), false, &[]),
        (14, own, Some("{"), true, &["filter-unreadable"]),
        (15, own, None, true, &[]),
        (16, "bgp/v1/global/filters/f", None, true, &["filter-missing"]),
        (17, ROUTER_WITH_FILTER.0, Some(r#"{"as_num":"65001","own_only":true}"#), false, &[]),
    ];
    for (revision, key, value, differs, notes) in steps {
        let key = format!("/calico/{key}");
        let change = match value {
            Some(value) => put(revision, &key, value),
            None => delete(revision, &key),
        };
        let changes = model.apply(&change);
        let change = planner.update(&model, &changes);
        assert_eq!(change.view, differs, "{revision}");
        let intent = planner.intent();
        assert_eq!(codes(intent), notes, "{revision}");
        assert_eq!(*intent, super::intent(&model, &NodeOptions::default()), "{revision}: from scratch");
    }
}
