//! Tests of the keys that pass, and of keys of objects.

use super::*;
use crate::calico3::ObjectKey;

fn raw(key: &str) -> RawEntry<'_> {
    RawEntry { key, value: b"{}", created: 3, revision: 5 }
}

#[test]
fn keys_of_both_models_pass_and_those_of_v1_are_dropped() {
    let mut projection = Projection::new("a");
    let listed = ["/calico/ipam/v2/config", "/calico/v1/Ready", "/calico/bgp/v1/global/as_num"];
    let entries = projection.replace(listed.into_iter().map(raw));
    let passed: Vec<_> = entries.iter().filter(|e| e.key.contains("/ipam/")).collect();
    assert_eq!(passed.len(), 1);
    // The store is not ready without a ClusterInformation, whatever the v1 key says.
    let ready: Vec<_> = entries.iter().filter(|e| e.key == "/calico/v1/Ready").collect();
    assert_eq!(ready.iter().map(|e| e.value.as_slice()).collect::<Vec<_>>(), [b"false"]);
    assert_eq!(projection.v1_keys(), 2);
}

#[test]
fn a_key_of_an_object_is_parsed_and_formatted() {
    let root = "/calico/resources/v3/projectcalico.org";
    for text in ["nodes/a", "networkpolicies/ns/knp.default.x", "ippools/pool-1"] {
        let text = format!("{root}/{text}");
        assert_eq!(ObjectKey::parse(&text).unwrap().to_string(), text);
    }
    for text in ["nodes/a/b", "networkpolicies/x", "nodes", "nodes/", "widgets/a", "networkpolicies//x"] {
        assert_eq!(ObjectKey::parse(&format!("{root}/{text}")), None, "{text}");
    }
    assert_eq!(ObjectKey::parse("/calico/resources/v3/other.org/nodes/a"), None);
}

#[test]
fn two_policies_that_users_see_under_one_name_are_a_problem() {
    let key = |name: &str| format!("{}projectcalico.org/networkpolicies/shop/{name}", prefix::CALICO_3);
    let put = |projection: &mut Projection, name: &str, value: &str| {
        let key = key(name);
        let raw = RawEntry { key: &key, value: value.as_bytes(), created: 3, revision: 5 };
        projection.apply([RawChange::Put(raw)], 5);
        let problems = projection.problems().into_iter();
        problems.map(|problem| (problem.key.title(), problem.code)).collect::<Vec<_>>()
    };
    let mut projection = Projection::new("a");
    let double = [("NetworkPolicy shop/default.web".to_owned(), "duplicate-policy")];
    assert_eq!(put(&mut projection, "default.web", "{}"), []);
    assert_eq!(put(&mut projection, "web", "{}"), double);
    assert!(projection.problems()[0].text.contains("NetworkPolicy shop/web"));
    // Of another tier, or with this very name, it is another policy for its users as well.
    assert_eq!(put(&mut projection, "web", r#"{"spec":{"tier":"net"}}"#), []);
    assert_eq!(put(&mut projection, "web", "{}"), double);
    let named = r#"{"metadata":{"annotations":{"projectcalico.org/metadata":"{\"name\":\"default.web\"}"}}}"#;
    assert_eq!(put(&mut projection, "default.web", named), []);
    assert_eq!(put(&mut projection, "default.web", "{}"), double);
    projection.apply([RawChange::Delete(&key("default.web"))], 6);
    assert!(projection.problems().is_empty());
}
