//! Rehearsed requests: their result is that of a real request, and nothing is written.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use tortie_config::key::IpFamily;
use tortie_engine::ipam::{AddressRequest, AllocationRequest, Ipam, IpamError};
use tortie_store::sqlite::SqliteStore;
use tortie_store::{Op, Store, StoreError, Txn};

fn put(key: &str, value: impl ToString) -> Op {
    Op::Put { key: key.to_owned(), value: value.to_string().into(), lease: None }
}

fn request(host: &str, count: u32, handle: &str) -> AllocationRequest {
    AllocationRequest {
        host: host.to_owned(),
        addresses: vec![AddressRequest::Any { family: IpFamily::V4, count, pools: Vec::new() }],
        handle: Some(handle.to_owned()),
        ..AllocationRequest::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// For any allocation, host and configuration.
    #[test]
    fn a_rehearsed_request_says_what_the_true_one_gets_and_writes_nothing(
        strict in any::<bool>(),
        limit in proptest::option::of(1_u32..3),
        steps in proptest::collection::vec((0_u8..3, 1_u32..5), 1..14),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let store = SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap();
            let store: Arc<dyn Store> = Arc::new(store);
            let mut config = json!({ "strict_affinity": strict, "auto_allocate_blocks": true });
            if let Some(limit) = limit {
                config["maxBlocksPerHost"] = limit.into();
            }
            let pool = json!({ "cidr": "10.65.0.0/28", "blockSize": 30 });
            let ops = vec![
                put("/calico/v1/ipam/v4/pool/10.65.0.0-28", pool),
                put("/calico/ipam/v2/config", config),
            ];
            store.commit(Txn { ops, ..Txn::default() }).await.unwrap();
            let ipam = Ipam::new(Arc::clone(&store));
            for (n, (host, count)) in steps.into_iter().enumerate() {
                let request = request(&format!("h{host}"), count, &format!("net.{n}"));
                let before = store.list(&["/calico/".to_owned()]).await.unwrap();
                let rehearsed = ipam.rehearse(&request).await;
                let after = store.list(&["/calico/".to_owned()]).await.unwrap();
                assert_eq!((before.revision, before.entries), (after.revision, after.entries));
                let given = ipam.assign(&request).await.map(drop);
                assert_eq!(rehearsed, given, "{request:?}");
            }
        });
    }
}

#[cfg(feature = "etcd")]
#[test]
fn an_etcd_that_may_only_be_read_refuses_a_rehearsal_as_it_refuses_the_true_request() {
    use crate::common::etcd::{Cluster, Security};
    let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = tortie_store::open(&cluster.options()).await.unwrap();
        let pool =
            put("/calico/v1/ipam/v4/pool/10.65.0.0-28", json!({ "cidr": "10.65.0.0/28", "blockSize": 30 }));
        store.commit(Txn { ops: vec![pool], ..Txn::default() }).await.unwrap();
        let both = async |store: &Arc<dyn Store>| {
            let ipam = Ipam::new(Arc::clone(store));
            let rehearsed = ipam.rehearse(&request("h1", 1, "net.a")).await.unwrap_err();
            let given = ipam.assign(&request("h1", 1, "net.a")).await.unwrap_err();
            (rehearsed, given)
        };
        Ipam::new(Arc::clone(&store)).rehearse(&request("h1", 1, "net.a")).await.unwrap();
        // A role with read permission only.
        for words in [
            &["user", "add", "root:secret"][..],
            &["role", "add", "root"],
            &["user", "grant-role", "root", "root"],
            &["user", "add", "reader:secret"],
            &["role", "add", "reader"],
            &["role", "grant-permission", "--prefix=true", "reader", "read", "/calico/"],
            &["user", "grant-role", "reader", "reader"],
            &["auth", "enable"],
        ] {
            cluster.etcdctl(words);
        }
        let password = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(password.path(), "secret").unwrap();
        let mut options = cluster.options();
        options.etcd_user = Some("reader".to_owned());
        options.etcd_password_file = Some(password.path().to_owned());
        let reader = tortie_store::open(&options).await.unwrap();
        let denied = |error: &IpamError| matches!(error, IpamError::Store(StoreError::PermissionDenied(_)));
        let (rehearsed, given) = both(&reader).await;
        assert!(denied(&rehearsed) && denied(&given), "{rehearsed} {given}");
        cluster.etcdctl(&["--user", "root:secret", "auth", "disable"]);
    });
}
