//! Formats lists of names in texts.

/// Maximum number of listed names.
const LISTED_MAX: usize = 5;

/// Joins the first names of a list and counts the others.
pub(super) fn joined(names: &[String]) -> String {
    let shown = names.iter().take(LISTED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(LISTED_MAX) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}
