//! Assignment of peers to update groups.

use crate::adj_rib_out::advertised::Advertised;
use crate::adj_rib_out::export::{GroupKey, Representative};
use crate::api::{ADD_PATH_MAX, Drain};
use crate::ribs::RibSet;
use crate::ribs::family::Previous;
use crate::session::connections::Connections;
use crate::session::open;
use crate::session::peer::Peer;
use crate::session::peer_table::PeerTable;
use crate::types::Family;

/// The update groups of all peers, with the state that they depend on.
pub(super) struct UpdateGroups<'a> {
    pub(super) peers: &'a mut PeerTable,
    pub(super) connections: &'a Connections,
    pub(super) ribs: &'a mut RibSet,
}

impl UpdateGroups<'_> {
    /// Adds an established peer to its update groups. `previous`: routes sent through the groups that it
    /// left.
    pub(super) fn join(&mut self, number: u32, family: Family, previous: Vec<Option<Previous>>) {
        let Some(peer) = self.peers.get_mut(number) else { return };
        let Some((keys, representative)) = group_keys(peer, self.connections, family, previous.len()) else {
            return;
        };
        // Further groups continue the same session: their End-of-RIB state is that of the last previous
        // group.
        let further = previous.last().and_then(Option::as_ref).map(|(.., end_of_rib)| *end_of_rib);
        let further = further.map(|end_of_rib| (Advertised::default(), u64::MAX, end_of_rib));
        let mut previous = previous.into_iter();
        for key in keys {
            let previous = previous.next().unwrap_or_else(|| further.clone());
            let group = self.ribs.join(key, representative.clone(), number, previous);
            if let Some(groups) = peer.groups.get_mut(family.index()) {
                groups.push(group);
            }
        }
    }

    /// Removes a peer from its update groups. Returns the routes sent through each.
    pub(super) fn leave(&mut self, number: u32, family: Family) -> Vec<Option<Previous>> {
        let groups = self.peers.get_mut(number).and_then(|p| p.groups.get_mut(family.index()));
        let groups = groups.map(std::mem::take).unwrap_or_default();
        self.ribs.leave(family, &groups, number)
    }

    /// Moves a peer to other groups if its changed configuration requires it. Returns true if it moved.
    pub(super) fn regroup(&mut self, number: u32) -> bool {
        let mut moved = false;
        for family in Family::ALL {
            let Some(peer) = self.peers.get(number) else { return moved };
            let old = peer.groups(family);
            if old.is_empty() {
                continue;
            }
            let Some((keys, _)) = group_keys(peer, self.connections, family, old.len()) else { continue };
            let fits =
                |(id, key): (&u32, &GroupKey)| self.ribs.group(family, *id).is_some_and(|g| g.key == *key);
            let same = old.len() == keys.len() && old.iter().zip(&keys).all(fits);
            if !same {
                let previous = self.leave(number, family);
                self.join(number, family, previous);
                moved = true;
            }
        }
        moved
    }
}

fn group_key(peer: &Peer, connections: &Connections, family: Family) -> Option<(GroupKey, Representative)> {
    let conn = connections.session(peer)?;
    let session = conn.negotiated?;
    let key = GroupKey {
        family,
        session: GroupKey::normalise(&session, family),
        asn: conn.received_open.as_ref().map_or(peer.config.asn, |received| received.asn),
        local_asn: conn.sent_open.asn,
        client: peer.config.reflector_client.filter(|_| !session.ebgp),
        drain: peer.drain,
        long_lived: conn.received_open.as_ref().is_some_and(|received| {
            received.capabilities.graceful_restart.is_some() && received.capabilities.long_lived.is_some()
        }),
        next_hop: peer.config.next_hop,
        own: open::own_next_hop(&peer.config, conn.local.ip(), family, session.ext_nexthop).map(Into::into),
        class: peer.config.policy_class,
        role: peer.config.role.filter(|_| session.ebgp),
        closed: session.ebgp && !peer.config.ebgp_policy,
        plane: 0,
    };
    Some((key, Representative { id: peer.id, name: peer.config.name.clone() }))
}

/// Returns the keys of the update groups of an established peer: one for each of the paths per prefix that
/// it is sent, and at least `at_least` keys. Groups beyond the configured number of paths withdraw the routes
/// that were sent before the number was lowered.
fn group_keys(
    peer: &Peer,
    connections: &Connections,
    family: Family,
    at_least: usize,
) -> Option<(Vec<GroupKey>, Representative)> {
    let (key, representative) = group_key(peer, connections, family)?;
    let offered = peer.config.add_path_send;
    let planes = if key.path_id().is_some() { offered.clamp(1, ADD_PATH_MAX) } else { 1 };
    let keys = (0..ADD_PATH_MAX).take(at_least.max(planes.into())).map(|plane| {
        let drain = if plane < planes { key.drain } else { Drain::Withdraw };
        GroupKey { plane, drain, ..key.clone() }
    });
    Some((keys.collect(), representative))
}
