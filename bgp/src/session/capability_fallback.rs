//! Capability fallback: capabilities that the next OPEN omits because the peer rejected them (RFC 5492 3 and
//! 5, RFC 4271 6.2).
//!
//! A peer that answers with Unsupported Capability lists the capabilities in the data, and the next OPEN
//! omits these. If it lists none, the next OPEN has only families, four-octet AS and role. A peer that
//! rejects optional parameters as such (pre-RFC 2842 speakers) receives none, provided that IPv4 unicast is
//! configured, which a session without capabilities carries, and that no role is required.
//!
//! Each step omits more, so the procedure terminates. It restarts with all capabilities when nothing more can
//! be omitted, after any other NOTIFICATION on an attempt, sent or received, and after each session.

use crate::types::Family;
use crate::wire::{Capabilities, ErrorCode, Notification};

/// Capabilities to omit from the next OPEN.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CapabilityFallback {
    /// Capabilities as listed in NOTIFICATIONs: code and value.
    named: Vec<(u8, Box<[u8]>)>,
    /// Omits all but families, four-octet AS and role.
    optional: bool,
    /// Omits all.
    everything: bool,
}

impl CapabilityFallback {
    /// Removes the rejected capabilities. `role_strict`: the role capability stays, because no session comes
    /// up without roles.
    pub(crate) fn apply(&self, capabilities: &mut Capabilities, role_strict: bool) {
        let bare = capabilities.carried_families().contains(Family::Ipv4Unicast)
            && !(role_strict && capabilities.role.is_some());
        if self.everything && bare {
            *capabilities = Capabilities::default();
            return;
        }
        if self.optional {
            *capabilities = Capabilities {
                multiprotocol: capabilities.multiprotocol,
                families: capabilities.families,
                as4: capabilities.as4,
                role: capabilities.role,
                ..Capabilities::default()
            };
        }
        let role = capabilities.role;
        for (code, value) in &self.named {
            capabilities.remove(*code, value);
        }
        if role_strict {
            capabilities.role = role;
        }
    }

    /// Records that the peer rejected an OPEN with the capabilities in `offered`. Returns true if a different
    /// OPEN can be sent at once.
    pub(crate) fn learn(
        &mut self,
        refusal: &Notification,
        offered: &Capabilities,
        role_strict: bool,
    ) -> bool {
        match refusal.code {
            ErrorCode::UNSUPPORTED_PARAMETER => self.everything = true,
            ErrorCode::UNSUPPORTED_CAPABILITY if refusal.data.is_empty() => {
                self.everything = self.optional;
                self.optional = true;
            }
            ErrorCode::UNSUPPORTED_CAPABILITY => self.named.extend(
                crate::wire::capability_list(&refusal.data).map(|(code, value)| (code, value.into())),
            ),
            _ => return false,
        }
        let mut after = offered.clone();
        self.apply(&mut after, role_strict);
        let more = after != *offered;
        if !more {
            *self = Self::default();
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Families, Role};

    fn offered() -> Capabilities {
        Capabilities {
            multiprotocol: true,
            families: Families::ALL,
            as4: Some(64512),
            route_refresh: true,
            enhanced_refresh: true,
            extended_messages: true,
            ext_nexthop: true,
            graceful_restart: Some(crate::wire::GracefulRestart::default()),
            role: Some(Role::Customer),
            ..Capabilities::default()
        }
    }

    fn refused(data: &[u8]) -> Notification {
        Notification::with_data(ErrorCode::UNSUPPORTED_CAPABILITY, data)
    }

    #[test]
    fn what_is_named_is_left_out_and_nothing_else() {
        let mut without = CapabilityFallback::default();
        assert!(without.learn(&refused(&[64, 2, 0, 120, 1, 4, 0, 2, 0, 1]), &offered(), false));
        let mut now = offered();
        without.apply(&mut now, false);
        let wanted = Capabilities {
            graceful_restart: None,
            families: Families::NONE.with(Family::Ipv4Unicast),
            ..offered()
        };
        assert_eq!(now, wanted);
        // A second rejection.
        assert!(without.learn(&refused(&[6, 0]), &now, false));
        let mut now = offered();
        without.apply(&mut now, false);
        assert_eq!(now, Capabilities { extended_messages: false, ..wanted });
        // Rejection of a capability that was not offered is no reason for a retry, and clears the fallback.
        assert!(!without.learn(&refused(&[71, 0]), &now, false));
        assert_eq!(without, CapabilityFallback::default());
    }

    #[test]
    fn the_last_family_stays() {
        let mut without = CapabilityFallback::default();
        let only = Capabilities { families: Families::NONE.with(Family::Ipv6Unicast), ..offered() };
        assert!(!without.learn(&refused(&[1, 4, 0, 2, 0, 1]), &only, false));
    }

    #[test]
    fn without_a_name_it_goes_step_by_step_to_nothing() {
        let mut without = CapabilityFallback::default();
        assert!(without.learn(&refused(&[]), &offered(), false));
        let mut now = offered();
        without.apply(&mut now, false);
        assert_eq!((now.families, now.as4, now.route_refresh), (Families::ALL, Some(64512), false));
        assert!(without.learn(&refused(&[]), &now, false));
        without.apply(&mut now, false);
        assert_eq!(now, Capabilities::default());
        assert!(!without.learn(&refused(&[]), &now, false));
        assert_eq!(without, CapabilityFallback::default());
    }

    #[test]
    fn old_speakers_get_no_parameters_at_all() {
        let mut without = CapabilityFallback::default();
        assert!(without.learn(&Notification::new(ErrorCode::UNSUPPORTED_PARAMETER), &offered(), false));
        let mut now = offered();
        without.apply(&mut now, false);
        assert_eq!(now, Capabilities::default());
    }

    /// RFC 4760 8: a session without capabilities carries IPv4 unicast, so it must not come up where that is
    /// not configured.
    #[test]
    fn ipv6_alone_never_goes_without_its_family() {
        let only = Capabilities { families: Families::NONE.with(Family::Ipv6Unicast), ..offered() };
        let mut without = CapabilityFallback::default();
        assert!(!without.learn(&Notification::new(ErrorCode::UNSUPPORTED_PARAMETER), &only, false));
        assert_eq!(without, CapabilityFallback::default());
        assert!(without.learn(&refused(&[]), &only, false));
        let mut now = only.clone();
        without.apply(&mut now, false);
        assert_eq!((now.multiprotocol, now.families, now.route_refresh), (true, only.families, false));
        assert!(!without.learn(&refused(&[]), &now, false));
        assert_eq!(without, CapabilityFallback::default());
    }

    /// RFC 9234 4.2: with a required role (strict mode) no session comes up without roles, and ours is always
    /// sent (4.1). Otherwise it is omitted for a peer that rejects it by code.
    #[test]
    fn the_role_stays_where_it_is_required() {
        let mut without = CapabilityFallback::default();
        assert!(without.learn(&refused(&[9, 1, 3]), &offered(), false));
        let mut now = offered();
        without.apply(&mut now, false);
        assert_eq!(now, Capabilities { role: None, ..offered() });
        let mut without = CapabilityFallback::default();
        assert!(!without.learn(&refused(&[9, 1, 3]), &offered(), true));
        assert!(without.learn(&refused(&[]), &offered(), true));
        let mut now = offered();
        without.apply(&mut now, true);
        assert_eq!((now.role, now.route_refresh), (Some(Role::Customer), false));
        assert!(!without.learn(&refused(&[]), &now, true));
        assert!(!without.learn(&Notification::new(ErrorCode::UNSUPPORTED_PARAMETER), &offered(), true));
    }

    #[test]
    fn any_data_ends() {
        for data in [&[1][..], &[1, 200, 3], &[0, 0, 0], &[255; 40], &[65, 0], &[2, 0, 128, 0]] {
            let mut without = CapabilityFallback::default();
            let mut now = offered();
            for _ in 0..5 {
                without.learn(&refused(data), &now, false);
                now = offered();
                without.apply(&mut now, false);
            }
        }
    }
}
