//! TCP connections of BGP sessions: their table and queue, and the transfer between sockets and the BGP core.

mod io;
mod table;

pub(crate) use io::{Connections, WRITES};
pub(crate) use table::Stage;
