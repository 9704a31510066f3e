//! Transfers data between the sockets of connections and the BGP core.
//!
//! The readiness reported by epoll is stored in the connection, and connections with work are queued. Each
//! iteration of a connection is bounded, so that neither a full feed nor a slow peer delays the others. After
//! each call that passes data to the core, the caller processes the core's events.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use socket2::Socket;
use tortie_bgp::{ConnId, Input, Speaker, Transmit};
use tortie_net::ScopedAddr;

use super::table::{Stage, Table};
use crate::speaker::sockets::connect;
use crate::speaker::sockets::guard::Guard;
use crate::speaker::sockets::poller::{Poller, Readiness, Source};
use crate::speaker::sockets::sockopt::{round_trip, unacknowledged};
use tortie_metrics::Histogram;

/// Maximum number of octets read from a connection per iteration.
const READ: usize = 64 * 1024;
/// Number of octets taken from the core and written at a time; also the maximum kept in memory for a full
/// socket.
const WRITE: usize = 16 * 1024;
/// Number of writes per iteration, so that answers to a read do not fall behind.
pub(crate) const WRITES: usize = READ / WRITE;
/// Maximum number of stalled connections examined per iteration.
const UNSTALL: usize = 64;
/// Time that a closed connection may take to send its last octets and to be closed by the peer.
const LINGER: Duration = Duration::from_secs(2);

/// All connections with their I/O buffers.
pub(crate) struct Connections {
    table: Table,
    /// True if stalled connections may have room again.
    room_changed: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    bytes_in: u64,
    bytes_out: u64,
    /// Duration of reads, including parsing, import and best-path selection of UPDATEs.
    reads: Histogram,
}

impl Connections {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::default(),
            room_changed: false,
            input: vec![0; READ],
            output: Vec::with_capacity(WRITE),
            bytes_in: 0,
            bytes_out: 0,
            reads: Histogram::seconds(),
        }
    }

    /// Adds a connection to the table and the epoll set until it is removed.
    pub(crate) fn add(
        &mut self,
        poller: &Poller,
        socket: Socket,
        remote: SocketAddr,
        stage: Stage,
    ) -> io::Result<ConnId> {
        let id = self.table.insert(socket, remote, stage).ok_or(io::ErrorKind::OutOfMemory)?;
        let added = match self.table.get(id) {
            Some(conn) => poller.add(Source::Connection(id), &conn.socket),
            None => Ok(()),
        };
        if let Err(e) = added {
            self.table.remove(id);
            return Err(e);
        }
        Ok(id)
    }

    /// Adds an accepted connection, which is writable at once.
    pub(crate) fn add_accepted(
        &mut self,
        poller: &Poller,
        socket: Socket,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> io::Result<ConnId> {
        let id = self.add(poller, socket, remote, Stage::Open)?;
        if let Some(conn) = self.table.get_mut(id) {
            conn.local = Some(local);
            conn.writable = true;
        }
        Ok(id)
    }

    /// Closes a connection and returns its remote address.
    pub(crate) fn remove(&mut self, id: ConnId) -> Option<SocketAddr> {
        self.table.remove(id).map(|conn| conn.remote)
    }

    /// Closes all connections that are being established.
    pub(crate) fn remove_connecting(&mut self) {
        let connecting = self.table.iter().filter(|(_, c)| matches!(c.stage, Stage::Connecting(_)));
        let connecting: Vec<ConnId> = connecting.map(|(id, _)| id).collect();
        for id in connecting {
            self.table.remove(id);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the local addresses of open connections.
    pub(crate) fn own_addresses(&self) -> impl Iterator<Item = ScopedAddr> {
        let open = self.table.iter().filter(|(_, conn)| conn.stage == Stage::Open);
        open.filter_map(|(_, conn)| conn.local.map(ScopedAddr::of))
    }

    /// Returns the open connections with this local address.
    pub(crate) fn with_own_address(&self, own: ScopedAddr) -> Vec<ConnId> {
        let open = self.table.iter().filter(|(_, conn)| conn.stage == Stage::Open);
        open.filter(|(_, conn)| conn.local.map(ScopedAddr::of) == Some(own)).map(|(id, _)| id).collect()
    }

    /// Stores the readiness that epoll reported for a connection.
    pub(crate) fn ready(&mut self, id: ConnId, readiness: Readiness) {
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.readable |= readiness.readable;
        conn.writable |= readiness.writable;
        conn.hangup |= readiness.hangup;
        self.table.enqueue(id);
    }

    /// Records that the core has data to send on a connection.
    pub(crate) fn want_write(&mut self, id: ConnId) {
        if let Some(conn) = self.table.get_mut(id) {
            conn.wants = true;
            if conn.writable {
                self.table.enqueue(id);
            }
        }
    }

    /// Closes a connection after the core did: writes its last octets first.
    pub(crate) fn close(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.stage = Stage::Flushing;
        conn.wants = true;
        self.table.set_deadline(id, now + LINGER);
        self.table.enqueue(id);
    }

    pub(crate) fn set_deadline(&mut self, id: ConnId, at: Instant) {
        self.table.set_deadline(id, at);
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.table.deadline()
    }

    /// Returns a connection whose deadline has passed, with its stage.
    pub(crate) fn expired(&mut self, now: Instant) -> Option<(ConnId, Stage)> {
        let id = self.table.expired(now)?;
        Some((id, self.table.get(id)?.stage))
    }

    /// Returns the number of queued connections.
    pub(crate) fn queued(&self) -> usize {
        self.table.queued()
    }

    /// Takes the next queued connection, with its stage.
    pub(crate) fn next(&mut self) -> Option<(ConnId, Stage)> {
        let id = self.table.dequeue()?;
        Some((id, self.table.get(id)?.stage))
    }

    /// Queues a connection for the next iteration.
    pub(crate) fn again(&mut self, id: ConnId) {
        self.table.enqueue(id);
    }

    /// Records that the core has processed something, so that stalled connections may have room again.
    pub(crate) fn room_changed(&mut self) {
        self.room_changed = true;
    }

    /// True if [`Self::unstall`] may find a connection.
    pub(crate) fn may_unstall(&self) -> bool {
        self.room_changed && self.table.any_stalled()
    }

    /// Queues stalled connections that have room again.
    pub(crate) fn unstall(&mut self, core: &Speaker) {
        if self.table.any_stalled() {
            // This iteration may free room, too: the next one examines them again until nothing changes in
            // between.
            self.room_changed = !self.table.unstall(UNSTALL, |id| core.read_room(id) > 0);
        }
    }

    /// Returns the outcome of a connection attempt once it is known: the local and the remote address.
    pub(crate) fn connected(&mut self, id: ConnId) -> Option<io::Result<(SocketAddr, SocketAddr)>> {
        let conn = self.table.get_mut(id).filter(|conn| conn.writable)?;
        let remote = conn.remote;
        let local = conn
            .socket
            .take_error()
            .and_then(|e| e.map_or(Ok(()), Err))
            .and_then(|()| conn.socket.peer_addr())
            .and_then(|_| conn.socket.local_addr());
        match local.map(|local| local.as_socket()) {
            Ok(Some(local)) => {
                conn.stage = Stage::Open;
                conn.local = Some(local);
                Some(Ok((local, remote)))
            }
            Ok(None) => None,
            Err(e) => Some(Err(e)),
        }
    }

    /// Reads once and passes the data to the core. Returns true if the core processed something.
    pub(crate) fn read(&mut self, id: ConnId, core: &mut Speaker, now: Instant) -> bool {
        let Some(conn) = self.table.get_mut(id).filter(|conn| conn.readable) else { return false };
        let room = core.read_room(id).min(READ);
        if room == 0 {
            self.table.stall(id);
            return false;
        }
        let Some(buffer) = self.input.get_mut(..room) else { return false };
        let ended = match (&conn.socket).read(buffer) {
            Ok(0) => Some("the peer closed the connection".to_owned()),
            Ok(n) => {
                // A short read emptied the socket; more data causes a new edge.
                conn.readable = n == room || conn.hangup;
                if conn.readable {
                    self.table.enqueue(id);
                }
                self.bytes_in += n as u64;
                self.room_changed = true;
                let begin = Instant::now();
                core.handle(Input::Data(id, buffer.get(..n).unwrap_or_default()), now);
                self.reads.time(begin.elapsed());
                None
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                self.table.enqueue(id);
                None
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                conn.readable = false;
                conn.broken.take()
            }
            Err(e) => Some(connect::explain_io(&e)),
        };
        if let Some(reason) = ended {
            self.table.remove(id);
            core.handle(Input::Closed(id, reason), now);
        }
        true
    }

    /// Writes once. Returns true if the core has more data and the socket has room.
    pub(crate) fn write(&mut self, id: ConnId, core: &mut Speaker, now: Instant) -> bool {
        let Some(conn) = self.table.get_mut(id) else { return false };
        if !conn.writable || conn.broken.is_some() {
            return false;
        }
        let wrote = if conn.rest.is_empty() {
            self.output.clear();
            if conn.wants {
                conn.wants = core.poll_transmit(id, &mut self.output, WRITE, now) == Transmit::More;
            }
            send(&conn.socket, &self.output).map(|n| {
                self.bytes_out += n as u64;
                if let Some(rest) = self.output.get(n..).filter(|r| !r.is_empty()) {
                    conn.rest = rest.to_vec();
                }
            })
        } else {
            send(&conn.socket, &conn.rest).map(|n| {
                self.bytes_out += n as u64;
                if n == conn.rest.len() {
                    conn.rest = Vec::new();
                } else {
                    conn.rest.drain(..n);
                }
            })
        };
        match wrote {
            Ok(()) => {
                conn.writable = conn.rest.is_empty();
                let more = conn.writable && conn.wants;
                if conn.rest.is_empty() && conn.stage == Stage::Flushing && !conn.wants {
                    self.shut(id);
                }
                more
            }
            Err(e) => {
                if conn.stage == Stage::Flushing {
                    self.table.remove(id);
                } else {
                    // Data received before, such as a NOTIFICATION, explains the end better than the write
                    // error.
                    conn.broken = Some(connect::explain_io(&e));
                    conn.readable = true;
                    conn.hangup = true;
                    self.table.enqueue(id);
                }
                false
            }
        }
    }

    /// Shuts down the sending direction after everything was written.
    fn shut(&mut self, id: ConnId) {
        let Some(conn) = self.table.get_mut(id) else { return };
        if conn.socket.shutdown(Shutdown::Write).is_err() {
            self.table.remove(id);
            return;
        }
        conn.stage = Stage::Draining;
        conn.readable = true;
        self.table.enqueue(id);
    }

    /// Reads and discards further data of the peer.
    pub(crate) fn drain(&mut self, id: ConnId) {
        let Some(conn) = self.table.get_mut(id).filter(|conn| conn.readable) else { return };
        match (&conn.socket).read(&mut self.input) {
            Ok(n) if n > 0 => self.table.enqueue(id),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => conn.readable = false,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => self.table.enqueue(id),
            Ok(_) | Err(_) => {
                self.table.remove(id);
            }
        }
    }

    /// Changes key and minimum TTL of connections by remote address: a key that is changed on both sides
    /// within the hold time ends no session. Returns descriptions of failures.
    pub(crate) fn secure(&self, of: impl Fn(ScopedAddr) -> bool, guard: &Guard) -> Vec<String> {
        let protect = |conn: &super::table::Conn| {
            let error = connect::secure(&conn.socket, conn.remote.ip(), guard).err()?;
            Some(format!("connection with {}: {error}", conn.remote))
        };
        let found = self.table.iter().filter(|(_, conn)| of(ScopedAddr::of(conn.remote)));
        found.filter_map(|(_, conn)| protect(conn)).collect()
    }

    /// True if no data waits for the connection and the peer's TCP has acknowledged every octet.
    pub(crate) fn is_acknowledged(&self, id: ConnId) -> bool {
        self.table.get(id).is_some_and(|c| c.rest.is_empty() && unacknowledged(&c.socket) == 0)
    }

    /// Returns the smoothed round-trip time measured by TCP.
    pub(crate) fn round_trip(&self, id: ConnId) -> Option<Duration> {
        round_trip(&self.table.get(id)?.socket)
    }

    /// Returns the octets read and written since the start.
    pub(crate) fn octets(&self) -> (u64, u64) {
        (self.bytes_in, self.bytes_out)
    }

    /// Returns the durations of reads.
    pub(crate) fn reads(&self) -> &Histogram {
        &self.reads
    }
}

/// Writes as much as the socket accepts now.
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
