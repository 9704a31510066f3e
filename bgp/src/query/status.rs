//! Status of peers and ranges, and totals.

use std::collections::BTreeMap;

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::View;
use crate::adj_rib_out::group::Group;
use crate::adj_rib_out::member::EndOfRib;
use crate::api::{
    FamilyStatus, LastError, PeerId, PeerStatus, RangeStatus, RestartPhase, SessionStatus, State, Totals,
};
use crate::session::peer::{Dialling, Peer, Restart};
use crate::types::Family;

/// Number of announced routes per source and update group, computed once for many peers.
type OwnRoutes = FxHashMap<(Family, u32), BTreeMap<u32, u32>>;

impl<'a> View<'a> {
    /// Returns all peers in the order of their ids.
    pub(crate) fn peers(self, now: Instant) -> impl Iterator<Item = PeerStatus> + use<> {
        let mut own = OwnRoutes::default();
        let mut all = Vec::with_capacity(self.peers.len());
        for (number, peer) in self.peers.by_id() {
            for family in Family::ALL {
                for id in peer.groups(family).iter().copied() {
                    let of =
                        || self.ribs.group(family, id).map(|g| g.attr_sets.by_source()).unwrap_or_default();
                    own.entry((family, id)).or_insert_with(of);
                }
            }
            all.push(self.status(number, peer, now, |family, id| {
                own.get(&(family, id)).and_then(|g| g.get(&number)).copied().unwrap_or(0)
            }));
        }
        all.into_iter()
    }

    /// Returns the status of one peer.
    pub(crate) fn peer(self, id: PeerId, now: Instant) -> Option<PeerStatus> {
        let number = self.peers.number(id)?;
        let peer = self.peers.get(number)?;
        Some(self.status(number, peer, now, |family, id| {
            self.ribs.group(family, id).map_or(0, |g| g.attr_sets.of_source(number))
        }))
    }

    /// Returns all ranges in the order of their ids.
    pub(crate) fn ranges(self, now: Instant) -> impl Iterator<Item = RangeStatus> + use<'a> {
        self.peers.ranges().iter().map(move |(id, range)| RangeStatus {
            id,
            prefix: range.config.prefix,
            peers: u32::try_from(range.peers.len()).unwrap_or(u32::MAX),
            max_peers: range.config.max_peers,
            refused: range.refused,
            last_down: range
                .last_down
                .as_ref()
                .map(|(addr, down, at)| (*addr, down.clone(), now.saturating_duration_since(*at))),
        })
    }

    /// Returns true if the update groups have no output left for this peer.
    fn is_up_to_date(self, number: u32, peer: &Peer) -> bool {
        let Some(conn) = self.connections.session(peer) else { return false };
        let idle = |family: Family| {
            let member = |id: &u32| self.ribs.group(family, *id).and_then(|g| g.member(number));
            peer.groups(family).iter().all(|id| member(id).is_some_and(|m| m.idle))
        };
        conn.write_pending_since.is_none() && conn.cursors.is_empty() && Family::ALL.into_iter().all(idle)
    }

    fn status(self, number: u32, peer: &Peer, now: Instant, own: impl Fn(Family, u32) -> u32) -> PeerStatus {
        let until = |at: Instant| at.saturating_duration_since(now);
        PeerStatus {
            id: peer.id,
            name: peer.config.name.clone(),
            range: peer.range,
            remote: peer.config.remote,
            asn: self.ribs.source(number).map_or(peer.config.asn, |s| s.asn),
            local_asn: self.ribs.source(number).map_or(self.global.asn, |s| s.local_asn),
            state: peer.state,
            since: now.saturating_duration_since(peer.since),
            uptime: peer.up_at.map(|up| now.saturating_duration_since(up)),
            session: self.session_status(peer, now),
            received: peer.received,
            sent: peer.sent,
            rejected: peer.rejected,
            families: Family::ALL
                .into_iter()
                .filter(|f| peer.config.families.contains(f))
                .map(|f| self.family_status(number, peer, f, &own))
                .collect(),
            flaps: peer.flaps,
            failed_attempts: peer.failures,
            last_down: peer.last_down.as_ref().map(|(d, at)| (d.clone(), now.saturating_duration_since(*at))),
            last_error: peer.last_error.as_ref().map(|(m, at)| LastError {
                kind: m.kind,
                code: m.code,
                text: m.text.clone(),
                data: m.data.clone(),
                message: m.message.clone(),
                ago: now.saturating_duration_since(*at),
            }),
            next_attempt: match peer.dialling {
                Dialling::At(at) => Some(until(at)),
                Dialling::No | Dialling::Connecting => None,
            },
            refused: peer.refused_for(now),
            restart: match peer.restart {
                Restart::No => RestartPhase::Idle,
                Restart::Waiting(at) => RestartPhase::Waiting(until(at)),
                Restart::LongLived => {
                    let last = peer.long_lived.iter().filter_map(|l| l.until).max();
                    last.map_or(RestartPhase::Idle, |at| RestartPhase::LongLived(until(at)))
                }
                Restart::Refreshing(at) => RestartPhase::Refreshing(until(at)),
            },
            drain: peer.drain,
            up_to_date: self.is_up_to_date(number, peer),
            conn: peer.session,
        }
    }

    fn session_status(self, peer: &Peer, now: Instant) -> Option<SessionStatus> {
        let conns = peer.conns().filter_map(|id| self.connections.get(id));
        let conn = conns.filter(|c| c.state() >= State::OpenConfirm).max_by_key(|c| c.state())?;
        let (theirs, agreed) = (conn.received_open.as_ref()?, conn.negotiated?);
        Some(SessionStatus {
            local: conn.local,
            remote: conn.remote,
            router_id: theirs.router_id,
            hold_time: conn.hold,
            hold_margin: conn.hold_at.map(|at| conn.margin.least(at, conn.hold, now)),
            keepalive: conn.keepalive,
            families: agreed.families.iter().collect(),
            as4: agreed.as4,
            extended_messages: agreed.extended,
            extended_next_hop: agreed.ext_nexthop,
            add_path_receive: agreed.add_path_receive.iter().collect(),
            add_path_send: agreed.add_path_send.iter().collect(),
            route_refresh: theirs.capabilities.route_refresh,
            enhanced_refresh: conn.has_enhanced_refresh(),
            graceful_restart: theirs
                .capabilities
                .graceful_restart
                .as_ref()
                .map(|g| Duration::from_secs(u64::from(g.time))),
        })
    }

    fn family_status(
        self,
        number: u32,
        peer: &Peer,
        family: Family,
        own: impl Fn(Family, u32) -> u32,
    ) -> FamilyStatus {
        let routes = self.ribs.source(number).map(|s| *s.family(family)).unwrap_or_default();
        let mut groups =
            peer.groups(family).iter().filter_map(|id| Some((*id, self.ribs.group(family, *id)?)));
        let filtered = routes.current.filtered + routes.stale.filtered;
        let received = routes.current.received + routes.stale.received;
        let [v4, v6] = peer.end_of_rib_received;
        FamilyStatus {
            family,
            received,
            accepted: received.saturating_sub(filtered),
            filtered,
            best: routes.best,
            advertised: groups.clone().map(|(id, g)| g.advertised_count(number, own(family, id))).sum(),
            stale: routes.stale.received,
            end_of_rib_received: if family == Family::Ipv4Unicast { v4 } else { v6 },
            end_of_rib_sent: groups
                .next_back()
                .and_then(|(_, g)| g.member(number))
                .is_some_and(|m| m.end_of_rib == EndOfRib::Sent),
        }
    }

    /// Returns totals of tables, routes and errors.
    pub(crate) fn totals(self) -> Totals {
        let (shared, v4, v6) = (self.ribs.shared(), self.ribs.v4(), self.ribs.v6());
        let mut withheld: Vec<(&'static str, u64)> = Vec::new();
        for (gate, count) in v4.groups().chain(v6.groups()).flat_map(Group::withheld) {
            match withheld.iter_mut().find(|(g, _)| g == gate) {
                Some((_, sum)) => *sum += count,
                None => withheld.push((*gate, *count)),
            }
        }
        let [withdraws, discards, resets] = self.ribs.update_errors();
        let tables = v4.table.memory() + v6.table.memory();
        let groups = v4.groups().chain(v6.groups()).map(Group::memory).sum::<usize>();
        let attributes = shared.attrs.memory();
        Totals {
            prefixes: [v4.table.prefixes() as u64, v6.table.prefixes() as u64],
            paths: [v4.table.path_count() as u64, v6.table.path_count() as u64],
            local: [v4.table.locals.len() as u64, v6.table.locals.len() as u64],
            attribute_sets: shared.attrs.len() as u64,
            update_groups: (v4.groups().count() + v6.groups().count()) as u64,
            memory: (tables + groups + attributes) as u64,
            memory_of: [
                ("loc", tables as u64),
                ("adj_out", groups as u64),
                ("attributes", attributes as u64),
            ],
            withheld,
            rejected: shared.reasons.totals(),
            update_errors: [
                ("treat_as_withdraw", withdraws),
                ("attribute_discard", discards),
                ("session_reset", resets),
            ],
            learned: shared.changes,
        }
    }
}
