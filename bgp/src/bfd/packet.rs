//! The BFD control packet (RFC 5880 4.1) and the checks of 6.8.6 that need no session.

/// Octets of a control packet without authentication.
pub const PACKET_LEN: usize = 24;

/// bfd.SessionState (RFC 5880 6.8.1). The order is that of the Sta field.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum State {
    /// Held down on purpose.
    AdminDown,
    /// No communication, or the other end says so.
    #[default]
    Down,
    /// Packets of the other end arrive.
    Init,
    /// Packets arrive at both ends.
    Up,
}

impl State {
    /// The name as RFC 5880 writes it.
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

/// The Diag field (RFC 5880 4.1): why the sender's session last left Up. Five bits; values that no document names are
/// kept as they are.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Diagnostic(pub u8);

impl Diagnostic {
    /// No diagnostic.
    pub const NONE: Self = Self(0);
    /// Control detection time expired.
    pub const EXPIRED: Self = Self(1);
    /// Neighbor signaled session down.
    pub const NEIGHBOR_DOWN: Self = Self(3);
    /// Administratively down.
    pub const ADMIN_DOWN: Self = Self(7);

    /// The words of RFC 5880 4.1.
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
    /// Why the sender's session last left Up; five bits.
    pub diagnostic: Diagnostic,
    /// The sender's session state.
    pub state: State,
    /// P: an answer with F is wanted.
    pub poll: bool,
    /// F: this answers a P.
    pub r#final: bool,
    /// C: the sender's BFD does not share its fate with its control plane.
    pub independent: bool,
    /// D: the sender wants no periodic packets while both are Up.
    pub demand: bool,
    /// Detect Mult, not 0.
    pub multiplier: u8,
    /// My Discriminator, not 0.
    pub my_discriminator: u32,
    /// Your Discriminator, 0 while the sender does not know it.
    pub your_discriminator: u32,
    /// Desired Min TX Interval in microseconds.
    pub desired_min_tx: u32,
    /// Required Min RX Interval in microseconds; 0: send no periodic packets.
    pub required_min_rx: u32,
    /// Required Min Echo RX Interval in microseconds; 0: no echo.
    pub required_min_echo_rx: u32,
}

/// Why a packet was discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Refused {
    /// Single hop, and TTL or hop limit is not 255 (RFC 5881 5).
    Ttl,
    /// Shorter than a packet, or than its Length field says.
    Length,
    /// Not version 1.
    Version,
    /// Detect Mult is 0.
    Multiplier,
    /// The M bit is set.
    Multipoint,
    /// My Discriminator is 0, or Your Discriminator is 0 in a state that knows it.
    Discriminator,
    /// The A bit is set; no authentication is in use.
    Authentication,
    /// No session has these discriminators or addresses.
    UnknownSession,
    /// Our session is held down.
    AdminDown,
}

impl Refused {
    /// All of them, in the order of [`Self::index`].
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

    /// Stable text for metrics.
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

    /// Its place in [`Self::ALL`].
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
    /// Reads a UDP payload, with the checks of RFC 5880 6.8.6 up to the one for the session. Octets behind the Length
    /// field's end are ignored.
    ///
    /// # Errors
    /// Why it is to be discarded.
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

    /// As it goes on the wire.
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
