//! Passes inputs to the BGP core and executes its events. Reports of BFD and changes of links become inputs.

use std::net::SocketAddr;
use std::time::Instant;

use tortie_bgp::bfd;
use tortie_bgp::{Event, Input, NextHopState, Speaker, State};
use tortie_net::ScopedAddr;

use super::EventLoop;
use crate::speaker::facts::SpeakerFact;
use crate::speaker::reachability::Purpose;
use crate::speaker::sockets::sockopt;
use crate::speaker::unnumbered::{Unnumbered, UnnumberedStep};
use tortie_engine::routing::Resolved;

impl EventLoop {
    /// Passes an input to the core and executes the resulting events.
    pub(super) fn give(&mut self, input: Input<'_>) {
        self.give_at(input, self.now);
    }

    /// Runs the core's timers, up to the time before the last poll of the sockets.
    pub(super) fn tick(&mut self) {
        self.give_at(Input::Tick, self.woke);
    }

    fn give_at(&mut self, input: Input<'_>, time: Instant) {
        let Some(core) = &mut self.core else { return };
        core.handle(input, time);
        self.connections.room_changed();
        self.events();
    }

    /// Passes an input to the core while its events are being executed; the caller's loop executes the new
    /// ones.
    pub(super) fn give_among_events(&mut self, input: Input<'_>) {
        if let Some(core) = &mut self.core {
            core.handle(input, self.now);
        }
    }

    /// Executes the pending events of the core.
    pub(super) fn events(&mut self) {
        while let Some(event) = self.core.as_mut().and_then(Speaker::poll_event) {
            self.event(event);
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Dial(peer) => self.connect(peer),
            Event::WantWrite(id) => self.connections.want_write(id),
            Event::Close(id) => self.connections.close(id, self.now),
            Event::DynamicPeer { peer, range, name, remote } => {
                if let Some(peer) = self.ranges.join(peer, range, &name, remote, &mut self.peers) {
                    self.reporter.fact(SpeakerFact::DynamicPeer(peer));
                }
            }
            Event::DynamicPeerGone(peer) => {
                if let Some(peer) = self.ranges.leave(peer, &mut self.peers) {
                    self.reporter.fact(SpeakerFact::DynamicPeerGone(peer.name));
                }
            }
            Event::State { peer, from, to, down } => {
                if let Some(name) = self.peers.name(peer) {
                    self.reporter.fact(SpeakerFact::Peer { name: name.clone(), from, to, down });
                }
                if to == State::Established && from != to {
                    self.evidence.clear(peer);
                    if self.bfd.session_up(peer) {
                        self.follow_bfd();
                    }
                }
            }
            Event::TrackNextHop(addr) if self.tracker.has_kernel() => {
                self.tracker.track(addr, Purpose::NextHop, &mut self.reporter);
            }
            Event::TrackNextHop(addr) => {
                let state = NextHopState::Reachable { metric: 0, on_link: true };
                self.give_among_events(Input::NextHop(addr, state));
            }
            Event::UntrackNextHop(addr) => {
                self.tracker.untrack(addr, Purpose::NextHop, &mut self.reporter);
            }
            Event::BestChanged => self.feed.changed(),
            Event::Learned { peer, announced, withdrawn, rejected, malformed } => {
                if let Some(peer) = self.peers.name(peer).cloned() {
                    self.reporter.fact(SpeakerFact::Learned {
                        peer,
                        announced,
                        withdrawn,
                        rejected,
                        malformed,
                    });
                }
            }
            Event::PrefixWarning { peer, family, received, max } => {
                if let Some(peer) = self.peers.name(peer).cloned() {
                    self.reporter.fact(SpeakerFact::PrefixWarning { peer, family, received, max });
                }
            }
            Event::RestartDone => self.reporter.fact(SpeakerFact::RestartDone),
            // This thread does not use the other events of the core.
            _ => {}
        }
    }

    /// Passes the reports of the BFD thread to the core.
    pub(super) fn bfd_reports(&mut self) {
        while let Some(inputs) = self.bfd.poll(&self.peers, &mut self.reporter) {
            for input in inputs {
                if let Input::BfdDown { peer, .. } = &input {
                    self.evidence.bfd_lost(*peer, self.now);
                }
                self.give(input);
            }
        }
    }

    /// Reports to the core each peer whose BFD session did not come back; the core then removes the routes
    /// that it keeps for the peer's restart.
    pub(super) fn end_lost_bfd(&mut self) {
        for peer in self.evidence.due(self.now) {
            if self.bfd.status(peer).is_some_and(|(_, status)| status.state != bfd::State::Up) {
                self.give(Input::NotForwarding(peer));
            }
        }
    }

    /// Processes the resolution of an address by the kernel thread; `None` if the address is unreachable.
    pub(super) fn address_resolved(&mut self, addr: ScopedAddr, resolved: Option<Resolved>) {
        if self.bfd.resolved(addr, resolved.map(|r| r.gateway.is_none())) {
            self.follow_bfd();
        }
        let Some((interface, peers)) = self.fallover.resolved(addr, resolved, self.now) else { return };
        self.unnumbered.again(interface, self.now);
        for peer in peers {
            // An attempt that began while the link was down waits seconds for the next retransmission of its
            // SYN.
            self.reconnect(peer, "the link came back");
            self.give(Input::LinkUp(peer));
        }
    }

    /// Ends sessions whose link was down for too long.
    pub(super) fn end_lost_links(&mut self) {
        for (interface, peers) in self.fallover.due(self.now) {
            let name =
                sockopt::interface_name(interface).unwrap_or_else(|| format!("with index {interface}"));
            for peer in peers {
                let text = format!("interface {name} is down or has lost the peer's network");
                self.give(Input::LinkDown { peer, text });
            }
        }
    }

    /// Receives router advertisements.
    pub(super) fn advertisements(&mut self) {
        self.follow_unnumbered(Unnumbered::receive);
    }

    /// Sends due router advertisements, and accepts another neighbour if the current one is silent.
    pub(super) fn run_unnumbered(&mut self) {
        self.follow_unnumbered(Unnumbered::run);
    }

    fn follow_unnumbered(&mut self, step: UnnumberedStep) {
        let (peers, core) = (&self.peers, &self.core);
        let settled = |remote: SocketAddr| core.as_ref().is_some_and(|core| peers.is_up(core, remote));
        if let Some(intent) = step(&mut self.unnumbered, self.now, &settled, &mut self.reporter) {
            self.follow_addresses(intent);
        }
    }
}
