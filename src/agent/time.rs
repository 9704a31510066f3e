//! The clocks, read where something happens: the core gets their time with each input.

use std::time::Instant;

use jiff::Timestamp;

use super::core::input::Now;

/// Both clocks, now.
pub(super) fn now() -> Now {
    Now { mono: Instant::now(), wall: Timestamp::now() }
}

/// Now, as RFC 3339 with milliseconds.
pub(super) fn now_text() -> String {
    now().text()
}
