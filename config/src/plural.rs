//! Counts in texts: "1 endpoint", "2 endpoints", "1 policy", "3 policies".

use std::fmt::Display;

/// A number with its noun, which is given in the singular; of several words the last one takes the plural.
///
/// ```
/// assert_eq!(tortie_config::counted(1, "BGP session"), "1 BGP session");
/// assert_eq!(tortie_config::counted(0, "policy"), "0 policies");
/// assert_eq!(tortie_config::counted(2, "prefix"), "2 prefixes");
/// ```
#[must_use]
pub fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    if count == "1" {
        return format!("{count} {noun}");
    }
    let stem = noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u']));
    match stem {
        Some(stem) => format!("{count} {stem}ies"),
        None if noun.ends_with(['s', 'x', 'z']) || noun.ends_with("ch") || noun.ends_with("sh") => {
            format!("{count} {noun}es")
        }
        None => format!("{count} {noun}s"),
    }
}

#[test]
fn nouns_have_their_plural_but_for_one() {
    for (noun, many) in [
        ("endpoint", "endpoints"),
        ("entry", "entries"),
        ("key", "keys"),
        ("address", "addresses"),
        ("other problem", "other problems"),
        ("batch", "batches"),
    ] {
        assert_eq!(counted(1_u8, noun), format!("1 {noun}"));
        assert_eq!(counted(0_u64, noun), format!("0 {many}"));
        assert_eq!(counted(21_usize, noun), format!("21 {many}"));
    }
}
