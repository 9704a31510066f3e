//! The JSON of the agent's API, its codes, and the client that asks for it.
//!
//! What it does not: serve. The agent does, in `agent/api`; the JSON is the same that the command line prints with `-o json`.

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

/// Which metrics, in which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsPage {
    /// The native names in the text format 0.0.4 of Prometheus.
    Prometheus,
    /// The native names as OpenMetrics 1.0.
    OpenMetrics,
    /// The names of Felix and of kube-controllers' IPAM metrics, text format 0.0.4.
    Felix,
    /// The names of bird_exporter, text format 0.0.4.
    Bird,
}

/// Which entries of the flight recorder; what is not said is no condition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventQuery {
    /// After this number; 0: the newest.
    #[serde(default)]
    pub after: u64,
    /// Not longer ago than this, in seconds.
    pub since: Option<u64>,
    /// Any of these kinds, with commas: `agent`, `bgp`, `ipam`, `kernel`, `policy`, `route`, `store`.
    pub kinds: Option<String>,
    /// About this session: its name, the node's name or the address.
    pub peer: Option<String>,
    /// About this prefix or address, one inside of it or one around it.
    pub prefix: Option<String>,
    /// About this endpoint, by any of its names.
    pub endpoint: Option<String>,
    /// Whose subject holds this text, or whose change it is.
    pub subject: Option<String>,
    /// At most this many (default 1,000, at most 16,384).
    pub max: Option<usize>,
}

/// Which routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteQuery {
    /// Exactly this prefix, or the longest match of this address; of `/v1/routes` several with commas.
    pub prefix: Option<String>,
    /// All inside of this prefix.
    pub within: Option<String>,
    /// Received from this peer (before import policy).
    pub from: Option<String>,
    /// Announced to this peer.
    pub to: Option<String>,
    /// Go on where a page ended: its `next`.
    pub after: Option<String>,
    /// At most this many (default 1,000, at most 10,000).
    pub max: Option<usize>,
}

/// Seconds as people write them: `42s`, `6m12s`, `4h11m`, `12d04h`.
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
