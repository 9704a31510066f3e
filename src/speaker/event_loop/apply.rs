//! Applies a new intent to the BGP core: only differences, in an order that never announces or accepts under
//! missing rules (keys before connections, policy before routes).

use std::net::SocketAddr;
use std::sync::Arc;

use tortie_bgp::{Input, Reset, Speaker};
use tortie_net::{Cidr, ScopedAddr};

use super::EventLoop;
use crate::speaker::facts::SpeakerFact;
use crate::speaker::intent::{global, originations};
use crate::speaker::peers::{Change, RangeChange};
use crate::speaker::sockets::guard::Guard;
use crate::speaker::sockets::listen::Outcome;
use crate::speaker::sockets::poller::Source;
use tortie_engine::routing::{ChangeId, RoutingIntent};

impl EventLoop {
    /// Applies a new intent.
    pub(super) fn apply(&mut self, new: Arc<RoutingIntent>, change: ChangeId) {
        if new.asn == 0 || new.router_id == 0 {
            let field = if new.asn == 0 { "AS number" } else { "router id" };
            let text = format!("{field} 0 cannot be used; the last configuration stays in force");
            self.reporter.faults("BGP configuration", [text]);
            return;
        }
        self.reporter.faults("BGP configuration", []);
        let new = self.unnumbered.set_intent(new, &self.poller, self.now, &mut self.reporter);
        let old = self.intent.replace(new.clone());
        match &old {
            None => {
                let policy = self.intent.policy(&new);
                self.core = Some(Speaker::new(global(&new, &self.options), policy, self.now));
                self.identity_changed();
            }
            Some(old) => self.apply_global_and_policy(old, &new),
        }
        // Changes of routes alone do not affect sessions.
        let same = !self.has_key_files()
            && old
                .as_ref()
                .is_some_and(|old| (old.asn, &old.peers, &old.ranges) == (new.asn, &new.peers, &new.ranges));
        if !same {
            self.follow_peers();
        }
        let changes = originations(old.as_deref(), &new, change);
        if !changes.is_empty() {
            self.give(Input::Local(&changes));
        }
        self.listen();
        if !same {
            self.follow_sessions();
        }
    }

    fn apply_global_and_policy(&mut self, old: &RoutingIntent, new: &RoutingIntent) {
        let of = |i: &RoutingIntent| (i.asn, i.router_id, i.multipath.max, i.multipath.relax);
        if of(old) != of(new) {
            self.give(Input::Global(global(new, &self.options)));
            self.identity_changed();
        }
        let held = new.addresses.differences(&old.addresses);
        if old.view != new.view {
            let policy = self.intent.policy(new);
            self.give(Input::Policy(policy));
        } else if !held.is_empty() {
            let about: Vec<Cidr> = held.into_iter().map(|(addr, ..)| Cidr::host(*addr)).collect();
            let policy = self.intent.policy(new);
            self.give(Input::PolicyAbout(policy, &about));
        }
    }

    /// Reports a changed AS or router id to the monitors.
    fn identity_changed(&self) {
        if let Some(identity) = self.intent.identity() {
            self.monitors.best(identity, &[]);
        }
    }

    /// True if keys of peers or ranges are in files, which may change at any time.
    pub(super) fn has_key_files(&self) -> bool {
        self.peers.has_key_files() || self.ranges.has_key_files()
    }

    /// Reconciles BFD and link tracking with the intended sessions.
    pub(super) fn follow_sessions(&mut self) {
        self.ranges.take_moved();
        self.intent.dynamic_peers_changed();
        self.follow_bfd();
        if let Some(intent) = self.intent.whole(&self.ranges) {
            self.fallover.follow(&intent, &self.peers, &mut self.tracker, &mut self.reporter);
        }
    }

    /// Reconciles BFD with the intended sessions and the known paths.
    pub(super) fn follow_bfd(&mut self) {
        if let Some(intent) = self.intent.whole(&self.ranges) {
            self.bfd.follow(&intent, &self.peers, &mut self.tracker, &self.wakeup, &mut self.reporter);
        }
    }

    /// Applies an intent in which only addresses of unnumbered peers changed.
    pub(super) fn follow_addresses(&mut self, new: Arc<RoutingIntent>) {
        self.intent.replace(new);
        self.follow_peers();
        self.listen();
        self.follow_sessions();
    }

    /// Reconciles peers, keys and connection attempts with the intent and the password files. Returns true if
    /// something changed.
    pub(super) fn follow_peers(&mut self) -> bool {
        let Some(intent) = self.intent.given().cloned() else { return false };
        let (secrets, classes) = (&self.options.secrets, self.intent.classes());
        let changes = self.peers.follow(&intent.peers, secrets, classes);
        let ranges = self.ranges.follow(&intent.ranges, secrets, classes);
        if changes.is_empty() && ranges.is_empty() {
            return false;
        }
        let (guards, mut clashes) = self.peers.guards();
        let (of_ranges, more) = self.ranges.guards(guards.iter().map(|(addr, guard)| (*addr, guard)));
        clashes.extend(more);
        self.listeners.set_guards(guards, of_ranges, self.now);
        self.listeners.set_clashes(clashes);
        self.report_key_problems();
        for change in ranges {
            self.change_range(change);
        }
        for change in changes {
            self.change_peer(change);
        }
        true
    }

    fn change_range(&mut self, change: RangeChange) {
        match change {
            RangeChange::Set(id, config) => self.give(Input::Range(id, config)),
            RangeChange::Remove(id) => self.give(Input::RemoveRange(id)),
            RangeChange::Secure(name, guard) => {
                let addresses = self.ranges.addresses(&name);
                self.secure(|addr| addresses.contains(&addr), &guard);
            }
            RangeChange::Problem(problem) => self.reporter.peer(problem),
        }
    }

    fn change_peer(&mut self, change: Change) {
        match change {
            Change::Set(id, config) => self.give(Input::Peer(id, config)),
            Change::Remove(id) => {
                self.give(Input::RemovePeer(id));
                self.removed(id);
            }
            Change::Reconnect(id) => self.reconnect(id, "the configuration changed"),
            Change::Reset(id) => self.give(Input::Reset(id, Reset::Hard(String::new()))),
            Change::Secure(addr, guard) => self.secure(|other| other == addr, &guard),
            Change::Problem(problem) => self.reporter.peer(problem),
        }
    }

    /// Changes key and minimum TTL of connections by address.
    fn secure(&mut self, of: impl Fn(ScopedAddr) -> bool, guard: &Guard) {
        for text in self.connections.secure(of, guard) {
            self.reporter.transient(text);
        }
    }

    /// Reconciles the listeners with the configuration and retries failed ones.
    pub(super) fn listen(&mut self) {
        let Some(intent) = self.intent.given() else { return };
        let configured: &[SocketAddr] =
            if self.options.listen.is_empty() { &intent.listen } else { &self.options.listen };
        let mut wanted = configured.to_vec();
        let port = configured.first().map_or(tortie_config::key::BGP_PORT, SocketAddr::port);
        // A listener on all addresses also covers the links of unnumbered peers.
        if !configured.iter().any(|addr| addr.is_ipv6() && addr.ip().is_unspecified()) {
            wanted.extend(self.unnumbered.listen(port));
        }
        let poller = &self.poller;
        let register = |index, socket: &_| poller.add(Source::Listener(index), socket);
        for outcome in self.listeners.follow(&wanted, self.now, register) {
            self.reporter.fact(match outcome {
                Outcome::Opened(addr) => SpeakerFact::Listening(addr),
                Outcome::Ended(addr) => SpeakerFact::ListenEnded(addr),
                Outcome::Failed(addr, error) => SpeakerFact::ListenFailed { addr, error },
            });
        }
        self.report_key_problems();
    }

    fn report_key_problems(&mut self) {
        self.reporter.faults("BGP passwords", self.listeners.key_problems().cloned());
    }
}
