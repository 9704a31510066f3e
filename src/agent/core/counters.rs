//! Counters and latency histograms of the core for metrics; copied for each scrape.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::agent::core::input::Timing;
use tortie_engine::policy::RulesetDelta;
use tortie_metrics::Histogram;

/// Counters and latencies of the core.
#[derive(Debug, Clone, Default)]
pub(in crate::agent) struct CoreCounters {
    /// Duration of one iteration of the core's loop, during which all other events wait.
    pub(in crate::agent) iterations: Histogram,
    /// Time from a store event to the new intent.
    pub(in crate::agent) calculated: Histogram,
    /// Processing time of a full snapshot.
    pub(in crate::agent) snapshot: Histogram,
    /// Time from a store event to the kernel's acknowledgement of own routes.
    pub(in crate::agent) routes: Histogram,
    /// Time from a store event to the kernel's acknowledgement of rules and endpoints, by trigger.
    pub(in crate::agent) policy: BTreeMap<&'static str, Histogram>,
    /// Time from a plugin's request until the dataplane has applied the endpoint.
    pub(in crate::agent) endpoint_ready: Histogram,
    /// Store changes by action (`put`, `delete` or `unchanged`) and kind of key.
    pub(in crate::agent) events: BTreeMap<(&'static str, &'static str), u64>,
    /// Watches that were opened again, by reason.
    pub(in crate::agent) restarts: BTreeMap<&'static str, u64>,
    /// Changes of settings in the store: applied, and ignored because a value cannot be read.
    pub(in crate::agent) reloads: [u64; 2],
    /// Generations of unacknowledged intents with the receive time of their store event.
    in_flight: VecDeque<(u64, Instant)>,
}

/// Maximum number of unacknowledged intents whose time is kept.
const IN_FLIGHT_MAX: usize = 1_024;

impl CoreCounters {
    /// Records a measured duration.
    pub(in crate::agent) fn time(&mut self, timing: Timing) {
        let (times, spent) = match timing {
            Timing::Iteration(spent) => (&mut self.iterations, spent),
            Timing::Calculated(spent) => (&mut self.calculated, spent),
            Timing::Snapshot(spent) => (&mut self.snapshot, spent),
            Timing::EndpointReady(spent) => (&mut self.endpoint_ready, spent),
        };
        times.time(spent);
    }

    /// Records that an intent was sent to the kernel thread; its store event was received at `received`.
    pub(in crate::agent) fn intent_sent(&mut self, generation: u64, received: Instant) {
        if self.in_flight.len() == IN_FLIGHT_MAX {
            self.in_flight.pop_front();
        }
        self.in_flight.push_back((generation, received));
    }

    /// Records the kernel's acknowledgement of this intent and all earlier ones.
    pub(in crate::agent) fn intent_acknowledged(&mut self, generation: u64, now: Instant) {
        while let Some((_, received)) =
            self.in_flight.front().copied().filter(|(sent, _)| *sent <= generation)
        {
            self.routes.time(now.saturating_duration_since(received));
            self.in_flight.pop_front();
        }
    }
}

/// Classifies a policy change for metrics by the part that is closest to an endpoint.
pub(in crate::agent) fn trigger(delta: &RulesetDelta) -> &'static str {
    if !delta.endpoints.is_empty() {
        "endpoint"
    } else if !delta.chains.is_empty() {
        "policy"
    } else if !delta.sets.is_empty() {
        "set"
    } else {
        "frame"
    }
}

/// Returns the kind of a key of the data model, as a metric label.
pub(in crate::agent) fn kind(key: &str) -> &'static str {
    let Some(rest) = key.strip_prefix("/calico/") else { return "other" };
    if let Some(rest) = rest.strip_prefix("v1/") {
        return match rest.split('/').next() {
            Some("config") => "config",
            Some("ipam") => "pool",
            Some("Ready") => "ready",
            Some("policy") if rest.starts_with("policy/profile/") => "profile",
            Some("policy") => "policy",
            Some("host") => match rest.split('/').nth(2) {
                Some("workload") => "workload",
                Some("endpoint") => "host_endpoint",
                Some("config") => "config",
                _ => "host",
            },
            _ => "other",
        };
    }
    match rest.split('/').next() {
        Some("bgp") => "bgp",
        Some("ipam") if rest.starts_with("ipam/v2/assignment/") => "block",
        Some("ipam") if rest.starts_with("ipam/v2/host/") => "affinity",
        Some("ipam") => "ipam",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinguished() {
        for (key, of) in [
            ("/calico/v1/config/LogSeverityScreen", "config"),
            ("/calico/v1/host/h1/config/IpInIpMtu", "config"),
            ("/calico/v1/host/h1/workload/cni/a/endpoint/eth0", "workload"),
            ("/calico/v1/host/h1/endpoint/eth0", "host_endpoint"),
            ("/calico/v1/policy/tier/default/policy/p", "policy"),
            ("/calico/v1/policy/profile/p/rules", "profile"),
            ("/calico/v1/ipam/v4/pool/10.65.0.0-16", "pool"),
            ("/calico/bgp/v1/global/as_num", "bgp"),
            ("/calico/ipam/v2/assignment/ipv4/block/10.65.0.0-26", "block"),
            ("/calico/ipam/v2/host/h1/ipv4/block/10.65.0.0-26", "affinity"),
            ("/calico/ipam/v2/config", "ipam"),
            ("/calico/v1/Ready", "ready"),
            ("/other", "other"),
        ] {
            assert_eq!(kind(key), of, "{key}");
        }
    }
}
