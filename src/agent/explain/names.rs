//! Lists of names in texts.

/// Names that a list shows.
const LISTED_MAX: usize = 5;

/// The first few of a list.
pub(super) fn joined(names: &[String]) -> String {
    let shown = names.iter().take(LISTED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(LISTED_MAX) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}
