//! Configuration and status of a BFD session.

use std::time::Duration;

use super::packet::{Diagnostic, State};

/// Configuration of a session. A change in state Up is announced with a Poll Sequence (RFC 5880 6.8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Parameters {
    /// Desired Min TX Interval in state Up, in whole microseconds: 1 us to 4,294 s.
    pub desired_min_tx: Duration,
    /// Required Min RX Interval, in whole microseconds: 1 us to 4,294 s.
    pub required_min_rx: Duration,
    /// Detect Mult, at least 1: number of packet intervals without a packet after which the neighbor declares
    /// the session down.
    pub multiplier: u8,
}

impl Parameters {
    /// Returns parameters with the same interval in both directions.
    #[must_use]
    pub fn new(interval: Duration, multiplier: u8) -> Self {
        Self { desired_min_tx: interval, required_min_rx: interval, multiplier }
    }

    /// Limits the values to the ranges of the packet fields.
    pub(super) fn clamped(self) -> Self {
        let (min, max) = (Duration::from_micros(1), Duration::from_micros(u32::MAX.into()));
        Self {
            desired_min_tx: self.desired_min_tx.clamp(min, max),
            required_min_rx: self.required_min_rx.clamp(min, max),
            multiplier: self.multiplier.max(1),
        }
    }
}

/// Cause of a state change.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Cause {
    /// Progress of the three-way handshake.
    Handshake,
    /// No packet arrived within the detection time (RFC 5880 6.8.4).
    Expired,
    /// The neighbor reports Down with this diagnostic: usually it does not receive our packets.
    NeighborDown(Diagnostic),
    /// The neighbor reports Down without a diagnostic, and with no or another discriminator: its BFD has
    /// restarted, and the path did not fail.
    NeighborRestarted,
    /// The neighbor is in AdminDown.
    NeighborAdminDown,
    /// The local session was removed or shut down.
    Admin,
}

impl Cause {
    /// Returns the stable text for metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Expired => "expired",
            Self::NeighborDown(_) => "neighbor_down",
            Self::NeighborRestarted => "neighbor_restarted",
            Self::NeighborAdminDown => "neighbor_admin_down",
            Self::Admin => "admin",
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Handshake => f.write_str("handshake"),
            Self::Expired => f.write_str(Diagnostic::EXPIRED.as_str()),
            Self::NeighborDown(diagnostic) if *diagnostic == Diagnostic::NONE => {
                f.write_str(Diagnostic::NEIGHBOR_DOWN.as_str())
            }
            Self::NeighborDown(diagnostic) => {
                write!(f, "{} ({})", Diagnostic::NEIGHBOR_DOWN.as_str(), diagnostic.as_str())
            }
            Self::NeighborRestarted => f.write_str("the neighbor's BFD restarted"),
            Self::NeighborAdminDown => f.write_str("neighbor is administratively down"),
            Self::Admin => f.write_str(Diagnostic::ADMIN_DOWN.as_str()),
        }
    }
}

/// Status of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Local session state.
    pub state: State,
    /// Time since the last state change.
    pub since: Duration,
    /// Session state in the last packet of the neighbor.
    pub remote_state: State,
    /// Local diagnostic: reason for the last change from Up.
    pub diagnostic: Diagnostic,
    /// Diagnostic in the last packet of the neighbor.
    pub remote_diagnostic: Diagnostic,
    /// Local discriminator.
    pub discriminator: u32,
    /// Discriminator of the neighbor; 0 until learned.
    pub remote_discriminator: u32,
    /// Interval of sent periodic packets before jitter. `None`: the neighbor accepts none.
    pub transmit_interval: Option<Duration>,
    /// Maximum interval of the neighbor's periodic packets.
    pub receive_interval: Duration,
    /// Time without packets after which the session goes down. `None` until the first packet arrives.
    pub detection_time: Option<Duration>,
    /// Detect Mult of the neighbor; 0 until the first packet arrives.
    pub remote_multiplier: u8,
    /// The neighbor sets the C bit: its BFD is independent of its control plane.
    pub remote_independent: bool,
    /// The neighbor is in demand mode.
    pub remote_demand: bool,
    /// Number of changes to Up.
    pub ups: u64,
    /// Cause of the last change from Up, and time since.
    pub last_down: Option<(Cause, Duration)>,
    /// Number of packets accepted.
    pub received: u64,
    /// Number of packets sent.
    pub sent: u64,
}
