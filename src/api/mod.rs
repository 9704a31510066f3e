//! What the agent answers: a unix socket (reads and writes) and an HTTP port on loopback (reads).
//!
//! What it does not: it decides nothing and holds no state. Every answer is a question to the [`Backend`], which the
//! agent implements; the JSON is in [`api`] and is the same that the command line prints with `-o json`.
//!
//! ```text
//!  cli --unix socket--> http.rs --Backend--> core, speaker and kernel threads
//!  browser, Prometheus, probes --127.0.0.1:9099--> guard.rs --> http.rs; `/` is page/
//! ```

pub mod bgp;
pub mod client;
pub mod codes;
pub mod explain;
pub mod http;
pub mod ipam;
pub mod nodes;
pub mod observe;
pub mod policy;
pub mod status;

pub use crate::api::http::metrics::serve_metrics;
pub use http::{ServeError, Serving, serve_tcp, serve_unix};

use std::sync::Arc;
use std::time::Duration;

use bgp::{BgpRoute, Peer, PeerRange};
use explain::Why;
use ipam::{BlockRow, BlockView, PoolRow};
use nodes::ClusterNode;
use policy::{
    Diff, DiffRequest, DropRow, DryRun, DryRunRequest, Endpoint, EndpointDetail, LiveTrace, LiveTraceRequest,
    Policy, PolicyDetail, Trace, TraceQuery,
};
use serde::Deserialize;
use status::{
    ApiError, Applied, AppliedRequest, Done, DrainRequest, Event, KernelRouteRow, List, LogLevelRequest,
    ResetRequest, RouteGet, Status,
};
use tortie_net::Cidr;

/// An answer that is sent as it is made.
pub type OctetStream =
    std::pin::Pin<Box<dyn futures_util::Stream<Item = std::io::Result<bytes::Bytes>> + Send>>;

/// What the running agent can be asked. Every method answers from live state.
#[async_trait::async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The one-screen verdict.
    async fn status(&self) -> Arc<Status>;
    /// All wanted peers, and those that came from ranges.
    async fn peers(&self) -> Result<List<Peer>, ApiError>;
    /// The ranges of addresses from which sessions are taken.
    async fn ranges(&self) -> Result<List<PeerRange>, ApiError>;
    /// The BGP table, or the part of it that a peer sent or gets.
    async fn bgp_routes(&self, query: RouteQuery) -> Result<List<BgpRoute>, ApiError>;
    /// The BGP table as MRT, and how many prefixes it has, roughly.
    async fn mrt_table(&self) -> Result<(u64, OctetStream), ApiError>;
    /// BGP messages of all peers or of one as MRT, from now until the stream is dropped.
    async fn mrt_updates(&self, peer: Option<String>) -> Result<OctetStream, ApiError>;
    /// Routes of the kernel room.
    async fn kernel_routes(&self, query: RouteQuery) -> Result<List<KernelRouteRow>, ApiError>;
    /// What happens to a packet for this address.
    async fn route_get(&self, address: std::net::IpAddr) -> Result<RouteGet, ApiError>;
    /// Endpoints of this host, or of all.
    async fn endpoints(&self, all: bool) -> Result<List<Endpoint>, ApiError>;
    /// One endpoint with what its packets pass.
    async fn endpoint(&self, name: String) -> Result<EndpointDetail, ApiError>;
    /// Policies and profiles that act on endpoints of this host, or all.
    async fn policies(&self, all: bool) -> Result<List<Policy>, ApiError>;
    /// One policy or profile with its rules.
    async fn policy(&self, name: String) -> Result<PolicyDetail, ApiError>;
    /// What becomes of a packet; with the interfaces and routes of this host as the kernel has them, or without.
    async fn trace(&self, query: TraceQuery, kernel: bool) -> Result<Trace, ApiError>;
    /// What becomes of packets that pass now, until the time is up or the question is dropped.
    async fn live_trace(&self, request: LiveTraceRequest) -> Result<LiveTrace, ApiError>;
    /// What a value would change, were it written.
    async fn dry_run(&self, request: DryRunRequest) -> Result<DryRun, ApiError>;
    /// What packet rules dropped within this time, the most frequent first.
    async fn drops(&self, within: Duration) -> Result<List<DropRow>, ApiError>;
    /// Why a session is up or not.
    async fn why_peer(&self, name: String) -> Result<Why, ApiError>;
    /// Why a prefix, or the one that covers an address, is used or not; with `to`, whether that peer is told.
    async fn why_route(&self, prefix: String, to: Option<String>) -> Result<Why, ApiError>;
    /// What this host does with an address.
    async fn why_ip(&self, address: std::net::IpAddr) -> Result<Why, ApiError>;
    /// How the kernel differs from what is wanted, with at most `max` lines of each kind.
    async fn diff(&self, max: usize) -> Result<Diff, ApiError>;
    /// Every host of the store with what it told of itself, read a few seconds ago at most.
    async fn nodes(&self) -> Result<List<ClusterNode>, ApiError>;
    /// Pools with what is used of them, read from the store a few seconds ago at most.
    async fn ipam_pools(&self) -> Result<List<PoolRow>, ApiError>;
    /// Blocks of one pool, or all; likewise.
    async fn ipam_blocks(&self, pool: Option<Cidr>) -> Result<List<BlockRow>, ApiError>;
    /// One block with its addresses; likewise.
    async fn ipam_block(&self, block: Cidr) -> Result<BlockView, ApiError>;
    /// Leaves differences for study, or repairs them now.
    async fn study(&self, request: DiffRequest) -> Result<Done, ApiError>;
    /// The flight recorder, oldest first.
    async fn history(&self, query: EventQuery) -> Result<List<Event>, ApiError>;
    /// What is recorded from now on, or after the number `last` that somebody had before.
    async fn follow(&self, query: EventQuery, last: Option<u64>) -> Result<EventStream, ApiError>;
    /// Waits until an endpoint is in force.
    async fn applied(&self, request: AppliedRequest) -> Applied;
    /// Resets a session.
    async fn reset(&self, request: ResetRequest) -> Result<Done, ApiError>;
    /// Begins or ends a graceful shutdown towards peers (RFC 8326).
    async fn drain(&self, request: DrainRequest) -> Result<Done, ApiError>;
    /// Takes the store as it is, ending a freeze.
    async fn accept_store(&self) -> Result<Done, ApiError>;
    /// Another level of the logs, for a while.
    async fn log_level(&self, request: LogLevelRequest) -> Result<Done, ApiError>;
    /// A page of metrics.
    async fn metrics(&self, page: MetricsPage) -> String;
    /// Counts what a plugin did that ends.
    fn told(&self, told: status::Told);
    /// Counts a request that was answered: its route and status.
    fn served(&self, route: &str, status: u16, took: Duration);
    /// The loops still turn.
    fn live(&self) -> bool;
    /// Serving.
    fn ready(&self) -> bool;
}

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

/// What one who follows the flight recorder gets.
#[derive(Debug, Clone)]
pub enum Followed {
    /// An entry.
    Event(Arc<Event>),
    /// Something is missing here: ask anew for what is shown. The number of the newest entry; 0: not said.
    Reset(u64),
}

/// Entries as they are made.
pub type EventStream = std::pin::Pin<Box<dyn futures_util::Stream<Item = Followed> + Send>>;

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
