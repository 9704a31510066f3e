//! Counts plugin calls: those that the agent serves itself, and those that plugin processes report when they
//! end.

use std::path::Path;
use std::time::Duration;

use crate::api::client::Client;
use crate::api::status::{ActionResult, PluginCall, PluginRequests};
use tortie_engine::ipam::metrics as ipam;
use tortie_metrics::Table;

/// Durations of calls by plugin, operation and result.
pub type Calls = Table<(&'static str, &'static str, &'static str)>;

static CALLS: Calls = Table::new();

/// Returns the counters of this process.
#[must_use]
pub fn calls() -> &'static Calls {
    &CALLS
}

/// Maximum time that a plugin spends on its report to the agent.
const REPORT_TIMEOUT: Duration = Duration::from_millis(200);
const PLUGINS: [&str; 2] = ["cni", "cni-ipam"];
const OPS: [&str; 5] = ["add", "del", "check", "gc", "status"];

/// Reports the call of this process to the host's agent, if one runs. Errors are ignored.
pub(super) async fn report(socket: &Path, plugin: &str, op: &str, ok: bool, took: Duration) {
    if !socket.exists() {
        return;
    }
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let metrics = ipam::metrics();
    let requests = metrics.requests.read().into_iter().map(|((op, result), times)| PluginRequests {
        op: op.to_owned(),
        result: result.to_owned(),
        count: times.count(),
        micros: micros(Duration::from_secs_f64(times.sum().max(0.0))),
    });
    let reported = PluginCall {
        plugin: plugin.to_owned(),
        op: op.to_lowercase(),
        result: if ok { "ok" } else { "error" }.to_owned(),
        micros: micros(took),
        ipam: requests.collect(),
        conflicts: metrics.conflicts.read().into_iter().map(|(of, n)| (of.to_owned(), n.count())).collect(),
    };
    let posted: Result<ActionResult, _> =
        Client::new(socket).post_within("/v1/told", &reported, REPORT_TIMEOUT).await;
    if let Err(error) = posted {
        tracing::debug!(target: "tortie", "the agent does not count this call: {error}");
    }
}

/// Counts a reported call. Unknown words become `other`, because the values of labels are fixed sets.
pub fn receive(reported: &PluginCall) {
    let time = |micros: u64, count: u64| Duration::from_micros(micros.checked_div(count).unwrap_or(micros));
    let labels = (
        one_of(&PLUGINS, &reported.plugin),
        one_of(&OPS, &reported.op),
        one_of(&["ok", "error"], &reported.result),
    );
    CALLS.time(labels, time(reported.micros, 1));
    let metrics = ipam::metrics();
    for request in &reported.ipam {
        let labels = (one_of(&ipam::OPS, &request.op), one_of(&ipam::RESULTS, &request.result));
        for _ in 0..request.count.min(1_000) {
            metrics.requests.time(labels, time(request.micros, request.count));
        }
    }
    for (object, count) in &reported.conflicts {
        for _ in 0..(*count).min(1_000) {
            metrics.conflicts.time(one_of(&ipam::OBJECTS, object), Duration::ZERO);
        }
    }
}

fn one_of(known: &[&'static str], word: &str) -> &'static str {
    known.iter().copied().find(|known| *known == word).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_count_under_known_labels_only() {
        let request = |op: &str, count| PluginRequests {
            op: op.into(),
            result: "exhausted".into(),
            count,
            micros: 3_000,
        };
        receive(&PluginCall {
            plugin: "nobody".into(),
            op: "add".into(),
            result: "ok".into(),
            micros: 1_500,
            ipam: vec![request("release_block", 3), request("odd", 1)],
            conflicts: [("odd".to_owned(), 2)].into(),
        });
        assert_eq!(CALLS.read()[&("other", "add", "ok")].count(), 1);
        let requests = ipam::metrics().requests.read();
        assert_eq!(requests[&("release_block", "exhausted")].count(), 3);
        assert!((requests[&("release_block", "exhausted")].sum() - 0.003).abs() < 1e-9);
        assert_eq!(requests[&("other", "exhausted")].count(), 1);
        assert!(ipam::metrics().conflicts.read()["other"].count() >= 2);
    }
}
