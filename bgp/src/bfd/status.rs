//! Configuration and status of a session.

use std::time::Duration;

use super::packet::{Diagnostic, State};

/// Configuration of a session. A change while it is Up is made known by a Poll Sequence (RFC 5880 6.8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Parameters {
    /// Desired Min TX Interval once the session is Up: whole microseconds, more than 0, at most 4294 s.
    pub desired_min_tx: Duration,
    /// Required Min RX Interval: whole microseconds, more than 0, at most 4294 s.
    pub required_min_rx: Duration,
    /// Detect Mult: packets that may be missed at the other end until it declares the session down; at least 1.
    pub multiplier: u8,
}

impl Parameters {
    /// The same interval in both directions.
    #[must_use]
    pub fn new(interval: Duration, multiplier: u8) -> Self {
        Self { desired_min_tx: interval, required_min_rx: interval, multiplier }
    }

    /// Values that the packet can carry.
    pub(super) fn clamped(self) -> Self {
        let (min, max) = (Duration::from_micros(1), Duration::from_micros(u32::MAX.into()));
        Self {
            desired_min_tx: self.desired_min_tx.clamp(min, max),
            required_min_rx: self.required_min_rx.clamp(min, max),
            multiplier: self.multiplier.max(1),
        }
    }
}

/// Why a session changed its state.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Cause {
    /// The handshake went on.
    Handshake,
    /// Nothing came within the detection time (RFC 5880 6.8.4).
    Expired,
    /// The other end says Down, with this diagnostic: as a rule our packets do not arrive.
    NeighborDown(Diagnostic),
    /// The other end says Down without a reason, and knows nothing of us or has another discriminator: its BFD began
    /// anew, and did not lose us.
    NeighborRestarted,
    /// The other end is held down on purpose.
    NeighborAdminDown,
    /// Our end was removed or shut down.
    Admin,
}

impl Cause {
    /// Stable text for metrics.
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
            Self::NeighborRestarted => f.write_str("the neighbor's BFD began anew"),
            Self::NeighborAdminDown => f.write_str("neighbor is administratively down"),
            Self::Admin => f.write_str(Diagnostic::ADMIN_DOWN.as_str()),
        }
    }
}

/// A session at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Our state.
    pub state: State,
    /// How long.
    pub since: Duration,
    /// The state in the last packet of the other end.
    pub remote_state: State,
    /// Our last diagnostic.
    pub diagnostic: Diagnostic,
    /// The diagnostic in the last packet of the other end.
    pub remote_diagnostic: Diagnostic,
    /// My Discriminator.
    pub discriminator: u32,
    /// The other end's, 0 while unknown.
    pub remote_discriminator: u32,
    /// Time between our periodic packets before jitter; `None`: the other end wants none.
    pub transmit_interval: Option<Duration>,
    /// Longest time between the other end's periodic packets.
    pub receive_interval: Duration,
    /// Silence after which the session is down; `None` until a packet came.
    pub detection_time: Option<Duration>,
    /// Detect Mult of the other end, 0 until a packet came.
    pub remote_multiplier: u8,
    /// The other end set the C bit.
    pub remote_independent: bool,
    /// The other end is in demand mode.
    pub remote_demand: bool,
    /// How often the session came up.
    pub ups: u64,
    /// Why and how long ago it last left Up.
    pub last_down: Option<(Cause, Duration)>,
    /// Packets accepted.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
}
