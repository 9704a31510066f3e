//! Aliases: rewrites commands of router shells and of calicoctl to those of `tortie`, before arguments are
//! parsed.

use std::ffi::OsString;

/// Aliases and their commands. The longest match wins.
const SPELLINGS: &[(&[&str], &[&str])] = &[
    (&["show", "ip", "bgp", "summary"], &["bgp", "peers"]),
    (&["show", "ip", "bgp", "neighbors"], &["bgp", "peer"]),
    (&["show", "ip", "bgp", "neighbor"], &["bgp", "peer"]),
    (&["show", "ip", "bgp"], &["bgp", "routes"]),
    (&["show", "ipv6", "bgp"], &["bgp", "routes"]),
    (&["show", "bgp", "summary"], &["bgp", "peers"]),
    (&["show", "bgp", "neighbors"], &["bgp", "peer"]),
    (&["show", "bgp", "neighbor"], &["bgp", "peer"]),
    (&["show", "bgp"], &["bgp", "routes"]),
    (&["show", "ip", "route"], &["route", "list"]),
    (&["show", "ipv6", "route"], &["route", "list"]),
    (&["show", "route"], &["bgp", "routes"]),
    (&["show", "protocols"], &["bgp", "peers"]),
    (&["show", "status"], &["status"]),
    (&["show", "version"], &["version"]),
    (&["bgp", "summary"], &["bgp", "peers"]),
    (&["bgp", "neighbors"], &["bgp", "peer"]),
    (&["bgp", "neighbor"], &["bgp", "peer"]),
    (&["neighbors"], &["bgp", "peer"]),
    (&["neighbor"], &["bgp", "peer"]),
    (&["node", "status"], &["status"]),
    (&["node", "diags"], &["diags"]),
    (&["node", "checksystem"], &["doctor"]),
];

/// Global flags with a value in the next word.
const WITH_VALUE: &[&str] = &[
    "--datastore",
    "--etcd-ca",
    "--etcd-cert",
    "--etcd-key",
    "--etcd-user",
    "--etcd-password-file",
    "--data-model",
    "--node",
    "--socket",
    "--output",
    "-o",
    "--color",
];

/// Returns the words with an alias replaced; unknown words are unchanged.
pub(super) fn rewrite(words: Vec<OsString>) -> Vec<OsString> {
    let text: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or("")).collect();
    let start = first_word(&text);
    let rest = text.get(start..).unwrap_or_default();
    let fits = |from: &[&str]| rest.get(..from.len()) == Some(from);
    let Some((from, to)) = SPELLINGS.iter().filter(|(from, _)| fits(from)).max_by_key(|(from, _)| from.len())
    else {
        return words;
    };
    let end = start + from.len();
    // With a name, the command shows one neighbour; without, the table of all.
    let named = text.get(end).is_some_and(|word| !word.starts_with('-'));
    let to: &[&str] = if *to == ["bgp", "peer"] && !named { &["bgp", "peers"] } else { to };
    let meant = to.iter().map(OsString::from);
    words[..start].iter().cloned().chain(meant).chain(words[end..].iter().cloned()).collect()
}

/// Returns the position of the first word that is neither a flag nor the value of one.
fn first_word(text: &[&str]) -> usize {
    let mut at = 1;
    while let Some(word) = text.get(at).filter(|word| word.starts_with('-')) {
        at += if WITH_VALUE.contains(word) { 2 } else { 1 };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(typed: &str) -> String {
        let words = typed.split(' ').map(OsString::from).collect();
        let words: Vec<String> = rewrite(words).into_iter().map(|word| word.into_string().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn fingers_find_what_they_know() {
        for (typed, means) in [
            ("tortie show bgp summary", "tortie bgp peers"),
            ("tortie show ip bgp", "tortie bgp routes"),
            ("tortie show ip bgp 10.0.0.0/26", "tortie bgp routes 10.0.0.0/26"),
            ("tortie show ip bgp summary -o json", "tortie bgp peers -o json"),
            ("tortie -o json show bgp neighbors 192.0.2.1", "tortie -o json bgp peer 192.0.2.1"),
            ("tortie neighbor", "tortie bgp peers"),
            ("tortie neighbor tor-a", "tortie bgp peer tor-a"),
            ("tortie --socket /s node status", "tortie --socket /s status"),
            ("tortie node diags", "tortie diags"),
            ("tortie node checksystem -o json", "tortie doctor -o json"),
            ("tortie node list", "tortie node list"),
            ("tortie ipam check", "tortie ipam check"),
            ("tortie show", "tortie show"),
            ("tortie", "tortie"),
        ] {
            assert_eq!(meant(typed), means);
        }
    }

    #[test]
    fn what_they_mean_is_there() {
        use clap::Parser;
        for (typed, _) in SPELLINGS {
            let words = rewrite(std::iter::once(&"tortie").chain(*typed).map(OsString::from).collect());
            let parsed = super::super::Cli::try_parse_from(&words);
            assert!(parsed.is_ok(), "{typed:?}: {}", parsed.unwrap_err());
        }
    }
}
