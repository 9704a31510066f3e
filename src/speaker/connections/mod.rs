//! TCP connections of sessions: their table and queue, and reading and writing between sockets and the BGP core.

mod io;
mod table;

pub(crate) use io::{Connections, WRITES};
pub(crate) use table::Stage;
