//! One conformance suite for both stores, SQLite and etcd.

mod sqlite {
    use crate::cases::{self, Shared};
    use std::sync::Arc;
    use tortie_store::sqlite::SqliteStore;

    async fn open(dir: &tempfile::TempDir) -> Shared {
        Arc::new(SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap())
    }

    macro_rules! run {
        ($($case:ident)*) => {$(
            #[tokio::test]
            async fn $case() {
                let dir = tempfile::tempdir().unwrap();
                cases::$case(&open(&dir).await, "/calico/test/").await;
            }
        )*};
    }

    run!(reads writer_locks compares ops limits watch watch_under_load watch_is_cancel_safe progress compaction leases large_list);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn eight_writers_lose_no_update() {
        let dir = crate::common::tools::folder_in_memory();
        let mut stores = Vec::new();
        for _ in 0..8 {
            stores.push(open(&dir).await);
        }
        cases::counters(stores, "/calico/test/").await;
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    use crate::cases;
    use crate::common::etcd::{Cluster, Security};

    macro_rules! run {
        ($($case:ident)*) => {$(
            #[tokio::test]
            async fn $case() {
                let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
                cases::$case(&tortie_store::open(&cluster.options()).await.unwrap(), "/calico/test/").await;
            }
        )*};
    }

    run!(reads writer_locks compares ops limits watch watch_under_load watch_is_cancel_safe progress compaction leases large_list);

    #[tokio::test]
    async fn eight_writers_lose_no_update() {
        let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
        let mut stores = Vec::new();
        for _ in 0..8 {
            stores.push(tortie_store::open(&cluster.options()).await.unwrap());
        }
        cases::counters(stores, "/calico/test/").await;
    }
}
