//! State that the API's answers are computed from. Each answer is a function over it, in a file by subject.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::agent::api::bgp;
use crate::agent::api::cluster::ClusterCache;
use crate::agent::core::snapshot::CoreSnapshot;
use crate::agent::handle::Handle;
use crate::agent::journal::Journal;
use crate::agent::metrics::Exporter;
use crate::agent::observe::Observer;
use crate::api::status::{ApiError, List};
use tortie_store::Store;

/// Maximum number of concurrent followers of the flight recorder.
pub(in crate::agent) const FOLLOWERS: usize = 64;

/// Data sources of the API's answers.
pub(in crate::agent) struct Server {
    handle: Arc<Handle>,
    /// Protocol number of own kernel routes.
    protocol: u8,
    /// Store, for keys that the agent reads only on demand.
    store: Arc<dyn Store>,
    /// Cached IPAM state and node status of all hosts.
    cluster: ClusterCache,
    /// Set in observe mode.
    observer: Option<Arc<Observer>>,
    metrics: Exporter,
    journal: Journal,
    /// One permit per follower of the flight recorder.
    followers: Arc<Semaphore>,
    /// Locked while packets are traced.
    tracing: Arc<Mutex<()>>,
}

impl Server {
    pub(in crate::agent) fn new(
        handle: Arc<Handle>,
        protocol: u8,
        store: Arc<dyn Store>,
        observer: Option<Arc<Observer>>,
        metrics: Exporter,
        journal: Journal,
    ) -> Self {
        Self {
            cluster: ClusterCache::new(handle.node(), Arc::clone(&store)),
            handle,
            protocol,
            store,
            observer,
            metrics,
            journal,
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
            tracing: Arc::default(),
        }
    }

    /// Returns the handle of the agent's threads.
    pub(in crate::agent) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the journal of inputs.
    pub(in crate::agent) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns this host's node name.
    pub(in crate::agent) fn node(&self) -> &str {
        self.handle.node()
    }

    /// Returns the protocol number of own kernel routes.
    pub(in crate::agent) fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Returns the store, for keys that the agent reads only on demand.
    pub(in crate::agent) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns the cached IPAM state and node status of all hosts.
    pub(in crate::agent) fn cluster(&self) -> &ClusterCache {
        &self.cluster
    }

    /// Returns the comparison with other daemons; `None` unless in observe mode.
    pub(in crate::agent) fn observer(&self) -> Option<&Observer> {
        self.observer.as_deref()
    }

    /// Returns the exporter of the metrics pages.
    pub(in crate::agent) fn metrics(&self) -> &Exporter {
        &self.metrics
    }

    /// Acquires a permit to follow the flight recorder; `None` if all 64 are taken.
    pub(in crate::agent) fn follower(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.followers).try_acquire_owned().ok()
    }

    /// Locks packet tracing; `None` if another trace is running.
    pub(in crate::agent) fn lock_tracing(&self) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.tracing).try_lock_owned().ok()
    }

    /// Queries the core for the snapshot that `status` shows.
    pub(in crate::agent) async fn snapshot(&self) -> Result<CoreSnapshot, ApiError> {
        self.handle.core().ask(|core| core.snapshot(std::time::Instant::now())).await
    }

    /// Builds a list with node, revision and time.
    pub(in crate::agent) async fn list<T>(&self, kind: &str, items: Vec<T>) -> List<T> {
        let revision = self.handle.core().ask(|core| core.revision()).await.unwrap_or_default();
        bgp::list(kind, self.node(), revision, items)
    }
}
