//! Runs all commands against a store of Calico 3: commands that write the data model write objects, or are
//! rejected and change no key.

use clap::CommandFactory as _;
use tortie_store::{KeyValue, Op, Purpose, StoreOptions, Txn};

use super::*;

/// Commands that write Calico's data model and do not know that of Calico 3, with arguments, if the part of the
/// program is closed for it. Some only change the state of other programs, and are rejected before that.
const WRITES: &[(&str, Purpose)] =
    &[("docker --dir /nonexistent", Purpose::Docker), ("migrate adopt", Purpose::Adopt)];

/// Commands that write objects of Calico 3, with arguments in an order in which each has something to do.
const BY_OBJECTS: &[&str] = &[
    "ipam configure --strict-affinity false",
    "ipam pool create 10.99.0.0/16",
    "ipam pool disable 10.99.0.0/16",
    "ipam pool enable 10.99.0.0/16",
    "ipam claim 10.99.2.0/26",
    "ipam unclaim 10.99.2.0/26",
    "ipam assign --num4 2 --handle x",
    "ipam release --handle x",
    "ipam unclaim 10.99.0.0/16",
    "ipam pool delete 10.99.0.0/16",
    "ipam release --handle w1",
    "node delete h1",
];

/// Commands that write objects of Calico 3 and change the kernel.
const BY_OBJECTS_AND_KERNEL: &[&str] = &["purge"];

/// Commands that write the keys that a user names, of any data model.
const BY_HAND: &[&str] = &["store import", "store put", "store rm"];

/// Commands that write nothing of the model, or report the rejection in their own form: the agent in its
/// status, plugins by their protocols.
const OTHERS: &[&str] = &[
    "__complete",
    "__namespaces",
    "agent",
    "bgp drain",
    "bgp mrt dump",
    "bgp mrt replay",
    "bgp mrt show",
    "bgp mrt updates",
    "bgp peer",
    "bgp peers",
    "bgp ranges",
    "bgp reset",
    "bgp routes",
    "cni conflist",
    "cni install",
    "cni plugin",
    "cni status",
    "completion",
    "demo sh",
    "diags",
    "diff",
    "doctor",
    "endpoint list",
    "endpoint show",
    "history change",
    "history endpoint",
    "history peer",
    "history route",
    "ipam blocks",
    "ipam check",
    "ipam pools",
    "ipam show",
    "kurma add",
    "kurma del",
    "kurma setup",
    "kurma setup-wait",
    "lab down",
    "lab exec",
    "lab up",
    "log level",
    "man",
    "migrate check",
    "migrate data",
    "migrate plan",
    "migrate rollback",
    "monitor",
    "node list",
    "node settings",
    "node show",
    "policy list",
    "policy show",
    "policy trace",
    "replay",
    "route get",
    "route list",
    "schema",
    "selector eval",
    "selector match",
    "status",
    "store accept",
    "store export",
    "store get",
    "store key",
    "store ls",
    "store name workload-endpoint",
    "store project",
    "store validate",
    "store watch",
    "top",
    "version",
    "why drop",
    "why ip",
    "why packet",
    "why peer",
    "why route",
];

fn leaves(command: &clap::Command, path: &str, out: &mut Vec<String>) {
    if !command.has_subcommands() {
        out.push(path.to_owned());
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        leaves(sub, format!("{path} {}", sub.get_name()).trim(), out);
    }
}

/// Fills a store as Calico 3 does, with a block that has an allocated address.
async fn store(url: &str) -> Vec<KeyValue> {
    let store =
        tortie_store::open(&StoreOptions { url: url.to_owned(), ..StoreOptions::default() }).await.unwrap();
    let nulls = vec!["null"; 62].join(",");
    let block = format!(
        r#"{{"cidr":"10.244.1.0/26","affinity":"host:h1","allocations":[null,0,{nulls}],"unallocated":[0],"attributes":[{{"handle_id":"w1","secondary":{{"node":"h1"}}}}]}}"#
    );
    let entries = [
        ("/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26", block.as_str()),
        ("/calico/ipam/v2/host/h1/ipv4/block/10.244.1.0-26", r#"{"state":"confirmed"}"#),
        ("/calico/ipam/v2/handle/w1", r#"{"id":"w1","block":{"10.244.1.0/26":1}}"#),
        ("/calico/resources/v3/projectcalico.org/nodes/h1", r#"{"kind":"Node"}"#),
        (
            "/calico/resources/v3/projectcalico.org/clusterinformations/default",
            r#"{"spec":{"datastoreReady":true}}"#,
        ),
    ];
    let put = |(key, value): (&str, &str)| Op::Put { key: key.to_owned(), value: value.into(), lease: None };
    store.commit(Txn { ops: entries.map(put).into(), ..Txn::default() }).await.unwrap();
    store.list(&["/calico/".to_owned()]).await.unwrap().entries
}

#[test]
fn on_a_store_of_calico_3_commands_write_objects_or_nothing() {
    let mut all = Vec::new();
    leaves(&Cli::command(), "", &mut all);
    let listed = |leaf: &str| {
        let is_of = |line: &str| line == leaf || line.starts_with(&format!("{leaf} "));
        let writes = WRITES.iter().any(|(line, _)| is_of(line));
        let by_objects = BY_OBJECTS.iter().chain(BY_OBJECTS_AND_KERNEL).any(|line| is_of(line));
        let lists = [writes, by_objects, BY_HAND.contains(&leaf), OTHERS.contains(&leaf)];
        lists.iter().filter(|listed| **listed).count()
    };
    // `purge` writes with --keys, and `ipam configure` with an option.
    let unlisted: Vec<&String> = all.iter().filter(|leaf| listed(leaf) != 1).collect();
    assert!(unlisted.is_empty(), "does it write the data model? Put it into one of the lists: {unlisted:?}");
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("store.db").display());
    let before = runtime().unwrap().block_on(store(&url));
    let run = |line: &str| {
        let words = ["tortie", "--datastore", &url, "--node", "h1"].into_iter().chain(line.split(' '));
        dispatch(Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")))
    };
    for (line, purpose) in WRITES.iter().filter(|(_, purpose)| !purpose.writes_calico_3()) {
        let failure = run(line).expect_err(line);
        assert_eq!((failure.exit, failure.code.as_str()), (Exit::Refused, "calico-3"), "{line}: {failure}");
        assert!(
            failure.text.contains(purpose.name()) && failure.text.contains("--datastore"),
            "{line}: {failure}"
        );
    }
    let after = runtime().unwrap().block_on(async {
        let options = StoreOptions { url: url.clone(), ..StoreOptions::default() };
        let store = tortie_store::open(&options).await.unwrap();
        // Writes that do not come from a command are rejected, too.
        let op = Op::Put { key: "/calico/v1/Ready".to_owned(), value: "true".into(), lease: None };
        let refused = store.commit(Txn { ops: vec![op], ..Txn::default() }).await;
        assert!(matches!(refused, Err(tortie_store::StoreError::Guarded(_))), "{refused:?}");
        store.list(&["/calico/".to_owned()]).await.unwrap().entries
    });
    assert_eq!(after, before);
    for line in BY_OBJECTS {
        run(line).unwrap_or_else(|failure| panic!("{line}: {failure}"));
    }
    let left = runtime().unwrap().block_on(async {
        let store = tortie_store::open(&StoreOptions { url, ..StoreOptions::default() }).await.unwrap();
        store.names(&["/calico/".to_owned()]).await.unwrap()
    });
    let ready = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
    assert_eq!(left, ["/calico/ipam/v2/config", ready], "nothing of the v1 model, and nothing of the host");
}
