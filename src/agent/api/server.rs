//! The API's server: what the answers are made from. Each route's answer is a function over it, in a file by subject.

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

/// Followers of the flight recorder at once.
pub(in crate::agent) const FOLLOWERS: usize = 64;

/// The sources of the API's answers.
pub(in crate::agent) struct Server {
    handle: Arc<Handle>,
    /// Route protocol of own routes.
    protocol: u8,
    /// For what is only read on demand.
    store: Arc<dyn Store>,
    /// IPAM and status of all hosts.
    cluster: ClusterCache,
    /// Of an agent that observes.
    observer: Option<Arc<Observer>>,
    metrics: Exporter,
    journal: Journal,
    /// A permit for each who follows the flight recorder.
    followers: Arc<Semaphore>,
    /// Held while packets are traced.
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

    /// The agent's threads.
    pub(in crate::agent) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The journal of inputs.
    pub(in crate::agent) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// This host's name.
    pub(in crate::agent) fn node(&self) -> &str {
        self.handle.node()
    }

    /// Route protocol of own routes.
    pub(in crate::agent) fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The store, for what is only read on demand.
    pub(in crate::agent) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// IPAM and status of all hosts.
    pub(in crate::agent) fn cluster(&self) -> &ClusterCache {
        &self.cluster
    }

    /// The comparison with other daemons, of an agent that observes.
    pub(in crate::agent) fn observer(&self) -> Option<&Observer> {
        self.observer.as_deref()
    }

    /// The pages of metrics.
    pub(in crate::agent) fn metrics(&self) -> &Exporter {
        &self.metrics
    }

    /// A permit to follow the flight recorder; `None`: 64 follow already.
    pub(in crate::agent) fn follower(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.followers).try_acquire_owned().ok()
    }

    /// The lock of the one packet trace; `None`: another packet is traced.
    pub(in crate::agent) fn lock_tracing(&self) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.tracing).try_lock_owned().ok()
    }

    /// The core's state as `status` shows it.
    pub(in crate::agent) async fn snapshot(&self) -> Result<CoreSnapshot, ApiError> {
        self.handle.core().ask(|core| core.snapshot(std::time::Instant::now())).await
    }

    /// A list with its frame.
    pub(in crate::agent) async fn list<T>(&self, kind: &str, items: Vec<T>) -> List<T> {
        let revision = self.handle.core().ask(|core| core.revision()).await.unwrap_or_default();
        bgp::list(kind, self.node(), revision, items)
    }
}
