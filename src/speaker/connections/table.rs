//! The table of connections: found by id, and queued when there is work.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use slab::Slab;
use socket2::Socket;
use tortie_bgp::{ConnId, PeerId};

/// Bits of a [`ConnId`] that are the index into the table; the others count up, so that no id comes twice.
const INDEX_BITS: u32 = 20;

/// Stage of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Connects; the BGP core does not know it yet.
    Connecting(PeerId),
    /// Open in the BGP core.
    Open,
    /// The BGP core has closed it; its last octets are written.
    Flushing,
    /// Our side is closed; what the peer still sends is read and dropped, because closing a socket with unread data
    /// sends a reset that can overtake our NOTIFICATION.
    Draining,
}

pub(super) struct Conn {
    pub(super) socket: Socket,
    pub(super) remote: SocketAddr,
    /// Our end, once it is known.
    pub(super) local: Option<SocketAddr>,
    pub(super) stage: Stage,
    /// The socket may have something to read, as of the last epoll event.
    pub(super) readable: bool,
    /// The socket may take something, as of the last epoll event.
    pub(super) writable: bool,
    /// The peer's side is closed: read on to the end.
    pub(super) hangup: bool,
    /// The BGP core has octets for it.
    pub(super) wants: bool,
    /// Octets that the socket did not take; holds memory only while it is not empty.
    pub(super) rest: Vec<u8>,
    /// A write failed for this reason; reported once all that was received before has been read.
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
    /// `None` when the table is full (a million connections).
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

    /// Closes the socket, too.
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

    /// Puts it at the end of the queue, once.
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

    /// Sets aside one that could be read but whose input is full.
    pub(super) fn stall(&mut self, id: ConnId) {
        if let Some(conn) = self.get_mut(id)
            && !std::mem::replace(&mut conn.stalled, true)
        {
            self.stalled.push_back(id);
        }
    }

    /// Looks at up to `most` of those set aside and queues those that have room again; `true`: all were looked at.
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

    /// `true`: there are connections set aside.
    pub(super) fn any_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    pub(super) fn set_deadline(&mut self, id: ConnId, at: Instant) {
        self.deadlines.push(Reverse((at, id)));
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    /// The next one whose deadline passed and that still exists. A deadline that was for an earlier stage comes too:
    /// the caller looks at the stage.
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
