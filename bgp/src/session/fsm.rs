//! The BGP finite state machine (RFC 4271 8): six states, the events of 8.1, and the transitions of 8.2.2 as one pure function.
//!
//! Each connection has a machine of its own, as 8.2.1 asks for: one for the connection that we open, which begins in Idle and
//! dials from Connect on; one for each that the peer opens, which begins in Active. [`transition`] says for every state and event
//! which state follows and what is to be done; the speaker feeds the events and carries out the [`Action`]s. A machine
//! that comes back to Idle or Active is given up with its connection, and the next one started (event 3).
//!
//! Events that this speaker does not have, all optional: 4 to 7, variants of 1 and 3 (a passive peer and one that is damped
//! differ by what their ConnectRetryTimer does); 12 and 20, which belong to DelayOpen (the delay comes before the TCP connection,
//! [`Dial::After`](crate::Dial::After)); 14 and 15 (which connections are accepted is [`Speaker::admits`](crate::Speaker::admits)). Not in
//! RFC 4271: SendHoldTimer_Expires is event 29 of RFC 9687, ROUTE-REFRESH (RFC 2918) has no number.

use crate::api::State;
use crate::wire::ErrorCode;

/// An event of RFC 4271 8.1, named as there, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Event 1: an administrator, or the configuration, starts the peer.
    ManualStart,
    /// Event 2: an administrator, or the configuration, stops the connection.
    ManualStop,
    /// Event 3: the speaker starts the peer again after a connection ended.
    AutomaticStart,
    /// Event 8: the speaker stops the connection: too many prefixes, BFD or the link down, its own end.
    AutomaticStop,
    /// Event 9: it is time to dial.
    ConnectRetryTimerExpires,
    /// Event 10: nothing was received within the hold time.
    HoldTimerExpires,
    /// Event 11: a KEEPALIVE is due.
    KeepaliveTimerExpires,
    /// Event 13: the peer may be tried again after an error that kept it in Idle.
    IdleHoldTimerExpires,
    /// Event 16: the connection that we asked for is up.
    TcpCrAcked,
    /// Event 17: the connection that the peer asked for is up.
    TcpConnectionConfirmed,
    /// Event 18: the connection was not made, or was lost.
    TcpConnectionFails,
    /// Event 19: a valid OPEN.
    BgpOpen,
    /// Event 21: the header of a message is wrong.
    BgpHeaderErr,
    /// Event 22: an OPEN that is malformed, or that asks for what does not fit.
    BgpOpenMsgErr,
    /// Event 23: the connection lost a collision (RFC 4271 6.8).
    OpenCollisionDump,
    /// Event 24: a NOTIFICATION with a version error.
    NotifMsgVerErr,
    /// Event 25: any other NOTIFICATION.
    NotifMsg,
    /// Event 26: a KEEPALIVE.
    KeepAliveMsg,
    /// Event 27: an UPDATE.
    UpdateMsg,
    /// Event 28: an UPDATE with an error that ends the session (RFC 7606: few do).
    UpdateMsgErr,
    /// Event 29 (RFC 9687): nothing could be sent within the send hold time.
    SendHoldTimerExpires,
    /// A ROUTE-REFRESH (RFC 2918).
    RouteRefreshMsg,
    /// A ROUTE-REFRESH with an error (RFC 7313 5).
    RouteRefreshMsgErr,
}

/// An action upon an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    Ignore,
    /// Set the ConnectRetryTimer and listen.
    StartConnectRetryTimer,
    /// Open a TCP connection to the peer.
    Connect,
    /// Send OPEN, set the hold timer to a large value.
    SendOpen,
    /// Send KEEPALIVE to confirm the peer's OPEN, run hold and keepalive timers with the times that were negotiated.
    ConfirmOpen,
    /// Send KEEPALIVE, restart the keepalive timer.
    SendKeepalive,
    /// The session is up: exchange routes.
    Establish,
    /// Restart the hold timer.
    RestartHoldTimer,
    /// Restart the hold timer, handle the UPDATE.
    ProcessUpdate,
    /// Restart the hold timer, handle the ROUTE-REFRESH.
    ProcessRouteRefresh,
    /// Send this NOTIFICATION, or the more exact one that came with the event, and close the connection.
    SendNotification(ErrorCode),
    /// Close the connection without a NOTIFICATION.
    Close,
}

/// The state that follows, and what is to be done on the way (RFC 4271 8.2.2).
pub(crate) fn transition(state: State, event: Event) -> (State, Action) {
    use Event as E;
    use State::{Active, Connect, Established, Idle, OpenConfirm, OpenSent};
    match (state, event) {
        // Idle refuses all but a start.
        (Idle, E::ManualStart | E::AutomaticStart | E::IdleHoldTimerExpires) => {
            (Active, Action::StartConnectRetryTimer)
        }
        (Idle, _) => (Idle, Action::Ignore),

        // A start has no meaning once started.
        (_, E::ManualStart | E::AutomaticStart | E::IdleHoldTimerExpires) => (state, Action::Ignore),

        (Connect | Active, E::ConnectRetryTimerExpires) => (Connect, Action::Connect),
        (Connect | Active, E::TcpCrAcked | E::TcpConnectionConfirmed) => (OpenSent, Action::SendOpen),
        (Connect | Active, E::TcpConnectionFails) => (Active, Action::StartConnectRetryTimer),
        (Connect | Active, _) => (Idle, Action::Close),

        // From here on there is a connection. These end it in all three states alike.
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

        // Finite State Machine Error (RFC 4271 6.6); its subcode says in which state (RFC 6608).
        (OpenSent, _) => (Idle, Action::SendNotification(ErrorCode::FSM_OPEN_SENT)),
        (OpenConfirm, _) => (Idle, Action::SendNotification(ErrorCode::FSM_OPEN_CONFIRM)),
        (Established, _) => (Idle, Action::SendNotification(ErrorCode::FSM_ESTABLISHED)),
    }
}

/// The state machine of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Fsm {
    state: State,
}

impl Fsm {
    /// A machine for a connection that we ask for (Connect), or that the peer asks for (Active).
    pub(crate) fn new(outgoing: bool) -> Self {
        Self { state: if outgoing { State::Connect } else { State::Active } }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Takes an event, goes over to the state that follows, and returns what is to be done.
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

    /// RFC 4271 8.2.2: no state but OpenSent takes an OPEN, no way into Established but a KEEPALIVE in OpenConfirm, and
    /// whatever ends a connection leaves Idle or Active.
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
