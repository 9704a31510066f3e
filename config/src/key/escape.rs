//! Escaping of names inside of keys: `/` is written `%2f`, `%` is written `%25`, nothing else.

use std::borrow::Cow;

/// Writes a name as an element of a key.
#[must_use]
pub fn escape(name: &str) -> Cow<'_, str> {
    if name.contains(['%', '/']) {
        // The per cent sign first: the other way round would escape the escapes.
        Cow::Owned(name.replace('%', "%25").replace('/', "%2f"))
    } else {
        Cow::Borrowed(name)
    }
}

/// Reads an element of a key; a `%` that starts neither `%2f` nor `%25` stands for itself.
#[must_use]
pub fn unescape(element: &str) -> Cow<'_, str> {
    if element.contains('%') {
        Cow::Owned(element.replace("%2f", "/").replace("%25", "%"))
    } else {
        Cow::Borrowed(element)
    }
}
