//! A database connection that detects if the files at its path were replaced, removed or found damaged.

use std::sync::Arc;

use rusqlite::Connection;

use super::super::StoreError;
use super::damage;
use super::files::{Files, Identity, OpenConnection};

/// Connection of a reader or a writer, with the identity of its files.
pub(super) struct FollowedConnection {
    /// `None` after damage or the loss of the write-ahead log: the files that take their place are opened
    /// anew.
    open: Option<(Connection, OpenConnection)>,
    database: Identity,
    /// Identity of the write-ahead log that the connection uses.
    log: Option<Identity>,
}

impl FollowedConnection {
    /// Wraps a connection that has read something, so that its write-ahead log exists. `database` is the
    /// identity of the file at the path before it was opened.
    pub(super) fn new(files: &Arc<Files>, database: Identity, conn: Connection) -> Self {
        let log = files.log_identity();
        Self { open: Some((conn, OpenConnection::count(files, log))), database, log }
    }

    /// Returns true if the connection uses the files that are at the path now. Otherwise the caller opens the
    /// database anew: after a store was moved away and recreated, an old connection would use the old files
    /// for ever.
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

    /// Handles the result of a call: damage closes the connection and is marked. The caller must not hold the
    /// lock file.
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
