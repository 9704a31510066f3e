//! The JSON of the agent's API, its problem codes, and its client.
//!
//! The server is not here but in `agent/api`. The command line prints the same JSON with `-o json`.

pub mod bgp;
pub mod client;
pub mod codes;
pub mod escape;
pub mod explain;
pub mod ipam;
pub mod machine;
pub mod nodes;
pub mod observe;
pub mod page;
pub mod policy;
pub mod problem;
pub mod replay;
pub mod status;
pub mod terminal;

use serde::Deserialize;

/// A page of metrics: a set of names in one exposition format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsPage {
    /// Tortie's own names in the Prometheus text format 0.0.4.
    Prometheus,
    /// Tortie's own names as OpenMetrics 1.0.
    OpenMetrics,
    /// Names of Felix and of kube-controllers' IPAM metrics, in the text format 0.0.4.
    Felix,
    /// Names of bird_exporter, in the text format 0.0.4.
    Bird,
}

/// Query of the flight recorder; an absent member does not restrict the result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventQuery {
    /// Entries after this sequence number; 0 begins with the newest.
    #[serde(default)]
    pub after: u64,
    /// Maximum age in seconds.
    pub since: Option<u64>,
    /// Any of these kinds, separated by commas: `agent`, `bgp`, `ipam`, `kernel`, `policy`, `route`, `store`.
    pub kinds: Option<String>,
    /// Entries about this session, by its name, the node's name or the address.
    pub peer: Option<String>,
    /// Entries about this prefix or address, or about a prefix that contains it or lies inside it.
    pub prefix: Option<String>,
    /// Entries about this endpoint, by any of its names.
    pub endpoint: Option<String>,
    /// Entries whose subject contains this text, or that belong to the change with this id.
    pub subject: Option<String>,
    /// Maximum number of entries (default 1,000, at most 16,384).
    pub max: Option<usize>,
}

/// Query of BGP or kernel routes; an absent member does not restrict the result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteQuery {
    /// Exactly this prefix, or the longest match for this address; `/v1/routes` accepts several, separated by
    /// commas.
    pub prefix: Option<String>,
    /// Prefixes inside this one.
    pub within: Option<String>,
    /// Routes received from this peer, before import policy.
    pub from: Option<String>,
    /// Routes announced to this peer.
    pub to: Option<String>,
    /// Position after which the next page begins: the `next` of the page before.
    pub after: Option<String>,
    /// Maximum number of routes (default 1,000, at most 10,000).
    pub max: Option<usize>,
}

/// Formats seconds with at most two units: `42s`, `6m12s`, `4h11m`, `12d04h`.
#[must_use]
pub fn span(seconds: u64) -> String {
    let (d, h, m, s) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    match (d, h, m) {
        (0, 0, 0) => format!("{s}s"),
        (0, 0, _) => format!("{m}m{s:02}s"),
        (0, _, _) => format!("{h}h{m:02}m"),
        _ => format!("{d}d{h:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units() {
        assert_eq!(span(0), "0s");
        assert_eq!(span(372), "6m12s");
        assert_eq!(span(4 * 3_600 + 11 * 60), "4h11m");
        assert_eq!(span(12 * 86_400 + 4 * 3_600), "12d04h");
    }
}
