//! Accepts and opens connections, serves them while they are open, and closes them.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tortie_bgp::{ConnId, Input, PeerId};
use tortie_net::ScopedAddr;

use super::EventLoop;
use crate::speaker::connections::{Stage, WRITES};
use crate::speaker::reachability::{Dial, Here};
use crate::speaker::sockets::connect;
use crate::speaker::sockets::listen::{Admission, Incoming};

/// Maximum number of connections accepted per listener and iteration, about a millisecond of work, so that
/// existing sessions do not wait.
const ACCEPT: usize = 32;
/// Minimum interval of reports that connections of a peer are refused.
const DAMPED: Duration = Duration::from_secs(60);
/// Delay of the next accept after an error, such as too few file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

impl EventLoop {
    /// Accepts from all listeners that may have pending connections.
    pub(super) fn accept_all(&mut self) {
        for index in self.listeners.take_pending(self.now) {
            match self.accept(index) {
                Ok(true) => self.listeners.accept_later(index, self.now),
                Ok(false) => {}
                Err(e) => {
                    self.reporter.transient(format!("accept: {e}"));
                    self.listeners.accept_later(index, self.now + ACCEPT_RETRY);
                }
            }
        }
    }

    /// Accepts up to [`ACCEPT`] connections. Returns true if more may be pending.
    fn accept(&mut self, index: usize) -> io::Result<bool> {
        for _ in 0..ACCEPT {
            let (core, peers, now) = (&self.core, &self.peers, self.now);
            let mut damped = None;
            let incoming = self.listeners.accept(index, |remote| {
                if core.as_ref().is_some_and(|core| core.admits(remote, now)) {
                    Admission::Admitted
                } else if peers.has_address(ScopedAddr::of(remote)) {
                    damped = Some(remote);
                    Admission::Damped
                } else {
                    Admission::UnknownAddress
                }
            })?;
            if let Some(remote) = damped {
                self.report_damped(remote);
            }
            match incoming {
                Incoming::Accepted { socket, local, remote } => {
                    let conn = self.connections.add_accepted(&self.poller, socket, (local, remote))?;
                    self.give(Input::Accepted { conn, local, remote });
                }
                Incoming::Refused(problem) => {
                    if let Some(text) = problem {
                        self.reporter.transient(text);
                    }
                }
                Incoming::None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Reports that connections of a peer are refused, at most once per [`DAMPED`].
    fn report_damped(&mut self, remote: SocketAddr) {
        let addr = ScopedAddr::of(remote);
        self.damped.retain(|_, until| *until > self.now);
        if self.damped.contains_key(&addr) {
            return;
        }
        self.damped.insert(addr, self.now + DAMPED);
        let text = format!("connections of peer {addr} are refused for now: too many failed in a row");
        self.reporter.transient(text);
    }

    /// Starts a connection attempt to a peer.
    pub(super) fn connect(&mut self, id: PeerId) {
        self.abandon(id);
        let Some(target) = self.peers.target(id) else { return };
        let (remote, local) = (target.remote, target.local);
        let started = connect::start(remote, local, target.guard)
            .and_then(|socket| self.connections.add(&self.poller, socket, remote, Stage::Connecting(id)));
        match started {
            Ok(conn) => {
                self.peers.attempt_began(id, conn);
                self.connections.set_deadline(conn, self.now + connect::TIMEOUT);
            }
            Err(e) => {
                self.peers.attempt_failed(id, &e);
                let error = connect::explain(remote, local, &e);
                self.give_among_events(Input::DialFailed { peer: id, error });
                if self.is_evidence(id, remote, &e) {
                    self.give_among_events(Input::NotForwarding(id));
                }
            }
        }
    }

    /// Reports a connection attempt that failed after its start.
    fn connect_failed(&mut self, id: ConnId, peer: PeerId, error: &io::Error) {
        let Some(remote) = self.connections.remove(id) else { return };
        let local = self.peers.target(peer).and_then(|target| target.local);
        self.peers.take_attempt(peer);
        self.peers.attempt_failed(peer, error);
        self.give(Input::DialFailed { peer, error: connect::explain(remote, local, error) });
        if self.is_evidence(peer, remote, error) {
            self.give(Input::NotForwarding(peer));
        }
    }

    /// True if a failed attempt is evidence that the peer does not forward.
    fn is_evidence(&mut self, peer: PeerId, remote: SocketAddr, error: &io::Error) -> bool {
        let on_link = self.fallover.is_on_link(ScopedAddr::of(remote));
        self.evidence.dial_failed(peer, Dial::of(error), on_link, self.now)
    }

    /// Checks that the local addresses of connections are still on this host, and closes connections whose
    /// address is lost.
    pub(super) fn look_for_own_addresses(&mut self) {
        let own = self.connections.own_addresses().chain(self.unnumbered.own_addresses());
        let mut here = Here::default();
        let absent = self.own_addresses.look(own, |addr| here.has(addr), self.now);
        for addr in absent.missing.iter().chain(&absent.lost) {
            self.unnumbered.again(addr.interface(), self.now);
        }
        for addr in absent.lost {
            for id in self.connections.with_own_address(addr) {
                self.connections.remove(id);
                self.give(Input::Closed(id, format!("our address {addr} is no longer on this host")));
            }
        }
    }

    /// Drops the connection attempt in progress. Returns true if there was one.
    fn abandon(&mut self, id: PeerId) -> bool {
        let attempt = self.peers.take_attempt(id);
        attempt.and_then(|conn| self.connections.remove(conn)).is_some()
    }

    /// Drops the connection attempt in progress, if any, for this reason: the configuration changed or the
    /// link came back.
    pub(super) fn reconnect(&mut self, id: PeerId, reason: &str) {
        if self.abandon(id) {
            self.give(Input::DialFailed { peer: id, error: reason.into() });
        }
    }

    /// Drops a removed peer's state and its connection attempt.
    pub(super) fn removed(&mut self, id: PeerId) {
        self.abandon(id);
        self.evidence.clear(id);
        self.peers.forget(id);
    }

    /// Serves one queued connection.
    pub(super) fn serve(&mut self, id: ConnId, stage: Stage) {
        // Serving thousands of connections takes longer than timers may be late.
        self.now = Instant::now();
        match stage {
            Stage::Connecting(peer) => self.connected(id, peer),
            Stage::Open => {
                self.read(id);
                self.write(id);
            }
            Stage::Flushing => self.write(id),
            Stage::Draining => self.connections.drain(id),
        }
    }

    fn connected(&mut self, id: ConnId, peer: PeerId) {
        match self.connections.connected(id) {
            Some(Ok((local, remote))) => {
                self.peers.take_attempt(peer);
                self.give(Input::Dialled { peer, conn: id, local, remote });
                self.connections.again(id);
            }
            Some(Err(e)) => self.connect_failed(id, peer, &e),
            None => {}
        }
    }

    fn read(&mut self, id: ConnId) {
        if let Some(core) = &mut self.core
            && self.connections.read(id, core, self.now)
        {
            self.events();
        }
    }

    fn write(&mut self, id: ConnId) {
        for _ in 0..WRITES {
            let Some(core) = &mut self.core else { return };
            let more = self.connections.write(id, core, self.now);
            self.events();
            if !more {
                return;
            }
        }
        self.connections.again(id);
    }

    /// Ends connection attempts, and closing connections, that took too long.
    pub(super) fn expire_connections(&mut self) {
        while let Some((id, stage)) = self.connections.expired(self.woke) {
            match stage {
                Stage::Connecting(peer) => {
                    self.connect_failed(id, peer, &io::Error::from_raw_os_error(libc::ETIMEDOUT));
                }
                Stage::Flushing | Stage::Draining => {
                    self.connections.remove(id);
                }
                Stage::Open => {}
            }
        }
    }
}
