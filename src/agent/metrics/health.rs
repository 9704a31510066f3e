//! Metrics of the process: build, health, event loops, log messages, memory, API requests.

use super::exporter::Exporter;
use super::scrape::Scrape;
use crate::agent::logging::counter::message_counts;
use crate::agent::metrics::exposition::{Page, flag, n, unix_before};

pub(super) fn write(page: &mut Page, exporter: &Exporter, scrape: &Scrape) {
    let kernel = scrape.kernel.as_ref();
    let rules = if kernel.is_some_and(|kernel| kernel.rules.is_some()) { "nftables" } else { "none" };
    let build =
        [("version", env!("CARGO_PKG_VERSION")), ("dataplane", rules), ("store", exporter.store_kind)];
    page.gauge("tortie_build_info", "The running build; always 1").put(&build, 1.0);
    page.gauge("tortie_ready", "1 when the agent is ready, as in /readyz")
        .put(&[], flag(exporter.handle.is_ready()));
    page.gauge("tortie_live", "1 when the core's event loop makes progress, as in /livez")
        .put(&[], flag(exporter.handle.is_alive()));
    let up = [
        ("core", scrape.core.is_some()),
        ("speaker", scrape.bgp.is_some()),
        ("kernel", kernel.is_some()),
        ("store", scrape.core.as_ref().is_some_and(|core| core.connected)),
    ];
    let mut family = page
        .gauge("tortie_component_up", "1 when this part answered the scrape (store: when it is connected)");
    for (component, up) in up {
        family.put(&[("component", component)], flag(up));
    }
    let [speaker, kernel_last] = exporter.state.answered();
    let mut family =
        page.gauge("tortie_component_last_report_seconds", "Unix time of the last answer of this part");
    let now = unix_before(std::time::Duration::ZERO);
    if let Some(core) = &scrape.core {
        family.put(&[("component", "core")], now);
        family.put(&[("component", "store")], unix_before(core.lag));
    }
    for (component, at) in [("speaker", speaker), ("kernel", kernel_last)] {
        if at > 0 {
            family.put(&[("component", component)], n(at.unsigned_abs()));
        }
    }
    let started = unix_before(exporter.handle.started().elapsed());
    page.gauge("tortie_start_time_seconds", "Unix time of the agent's start").put(&[], started);
    if let Some(core) = &scrape.core {
        let [ok, error] = core.counters.reloads;
        page.counter(
            "tortie_config_reloads_total",
            "Changes of settings in the store; error: a value cannot be parsed and the last good one stays in force",
        )
        .put(&[("result", "ok")], n(ok))
        .put(&[("result", "error")], n(error));
        let broken = core.invalid.contains_key("config");
        page.gauge(
            "tortie_config_last_reload_successful",
            "0 while a setting in the store cannot be parsed and an older value is in force",
        )
        .put(&[], flag(!broken));
    }
    let mut family = page.counter("tortie_log_messages_total", "Log messages of level info and above");
    for (level, count) in message_counts() {
        family.put(&[("level", level)], n(count));
    }
    let mut family = page.histogram(
        "tortie_event_loop_stall_seconds",
        "Duration of one iteration of a thread's event loop (upper bound of the wait for that thread)",
    );
    if let Some(core) = &scrape.core {
        family.observed(&[("loop", "core")], &core.counters.iterations);
    }
    if let Some(bgp) = &scrape.bgp {
        family.observed(&[("loop", "speaker")], &bgp.metrics.iterations);
    }
    if let Some(kernel) = kernel {
        family.observed(&[("loop", "kernel")], &kernel.metrics.iterations);
    }
    process(page);
}

/// Clock ticks per second in /proc (`USER_HZ`): 100 on all supported architectures.
const TICKS: f64 = 100.0;

/// Writes the standard process metrics.
fn process(page: &mut Page) {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let stat = read("stat");
    // The process name may contain blanks, so fields are counted after its closing parenthesis; the state is
    // field 3.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok());
    if let (Some(user), Some(system)) = (field(14), field(15)) {
        page.counter("process_cpu_seconds_total", "User and system CPU time spent")
            .put(&[], n(user + system) / TICKS);
    }
    if let Some(threads) = field(20) {
        page.gauge("process_threads", "Threads").put(&[], n(threads));
    }
    let status = read("status");
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    if let Some(size) = kib("VmSize:") {
        page.gauge("process_virtual_memory_bytes", "Virtual memory").put(&[], n(size * 1024));
    }
    if let Some(size) = kib("VmRSS:") {
        page.gauge("process_resident_memory_bytes", "Resident memory").put(&[], n(size * 1024));
    }
    if let (Some(start), Some(boot)) = (field(22), boot_time()) {
        page.gauge("process_start_time_seconds", "Unix time of the process's start")
            .put(&[], boot + n(start) / TICKS);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Open file descriptors").count(&[], open.count());
    }
    if let Some(most) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        page.gauge("process_max_fds", "Maximum number of open file descriptors").put(&[], n(most));
    }
}

fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Writes the metrics of API requests and plugin calls.
pub(super) fn apis(page: &mut Page, exporter: &Exporter) {
    let served = exporter.api_requests.read();
    let mut family = page.counter("tortie_api_requests_total", "Requests to the API, by route and status");
    for ((route, code), times) in &served {
        family.put(&[("route", route), ("code", &code.to_string())], n(times.count()));
    }
    let calls = crate::plugins::metrics::calls().read();
    let mut family = page.counter("tortie_plugin_requests_total", "Calls of plugins on this host");
    for ((plugin, op, result), times) in &calls {
        family.put(&[("plugin", plugin), ("op", op), ("result", result)], n(times.count()));
    }
    let mut family = page.histogram("tortie_plugin_request_seconds", "Duration of calls of plugins");
    for ((plugin, op, result), times) in &calls {
        family.observed(&[("plugin", plugin), ("op", op), ("result", result)], times);
    }
}
