//! Table of all connections, queue of those with input, and final messages of closed ones.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::connection::{Conn, Input};
use super::peer::Peer;
use crate::api::ConnId;

/// Time for which a final message is kept for the embedder.
const CLOSING: Duration = Duration::from_secs(10);

/// Table of connections; see the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    open: FxHashMap<ConnId, Conn>,
    /// Final messages (NOTIFICATIONs) of closed connections.
    closing: FxHashMap<ConnId, Vec<u8>>,
    closing_order: VecDeque<(Instant, ConnId)>,
    /// Connections with whole messages to read, in the order of service.
    readable: VecDeque<ConnId>,
}

impl Connections {
    #[inline]
    pub(crate) fn get(&self, id: ConnId) -> Option<&Conn> {
        self.open.get(&id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.open.get_mut(&id)
    }

    pub(crate) fn contains(&self, id: ConnId) -> bool {
        self.open.contains_key(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn ids(&self) -> Vec<ConnId> {
        self.open.keys().copied().collect()
    }

    /// Returns the established connection of a peer.
    pub(crate) fn session(&self, peer: &Peer) -> Option<&Conn> {
        self.get(peer.session?)
    }

    pub(crate) fn insert(&mut self, id: ConnId, conn: Conn) {
        self.open.insert(id, conn);
    }

    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Conn> {
        self.open.remove(&id)
    }

    /// Returns the input buffer of a connection after a read. `rest`: unread octets that were not in `input`.
    /// `more`: whole messages may be left, so the connection is queued again.
    pub(crate) fn put_back(&mut self, id: ConnId, mut input: Input, rest: &[u8], more: bool) {
        let Some(conn) = self.open.get_mut(&id) else { return };
        if !rest.is_empty() {
            input.push(rest);
        }
        conn.input = input;
        if more && !conn.queued {
            conn.queued = true;
            self.readable.push_back(id);
        }
    }

    /// Returns the number of connections with messages to read.
    pub(crate) fn readable(&self) -> usize {
        self.readable.len()
    }

    /// Takes the connection that has waited longest for a read.
    pub(crate) fn next_readable(&mut self) -> Option<ConnId> {
        let id = self.readable.pop_front()?;
        if let Some(conn) = self.open.get_mut(&id) {
            conn.queued = false;
        }
        Some(id)
    }

    /// Keeps the final message of a connection until the embedder takes it.
    pub(crate) fn set_last_message(&mut self, id: ConnId, message: Vec<u8>, now: Instant) {
        self.closing.insert(id, message);
        self.closing_order.push_back((now, id));
    }

    /// Takes the final message of a closed connection.
    pub(crate) fn take_last_message(&mut self, id: ConnId) -> Option<Vec<u8>> {
        self.closing.remove(&id)
    }

    /// Discards final messages that the embedder did not take in time.
    pub(crate) fn expire_last_messages(&mut self, now: Instant) {
        while let Some((at, id)) = self.closing_order.front().copied() {
            if self.closing.contains_key(&id) && now.duration_since(at) < CLOSING {
                return;
            }
            self.closing.remove(&id);
            self.closing_order.pop_front();
        }
    }
}
