//! The table of connections: found by id, worked on in turn.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use slab::Slab;
use socket2::Socket;
use tortie_bgp::{ConnId, PeerId};

/// Bits of a [`ConnId`] that are the index into the table; the others count up, so that no id comes twice.
const INDEX_BITS: u32 = 20;

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Connects; the speaker does not know it yet.
    Dialling(PeerId),
    /// The speaker's.
    Open,
    /// The speaker has forgotten it; what is left is written.
    Flushing,
    /// Our side is closed; what the peer still sends is read and dropped, because closing a socket with unread data
    /// sends a reset that can overtake our NOTIFICATION.
    Draining,
}

pub(crate) struct Conn {
    pub(crate) socket: Socket,
    pub(crate) remote: SocketAddr,
    pub(crate) stage: Stage,
    /// The socket may have something to read, as far as epoll told.
    pub(crate) readable: bool,
    /// The socket may take something, as far as epoll told.
    pub(crate) writable: bool,
    /// The peer's side is closed: read on to the end.
    pub(crate) hangup: bool,
    /// The speaker has bytes for it.
    pub(crate) wants: bool,
    /// What a write left over; holds memory only while it is not empty.
    pub(crate) rest: Vec<u8>,
    /// A write failed for this reason; reported once all that was received before has been read.
    pub(crate) broken: Option<String>,
    queued: bool,
    stalled: bool,
}

/// All connections.
#[derive(Default)]
pub(crate) struct Conns {
    table: Slab<(ConnId, Conn)>,
    made: u64,
    queue: VecDeque<ConnId>,
    stalled: VecDeque<ConnId>,
    deadlines: BinaryHeap<Reverse<(Instant, ConnId)>>,
}

fn index(id: ConnId) -> usize {
    usize::try_from(id.0 & ((1 << INDEX_BITS) - 1)).unwrap_or(usize::MAX)
}

impl Conns {
    /// `None` when the table is full (a million connections).
    pub(crate) fn insert(&mut self, socket: Socket, remote: SocketAddr, stage: Stage) -> Option<ConnId> {
        let slot = u64::try_from(self.table.vacant_key()).ok().filter(|s| *s < 1 << INDEX_BITS)?;
        self.made += 1;
        let id = ConnId(self.made << INDEX_BITS | slot);
        let conn = Conn {
            socket,
            remote,
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
        self.table.insert((id, conn));
        Some(id)
    }

    pub(crate) fn get(&self, id: ConnId) -> Option<&Conn> {
        self.table.get(index(id)).filter(|(at, _)| *at == id).map(|(_, c)| c)
    }

    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.table.get_mut(index(id)).filter(|(at, _)| *at == id).map(|(_, c)| c)
    }

    /// Closes the socket, too.
    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Conn> {
        self.get(id)?;
        let (_, conn) = self.table.remove(index(id));
        Some(conn)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnId, &Conn)> {
        self.table.iter().map(|(_, (id, conn))| (*id, conn))
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Puts it at the end of the queue, once.
    pub(crate) fn enqueue(&mut self, id: ConnId) {
        if let Some(conn) = self.get_mut(id)
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.queue.push_back(id);
        }
    }

    pub(crate) fn dequeue(&mut self) -> Option<ConnId> {
        while let Some(id) = self.queue.pop_front() {
            if let Some(conn) = self.get_mut(id) {
                conn.queued = false;
                return Some(id);
            }
        }
        None
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Sets aside one that could be read but whose input is full.
    pub(crate) fn stall(&mut self, id: ConnId) {
        if let Some(conn) = self.get_mut(id)
            && !std::mem::replace(&mut conn.stalled, true)
        {
            self.stalled.push_back(id);
        }
    }

    /// Looks at up to `most` of those set aside and queues those that have room again; `true`: all were looked at.
    pub(crate) fn unstall(&mut self, most: usize, has_room: impl Fn(ConnId) -> bool) -> bool {
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

    /// Whether any is set aside.
    pub(crate) fn any_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    pub(crate) fn set_deadline(&mut self, id: ConnId, at: Instant) {
        self.deadlines.push(Reverse((at, id)));
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    /// The next one whose deadline passed and that still exists. A deadline that was for an earlier stage comes too:
    /// the caller looks at the stage.
    pub(crate) fn expired(&mut self, now: Instant) -> Option<ConnId> {
        while self.deadline().is_some_and(|at| at <= now) {
            let Reverse((_, id)) = self.deadlines.pop()?;
            if self.get(id).is_some() {
                return Some(id);
            }
        }
        None
    }
}
