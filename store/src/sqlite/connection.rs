//! A connection that knows which files it is of: those at the path may have been replaced, lost or found damaged since.

use std::sync::Arc;

use rusqlite::Connection;

use super::super::StoreError;
use super::damage;
use super::files::{Files, Identity, OpenConnection};

/// The connection of a reader or a writer.
pub(super) struct FollowedConnection {
    /// Closed when the database is damaged or its log was lost: whatever takes its place is opened anew.
    open: Option<(Connection, OpenConnection)>,
    database: Identity,
    /// The log that the connection knows.
    log: Option<Identity>,
}

impl FollowedConnection {
    /// Of a connection that has read something, so that its log is there. `database`: the file at the path before it was opened.
    pub(super) fn new(files: &Arc<Files>, database: Identity, conn: Connection) -> Self {
        let log = files.log_identity();
        Self { open: Some((conn, OpenConnection::count(files, log))), database, log }
    }

    /// Whether it is of the files that are at the path now; if not, it is to be opened anew: a store that was moved away and made
    /// anew is another store, not the old one for ever.
    pub(super) fn is_current(&mut self, files: &Files) -> Result<bool, StoreError> {
        if files.identity()? != self.database {
            return Ok(false);
        }
        if files.log_identity() != self.log {
            self.close();
        }
        if self.open.is_none() {
            files.check_closed()?;
        }
        Ok(self.open.is_some())
    }

    pub(super) fn close(&mut self) {
        self.open = None;
    }

    pub(super) fn get(&self) -> Result<&Connection, StoreError> {
        self.open.as_ref().map(|(conn, _)| conn).ok_or_else(closed)
    }

    pub(super) fn get_mut(&mut self) -> Result<&mut Connection, StoreError> {
        self.open.as_mut().map(|(conn, _)| conn).ok_or_else(closed)
    }

    /// What a call found: damage closes the connection, and is marked. Not under the lock of the files.
    pub(super) fn conclude<T>(
        &mut self,
        files: &Files,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if matches!(result, Err(StoreError::Damaged(_))) {
            self.close();
        }
        damage::mark_if(files, result)
    }
}

fn closed() -> StoreError {
    StoreError::Unreachable("the database is closed".into())
}
