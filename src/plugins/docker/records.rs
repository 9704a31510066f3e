//! Records of the drivers that persist between calls, and the rules of dockerd's replay. No store, no clock.
//!
//! A starting dockerd activates the plugin (`Plugin.Activate`), and then requests again what its stored
//! networks and running containers have, with requests that look like new ones. Each activation begins an
//! *epoch*. An allocation of an earlier epoch may be requested once more while the replay window is open, and
//! not at any other time.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

/// Length of the replay window in seconds, from the activation. dockerd replays before it serves users;
/// another driver that is down can delay it by 15 s for each of its endpoints.
pub(super) const WINDOW: i64 = 120;

/// The current epoch of a driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Epoch {
    /// Number of the epoch.
    pub(super) epoch: u64,
    /// Begin of the epoch, in seconds since 1970.
    pub(super) since: i64,
}

impl Epoch {
    pub(super) fn next(self, now: i64) -> Self {
        Self { epoch: self.epoch + 1, since: now }
    }

    /// True while the replay window is open. A clock that was set back does not close it.
    pub(super) fn open(self, now: i64) -> bool {
        self.epoch > 0 && now < self.since.saturating_add(WINDOW)
    }
}

/// A pool that networks of this host use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolRecord {
    /// Number of networks that use the pool.
    pub(super) refs: u32,
    /// Epoch of the last request.
    pub(super) epoch: u64,
    /// Number of requests in that epoch.
    pub(super) confirmed: u32,
}

impl PoolRecord {
    /// Returns the record after one more request.
    #[must_use]
    pub(super) fn requested(self, epoch: Epoch, now: i64) -> Self {
        let this = self.settled(epoch, now);
        if this.epoch < epoch.epoch && epoch.open(now) {
            // First request of the replay. A failed replay in an earlier epoch may have released the last
            // reference.
            return Self { refs: this.refs.max(1), epoch: epoch.epoch, confirmed: 1 };
        }
        let confirmed = if this.epoch == epoch.epoch { this.confirmed } else { this.refs } + 1;
        Self { refs: this.refs.max(confirmed), epoch: epoch.epoch, confirmed }
    }

    /// Returns the record after one more release.
    #[must_use]
    pub(super) fn released(self, epoch: Epoch, now: i64) -> Self {
        let this = self.settled(epoch, now);
        Self { refs: this.refs.saturating_sub(1), confirmed: this.confirmed.saturating_sub(1), ..this }
    }

    /// Drops references that a replay did not request, once the replay is over.
    fn settled(self, epoch: Epoch, now: i64) -> Self {
        let over = self.epoch == epoch.epoch && self.confirmed > 0 && !epoch.open(now);
        if over { Self { refs: self.confirmed, ..self } } else { self }
    }
}

/// An allocated address, with its last request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AddressRecord {
    /// Name of the requested driver.
    pub(super) driver: String,
    /// Id of the pool.
    pub(super) pool: String,
    /// Epoch of the last request.
    pub(super) epoch: u64,
    /// True if the address was requested as the gateway of a network.
    pub(super) gateway: bool,
    /// Random id of the process that allocated the address last.
    #[serde(default)]
    pub(super) process: u64,
    /// Time of the allocation, in seconds since 1970.
    pub(super) since: i64,
}

impl AddressRecord {
    /// True if a request for this allocated address can be a replay.
    pub(super) fn replayed(&self, driver: &str, epoch: Epoch, now: i64) -> bool {
        self.driver == driver && self.epoch < epoch.epoch && epoch.open(now)
    }
}

/// A network of the network driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkRecord {
    /// Name, once dockerd has reported it.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// Pools of both families.
    pub(super) pools: Vec<Cidr>,
    /// MTU of its interfaces in octets; `None` for the host's MTU.
    #[serde(default)]
    pub(super) mtu: Option<u32>,
    /// Time of creation, in seconds since 1970.
    pub(super) since: i64,
}

/// An endpoint of the network driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointRecord {
    /// Id of its network.
    pub(super) network: String,
    /// Addresses, IPv4 first.
    pub(super) addresses: Vec<IpAddr>,
    /// MAC address inside the container.
    pub(super) mac: String,
    /// True once the container's labels have been read.
    #[serde(default)]
    pub(super) labelled: bool,
    /// Default gateways, which the host proxies, once it has an interface.
    #[serde(default)]
    pub(super) gateways: Vec<IpAddr>,
    /// Port mappings from the host to the container.
    #[serde(default)]
    pub(super) ports: Vec<Published>,
    /// Path of the container's network namespace, once it has an interface.
    #[serde(default)]
    pub(super) sandbox: String,
    /// Prefixes that the container reaches by this interface.
    #[serde(default)]
    pub(super) routes: Vec<Cidr>,
    /// Random id of the process that created the record.
    #[serde(default)]
    pub(super) process: u64,
    /// Id of the container, once dockerd lists it.
    #[serde(default)]
    pub(super) container: Option<String>,
    /// Time of creation, in seconds since 1970.
    pub(super) since: i64,
}

/// A published port: a host port that is mapped to a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Published {
    /// IP protocol number.
    pub(super) proto: u8,
    /// Address of the host; `None` for all addresses.
    pub(super) host_ip: Option<IpAddr>,
    pub(super) host_port: u16,
    pub(super) port: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch(epoch: u64) -> Epoch {
        Epoch { epoch, since: 1_000 * i64::try_from(epoch).unwrap() }
    }

    const IN: i64 = 10;
    const AFTER: i64 = WINDOW;

    #[test]
    fn a_replay_leaks_no_reference() {
        let mut pool = PoolRecord::default();
        for _ in 0..3 {
            pool = pool.requested(epoch(1), 1_000 + AFTER);
        }
        assert_eq!(pool.refs, 3);
        for restart in 2..10 {
            let now = 1_000 * i64::try_from(restart).unwrap() + IN;
            for _ in 0..3 {
                pool = pool.requested(epoch(restart), now);
            }
            assert_eq!((pool.refs, pool.confirmed), (3, 3), "restart {restart}");
        }
        // A fourth network is created, then all are removed.
        pool = pool.requested(epoch(9), 9_000 + AFTER);
        for left in (0..4).rev() {
            pool = pool.released(epoch(9), 9_000 + AFTER);
            assert_eq!(pool.refs, left);
        }
    }

    #[test]
    fn what_a_replay_did_not_ask_for_is_gone_after_it() {
        let pool = PoolRecord { refs: 3, epoch: 1, confirmed: 3 };
        let pool = pool.requested(epoch(2), 2_000 + IN);
        assert_eq!(pool.refs, 3, "the others may still come");
        assert_eq!(pool.released(epoch(2), 2_000 + AFTER).refs, 0);
        assert_eq!(pool.requested(epoch(2), 2_000 + AFTER).refs, 2);
    }

    #[test]
    fn a_request_after_a_window_without_a_replay_is_one_more() {
        let pool = PoolRecord { refs: 1, epoch: 1, confirmed: 1 };
        assert_eq!(pool.requested(epoch(2), 2_000 + AFTER).refs, 2);
    }

    #[test]
    fn a_failed_replay_that_took_the_last_reference_is_repaired_by_the_next() {
        let pool = PoolRecord { refs: 1, epoch: 1, confirmed: 1 };
        let pool = pool.requested(epoch(2), 2_000 + IN).released(epoch(2), 2_000 + IN);
        assert_eq!(pool.refs, 0);
        assert_eq!(pool.requested(epoch(3), 3_000 + IN).refs, 1);
    }

    #[test]
    fn an_address_is_replayed_once_to_the_driver_that_gave_it() {
        let held = AddressRecord {
            driver: "d".into(),
            pool: "p".into(),
            epoch: 1,
            gateway: false,
            process: 0,
            since: 0,
        };
        assert!(held.replayed("d", epoch(2), 2_000 + IN));
        assert!(!held.replayed("e", epoch(2), 2_000 + IN), "another driver");
        assert!(!held.replayed("d", epoch(2), 2_000 + AFTER), "the window is closed");
        assert!(!held.replayed("d", epoch(1), 1_000 + IN), "no dockerd has started since");
        let again = AddressRecord { epoch: 2, ..held };
        assert!(!again.replayed("d", epoch(2), 2_000 + IN), "a second time");
    }

    proptest! {
        /// After any sequence of changes and restarts of dockerd, complete replays give the correct count.
        #[test]
        fn references_are_networks(steps in proptest::collection::vec(0_u8..3, 0..40)) {
            let (mut networks, mut current, mut now) = (0_u32, epoch(1), 1_000 + AFTER);
            let mut pool = PoolRecord::default();
            for step in steps {
                match step {
                    0 => { networks += 1; pool = pool.requested(current, now); }
                    1 if networks > 0 => { networks -= 1; pool = pool.released(current, now); }
                    1 => {}
                    _ => {
                        current = current.next(now + 1_000);
                        for _ in 0..networks { pool = pool.requested(current, current.since + IN); }
                        now = current.since + AFTER;
                    }
                }
                prop_assert_eq!(pool.refs, networks);
            }
        }
    }
}
