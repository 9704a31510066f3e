//! BGP roles and the ONLY_TO_CUSTOMER attribute (RFC 9234): role check, leak detection, marking.
//!
//! All functions take the local role. Roles do not apply to iBGP sessions: callers pass `None` for these.

use crate::attr::Attributes;
use crate::wire::{ErrorCode, Notification, Role};

/// Checks that the roles in both OPENs are a valid pair (RFC 9234 4.2). With `strict`, the peer must send a
/// role.
///
/// # Errors
/// Role Mismatch (OPEN Message Error, subcode 11).
pub(crate) fn check(ours: Option<Role>, theirs: Option<Role>, strict: bool) -> Result<(), Notification> {
    let fits = match (ours, theirs) {
        (None, _) => true,
        (Some(_), None) => !strict,
        (Some(ours), Some(theirs)) => ours.pairs_with(theirs),
    };
    if fits { Ok(()) } else { Err(Notification::new(ErrorCode::ROLE_MISMATCH)) }
}

/// Returns true if a received route is a leak (RFC 9234 5, ingress rules 1 and 2).
pub(crate) fn is_leaked(ours: Option<Role>, peer_asn: u32, attributes: &Attributes) -> bool {
    match (ours, attributes.otc()) {
        (Some(Role::Provider | Role::RouteServer), Some(_)) => true,
        (Some(Role::Peer), Some(asn)) => asn != peer_asn,
        _ => false,
    }
}

/// Adds ONLY_TO_CUSTOMER to a received route where the local role requires it (RFC 9234 5, ingress rule 3).
pub(crate) fn mark_received(ours: Option<Role>, peer_asn: u32, attributes: &mut Attributes) {
    if matches!(ours, Some(Role::Customer | Role::Peer | Role::RouteServerClient)) {
        mark(peer_asn, attributes);
    }
}

/// Adds ONLY_TO_CUSTOMER to a route to be announced where the local role requires it (RFC 9234 5, egress rule
/// 1).
pub(crate) fn mark_sent(ours: Option<Role>, our_asn: u32, attributes: &mut Attributes) {
    if matches!(ours, Some(Role::Provider | Role::Peer | Role::RouteServer)) {
        mark(our_asn, attributes);
    }
}

/// Returns true if the route may be announced to the peer (RFC 9234 5, egress rule 2).
pub(crate) fn may_send(ours: Option<Role>, attributes: &Attributes) -> bool {
    attributes.otc().is_none() || !matches!(ours, Some(Role::Customer | Role::Peer | Role::RouteServerClient))
}

/// Sets ONLY_TO_CUSTOMER unless the route has it: an existing value must not be changed (RFC 9234 5).
fn mark(asn: u32, attributes: &mut Attributes) {
    if attributes.otc().is_none() {
        attributes.edit_extra(|e| e.otc = Some(asn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Role; 5] =
        [Role::Provider, Role::RouteServer, Role::RouteServerClient, Role::Customer, Role::Peer];

    fn route(otc: Option<u32>) -> Attributes {
        let mut a = Attributes::new(std::net::Ipv4Addr::LOCALHOST);
        a.edit_extra(|e| e.otc = otc);
        a
    }

    /// RFC 9234 5, ingress rules 1 to 3: expected leak result and OTC value for a route from AS 7, for each
    /// local role.
    #[test]
    fn ingress() {
        // (local role, OTC received) -> (leak, OTC after marking).
        for (ours, otc, leak, after) in [
            (Role::Provider, None, false, None),
            (Role::Provider, Some(7), true, Some(7)),
            (Role::RouteServer, None, false, None),
            (Role::RouteServer, Some(9), true, Some(9)),
            (Role::Peer, None, false, Some(7)),
            (Role::Peer, Some(7), false, Some(7)),
            (Role::Peer, Some(9), true, Some(9)),
            (Role::Customer, None, false, Some(7)),
            (Role::Customer, Some(9), false, Some(9)),
            (Role::RouteServerClient, None, false, Some(7)),
            (Role::RouteServerClient, Some(9), false, Some(9)),
        ] {
            let mut a = route(otc);
            mark_received(Some(ours), 7, &mut a);
            assert_eq!((is_leaked(Some(ours), 7, &a), a.otc()), (leak, after), "{ours:?} {otc:?}");
        }
    }

    #[test]
    fn egress() {
        for (ours, otc, sent, after) in [
            (Role::Provider, None, true, Some(1)),
            (Role::Provider, Some(9), true, Some(9)),
            (Role::RouteServer, None, true, Some(1)),
            (Role::RouteServer, Some(9), true, Some(9)),
            (Role::Peer, None, true, Some(1)),
            (Role::Peer, Some(9), false, Some(9)),
            (Role::Customer, None, true, None),
            (Role::Customer, Some(9), false, Some(9)),
            (Role::RouteServerClient, None, true, None),
            (Role::RouteServerClient, Some(9), false, Some(9)),
        ] {
            let mut a = route(otc);
            assert_eq!(may_send(Some(ours), &a), sent, "{ours:?} {otc:?}");
            mark_sent(Some(ours), 1, &mut a);
            assert_eq!(a.otc(), after, "{ours:?} {otc:?}");
        }
    }

    #[test]
    fn without_a_role_nothing_happens() {
        for otc in [None, Some(9)] {
            let mut a = route(otc);
            mark_received(None, 7, &mut a);
            mark_sent(None, 1, &mut a);
            assert_eq!((is_leaked(None, 7, &a), may_send(None, &a), a.otc()), (false, true, otc));
        }
    }

    #[test]
    fn only_pairs_fit_and_a_silent_peer_only_where_it_is_let() {
        for a in ALL {
            for b in ALL {
                assert_eq!(check(Some(a), Some(b), false).is_ok(), a.pairs_with(b));
                assert_eq!(check(Some(a), Some(b), true).is_ok(), b.pairs_with(a));
            }
            assert!(check(Some(a), None, false).is_ok() && check(None, Some(a), true).is_ok());
            assert_eq!(check(Some(a), None, true).unwrap_err().code, ErrorCode::ROLE_MISMATCH);
            assert!(check(Some(a), Some(Role::Other(9)), false).is_err());
        }
    }
}
