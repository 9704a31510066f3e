//! BGP roles: which may meet, and what they do to ONLY_TO_CUSTOMER (RFC 9234).
//!
//! All of it is named after our own role. Nothing of it acts on iBGP sessions: callers give no role there.

use crate::attr::Attributes;
use crate::wire::{ErrorCode, Notification, Role};

/// Checks that the roles of both OPENs fit (RFC 9234 4.2). `strict`: the peer has to offer one.
///
/// # Errors
/// Role Mismatch.
pub(crate) fn check(ours: Option<Role>, theirs: Option<Role>, strict: bool) -> Result<(), Notification> {
    let fits = match (ours, theirs) {
        (None, _) => true,
        (Some(_), None) => !strict,
        (Some(ours), Some(theirs)) => ours.pairs_with(theirs),
    };
    if fits { Ok(()) } else { Err(Notification::new(ErrorCode::ROLE_MISMATCH)) }
}

/// True if a received route is a leak (RFC 9234 5, ingress 1 and 2).
pub(crate) fn is_leaked(ours: Option<Role>, peer_asn: u32, attributes: &Attributes) -> bool {
    match (ours, attributes.otc()) {
        (Some(Role::Provider | Role::RouteServer), Some(_)) => true,
        (Some(Role::Peer), Some(asn)) => asn != peer_asn,
        _ => false,
    }
}

/// Marks a received route as one for customers only (RFC 9234 5, ingress 3).
pub(crate) fn mark_received(ours: Option<Role>, peer_asn: u32, attributes: &mut Attributes) {
    if matches!(ours, Some(Role::Customer | Role::Peer | Role::RouteServerClient)) {
        mark(peer_asn, attributes);
    }
}

/// Marks a route that is sent as one for customers only (RFC 9234 5, egress 1).
pub(crate) fn mark_sent(ours: Option<Role>, our_asn: u32, attributes: &mut Attributes) {
    if matches!(ours, Some(Role::Provider | Role::Peer | Role::RouteServer)) {
        mark(our_asn, attributes);
    }
}

/// True if a route may be sent (RFC 9234 5, egress 2).
pub(crate) fn may_send(ours: Option<Role>, attributes: &Attributes) -> bool {
    attributes.otc().is_none() || !matches!(ours, Some(Role::Customer | Role::Peer | Role::RouteServerClient))
}

/// The attribute is never changed once it is there.
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

    /// RFC 9234 5, rule by rule: for each role of ours what a route of AS 7 with this attribute becomes.
    #[test]
    fn ingress() {
        // (role of ours, attribute) -> leak, attribute afterwards.
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
