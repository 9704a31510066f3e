//! The last error of a peer, as it is kept for people.

use crate::api::DownCode;
use crate::api::LastErrorKind;
use crate::wire::{ErrorCode, Notification, Problem};

/// Octets of an offending message that are kept: beginning with its header, which is where most errors are.
const KEPT: usize = 512;

/// See [`LastError`](crate::LastError).
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

    /// An UPDATE whose routes were withdrawn, or of which an attribute was left out (RFC 7606).
    pub(crate) fn update(kind: LastErrorKind, problem: Problem) -> Self {
        Self {
            kind,
            code: None,
            text: format!("attribute {}: {}", problem.attribute, problem.reason),
            data: Box::default(),
            message: Box::default(),
        }
    }

    /// The message that it is about.
    pub(crate) fn set_message(&mut self, octets: &[u8]) {
        self.message = cut(octets);
    }
}

fn cut(octets: &[u8]) -> Box<[u8]> {
    octets.get(..octets.len().min(KEPT)).unwrap_or_default().into()
}

/// How the end of a connection with this NOTIFICATION of ours is called.
pub(crate) fn down_code(code: ErrorCode) -> DownCode {
    match code {
        ErrorCode::HOLD_TIMER_EXPIRED => DownCode::HoldTimer,
        ErrorCode::SEND_HOLD_TIMER_EXPIRED => DownCode::SendHoldTimer,
        _ => DownCode::NotificationSent,
    }
}
