//! Reads the monotonic and the wall clock for the core, which gets the time with each input and reads no
//! clock.

use std::time::Instant;

use jiff::Timestamp;

use super::core::input::Now;

/// Returns the current time of both clocks.
pub(super) fn now() -> Now {
    Now { mono: Instant::now(), wall: Timestamp::now() }
}

/// Returns the current time as RFC 3339 text with milliseconds.
pub(super) fn now_text() -> String {
    now().text()
}
