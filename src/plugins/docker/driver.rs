//! State that all calls of the drivers share: records in the store, dockerd's API, and locks.

use tokio::sync::{Mutex, RwLock};
use tortie_config::key::DockerItem;

use super::dockerd::Dockerd;
use super::error::Refusal;
use super::options::Options;
use super::records::Epoch;
use super::state::State;

/// Shared state of the drivers.
pub(super) struct Driver {
    pub(super) options: Options,
    pub(super) state: State,
    pub(super) dockerd: Dockerd,
    /// Serializes the selection, counting and removal of pools.
    pub(super) pools: Mutex<()>,
    /// Held from IPAM's answer until the record is written: shared by requests for any address, exclusive for
    /// those for a given address.
    pub(super) allocation_lock: RwLock<()>,
    /// Serializes the selection of host ports, and of gateways of one container.
    pub(super) choices: Mutex<()>,
    /// Random id that distinguishes allocations of this process from those of earlier ones.
    pub(super) process: u64,
    /// Time at which this process began to serve.
    pub(super) started_at: std::time::Instant,
}

/// Returns the seconds since 1970.
pub(super) fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

impl Driver {
    pub(super) async fn epoch(&self, driver: &str) -> Result<Epoch, Refusal> {
        let item = DockerItem::Epoch { driver: driver.to_owned() };
        Ok(self.state.get(&item).await?.map_or_else(Epoch::default, |(epoch, _)| epoch))
    }

    /// Begins a new epoch after the start of a dockerd.
    pub(super) async fn begin_epoch(&self, driver: &str) -> Result<(), Refusal> {
        let item = DockerItem::Epoch { driver: driver.to_owned() };
        self.state.change(&item, |old: Option<Epoch>| Ok(Some(old.unwrap_or_default().next(now())))).await?;
        Ok(())
    }
}
