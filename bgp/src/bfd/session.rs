//! One BFD session: the state variables of RFC 5880 6.8.1 and the procedures of 6.8.2 to 6.8.7 and 6.8.16.

use std::time::{Duration, Instant};

use super::packet::{Diagnostic, Packet, Refused, State};
use super::random::mix;
use super::status::{Cause, Parameters, Status};

/// Minimum Desired Min TX Interval while the session is not Up (RFC 5880 6.8.3).
const SLOW: Duration = Duration::from_secs(1);

/// Returns the number of AdminDown packets to send for a removed session: enough to cover one Detection Time
/// of the neighbor (RFC 5880 6.8.16), even with the shortest jittered interval.
fn admin_down_packets(multiplier: u8) -> u16 {
    1 + (u16::from(multiplier) * 4).div_ceil(3)
}

/// A state change: the previous state and the cause. `None`: no change.
pub(super) type Transition = Option<(State, Cause)>;

#[derive(Debug)]
pub(super) struct Session {
    parameters: Parameters,
    // Named as in RFC 5880 6.8.1, without the prefix "bfd.".
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
    /// Desired Min TX Interval in use for sending. An increase takes effect when the Poll Sequence ends.
    effective_min_tx: Duration,
    /// Required Min RX Interval in use for the detection time. A decrease takes effect when the Poll Sequence
    /// ends.
    effective_min_rx: Duration,
    poll: bool,
    /// Parameters changed during a Poll Sequence; another one has to follow.
    poll_again: bool,
    /// A packet with the P bit has to be answered.
    answer: bool,
    /// The packet contents changed: a packet is due at once.
    send_now: bool,
    last_sent: Option<Instant>,
    next_send: Option<Instant>,
    detect_at: Option<Instant>,
    /// The detection time was extended since the last received packet.
    is_extended: bool,
    /// Number of AdminDown packets left to send. `None`: the session is not being removed.
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
            effective_min_tx: parameters.desired_min_tx.max(SLOW),
            effective_min_rx: parameters.required_min_rx,
            poll: false,
            poll_again: false,
            answer: false,
            send_now: true,
            last_sent: None,
            next_send: None,
            detect_at: None,
            is_extended: false,
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

    /// Returns true if the session was removed and all AdminDown packets have been sent.
    pub(super) fn is_gone(&self) -> bool {
        self.leaving == Some(0)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Changes the parameters (RFC 5880 6.8.3 and 6.8.12).
    pub(super) fn set(&mut self, parameters: Parameters, now: Instant) -> Transition {
        let parameters = parameters.clamped();
        let moved = if self.leaving.take().is_some() {
            // Configured again before the removal was complete.
            self.enter(State::Down, Cause::Admin, now)
        } else {
            None
        };
        let old = std::mem::replace(&mut self.parameters, parameters);
        if old == parameters {
            return moved;
        }
        self.send_now = true;
        let timing = |p: Parameters| (p.desired_min_tx, p.required_min_rx);
        if self.state == State::Up && timing(old) != timing(parameters) {
            self.effective_min_tx = self.effective_min_tx.min(parameters.desired_min_tx);
            self.effective_min_rx = self.effective_min_rx.max(parameters.required_min_rx);
            self.start_poll();
            self.shorten_interval(now);
        } else if self.state != State::Up {
            self.effective_min_tx = self.advertised_tx();
            self.effective_min_rx = parameters.required_min_rx;
        }
        self.restart_detection(now);
        moved
    }

    /// Removes the session (RFC 5880 6.8.16): sends AdminDown packets, then is gone.
    pub(super) fn leave(&mut self, now: Instant) -> Transition {
        if self.leaving.is_some() {
            return None;
        }
        // No packets to a neighbor that accepts none.
        let silent = self.remote_min_rx.is_zero();
        self.leaving = Some(if silent { 0 } else { admin_down_packets(self.parameters.multiplier) });
        self.enter(State::AdminDown, Cause::Admin, now)
    }

    /// Processes a packet of this session (RFC 5880 6.8.6).
    pub(super) fn receive(&mut self, packet: &Packet, now: Instant) -> Result<Transition, Refused> {
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
        self.shorten_interval(now);
        self.detect_at = Some(now + self.detection_time());
        self.is_extended = false;
        Ok(moved)
    }

    /// Handles due timers: transmission and detection.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Transition {
        if self.next_send.is_some_and(|at| at <= now) && self.sends_periodically() {
            self.send_now = true;
        }
        if self.detect_at.is_none_or(|at| at > now) {
            return None;
        }
        self.detect_at = None;
        // The learned values of the neighbor are no longer valid, demand mode included.
        self.remote_discriminator = 0;
        self.remote_state = State::Down;
        self.remote_demand = false;
        self.remote_min_rx = Duration::from_micros(1);
        self.shorten_interval(now);
        match self.state {
            State::Init | State::Up => {
                self.diagnostic = Diagnostic::EXPIRED;
                self.enter(State::Down, Cause::Expired, now)
            }
            State::Down | State::AdminDown => None,
        }
    }

    /// Handles a late call: extends an expired detection time by one packet interval of the neighbor, once
    /// between two received packets.
    pub(super) fn extend_detection(&mut self, now: Instant) -> Transition {
        if self.detect_at.is_some_and(|at| at <= now) && !std::mem::replace(&mut self.is_extended, true) {
            self.detect_at = Some(now + self.effective_min_rx.max(self.remote_desired_tx));
        }
        None
    }

    /// Returns the time of the next [`Self::handle_timeout`].
    pub(super) fn timeout(&self) -> Option<Instant> {
        // A due packet waits for `transmit` and needs no timer.
        let send = self.next_send.filter(|_| !self.send_now && self.sends_periodically());
        send.into_iter().chain(self.detect_at).min()
    }

    /// Returns true if a packet is due.
    pub(super) fn wants_transmit(&self) -> bool {
        self.answer || (self.send_now && self.may_send())
    }

    /// Returns the packet to send, if one is due (RFC 5880 6.8.7).
    pub(super) fn transmit(&mut self, now: Instant) -> Option<Packet> {
        if !self.wants_transmit() {
            return None;
        }
        let answer = std::mem::take(&mut self.answer);
        let packet = Packet {
            diagnostic: self.diagnostic,
            state: self.state,
            // P and F must not both be set; the Poll Sequence continues with the next packet.
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
        // An answer carries all changed values except the P bit. It is sent in addition to periodic packets,
        // so one that is due stays due.
        if !answer || (!self.poll && self.next_send.is_some_and(|at| at > now)) {
            self.send_now = false;
        }
        if !answer {
            self.leaving = self.leaving.map(|left| left.saturating_sub(1));
            self.last_sent = Some(now);
            self.next_send = Some(now + self.jittered());
        }
        Some(packet)
    }

    pub(super) fn status(&self, now: Instant) -> Status {
        let received = self.remote_multiplier != 0;
        Status {
            state: self.state,
            since: now.saturating_duration_since(self.since),
            remote_state: self.remote_state,
            diagnostic: self.diagnostic,
            remote_diagnostic: self.remote_diagnostic,
            discriminator: self.discriminator,
            remote_discriminator: self.remote_discriminator,
            transmit_interval: (!self.remote_min_rx.is_zero()).then(|| self.interval()),
            receive_interval: self.effective_min_rx.max(self.remote_desired_tx),
            detection_time: received.then(|| self.detection_time()),
            remote_multiplier: self.remote_multiplier,
            remote_independent: self.remote_independent,
            remote_demand: self.remote_demand,
            ups: self.ups,
            last_down: self.last_down.map(|(cause, at)| (cause, now.saturating_duration_since(at))),
            received: self.received,
            sent: self.sent,
        }
    }

    fn enter(&mut self, to: State, cause: Cause, now: Instant) -> Transition {
        let from = std::mem::replace(&mut self.state, to);
        if from == to {
            return None;
        }
        self.since = now;
        self.send_now = true;
        self.poll_again = false;
        match to {
            State::Up => {
                self.ups += 1;
                self.diagnostic = Diagnostic::NONE;
                // The change from the slow initial interval to the configured one requires a Poll Sequence.
                self.effective_min_tx = self.parameters.desired_min_tx;
                self.effective_min_rx = self.parameters.required_min_rx;
                self.poll = true;
            }
            State::AdminDown | State::Down | State::Init => {
                if to == State::AdminDown {
                    self.diagnostic = Diagnostic::ADMIN_DOWN;
                    self.detect_at = None;
                }
                self.poll = false;
                self.effective_min_tx = self.advertised_tx();
                self.effective_min_rx = self.parameters.required_min_rx;
            }
        }
        if from == State::Up {
            self.last_down = Some((cause, now));
        }
        Some((from, cause))
    }

    fn start_poll(&mut self) {
        // A packet with F on its way answers the previous values.
        self.poll_again = self.poll;
        self.poll = true;
    }

    fn poll_answered(&mut self) {
        if std::mem::take(&mut self.poll_again) {
            self.send_now = true;
            return;
        }
        self.poll = false;
        self.effective_min_tx = self.advertised_tx();
        self.effective_min_rx = self.parameters.required_min_rx;
    }

    /// Returns bfd.DesiredMinTxInterval.
    fn advertised_tx(&self) -> Duration {
        let wanted = self.parameters.desired_min_tx;
        if self.state == State::Up { wanted } else { wanted.max(SLOW) }
    }

    /// Returns the interval of periodic packets before jitter.
    fn interval(&self) -> Duration {
        if self.leaving.is_some() {
            return self.remote_min_rx.max(self.parameters.desired_min_tx);
        }
        self.effective_min_tx.max(self.remote_min_rx)
    }

    /// Returns the jittered interval (RFC 5880 6.8.7): 75 to 100 %, or 75 to 90 % with multiplier 1.
    fn jittered(&mut self) -> Duration {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let share = mix(self.random) & 0xffff;
        let most = if self.parameters.multiplier == 1 { 150_000 } else { 250_000 };
        // In millionths of the interval, which is at most 2^32 us.
        let keep = 750_000 + most * share / 0xffff;
        let micros = u64::try_from(self.interval().as_micros()).unwrap_or(u64::MAX);
        // At least 1 us, or a loop over due timers would not end.
        Duration::from_micros((micros.saturating_mul(keep) / 1_000_000).max(1))
    }

    /// Returns the detection time in asynchronous mode (RFC 5880 6.8.4).
    fn detection_time(&self) -> Duration {
        self.effective_min_rx.max(self.remote_desired_tx) * u32::from(self.remote_multiplier)
    }

    /// Returns true if the neighbor accepts packets.
    fn may_send(&self) -> bool {
        !self.remote_min_rx.is_zero() && self.leaving != Some(0)
    }

    fn sends_periodically(&self) -> bool {
        let demanded =
            self.remote_demand && self.state == State::Up && self.remote_state == State::Up && !self.poll;
        self.may_send() && !demanded
    }

    /// Applies a shorter interval at once (RFC 5880 6.8.7).
    fn shorten_interval(&mut self, now: Instant) {
        let interval = self.interval();
        if let Some(last) = self.last_sent
            && self.next_send.is_some_and(|at| at > last + interval)
        {
            self.next_send = Some((last + self.jittered()).max(now));
        }
    }

    /// Restarts the detection timer after a change of the local receive interval.
    fn restart_detection(&mut self, now: Instant) {
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
