//! Rehearsal of another intent: applies it to a copy of the speaker with its sessions and tables, by the code
//! of the running speaker, and compares the results.
//!
//! Sessions that the change would reset continue in the copy with their negotiated parameters, so that the
//! comparison shows announcements and used routes after they are up again. A new session is established with
//! a simulated neighbour without routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tortie_bgp::attr::Attributes;
use tortie_bgp::wire::Role;
use tortie_bgp::{
    ANY_EXTERNAL, ConnId, Event, Family, GlobalConfig, Input, NextHopState, PathInfo, PeerConfig, PeerId,
    PolicyHandle, RangeConfig, RangeId, RouteMatch, RouteQuery, RouteTable, RouterId, Speaker, State,
    Transmit, Unusable,
};
use tortie_net::Cidr;

use crate::speaker::intent::{global, originations};
use crate::speaker::options::SpeakerOptions;
use crate::speaker::peers::{Change, PeerTable, RangeChange, Ranges};
use crate::speaker::policy::{Classes, ViewPolicy};
use tortie_engine::routing::{ChangeId, Password, PeerIntent, RoutingIntent};

/// Maximum number of paths that are copied; copying more would delay the speaker's sessions.
const PATHS_MAX: u64 = 200_000;
/// Maximum number of routes of all peers that are compared.
const COMPARED_MAX: u64 = 4_000_000;
/// Number of table slots read at once.
const SLICE: u32 = 65_536;
/// Maximum number of work steps until the copy must be idle.
const WORK_MAX: usize = 1_000_000;
/// Number of octets taken from a connection at once.
const ROOM: usize = 65_536;
/// First id of connections that exist only in the copy.
const FIRST_CONN: u64 = 1 << 62;
/// AS number of a simulated neighbour for which any external AS is allowed.
const SOME_AS: u32 = 65_550;

/// A copy of the speaker.
#[derive(Clone)]
pub struct Rehearsal {
    core: Speaker,
    peers: PeerTable,
    ranges: Ranges,
    given: Arc<RoutingIntent>,
    classes: Classes,
    options: SpeakerOptions,
    now: Instant,
    connections: u64,
    /// True if the copy was not made from a running speaker.
    offline: bool,
}

/// Changes in BGP that another intent would cause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BgpChanges {
    /// True if AS or router id change: every session is reset, and announcements after it are compared as if
    /// they did not change.
    pub identity: bool,
    /// Sessions that would be added.
    pub come: BTreeSet<String>,
    /// Sessions that would end and not come back.
    pub end: BTreeSet<String>,
    /// Established sessions that would be reset.
    pub reset: BTreeSet<String>,
    /// Differences in announced and used routes, by session.
    pub routes: BTreeMap<String, PeerRoutes>,
    /// Parts that could not be compared, with the reason.
    pub not_judged: Vec<String>,
}

/// Routes to and from one peer that would differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerRoutes {
    /// Routes announced to the peer.
    pub announced: RouteChanges,
    /// Routes of the peer that are used.
    pub used: RouteChanges,
}

/// Prefixes by kind of difference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteChanges {
    /// Prefixes that exist only afterwards.
    pub gained: Vec<Cidr>,
    /// Prefixes that exist only before.
    pub lost: Vec<Cidr>,
    /// Prefixes with other attributes or paths.
    pub changed: Vec<Cidr>,
}

impl RouteChanges {
    /// True if nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gained.is_empty() && self.lost.is_empty() && self.changed.is_empty()
    }

    fn between(before: &Routes, after: &Routes) -> Self {
        let only = |of: &Routes, other: &Routes| {
            of.keys().filter(|prefix| !other.contains_key(prefix)).copied().collect()
        };
        let both = before.iter().filter_map(|(prefix, old)| Some((prefix, old, after.get(prefix)?)));
        Self {
            gained: only(after, before),
            lost: only(before, after),
            changed: both.filter(|(_, old, new)| old != new).map(|(prefix, ..)| *prefix).collect(),
        }
    }
}

/// Paths by prefix.
type Routes = BTreeMap<Cidr, Vec<(Option<u32>, Arc<Attributes>)>>;

impl Rehearsal {
    /// Copies a running speaker; `None` if it has so many routes that copying would delay its sessions.
    pub(crate) fn of_running(
        core: &Speaker,
        peers: &PeerTable,
        ranges: &Ranges,
        given: &Arc<RoutingIntent>,
        classes: &Classes,
        options: &SpeakerOptions,
        now: Instant,
    ) -> Option<Self> {
        let paths: u64 = core.totals().paths.iter().sum();
        (paths <= PATHS_MAX).then(|| Self {
            core: core.clone(),
            peers: peers.clone(),
            ranges: ranges.clone(),
            given: Arc::clone(given),
            classes: classes.separate(),
            options: options.clone(),
            now,
            connections: FIRST_CONN,
            offline: false,
        })
    }

    /// Creates a speaker with all sessions of an intent, whose simulated neighbours have no routes.
    #[must_use]
    pub fn of_intent(intent: &RoutingIntent) -> Self {
        let (options, classes, now) = (SpeakerOptions::default(), Classes::default(), Instant::now());
        let view = ViewPolicy::new(Arc::clone(&intent.view), intent.addresses.clone(), classes.clone());
        let empty = RoutingIntent {
            peers: Default::default(),
            ranges: Default::default(),
            originated: Default::default(),
            ..intent.clone()
        };
        let mut rehearsal = Self {
            core: Speaker::new(global(intent, &options), PolicyHandle(Arc::new(view)), now),
            peers: PeerTable::default(),
            ranges: Ranges::default(),
            given: Arc::new(empty),
            classes,
            options,
            now,
            connections: FIRST_CONN,
            offline: true,
        };
        rehearsal.give(Input::LocalReady);
        rehearsal.apply(&rehearsal.with_addresses(intent), &mut BgpChanges::default());
        rehearsal
    }

    /// Compares two intents; `before` is the applied one, or nearly.
    #[must_use]
    pub fn compare(mut self, before: &RoutingIntent, after: &RoutingIntent) -> BgpChanges {
        let (before, after) = (self.with_addresses(before), self.with_addresses(after));
        // The running speaker's policy only knows the peer policies that are in use there.
        self.give(Input::Policy(self.policy(&Arc::clone(&self.given))));
        self.apply(&before, &mut BgpChanges::default());
        let old = self.copy();
        let mut changes = BgpChanges::default();
        self.apply(&after, &mut changes);
        let (was, is) = (old.sessions(), self.sessions());
        for (name, (id, _)) in was.iter().filter(|(name, _)| !is.contains_key(*name)) {
            // A dynamic peer comes again if a range still admits it.
            let status = old.core.peer(*id, old.now).filter(|peer| peer.range.is_some());
            let admitted = |addr: IpAddr| after.ranges.values().any(|range| range.prefix.contains(addr));
            let stays = match status {
                Some(dynamic) => admitted(dynamic.remote.ip()),
                None => after.peers.get(name).is_some_and(|peer| peer.shutdown.is_none()),
            };
            if stays {
                changes
                    .not_judged
                    .push(format!("{name} is reset: its routes are gone until the session is up again"));
                changes.reset.insert(name.clone());
            } else {
                changes.end.insert(name.clone());
            }
        }
        let names = |of: &RoutingIntent, not: &RoutingIntent| -> Vec<String> {
            let names = of.peers.iter().map(|(name, _)| name);
            names.filter(|name| !not.peers.contains_key(*name)).cloned().collect()
        };
        changes.come.extend(names(&after, &before));
        changes.end.extend(names(&before, &after));
        if changes.identity {
            changes.reset.extend(was.keys().filter(|name| is.contains_key(*name)).cloned());
        }
        changes.reset.retain(|name| was.contains_key(name));
        let largest = u64::try_from(was.len().max(is.len())).unwrap_or(u64::MAX);
        let prefixes: u64 = self.core.totals().prefixes.iter().sum();
        if largest.saturating_mul(prefixes) > COMPARED_MAX {
            changes.not_judged.push(format!(
                "routes by peer: {largest} sessions with {prefixes} prefixes are too many to compare"
            ));
            return changes;
        }
        let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
        for name in names {
            let between = |table: fn(PeerId) -> RouteTable| {
                let of = |rehearsal: &Self, session: Option<&(PeerId, Vec<Family>)>| {
                    // If a reset session loses a family, the routes of that family are gone.
                    session.map(|(id, families)| rehearsal.routes(table(*id), families)).unwrap_or_default()
                };
                RouteChanges::between(&of(&old, was.get(name)), &of(&self, is.get(name)))
            };
            let routes =
                PeerRoutes { announced: between(RouteTable::AdjOut), used: between(RouteTable::AdjInPost) };
            if !(routes.announced.is_empty() && routes.used.is_empty()) {
                changes.routes.insert(name.clone(), routes);
            }
        }
        changes
    }

    /// Copies the rehearsal with a policy table of its own.
    fn copy(&self) -> Self {
        Self { classes: self.classes.separate(), ..self.clone() }
    }

    /// Returns the established sessions with their configured families.
    fn sessions(&self) -> BTreeMap<String, (PeerId, Vec<Family>)> {
        let up = self.core.peers(self.now).filter(|peer| peer.state == State::Established);
        up.map(|peer| (peer.name.to_string(), (peer.id, self.families(peer.id)))).collect()
    }

    fn families(&self, id: PeerId) -> Vec<Family> {
        self.peers.config(id).map(|config| config.families.clone()).unwrap_or_default()
    }

    /// Fills the known addresses of unnumbered peers into an intent; those without one have no session.
    /// Without a running speaker, the name of a key file stands for the key.
    fn with_addresses(&self, intent: &RoutingIntent) -> RoutingIntent {
        let mut resolved = intent.clone();
        for (name, peer) in &intent.peers {
            if let (true, Some(Password::File(file))) = (self.offline, &peer.password) {
                let password = Some(Password::Text(file.display().to_string().chars().take(40).collect()));
                resolved.peers.insert(name.clone(), PeerIntent { password, ..peer.clone() });
            }
            if peer.interface.is_none() {
                continue;
            }
            match self.given.peers.get(name).filter(|known| known.interface == peer.interface) {
                Some(known) => {
                    let mut remote = known.remote;
                    remote.set_port(peer.remote.port());
                    resolved.peers.insert(name.clone(), PeerIntent { remote, ..peer.clone() });
                }
                None => {
                    resolved.peers.remove(name);
                }
            }
        }
        resolved
    }

    /// Applies an intent in the order of the running speaker.
    fn apply(&mut self, new: &RoutingIntent, changes: &mut BgpChanges) {
        let old = Arc::clone(&self.given);
        let identity = |intent: &RoutingIntent| (intent.asn, intent.router_id);
        if identity(&old) != identity(new) {
            changes.identity = true;
            changes.not_judged.push(
                "with another AS or router id every session is reset: what is announced and used after it is compared as if it were \
                 the same"
                    .to_owned(),
            );
        }
        if old.multipath != new.multipath {
            let kept = RoutingIntent { asn: old.asn, router_id: old.router_id, ..new.clone() };
            self.give(Input::Global(global(&kept, &self.options)));
        }
        if old.view != new.view || !new.addresses.differences(&old.addresses).is_empty() {
            self.give(Input::Policy(self.policy(new)));
        }
        let configs: BTreeMap<PeerId, PeerConfig> =
            self.peers.configs().map(|(id, config)| (id, config.clone())).collect();
        let ranges: BTreeMap<RangeId, RangeConfig> =
            self.ranges.configs().map(|(id, config)| (id, config.clone())).collect();
        let secrets: &Path = &self.options.secrets;
        let of_peers = self.peers.follow(&new.peers, secrets, &self.classes);
        let of_ranges = self.ranges.follow(&new.ranges, secrets, &self.classes);
        for change in of_ranges {
            match change {
                RangeChange::Set(id, config) => self.change_range(id, ranges.get(&id), *config, changes),
                RangeChange::Remove(id) => self.give(Input::RemoveRange(id)),
                RangeChange::Secure(..) | RangeChange::Problem(_) => {}
            }
        }
        let mut come = Vec::new();
        for change in of_peers {
            match change {
                Change::Set(id, config) => match configs.get(&id) {
                    Some(old) => self.change(id, old, *config, changes),
                    None => {
                        self.give(Input::Peer(id, config.clone()));
                        come.push((id, *config));
                    }
                },
                Change::Remove(id) => self.give(Input::RemovePeer(id)),
                Change::Reset(id) => changes.reset.extend(self.peers.name(id).map(ToString::to_string)),
                Change::Reconnect(_) | Change::Secure(..) | Change::Problem(_) => {}
            }
        }
        let local = originations(Some(&old), new, ChangeId::default());
        if !local.is_empty() {
            self.give(Input::Local(&local));
        }
        self.given = Arc::new(new.clone());
        self.rest();
        for (id, config) in come.iter().filter(|(_, config)| config.shutdown.is_none()) {
            self.establish(*id, config);
        }
        self.rest();
        let up =
            |id: &PeerId| self.core.peer(*id, self.now).is_some_and(|peer| peer.state == State::Established);
        for (_, config) in come.iter().filter(|(id, config)| config.shutdown.is_none() && !up(id)) {
            changes
                .not_judged
                .push(format!("what {} would be sent: no session could be made in the copy", config.name));
        }
    }

    /// Changes the configuration of a peer; a session that would be reset continues.
    fn change(&mut self, id: PeerId, old: &PeerConfig, new: PeerConfig, changes: &mut BgpChanges) {
        let ends = old.shutdown.is_none() && new.shutdown.is_some();
        if ends || !old.needs_reset(&new) {
            self.give(Input::Peer(id, Box::new(new)));
            return;
        }
        changes.reset.insert(new.name.to_string());
        if new.families.iter().any(|family| !old.families.contains(family)) {
            changes.not_judged.push(format!("routes of the family that {} would have, too", new.name));
        }
        if (new.remote, new.asn, new.local_asn) != (old.remote, old.asn, old.local_asn) {
            changes.not_judged.push(format!(
                "{} would be another neighbour, or be of another AS: its routes are compared as if it were the same",
                new.name
            ));
        }
        self.give(Input::Peer(id, Box::new(new.with_session_of(old))));
    }

    /// Changes the configuration of a range; sessions that would be reset continue.
    fn change_range(
        &mut self,
        id: RangeId,
        old: Option<&RangeConfig>,
        mut new: RangeConfig,
        changes: &mut BgpChanges,
    ) {
        if let Some(old) = old
            && old.peer.needs_reset(&new.peer)
        {
            let of_range = self.core.peers(self.now).filter(|peer| peer.range == Some(id));
            changes.reset.extend(of_range.map(|peer| peer.name.to_string()));
            new.peer = new.peer.with_session_of(&old.peer);
        }
        self.give(Input::Range(id, Box::new(new)));
    }

    fn policy(&self, intent: &RoutingIntent) -> PolicyHandle {
        let (view, held) = (Arc::clone(&intent.view), intent.addresses.clone());
        PolicyHandle(Arc::new(ViewPolicy::new(view, held, self.classes.clone())))
    }

    fn give(&mut self, input: Input<'_>) {
        self.core.handle(input, self.now);
    }

    /// Runs until the copy is idle: no event is pending and every session has received all its data.
    fn rest(&mut self) {
        for _ in 0..WORK_MAX {
            while let Some(event) = self.core.poll_event() {
                // Every next hop counts as reachable; the real resolution is only known after the change.
                if let Event::TrackNextHop(hop) = event {
                    self.give(Input::NextHop(hop, NextHopState::Reachable { metric: 0, on_link: true }));
                }
            }
            while self.core.drop_best(usize::MAX) {}
            let conns: Vec<ConnId> = self.core.peers(self.now).filter_map(|peer| peer.conn).collect();
            let mut sent = false;
            for conn in conns {
                let mut octets = Vec::new();
                let more = self.core.poll_transmit(conn, &mut octets, ROOM, self.now) == Transmit::More;
                sent |= more || !octets.is_empty();
            }
            let due = self.core.poll_timeout().is_some_and(|at| at <= self.now);
            if !sent && !due {
                return;
            }
            self.give(Input::Tick);
        }
    }

    /// Establishes the session of a peer with a simulated neighbour without routes.
    fn establish(&mut self, id: PeerId, config: &PeerConfig) {
        let own_asn = config.local_asn.unwrap_or(self.given.asn);
        let asn = if config.asn == ANY_EXTERNAL { SOME_AS } else { config.asn };
        let local = own_address(config);
        let mut far_config = PeerConfig::new(SocketAddr::new(local, config.remote.port()), own_asn);
        far_config.families.clone_from(&config.families);
        far_config.extended_messages = config.extended_messages;
        far_config.add_path_receive = config.add_path_send > 0;
        far_config.role = config.role.and_then(other_role);
        let router_id = RouterId(self.given.router_id.wrapping_add(1).max(1));
        let mut far = Speaker::new(GlobalConfig::new(asn, router_id), PolicyHandle::accept_all(), self.now);
        let (far_id, far_conn) = (PeerId(1), ConnId(1));
        let conn = ConnId(self.connections);
        self.connections += 1;
        far.handle(Input::Peer(far_id, Box::new(far_config)), self.now);
        far.handle(Input::LocalReady, self.now);
        let near = SocketAddr::new(local, config.remote.port());
        far.handle(
            Input::Dialled { peer: far_id, conn: far_conn, local: config.remote, remote: near },
            self.now,
        );
        self.give(Input::Accepted { conn, local: near, remote: config.remote });
        // Exchange of OPEN, KEEPALIVE and the messages that follow at once.
        for _ in 0..16 {
            let (mut out, mut back) = (Vec::new(), Vec::new());
            far.poll_transmit(far_conn, &mut out, ROOM, self.now);
            if !out.is_empty() {
                self.give(Input::Data(conn, &out));
            }
            let up = self.core.peer(id, self.now).is_some_and(|peer| peer.state == State::Established);
            if up {
                return;
            }
            self.core.poll_transmit(conn, &mut back, ROOM, self.now);
            if !back.is_empty() {
                far.handle(Input::Data(far_conn, &back), self.now);
            }
        }
    }

    /// Returns the relevant routes of a table; of received routes, those that import policy accepts.
    fn routes(&self, table: RouteTable, families: &[Family]) -> Routes {
        let mut found = Routes::new();
        for family in families {
            let query = RouteQuery { table, matching: RouteMatch::All(*family) };
            let mut from = Some(0);
            while let Some(place) = from {
                let (part, next) = self.core.scan(&query, place, SLICE, usize::MAX);
                for route in part {
                    let taken = |path: &PathInfo| !matches!(path.unusable, Some(Unusable::Filtered(_)));
                    let paths = route.paths.into_iter().filter(taken);
                    let mut paths: Vec<_> = paths.map(|path| (path.path_id, path.attributes)).collect();
                    paths.sort_by_key(|(id, _)| *id);
                    if !paths.is_empty() {
                        found.insert(route.prefix, paths);
                    }
                }
                from = next;
            }
        }
        found
    }
}

/// Returns the local address of a session in the copy.
fn own_address(config: &PeerConfig) -> IpAddr {
    let any: IpAddr = match config.remote {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let of_node = if config.remote.is_ipv4() { config.local_v4 } else { config.local_v6 };
    config.local.or(of_node).unwrap_or(any)
}

/// Returns the role of the remote side (RFC 9234, section 4.2).
fn other_role(role: Role) -> Option<Role> {
    Some(match role {
        Role::Provider => Role::Customer,
        Role::Customer => Role::Provider,
        Role::Peer => Role::Peer,
        Role::RouteServer => Role::RouteServerClient,
        Role::RouteServerClient => Role::RouteServer,
        Role::Other(_) => return None,
    })
}
