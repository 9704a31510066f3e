//! Connection collision detection (RFC 4271 6.8): of two connections to one peer, one is closed.
//!
//! A collision is resolved on receipt of an OPEN, because only then is the BGP identifier of the peer known.

use super::connection::Direction;
use crate::api::{Down, DownCode, State};
use crate::wire::{ErrorCode, Open};

/// Outcome for the connection whose OPEN arrived ("this") and for the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// No other connection exists; this one continues.
    NoCollision,
    /// This connection continues; the other is closed with Cease subcode 7.
    DumpOther,
    /// This connection is closed with Cease subcode 7; the other continues.
    DumpThis,
    /// The other connection has precedence, but its OPEN may never arrive: this one waits for it for a
    /// limited time.
    AwaitOther,
    /// The peer restarted (RFC 4724 4.2): the established session is dead and is closed without a
    /// NOTIFICATION.
    ReplaceEstablished,
}

/// Resolves a collision. `other`: state of the peer's other connection. `this_wins`: result of [`wins`].
/// `replaces`: a new connection proves that the established session is dead.
pub(crate) fn resolve(other: Option<State>, this_wins: bool, replaces: bool) -> Resolution {
    match other {
        None => Resolution::NoCollision,
        Some(State::Established) if replaces => Resolution::ReplaceEstablished,
        Some(State::Established) => Resolution::DumpThis,
        Some(_) if this_wins => Resolution::DumpOther,
        Some(State::OpenConfirm) => Resolution::DumpThis,
        Some(State::OpenSent) => Resolution::AwaitOther,
        Some(_) => Resolution::DumpOther,
    }
}

/// Returns true if a connection in this direction has precedence: the one opened by the speaker with the
/// higher BGP identifier, or with equal identifiers, the higher AS (RFC 4271 6.8, RFC 6286 2.3).
pub(crate) fn wins(ours: &Open, theirs: &Open, direction: Direction) -> bool {
    let ours_is_higher = (ours.router_id, ours.asn) > (theirs.router_id, theirs.asn);
    ours_is_higher == (direction == Direction::Outgoing)
}

/// Returns the reported reason for the end of the losing connection.
pub(crate) fn down() -> Down {
    Down {
        code: DownCode::Collision,
        text: "lost a connection collision (RFC 4271 6.8)".into(),
        notification: Some(ErrorCode::COLLISION.pair()),
        helper: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_established_session_stays_and_else_the_winner_does() {
        for (other, this_wins, resolution) in [
            (None, false, Resolution::NoCollision),
            (Some(State::OpenSent), true, Resolution::DumpOther),
            (Some(State::OpenSent), false, Resolution::AwaitOther),
            (Some(State::OpenConfirm), true, Resolution::DumpOther),
            (Some(State::OpenConfirm), false, Resolution::DumpThis),
            (Some(State::Established), true, Resolution::DumpThis),
            (Some(State::Established), false, Resolution::DumpThis),
        ] {
            assert_eq!(resolve(other, this_wins, false), resolution, "{other:?} {this_wins}");
        }
        assert_eq!(resolve(Some(State::Established), false, true), Resolution::ReplaceEstablished);
        assert_eq!(resolve(Some(State::OpenSent), false, true), Resolution::AwaitOther);
    }
}
