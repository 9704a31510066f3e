//! Escapes names inside keys: `/` as `%2f` and `%` as `%25`; no other characters.

use std::borrow::Cow;

/// Escapes a name for use as a key element.
#[must_use]
pub fn escape(name: &str) -> Cow<'_, str> {
    if name.contains(['%', '/']) {
        // `%` is replaced first, because the other order would escape the escape sequences.
        Cow::Owned(name.replace('%', "%25").replace('/', "%2f"))
    } else {
        Cow::Borrowed(name)
    }
}

/// Unescapes a key element. A `%` that does not begin `%2f` or `%25` is kept.
#[must_use]
pub fn unescape(element: &str) -> Cow<'_, str> {
    if element.contains('%') {
        Cow::Owned(element.replace("%2f", "/").replace("%25", "%"))
    } else {
        Cow::Borrowed(element)
    }
}
