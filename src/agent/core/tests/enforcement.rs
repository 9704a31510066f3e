//! Tests of changes to endpoints and rules: when they are sent to the kernel thread, and when its
//! acknowledgement is awaited.

use tortie_config::key::{EndpointKey, Key};

use super::*;
use crate::api::status::AppliedRequest;
use tortie_engine::policy::{Engine, Globals, Ruleset, SetChange};
use tortie_kernel::PolicyChange;

const WEB: &str = "/calico/v1/host/h1/workload/cni/web/endpoint/eth0";
const DB: &str = "/calico/v1/host/h1/workload/cni/db/endpoint/eth0";
const FAR: &str = "/calico/v1/host/h2/workload/cni/far/endpoint/eth0";
const POLICY: &str = "/calico/v1/policy/tier/default/policy/web-in";

fn workload(addr: &str, labels: &str) -> String {
    format!(
        r#"{{"state":"active","name":"cali{}","mac":null,"profile_ids":["open"],"ipv4_nets":["{addr}/32"],
            "ipv6_nets":[],"labels":{labels}}}"#,
        addr.replace('.', "")
    )
}

fn entries() -> Vec<KeyValue> {
    let mut entries = main_entries();
    entries.push(kv(
        "/calico/v1/policy/profile/open/rules",
        r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#,
        1,
    ));
    entries.push(kv(
        POLICY,
        r#"{"selector":"role == 'web'","order":10,"outbound_rules":[],
            "inbound_rules":[{"action":"allow","src_selector":"role == 'client'"}]}"#,
        1,
    ));
    entries.push(kv(WEB, &workload("10.244.1.1", r#"{"role":"web"}"#), 1));
    entries.push(kv(DB, &workload("10.244.1.2", r#"{"role":"db"}"#), 1));
    entries.push(kv(FAR, &workload("10.244.2.1", r#"{"role":"client"}"#), 1));
    entries
}

/// Returns a core that has read everything, and the policy changes that it has sent.
fn started() -> (Core, Vec<PolicyChange>) {
    let mut core = core();
    let first = FeedEvent::Snapshot { snapshot: snapshot("a", 1, entries()).into(), generation: 1 };
    assert!(policy_changes(&feed(&mut core, first)).is_empty(), "the blocks are not known yet");
    let added = snapshot("a", 1, vec![kv(BLOCK, &block(), 1)]);
    let effects = feed(&mut core, FeedEvent::Added { prefixes: vec![BLOCK.to_owned()], snapshot: added });
    let changes = policy_changes(&effects);
    applied(&mut core, 1, Vec::new());
    (core, changes)
}

fn policy_changes(effects: &[Effect]) -> Vec<PolicyChange> {
    let changes = effects.iter().filter_map(|effect| match effect {
        Effect::Enforce(change) => Some((**change).clone()),
        _ => None,
    });
    changes.collect()
}

fn endpoint(key: &str) -> EndpointKey {
    match key.parse() {
        Ok(Key::Endpoint(endpoint)) => endpoint,
        other => panic!("{key}: {other:?}"),
    }
}

/// Acknowledges the newest intent in the kernel's name.
fn settle(core: &mut Core) {
    let generation = core.generation;
    applied(core, generation, Vec::new());
}

/// Returns the kernel thread's ruleset after these changes.
fn sum<'a>(changes: impl IntoIterator<Item = &'a PolicyChange>) -> Ruleset {
    let mut ruleset = Ruleset::default();
    changes.into_iter().for_each(|change| change.delta.apply(&mut ruleset));
    ruleset
}

fn from_scratch(core: &Core) -> Ruleset {
    let mut ruleset = Ruleset::default();
    Engine::new(&core.model).1.apply(&mut ruleset);
    ruleset
}

#[test]
fn the_first_change_is_the_whole_with_its_frame_and_later_ones_are_what_differs() {
    let (mut core, first) = started();
    let [first] = first.as_slice() else { panic!("{first:#?}") };
    assert_eq!(first.serial, 1);
    assert_eq!(first.globals.as_deref(), Some(&Globals::of(&core.model)));
    assert_eq!(first.delta.endpoints.keys().collect::<Vec<_>>(), [&endpoint(DB), &endpoint(WEB)]);
    assert_eq!(sum([first]), from_scratch(&core));

    let another = put(FAR, &workload("10.244.2.9", r#"{"role":"client"}"#), 2);
    let second = policy_changes(&feed(&mut core, another));
    let [second] = second.as_slice() else { panic!("{second:#?}") };
    assert_eq!((second.serial, second.globals.is_some()), (2, false));
    assert!(second.delta.chains.is_empty() && second.delta.endpoints.is_empty());
    let [SetChange::Members { add, remove }] = second.delta.sets.values().collect::<Vec<_>>()[..] else {
        panic!("{second:#?}")
    };
    assert_eq!((add.len(), remove.len()), (1, 1));
    assert_eq!(sum([first, second]), from_scratch(&core));
    assert_eq!(*core.enforcement.policy().unwrap().ruleset, from_scratch(&core));

    let pool = put("/calico/v1/ipam/v4/pool/10.9.0.0-16", r#"{"cidr":"10.9.0.0/16"}"#, 3);
    let effects = feed(&mut core, pool);
    let third = policy_changes(&effects).remove(0);
    assert!(third.delta.is_empty());
    assert_eq!(third.globals.as_deref(), Some(&Globals::of(&core.model)));
    assert_eq!(Some(third.change), kernel_intents(&effects).first().map(|intent| intent.change));
    // A change that affects no rule sends nothing.
    let elsewhere = put("/calico/v1/host/h3/workload/cni/x/endpoint/eth0", &workload("10.9.0.1", "{}"), 4);
    assert!(policy_changes(&feed(&mut core, elsewhere)).is_empty());
}

#[test]
fn an_endpoint_that_comes_or_goes_brings_the_kernel_thread_rules_and_no_intent() {
    let (mut core, _) = started();
    enforced(&mut core);
    let key = "/calico/v1/host/h1/workload/cni/more/endpoint/eth0";
    let request = AppliedRequest { key: key.to_owned(), revision: 2, wait_millis: 0, elapsed_millis: None };
    let effects = feed(&mut core, put(key, &workload("10.244.9.9", "{}"), 2));
    assert_eq!((kernel_intents(&effects).len(), policy_changes(&effects).len(), core.generation), (0, 1, 1));
    assert_eq!(announced(&effects).unwrap(), ["10.244.1.0/26", "10.244.9.9/32"]);
    let held = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Routing(intent) => {
                Some(intent.addresses.keys().map(ToString::to_string).collect::<Vec<_>>())
            }
            _ => None,
        })
    };
    assert_eq!(held(&effects).unwrap(), ["10.244.1.1", "10.244.1.2", "10.244.9.9"]);
    assert!(verdict(&core, &request, &mut None).is_none(), "its rules are not in the kernel");
    enforced(&mut core);
    assert_eq!(verdict(&core, &request, &mut None), Some(("applied", None)));
    let gone = FeedEvent::Delta(Delta { revision: 3, changes: vec![Change::Delete { key: key.to_owned() }] });
    let effects = feed(&mut core, gone);
    assert_eq!((kernel_intents(&effects).len(), policy_changes(&effects).len()), (0, 1));
    assert_eq!(announced(&effects).unwrap(), ["10.244.1.0/26"]);
    assert_eq!(held(&effects).unwrap(), ["10.244.1.1", "10.244.1.2"]);
}

#[test]
fn a_freeze_holds_rules_and_all_that_was_missed_comes_after_it() {
    let (mut core, mut changes) = started();
    assert!(feed(&mut core, put("/calico/v1/Ready", "false", 2)).is_empty());
    let gone = FeedEvent::Delta(Delta { revision: 3, changes: vec![Change::Delete { key: DB.to_owned() }] });
    assert!(feed(&mut core, gone).is_empty());
    assert!(feed(&mut core, put(FAR, &workload("10.244.2.9", r#"{"role":"client"}"#), 4)).is_empty());
    changes.extend(policy_changes(&feed(&mut core, put("/calico/v1/Ready", "true", 5))));
    assert_eq!(changes.len(), 2);
    assert_eq!(changes[1].delta.endpoints.get(&endpoint(DB)), Some(&None));
    assert_eq!(sum(&changes), from_scratch(&core));
}

#[test]
fn a_relist_sends_only_what_differs() {
    let (mut core, mut changes) = started();
    let mut same = entries();
    same.retain(|kv| kv.key != DB);
    same.push(kv(POLICY, r#"{"selector":"all()","inbound_rules":[],"outbound_rules":[]}"#, 7));
    let relist = FeedEvent::Snapshot { snapshot: snapshot("a", 7, same).into(), generation: 2 };
    changes.extend(policy_changes(&feed(&mut core, relist)));
    changes.extend(policy_changes(&feed(
        &mut core,
        FeedEvent::Added {
            prefixes: vec![BLOCK.to_owned()],
            snapshot: snapshot("a", 7, vec![kv(BLOCK, &block(), 1)]),
        },
    )));
    assert_eq!(changes.len(), 2, "{changes:#?}");
    assert!(changes[1].globals.is_none());
    assert_eq!(sum(&changes), from_scratch(&core));
    assert_eq!(*core.enforcement.policy().unwrap().ruleset, from_scratch(&core));
}

#[test]
fn a_start_from_the_cache_goes_on_to_what_the_store_says() {
    let mut core = core();
    let mut all = entries();
    all.push(kv(BLOCK, &block(), 1));
    feed(&mut core, cached(snapshot("a", 1, all)));
    let mut changes = policy_changes(&give(&mut core, Input::StoreTimeout));
    assert_eq!(changes.len(), 1);
    let mut now = entries();
    now.retain(|kv| kv.key != DB);
    now.push(kv("/calico/v1/policy/profile/open/rules", r#"{"inbound_rules":[],"outbound_rules":[]}"#, 3));
    let snapshot_now = FeedEvent::Snapshot { snapshot: snapshot("a", 3, now).into(), generation: 1 };
    changes.extend(policy_changes(&feed(&mut core, snapshot_now)));
    let added = snapshot("a", 3, vec![kv(BLOCK, &block(), 1)]);
    changes.extend(policy_changes(&feed(
        &mut core,
        FeedEvent::Added { prefixes: vec![BLOCK.to_owned()], snapshot: added },
    )));
    assert_eq!(sum(&changes), from_scratch(&core));
    assert_eq!(from_scratch(&core).endpoints.len(), 1);
}

fn word(
    core: &Core,
    key: &str,
    revision: u64,
    needed: &mut Option<AckTarget>,
) -> Option<(&'static str, String)> {
    let request = AppliedRequest { key: key.to_owned(), revision, wait_millis: 0, elapsed_millis: None };
    verdict(core, &request, needed).map(|(word, why)| (word, why.unwrap_or_default()))
}

#[test]
fn an_endpoint_is_applied_when_its_change_is_in_the_kernel_and_fails_with_its_own_reason_only() {
    let (mut core, _) = started();
    let mut needed = None;
    assert_eq!(word(&core, WEB, 1, &mut needed), None, "the kernel has not answered");
    core.on_enforced(1, ChangeId(1), BTreeMap::new(), 90);
    assert_eq!(word(&core, WEB, 1, &mut needed), Some(("applied", String::new())));

    let mut needed = None;
    feed(&mut core, put(WEB, &workload("10.244.1.7", r#"{"role":"web"}"#), 2));
    settle(&mut core);
    assert_eq!(word(&core, WEB, 2, &mut needed), None);
    // Another endpoint's change follows before the kernel answers, and fails.
    feed(&mut core, put(DB, &workload("10.244.1.8", r#"{"role":"db"}"#), 3));
    settle(&mut core);
    let failed = |key: &str| BTreeMap::from([(endpoint(key), "there is no interface caliX".to_owned())]);
    core.on_enforced(2, ChangeId(2), failed(DB), 90);
    assert_eq!(word(&core, WEB, 2, &mut needed), Some(("applied", String::new())));
    assert_eq!(word(&core, DB, 3, &mut None), None, "its own change is not acknowledged");
    core.on_enforced(3, ChangeId(3), failed(DB), 90);
    let (result, why) = word(&core, DB, 3, &mut None).unwrap();
    assert!(result == "failed" && why.contains("no interface caliX"), "{result} {why}");
    // The policy applies to the other endpoint, the profile to both.
    assert_eq!(word(&core, POLICY, 3, &mut None), Some(("applied", String::new())));
    let (result, why) = word(&core, "/calico/v1/policy/profile/open/rules", 3, &mut None).unwrap();
    assert!(result == "failed" && why.contains(DB), "{result} {why}");
    core.on_enforced(3, ChangeId(3), BTreeMap::new(), 0);
    assert_eq!(word(&core, DB, 3, &mut None), Some(("applied", String::new())));
    let history = core.recorder.find(&about(DB), 0, 100);
    let kernel: Vec<&str> = history.iter().filter(|e| e.plane == "kernel").map(|e| e.mark.as_str()).collect();
    assert_eq!(kernel, ["!", "+", "~"], "{history:#?}");
}

#[test]
fn rules_that_the_kernel_does_not_have_are_not_applied() {
    let (mut core, _) = started();
    let why = "packet rules are off: this kernel has no nf_tables for family inet";
    give(&mut core, Input::Kernel(KernelFact::RulesProblem(Some(why.to_owned()))));
    core.on_enforced(1, ChangeId(1), BTreeMap::new(), 90);
    let profile = |part: &str| format!("/calico/v1/policy/profile/open/{part}");
    for key in [POLICY, &profile("rules"), &profile("tags"), &profile("labels")] {
        assert_eq!(word(&core, key, 1, &mut None), Some(("failed", why.to_owned())), "{key}");
    }
    // Of an endpoint this kernel has only the routes.
    assert_eq!(word(&core, WEB, 1, &mut None), Some(("applied", String::new())));
    let recorded = core.recorder.find(&Filter::default(), 0, 100);
    let recorded: Vec<&str> =
        recorded.iter().filter(|e| e.plane == "kernel").map(|e| e.text.as_str()).collect();
    assert!(
        recorded.iter().any(|text| text.contains("not in the kernel: packet rules are off")),
        "{recorded:?}"
    );
    assert!(
        !recorded.iter().any(|text| text.contains("rules and endpoints are in the kernel")),
        "{recorded:?}"
    );
    give(&mut core, Input::Kernel(KernelFact::RulesProblem(None)));
    assert_eq!(word(&core, POLICY, 1, &mut None), Some(("applied", String::new())));
}

#[test]
fn with_policy_off_nothing_is_computed_sent_or_waited_for() {
    let mut core = Core::new(&CoreOptions { policy: Mode::Off, ..core_options() }, now());
    feed(&mut core, FeedEvent::Snapshot { snapshot: snapshot("a", 1, entries()).into(), generation: 1 });
    let added = snapshot("a", 1, vec![kv(BLOCK, &block(), 1)]);
    let effects = feed(&mut core, FeedEvent::Added { prefixes: vec![BLOCK.to_owned()], snapshot: added });
    assert!(policy_changes(&effects).is_empty() && core.enforcement.policy().is_none());
    applied(&mut core, 1, Vec::new());
    assert_eq!(word(&core, WEB, 1, &mut None), Some(("applied", String::new())));
}
