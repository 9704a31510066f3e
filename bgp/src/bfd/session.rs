//! One session: the variables of RFC 5880 6.8.1, and the rules of 6.8.2 to 6.8.7 and 6.8.16.

use std::time::{Duration, Instant};

use super::packet::{Diagnostic, Packet, Refused, State};

/// Least Desired Min TX Interval while the session is not Up (RFC 5880 6.8.3).
const SLOW: Duration = Duration::from_secs(1);

/// How often AdminDown is said before a removed session is forgotten, at the pace that the other end can take: for a
/// Detection Time (RFC 5880 6.8.16), however short jitter makes the pauses.
fn farewells(multiplier: u8) -> u16 {
    1 + (u16::from(multiplier) * 4).div_ceil(3)
}

/// What is configured of a session. A change while it is Up is made known by a Poll Sequence (RFC 5880 6.8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Parameters {
    /// Desired Min TX Interval once the session is Up: whole microseconds, more than 0, at most 4294 s.
    pub desired_min_tx: Duration,
    /// Required Min RX Interval: whole microseconds, more than 0, at most 4294 s.
    pub required_min_rx: Duration,
    /// Detect Mult: packets that may be missed at the other end until it holds us for dead; at least 1.
    pub multiplier: u8,
}

impl Parameters {
    /// The same interval in both directions.
    #[must_use]
    pub fn new(interval: Duration, multiplier: u8) -> Self {
        Self { desired_min_tx: interval, required_min_rx: interval, multiplier }
    }

    /// Values that the packet can carry.
    fn clamped(self) -> Self {
        let (min, max) = (Duration::from_micros(1), Duration::from_micros(u32::MAX.into()));
        Self {
            desired_min_tx: self.desired_min_tx.clamp(min, max),
            required_min_rx: self.required_min_rx.clamp(min, max),
            multiplier: self.multiplier.max(1),
        }
    }
}

/// Why a session changed its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Cause {
    /// The handshake went on.
    Handshake,
    /// Nothing came within the detection time (RFC 5880 6.8.4).
    Expired,
    /// The other end says Down, with this diagnostic: as a rule it does not hear us.
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
    /// The state that the other end last told.
    pub remote_state: State,
    /// Our last diagnostic.
    pub diagnostic: Diagnostic,
    /// The diagnostic that the other end last told.
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

/// What a packet or a timer did: the state before, and why it is another now.
pub(super) type Moved = Option<(State, Cause)>;

#[derive(Debug)]
pub(super) struct Session {
    parameters: Parameters,
    // The names of RFC 5880 6.8.1 with the prefix "bfd.".
    state: State,
    remote_state: State,
    discriminator: u32,
    remote_discriminator: u32,
    diagnostic: Diagnostic,
    remote_diagnostic: Diagnostic,
    remote_desired_tx: Duration,
    remote_min_rx: Duration,
    remote_multiplier: u8,
    remote_demand: bool,
    remote_independent: bool,
    /// Desired Min TX Interval that the pace follows: the old one until the poll for a greater one is answered.
    pace: Duration,
    /// Required Min RX Interval that the detection time follows: the old one until the poll for a lesser one is
    /// answered.
    patience: Duration,
    poll: bool,
    /// Parameters changed while a poll was under way: another one follows.
    poll_again: bool,
    /// A P is to be answered.
    answer: bool,
    /// The contents changed: a packet is due before its time.
    at_once: bool,
    last_sent: Option<Instant>,
    next_send: Option<Instant>,
    detect_at: Option<Instant>,
    /// It got more time since the last packet came.
    pardoned: bool,
    /// Farewells still to be said; `None`: not leaving.
    leaving: Option<u16>,
    since: Instant,
    ups: u64,
    last_down: Option<(Cause, Instant)>,
    received: u64,
    sent: u64,
    random: u64,
}

impl Session {
    pub(super) fn new(discriminator: u32, parameters: Parameters, now: Instant, seed: u64) -> Self {
        let parameters = parameters.clamped();
        Self {
            parameters,
            state: State::Down,
            remote_state: State::Down,
            discriminator,
            remote_discriminator: 0,
            diagnostic: Diagnostic::NONE,
            remote_diagnostic: Diagnostic::NONE,
            remote_desired_tx: Duration::ZERO,
            remote_min_rx: Duration::from_micros(1),
            remote_multiplier: 0,
            remote_demand: false,
            remote_independent: false,
            pace: parameters.desired_min_tx.max(SLOW),
            patience: parameters.required_min_rx,
            poll: false,
            poll_again: false,
            answer: false,
            at_once: true,
            last_sent: None,
            next_send: None,
            detect_at: None,
            pardoned: false,
            leaving: None,
            since: now,
            ups: 0,
            last_down: None,
            received: 0,
            sent: 0,
            random: seed,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn remote_independent(&self) -> bool {
        self.remote_independent
    }

    /// Removed, and has said so often enough.
    pub(super) fn is_gone(&self) -> bool {
        self.leaving == Some(0)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// RFC 5880 6.8.3 and 6.8.12.
    pub(super) fn set(&mut self, parameters: Parameters, now: Instant) -> Moved {
        let parameters = parameters.clamped();
        let moved = if self.leaving.take().is_some() {
            // Wanted again before it was forgotten.
            self.enter(State::Down, Cause::Admin, now)
        } else {
            None
        };
        let old = std::mem::replace(&mut self.parameters, parameters);
        if old == parameters {
            return moved;
        }
        self.at_once = true;
        let timing = |p: Parameters| (p.desired_min_tx, p.required_min_rx);
        if self.state == State::Up && timing(old) != timing(parameters) {
            self.pace = self.pace.min(parameters.desired_min_tx);
            self.patience = self.patience.max(parameters.required_min_rx);
            self.start_poll();
            self.repace(now);
        } else if self.state != State::Up {
            self.pace = self.advertised_tx();
            self.patience = parameters.required_min_rx;
        }
        self.redetect(now);
        moved
    }

    /// RFC 5880 6.8.16: goes to AdminDown, says so, and is gone then.
    pub(super) fn leave(&mut self, now: Instant) -> Moved {
        if self.leaving.is_some() {
            return None;
        }
        // Who wants no packets gets no farewell.
        let silent = self.remote_min_rx.is_zero();
        self.leaving = Some(if silent { 0 } else { farewells(self.parameters.multiplier) });
        self.enter(State::AdminDown, Cause::Admin, now)
    }

    /// A packet of this session (RFC 5880 6.8.6).
    pub(super) fn receive(&mut self, packet: &Packet, now: Instant) -> Result<Moved, Refused> {
        if self.state == State::AdminDown {
            return Err(Refused::AdminDown);
        }
        self.received += 1;
        let restarted = packet.diagnostic == Diagnostic::NONE
            && (packet.your_discriminator == 0 || self.remote_discriminator != packet.my_discriminator);
        self.remote_discriminator = packet.my_discriminator;
        self.remote_state = packet.state;
        self.remote_diagnostic = packet.diagnostic;
        self.remote_demand = packet.demand;
        self.remote_independent = packet.independent;
        self.remote_desired_tx = micros(packet.desired_min_tx);
        self.remote_multiplier = packet.multiplier;
        self.remote_min_rx = micros(packet.required_min_rx);
        if packet.r#final && self.poll {
            self.poll_answered();
        }
        self.answer |= packet.poll;
        let moved = match (self.state, packet.state) {
            (State::Down, State::Down) => self.enter(State::Init, Cause::Handshake, now),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                self.enter(State::Up, Cause::Handshake, now)
            }
            (State::Up | State::Init, State::AdminDown) => {
                self.diagnostic = Diagnostic::NEIGHBOR_DOWN;
                self.enter(State::Down, Cause::NeighborAdminDown, now)
            }
            (State::Up, State::Down) => {
                self.diagnostic = Diagnostic::NEIGHBOR_DOWN;
                let cause =
                    if restarted { Cause::NeighborRestarted } else { Cause::NeighborDown(packet.diagnostic) };
                self.enter(State::Down, cause, now)
            }
            _ => None,
        };
        self.repace(now);
        self.detect_at = Some(now + self.detection_time());
        self.pardoned = false;
        Ok(moved)
    }

    /// Something's time has come.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Moved {
        if self.next_send.is_some_and(|at| at <= now) && self.sends_periodically() {
            self.at_once = true;
        }
        if self.detect_at.is_none_or(|at| at > now) {
            return None;
        }
        self.detect_at = None;
        // Nothing that it said holds any longer; above all, a wish for silence does not.
        self.remote_discriminator = 0;
        self.remote_state = State::Down;
        self.remote_demand = false;
        self.remote_min_rx = Duration::from_micros(1);
        self.repace(now);
        match self.state {
            State::Init | State::Up => {
                self.diagnostic = Diagnostic::EXPIRED;
                self.enter(State::Down, Cause::Expired, now)
            }
            State::Down | State::AdminDown => None,
        }
    }

    /// The caller was late: what is overdue gets one more interval of the other end, once between two packets.
    pub(super) fn pardon(&mut self, now: Instant) -> Moved {
        if self.detect_at.is_some_and(|at| at <= now) && !std::mem::replace(&mut self.pardoned, true) {
            self.detect_at = Some(now + self.patience.max(self.remote_desired_tx));
        }
        None
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(super) fn timeout(&self) -> Option<Instant> {
        // What is due waits for `transmit`, not for time.
        let send = self.next_send.filter(|_| !self.at_once && self.sends_periodically());
        send.into_iter().chain(self.detect_at).min()
    }

    /// A packet is due.
    pub(super) fn wants_transmit(&self) -> bool {
        self.answer || (self.at_once && self.may_send())
    }

    /// The packet that is due, if one is (RFC 5880 6.8.7).
    pub(super) fn transmit(&mut self, now: Instant) -> Option<Packet> {
        if !self.wants_transmit() {
            return None;
        }
        let answer = std::mem::take(&mut self.answer);
        let packet = Packet {
            diagnostic: self.diagnostic,
            state: self.state,
            // Never both; the poll goes on with the next packet.
            poll: self.poll && !answer,
            r#final: answer,
            independent: false,
            demand: false,
            multiplier: self.parameters.multiplier,
            my_discriminator: self.discriminator,
            your_discriminator: self.remote_discriminator,
            desired_min_tx: in_micros(self.advertised_tx()),
            required_min_rx: in_micros(self.parameters.required_min_rx),
            required_min_echo_rx: 0,
        };
        self.sent += 1;
        // An answer carries all the news but the poll, and stands beside the periodic packets: one that is due still is.
        if !answer || (!self.poll && self.next_send.is_some_and(|at| at > now)) {
            self.at_once = false;
        }
        if !answer {
            self.leaving = self.leaving.map(|left| left.saturating_sub(1));
            self.last_sent = Some(now);
            self.next_send = Some(now + self.jittered());
        }
        Some(packet)
    }

    pub(super) fn status(&self, now: Instant) -> Status {
        let heard = self.remote_multiplier != 0;
        Status {
            state: self.state,
            since: now.saturating_duration_since(self.since),
            remote_state: self.remote_state,
            diagnostic: self.diagnostic,
            remote_diagnostic: self.remote_diagnostic,
            discriminator: self.discriminator,
            remote_discriminator: self.remote_discriminator,
            transmit_interval: (!self.remote_min_rx.is_zero()).then(|| self.interval()),
            receive_interval: self.patience.max(self.remote_desired_tx),
            detection_time: heard.then(|| self.detection_time()),
            remote_multiplier: self.remote_multiplier,
            remote_independent: self.remote_independent,
            remote_demand: self.remote_demand,
            ups: self.ups,
            last_down: self.last_down.map(|(cause, at)| (cause, now.saturating_duration_since(at))),
            received: self.received,
            sent: self.sent,
        }
    }

    fn enter(&mut self, to: State, cause: Cause, now: Instant) -> Moved {
        let from = std::mem::replace(&mut self.state, to);
        if from == to {
            return None;
        }
        self.since = now;
        self.at_once = true;
        self.poll_again = false;
        match to {
            State::Up => {
                self.ups += 1;
                self.diagnostic = Diagnostic::NONE;
                // From the slow start to the wanted pace: a change that has to be polled.
                self.pace = self.parameters.desired_min_tx;
                self.patience = self.parameters.required_min_rx;
                self.poll = true;
            }
            State::AdminDown | State::Down | State::Init => {
                if to == State::AdminDown {
                    self.diagnostic = Diagnostic::ADMIN_DOWN;
                    self.detect_at = None;
                }
                self.poll = false;
                self.pace = self.advertised_tx();
                self.patience = self.parameters.required_min_rx;
            }
        }
        if from == State::Up {
            self.last_down = Some((cause, now));
        }
        Some((from, cause))
    }

    fn start_poll(&mut self) {
        // A packet with F that is on its way answers the old values.
        self.poll_again = self.poll;
        self.poll = true;
    }

    fn poll_answered(&mut self) {
        if std::mem::take(&mut self.poll_again) {
            self.at_once = true;
            return;
        }
        self.poll = false;
        self.pace = self.advertised_tx();
        self.patience = self.parameters.required_min_rx;
    }

    /// bfd.DesiredMinTxInterval.
    fn advertised_tx(&self) -> Duration {
        let wanted = self.parameters.desired_min_tx;
        if self.state == State::Up { wanted } else { wanted.max(SLOW) }
    }

    /// Time between periodic packets before jitter.
    fn interval(&self) -> Duration {
        if self.leaving.is_some() {
            return self.remote_min_rx.max(self.parameters.desired_min_tx);
        }
        self.pace.max(self.remote_min_rx)
    }

    /// RFC 5880 6.8.7: 75 to 100 % of the interval, 75 to 90 % where one missed packet is enough.
    fn jittered(&mut self) -> Duration {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let share = super::table::mix(self.random) & 0xffff;
        let most = if self.parameters.multiplier == 1 { 150_000 } else { 250_000 };
        // In millionths of the interval, which is at most 2^32 us.
        let keep = 750_000 + most * share / 0xffff;
        let micros = u64::try_from(self.interval().as_micros()).unwrap_or(u64::MAX);
        // Not 0, or time would stand still.
        Duration::from_micros((micros.saturating_mul(keep) / 1_000_000).max(1))
    }

    /// RFC 5880 6.8.4, asynchronous mode.
    fn detection_time(&self) -> Duration {
        self.patience.max(self.remote_desired_tx) * u32::from(self.remote_multiplier)
    }

    /// The other end allows packets at all.
    fn may_send(&self) -> bool {
        !self.remote_min_rx.is_zero() && self.leaving != Some(0)
    }

    fn sends_periodically(&self) -> bool {
        let demanded =
            self.remote_demand && self.state == State::Up && self.remote_state == State::Up && !self.poll;
        self.may_send() && !demanded
    }

    /// The interval may have become shorter: that counts at once (RFC 5880 6.8.7).
    fn repace(&mut self, now: Instant) {
        let interval = self.interval();
        if let Some(last) = self.last_sent
            && self.next_send.is_some_and(|at| at > last + interval)
        {
            self.next_send = Some((last + self.jittered()).max(now));
        }
    }

    /// Our own part of the detection time changed.
    fn redetect(&mut self, now: Instant) {
        if self.detect_at.is_some() {
            self.detect_at = Some(now + self.detection_time());
        }
    }
}

fn micros(value: u32) -> Duration {
    Duration::from_micros(value.into())
}

fn in_micros(value: Duration) -> u32 {
    u32::try_from(value.as_micros()).unwrap_or(u32::MAX)
}
