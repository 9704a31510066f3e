//! Connection collision detection (RFC 4271 6.8): two connections to one peer, of which one stays.
//!
//! It is resolved when the OPEN of one of them arrives: only then are both identifiers known.

use super::connection::Direction;
use crate::api::{Down, DownCode, State};
use crate::wire::{ErrorCode, Open};

/// Outcome for the connection whose OPEN arrived, and for the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// It goes on; there is no other.
    NoCollision,
    /// It goes on, the other one is closed with Cease 7.
    DumpOther,
    /// It is closed with Cease 7, the other one goes on.
    DumpThis,
    /// The other one would win, but its OPEN may never come: this one waits for it a little.
    AwaitOther,
    /// The peer restarted (RFC 4724 4.2): the established session is dead, and closed without a NOTIFICATION.
    ReplaceEstablished,
}

/// Resolves a collision. `other`: the state of the peer's other connection; `this_wins`: by [`wins`]; `replaces`: a new
/// connection means that the established session is dead.
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

/// True if a connection of this direction is the one to keep: that of the speaker with the higher identifier, with equal
/// ones that of the higher AS (RFC 4271 6.8, RFC 6286 2.3).
pub(crate) fn wins(ours: &Open, theirs: &Open, direction: Direction) -> bool {
    let ours_is_higher = (ours.router_id, ours.asn) > (theirs.router_id, theirs.asn);
    ours_is_higher == (direction == Direction::Outgoing)
}

/// How the end of the connection that lost is reported.
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
