//! What happens on sockets: accept, connect, read, write, close.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use socket2::Socket;
use tortie_bgp::{ConnId, Input, PeerId, Transmit};
use tortie_net::link_local::address_of;

use crate::speaker::connections::table::Stage;
use crate::speaker::event_loop::{Driver, register};
use crate::speaker::sockets::connect;

/// Bytes read from a connection in a turn.
pub(crate) const READ: usize = 64 * 1024;
/// Bytes asked for and written to a connection at a time; also the most that a full socket leaves in memory.
pub(crate) const WRITE: usize = 16 * 1024;
/// Writes to a connection in a turn: what it is told of what was read should not fall behind.
const WRITES: usize = READ / WRITE;
/// Connections accepted from a listener in a turn, about a millisecond of them: sessions that are there go before.
const ACCEPT: usize = 32;
/// How long a forgotten connection may take to take our last bytes and close its side.
const LINGER: Duration = Duration::from_secs(2);
/// After running out of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

impl Driver {
    pub(crate) fn accept_all(&mut self) {
        for (index, at) in std::mem::take(&mut self.accepting) {
            if at > self.now {
                self.accepting.push((index, at));
                continue;
            }
            match self.accept(index) {
                Ok(true) => self.accepting.push((index, self.now)),
                Ok(false) => {}
                Err(e) => {
                    self.mishap(format!("accept: {e}"));
                    self.accepting.push((index, self.now + ACCEPT_RETRY));
                }
            }
        }
    }

    /// `true`: there may be more.
    fn accept(&mut self, index: usize) -> io::Result<bool> {
        for _ in 0..ACCEPT {
            let Some(listener) = self.listeners.get(index) else { return Ok(false) };
            let (socket, remote) = match listener.socket.accept4(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) {
                Ok(got) => got,
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(false),
                    // The kernel may not take any more for now.
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => return Err(e),
                    // Errors of the connection that was to be accepted (accept(2)).
                    _ => continue,
                },
            };
            let Some(remote) = remote.as_socket() else { continue };
            self.counters.accepted += 1;
            // First of all: whoever dials without end costs an accept and a close, and no turn of the queue.
            if !self.core.as_ref().is_some_and(|core| core.admits(remote, self.now)) {
                let known = self.peers.has_address(address_of(remote))
                    || self.listeners.range_of(remote.ip().to_canonical()).is_some();
                let count = if known {
                    &mut self.counters.refused_damped
                } else {
                    &mut self.counters.refused_address
                };
                *count += 1;
                continue;
            }
            let (guard, keyed) = self.listeners.guard(index, address_of(remote));
            if !keyed {
                // The listener let it in without the signature that it must have.
                self.counters.refused_key += 1;
                continue;
            }
            if guard.min_ttl > 0 {
                let ttl = crate::speaker::sockets::sockopt::saved_syn_ttl(&socket).ok().flatten();
                if ttl.is_some_and(|ttl| ttl < guard.min_ttl) {
                    self.counters.refused_ttl += 1;
                    continue;
                }
            }
            let Some(local) = socket.local_addr().ok().and_then(|a| a.as_socket()) else { continue };
            if let Err(e) = connect::secure(&socket, remote.ip(), &guard) {
                self.counters.refused_key += 1;
                self.mishap(format!("connection from {}: {e}", remote.ip()));
                continue;
            }
            let conn = register(&self.poll, &mut self.conns, socket, remote, Stage::Open)?;
            if let Some(c) = self.conns.get_mut(conn) {
                c.writable = true;
            }
            self.give(Input::Accepted { conn, local, remote });
        }
        Ok(true)
    }

    /// The speaker has forgotten this connection.
    pub(crate) fn close(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.stage = Stage::Flushing;
        conn.wants = true;
        self.conns.set_deadline(id, self.now + LINGER);
        self.conns.enqueue(id);
    }

    /// One connection's part of a turn.
    pub(crate) fn serve(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else { return };
        // A turn through thousands of connections takes longer than timers should be late.
        self.now = Instant::now();
        match conn.stage {
            Stage::Dialling(peer) => self.dialled(id, peer),
            Stage::Open => {
                self.read(id);
                self.write_some(id);
            }
            Stage::Flushing => self.write_some(id),
            Stage::Draining => self.drain(id),
        }
    }

    fn dialled(&mut self, id: ConnId, peer: PeerId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if !conn.writable {
            return;
        }
        let remote = conn.remote;
        let ends = conn
            .socket
            .take_error()
            .and_then(|e| e.map_or(Ok(()), Err))
            .and_then(|()| conn.socket.peer_addr())
            .and_then(|_| conn.socket.local_addr());
        match ends.map(|a| a.as_socket()) {
            Ok(Some(local)) => {
                conn.stage = Stage::Open;
                if let Some(peer) = self.peers.get_mut(peer) {
                    peer.dialling = None;
                }
                self.give(Input::Dialled { peer, conn: id, local, remote });
                self.conns.enqueue(id);
            }
            Ok(None) => {}
            Err(e) => self.dial_ended(id, peer, &e),
        }
    }

    fn read(&mut self, id: ConnId) {
        let (Some(conn), Some(core)) = (self.conns.get_mut(id), &mut self.core) else { return };
        if !conn.readable {
            return;
        }
        let room = core.read_room(id).min(READ);
        if room == 0 {
            self.conns.stall(id);
            return;
        }
        let Some(buffer) = self.input.get_mut(..room) else { return };
        let ended = match (&conn.socket).read(buffer) {
            Ok(0) => Some("the peer closed the connection".to_owned()),
            Ok(n) => {
                // A short read emptied the socket: the next bytes come with a new edge.
                conn.readable = n == room || conn.hangup;
                if conn.readable {
                    self.conns.enqueue(id);
                }
                self.counters.bytes_in += n as u64;
                self.unlooked = true;
                let begin = Instant::now();
                core.handle(Input::Data(id, buffer.get(..n).unwrap_or_default()), self.now);
                self.reads.time(begin.elapsed());
                None
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                self.conns.enqueue(id);
                None
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                conn.readable = false;
                conn.broken.take()
            }
            Err(e) => Some(connect::explain_io(&e)),
        };
        if let Some(why) = ended {
            self.conns.remove(id);
            core.handle(Input::Closed(id, why), self.now);
        }
        self.events();
    }

    fn write_some(&mut self, id: ConnId) {
        for _ in 0..WRITES {
            if !self.write(id) {
                return;
            }
        }
        self.conns.enqueue(id);
    }

    /// `true`: there is more, and room for it.
    fn write(&mut self, id: ConnId) -> bool {
        let (Some(conn), Some(core)) = (self.conns.get_mut(id), &mut self.core) else { return false };
        if !conn.writable || conn.broken.is_some() {
            return false;
        }
        let wrote = if conn.rest.is_empty() {
            if conn.wants {
                self.output.clear();
                conn.wants = core.poll_transmit(id, &mut self.output, WRITE, self.now) == Transmit::More;
            } else {
                self.output.clear();
            }
            send(&conn.socket, &self.output).map(|n| {
                self.counters.bytes_out += n as u64;
                if let Some(rest) = self.output.get(n..).filter(|r| !r.is_empty()) {
                    conn.rest = rest.to_vec();
                }
            })
        } else {
            send(&conn.socket, &conn.rest).map(|n| {
                self.counters.bytes_out += n as u64;
                if n == conn.rest.len() {
                    conn.rest = Vec::new();
                } else {
                    conn.rest.drain(..n);
                }
            })
        };
        let mut more = false;
        match wrote {
            Ok(()) => {
                conn.writable = conn.rest.is_empty();
                more = conn.writable && conn.wants;
                if conn.rest.is_empty() && conn.stage == Stage::Flushing && !conn.wants {
                    self.shut(id);
                }
            }
            Err(e) => {
                if conn.stage == Stage::Flushing {
                    self.conns.remove(id);
                } else {
                    // What came in before, such as a NOTIFICATION, tells more than the error.
                    conn.broken = Some(connect::explain_io(&e));
                    conn.readable = true;
                    conn.hangup = true;
                    self.conns.enqueue(id);
                }
            }
        }
        self.events();
        more
    }

    /// All is written: ends our side.
    fn shut(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.socket.shutdown(Shutdown::Write).is_err() {
            self.conns.remove(id);
            return;
        }
        conn.stage = Stage::Draining;
        conn.readable = true;
        self.conns.enqueue(id);
    }

    fn drain(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if !conn.readable {
            return;
        }
        match (&conn.socket).read(&mut self.input) {
            Ok(n) if n > 0 => self.conns.enqueue(id),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => conn.readable = false,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => self.conns.enqueue(id),
            Ok(_) | Err(_) => {
                self.conns.remove(id);
            }
        }
    }
}

/// Writes what the socket takes now.
fn send(mut socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while let Some(rest) = bytes.get(sent..).filter(|r| !r.is_empty()) {
        match socket.write(rest) {
            Ok(n) => sent += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(sent)
}
