//! NOTIFICATION message (RFC 4271 4.5) and its error codes.

use std::fmt;

use super::frame::{HEADER_LEN, MAX_LEN, MessageKind, write_header};

/// Error code and subcode of a NOTIFICATION.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(pub u8, pub u8);

/// Declares each error code once: constant, code, subcode, text.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal / $sub:literal, $text:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: Self = Self($code, $sub);)*

            fn known(self) -> Option<&'static str> {
                match (self.0, self.1) {
                    $(($code, $sub) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Message Header Error, subcode 1 (RFC 4271 6.1).
    NOT_SYNCHRONIZED = 1 / 1, "connection not synchronized";
    /// Message Header Error, subcode 2 (RFC 4271 6.1).
    BAD_LENGTH = 1 / 2, "bad message length";
    /// Message Header Error, subcode 3 (RFC 4271 6.1).
    BAD_TYPE = 1 / 3, "bad message type";
    /// OPEN Message Error, subcode 0 (RFC 4271 6.2).
    OPEN_UNSPECIFIC = 2 / 0, "malformed OPEN";
    /// OPEN Message Error, subcode 1 (RFC 4271 6.2).
    UNSUPPORTED_VERSION = 2 / 1, "unsupported version number";
    /// OPEN Message Error, subcode 2 (RFC 4271 6.2, RFC 7607).
    BAD_PEER_AS = 2 / 2, "bad peer AS";
    /// OPEN Message Error, subcode 3 (RFC 4271 6.2, RFC 6286).
    BAD_IDENTIFIER = 2 / 3, "bad BGP identifier";
    /// OPEN Message Error, subcode 4 (RFC 4271 6.2).
    UNSUPPORTED_PARAMETER = 2 / 4, "unsupported optional parameter";
    /// OPEN Message Error, subcode 6 (RFC 4271 6.2).
    UNACCEPTABLE_HOLD_TIME = 2 / 6, "unacceptable hold time";
    /// OPEN Message Error, subcode 7 (RFC 5492 5).
    UNSUPPORTED_CAPABILITY = 2 / 7, "unsupported capability";
    /// OPEN Message Error, subcode 11 (RFC 9234 4.2).
    ROLE_MISMATCH = 2 / 11, "role mismatch";
    /// UPDATE Message Error, subcode 1 (RFC 4271 6.3).
    MALFORMED_ATTRIBUTE_LIST = 3 / 1, "malformed attribute list";
    /// UPDATE Message Error, subcode 2 (RFC 4271 6.3).
    UNRECOGNIZED_WELL_KNOWN = 3 / 2, "unrecognized well-known attribute";
    /// UPDATE Message Error, subcode 3 (RFC 4271 6.3).
    MISSING_WELL_KNOWN = 3 / 3, "missing well-known attribute";
    /// UPDATE Message Error, subcode 4 (RFC 4271 6.3).
    ATTRIBUTE_FLAGS = 3 / 4, "attribute flags error";
    /// UPDATE Message Error, subcode 5 (RFC 4271 6.3).
    ATTRIBUTE_LENGTH = 3 / 5, "attribute length error";
    /// UPDATE Message Error, subcode 6 (RFC 4271 6.3).
    INVALID_ORIGIN = 3 / 6, "invalid ORIGIN attribute";
    /// UPDATE Message Error, subcode 8 (RFC 4271 6.3).
    INVALID_NEXT_HOP = 3 / 8, "invalid NEXT_HOP attribute";
    /// UPDATE Message Error, subcode 9 (RFC 4271 6.3).
    OPTIONAL_ATTRIBUTE = 3 / 9, "optional attribute error";
    /// UPDATE Message Error, subcode 10 (RFC 4271 6.3).
    INVALID_NETWORK_FIELD = 3 / 10, "invalid network field";
    /// UPDATE Message Error, subcode 11 (RFC 4271 6.3).
    MALFORMED_AS_PATH = 3 / 11, "malformed AS_PATH";
    /// Hold Timer Expired, subcode 0 (RFC 4271 6.5).
    HOLD_TIMER_EXPIRED = 4 / 0, "hold timer expired";
    /// Finite State Machine Error, subcode 0 (RFC 6608).
    FSM_UNSPECIFIC = 5 / 0, "finite state machine error";
    /// Finite State Machine Error, subcode 1 (RFC 6608).
    FSM_OPEN_SENT = 5 / 1, "unexpected message in OpenSent";
    /// Finite State Machine Error, subcode 2 (RFC 6608).
    FSM_OPEN_CONFIRM = 5 / 2, "unexpected message in OpenConfirm";
    /// Finite State Machine Error, subcode 3 (RFC 6608).
    FSM_ESTABLISHED = 5 / 3, "unexpected message in Established";
    /// Cease, subcode 0 (RFC 4486).
    CEASE = 6 / 0, "cease";
    /// Cease, subcode 1 (RFC 4486).
    MAX_PREFIXES = 6 / 1, "maximum number of prefixes reached";
    /// Cease, subcode 2 (RFC 4486), with a shutdown communication (RFC 9003).
    ADMIN_SHUTDOWN = 6 / 2, "administrative shutdown";
    /// Cease, subcode 3 (RFC 4486).
    DECONFIGURED = 6 / 3, "peer de-configured";
    /// Cease, subcode 4 (RFC 4486), with a shutdown communication (RFC 9003).
    ADMIN_RESET = 6 / 4, "administrative reset";
    /// Cease, subcode 5 (RFC 4486).
    CONNECTION_REJECTED = 6 / 5, "connection rejected";
    /// Cease, subcode 6 (RFC 4486).
    CONFIGURATION_CHANGE = 6 / 6, "other configuration change";
    /// Cease, subcode 7 (RFC 4486).
    COLLISION = 6 / 7, "connection collision resolution";
    /// Cease, subcode 8 (RFC 4486).
    OUT_OF_RESOURCES = 6 / 8, "out of resources";
    /// Cease, subcode 9: encloses another NOTIFICATION (RFC 8538).
    HARD_RESET = 6 / 9, "hard reset";
    /// Cease, subcode 10 (RFC 9384).
    BFD_DOWN = 6 / 10, "BFD down";
    /// ROUTE-REFRESH Message Error, subcode 1 (RFC 7313 5).
    REFRESH_LENGTH = 7 / 1, "invalid ROUTE-REFRESH length";
    /// Send Hold Timer Expired, subcode 0 (RFC 9687).
    SEND_HOLD_TIMER_EXPIRED = 8 / 0, "send hold timer expired";
}

impl ErrorCode {
    /// Returns a description; for an unknown subcode, the name of the error code.
    #[must_use]
    pub fn text(self) -> &'static str {
        self.known().unwrap_or(match self.0 {
            1 => "message header error",
            2 => "OPEN message error",
            3 => "UPDATE message error",
            4 => "hold timer expired",
            5 => "finite state machine error",
            6 => "cease",
            7 => "ROUTE-REFRESH message error",
            8 => "send hold timer expired",
            _ => "unknown error",
        })
    }
}

impl ErrorCode {
    /// Returns code and subcode as a pair.
    pub(crate) fn pair(self) -> (u8, u8) {
        (self.0, self.1)
    }
}

impl fmt::Display for ErrorCode {
    /// Writes code, subcode and description: `6/2 administrative shutdown`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {}", self.0, self.1, self.text())
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A NOTIFICATION, sent or received.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Notification {
    /// Error code and subcode.
    pub code: ErrorCode,
    /// Data as RFC 4271 section 6 defines it for the code; truncated to the message length when sent.
    pub data: Box<[u8]>,
}

/// Maximum length of a shutdown communication in octets (RFC 9003 2).
const SHUTDOWN_TEXT_MAX: usize = 255;

/// Maximum data length in a message of 4,096 octets. Longer messages are not used for NOTIFICATIONs even if
/// negotiated: 60 kB are of no use, and the peer may not have read our OPEN yet.
const DATA_MAX: usize = MAX_LEN - HEADER_LEN - 2;

impl Notification {
    /// Returns a NOTIFICATION without data.
    #[must_use]
    pub fn new(code: ErrorCode) -> Self {
        Self { code, data: Box::default() }
    }

    /// Returns a NOTIFICATION with this data, truncated to fit a message of 4,096 octets.
    #[must_use]
    pub fn with_data(code: ErrorCode, data: &[u8]) -> Self {
        Self { code, data: data.get(..data.len().min(DATA_MAX)).unwrap_or_default().into() }
    }

    /// Returns a Cease with a shutdown communication (RFC 9003). `code` is [`ErrorCode::ADMIN_SHUTDOWN`] or
    /// [`ErrorCode::ADMIN_RESET`]. The text is truncated to 255 octets at a character boundary.
    #[must_use]
    pub fn with_text(code: ErrorCode, text: &str) -> Self {
        let text = text.get(..text.floor_char_boundary(SHUTDOWN_TEXT_MAX)).unwrap_or_default();
        let Ok(len) = u8::try_from(text.len()) else { return Self::new(code) };
        if len == 0 {
            return Self::new(code);
        }
        let mut data = Vec::with_capacity(text.len() + 1);
        data.push(len);
        data.extend_from_slice(text.as_bytes());
        Self { code, data: data.into_boxed_slice() }
    }

    /// Encloses this NOTIFICATION in a Hard Reset (RFC 8538), after which the peer must not keep our routes.
    #[must_use]
    pub fn into_hard_reset(self) -> Self {
        let mut data = vec![self.code.0, self.code.1];
        data.extend_from_slice(&self.data);
        Self::with_data(ErrorCode::HARD_RESET, &data)
    }

    /// Returns code and data of the NOTIFICATION that a Hard Reset (RFC 8538) encloses. For any other code,
    /// or a Hard Reset without data, returns this NOTIFICATION.
    #[must_use]
    pub fn unwrap_hard_reset(&self) -> (ErrorCode, &[u8]) {
        match (self.code, &*self.data) {
            (ErrorCode::HARD_RESET, [code, subcode, data @ ..]) => (ErrorCode(*code, *subcode), data),
            _ => (self.code, &self.data),
        }
    }

    /// Returns the sanitised shutdown communication (RFC 9003), if present. A length octet that exceeds the
    /// data is reduced to the length of the data.
    #[must_use]
    pub fn shutdown_text(&self) -> Option<String> {
        let (ErrorCode::ADMIN_SHUTDOWN | ErrorCode::ADMIN_RESET, data) = self.unwrap_hard_reset() else {
            return None;
        };
        let (len, text) = data.split_first()?;
        let text = text.get(..usize::from(*len).min(text.len())).unwrap_or_default();
        if text.is_empty() { None } else { Some(sanitise(text)) }
    }

    /// Decodes the body of a NOTIFICATION. Never fails, because a NOTIFICATION must not be answered: a
    /// missing code or subcode reads as 0.
    #[must_use]
    pub fn decode(body: &[u8]) -> Self {
        match body {
            [code, subcode, data @ ..] => Self { code: ErrorCode(*code, *subcode), data: data.into() },
            [code] => Self::new(ErrorCode(*code, 0)),
            [] => Self::new(ErrorCode(0, 0)),
        }
    }

    /// Appends the whole message, at most 4,096 octets.
    pub fn write(&self, out: &mut Vec<u8>) {
        let data = self.data.get(..self.data.len().min(DATA_MAX)).unwrap_or_default();
        let len = u16::try_from(HEADER_LEN + 2 + data.len()).unwrap_or(u16::MAX);
        write_header(out, len, MessageKind::Notification);
        out.push(self.code.0);
        out.push(self.code.1);
        out.extend_from_slice(data);
    }
}

impl fmt::Display for Notification {
    /// Writes the error code and the shutdown communication: `6/2 administrative shutdown: "maintenance"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.code, f)?;
        if self.code == ErrorCode::HARD_RESET && self.data.len() >= 2 {
            write!(f, " ({})", self.unwrap_hard_reset().0)?;
        }
        match self.shutdown_text() {
            Some(text) => write!(f, ": \"{text}\""),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} data {:02x?}", self.code, self.data)
    }
}

/// Makes text of a peer safe for logs and terminals. Invalid UTF-8 is replaced, control and formatting
/// characters become `?`, quotes and backslashes are escaped.
#[must_use]
pub fn sanitise(text: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() || is_format(c) => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// Returns true for line separators and for invisible characters that change text direction or appearance.
fn is_format(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}
