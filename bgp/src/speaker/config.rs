//! What the embedder wants: peers, the global configuration, policy, local routes.

use std::net::IpAddr;

use tortie_net::Cidr;
use tortie_net::link_local::address_of;

use super::Speaker;
use super::sessions::pair;
use crate::api::{
    Dial, Down, DownCode, Drain, GlobalConfig, NextHopState, Origination, PeerConfig, PeerId, PolicyHandle,
    RangeId, Reset, Tag,
};
use crate::attr::Attributes;
use crate::rib::Shared;
use crate::rib::entry::{Key, LocalRoute};
use crate::rib::import::ACCEPTED;
use crate::rib::next_hops::NextHopUpdate;
use crate::rib::reevaluate::Job;
use crate::rib::source::{Keep, LOCAL, Source, SourceFamily};
use crate::ribs::family::FamilyRib;
use crate::session::capability_fallback::CapabilityFallback;
use crate::session::connection::Conn;
use crate::session::damping::Damping;
use crate::session::timers::Timer;
use crate::session::{Dialling, Peer, Restart, open};
use crate::types::Family;
use crate::wire::{ErrorCode, Notification};

impl Speaker {
    pub(super) fn set_peer(&mut self, id: PeerId, config: PeerConfig) {
        match self.ids.get(&id).copied() {
            Some(number) => self.change_peer(number, config),
            None => self.add_peer(id, config),
        }
    }

    fn add_peer(&mut self, id: PeerId, config: PeerConfig) {
        self.remove_dynamic_at(address_of(config.remote));
        self.insert_peer(id, config, None);
    }

    /// Adds a peer, which came from this range or is configured.
    pub(super) fn insert_peer(&mut self, id: PeerId, config: PeerConfig, range: Option<RangeId>) -> u32 {
        let number = self.shared.sources.insert(Source {
            id,
            name: config.name.clone(),
            address: address_of(config.remote),
            asn: config.asn,
            local_asn: open::local_asn(&self.global, &config),
            class: config.policy_class,
            client: None,
            reflection: 0,
            allow_own_as: config.allow_own_as,
            role: config.role,
            ebgp_policy: config.ebgp_policy,
            drained: self.drain != Drain::Off,
            router_id: 0,
            own: smallvec::SmallVec::new(),
            families: [SourceFamily::default(); 2],
            removed: false,
        });
        self.ids.insert(id, number);
        self.by_address.entry(address_of(config.remote)).or_default().push(number);
        let client = config.reflector_client;
        let mut peer = Peer::new(id, config, self.now);
        peer.drain = self.drain;
        peer.range = range;
        self.peers.insert(number, peer);
        self.count_transit(number, true);
        self.set_client(number, client);
        self.plan_dial(number, false);
        if range.is_none() {
            self.report_state(number, None);
        }
        self.schedule_check();
        number
    }

    pub(super) fn change_peer(&mut self, number: u32, config: PeerConfig) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let old = std::mem::replace(&mut peer.config, config.clone());
        if old == config {
            return;
        }
        if let (None, Some(text)) = (&old.shutdown, &config.shutdown) {
            let cease = Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, text);
            self.end_sessions(number, &cease, true, DownCode::Admin, "shut down by an administrator");
        }
        let reset = open::needs_reset(&old, &config);
        if reset {
            if address_of(old.remote) != address_of(config.remote) {
                self.remove_dynamic_at(address_of(config.remote));
            }
            let who = |c: &PeerConfig| (address_of(c.remote), c.asn, open::local_asn(&self.global, c));
            let cease = Notification::new(ErrorCode::CONFIGURATION_CHANGE);
            // What another one said is not worth keeping.
            let hard = who(&old) != who(&config);
            self.end_sessions(number, &cease, hard, DownCode::Config, "the configuration changed");
            self.forget_address(number, address_of(old.remote));
            self.by_address.entry(address_of(config.remote)).or_default().push(number);
        }
        let local_asn = open::local_asn(&self.global, &config);
        self.count_transit_of(&old, false);
        self.count_transit(number, true);
        let (mut reimport, mut reexport) = (false, old.reflector_client != config.reflector_client);
        if let Some(source) = self.shared.sources.get_mut(number) {
            // Export policy sees whom a route came from.
            reexport |= source.class != config.policy_class || source.name != config.name;
            reimport = source.class != config.policy_class
                || source.allow_own_as != config.allow_own_as
                || source.ebgp_policy != config.ebgp_policy;
            source.name = config.name.clone();
            source.address = address_of(config.remote);
            // What a peer of any AS said stays.
            if old.asn != config.asn {
                source.asn = config.asn;
            }
            source.local_asn = local_asn;
            source.class = config.policy_class;
            source.allow_own_as = config.allow_own_as;
            source.role = config.role;
            source.ebgp_policy = config.ebgp_policy;
        }
        if old.reflector_client != config.reflector_client {
            self.set_client(number, config.reflector_client);
        }
        reimport |= self.set_own_addresses(number);
        if reexport {
            self.v4.request(Job::Reexport);
            self.v6.request(Job::Reexport);
        }
        if reimport {
            self.reimport(number);
        }
        if old.dial != config.dial || old.shutdown.is_some() != config.shutdown.is_some() || reset {
            if let Some(peer) = self.peers.get_mut(&number)
                && peer.dialling != Dialling::Now
            {
                peer.dialling = Dialling::No;
                peer.failures = 0;
                peer.penalty_until = None;
                peer.damping = Damping::default();
                peer.unwanted_until = None;
                peer.capability_fallback = CapabilityFallback::default();
            }
            self.plan_dial(number, false);
        }
        self.change_keepalive(number, &old, &config);
        self.regroup(number);
        self.check_limit(number);
        self.report_state(number, None);
        // Who is shut down is not waited for.
        self.schedule_check();
    }

    /// The keepalive interval stands in no OPEN and changes at once.
    fn change_keepalive(&mut self, number: u32, old: &PeerConfig, new: &PeerConfig) {
        if old.keepalive == new.keepalive {
            return;
        }
        let Some(id) = self.peers.get(&number).and_then(|p| p.session) else { return };
        let Some(conn) = self.conns.get_mut(&id).filter(|c| !c.hold.is_zero()) else { return };
        let most = conn.hold / 3;
        conn.keepalive = new.keepalive.filter(|k| !k.is_zero()).unwrap_or(most).min(most);
        let at = self.now + self.jitter.apply(conn.keepalive);
        conn.keepalive_at = Some(at);
        self.timers.set(Timer::Keepalive(id), at);
    }

    pub(super) fn remove_peer(&mut self, id: PeerId) {
        let Some(number) = self.ids.remove(&id) else { return };
        let cease = Notification::new(ErrorCode::DECONFIGURED);
        self.end_sessions(number, &cease, true, DownCode::Config, "the peer is no longer configured");
        self.count_transit(number, false);
        self.set_client(number, None);
        let mut was_up = true;
        if let Some(peer) = self.peers.remove(&number) {
            self.forget_address(number, address_of(peer.config.remote));
            was_up = peer.was_up;
            self.left_range(number, &peer);
        }
        if !was_up {
            // It never had a route.
            self.shared.sources.remove(number);
            self.schedule_check();
            return;
        }
        if let Some(source) = self.shared.sources.get_mut(number) {
            source.removed = true;
        }
        for family in Family::ALL {
            // Also what was kept from an earlier session.
            if let Some(source) = self.shared.sources.get_mut(number) {
                source.family_mut(family).end(Keep::Nothing);
            }
            self.purge(number, family);
        }
        self.schedule_check();
    }

    fn forget_address(&mut self, number: u32, address: IpAddr) {
        if let Some(list) = self.by_address.get_mut(&address) {
            list.retain(|n| *n != number);
            if list.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }

    /// Ends all connections of a peer with this Cease. `hard`: neither end is to keep routes (RFC 8538).
    fn end_sessions(&mut self, number: u32, cease: &Notification, hard: bool, code: DownCode, text: &str) {
        let conns: Vec<_> = self.peers.get(&number).map(|p| p.conns().collect()).unwrap_or_default();
        for conn in conns {
            let down = Down { code, text: text.into(), notification: Some(pair(cease.code)), helper: false };
            let both = self.conns.get(&conn).is_some_and(Conn::has_graceful_notification);
            let cease = cease.clone();
            self.drop_conn(conn, Some(if hard && both { cease.into_hard_reset() } else { cease }), &down);
        }
        if hard {
            self.drop_all_stale(number);
        }
    }

    /// Not even stale routes outlive a hard end.
    fn drop_all_stale(&mut self, number: u32) {
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.restart = Restart::No;
        }
        for family in Family::ALL {
            self.drop_stale(number, family);
        }
        self.may_fade(number);
    }

    /// Import decisions about this peer's routes are made anew.
    pub(super) fn reimport(&mut self, number: u32) {
        if let Some(source) = self.shared.sources.get_mut(number) {
            for family in &mut source.families {
                family.reimport = true;
            }
        }
        self.v4.request(Job::Reimport);
        self.v6.request(Job::Reimport);
    }

    pub(super) fn set_global(&mut self, global: GlobalConfig) {
        let old = std::mem::replace(&mut self.global, global);
        let (asn, router_id) = (self.global.asn, self.global.router_id);
        self.shared.multipath = self.global.multipath;
        if old.multipath != self.global.multipath {
            self.v4.request(Job::Decide);
            self.v6.request(Job::Decide);
        }
        if (old.asn, old.router_id) == (asn, router_id) {
            return;
        }
        self.shared.asn = asn;
        self.shared.router_id = router_id.0;
        self.transit_peers = 0;
        let numbers: Vec<u32> = self.peers.keys().copied().collect();
        for number in numbers {
            let Some(local_asn) = self.peers.get(&number).map(|p| open::local_asn(&self.global, &p.config))
            else {
                continue;
            };
            let before = self.shared.sources.get(number).map(|s| s.local_asn);
            if old.router_id != router_id || before != Some(local_asn) {
                let text = "AS or router id changed";
                let cease = Notification::new(ErrorCode::CONFIGURATION_CHANGE);
                self.end_sessions(number, &cease, true, DownCode::Config, text);
            }
            if let Some(source) = self.shared.sources.get_mut(number) {
                source.local_asn = local_asn;
            }
            self.count_transit(number, true);
        }
        self.count_ranges();
        self.walk_all();
    }

    pub(super) fn set_policy(&mut self, policy: PolicyHandle) {
        self.shared.policy = policy;
        self.walk_all();
    }

    pub(super) fn set_policy_about(&mut self, policy: PolicyHandle, prefixes: &[Cidr]) {
        self.shared.policy = policy;
        let (mut v4, mut v6) = (false, false);
        for prefix in prefixes {
            match prefix.addr() {
                IpAddr::V4(a) => v4 |= self.v4.ask_again(&mut self.shared, (u32::from(a), prefix.len())),
                IpAddr::V6(a) => v6 |= self.v6.ask_again(&mut self.shared, (u128::from(a), prefix.len())),
            }
        }
        for (family, asked) in [(Family::Ipv4Unicast, v4), (Family::Ipv6Unicast, v6)] {
            if asked {
                self.monitor_reimported(family);
            }
        }
    }

    /// All decisions of policy are made anew.
    fn walk_all(&mut self) {
        self.v4.reevaluation.reimport_all = true;
        self.v6.reevaluation.reimport_all = true;
        for job in [Job::Reimport, Job::Reexport] {
            self.v4.request(job);
            self.v6.request(job);
        }
    }

    pub(super) fn set_local(&mut self, changes: &[(Cidr, Option<Origination>)]) {
        for (prefix, change) in changes {
            match prefix.addr() {
                IpAddr::V4(a) => {
                    originate(
                        &mut self.v4,
                        &mut self.shared,
                        (u32::from(a), prefix.len()),
                        change.as_ref(),
                        a.into(),
                    );
                }
                IpAddr::V6(a) => {
                    originate(
                        &mut self.v6,
                        &mut self.shared,
                        (u128::from(a), prefix.len()),
                        change.as_ref(),
                        a.into(),
                    );
                }
            }
        }
    }

    pub(super) fn set_next_hop(&mut self, address: IpAddr, state: NextHopState) {
        match self.shared.next_hops.set(address, state) {
            NextHopUpdate::Same => {}
            NextHopUpdate::Slots(slots) => {
                for (family, slot) in slots {
                    match family {
                        Family::Ipv4Unicast => self.v4.table.review(&mut self.shared, slot),
                        Family::Ipv6Unicast => self.v6.table.review(&mut self.shared, slot),
                    }
                }
            }
            NextHopUpdate::Reevaluation => {
                self.v4.request(Job::NextHopTable);
                self.v6.request(Job::NextHopTable);
            }
        }
        self.schedule_check();
    }

    pub(super) fn reset(&mut self, id: PeerId, reset: Reset) {
        let Some(number) = self.ids.get(&id).copied() else { return };
        match reset {
            Reset::Hard(text) => {
                if let Some(peer) = self.peers.get_mut(&number) {
                    peer.penalty_until = None;
                    peer.damping = Damping::default();
                    peer.unwanted_until = None;
                    peer.failures = 0;
                    peer.capability_fallback = CapabilityFallback::default();
                }
                let cease = Notification::with_text(ErrorCode::ADMIN_RESET, &text);
                self.end_sessions(number, &cease, true, DownCode::Admin, "reset by an administrator");
                self.plan_dial(number, false);
            }
            Reset::SoftIn => self.refresh_in(number),
            Reset::SoftOut => {
                for family in Family::ALL {
                    self.refresh_out(number, family);
                }
            }
        }
    }

    /// RFC 5882 3.2 and 4.3: see [`Input::BfdDown`](crate::Input::BfdDown).
    pub(super) fn bfd_down(&mut self, id: PeerId, text: &str, independent: bool) {
        let Some(number) = self.ids.get(&id).copied() else { return };
        let Some(peer) = self.peers.get(&number) else { return };
        if peer.session.is_some() {
            let cease = Notification::new(ErrorCode::BFD_DOWN);
            self.end_sessions(number, &cease, true, DownCode::Bfd, &format!("BFD: {text}"));
        } else if independent {
            self.drop_all_stale(number);
        }
    }

    /// See [`Input::LinkDown`](crate::Input::LinkDown).
    pub(super) fn link_down(&mut self, id: PeerId, text: &str) {
        let peer = self.ids.get(&id).and_then(|number| self.peers.get(number));
        let conns: Vec<_> = peer.map(|p| p.conns().collect()).unwrap_or_default();
        for conn in conns {
            let down =
                Down { code: DownCode::LinkDown, text: text.into(), notification: None, helper: false };
            self.drop_conn(conn, None, &down);
        }
    }

    /// See [`Input::LinkUp`](crate::Input::LinkUp).
    pub(super) fn link_up(&mut self, id: PeerId) {
        let Some(number) = self.ids.get(&id).copied() else { return };
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let planned = matches!(peer.dialling, Dialling::At(_));
        let wanted = [peer.penalty_until, peer.unwanted_until].into_iter().flatten().all(|at| at <= self.now);
        if planned && wanted && matches!(peer.config.dial, Dial::Now) {
            peer.failures = 0;
            peer.dialling = Dialling::At(self.now);
            self.timers.set(Timer::Dial(number), self.now);
        }
    }

    pub(super) fn shutdown(&mut self, graceful: bool, text: &str) {
        self.stopping = true;
        let conns: Vec<_> = self.conns.keys().copied().collect();
        for conn in conns {
            let mut down = Down {
                code: DownCode::Admin,
                text: "shutting down".into(),
                notification: None,
                helper: false,
            };
            let notification = (!graceful).then(|| Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, text));
            down.notification = notification.as_ref().map(|n| pair(n.code));
            self.drop_conn(conn, notification, &down);
        }
        let numbers: Vec<u32> = self.peers.keys().copied().collect();
        for number in numbers {
            if let Some(peer) = self.peers.get_mut(&number) {
                peer.dialling = Dialling::No;
            }
            self.report_state(number, None);
        }
    }
}

/// A local route comes, changes or goes.
fn originate<A: Key>(
    rib: &mut FamilyRib<A>,
    shared: &mut Shared,
    prefix: (A, u8),
    change: Option<&Origination>,
    any: IpAddr,
) {
    let Some(origination) = change else {
        if rib.table.locals.remove(&prefix).is_some() {
            rib.table.withdraw(shared, (LOCAL, 0), prefix);
        }
        return;
    };
    let mut attributes = Attributes::new(match any {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    });
    attributes.add_communities(&origination.communities);
    attributes.add_large_communities(&origination.large_communities);
    let attr = shared.attrs.intern(attributes, true, &mut shared.next_hops);
    let route = LocalRoute { kind: origination.kind };
    let old = rib.table.locals.insert(prefix, route);
    rib.table.announce(shared, (LOCAL, 0), prefix, attr, ACCEPTED);
    shared.attrs.release(attr, &mut shared.next_hops);
    if old.is_some_and(|o| o != route)
        && let Some(slot) = rib.table.find(prefix)
    {
        // Export policy may answer otherwise for the new kind.
        rib.table.touch(slot);
    }
    if origination.tag != Tag::default() {
        rib.table.tag(prefix, origination.tag);
    }
}
