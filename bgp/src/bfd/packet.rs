//! The BFD control packet (RFC 5880 4.1), and the reception checks of 6.8.6 that do not depend on a session.

/// Length of a control packet without authentication, in octets.
pub const PACKET_LEN: usize = 24;

/// Session state (bfd.SessionState, RFC 5880 6.8.1), in the order of the Sta field.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum State {
    /// The session is held down administratively.
    AdminDown,
    /// No packets arrive, or the neighbor reports Down.
    #[default]
    Down,
    /// Packets of the neighbor arrive.
    Init,
    /// Packets arrive at both ends.
    Up,
}

impl State {
    /// Returns the name in the spelling of RFC 5880.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AdminDown => "AdminDown",
            Self::Down => "Down",
            Self::Init => "Init",
            Self::Up => "Up",
        }
    }

    fn of(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::AdminDown,
            1 => Self::Down,
            2 => Self::Init,
            _ => Self::Up,
        }
    }

    fn bits(self) -> u8 {
        match self {
            Self::AdminDown => 0,
            Self::Down => 1,
            Self::Init => 2,
            Self::Up => 3,
        }
    }
}

/// Diagnostic (Diag field, RFC 5880 4.1): reason for the sender's last change from Up. Five bits; unassigned
/// values are kept.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Diagnostic(pub u8);

impl Diagnostic {
    /// 0: no diagnostic.
    pub const NONE: Self = Self(0);
    /// 1: control detection time expired.
    pub const EXPIRED: Self = Self(1);
    /// 3: neighbor signaled session down.
    pub const NEIGHBOR_DOWN: Self = Self(3);
    /// 7: administratively down.
    pub const ADMIN_DOWN: Self = Self(7);

    /// Returns the description of RFC 5880 4.1.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self.0 {
            0 => "no diagnostic",
            1 => "control detection time expired",
            2 => "echo function failed",
            3 => "neighbor signaled session down",
            4 => "forwarding plane reset",
            5 => "path down",
            6 => "concatenated path down",
            7 => "administratively down",
            8 => "reverse concatenated path down",
            9 => "mis-connectivity defect",
            _ => "reserved diagnostic",
        }
    }
}

/// A control packet without authentication section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Reason for the sender's last change from Up.
    pub diagnostic: Diagnostic,
    /// Session state of the sender.
    pub state: State,
    /// P bit: the sender requests a packet with the F bit.
    pub poll: bool,
    /// F bit: answer to a packet with the P bit.
    pub r#final: bool,
    /// C bit: the sender's BFD is independent of its control plane.
    pub independent: bool,
    /// D bit: the sender requests that no periodic packets are sent while both ends are Up (demand mode).
    pub demand: bool,
    /// Detect Mult: detection time multiplier, not 0.
    pub multiplier: u8,
    /// My Discriminator of the sender, not 0.
    pub my_discriminator: u32,
    /// Your Discriminator; 0 until the sender has learned it.
    pub your_discriminator: u32,
    /// Desired Min TX Interval in microseconds.
    pub desired_min_tx: u32,
    /// Required Min RX Interval in microseconds; 0: no periodic packets are accepted.
    pub required_min_rx: u32,
    /// Required Min Echo RX Interval in microseconds; 0: no echo packets are accepted.
    pub required_min_echo_rx: u32,
}

/// Reason for the discard of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Refused {
    /// TTL or hop limit of a single-hop packet is not 255 (RFC 5881 5).
    Ttl,
    /// The payload is shorter than a control packet or than its Length field.
    Length,
    /// The version is not 1.
    Version,
    /// Detect Mult is 0.
    Multiplier,
    /// The M bit is set.
    Multipoint,
    /// My Discriminator is 0, or Your Discriminator is 0 in state Init or Up.
    Discriminator,
    /// The A bit is set, but authentication is not in use.
    Authentication,
    /// No session has this discriminator or these addresses.
    UnknownSession,
    /// The session is in AdminDown.
    AdminDown,
}

impl Refused {
    /// All reasons, in the order of [`Self::index`].
    pub const ALL: [Self; 9] = [
        Self::Ttl,
        Self::Length,
        Self::Version,
        Self::Multiplier,
        Self::Multipoint,
        Self::Discriminator,
        Self::Authentication,
        Self::UnknownSession,
        Self::AdminDown,
    ];

    /// Returns the stable text for metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ttl => "ttl",
            Self::Length => "length",
            Self::Version => "version",
            Self::Multiplier => "multiplier",
            Self::Multipoint => "multipoint",
            Self::Discriminator => "discriminator",
            Self::Authentication => "authentication",
            Self::UnknownSession => "unknown_session",
            Self::AdminDown => "admin_down",
        }
    }

    /// Returns the index in [`Self::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const INDEPENDENT: u8 = 0x08;
const AUTHENTICATED: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

impl Packet {
    /// Decodes a UDP payload, with the checks of RFC 5880 6.8.6 up to the session lookup. Octets beyond the
    /// Length field are ignored.
    ///
    /// # Errors
    /// Reason for the discard.
    pub fn decode(payload: &[u8]) -> Result<Self, Refused> {
        let [first, flags, multiplier, len, rest @ ..] = payload else { return Err(Refused::Length) };
        if first >> 5 != 1 {
            return Err(Refused::Version);
        }
        let least = if flags & AUTHENTICATED == 0 { PACKET_LEN } else { PACKET_LEN + 2 };
        let len = usize::from(*len);
        if len < least || len > payload.len() {
            return Err(Refused::Length);
        }
        if *multiplier == 0 {
            return Err(Refused::Multiplier);
        }
        if flags & MULTIPOINT != 0 {
            return Err(Refused::Multipoint);
        }
        let mut words = rest.as_chunks::<4>().0.iter().map(|w| u32::from_be_bytes(*w));
        let mut word = || words.next().ok_or(Refused::Length);
        let packet = Self {
            diagnostic: Diagnostic(first & 0x1f),
            state: State::of(flags >> 6),
            poll: flags & POLL != 0,
            r#final: flags & FINAL != 0,
            independent: flags & INDEPENDENT != 0,
            demand: flags & DEMAND != 0,
            multiplier: *multiplier,
            my_discriminator: word()?,
            your_discriminator: word()?,
            desired_min_tx: word()?,
            required_min_rx: word()?,
            required_min_echo_rx: word()?,
        };
        if packet.my_discriminator == 0 {
            return Err(Refused::Discriminator);
        }
        if packet.your_discriminator == 0 && packet.state > State::Down {
            return Err(Refused::Discriminator);
        }
        if flags & AUTHENTICATED != 0 {
            return Err(Refused::Authentication);
        }
        Ok(packet)
    }

    /// Encodes the packet.
    #[must_use]
    pub fn encode(&self) -> [u8; PACKET_LEN] {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = self.state.bits() << 6
            | flag(self.poll, POLL)
            | flag(self.r#final, FINAL)
            | flag(self.independent, INDEPENDENT)
            | flag(self.demand, DEMAND);
        let [m0, m1, m2, m3] = self.my_discriminator.to_be_bytes();
        let [y0, y1, y2, y3] = self.your_discriminator.to_be_bytes();
        let [t0, t1, t2, t3] = self.desired_min_tx.to_be_bytes();
        let [r0, r1, r2, r3] = self.required_min_rx.to_be_bytes();
        let [e0, e1, e2, e3] = self.required_min_echo_rx.to_be_bytes();
        let first = 1 << 5 | (self.diagnostic.0 & 0x1f);
        [
            first,
            flags,
            self.multiplier,
            24,
            m0,
            m1,
            m2,
            m3,
            y0,
            y1,
            y2,
            y3,
            t0,
            t1,
            t2,
            t3,
            r0,
            r1,
            r2,
            r3,
            e0,
            e1,
            e2,
            e3,
        ]
    }
}
