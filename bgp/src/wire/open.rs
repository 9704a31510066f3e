//! OPEN message (RFC 4271 4.2, RFC 5492, RFC 9072).

use nom::Parser;
use nom::bytes::complete::take;
use nom::number::complete::{be_u8, be_u16, be_u32};

use super::capability::{self, Capabilities};
use super::frame::{HEADER_LEN, MessageKind, write_header};
use super::notification::{ErrorCode, Notification};
use crate::attr::{AS_TRANS, AS_TRANS_SHORT};
use crate::types::RouterId;

const VERSION: u8 = 4;
/// Optional parameter type of capabilities (RFC 5492).
const CAPABILITIES: u8 = 2;
/// Value of length and type octet that marks the extended form of RFC 9072.
const EXTENDED: u8 = 255;

/// An OPEN message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// AS number: that of the four-octet AS capability if present, else the My Autonomous System field.
    pub asn: u32,
    /// Hold time in seconds: 0, or at least 3.
    pub hold_time: u16,
    /// BGP identifier, not 0.
    pub router_id: RouterId,
    /// Capabilities of the sender.
    pub capabilities: Capabilities,
}

/// Appends an OPEN with this encoded body.
pub(crate) fn write_open(out: &mut Vec<u8>, body: &[u8]) {
    write_header(out, u16::try_from(HEADER_LEN + body.len()).unwrap_or(u16::MAX), MessageKind::Open);
    out.extend_from_slice(body);
}

/// Parse result without error details: any error means "malformed OPEN".
type Res<'a, T> = nom::IResult<&'a [u8], T, ()>;

impl Open {
    /// Decodes the body of an OPEN. Does not compare AS and role with the configuration: the session does.
    ///
    /// # Errors
    /// The OPEN Message Error to send (RFC 4271 6.2).
    pub fn decode(body: &[u8]) -> Result<Self, Notification> {
        let malformed = |_: nom::Err<()>| Notification::new(ErrorCode::OPEN_UNSPECIFIC);
        let (rest, version) = be_u8(body).map_err(malformed)?;
        if version != VERSION {
            let ours = u16::from(VERSION).to_be_bytes();
            return Err(Notification::with_data(ErrorCode::UNSUPPORTED_VERSION, &ours));
        }
        let (rest, (short_as, hold_time, id)) = (be_u16, be_u16, be_u32).parse(rest).map_err(malformed)?;
        let capabilities = Self::parameters(rest)?;
        let asn = match capabilities.as4 {
            // A speaker whose AS fits into two octets sends it in both fields (RFC 6793 4.1).
            Some(asn) if short_as != AS_TRANS_SHORT && asn != u32::from(short_as) => {
                return Err(Notification::with_data(ErrorCode::BAD_PEER_AS, &short_as.to_be_bytes()));
            }
            Some(asn) => asn,
            None => u32::from(short_as),
        };
        // AS 0 is invalid (RFC 7607), and AS_TRANS is reserved.
        if asn == 0 || short_as == 0 || asn == AS_TRANS {
            return Err(Notification::with_data(ErrorCode::BAD_PEER_AS, &short_as.to_be_bytes()));
        }
        if id == 0 {
            return Err(Notification::with_data(ErrorCode::BAD_IDENTIFIER, &id.to_be_bytes()));
        }
        if matches!(hold_time, 1 | 2) {
            return Err(Notification::with_data(ErrorCode::UNACCEPTABLE_HOLD_TIME, &hold_time.to_be_bytes()));
        }
        Ok(Self { asn, hold_time, router_id: RouterId(id), capabilities })
    }

    /// Decodes the optional parameters in either form. Lengths must match exactly: trailing octets, or a
    /// parameter longer than the message, are malformed.
    fn parameters(input: &[u8]) -> Result<Capabilities, Notification> {
        let malformed = |_: nom::Err<()>| Notification::new(ErrorCode::OPEN_UNSPECIFIC);
        let (mut rest, len) = be_u8(input).map_err(malformed)?;
        let mut len = usize::from(len);
        // RFC 9072 2: the first type octet selects the form, with any non-zero length octet.
        let extended = len != 0 && rest.first() == Some(&EXTENDED);
        if extended {
            let (tail, (_, long)) = (be_u8, be_u16).parse(rest).map_err(malformed)?;
            (rest, len) = (tail, usize::from(long));
        }
        if rest.len() != len {
            return Err(malformed(nom::Err::Error(())));
        }
        let mut capabilities = Capabilities::default();
        while !rest.is_empty() {
            let (tail, (kind, value)) = Self::parameter(rest, extended).map_err(malformed)?;
            rest = tail;
            if kind != CAPABILITIES {
                return Err(Notification::new(ErrorCode::UNSUPPORTED_PARAMETER));
            }
            let mut list = value;
            while !list.is_empty() {
                let (tail, (code, value)) = capability::next(list).map_err(malformed)?;
                list = tail;
                capabilities.read(code, value)?;
            }
        }
        Ok(capabilities)
    }

    fn parameter(input: &[u8], extended: bool) -> Res<'_, (u8, &[u8])> {
        let (rest, kind) = be_u8(input)?;
        let (rest, len) =
            if extended { be_u16(rest)? } else { be_u8(rest).map(|(r, n)| (r, u16::from(n)))? };
        let (rest, value) = take(len).parse(rest)?;
        Ok((rest, (kind, value)))
    }

    /// Appends the whole message with one Capabilities parameter. The form of RFC 9072 is used only where the
    /// length requires it.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut list = Vec::new();
        self.capabilities.write(&mut list);
        let mut parameters = Vec::with_capacity(list.len() + 6);
        match u8::try_from(list.len()) {
            Ok(0) => parameters.push(0),
            Ok(len) if len < EXTENDED - 2 => parameters.extend_from_slice(&[len + 2, CAPABILITIES, len]),
            _ => {
                let len = u16::try_from(list.len()).unwrap_or(u16::MAX);
                parameters.extend_from_slice(&[EXTENDED, EXTENDED]);
                parameters.extend_from_slice(&len.saturating_add(3).to_be_bytes());
                parameters.push(CAPABILITIES);
                parameters.extend_from_slice(&len.to_be_bytes());
            }
        }
        parameters.extend_from_slice(&list);
        // Capabilities of this speaker stay below 500 octets, so the length never saturates.
        let len = u16::try_from(HEADER_LEN + 9 + parameters.len()).unwrap_or(u16::MAX);
        write_header(out, len, MessageKind::Open);
        out.push(VERSION);
        out.extend_from_slice(&u16::try_from(self.asn).unwrap_or(AS_TRANS_SHORT).to_be_bytes());
        out.extend_from_slice(&self.hold_time.to_be_bytes());
        out.extend_from_slice(&self.router_id.0.to_be_bytes());
        out.extend_from_slice(&parameters);
    }
}
