//! Reads the values of the periodic health probe from `/proc`: capabilities, forwarding, reverse path
//! filters, conntrack, clocks; and TCP counters.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use super::snapshot::{Clock, Conntrack, HostSnapshot, Link};

/// Counter of packets dropped by reverse path filters.
const RP_FILTERED: &str = "IPReversePathFilter";

/// Default leading part of workload interface names.
pub(super) const PREFIX: &str = "cali";

impl HostSnapshot {
    /// Reads `/proc`. `links` are the interfaces with MTU and administrative state; their `rp_filter` is read
    /// here.
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
            networks: tortie_kernel::connected_networks().unwrap_or_default(),
            // An unreadable value is no problem.
            forward_drops: tortie_kernel::forward_drops(&[PREFIX.to_owned()]).unwrap_or_default(),
            ..Self::default()
        }
    }
}

impl Clock {
    /// Reads both clocks.
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
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(path)).ok()
}

fn read_number(path: &str) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// Parses `CapEff` of proc_pid_status(5).
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

/// Sums the column `drop` over all processors; values are hexadecimal.
fn conntrack_drops(stat: &str) -> Option<u64> {
    let mut lines = stat.lines();
    let column = lines.next()?.split_whitespace().position(|name| name == "drop")?;
    let of = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    Some(lines.filter_map(of).sum())
}

/// Parses a counter of `TcpExt`: names in one line, values in the next.
fn tcp_ext(netstat: &str, counter: &str) -> Option<u64> {
    let mut rows = netstat.lines().filter(|line| line.starts_with("TcpExt:"));
    let column = rows.next()?.split_whitespace().position(|name| name == counter)?;
    rows.next()?.split_whitespace().nth(column)?.parse().ok()
}

/// Segments that TCP dropped before a socket received them, since the network namespace was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpDropped {
    /// Segments with a wrong TCP key, with an unexpected key, or without a required key.
    pub key: u64,
    /// Segments whose TTL was below the minimum of the connection (RFC 5082).
    pub ttl: u64,
}

impl TcpDropped {
    /// Reads the counters; counters that this kernel lacks count as 0.
    #[must_use]
    pub fn read() -> Self {
        read("/proc/net/netstat").as_deref().map_or_else(Self::default, Self::of)
    }

    fn of(netstat: &str) -> Self {
        let sum = |names: &[&str]| names.iter().filter_map(|name| tcp_ext(netstat, name)).sum();
        let keys = ["TCPMD5NotFound", "TCPMD5Unexpected", "TCPMD5Failure"];
        let more = ["TCPAOBad", "TCPAOKeyNotFound", "TCPAORequired"];
        Self { key: sum(&keys) + sum(&more), ttl: sum(&["TCPMinTTLDrop"]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_prints_is_read() {
        assert_eq!(capabilities("Name:\ttortie\nCapEff:\t0000000000003400\n"), Some(0x3400));
        // Linux 6.1: hexadecimal values, one line per processor.
        let stat = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop\n\
                    0000000a  00000000 00000000 00000000 00000000 00000000 00000000 00000003 00000000 00000000 00000010 00000000\n\
                    0000000a  00000000 00000000 00000000 00000000 00000000 00000000 00000003 00000000 00000000 00000001 00000000\n";
        assert_eq!(conntrack_drops(stat), Some(17));
        let netstat = "TcpExt: SyncookiesSent IPReversePathFilter TimeWaited\nTcpExt: 0 7 12\nIpExt: InNoRoutes\nIpExt: 1\n";
        assert_eq!(tcp_ext(netstat, RP_FILTERED), Some(7));
        // Linux 6.18 has more counters.
        let tcp = "TcpExt: TCPMinTTLDrop TCPMD5NotFound TCPMD5Unexpected TCPMD5Failure\nTcpExt: 3 1 2 4\n";
        assert_eq!(TcpDropped::of(tcp), TcpDropped { key: 7, ttl: 3 });
        assert_eq!(TcpDropped::of(netstat), TcpDropped::default());
        let here = HostSnapshot::read([("lo".to_owned(), 65536, true)]);
        assert!(here.capabilities.is_some() && here.clock.is_some() && here.link("lo").is_some());
    }
}
