//! The laws: both forms of a network decide alike, and each difference of the table is one.

use proptest::prelude::*;
use tortie_engine::policy::path::Flow;

use crate::decisions::{Decisions, Reader};
use crate::differences::{DIFFERENCES, Difference, Equalize};
use crate::network::{Store, full, network};
use crate::pair::Pair;
use crate::probes::flow;

/// Returns the decisions of both forms, made equal by some differences.
fn decisions_of(store: &Store, differences: &[&Difference], flows: &[Flow]) -> (Decisions, Decisions) {
    let pair = Pair::of(store, differences);
    let decisions = |model| Reader { model, names: &pair.names }.decisions(flows);
    let (mut v1, mut v3) = (decisions(&pair.v1), decisions(&pair.v3));
    for difference in differences {
        if let Equalize::Decisions(change) = difference.equalize {
            change(&mut v1, &mut v3);
        }
    }
    // The names of the gates are those of their model.
    for decisions in [&mut v1, &mut v3] {
        decisions.exports.values_mut().for_each(|export| export.gate = "");
    }
    (v1, v3)
}

fn all() -> Vec<&'static Difference> {
    DIFFERENCES.iter().collect()
}

/// Packets of every kind, the same at each run.
fn many_flows() -> Vec<Flow> {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let flows = prop::collection::vec(flow(), 1500).new_tree(&mut runner).unwrap();
    proptest::strategy::ValueTree::current(&flows)
}

/// Asserts part by part, so that a failure shows the part.
fn assert_equal(v1: &Decisions, v3: &Decisions) -> Result<(), TestCaseError> {
    prop_assert_eq!(&v1.listen, &v3.listen);
    prop_assert_eq!(v1.sessions.keys().collect::<Vec<_>>(), v3.sessions.keys().collect::<Vec<_>>());
    for (at, session) in &v1.sessions {
        prop_assert_eq!(session, &v3.sessions[at]);
    }
    prop_assert_eq!(&v1.originated, &v3.originated);
    for (part, text) in &v1.texts {
        prop_assert_eq!(text, &v3.texts[part], "{}", part);
    }
    for (at, export) in &v1.exports {
        prop_assert_eq!(export, &v3.exports[at], "{:?}: {:?}", at.0, crate::probes::routes()[at.1]);
    }
    for (at, import) in &v1.imports {
        prop_assert_eq!(import, &v3.imports[at], "{:?}: {:?}", at.0, crate::probes::routes()[at.1]);
    }
    prop_assert_eq!(&v1.kernel, &v3.kernel);
    for (v1, v3) in v1.paths.iter().zip(&v3.paths) {
        prop_assert_eq!(v1, v3);
    }
    prop_assert_eq!(v1, v3);
    Ok(())
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..config() })]

    #[test]
    fn a_network_and_its_converted_form_decide_alike(
        store in network(),
        flows in prop::collection::vec(flow(), 40),
    ) {
        let (v1, v3) = decisions_of(&store, &all(), &flows);
        assert_equal(&v1, &v3)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..config() })]

    #[test]
    #[ignore = "minutes: eighty times the networks of the quick test"]
    fn long_twenty_thousand_networks_and_their_converted_forms_decide_alike(
        store in network(),
        flows in prop::collection::vec(flow(), 40),
    ) {
        let (v1, v3) = decisions_of(&store, &all(), &flows);
        assert_equal(&v1, &v3)?;
    }
}

#[test]
fn each_difference_of_the_table_is_one() {
    let flows = many_flows();
    let mut wrong = Vec::new();
    for difference in DIFFERENCES {
        let what = difference.what;
        assert!(!difference.why.is_empty(), "{what}");
        let mut store = Store::new();
        for (host, addr) in [("h1", "192.0.2.1"), ("h2", "192.0.2.2")] {
            store.insert(full(&format!("bgp/v1/host/{host}/ip_addr_v4")), addr.to_owned());
            store.insert(full(&format!("bgp/v1/host/{host}/network_v4")), "192.0.2.0/24".to_owned());
        }
        store.insert(full("v1/Ready"), "true".to_owned());
        store.extend(difference.example.iter().map(|(key, value)| (full(key), (*value).to_owned())));
        let (v1, v3) = decisions_of(&store, &all(), &flows);
        if let Err(error) = assert_equal(&v1, &v3) {
            wrong.push(format!("{what}: the example has another difference: {error}"));
        }
        let others: Vec<&Difference> = DIFFERENCES.iter().filter(|other| other.what != what).collect();
        let (v1, v3) = decisions_of(&store, &others, &flows);
        if v1 == v3 {
            wrong.push(format!("{what}: this makes no difference any more: remove it from the table"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
