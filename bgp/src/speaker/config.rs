//! Configuration and operator commands: peers, ranges, global configuration, resets, maintenance, shutdown.

use std::net::SocketAddr;

use tortie_net::ScopedAddr;

use super::Speaker;
use crate::api::{
    ConnId, Dial, Down, DownCode, Drain, Event, GlobalConfig, PeerConfig, PeerId, RangeConfig, RangeId, Reset,
};
use crate::rib::reevaluate::Job;
use crate::rib::source::{Source, SourceFamily};
use crate::session::connection::Conn;
use crate::session::fsm;
use crate::session::open;
use crate::session::peer::{Dialling, Peer};
use crate::session::peer_table::Admission;
use crate::session::range::peer_of;
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::{ErrorCode, Notification};

/// Configured peers.
impl Speaker {
    pub(super) fn set_peer(&mut self, id: PeerId, config: PeerConfig) {
        match self.peers.number(id) {
            Some(number) => self.change_peer(number, config),
            None => {
                self.remove_dynamic_at(ScopedAddr::of(config.remote));
                self.insert_peer(id, config, None);
            }
        }
    }

    /// Adds a peer: dynamic with a range, configured without.
    pub(super) fn insert_peer(&mut self, id: PeerId, config: PeerConfig, range: Option<RangeId>) -> u32 {
        let local_asn = open::local_asn(&self.global, &config);
        let number = self.ribs.insert_source(Source {
            id,
            name: config.name.clone(),
            address: ScopedAddr::of(config.remote),
            asn: config.asn,
            local_asn,
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
        self.ribs.count_transit(&config, local_asn, true);
        self.ribs.set_client(number, config.reflector_client);
        let mut peer = Peer::new(id, config, self.scheduler.now());
        peer.drain = self.drain;
        peer.range = range;
        self.peers.insert(number, peer);
        self.start(number, fsm::Event::ManualStart, false);
        if range.is_none() {
            self.report_state(number, None);
        }
        self.deferral.schedule_check(&mut self.scheduler);
        number
    }

    fn change_peer(&mut self, number: u32, config: PeerConfig) {
        let Some(peer) = self.peers.get_mut(number) else { return };
        let old = std::mem::replace(&mut peer.config, config.clone());
        if old == config {
            return;
        }
        if let (None, Some(text)) = (&old.shutdown, &config.shutdown) {
            let cease = Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, text);
            self.stop_peer(number, &cease, true, DownCode::Admin, "shut down by an administrator");
        }
        let (old_address, address) = (ScopedAddr::of(old.remote), ScopedAddr::of(config.remote));
        let (old_asn, local_asn) =
            (open::local_asn(&self.global, &old), open::local_asn(&self.global, &config));
        let reset = old.needs_reset(&config);
        if reset {
            if old_address != address {
                self.remove_dynamic_at(address);
            }
            let cease = Notification::new(ErrorCode::CONFIGURATION_CHANGE);
            // With another address or AS it is another peer, whose routes are not kept.
            let hard = (old_address, old.asn, old_asn) != (address, config.asn, local_asn);
            self.stop_peer(number, &cease, hard, DownCode::Config, "the configuration changed");
            self.peers.readdress(number, old_address, address);
        }
        self.ribs.count_transit(&old, old_asn, false);
        self.ribs.count_transit(&config, local_asn, true);
        let (mut reimport, mut reexport) = (false, old.reflector_client != config.reflector_client);
        if let Some(source) = self.ribs.source_mut(number) {
            // Export policy sees the class and name of the peer that sent a route.
            reexport |= source.class != config.policy_class || source.name != config.name;
            reimport = source.class != config.policy_class
                || source.allow_own_as != config.allow_own_as
                || source.ebgp_policy != config.ebgp_policy;
            source.name = config.name.clone();
            source.address = address;
            // With [`ANY_EXTERNAL`](crate::ANY_EXTERNAL), the AS number in the peer's OPEN is kept.
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
            self.ribs.set_client(number, config.reflector_client);
        }
        reimport |= self.set_own_addresses(number);
        if reexport {
            self.ribs.request(Job::Reexport);
        }
        if reimport {
            self.ribs.reimport(number);
        }
        if old.dial != config.dial || old.shutdown.is_some() != config.shutdown.is_some() || reset {
            if let Some(peer) = self.peers.get_mut(number)
                && peer.dialling != Dialling::Connecting
            {
                peer.dialling = Dialling::No;
                peer.clear_holds();
            }
            self.start(number, fsm::Event::ManualStart, false);
        }
        self.change_keepalive(number, &old, &config);
        self.regroup(number);
        self.check_limits(number);
        self.report_state(number, None);
        // The deferral does not wait for a peer that is shut down.
        self.deferral.schedule_check(&mut self.scheduler);
    }

    /// Applies a changed keepalive interval at once: it is not part of the OPEN.
    fn change_keepalive(&mut self, number: u32, old: &PeerConfig, new: &PeerConfig) {
        if old.keepalive == new.keepalive {
            return;
        }
        let Some(id) = self.peers.get(number).and_then(|p| p.session) else { return };
        let Some(conn) = self.connections.get_mut(id).filter(|c| !c.hold.is_zero()) else { return };
        let most = conn.hold / 3;
        conn.keepalive = new.keepalive.filter(|k| !k.is_zero()).unwrap_or(most).min(most);
        let interval = self.scheduler.jittered(conn.keepalive);
        conn.keepalive_at = Some(self.scheduler.set_after(Timer::Keepalive(id), interval));
    }

    pub(super) fn remove_peer(&mut self, id: PeerId) {
        let Some(number) = self.peers.number(id) else { return };
        let cease = Notification::new(ErrorCode::DECONFIGURED);
        self.stop_peer(number, &cease, true, DownCode::Config, "the peer is no longer configured");
        let Some(peer) = self.peers.remove(id) else { return };
        self.ribs.count_transit(&peer.config, open::local_asn(&self.global, &peer.config), false);
        self.ribs.set_client(number, None);
        if peer.range.is_some() {
            debug_assert!(peer.conns().next().is_none());
            self.events.push_back(Event::DynamicPeerGone(id));
        }
        self.ribs.remove_source(number, peer.was_up);
        self.deferral.schedule_check(&mut self.scheduler);
    }

    /// Ends all connections of a peer with this Cease. `hard`: as a Hard Reset (RFC 8538), after which
    /// neither end keeps routes.
    fn stop_peer(&mut self, number: u32, cease: &Notification, hard: bool, code: DownCode, text: &str) {
        let event = if code == DownCode::Bfd { fsm::Event::AutomaticStop } else { fsm::Event::ManualStop };
        for conn in self.connections_of(number) {
            let down = Down { code, text: text.into(), notification: Some(cease.code.pair()), helper: false };
            let both = self.connections.get(conn).is_some_and(Conn::has_graceful_notification);
            let cease = cease.clone();
            let cease = if hard && both { cease.into_hard_reset() } else { cease };
            self.stop(conn, event, Some(cease), &down);
        }
        if hard {
            self.drop_all_stale(number);
        }
    }

    fn connections_of(&self, number: u32) -> Vec<ConnId> {
        self.peers.get(number).map(|p| p.conns().collect()).unwrap_or_default()
    }

    /// Removes all stale routes of a peer after a hard end.
    fn drop_all_stale(&mut self, number: u32) {
        if let Some(mut stale) = self.stale_routes(number) {
            stale.drop_all();
        }
        self.peers.note_idle(number);
    }

    /// Moves a peer to other update groups where its changed configuration requires it.
    fn regroup(&mut self, number: u32) {
        if self.update_groups().regroup(number)
            && let Some(conn) = self.peers.get(number).and_then(|p| p.session)
        {
            self.want_write(conn);
        }
    }
}

/// Ranges and their dynamic peers.
impl Speaker {
    /// Creates the dynamic peer of a connection from an address without a configured peer. `None`: the
    /// connection is refused or closed.
    pub(super) fn accepted_by_range(&mut self, conn: ConnId, remote: SocketAddr) -> Option<u32> {
        let admission = if self.stopping {
            Admission::NoRange
        } else {
            self.peers.admit(remote, self.ribs.source_count())
        };
        match admission {
            Admission::NoRange => {
                self.events.push_back(Event::Close(conn));
                None
            }
            Admission::Refused(notification) => {
                self.refuse_connection(conn, &notification);
                None
            }
            Admission::Peer(peer, range, config) => {
                let (name, remote) = (config.name.clone(), config.remote);
                self.events.push_back(Event::DynamicPeer { peer, range, name, remote });
                let number = self.insert_peer(peer, *config, Some(range));
                self.peers.join_range(number, range);
                Some(number)
            }
        }
    }

    pub(super) fn set_range(&mut self, id: RangeId, config: RangeConfig) {
        let new = config.clone();
        let old = self.peers.ranges_mut().set(id, config);
        if old.as_ref() == Some(&new) {
            return;
        }
        if let Some(old) = &old {
            self.ribs.count_transit(&old.peer, open::local_asn(&self.global, &old.peer), false);
        }
        self.ribs.count_transit(&new.peer, open::local_asn(&self.global, &new.peer), true);
        // The cluster id of a range counts even without peers, so that joining and leaving peers cause no
        // reimport.
        self.ribs.change_cluster(old.and_then(|o| o.peer.reflector_client), new.peer.reflector_client);
        for peer_id in self.peers.of_range(id) {
            let number = self.peers.number(peer_id);
            let Some((number, peer)) = number.and_then(|n| Some((n, self.peers.get(n)?))) else { continue };
            let config = peer_of(&new, peer.config.remote);
            if peer.config.needs_reset(&config) {
                self.remove_peer(peer_id);
            } else {
                self.change_peer(number, config);
            }
        }
        for stray in self.peers.out_of_range() {
            self.remove_peer(stray);
        }
        let most = usize::try_from(new.max_peers).unwrap_or(usize::MAX);
        let mut left = self.peers.of_range(id);
        left.sort_unstable();
        // The newest peers are removed first.
        for id in left.split_off(left.len().min(most)) {
            self.remove_peer(id);
        }
    }

    pub(super) fn remove_range(&mut self, id: RangeId) {
        if self.peers.ranges().get(id).is_none() {
            return;
        }
        for peer in self.peers.of_range(id) {
            self.remove_peer(peer);
        }
        if let Some(range) = self.peers.ranges_mut().remove(id) {
            let config = &range.config.peer;
            self.ribs.count_transit(config, open::local_asn(&self.global, config), false);
            self.ribs.change_cluster(config.reflector_client, None);
        }
        self.deferral.schedule_check(&mut self.scheduler);
    }

    /// Removes the dynamic peer at an address that now has a configured peer, which takes precedence.
    fn remove_dynamic_at(&mut self, address: ScopedAddr) {
        for id in self.peers.dynamic_at(address) {
            self.remove_peer(id);
        }
    }
}

/// Global configuration and operator commands.
impl Speaker {
    pub(super) fn set_global(&mut self, global: GlobalConfig) {
        let old = std::mem::replace(&mut self.global, global);
        let (asn, router_id) = (self.global.asn, self.global.router_id);
        self.ribs.set_multipath(self.global.multipath);
        if (old.asn, old.router_id) == (asn, router_id) {
            return;
        }
        self.ribs.set_identity(asn, router_id.0);
        self.ribs.clear_transit();
        for number in self.peers.numbers() {
            let Some(config) = self.peers.get(number).map(|p| p.config.clone()) else { continue };
            let local_asn = open::local_asn(&self.global, &config);
            let before = self.ribs.source(number).map(|s| s.local_asn);
            if old.router_id != router_id || before != Some(local_asn) {
                let text = "AS or router id changed";
                let cease = Notification::new(ErrorCode::CONFIGURATION_CHANGE);
                self.stop_peer(number, &cease, true, DownCode::Config, text);
            }
            if let Some(source) = self.ribs.source_mut(number) {
                source.local_asn = local_asn;
            }
            self.ribs.count_transit(&config, local_asn, true);
        }
        // A range counts as a peer: its dynamic peers may be sent learned routes.
        for (_, range) in self.peers.ranges().iter() {
            let config = &range.config.peer;
            self.ribs.count_transit(config, open::local_asn(&self.global, config), true);
        }
        self.ribs.evaluate_all();
    }

    pub(super) fn reset(&mut self, id: PeerId, reset: Reset) {
        let Some(number) = self.peers.number(id) else { return };
        match reset {
            Reset::Hard(text) => {
                if let Some(peer) = self.peers.get_mut(number) {
                    peer.clear_holds();
                }
                let cease = Notification::with_text(ErrorCode::ADMIN_RESET, &text);
                self.stop_peer(number, &cease, true, DownCode::Admin, "reset by an administrator");
                self.start(number, fsm::Event::ManualStart, false);
            }
            Reset::SoftIn => self.request_refresh(number),
            Reset::SoftOut => {
                for family in Family::ALL {
                    self.refresh_out(number, family);
                }
            }
        }
    }

    /// Starts or ends maintenance.
    pub(super) fn set_drain(&mut self, id: Option<PeerId>, drain: Drain) {
        if id.is_none() {
            self.drain = drain;
        }
        let numbers = match id {
            Some(id) => self.peers.number(id).into_iter().collect(),
            None => self.peers.numbers_by_id(),
        };
        for number in numbers {
            if let Some(peer) = self.peers.get_mut(number) {
                peer.drain = drain;
            }
            self.regroup(number);
            // The announcements move incoming traffic; this moves outgoing traffic (RFC 8326 4.2).
            let drained = drain != Drain::Off;
            if let Some(source) = self.ribs.source_mut(number)
                && std::mem::replace(&mut source.drained, drained) != drained
                && source.ebgp()
            {
                self.ribs.reimport(number);
            }
        }
    }

    /// Handles [`Input::BfdDown`](crate::Input::BfdDown) (RFC 5882 3.2 and 4.3).
    pub(super) fn bfd_down(&mut self, id: PeerId, text: &str, independent: bool) {
        let Some(number) = self.peers.number(id) else { return };
        let Some(peer) = self.peers.get(number) else { return };
        if peer.session.is_some() {
            let cease = Notification::new(ErrorCode::BFD_DOWN);
            self.stop_peer(number, &cease, true, DownCode::Bfd, &format!("BFD: {text}"));
        } else if independent {
            self.drop_all_stale(number);
        }
    }

    /// Handles [`Input::LinkDown`](crate::Input::LinkDown).
    pub(super) fn link_down(&mut self, id: PeerId, text: &str) {
        let Some(number) = self.peers.number(id) else { return };
        for conn in self.connections_of(number) {
            let down =
                Down { code: DownCode::LinkDown, text: text.into(), notification: None, helper: false };
            self.stop(conn, fsm::Event::TcpConnectionFails, None, &down);
        }
        self.drop_all_stale(number);
    }

    /// Handles [`Input::NotForwarding`](crate::Input::NotForwarding).
    pub(super) fn not_forwarding(&mut self, id: PeerId) {
        let Some(number) = self.peers.number(id) else { return };
        if self.peers.get(number).is_some_and(|peer| peer.session.is_none()) {
            self.drop_all_stale(number);
        }
    }

    /// Handles [`Input::LinkUp`](crate::Input::LinkUp).
    pub(super) fn link_up(&mut self, id: PeerId) {
        let now = self.scheduler.now();
        let Some(number) = self.peers.number(id) else { return };
        let Some(peer) = self.peers.get_mut(number) else { return };
        let planned = matches!(peer.dialling, Dialling::At(_));
        if planned && peer.dial_holds().all(|at| at <= now) && matches!(peer.config.dial, Dial::Now) {
            peer.failures = 0;
            peer.dialling = Dialling::At(now);
            self.scheduler.set(Timer::ConnectRetry(number), now);
        }
    }

    pub(super) fn shutdown(&mut self, graceful: bool, text: &str) {
        self.stopping = true;
        for conn in self.connections.ids() {
            let notification = (!graceful).then(|| Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, text));
            let down = Down {
                code: DownCode::Admin,
                text: "shutting down".into(),
                notification: notification.as_ref().map(|n| n.code.pair()),
                helper: false,
            };
            self.stop(conn, fsm::Event::AutomaticStop, notification, &down);
        }
        for number in self.peers.numbers() {
            if let Some(peer) = self.peers.get_mut(number) {
                peer.dialling = Dialling::No;
            }
            self.report_state(number, None);
        }
    }
}
