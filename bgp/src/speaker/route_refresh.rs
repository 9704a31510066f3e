//! Sending of ROUTE-REFRESH (RFC 2918), with BoRR and EoRR where negotiated (RFC 7313). Received BoRR and
//! EoRR are handled in [`graceful_restart`](super::graceful_restart).

use crate::session::connection::{Conn, RefreshOut};
use crate::types::Family;
use crate::wire::{RefreshKind, RouteRefresh};

/// Requests that all routes of a family be sent again. Returns true if the caller sends them at once, false
/// if BoRR has to precede them. `first_sent`: End-of-RIB has been sent. A repeated request before BoRR has no
/// further effect.
pub(super) fn request_out(conn: &mut Conn, family: Family, first_sent: bool) -> bool {
    if !conn.has_enhanced_refresh() {
        return true;
    }
    if let Some(place) = conn.refreshes.get_mut(family.index()) {
        *place = if first_sent { RefreshOut::Requested } else { RefreshOut::AfterEndOfRib };
    }
    false
}

/// Writes BoRR of a requested refresh. Returns false if none was requested. BoRR may be sent before UPDATEs
/// that are already queued, but never after UPDATEs of the refresh: the peer would remove their routes at
/// EoRR.
pub(super) fn begin_out(conn: &mut Conn, family: Family, buf: &mut Vec<u8>) -> bool {
    if !replace(conn, family, RefreshOut::Requested, RefreshOut::Begun) {
        return false;
    }
    RouteRefresh { family, kind: RefreshKind::Begin }.write(buf);
    true
}

/// Permits a refresh that waited for End-of-RIB, which has been sent. Returns false if none waited.
pub(super) fn end_of_rib_sent(conn: &mut Conn, family: Family) -> bool {
    replace(conn, family, RefreshOut::AfterEndOfRib, RefreshOut::Requested)
}

/// Writes EoRR after all routes were sent. Returns false if no refresh has begun.
pub(super) fn end_out(conn: &mut Conn, family: Family, buf: &mut Vec<u8>) -> bool {
    if !replace(conn, family, RefreshOut::Begun, RefreshOut::No) {
        return false;
    }
    RouteRefresh { family, kind: RefreshKind::End }.write(buf);
    true
}

fn replace(conn: &mut Conn, family: Family, from: RefreshOut, to: RefreshOut) -> bool {
    let place = conn.refreshes.get_mut(family.index()).filter(|place| **place == from);
    place.map(|place| *place = to).is_some()
}

/// Requests all routes of the peer. Returns the number of messages, `None` if the peer does not support route
/// refresh.
pub(super) fn request_in(conn: &mut Conn) -> Option<u64> {
    let (Some(received), Some(session)) = (&conn.received_open, conn.negotiated) else { return Some(0) };
    if !received.capabilities.route_refresh {
        return None;
    }
    let mut count = 0;
    for family in session.families.iter() {
        RouteRefresh { family, kind: RefreshKind::Request }.write(&mut conn.control);
        count += 1;
    }
    Some(count)
}
