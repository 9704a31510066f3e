//! Table of connections by id, with a queue of those that have work.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use slab::Slab;
use socket2::Socket;
use tortie_bgp::{ConnId, PeerId};

/// Number of bits of a [`ConnId`] that index the table; the other bits are a counter, so that ids are unique.
const INDEX_BITS: u32 = 20;

/// Stage of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Connecting; unknown to the BGP core.
    Connecting(PeerId),
    /// Open in the BGP core.
    Open,
    /// Closed by the BGP core; its last octets are being written.
    Flushing,
    /// Shut down for sending. Further data of the peer is read and discarded, because closing a socket with
    /// unread data sends a reset that can overtake the NOTIFICATION.
    Draining,
}

pub(super) struct Conn {
    pub(super) socket: Socket,
    pub(super) remote: SocketAddr,
    /// Local address, once known.
    pub(super) local: Option<SocketAddr>,
    pub(super) stage: Stage,
    /// True if the socket may be readable, according to the last epoll event.
    pub(super) readable: bool,
    /// True if the socket may be writable, according to the last epoll event.
    pub(super) writable: bool,
    /// True if the peer closed its side; reading continues to the end.
    pub(super) hangup: bool,
    /// True if the BGP core has data to send.
    pub(super) wants: bool,
    /// Data that the socket did not accept; uses memory only while it is not empty.
    pub(super) rest: Vec<u8>,
    /// Reason of a failed write; reported once all data received before has been read.
    pub(super) broken: Option<String>,
    queued: bool,
    stalled: bool,
}

/// All connections.
#[derive(Default)]
pub(super) struct Table {
    slots: Slab<(ConnId, Conn)>,
    made: u64,
    queue: VecDeque<ConnId>,
    stalled: VecDeque<ConnId>,
    deadlines: BinaryHeap<Reverse<(Instant, ConnId)>>,
}

fn index(id: ConnId) -> usize {
    usize::try_from(id.0 & ((1 << INDEX_BITS) - 1)).unwrap_or(usize::MAX)
}

impl Table {
    /// Adds a connection; `None` if the table is full (a million connections).
    pub(super) fn insert(&mut self, socket: Socket, remote: SocketAddr, stage: Stage) -> Option<ConnId> {
        let slot = u64::try_from(self.slots.vacant_key()).ok().filter(|s| *s < 1 << INDEX_BITS)?;
        self.made += 1;
        let id = ConnId(self.made << INDEX_BITS | slot);
        let conn = Conn {
            socket,
            remote,
            local: None,
            stage,
            readable: false,
            writable: false,
            hangup: false,
            wants: false,
            rest: Vec::new(),
            broken: None,
            queued: false,
            stalled: false,
        };
        self.slots.insert((id, conn));
        Some(id)
    }

    pub(super) fn get(&self, id: ConnId) -> Option<&Conn> {
        self.slots.get(index(id)).filter(|(at, _)| *at == id).map(|(_, c)| c)
    }

    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.slots.get_mut(index(id)).filter(|(at, _)| *at == id).map(|(_, c)| c)
    }

    /// Removes a connection and closes its socket.
    pub(super) fn remove(&mut self, id: ConnId) -> Option<Conn> {
        self.get(id)?;
        let (_, conn) = self.slots.remove(index(id));
        Some(conn)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnId, &Conn)> {
        self.slots.iter().map(|(_, (id, conn))| (*id, conn))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Appends a connection to the queue unless it is queued already.
    pub(super) fn enqueue(&mut self, id: ConnId) {
        if let Some(conn) = self.get_mut(id)
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.queue.push_back(id);
        }
    }

    pub(super) fn dequeue(&mut self) -> Option<ConnId> {
        while let Some(id) = self.queue.pop_front() {
            if let Some(conn) = self.get_mut(id) {
                conn.queued = false;
                return Some(id);
            }
        }
        None
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Stalls a connection that is readable while its input buffer is full.
    pub(super) fn stall(&mut self, id: ConnId) {
        if let Some(conn) = self.get_mut(id)
            && !std::mem::replace(&mut conn.stalled, true)
        {
            self.stalled.push_back(id);
        }
    }

    /// Examines up to `most` stalled connections and queues those with room. Returns true if all were
    /// examined.
    pub(super) fn unstall(&mut self, most: usize, has_room: impl Fn(ConnId) -> bool) -> bool {
        let waiting = self.stalled.len();
        for _ in 0..most.min(waiting) {
            let Some(id) = self.stalled.pop_front() else { break };
            let Some(conn) = self.get_mut(id) else { continue };
            if has_room(id) {
                conn.stalled = false;
                self.enqueue(id);
            } else {
                self.stalled.push_back(id);
            }
        }
        most >= waiting
    }

    /// True if connections are stalled.
    pub(super) fn any_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    pub(super) fn set_deadline(&mut self, id: ConnId, at: Instant) {
        self.deadlines.push(Reverse((at, id)));
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns the next existing connection whose deadline has passed. The deadline may belong to an earlier
    /// stage, so the caller checks the stage.
    pub(super) fn expired(&mut self, now: Instant) -> Option<ConnId> {
        while self.deadline().is_some_and(|at| at <= now) {
            let Reverse((_, id)) = self.deadlines.pop()?;
            if self.get(id).is_some() {
                return Some(id);
            }
        }
        None
    }
}
