//! Prefix limits, received and sent (RFC 4486 4).

use std::time::Duration;

use crate::adj_rib_out::group::Group;
use crate::api::{Event, PrefixLimit};
use crate::ribs::RibSet;
use crate::session::peer::Peer;
use crate::types::Family;
use crate::wire::{ErrorCode, Notification};

/// Time for which a peer is neither dialled nor accepted after its sent limit was exceeded.
const PENALTY_OUT: Duration = Duration::from_secs(60);

/// An exceeded limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exceeded {
    pub(super) family: Family,
    pub(super) max: u32,
    /// Time for which the peer is neither dialled nor accepted.
    pub(super) penalty: Duration,
}

impl Exceeded {
    /// Returns Cease subcode 1 with family and limit in the data (RFC 4486 4).
    pub(super) fn notification(self) -> Notification {
        let mut data = self.family.afi().to_be_bytes().to_vec();
        data.push(self.family.safi());
        data.extend_from_slice(&self.max.to_be_bytes());
        Notification::with_data(ErrorCode::MAX_PREFIXES, &data)
    }
}

/// Checks the limit of received prefixes. Returns a warning event when the threshold is reached.
pub(super) fn check_received(
    peer: &mut Peer,
    received: u32,
    family: Family,
) -> Result<Option<Event>, Exceeded> {
    let Some(limit) = peer.config.max_prefixes else { return Ok(None) };
    if received > limit.max {
        return Err(Exceeded { family, max: limit.max, penalty: limit.restart });
    }
    let near = is_near(limit, received);
    let was_near = peer.warned.get_mut(family.index()).map(|warned| std::mem::replace(warned, near));
    let warn = near && was_near == Some(false);
    let warning = Event::PrefixWarning { peer: peer.id, family, received, max: limit.max };
    Ok(warn.then_some(warning))
}

/// Checks the limit of prefixes to be sent.
pub(super) fn check_sent(number: u32, peer: &Peer, ribs: &RibSet, family: Family) -> Result<(), Exceeded> {
    let Some(max) = peer.config.max_prefixes_out else { return Ok(()) };
    let groups = peer.groups(family).iter().filter_map(|group| ribs.group(family, *group));
    // A peer's own routes are not sent back to it. They are subtracted only if the rough count exceeds the
    // limit.
    let most: u32 = groups.clone().map(|group| group.advertised_count(number, 0)).sum();
    let exact = |group: &Group| group.advertised_count(number, group.attr_sets.of_source(number));
    if most > max && groups.map(exact).sum::<u32>() > max {
        return Err(Exceeded { family, max, penalty: PENALTY_OUT });
    }
    Ok(())
}

fn is_near(limit: PrefixLimit, received: u32) -> bool {
    limit.warn.is_some_and(|warn| u64::from(received) * 100 >= u64::from(limit.max) * u64::from(warn))
}
