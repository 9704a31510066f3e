//! Queries of a speaker on a read-only view: peers and totals ([`status`]), routes ([`routes`]), and
//! explanations of import and export ([`explain`]).

mod explain;
mod routes;
mod status;

use crate::api::GlobalConfig;
use crate::ribs::RibSet;
use crate::session::connections::Connections;
use crate::session::peer_table::PeerTable;

/// Read-only view of all state that queries need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    global: &'a GlobalConfig,
    peers: &'a PeerTable,
    connections: &'a Connections,
    ribs: &'a RibSet,
}

impl<'a> View<'a> {
    pub(crate) fn new(
        global: &'a GlobalConfig,
        peers: &'a PeerTable,
        connections: &'a Connections,
        ribs: &'a RibSet,
    ) -> Self {
        Self { global, peers, connections, ribs }
    }
}
