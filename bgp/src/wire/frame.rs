//! Message framing: the header of a BGP message (RFC 4271 4.1, RFC 8654).

use nom::Parser;
use nom::bytes::complete::{tag, take};
use nom::number::complete::{be_u8, be_u16};

use super::notification::{ErrorCode, Notification};

/// Length of the message header in octets.
pub const HEADER_LEN: usize = 19;
/// Maximum message length in octets (RFC 4271 4.1).
pub const MAX_LEN: usize = 4096;
/// Maximum message length in octets with extended messages (RFC 8654).
pub const MAX_EXTENDED_LEN: usize = 65535;

const MARKER: [u8; 16] = [0xff; 16];

/// Message type, with its code on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// OPEN (RFC 4271 4.2).
    Open = 1,
    /// UPDATE (RFC 4271 4.3).
    Update = 2,
    /// NOTIFICATION (RFC 4271 4.5).
    Notification = 3,
    /// KEEPALIVE (RFC 4271 4.4).
    Keepalive = 4,
    /// ROUTE-REFRESH (RFC 2918).
    RouteRefresh = 5,
}

impl MessageKind {
    fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Open),
            2 => Some(Self::Update),
            3 => Some(Self::Notification),
            4 => Some(Self::Keepalive),
            5 => Some(Self::RouteRefresh),
            _ => None,
        }
    }

    /// Returns minimum and maximum length of a message, header included (RFC 4271 6.1, RFC 8654 4).
    fn bounds(self, extended: bool) -> (usize, usize) {
        let max = if extended { MAX_EXTENDED_LEN } else { MAX_LEN };
        match self {
            Self::Open => (29, MAX_LEN),
            Self::Update => (23, max),
            Self::Notification => (21, max),
            Self::Keepalive => (HEADER_LEN, HEADER_LEN),
            Self::RouteRefresh => (23, max),
        }
    }
}

/// One message in a receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Message type.
    pub kind: MessageKind,
    /// Message without the header.
    pub body: &'a [u8],
    /// Length of the message in octets, header included.
    pub len: usize,
}

impl<'a> Frame<'a> {
    /// Returns the first message in `buffer`, or `None` if it is not complete yet. `extended`: messages over
    /// 4,096 octets are negotiated.
    ///
    /// # Errors
    /// The Message Header Error to send (RFC 4271 6.1). The header is checked as soon as it is complete,
    /// without waiting for the body.
    pub fn next(buffer: &'a [u8], extended: bool) -> Result<Option<Self>, Notification> {
        let Ok((rest, header)) = take::<_, _, ()>(HEADER_LEN)(buffer) else {
            // The marker is checked octet by octet, so that a client of another protocol is rejected before a
            // full header.
            let marker = buffer.iter().take(MARKER.len()).all(|b| *b == 0xff);
            return if marker { Ok(None) } else { Err(Notification::new(ErrorCode::NOT_SYNCHRONIZED)) };
        };
        let Ok((_, (_, len, code))) = (tag::<_, _, ()>(&MARKER[..]), be_u16, be_u8).parse(header) else {
            return Err(Notification::new(ErrorCode::NOT_SYNCHRONIZED));
        };
        let size = usize::from(len);
        let bad_length = || Notification::with_data(ErrorCode::BAD_LENGTH, &len.to_be_bytes());
        if size < HEADER_LEN || (!extended && size > MAX_LEN) {
            return Err(bad_length());
        }
        let Some(kind) = MessageKind::from_code(code) else {
            return Err(Notification::with_data(ErrorCode::BAD_TYPE, &[code]));
        };
        let (min, max) = kind.bounds(extended);
        if size < min || size > max {
            return Err(bad_length());
        }
        Ok(rest.get(..size - HEADER_LEN).map(|body| Self { kind, body, len: size }))
    }
}

/// Appends a header. `len`: length of the message in octets, header included.
pub(crate) fn write_header(out: &mut Vec<u8>, len: u16, kind: MessageKind) {
    out.extend_from_slice(&MARKER);
    out.extend_from_slice(&len.to_be_bytes());
    out.push(kind as u8);
}
