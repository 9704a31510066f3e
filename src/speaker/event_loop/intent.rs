//! From one intent to the next: only what differs reaches the speaker, in an order that never announces or accepts
//! under rules that are not there yet (keys before connections, policy before routes).

use std::net::SocketAddr;
use std::sync::Arc;

use tortie_bgp::{GlobalConfig, Input, Origination, PolicyHandle, Reset, RouterId, Speaker, Tag};
use tortie_net::Cidr;
use tortie_net::link_local::address_of;

use tortie_engine::routing::{ChangeId, Persistent, RoutingIntent};

use crate::speaker::api::SpeakerFact;
use crate::speaker::event_loop::{Driver, register_listener};
use crate::speaker::peers::table::Change;
use crate::speaker::policy::{ViewPolicy, kind_code};
use crate::speaker::sockets::connect;
use crate::speaker::sockets::listen::{self, Guard};

/// The intent in force.
#[derive(Default)]
pub(crate) struct Current {
    given: Option<Arc<RoutingIntent>>,
    /// With the dynamic peers, made when it is asked for.
    whole: Option<Arc<RoutingIntent>>,
    policy: Option<Arc<ViewPolicy>>,
    /// Passwords of peers and ranges of which only one can be in force.
    clashes: Vec<String>,
}

impl Current {
    pub(crate) fn get(&self) -> Option<Arc<RoutingIntent>> {
        self.given.clone()
    }

    /// Passwords that contradict each other, in words.
    pub(crate) fn clashes(&self) -> &[String] {
        &self.clashes
    }

    /// Dynamic peers came or went.
    pub(crate) fn moved(&mut self) {
        self.whole = None;
    }
}

impl Driver {
    /// The intent in force with the dynamic peers that there are.
    pub(crate) fn whole_intent(&mut self) -> Option<Arc<RoutingIntent>> {
        let given = self.intent.get()?;
        let make = || match self.ranges.peers().next() {
            Some(_) => Arc::new(given.with_dynamic(self.ranges.peers())),
            None => given.clone(),
        };
        Some(self.intent.whole.get_or_insert_with(make).clone())
    }

    pub(crate) fn apply(&mut self, new: Arc<RoutingIntent>, change: ChangeId) {
        if new.asn == 0 || new.router_id == 0 {
            let what = if new.asn == 0 { "AS number" } else { "router id" };
            let text = format!("{what} 0 cannot be used; the last configuration stays in force");
            self.trouble("BGP configuration", [text]);
            return;
        }
        self.trouble("BGP configuration", []);
        let new = self.unnumbered_intent(new);
        let old = self.intent.given.replace(new.clone());
        self.intent.moved();
        let global = GlobalConfig {
            asn: new.asn,
            router_id: RouterId(new.router_id),
            restart_time: self.options.restart_time,
            restarting: self.options.restarting.clone(),
            multipath: tortie_bgp::Multipath { max: new.multipath.max, relax: new.multipath.relax },
        };
        match &old {
            None => {
                let policy = self.policy(&new);
                self.core = Some(Speaker::new(global, policy, self.now));
                self.tap_best(&[]);
            }
            Some(old) => {
                let whole = |i: &RoutingIntent| (i.asn, i.router_id, i.multipath.max, i.multipath.relax);
                if whole(old) != whole(&new) {
                    self.give(Input::Global(global));
                    self.tap_best(&[]);
                }
                let held = new.addresses.differences(&old.addresses);
                if old.view != new.view {
                    let policy = self.policy(&new);
                    self.give(Input::Policy(policy));
                } else if !held.is_empty() {
                    let about: Vec<Cidr> = held.into_iter().map(|(addr, ..)| Cidr::host(*addr)).collect();
                    let policy = self.policy(&new);
                    self.give(Input::PolicyAbout(policy, &about));
                }
            }
        }
        // What depends on sessions alone is left alone by routes that come and go.
        let same = !self.peers.has_key_files()
            && !self.ranges.has_key_files()
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
            self.follow_ends();
        }
    }

    /// The policy of an intent; it shares what it can with the one before.
    fn policy(&mut self, intent: &RoutingIntent) -> PolicyHandle {
        let new = Arc::new(match &self.intent.policy {
            Some(old) => old.follow(&intent.view, &intent.addresses),
            None => ViewPolicy::new(Arc::clone(&intent.view), intent.addresses.clone(), self.classes.clone()),
        });
        self.intent.policy = Some(Arc::clone(&new));
        PolicyHandle(new)
    }

    /// BFD and the links of all peers.
    pub(crate) fn follow_ends(&mut self) {
        self.ranges.moved = false;
        self.intent.moved();
        let Some(intent) = self.whole_intent() else { return };
        self.follow_bfd();
        self.follow_fallover(&intent);
    }

    /// The addresses of unnumbered peers changed, nothing else.
    pub(crate) fn follow_intent(&mut self, new: Arc<RoutingIntent>) {
        self.intent.given = Some(new);
        self.follow_peers();
        self.listen();
        self.follow_ends();
    }

    /// Brings peers, keys and attempts in line with the intent (and the password files); whether something changed.
    pub(crate) fn follow_peers(&mut self) -> bool {
        let Some(intent) = self.intent.given.clone() else { return false };
        let changes = self.peers.follow(&intent.peers, &self.options.secrets, &self.classes);
        let ranges = self.ranges.follow(&intent.ranges, &self.options.secrets, &self.classes);
        if changes.is_empty() && ranges.is_empty() {
            return false;
        }
        let (guards, clashes) = self.peers.guards();
        let (of_ranges, more) = self.ranges.guards(guards.iter().map(|(addr, guard)| (*addr, guard)));
        self.listeners.guards(guards, of_ranges, self.now);
        self.intent.clashes = clashes.into_iter().chain(more).collect();
        self.tell_keys();
        self.change_ranges(ranges);
        for change in changes {
            match change {
                Change::Set(id, config) => self.give(Input::Peer(id, config)),
                Change::Remove(id) => {
                    self.give(Input::RemovePeer(id));
                    self.removed(id);
                }
                Change::Redial(id) => self.redial(id, "the configuration changed"),
                Change::Reset(id) => self.give(Input::Reset(id, Reset::Hard(String::new()))),
                Change::Secure(addr, guard) => self.secure(|other| other == addr, &guard),
                Change::Trouble(name, trouble) => (self.facts)(SpeakerFact::PeerTrouble { name, trouble }),
            }
        }
        true
    }

    /// Changes key and least TTL of the connections that are there: a key that is changed at both ends within the hold
    /// time costs no session.
    pub(crate) fn secure(&mut self, of: impl Fn(std::net::IpAddr) -> bool, guard: &Guard) {
        let mut troubles = Vec::new();
        for (_, conn) in self.conns.iter().filter(|(_, c)| of(address_of(c.remote))) {
            if let Err(e) = connect::secure(&conn.socket, conn.remote.ip(), guard) {
                troubles.push(format!("connection with {}: {e}", conn.remote));
            }
        }
        for text in troubles {
            self.mishap(text);
        }
    }

    /// Brings the listeners in line with the configuration, and tries failed ones again.
    pub(crate) fn listen(&mut self) {
        let Some(intent) = &self.intent.given else { return };
        let asked: &[SocketAddr] =
            if self.options.listen.is_empty() { &intent.listen } else { &self.options.listen };
        let mut wanted = asked.to_vec();
        let port = asked.first().map_or(tortie_config::key::BGP_PORT, SocketAddr::port);
        // One that listens everywhere listens on these links, too.
        if !asked.iter().any(|addr| addr.is_ipv6() && addr.ip().is_unspecified()) {
            wanted.extend(self.unnumbered.listen(port));
        }
        let poll = &self.poll;
        let outcomes =
            self.listeners.follow(&wanted, self.now, |index, socket| register_listener(poll, index, socket));
        for outcome in outcomes {
            (self.facts)(match outcome {
                listen::Outcome::Opened(addr) => SpeakerFact::Listening(addr),
                listen::Outcome::Ended(addr) => SpeakerFact::ListenEnded(addr),
                listen::Outcome::Failed(addr, error) => SpeakerFact::ListenFailed { addr, error },
            });
        }
        self.tell_keys();
    }
}

/// Local routes that come, change their kind, or go.
fn originations(
    old: Option<&RoutingIntent>,
    new: &RoutingIntent,
    change: ChangeId,
) -> Vec<(Cidr, Option<Origination>)> {
    let none = Persistent::default();
    let before = old.map_or(&none, |o| &o.originated);
    let mut out = Vec::new();
    for (prefix, before, now) in new.originated.differences(before) {
        let Some(now) = now else {
            out.push((*prefix, None));
            continue;
        };
        if before.is_some_and(|before| before.kind == now.kind) {
            continue;
        }
        let origination = Origination {
            communities: Vec::new(),
            large_communities: Vec::new(),
            kind: kind_code(now.kind),
            tag: Tag(change.0),
        };
        out.push((*prefix, Some(origination)));
    }
    out
}
