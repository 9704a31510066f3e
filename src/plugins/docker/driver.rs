//! Shared by all calls of the drivers: the store's records, dockerd's API, and the locks between calls.

use tokio::sync::{Mutex, RwLock};
use tortie_config::key::DockerItem;

use super::dockerd::Dockerd;
use super::error::Refusal;
use super::options::Options;
use super::records::Epoch;
use super::state::State;

/// The state of the drivers.
pub(super) struct Driver {
    pub(super) options: Options,
    pub(super) state: State,
    pub(super) dockerd: Dockerd,
    /// Pools are chosen, counted and removed one after the other.
    pub(super) pools: Mutex<()>,
    /// Held between IPAM's answer and the record: shared by requests for any address, alone by those for one.
    pub(super) allocation_lock: RwLock<()>,
    /// Host ports, and gateways of one container, are chosen one after the other.
    pub(super) choices: Mutex<()>,
    /// Tells what this process gave out from what an earlier one did.
    pub(super) process: u64,
    /// When this process began to serve.
    pub(super) started_at: std::time::Instant,
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

impl Driver {
    pub(super) async fn epoch(&self, driver: &str) -> Result<Epoch, Refusal> {
        let item = DockerItem::Epoch { driver: driver.to_owned() };
        Ok(self.state.get(&item).await?.map_or_else(Epoch::default, |(epoch, _)| epoch))
    }

    /// A dockerd has started.
    pub(super) async fn begin_epoch(&self, driver: &str) -> Result<(), Refusal> {
        let item = DockerItem::Epoch { driver: driver.to_owned() };
        self.state.change(&item, |old: Option<Epoch>| Ok(Some(old.unwrap_or_default().next(now())))).await?;
        Ok(())
    }
}
