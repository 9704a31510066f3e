//! Suggests the intended name for a misspelt one.

/// Returns the most similar name, if it is similar enough to be the intended one.
pub(crate) fn nearest<'a>(found: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = match found.chars().count() {
        0..=2 => 1,
        3..=5 => 2,
        _ => 3,
    };
    let near = names.into_iter().map(|name| (distance(found, name), name));
    near.filter(|(distance, _)| *distance <= most).min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Returns the edit distance: characters inserted, deleted, replaced or swapped with their neighbour,
/// ignoring case.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let lower = |text: &str| -> String { text.chars().flat_map(char::to_lowercase).take(64).collect() };
    strsim::osa_distance(&lower(a), &lower(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_are_near_and_other_words_are_not() {
        let names = ["password", "passive_mode", "inbound_rules", "ipip", "as_num"];
        for (found, meant) in [
            ("passwrd", "password"),
            ("pasword", "password"),
            ("Password", "password"),
            ("inboud_rules", "inbound_rules"),
            ("ipipp", "ipip"),
            ("asnum", "as_num"),
            ("as_nmu", "as_num"),
        ] {
            assert_eq!(nearest(found, names), Some(meant), "{found}");
        }
        for found in ["colour", "x", "metadata_of_mine", ""] {
            assert_eq!(nearest(found, names), None, "{found}");
        }
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
