//! What of the host matters to routing and enforcement beside our own objects: a thin reader and a pure judge.
//!
//! The lookout of `status` asks each 10 s. Whoever has a reading of his own may ask [`judge`], too.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use super::problems::finding;
use crate::serve::api::Problem;
use crate::serve::codes;

/// What IPIP adds to a packet (RFC 2003), in bytes.
const IPIP_OVERHEAD: u32 = 20;
/// Connections from this share of what the table takes on are too many, in percent.
const CONNTRACK_FULL: u64 = 90;
/// A clock that is set by more than this has jumped; NTP slews what is less.
const JUMP: Duration = Duration::from_secs(2);
/// More workloads with too large an MTU than this are told as one.
const LISTED: usize = 5;

/// `CAP_NET_BIND_SERVICE` of capabilities(7).
const BIND_SERVICE: u8 = 10;
/// `CAP_NET_ADMIN`.
const NET_ADMIN: u8 = 12;

/// What was read; `None` and absent: it could not be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
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
    /// How many it takes.
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
    /// What the host takes for the time.
    pub wall: Duration,
    /// Since boot, sleep included; nobody sets it.
    pub running: Duration,
}

/// What the host is to do, as far as it matters here.
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

impl Surroundings {
    /// Reads `/proc`; the interfaces come from whoever knows them, `rp_filter` is read here.
    #[must_use]
    pub fn read(links: impl IntoIterator<Item = (String, u32, bool)>) -> Self {
        let flag = |path: &str| number(path).map(|n| n != 0);
        let all = number("/proc/sys/net/ipv4/conf/all/rp_filter");
        let link = |(name, mtu, up): (String, u32, bool)| {
            let own = number(&format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"));
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
            rp_filtered: read("/proc/net/netstat").as_deref().and_then(rp_filtered),
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
        let running = Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_nsec).unwrap_or_default(),
        );
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall, running }
    }

    /// How far the clock was set since then, forward positive, in milliseconds.
    fn set_since(self, before: Self) -> i64 {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let wall = millis(self.wall).saturating_sub(millis(before.wall));
        wall.saturating_sub(millis(self.running).saturating_sub(millis(before.running)))
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(path)).ok()
}

fn number(path: &str) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// `CapEff` of proc_pid_status(5).
fn capabilities(status: &str) -> Option<u64> {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

fn conntrack() -> Option<Conntrack> {
    let count = number("/proc/sys/net/netfilter/nf_conntrack_count")?;
    let max = number("/proc/sys/net/netfilter/nf_conntrack_max")?;
    let dropped = read("/proc/net/stat/nf_conntrack").as_deref().and_then(dropped).unwrap_or_default();
    Some(Conntrack { count, max, dropped })
}

/// The column `drop` over all processors, in hexadecimal digits.
fn dropped(stat: &str) -> Option<u64> {
    let mut lines = stat.lines();
    let column = lines.next()?.split_whitespace().position(|name| name == "drop")?;
    let of = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    Some(lines.filter_map(of).sum())
}

/// `TcpExt: IPReversePathFilter`: names in one line, numbers in the next.
fn rp_filtered(netstat: &str) -> Option<u64> {
    let mut rows = netstat.lines().filter(|line| line.starts_with("TcpExt:"));
    let column = rows.next()?.split_whitespace().position(|name| name == "IPReversePathFilter")?;
    rows.next()?.split_whitespace().nth(column)?.parse().ok()
}

/// What is wrong now, and what changed for the worse since an earlier reading.
#[must_use]
pub fn judge(now: &Surroundings, before: Option<&Surroundings>, role: &Role) -> Vec<Problem> {
    let mut found = Vec::new();
    capable(now, role, &mut found);
    forwards(now, role, &mut found);
    reverse_paths(now, role, &mut found);
    sizes(now, role, &mut found);
    connections(now, before, &mut found);
    if let (Some(clock), Some(earlier)) = (now.clock, before.and_then(|b| b.clock)) {
        let set = clock.set_since(earlier);
        if set.unsigned_abs() > u64::try_from(JUMP.as_millis()).unwrap_or(u64::MAX) {
            let way = if set > 0 { "forward" } else { "back" };
            let text = format!(
                "the clock was set {way} by {:.1}s: leases, times in logs and those in the store do not fit together",
                Duration::from_millis(set.unsigned_abs()).as_secs_f64()
            );
            found.push(finding(&codes::CLOCK_JUMP, "", "clock", text));
        }
    }
    found
}

fn capable(now: &Surroundings, role: &Role, found: &mut Vec<Problem>) {
    let Some(held) = now.capabilities else { return };
    let needed = [
        (role.programs, NET_ADMIN, "CAP_NET_ADMIN", "neither routes nor rules can be written"),
        (role.low_port, BIND_SERVICE, "CAP_NET_BIND_SERVICE", "BGP cannot be listened for on its port"),
    ];
    for (_, bit, name, effect) in needed.into_iter().filter(|(needed, ..)| *needed) {
        if (held >> bit) & 1 == 0 {
            let text = format!(
                "the agent runs without it: {effect}; give it to the service (AmbientCapabilities={name} in the unit)"
            );
            found.push(finding(&codes::MISSING_CAPABILITY, name, name, text));
        }
    }
}

fn forwards(now: &Surroundings, role: &Role, found: &mut Vec<Problem>) {
    let families = [("IPv4", "net.ipv4.ip_forward"), ("IPv6", "net.ipv6.conf.all.forwarding")];
    for ((family, sysctl), (forwards, routed)) in
        families.into_iter().zip(now.forwarding.into_iter().zip(role.routes))
    {
        if role.programs && routed && forwards == Some(false) {
            let text = format!(
                "{family} is routed here and {sysctl} is 0: the kernel drops every packet that is not for this host \
                 itself; somebody switched it off after the agent had switched it on"
            );
            found.push(finding(&codes::FORWARDING_OFF, sysctl, format!("{family} forwarding"), text));
        }
    }
}

/// With one way out, packets come back by it. With several they may come by any.
fn reverse_paths(now: &Surroundings, role: &Role, found: &mut Vec<Problem>) {
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
        let sysctl = format!("net.ipv4.conf.{}.rp_filter", link.name);
        found.push(finding(&codes::RP_FILTER, &sysctl, link.name.clone(), text));
    }
}

fn sizes(now: &Surroundings, role: &Role, found: &mut Vec<Problem>) {
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
        found.push(finding(&codes::TUNNEL_MTU, &tunnel.name, tunnel.name.clone(), text));
    }
    let wide = |(endpoint, interface): &(String, String)| {
        let link = now.link(interface).filter(|link| link.mtu > narrowest.mtu)?;
        Some((endpoint.clone(), link.name.clone(), link.mtu))
    };
    let wide: Vec<_> = role.workloads.iter().filter_map(wide).collect();
    for (endpoint, interface, mtu) in wide.iter().take(LISTED) {
        let text = format!(
            "{interface} takes {mtu} bytes, {} on the way out {}: large packets need path MTU discovery, or get lost",
            narrowest.name, narrowest.mtu
        );
        found.push(finding(&codes::WORKLOAD_MTU, endpoint, format!("endpoint {endpoint}"), text));
    }
    if wide.len() > LISTED {
        let text = format!("{} more have a larger MTU than {}", wide.len() - LISTED, narrowest.name);
        let next = "tortie endpoint list".to_owned();
        found.push(Problem { next, ..finding(&codes::WORKLOAD_MTU, "", "endpoints", text) });
    }
}

fn connections(now: &Surroundings, before: Option<&Surroundings>, found: &mut Vec<Problem>) {
    let Some(table) = now.conntrack else { return };
    let dropped =
        before.and_then(|b| b.conntrack).map_or(0, |earlier| table.dropped.saturating_sub(earlier.dropped));
    let full = table.max > 0 && table.count * 100 >= table.max * CONNTRACK_FULL;
    if full || dropped > 0 {
        let text = format!(
            "{} of {} connections are in use, {dropped} packets were dropped lately for want of room: raise \
             net.netfilter.nf_conntrack_max, or see who opens so many",
            table.count, table.max
        );
        found.push(finding(&codes::CONNTRACK_FULL, "", "connection tracking", text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, mtu: u32, rp_filter: u8) -> Link {
        Link { name: name.to_owned(), mtu, up: true, rp_filter: Some(rp_filter) }
    }

    fn host(links: &[Link]) -> Surroundings {
        Surroundings {
            forwarding: [Some(true), Some(true)],
            capabilities: Some(u64::MAX),
            links: links.to_vec(),
            ..Surroundings::default()
        }
    }

    fn role(uplinks: &[&str]) -> Role {
        Role {
            programs: true,
            low_port: true,
            routes: [true, true],
            uplinks: uplinks.iter().map(|name| (*name).to_owned()).collect(),
            tunnel: Some("tunl0".to_owned()),
            workloads: vec![("cni/web/eth0".to_owned(), "cali1".to_owned())],
        }
    }

    fn found(now: &Surroundings, before: Option<&Surroundings>, role: &Role) -> Vec<(String, String)> {
        judge(now, before, role).into_iter().map(|p| (p.code, p.subject)).collect()
    }

    fn one(code: &str, subject: &str) -> Vec<(String, String)> {
        vec![(code.to_owned(), subject.to_owned())]
    }

    #[test]
    fn a_host_that_is_well_has_no_findings() {
        let well = host(&[link("eth0", 1500, 1), link("tunl0", 1480, 0), link("cali1", 1500, 1)]);
        assert!(judge(&well, Some(&well), &role(&["eth0"])).is_empty());
        // What could not be read is not wrong.
        assert!(judge(&Surroundings::default(), None, &role(&["eth0"])).is_empty());
    }

    #[test]
    fn a_strict_filter_matters_only_where_packets_may_come_another_way() {
        let strict = host(&[link("eth0", 1500, 1), link("eth1", 1500, 2)]);
        assert_eq!(found(&strict, None, &role(&["eth0", "eth1"])), one("rp-filter", "eth0"));
        assert!(found(&strict, None, &role(&["eth0"])).is_empty());
        let next = &judge(&strict, None, &role(&["eth0", "eth1"]))[0].next;
        assert_eq!(next, "sysctl -w net.ipv4.conf.eth0.rp_filter=2");
    }

    #[test]
    fn packets_have_to_fit() {
        let tunnel = host(&[link("eth0", 1450, 0), link("tunl0", 1440, 0)]);
        assert_eq!(found(&tunnel, None, &role(&["eth0"])), one("tunnel-mtu", "tunl0"));
        let workload = host(&[link("eth0", 1450, 0), link("cali1", 1500, 0)]);
        assert_eq!(found(&workload, None, &role(&["eth0"])), one("workload-mtu", "endpoint cni/web/eth0"));
    }

    #[test]
    fn what_the_agent_lacks_is_told_where_it_is_needed() {
        let bare = Surroundings { capabilities: Some(0), forwarding: [Some(false), None], ..host(&[]) };
        let codes: Vec<String> = found(&bare, None, &role(&[])).into_iter().map(|(code, _)| code).collect();
        assert_eq!(codes, ["missing-capability", "missing-capability", "forwarding-off"]);
        let looks_only = Role { programs: false, low_port: false, ..role(&[]) };
        assert!(found(&bare, None, &looks_only).is_empty());
    }

    #[test]
    fn connections_are_too_many_from_nine_tenths_on_or_when_some_were_dropped() {
        let with = |count, dropped| Surroundings {
            conntrack: Some(Conntrack { count, max: 1000, dropped }),
            ..host(&[])
        };
        let role = role(&[]);
        assert!(found(&with(899, 0), None, &role).is_empty());
        assert_eq!(found(&with(900, 0), None, &role), one("conntrack-full", "connection tracking"));
        // Drops of long ago are no news.
        assert!(found(&with(10, 5), Some(&with(10, 5)), &role).is_empty());
        assert_eq!(
            found(&with(10, 6), Some(&with(10, 5)), &role),
            one("conntrack-full", "connection tracking")
        );
    }

    #[test]
    fn a_clock_that_is_set_jumps_and_one_that_sleeps_does_not() {
        let at = |wall, running| Surroundings {
            clock: Some(Clock { wall: Duration::from_secs(wall), running: Duration::from_secs(running) }),
            ..host(&[])
        };
        let (start, role) = (at(1_000_000, 50), role(&[]));
        assert!(found(&at(1_000_010, 60), Some(&start), &role).is_empty());
        assert!(found(&at(1_008_000, 8_050), Some(&start), &role).is_empty());
        assert_eq!(found(&at(1_003_610, 60), Some(&start), &role), one("clock-jump", "clock"));
        let back = judge(&at(996_410, 60), Some(&start), &role);
        assert!(back[0].text.contains("set back by 3600.0s"), "{back:?}");
    }

    #[test]
    fn what_the_kernel_prints_is_read() {
        assert_eq!(capabilities("Name:\ttortie\nCapEff:\t0000000000003400\n"), Some(0x3400));
        // Linux 6.1: hexadecimal, a line for each processor.
        let stat = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop\n\
                    0000000a  00000000 00000000 00000000 00000000 00000000 00000000 00000003 00000000 00000000 00000010 00000000\n\
                    0000000a  00000000 00000000 00000000 00000000 00000000 00000000 00000003 00000000 00000000 00000001 00000000\n";
        assert_eq!(dropped(stat), Some(17));
        let netstat = "TcpExt: SyncookiesSent IPReversePathFilter TimeWaited\nTcpExt: 0 7 12\nIpExt: InNoRoutes\nIpExt: 1\n";
        assert_eq!(rp_filtered(netstat), Some(7));
        let here = Surroundings::read([("lo".to_owned(), 65536, true)]);
        assert!(here.capabilities.is_some() && here.clock.is_some() && here.link("lo").is_some());
    }
}
