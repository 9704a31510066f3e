//! Tests of the projection of live migrations. Names and members are those that OpenStack's driver writes.

use serde_json::json;

use super::{spec, view};

const OBJECT: &str = "livemigrations/openstack/vm";
const KEY: &str = "tortie/v1/livemigration/openstack/vm";

#[test]
fn a_migration_names_the_endpoints_that_a_workload_leaves_and_reaches() {
    let endpoint = |host: &str| json!({ "hostname": host, "orchestratorID": "openstack", "workloadID": "openstack/vm", "endpointID": "port" });
    let members = json!({
        "source": { "workloadEndpoint": endpoint("h1") },
        "target": { "workloadEndpoint": endpoint("h2") },
    });
    let view = view("h1", &[(OBJECT, spec(members))]);
    let named = |host: &str| json!({ "host": host, "orchestrator": "openstack", "workload": "openstack/vm", "endpoint": "port" });
    assert_eq!(view.json(KEY), json!({ "source": named("h1"), "target": named("h2") }));
    assert_eq!(view.origins[KEY], [OBJECT]);
    assert!(view.codes().is_empty());
}

#[test]
fn a_whole_workload_may_move_and_a_selector_may_name_the_target() {
    let workload = json!({ "hostname": "h1", "orchestratorID": "k8s", "workloadID": "default/vm" });
    let members = json!({ "source": { "workload": workload }, "target": { "selector": "vm == 'a'" } });
    let view = view("h1", &[(OBJECT, spec(members))]);
    let expected = json!({
        "source": { "host": "h1", "orchestrator": "k8s", "workload": "default/vm" },
        "target_selector": "vm == \"a\"",
    });
    assert_eq!(view.json(KEY), expected);
}

#[test]
fn a_side_that_cannot_be_read_names_no_endpoint() {
    let members = json!({
        "source": { "workloadEndpoint": { "hostname": "h1", "orchestratorID": "openstack" } },
        "target": { "selector": "vm ==" },
    });
    let view = view("h1", &[(OBJECT, spec(members))]);
    assert_eq!(view.json(KEY), json!({}));
    assert_eq!(view.codes(), [(OBJECT, "invalid-value"); 2]);
}
