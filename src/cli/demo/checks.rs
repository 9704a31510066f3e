//! Checks of the demo. Each queries kernels and the router, and reports their output as evidence.
//!
//! The interoperability tests run the same functions on networks of their own.

use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tortie_net::Cidr;
use tortie_topology::{Running, Victim};

use super::network::{Host, Network, ROUTER, UPLINK, WIRE};
use super::ping::Pings;
use super::probe::{self, Monitor, run, until};
use super::router::{LEARNED_V4, LEARNED_V6};
use crate::api::status::Status;

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Stable name of the check.
    pub name: String,
    /// True if the check passed.
    pub ok: bool,
    /// Measured time in milliseconds; duration of the check if it measures nothing.
    pub millis: u64,
    /// Output of the kernel or the router.
    pub evidence: String,
}

/// Measured time and evidence of a passed check, or the evidence against it.
pub type Found = Result<(Duration, String), String>;

/// Time limits of the checks.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Limit for sessions and learned routes after the start of the agents.
    pub start: Duration,
    /// Limit for a change in the store to reach the kernels of other hosts.
    pub change: Duration,
    /// Limit for a change in the store to reach the router's table.
    pub change_router: Duration,
    /// Limit for all routes to return after carrier.
    pub flap: Duration,
    /// Limit for sessions to return after the restart of an agent.
    pub restart: Duration,
}

impl Default for Limits {
    /// Many times the usual values, so that a loaded machine does not fail; the evidence has the measured
    /// times.
    fn default() -> Self {
        Self {
            start: Duration::from_secs(30),
            change: Duration::from_secs(5),
            change_router: Duration::from_secs(7),
            flap: Duration::from_secs(5),
            restart: Duration::from_secs(40),
        }
    }
}

/// Runs one check.
pub fn check(name: &str, run: impl FnOnce() -> Found) -> Check {
    let begin = Instant::now();
    let found = run();
    let (ok, span, evidence) = match found {
        Ok((span, evidence)) => (true, span, evidence),
        Err(evidence) => (false, begin.elapsed(), evidence),
    };
    Check { name: name.to_owned(), ok, millis: millis(span), evidence }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Checks that every session of the mesh and with the router is established on both sides.
///
/// # Errors
/// The evidence against it; the same applies to every check here.
pub fn sessions_established(net: &Network, limits: &Limits) -> Found {
    let evidence = until(limits.start, || sessions(net))?;
    Ok((net.started.elapsed(), evidence))
}

fn sessions(net: &Network) -> Result<String, String> {
    let (mut mesh, mut peers) = (0, 0);
    let families = if net.spec.v6 { 2 } else { 1 };
    for host in &net.hosts {
        let status: Status = net.ask(&host.name, "/v1/status")?;
        let bgp = &status.bgp;
        let all_up = bgp.mesh.up == net.hosts.len() - 1 && bgp.peers.up == families;
        if !all_up {
            return Err(format!(
                "{}: mesh {}/{}, router {}/{families}: {}",
                host.name, bgp.mesh.up, bgp.mesh.of, bgp.peers.up, status.summary
            ));
        }
        mesh += bgp.mesh.up;
        peers += bgp.peers.up;
    }
    let name = net.spec.router.name();
    let at_router = net.spec.router.sessions(net)?;
    let up = at_router.iter().filter(|s| s.up).count();
    let quotes = at_router.iter().map(|s| s.quote.as_str()).collect::<Vec<_>>().join("; ");
    if up < peers {
        return Err(format!("{name}: {up} of {peers} sessions: {quotes}"));
    }
    Ok(format!("mesh {}/{}, router {peers}/{peers}; {name}: {quotes}", mesh / 2, mesh / 2))
}

/// Checks that every other host's kernel has each host's blocks and the router's prefixes, with the right
/// gateways.
///
/// # Errors
/// See [`sessions_established`].
pub fn blocks_in_every_kernel(net: &Network, limits: &Limits) -> Found {
    let evidence = until(limits.start, || {
        let mut quotes = Vec::new();
        for host in &net.hosts {
            let routes = probe::routes(&net.running, &host.name, &[])?;
            for (dst, gateway) in wanted(net, host) {
                let found = routes.iter().find(|r| same(&r.dst, &dst) && r.is_ours());
                let Some(found) = found.filter(|r| r.forwards() && r.gateway.as_deref() == Some(&gateway))
                else {
                    let has = routes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    return Err(format!("{}: no {dst} via {gateway}; ip route: {has}", host.name));
                };
                if host.number == 1 {
                    quotes.push(found.to_string());
                }
            }
        }
        Ok(quotes)
    })?;
    Ok((net.started.elapsed(), format!("on {}: {}", first(net), evidence.join("; "))))
}

fn first(net: &Network) -> &str {
    net.hosts.first().map_or("", |h| h.name.as_str())
}

/// Returns the prefixes that a host must have learned, with their gateways.
fn wanted(net: &Network, host: &Host) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let hop = |other: &Host, v4: bool| match other.v6 {
        Some(v6) if !v4 => v6.to_string(),
        _ => other.v4.to_string(),
    };
    for other in net.hosts.iter().filter(|o| o.number != host.number) {
        all.extend(other.blocks.iter().map(|b| (b.to_string(), hop(other, b.is_v4()))));
    }
    let router = super::network::ROUTER_V4.to_string();
    if net.spec.router.announces_default() {
        all.push(("default".to_owned(), router.clone()));
    }
    all.push((LEARNED_V4.to_owned(), router));
    if net.spec.v6 {
        all.push((LEARNED_V6.to_owned(), super::network::ROUTER_V6.to_string()));
    }
    all
}

/// True if both texts are the same prefix: `ip` omits the length of /32 and /128.
fn same(shown: &str, wanted: &str) -> bool {
    shown == wanted || wanted.strip_suffix("/32").or(wanted.strip_suffix("/128")) == Some(shown)
}

/// Checks that the router's table has every block of every host.
///
/// # Errors
/// See [`sessions_established`].
pub fn blocks_in_router(net: &Network, limits: &Limits) -> Found {
    let evidence = until(limits.start, || {
        let mut quotes = Vec::new();
        for block in net.hosts.iter().flat_map(|h| &h.blocks) {
            match net.spec.router.route(net, &block.to_string())? {
                Some(quote) => quotes.push(quote),
                None => return Err(format!("{} has no {block}", net.spec.router.name())),
            }
        }
        Ok(quotes)
    })?;
    Ok((net.started.elapsed(), format!("{}: {}", net.spec.router.name(), evidence.join("; "))))
}

/// Checks that every workload reaches every other, over each address family.
///
/// # Errors
/// See [`sessions_established`].
pub fn ping_between_workloads(net: &Network, limits: &Limits) -> Found {
    let begin = Instant::now();
    let mut lines = Vec::new();
    for from in &net.hosts {
        for to in net.hosts.iter().filter(|t| t.number != from.number) {
            for address in &to.workload.addresses {
                let line = until(limits.change, || {
                    let pings = ping(net, from, *address, 3)?;
                    let path = format!("{}({}) -> {address}({})", from.workload.name, from.name, to.name);
                    match pings.lost() {
                        0 => Ok(format!("{path} {:.2} ms", milli(pings.min_micros))),
                        lost => Err(format!("{path}: {lost} of {} echo requests not answered", pings.sent)),
                    }
                })?;
                lines.push(line);
            }
        }
    }
    let count = lines.len();
    lines.truncate(3);
    let more = if count > 3 { format!("; {} more", count - 3) } else { String::new() };
    Ok((begin.elapsed(), format!("echo replies: {}{more}", lines.join("; "))))
}

fn milli(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64() * 1e3
}

/// Sends echo requests from a workload.
///
/// # Errors
/// The error of the sending process.
pub fn ping(net: &Network, from: &Host, to: IpAddr, count: u32) -> Result<Pings, String> {
    let (to, count) = (to.to_string(), count.to_string());
    let words = ["tortie", "demo", "--ping", &to, "--ping-pace", "5000", "--ping-count", &count];
    let text = run(&net.running, &from.workload.name, &words)?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}: {text}", from.workload.name))
}

/// A process that sends echo requests until [`finish`](Self::finish).
#[derive(Debug)]
pub struct Pinger {
    child: Child,
    path: String,
}

impl Pinger {
    /// Starts to send a thousand echo requests per second.
    ///
    /// # Errors
    /// If the sending process cannot be started.
    pub fn start(running: &Running, from: &Host, to: &Host, address: IpAddr) -> Result<Self, String> {
        let address = address.to_string();
        let words = ["tortie", "demo", "--ping", &address, "--ping-pace", "1000"];
        let child = running
            .spawn(&from.workload.name, &words, |c| {
                c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            })
            .map_err(|e| e.to_string())?;
        Ok(Self { child, path: format!("{} -> {}", from.workload.name, to.workload.name) })
    }

    /// Stops sending, and returns the path and the result.
    ///
    /// # Errors
    /// The error of the sending process.
    pub fn finish(mut self) -> Result<(String, Pings), String> {
        drop(self.child.stdin.take());
        let output = self.child.wait_with_output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let pings = serde_json::from_str(&text)
            .map_err(|e| format!("{}: {e}: {text}{}", self.path, String::from_utf8_lossy(&output.stderr)))?;
        Ok((self.path, pings))
    }
}

/// Kills the second host's agent while a thousand pings per second pass that host. Checks that no ping is
/// lost, that no other host sees a withdrawal, and that the restarted agent changes no correct route.
///
/// # Errors
/// See [`sessions_established`].
pub fn kill9_no_loss(net: &mut Network, limits: &Limits) -> Found {
    let begin = Instant::now();
    let [first, victim, ..] = net.hosts.as_slice() else { return Err("needs two hosts".to_owned()) };
    let (first, victim) = (first.clone(), victim.clone());
    let last = net.hosts.last().cloned().unwrap_or_else(|| first.clone());
    let own: Vec<String> = victim.blocks.iter().map(ToString::to_string).collect();
    let before: Vec<Option<String>> = table(net, &own)?;
    let mut monitors = Vec::new();
    for node in net.hosts.iter().map(|h| h.name.as_str()).chain([ROUTER]) {
        monitors.push(Monitor::start(&net.running, node)?);
    }
    let mut pingers = Vec::new();
    let mut paths = vec![(&first, &victim), (&victim, &first)];
    if last.number > 2 {
        paths.push((&last, &victim));
    }
    for (from, to) in paths {
        for address in &to.workload.addresses {
            pingers.push(Pinger::start(&net.running, from, to, *address)?);
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    let old = net.running.pid(&victim.name).ok_or_else(|| format!("{}: no agent runs", victim.name))?;
    net.running.kill(&victim.name, Victim::Command).map_err(|e| e.to_string())?;
    let killed = Instant::now();
    // The table is read repeatedly while the agent is down, because it must not change.
    while killed.elapsed() < Duration::from_secs(1) {
        let now = table(net, &own)?;
        if let Some((prefix, _)) = own.iter().zip(&now).find(|(_, route)| route.is_none()) {
            return Err(format!("{} lost {prefix} while the agent was away", net.spec.router.name()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    net.running.start(&victim.name).map_err(|e| e.to_string())?;
    let again = Instant::now();
    until(limits.restart, || sessions(net))?;
    let back = again.elapsed();
    // End-of-RIB of every peer and the removal of stale routes follow the sessions.
    std::thread::sleep(Duration::from_millis(1500));
    let new = net.running.pid(&victim.name).unwrap_or_default();
    let (mut sent, mut quotes) = (0, Vec::new());
    let mut slowest = 0;
    for pinger in pingers {
        let (path, pings) = pinger.finish()?;
        if pings.lost() > 0 || pings.sent == 0 {
            return Err(format!(
                "{path}: {} of {} pings lost, numbers {:?}",
                pings.lost(),
                pings.sent,
                pings.lost
            ));
        }
        sent += pings.sent;
        slowest = slowest.max(pings.millis);
        quotes.push(format!("{path} {}/{}", pings.answered, pings.sent));
    }
    for monitor in &monitors {
        let at_victim = monitor.node == victim.name;
        if monitor.node == ROUTER && !net.spec.router.programs_kernel() {
            continue;
        }
        let mut bad = monitor.changes();
        bad.retain(|(_, line)| {
            let concerns = own.iter().any(|prefix| line.contains(prefix.as_str()));
            at_victim || (concerns && line.contains("Deleted"))
        });
        if !bad.is_empty() {
            let line = |(at, line): &(Instant, String)| {
                format!("+{:.2} s {}", at.saturating_duration_since(killed).as_secs_f64(), line.trim())
            };
            let lines: Vec<String> = bad.iter().map(line).collect();
            return Err(format!("{}: ip monitor after the kill: {}", monitor.node, lines.join("; ")));
        }
    }
    let after: Vec<Option<String>> = table(net, &own)?;
    let router = net.spec.router.name();
    let quote = match (before.first(), after.first()) {
        (Some(Some(before)), Some(Some(after))) if before == after => {
            format!("{router} before and after: {after}")
        }
        (_, Some(Some(after))) => format!("{router}: {after}"),
        _ => return Err(format!("{router} has no {} afterwards", own.join(", "))),
    };
    Ok((
        begin.elapsed(),
        format!(
            "{sent} pings, 0 lost ({}); agent {old} killed, agent {new} has all sessions {:.1} s after its start; \
             ip monitor: no route of {} deleted at the others, nothing written on {}; {quote}",
            quotes.join(", "),
            back.as_secs_f64(),
            victim.name,
            victim.name
        ),
    ))
}

fn table(net: &Network, prefixes: &[String]) -> Result<Vec<Option<String>>, String> {
    prefixes.iter().map(|p| net.spec.router.route(net, p)).collect()
}

/// Longest loss of carrier that sessions survive, with a margin; the agent ends sessions after half a second.
const FLAP: Duration = Duration::from_millis(450);

/// Takes the last host's carrier away for 200 ms, and checks that its routes return immediately with the
/// carrier.
///
/// # Errors
/// See [`sessions_established`].
pub fn link_flap_recovers(net: &Network, limits: &Limits) -> Found {
    let Some(host) = net.hosts.last() else { return Err("needs a host".to_owned()) };
    let node = host.name.as_str();
    let learned = || -> Result<Vec<String>, String> {
        let mut list: Vec<String> = probe::routes(&net.running, node, &["proto", "179"])?
            .iter()
            .filter(|r| r.forwards())
            .map(ToString::to_string)
            .collect();
        list.sort();
        Ok(list)
    };
    let before = learned()?;
    let again = || match learned()? {
        now if now == before => Ok(()),
        now => Err(format!("{node}: ip route: {}; before: {}", now.join("; "), before.join("; "))),
    };
    let port = format!("{WIRE}-{node}");
    let set = |up| net.running.set_link(WIRE, &port, up).map_err(|e| e.to_string());
    let mut tries = 0;
    let (during, away, carrier) = loop {
        tries += 1;
        let begin = Instant::now();
        set(false)?;
        std::thread::sleep(Duration::from_millis(200));
        let during = learned();
        set(true)?;
        let (away, carrier) = (begin.elapsed(), Instant::now());
        // On a loaded machine the carrier may return too late, so that sessions over that link have ended.
        if away < FLAP || tries == 5 {
            break (during?, away, carrier);
        }
        until(limits.restart, &again)?;
    };
    let back = until(limits.flap, || again().map(|()| carrier.elapsed()))
        .map_err(|error| format!("{error}; carrier was away for {} ms", millis(away)))?;
    let other = net.hosts.first().ok_or("needs a host")?;
    for address in &other.workload.addresses {
        until(limits.flap, || match ping(net, host, *address, 1)?.lost() {
            0 => Ok(()),
            _ => Err(format!("{} does not reach {address} after the flap", host.workload.name)),
        })?;
    }
    Ok((
        back,
        format!(
            "{node}: {UPLINK} without carrier for {} ms: {} routes, then {}, {} again {} ms after carrier; {}",
            millis(away),
            before.len(),
            during.len(),
            before.len(),
            millis(back),
            before.first().cloned().unwrap_or_default()
        ),
    ))
}

/// Adds a block to the first host by a transaction in the store and removes it by another; checks that it is
/// announced and withdrawn.
///
/// # Errors
/// See [`sessions_established`].
pub fn withdraw_seen(net: &Network, limits: &Limits) -> Found {
    let host = net.hosts.first().ok_or("needs a host")?;
    let block = Cidr::v4(std::net::Ipv4Addr::new(10, 244, 200, 0), 26);
    let prefix = block.to_string();
    let mut monitors = Vec::new();
    for other in net.hosts.iter().filter(|h| h.number != host.number) {
        monitors.push(Monitor::start(&net.running, &other.name)?);
    }
    let mut spans = Vec::new();
    for give in [true, false] {
        let at = net.commit(Network::block_ops(&host.name, block, give))?;
        let in_router = || match net.spec.router.route(net, &prefix)? {
            Some(quote) if give => Ok(quote),
            None if !give => Ok(String::new()),
            Some(quote) => Err(format!("{} still has {quote}", net.spec.router.name())),
            None => Err(format!("{} has no {prefix}", net.spec.router.name())),
        };
        let quote = until(limits.change_router, in_router)?;
        let router = at.elapsed();
        let mut kernels = Duration::ZERO;
        for monitor in &monitors {
            let wanted = |line: &str| line.contains(&prefix) && line.contains("Deleted") != give;
            let seen = until(limits.change, || {
                let lines = || monitor.changes().into_iter().map(|(_, l)| l).collect::<Vec<_>>().join("; ");
                monitor.first(at, wanted).ok_or_else(|| {
                    let what = if give { "nothing of" } else { "no withdrawal of" };
                    format!("{}: ip monitor shows {what} {prefix}: {}", monitor.node, lines())
                })
            })?;
            kernels = kernels.max(seen.saturating_duration_since(at));
        }
        if kernels > limits.change {
            return Err(format!("{prefix} took {} ms to the other kernels", millis(kernels)));
        }
        spans.push((kernels, router, quote));
    }
    let [(here, here_router, quote), (gone, gone_router, _)] = spans.as_slice() else {
        return Err("needs two changes".to_owned());
    };
    Ok((
        *gone.max(here),
        format!(
            "{prefix} in the other kernels {} ms after its transaction, in {} after {} ms ({quote}); withdrawn: gone from the \
             kernels after {} ms, from {} after {} ms",
            millis(*here),
            net.spec.router.name(),
            millis(*here_router),
            millis(*gone),
            net.spec.router.name(),
            millis(*gone_router)
        ),
    ))
}
