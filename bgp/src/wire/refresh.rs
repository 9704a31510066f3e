//! ROUTE-REFRESH message (RFC 2918, RFC 7313).

use nom::Parser;
use nom::number::complete::{be_u8, be_u16};

use super::frame::{HEADER_LEN, MessageKind, write_header};
use super::notification::{ErrorCode, Notification};
use crate::types::Family;

/// Message subtype (RFC 7313 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefreshKind {
    /// Request to send all routes of the family again.
    Request = 0,
    /// BoRR: beginning of a route refresh.
    Begin = 1,
    /// EoRR: end of a route refresh. Routes that were not announced again since BoRR are removed.
    End = 2,
}

/// A ROUTE-REFRESH message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteRefresh {
    /// Family to refresh.
    pub family: Family,
    /// Message subtype.
    pub kind: RefreshKind,
}

impl RouteRefresh {
    /// Decodes the body. `enhanced`: both ends offered enhanced route refresh. Otherwise the subtype octet is
    /// reserved (RFC 2918 3), and every message is a request. `None` for messages to ignore: an unsupported
    /// family, an unknown subtype, or a request with outbound route filters (RFC 5291), which this speaker
    /// never offers.
    ///
    /// # Errors
    /// ROUTE-REFRESH Message Error (RFC 7313 5) if BoRR or EoRR is not four octets long. The data has the
    /// whole message, header included.
    pub fn decode(body: &[u8], enhanced: bool) -> Result<Option<Self>, Notification> {
        let Ok((rest, (afi, subtype, safi))) = (be_u16::<_, ()>, be_u8, be_u8).parse(body) else {
            return Err(Self::bad_length(body));
        };
        let kind = match subtype {
            _ if !enhanced => RefreshKind::Request,
            0 => RefreshKind::Request,
            1 => RefreshKind::Begin,
            2 => RefreshKind::End,
            _ => return Ok(None),
        };
        if !rest.is_empty() {
            return if kind == RefreshKind::Request { Ok(None) } else { Err(Self::bad_length(body)) };
        }
        Ok(Family::from_codes(afi, safi).map(|family| Self { family, kind }))
    }

    fn bad_length(body: &[u8]) -> Notification {
        let mut message = Vec::with_capacity(HEADER_LEN + body.len());
        let len = u16::try_from(HEADER_LEN + body.len()).unwrap_or(u16::MAX);
        write_header(&mut message, len, MessageKind::RouteRefresh);
        message.extend_from_slice(body);
        Notification::with_data(ErrorCode::REFRESH_LENGTH, &message)
    }

    /// Appends the whole message.
    pub fn write(self, out: &mut Vec<u8>) {
        write_header(out, 23, MessageKind::RouteRefresh);
        out.extend_from_slice(&self.family.afi().to_be_bytes());
        out.push(self.kind as u8);
        out.push(self.family.safi());
    }
}
