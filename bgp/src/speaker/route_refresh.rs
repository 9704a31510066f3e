//! ROUTE-REFRESH as it is sent (RFC 2918), with beginning and end where both ends have it (RFC 7313). How received ones make routes
//! stale is in [`graceful_restart`](super::graceful_restart).

use crate::session::connection::{Conn, RefreshOut};
use crate::types::Family;
use crate::wire::{RefreshKind, RouteRefresh};

/// All routes of a family are to be sent again. `true`: at once; `false`: with a beginning, which comes in its turn. `first_sent`:
/// End-of-RIB was. A peer that asks again before the answer began asks the same.
pub(super) fn request_out(conn: &mut Conn, family: Family, first_sent: bool) -> bool {
    if !conn.has_enhanced_refresh() {
        return true;
    }
    if let Some(place) = conn.refreshes.get_mut(family.index()) {
        *place = if first_sent { RefreshOut::Requested } else { RefreshOut::AfterEndOfRib };
    }
    false
}

/// Writes the beginning of a refresh that was requested; `false`: none was. A beginning may overtake UPDATEs that are under way,
/// never the other way round: the peer would sweep their routes.
pub(super) fn begin_out(conn: &mut Conn, family: Family, buf: &mut Vec<u8>) -> bool {
    if !replace(conn, family, RefreshOut::Requested, RefreshOut::Begun) {
        return false;
    }
    RouteRefresh { family, kind: RefreshKind::Begin }.write(buf);
    true
}

/// End-of-RIB was sent: a refresh that waited for it may begin. `false`: none did.
pub(super) fn end_of_rib_sent(conn: &mut Conn, family: Family) -> bool {
    replace(conn, family, RefreshOut::AfterEndOfRib, RefreshOut::Requested)
}

/// All routes were sent: writes the end of the refresh that has begun; `false`: none has.
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

/// Asks the peer for all its routes; returns how many messages that takes, `None`: the peer does not know the message.
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
