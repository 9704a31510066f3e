//! The BGP finite state machine (RFC 4271 8): the six states, the events of 8.1, and the transitions of 8.2.2
//! as one pure function.
//!
//! Each connection has its own machine (8.2.1). That of an outgoing connection starts in Idle and dials in
//! Connect; that of an incoming connection starts in Active. [`transition`] maps a state and an event to the
//! next state and an [`Action`]; the speaker supplies the events and carries out the actions. A machine that
//! returns to Idle or Active is discarded with its connection, and the next one is started (event 3).
//!
//! Not implemented, all optional: events 4 to 7, variants of 1 and 3 (a passive or damped peer differs only
//! in its ConnectRetryTimer); 12 and 20 of DelayOpen (the delay precedes the TCP connection,
//! [`Dial::After`](crate::Dial::After)); 14 and 15 ([`Speaker::admits`](crate::Speaker::admits) decides on
//! incoming connections). Not in RFC 4271: SendHoldTimer_Expires is event 29 of RFC 9687, and ROUTE-REFRESH
//! (RFC 2918) has no number.

use crate::api::State;
use crate::wire::ErrorCode;

/// An event of RFC 4271 8.1, with its name and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Event 1: an operator or the configuration starts the peer.
    ManualStart,
    /// Event 2: an operator or the configuration stops the connection.
    ManualStop,
    /// Event 3: the speaker restarts the peer after the end of a connection.
    AutomaticStart,
    /// Event 8: the speaker stops the connection: prefix limit, BFD or link down, shutdown of the process.
    AutomaticStop,
    /// Event 9: the next dial is due.
    ConnectRetryTimerExpires,
    /// Event 10: no message arrived within the hold time.
    HoldTimerExpires,
    /// Event 11: a KEEPALIVE is due.
    KeepaliveTimerExpires,
    /// Event 13: the time in Idle after an error is over.
    IdleHoldTimerExpires,
    /// Event 16: the outgoing connection is up.
    TcpCrAcked,
    /// Event 17: the incoming connection is up.
    TcpConnectionConfirmed,
    /// Event 18: the TCP connect failed or the connection was lost.
    TcpConnectionFails,
    /// Event 19: a valid OPEN arrived.
    BgpOpen,
    /// Event 21: a message with an invalid header arrived.
    BgpHeaderErr,
    /// Event 22: a malformed or unacceptable OPEN arrived.
    BgpOpenMsgErr,
    /// Event 23: the connection lost a collision (RFC 4271 6.8).
    OpenCollisionDump,
    /// Event 24: a NOTIFICATION with a version error arrived.
    NotifMsgVerErr,
    /// Event 25: any other NOTIFICATION arrived.
    NotifMsg,
    /// Event 26: a KEEPALIVE arrived.
    KeepAliveMsg,
    /// Event 27: a valid UPDATE arrived.
    UpdateMsg,
    /// Event 28: an UPDATE arrived with an error that resets the session (rare under RFC 7606).
    UpdateMsgErr,
    /// Event 29 (RFC 9687): nothing could be sent within the send hold time.
    SendHoldTimerExpires,
    /// A ROUTE-REFRESH arrived (RFC 2918).
    RouteRefreshMsg,
    /// A malformed ROUTE-REFRESH arrived (RFC 7313 5).
    RouteRefreshMsgErr,
}

/// Action that a transition requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// No action.
    Ignore,
    /// Starts the ConnectRetryTimer and accepts connections.
    StartConnectRetryTimer,
    /// Opens a TCP connection to the peer.
    Connect,
    /// Sends OPEN and sets the hold timer to a large value.
    SendOpen,
    /// Sends KEEPALIVE to confirm the peer's OPEN; starts hold and keepalive timers with the negotiated
    /// times.
    ConfirmOpen,
    /// Sends KEEPALIVE and restarts the keepalive timer.
    SendKeepalive,
    /// Brings the session up: exchange of routes begins.
    Establish,
    /// Restarts the hold timer.
    RestartHoldTimer,
    /// Restarts the hold timer and processes the UPDATE.
    ProcessUpdate,
    /// Restarts the hold timer and processes the ROUTE-REFRESH.
    ProcessRouteRefresh,
    /// Sends this NOTIFICATION, or the more specific one of the event, and closes the connection.
    SendNotification(ErrorCode),
    /// Closes the connection without a NOTIFICATION.
    Close,
}

/// Returns the next state and the action (RFC 4271 8.2.2).
pub(crate) fn transition(state: State, event: Event) -> (State, Action) {
    use Event as E;
    use State::{Active, Connect, Established, Idle, OpenConfirm, OpenSent};
    match (state, event) {
        // Idle ignores all events but a start.
        (Idle, E::ManualStart | E::AutomaticStart | E::IdleHoldTimerExpires) => {
            (Active, Action::StartConnectRetryTimer)
        }
        (Idle, _) => (Idle, Action::Ignore),

        // Other states ignore a start.
        (_, E::ManualStart | E::AutomaticStart | E::IdleHoldTimerExpires) => (state, Action::Ignore),

        (Connect | Active, E::ConnectRetryTimerExpires) => (Connect, Action::Connect),
        (Connect | Active, E::TcpCrAcked | E::TcpConnectionConfirmed) => (OpenSent, Action::SendOpen),
        (Connect | Active, E::TcpConnectionFails) => (Active, Action::StartConnectRetryTimer),
        (Connect | Active, _) => (Idle, Action::Close),

        // The states below have a connection; these events end it in all three.
        (_, E::ManualStop | E::AutomaticStop) => (Idle, Action::SendNotification(ErrorCode::CEASE)),
        (_, E::OpenCollisionDump) => (Idle, Action::SendNotification(ErrorCode::COLLISION)),
        (_, E::HoldTimerExpires) => (Idle, Action::SendNotification(ErrorCode::HOLD_TIMER_EXPIRED)),
        (_, E::SendHoldTimerExpires) => (Idle, Action::SendNotification(ErrorCode::SEND_HOLD_TIMER_EXPIRED)),
        (_, E::BgpHeaderErr) => (Idle, Action::SendNotification(ErrorCode::NOT_SYNCHRONIZED)),
        (_, E::BgpOpenMsgErr) => (Idle, Action::SendNotification(ErrorCode::OPEN_UNSPECIFIC)),
        (_, E::NotifMsg | E::NotifMsgVerErr) => (Idle, Action::Close),
        (OpenSent, E::TcpConnectionFails) => (Active, Action::Close),
        (_, E::TcpConnectionFails) => (Idle, Action::Close),

        (OpenSent, E::BgpOpen) => (OpenConfirm, Action::ConfirmOpen),
        (OpenSent, E::KeepaliveTimerExpires) => (OpenSent, Action::Ignore),
        (OpenConfirm, E::KeepAliveMsg) => (Established, Action::Establish),
        (OpenConfirm | Established, E::KeepaliveTimerExpires) => (state, Action::SendKeepalive),
        (Established, E::KeepAliveMsg) => (Established, Action::RestartHoldTimer),
        (Established, E::UpdateMsg) => (Established, Action::ProcessUpdate),
        (Established, E::RouteRefreshMsg) => (Established, Action::ProcessRouteRefresh),
        (Established, E::UpdateMsgErr) => {
            (Idle, Action::SendNotification(ErrorCode::MALFORMED_ATTRIBUTE_LIST))
        }
        (Established, E::RouteRefreshMsgErr) => (Idle, Action::SendNotification(ErrorCode::REFRESH_LENGTH)),

        // Finite State Machine Error (RFC 4271 6.6); the subcode is the state (RFC 6608).
        (OpenSent, _) => (Idle, Action::SendNotification(ErrorCode::FSM_OPEN_SENT)),
        (OpenConfirm, _) => (Idle, Action::SendNotification(ErrorCode::FSM_OPEN_CONFIRM)),
        (Established, _) => (Idle, Action::SendNotification(ErrorCode::FSM_ESTABLISHED)),
    }
}

/// State machine of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Fsm {
    state: State,
}

impl Fsm {
    /// Creates the machine of an outgoing (Connect) or incoming connection (Active).
    pub(crate) fn new(outgoing: bool) -> Self {
        Self { state: if outgoing { State::Connect } else { State::Active } }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Processes an event: changes to the next state and returns the action.
    pub(crate) fn handle(&mut self, event: Event) -> Action {
        let (next, action) = transition(self.state, event);
        self.state = next;
        action
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 6] =
        [State::Idle, State::Connect, State::Active, State::OpenSent, State::OpenConfirm, State::Established];
    const EVENTS: [Event; 23] = [
        Event::ManualStart,
        Event::ManualStop,
        Event::AutomaticStart,
        Event::AutomaticStop,
        Event::ConnectRetryTimerExpires,
        Event::HoldTimerExpires,
        Event::KeepaliveTimerExpires,
        Event::IdleHoldTimerExpires,
        Event::TcpCrAcked,
        Event::TcpConnectionConfirmed,
        Event::TcpConnectionFails,
        Event::BgpOpen,
        Event::BgpHeaderErr,
        Event::BgpOpenMsgErr,
        Event::OpenCollisionDump,
        Event::NotifMsgVerErr,
        Event::NotifMsg,
        Event::KeepAliveMsg,
        Event::UpdateMsg,
        Event::UpdateMsgErr,
        Event::SendHoldTimerExpires,
        Event::RouteRefreshMsg,
        Event::RouteRefreshMsgErr,
    ];

    #[test]
    fn a_session_comes_up_by_open_and_keepalive_in_either_direction() {
        for (outgoing, event) in [(true, Event::TcpCrAcked), (false, Event::TcpConnectionConfirmed)] {
            let mut fsm = Fsm::new(outgoing);
            for (event, state, action) in [
                (event, State::OpenSent, Action::SendOpen),
                (Event::BgpOpen, State::OpenConfirm, Action::ConfirmOpen),
                (Event::KeepAliveMsg, State::Established, Action::Establish),
                (Event::UpdateMsg, State::Established, Action::ProcessUpdate),
                (Event::KeepAliveMsg, State::Established, Action::RestartHoldTimer),
            ] {
                assert_eq!((fsm.handle(event), fsm.state()), (action, state), "{event:?}");
            }
        }
    }

    /// RFC 4271 8.2.2: only OpenSent accepts an OPEN, only KEEPALIVE in OpenConfirm leads to Established, and
    /// an event that ends a connection leads to Idle or Active.
    #[test]
    fn every_pair_of_state_and_event() {
        for state in STATES {
            for event in EVENTS {
                let (next, action) = transition(state, event);
                let pair = format!("{state:?} {event:?} {next:?} {action:?}");
                let ends = matches!(action, Action::SendNotification(_) | Action::Close);
                assert_eq!(ends, ends && matches!(next, State::Idle | State::Active), "{pair}");
                if next == State::Established && state != State::Established {
                    assert_eq!((state, event), (State::OpenConfirm, Event::KeepAliveMsg), "{pair}");
                }
                if next == State::OpenConfirm && state != State::OpenConfirm {
                    assert_eq!((state, event), (State::OpenSent, Event::BgpOpen), "{pair}");
                }
                if state < State::OpenSent {
                    assert!(!matches!(action, Action::SendNotification(_)), "{pair}");
                } else if !ends {
                    assert!(next >= state, "{pair}");
                }
            }
        }
    }

    #[test]
    fn an_unexpected_message_names_the_state_it_came_in() {
        for (state, code, events) in [
            (
                State::OpenSent,
                ErrorCode::FSM_OPEN_SENT,
                &[Event::KeepAliveMsg, Event::UpdateMsg, Event::RouteRefreshMsg][..],
            ),
            (
                State::OpenConfirm,
                ErrorCode::FSM_OPEN_CONFIRM,
                &[Event::BgpOpen, Event::UpdateMsg, Event::RouteRefreshMsg],
            ),
            (State::Established, ErrorCode::FSM_ESTABLISHED, &[Event::BgpOpen]),
        ] {
            for event in events {
                assert_eq!(
                    transition(state, *event),
                    (State::Idle, Action::SendNotification(code)),
                    "{state:?} {event:?}"
                );
            }
        }
    }
}
