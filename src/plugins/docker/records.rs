//! What is remembered between two calls, and the rules of dockerd's replay. Pure: no store, no clock.
//!
//! A dockerd that starts introduces itself (`Plugin.Activate`) and then asks again for what its stored networks and live
//! containers hold, with requests that look like those of new ones. Each introduction begins an *epoch*. What an earlier
//! epoch gave out may be asked for once more while the replay window is open; in between it may not.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

/// From the introduction of a dockerd to the end of its replay, in seconds. dockerd replays before it serves anybody; what
/// can delay it is another driver that is down, with 15 s for each of its endpoints.
pub(super) const WINDOW: i64 = 120;

/// The introductions of dockerds to one driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Epoch {
    /// Which one.
    pub(super) epoch: u64,
    /// When, in seconds since 1970.
    pub(super) since: i64,
}

impl Epoch {
    pub(super) fn next(self, now: i64) -> Self {
        Self { epoch: self.epoch + 1, since: now }
    }

    /// Whether the replay window is open. A clock that was set back does not close it.
    pub(super) fn open(self, now: i64) -> bool {
        self.epoch > 0 && now < self.since.saturating_add(WINDOW)
    }
}

/// A pool that networks of this host use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolRecord {
    /// How many networks use it.
    pub(super) refs: u32,
    /// The epoch of the last request.
    pub(super) epoch: u64,
    /// How many requests this epoch brought.
    pub(super) confirmed: u32,
}

impl PoolRecord {
    /// After one more request.
    #[must_use]
    pub(super) fn requested(self, epoch: Epoch, now: i64) -> Self {
        let this = self.settled(epoch, now);
        if this.epoch < epoch.epoch && epoch.open(now) {
            // The first of the replay. A failed replay in an earlier epoch may have taken the last reference.
            return Self { refs: this.refs.max(1), epoch: epoch.epoch, confirmed: 1 };
        }
        let confirmed = if this.epoch == epoch.epoch { this.confirmed } else { this.refs } + 1;
        Self { refs: this.refs.max(confirmed), epoch: epoch.epoch, confirmed }
    }

    /// After one more release.
    #[must_use]
    pub(super) fn released(self, epoch: Epoch, now: i64) -> Self {
        let this = self.settled(epoch, now);
        Self { refs: this.refs.saturating_sub(1), confirmed: this.confirmed.saturating_sub(1), ..this }
    }

    /// Once a replay that asked for this pool is over, what it did not ask for is gone.
    fn settled(self, epoch: Epoch, now: i64) -> Self {
        let over = self.epoch == epoch.epoch && self.confirmed > 0 && !epoch.open(now);
        if over { Self { refs: self.confirmed, ..self } } else { self }
    }
}

/// An address that was given out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AddressRecord {
    /// The driver that was asked.
    pub(super) driver: String,
    /// The id of the pool.
    pub(super) pool: String,
    /// The epoch of the last request.
    pub(super) epoch: u64,
    /// Asked for as the gateway of a network.
    pub(super) gateway: bool,
    /// The process that gave it last; a random number.
    #[serde(default)]
    pub(super) process: u64,
    /// When it was given, in seconds since 1970.
    pub(super) since: i64,
}

impl AddressRecord {
    /// Whether a request for this address, which is held, can be a replay.
    pub(super) fn replayed(&self, driver: &str, epoch: Epoch, now: i64) -> bool {
        self.driver == driver && self.epoch < epoch.epoch && epoch.open(now)
    }
}

/// A network of the network driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkRecord {
    /// Its name, once dockerd has told it.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// Its pools of both families.
    pub(super) pools: Vec<Cidr>,
    /// The MTU of its interfaces, in octets; none: as the host's.
    #[serde(default)]
    pub(super) mtu: Option<u32>,
    /// When it was made, in seconds since 1970.
    pub(super) since: i64,
}

/// An endpoint of the network driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointRecord {
    /// The id of its network.
    pub(super) network: String,
    /// Its addresses, IPv4 first.
    pub(super) addresses: Vec<IpAddr>,
    /// The MAC address inside of the container.
    pub(super) mac: String,
    /// The container's labels have been read.
    #[serde(default)]
    pub(super) labelled: bool,
    /// What it sends to instead of routers, once it has an interface.
    #[serde(default)]
    pub(super) gateways: Vec<IpAddr>,
    /// Ports of the host that lead to it.
    #[serde(default)]
    pub(super) ports: Vec<Published>,
    /// The path of the container's namespace, once it has an interface.
    #[serde(default)]
    pub(super) sandbox: String,
    /// Prefixes that the container reaches by this interface.
    #[serde(default)]
    pub(super) routes: Vec<Cidr>,
    /// The process that made it; a random number.
    #[serde(default)]
    pub(super) process: u64,
    /// The id of the container, once dockerd lists it.
    #[serde(default)]
    pub(super) container: Option<String>,
    /// When it was made, in seconds since 1970.
    pub(super) since: i64,
}

/// A port of the host that leads to a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Published {
    /// Protocol number.
    pub(super) proto: u8,
    /// The host's address; none: all of them.
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
        // A fourth network, and all of them go.
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
        /// However networks come and go and dockerd restarts: replays that are complete give the true count.
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
