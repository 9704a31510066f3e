//! Last protocol error of a peer, kept for diagnosis.

use crate::api::DownCode;
use crate::api::LastErrorKind;
use crate::wire::{ErrorCode, Notification, Problem};

/// Number of octets kept of an erroneous message, from its header on, where most errors are.
const KEPT: usize = 512;

/// A protocol error; see [`LastError`](crate::LastError).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerError {
    pub(crate) kind: LastErrorKind,
    pub(crate) code: Option<(u8, u8)>,
    pub(crate) text: String,
    pub(crate) data: Box<[u8]>,
    pub(crate) message: Box<[u8]>,
}

impl PeerError {
    pub(crate) fn sent(notification: &Notification) -> Self {
        Self::of(LastErrorKind::Sent, notification)
    }

    pub(crate) fn received(notification: &Notification) -> Self {
        Self::of(LastErrorKind::Received, notification)
    }

    fn of(kind: LastErrorKind, notification: &Notification) -> Self {
        let ErrorCode(code, subcode) = notification.code;
        Self {
            kind,
            code: Some((code, subcode)),
            text: notification.to_string(),
            data: cut(&notification.data),
            message: Box::default(),
        }
    }

    /// Records an UPDATE error that was handled as treat-as-withdraw or attribute discard (RFC 7606 2).
    pub(crate) fn update(kind: LastErrorKind, problem: Problem) -> Self {
        Self {
            kind,
            code: None,
            text: format!("attribute {}: {}", problem.attribute, problem.reason),
            data: Box::default(),
            message: Box::default(),
        }
    }

    /// Attaches the message that caused the error.
    pub(crate) fn set_message(&mut self, octets: &[u8]) {
        self.message = cut(octets);
    }
}

fn cut(octets: &[u8]) -> Box<[u8]> {
    octets.get(..octets.len().min(KEPT)).unwrap_or_default().into()
}

/// Returns the down code of a connection that this speaker ended with a NOTIFICATION.
pub(crate) fn down_code(code: ErrorCode) -> DownCode {
    match code {
        ErrorCode::HOLD_TIMER_EXPIRED => DownCode::HoldTimer,
        ErrorCode::SEND_HOLD_TIMER_EXPIRED => DownCode::SendHoldTimer,
        _ => DownCode::NotificationSent,
    }
}
