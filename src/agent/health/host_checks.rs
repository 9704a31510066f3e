//! Host checks: capabilities, forwarding, reverse path filters, MTU, conntrack, the clock. A thin reader of `/proc` and pure
//! checks.
//!
//! The periodic health probe runs them each 10 s; `doctor` and `migrate check` run [`check_host`] on a state of their own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::api::codes;
use crate::api::problem::Problem;

/// Overhead of IPIP per packet (RFC 2003), in bytes.
const IPIP_OVERHEAD: u32 = 20;
/// From this share of its size on the conntrack table counts as full, in percent.
const CONNTRACK_FULL_PERCENT: u64 = 90;
/// A clock that is set by more than this has jumped; NTP slews smaller differences.
const CLOCK_STEP_MIN: Duration = Duration::from_secs(2);
/// More workloads with too large an MTU than this are one problem.
const LISTED_MAX: usize = 5;

/// The counter of packets that reverse path filters dropped.
const RP_FILTERED: &str = "IPReversePathFilter";

/// `CAP_NET_BIND_SERVICE` of capabilities(7).
const CAP_NET_BIND_SERVICE: u8 = 10;
/// `CAP_NET_ADMIN`.
const CAP_NET_ADMIN: u8 = 12;

/// The state of the host as read; `None` and absent: it could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostSnapshot {
    /// Whether IPv4 and IPv6 are forwarded.
    pub forwarding: [Option<bool>; 2],
    /// The effective capabilities of this process, a bit each.
    pub capabilities: Option<u64>,
    /// The table of connections.
    pub conntrack: Option<Conntrack>,
    /// The interfaces.
    pub links: Vec<Link>,
    /// Packets that reverse path filters dropped, since this namespace is there.
    pub rp_filtered: Option<u64>,
    /// The clocks.
    pub clock: Option<Clock>,
}

/// The kernel's table of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conntrack {
    /// Connections in it.
    pub count: u64,
    /// Its size.
    pub max: u64,
    /// Packets dropped because it was full, since boot.
    pub dropped: u64,
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The largest packet that it takes, in bytes.
    pub mtu: u32,
    /// Set up by the administrator.
    pub up: bool,
    /// Its reverse path filter as the kernel applies it (the greater of its own and `all`): 0 none, 1 strict, 2 loose.
    pub rp_filter: Option<u8>,
}

/// Two clocks, read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// CLOCK_REALTIME, since the Unix epoch.
    pub wall: Duration,
    /// CLOCK_BOOTTIME: sleep included, never set.
    pub since_boot: Duration,
}

/// The tasks of the host that decide which checks apply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Role {
    /// The agent writes routes and rules.
    pub programs: bool,
    /// It listens below port 1024.
    pub low_port: bool,
    /// Whether IPv4 and IPv6 are routed.
    pub routes: [bool; 2],
    /// Interfaces that BGP peers are reached by.
    pub uplinks: BTreeSet<String>,
    /// The interface of the tunnel, where there is one.
    pub tunnel: Option<String>,
    /// Workloads: endpoint and interface.
    pub workloads: Vec<(String, String)>,
}

impl HostSnapshot {
    /// Reads `/proc`; `links` are the interfaces with MTU and administrative state, their `rp_filter` is read here.
    #[must_use]
    pub fn read(links: impl IntoIterator<Item = (String, u32, bool)>) -> Self {
        let flag = |path: &str| read_number(path).map(|n| n != 0);
        let all = read_number("/proc/sys/net/ipv4/conf/all/rp_filter");
        let link = |(name, mtu, up): (String, u32, bool)| {
            let own = read_number(&format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"));
            let rp_filter = own.max(all).and_then(|n| u8::try_from(n).ok());
            Link { name, mtu, up, rp_filter }
        };
        Self {
            forwarding: [
                flag("/proc/sys/net/ipv4/ip_forward"),
                flag("/proc/sys/net/ipv6/conf/all/forwarding"),
            ],
            capabilities: read("/proc/self/status").as_deref().and_then(capabilities),
            conntrack: conntrack(),
            links: links.into_iter().map(link).collect(),
            rp_filtered: read("/proc/net/netstat").as_deref().and_then(|t| tcp_ext(t, RP_FILTERED)),
            clock: Some(Clock::now()),
        }
    }

    fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }
}

impl Clock {
    /// Both clocks, now.
    #[must_use]
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        let since_boot = Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_nsec).unwrap_or_default(),
        );
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall, since_boot }
    }

    /// How far the clock was set since then, forward positive, in milliseconds.
    fn stepped_since(self, before: Self) -> i64 {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let wall = millis(self.wall).saturating_sub(millis(before.wall));
        wall.saturating_sub(millis(self.since_boot).saturating_sub(millis(before.since_boot)))
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(path)).ok()
}

fn read_number(path: &str) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// `CapEff` of proc_pid_status(5).
fn capabilities(status: &str) -> Option<u64> {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

fn conntrack() -> Option<Conntrack> {
    let count = read_number("/proc/sys/net/netfilter/nf_conntrack_count")?;
    let max = read_number("/proc/sys/net/netfilter/nf_conntrack_max")?;
    let dropped =
        read("/proc/net/stat/nf_conntrack").as_deref().and_then(conntrack_drops).unwrap_or_default();
    Some(Conntrack { count, max, dropped })
}

/// The column `drop` over all processors, in hexadecimal digits.
fn conntrack_drops(stat: &str) -> Option<u64> {
    let mut lines = stat.lines();
    let column = lines.next()?.split_whitespace().position(|name| name == "drop")?;
    let of = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    Some(lines.filter_map(of).sum())
}

/// A counter of `TcpExt`: names in one line, numbers in the next.
fn tcp_ext(netstat: &str, counter: &str) -> Option<u64> {
    let mut rows = netstat.lines().filter(|line| line.starts_with("TcpExt:"));
    let column = rows.next()?.split_whitespace().position(|name| name == counter)?;
    rows.next()?.split_whitespace().nth(column)?.parse().ok()
}

/// Segments that TCP dropped before any socket received them, since this namespace was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::agent) struct TcpDropped {
    /// Segments with another TCP key than ours, with one where none is wanted, or without one where one is.
    pub(in crate::agent) key: u64,
    /// Segments whose TTL was below the least that the connection takes (RFC 5082).
    pub(in crate::agent) ttl: u64,
}

impl TcpDropped {
    /// Reads the counters; those that this kernel does not have count nothing.
    pub(in crate::agent) fn read() -> Self {
        read("/proc/net/netstat").as_deref().map_or_else(Self::default, Self::of)
    }

    fn of(netstat: &str) -> Self {
        let sum = |names: &[&str]| names.iter().filter_map(|name| tcp_ext(netstat, name)).sum();
        let keys = ["TCPMD5NotFound", "TCPMD5Unexpected", "TCPMD5Failure"];
        let more = ["TCPAOBad", "TCPAOKeyNotFound", "TCPAORequired"];
        Self { key: sum(&keys) + sum(&more), ttl: sum(&["TCPMinTTLDrop"]) }
    }
}

/// The command or step that fixes a problem of [`check_host`], or of the agent about this host.
#[must_use]
pub fn fix_for(problem: &Problem) -> String {
    let subject = problem.subject.as_str();
    match problem.code.as_str() {
        "forwarding-off" if subject.starts_with("IPv6") => {
            "sysctl -w net.ipv6.conf.all.forwarding=1".to_owned()
        }
        "forwarding-off" => "sysctl -w net.ipv4.ip_forward=1".to_owned(),
        "rp-filter" => format!("sysctl -w net.ipv4.conf.{subject}.rp_filter=2"),
        "missing-capability" => format!("AmbientCapabilities={subject} in the unit of the service"),
        "conntrack-full" => {
            "sysctl -w net.netfilter.nf_conntrack_max=N, with an N of twice as many".to_owned()
        }
        "clock-jump" => "timedatectl: let NTP slew the clock, which steps it only at boot".to_owned(),
        "tunnel-mtu" => "tortie store put /calico/v1/config/IpInIpMtu MTU, or take that key out".to_owned(),
        "workload-mtu" => "give the interface, and its other end, the MTU of the way out".to_owned(),
        "listen" => "stop who listens there, or --bgp-listen ADDR:PORT".to_owned(),
        "tunnel" => "modprobe ipip, or take `ipip` out of the pools".to_owned(),
        "stale-revision" => "look at etcd's load and at what lies between: a firewall that forgets connections, a proxy that holds \
                             back what etcd sends; the agent asks anew by itself"
            .to_owned(),
        "store-away" | "from-cache" => {
            "see to the store, or name another with --datastore; the agent goes on by itself".to_owned()
        }
        _ => "tortie status".to_owned(),
    }
}

/// Problems of the host now, and changes for the worse since an earlier reading.
#[must_use]
pub fn check_host(now: &HostSnapshot, before: Option<&HostSnapshot>, role: &Role) -> Vec<Problem> {
    let mut found = Vec::new();
    check_capabilities(now, role, &mut found);
    check_forwarding(now, role, &mut found);
    check_reverse_path_filters(now, role, &mut found);
    check_mtu(now, role, &mut found);
    check_conntrack(now, before, &mut found);
    if let (Some(clock), Some(earlier)) = (now.clock, before.and_then(|b| b.clock)) {
        let set = clock.stepped_since(earlier);
        if set.unsigned_abs() > u64::try_from(CLOCK_STEP_MIN.as_millis()).unwrap_or(u64::MAX) {
            let way = if set > 0 { "forward" } else { "back" };
            let text = format!(
                "the clock was set {way} by {:.1}s: leases, times in logs and those in the store do not fit together",
                Duration::from_millis(set.unsigned_abs()).as_secs_f64()
            );
            found.push(codes::CLOCK_JUMP.problem("", "clock", text));
        }
    }
    found
}

fn check_capabilities(now: &HostSnapshot, role: &Role, found: &mut Vec<Problem>) {
    let Some(effective) = now.capabilities else { return };
    let checked = [
        (role.programs, CAP_NET_ADMIN, "CAP_NET_ADMIN", "neither routes nor rules can be written"),
        (
            role.low_port,
            CAP_NET_BIND_SERVICE,
            "CAP_NET_BIND_SERVICE",
            "BGP cannot be listened for on its port",
        ),
    ];
    for (_, bit, name, effect) in checked.into_iter().filter(|(checked, ..)| *checked) {
        if (effective >> bit) & 1 == 0 {
            let text = format!(
                "the agent runs without it: {effect}; give it to the service (AmbientCapabilities={name} in the unit)"
            );
            found.push(codes::MISSING_CAPABILITY.problem(name, name, text));
        }
    }
}

fn check_forwarding(now: &HostSnapshot, role: &Role, found: &mut Vec<Problem>) {
    let families = [("IPv4", "net.ipv4.ip_forward"), ("IPv6", "net.ipv6.conf.all.forwarding")];
    for ((family, sysctl), (forwards, routed)) in
        families.into_iter().zip(now.forwarding.into_iter().zip(role.routes))
    {
        if role.programs && routed && forwards == Some(false) {
            let text = format!(
                "{family} is routed here and {sysctl} is 0: the kernel drops every packet that is not for this host \
                 itself; another process switched it off after the agent had switched it on"
            );
            found.push(codes::FORWARDING_OFF.problem(sysctl, format!("{family} forwarding"), text));
        }
    }
}

/// With one uplink packets come back by it. With several they may come by any.
fn check_reverse_path_filters(now: &HostSnapshot, role: &Role, found: &mut Vec<Problem>) {
    let uplinks: Vec<&Link> =
        role.uplinks.iter().filter_map(|name| now.link(name)).filter(|link| link.up).collect();
    if uplinks.len() < 2 {
        return;
    }
    for link in uplinks.iter().filter(|link| link.rp_filter == Some(1)) {
        let dropped = match now.rp_filtered {
            Some(n) if n > 0 => format!(" ({n} packets were, on all interfaces)"),
            _ => String::new(),
        };
        let text = format!(
            "rp_filter is strict on it and this host has {} ways out: what comes in here and is answered by another way is \
             dropped{dropped}",
            uplinks.len()
        );
        found.push(codes::RP_FILTER.problem(&link.name, link.name.clone(), text));
    }
}

fn check_mtu(now: &HostSnapshot, role: &Role, found: &mut Vec<Problem>) {
    let uplinks = role.uplinks.iter().filter_map(|name| now.link(name)).filter(|link| link.up);
    let Some(narrowest) = uplinks.min_by_key(|link| link.mtu) else { return };
    if let Some(tunnel) = role.tunnel.as_ref().and_then(|name| now.link(name)).filter(|link| link.up)
        && tunnel.mtu + IPIP_OVERHEAD > narrowest.mtu
    {
        let text = format!(
            "its MTU is {}, and with {IPIP_OVERHEAD} bytes more its packets do not fit into {} ({}): set IpInIpMtu to {} or \
             less, or take it out of the store",
            tunnel.mtu,
            narrowest.name,
            narrowest.mtu,
            narrowest.mtu.saturating_sub(IPIP_OVERHEAD)
        );
        found.push(codes::TUNNEL_MTU.problem(&tunnel.name, tunnel.name.clone(), text));
    }
    let wide = |(endpoint, interface): &(String, String)| {
        let link = now.link(interface).filter(|link| link.mtu > narrowest.mtu)?;
        Some((endpoint.clone(), link.name.clone(), link.mtu))
    };
    let wide: Vec<_> = role.workloads.iter().filter_map(wide).collect();
    for (endpoint, interface, mtu) in wide.iter().take(LISTED_MAX) {
        let text = format!(
            "{interface} takes {mtu} bytes, {} on the way out {}: large packets need path MTU discovery, or get lost",
            narrowest.name, narrowest.mtu
        );
        found.push(codes::WORKLOAD_MTU.problem(endpoint, format!("endpoint {endpoint}"), text));
    }
    if wide.len() > LISTED_MAX {
        let text = format!("{} more have a larger MTU than {}", wide.len() - LISTED_MAX, narrowest.name);
        found.push(codes::WORKLOAD_MTU.problem("", "endpoints", text));
    }
}

fn check_conntrack(now: &HostSnapshot, before: Option<&HostSnapshot>, found: &mut Vec<Problem>) {
    let Some(table) = now.conntrack else { return };
    let dropped =
        before.and_then(|b| b.conntrack).map_or(0, |earlier| table.dropped.saturating_sub(earlier.dropped));
    let full = table.max > 0 && table.count * 100 >= table.max * CONNTRACK_FULL_PERCENT;
    if full || dropped > 0 {
        let text = format!(
            "{} of {} connections are in use, {dropped} packets were dropped lately for want of room: raise \
             net.netfilter.nf_conntrack_max, or see who opens so many",
            table.count, table.max
        );
        found.push(codes::CONNTRACK_FULL.problem("", "connection tracking", text));
    }
}

#[cfg(test)]
#[path = "host_checks_tests.rs"]
mod tests;
