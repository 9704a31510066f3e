//! Checks of the health probe, which `doctor` and `migrate check` run as well: forwarding, reverse path
//! filters, MTU, conntrack, rules of other programs, disk space and the clock.

use std::time::Duration;
use tortie_config::counted;

use crate::api::codes;
use crate::host_checks::host::Host;
use crate::host_checks::result::Results;
use crate::host_checks::snapshot::Link;

/// Tunnel devices: octets that each adds to a packet, and the setting of its MTU.
pub(in crate::host_checks) const TUNNELS: [(&str, u32, &str); 3] = [
    ("tunl0", tortie_kernel::IPIP_OVERHEAD, "IpInIpMtu"),
    (tortie_kernel::vxlan_device(true), tortie_kernel::VXLAN_OVERHEAD[0], "VXLANMTU"),
    (tortie_kernel::vxlan_device(false), tortie_kernel::VXLAN_OVERHEAD[1], "VXLANMTUV6"),
];
/// Fill level in percent from which the conntrack table counts as full.
const CONNTRACK_FULL_PERCENT: u64 = 90;
/// Smallest clock change that counts as a jump; NTP slews smaller differences.
const CLOCK_STEP_MIN: Duration = Duration::from_secs(2);
/// If more workloads than this have too large an MTU, they are one problem.
const LISTED_MAX: usize = 5;

pub(in crate::host_checks) fn forwarding(host: &Host<'_>, results: &mut Results) {
    let Host { now, role, .. } = *host;
    let families = [("IPv4", "net.ipv4.ip_forward"), ("IPv6", "net.ipv6.conf.all.forwarding")];
    for ((family, sysctl), (forwards, routed)) in
        families.into_iter().zip(now.forwarding.into_iter().zip(role.routes))
    {
        if role.programs && routed && forwards == Some(false) {
            let text = format!(
                "{family} is routed here and {sysctl} is 0: the kernel drops every packet that is not for this host \
                 itself; another process switched it off, and the agent cannot switch it on"
            );
            host.report(codes::FORWARDING_OFF.problem(sysctl, format!("{family} forwarding"), text), results);
        }
    }
}

/// With one uplink, replies arrive on it. With several, they may arrive on any of them.
pub(in crate::host_checks) fn reverse_path_filters(host: &Host<'_>, results: &mut Results) {
    let Host { now, role, .. } = *host;
    let uplinks: Vec<&Link> =
        role.uplinks.iter().filter_map(|name| now.link(name)).filter(|link| link.up).collect();
    if uplinks.len() < 2 {
        return;
    }
    for link in uplinks.iter().filter(|link| link.rp_filter == Some(1)) {
        let dropped = match now.rp_filtered {
            Some(n) if n > 0 => format!(" ({} so far, on all interfaces)", counted(n, "packet")),
            _ => String::new(),
        };
        let text = format!(
            "rp_filter is strict on it and this host has {} to the network: a packet whose reply would \
             leave by another one is dropped{dropped}",
            counted(uplinks.len(), "interface")
        );
        host.report(codes::RP_FILTER.problem(&link.name, link.name.clone(), text), results);
    }
}

pub(in crate::host_checks) fn mtu(host: &Host<'_>, results: &mut Results) {
    let Host { now, role, .. } = *host;
    let uplinks = role.uplinks.iter().filter_map(|name| now.link(name)).filter(|link| link.up);
    let Some(narrowest) = uplinks.min_by_key(|link| link.mtu) else { return };
    for (name, overhead, setting) in TUNNELS.into_iter().filter(|(name, ..)| role.tunnels.contains(*name)) {
        let Some(tunnel) = now.link(name).filter(|link| link.up) else { continue };
        if tunnel.mtu.saturating_add(overhead) > narrowest.mtu {
            let text = format!(
                "its MTU is {}, and with {overhead} bytes more its packets do not fit into {} ({}): set {setting} to {} \
                 or less, or take it out of the store",
                tunnel.mtu,
                narrowest.name,
                narrowest.mtu,
                narrowest.mtu.saturating_sub(overhead)
            );
            host.report(codes::TUNNEL_MTU.problem(name, name, text), results);
        }
    }
    let wide = |(endpoint, interface): &(String, String)| {
        let link = now.link(interface).filter(|link| link.mtu > narrowest.mtu)?;
        Some((endpoint.clone(), link.name.clone(), link.mtu))
    };
    let wide: Vec<_> = role.workloads.iter().filter_map(wide).collect();
    for (endpoint, interface, mtu) in wide.iter().take(LISTED_MAX) {
        let text = format!(
            "{interface} has an MTU of {mtu}, {} on the path out {}: large packets need path MTU discovery, \
             or are lost",
            narrowest.name, narrowest.mtu
        );
        host.report(codes::WORKLOAD_MTU.problem(endpoint, format!("endpoint {endpoint}"), text), results);
    }
    if wide.len() > LISTED_MAX {
        let text = format!("{} more have a larger MTU than {}", wide.len() - LISTED_MAX, narrowest.name);
        host.report(codes::WORKLOAD_MTU.problem("", "endpoints", text), results);
    }
}

pub(in crate::host_checks) fn conntrack(host: &Host<'_>, results: &mut Results) {
    let Host { now, before, .. } = *host;
    let Some(table) = now.conntrack else { return };
    let dropped =
        before.and_then(|b| b.conntrack).map_or(0, |earlier| table.dropped.saturating_sub(earlier.dropped));
    let full = table.max > 0 && table.count * 100 >= table.max * CONNTRACK_FULL_PERCENT;
    if full || dropped > 0 {
        let text = format!(
            "{} of {} entries are in use, {} dropped recently because the table was full: raise \
             net.netfilter.nf_conntrack_max, or find the source of so many connections",
            table.count,
            table.max,
            counted(dropped, "packet")
        );
        host.report(codes::CONNTRACK_FULL.problem("", "connection tracking", text), results);
    }
}

/// Free space in octets below which a file system counts as full: the agent writes a new cache file next to
/// the old one.
const ROOM_MIN: u64 = 16 << 20;
/// On a small file system the limit is this fraction of its size.
const ROOM_PART: u64 = 100;

/// Reports each file on a full file system; store and cache may be on the same one.
pub(in crate::host_checks) fn disks(host: &Host<'_>, results: &mut Results) {
    for disk in &host.now.disks {
        let bound = ROOM_MIN.min(disk.size / ROOM_PART);
        let what = if disk.size > 0 && disk.free <= bound {
            format!("{} KiB of {} MiB are left", disk.free >> 10, disk.size >> 20)
        } else if disk.files == Some(0) {
            "it has no room for more files".to_owned()
        } else {
            continue;
        };
        let text = format!(
            "{what} on its file system: writes to it fail, and if it is the store's, no workload can be \
             added"
        );
        host.report(codes::DISK_FULL.problem(&disk.of, disk.of.clone(), text), results);
    }
}

/// One chain that drops is enough, whichever program owns it: Tortie's rules accept packets in their own
/// chains only.
pub(in crate::host_checks) fn forwarded(host: &Host<'_>, results: &mut Results) {
    let Host { now, role, .. } = *host;
    if !role.programs || role.workloads.is_empty() {
        return;
    }
    for drop in now.forward_drops.iter().filter(|drop| !drop.names_workloads) {
        let place = format!("{} {} {}", drop.family, drop.table, drop.chain);
        let text = format!(
            "{} drops forwarded packets that no rule there accepts: packets of {} do not pass although \
             their policies allow them",
            drop.describe(),
            counted(role.workloads.len(), "workload")
        );
        host.report(codes::FORWARD_DROPPED.problem(&place, format!("chain {place}"), text), results);
    }
}

pub(in crate::host_checks) fn clock(host: &Host<'_>, results: &mut Results) {
    let (Some(clock), Some(earlier)) = (host.now.clock, host.before.and_then(|b| b.clock)) else { return };
    let set = clock.stepped_since(earlier);
    if set.unsigned_abs() > u64::try_from(CLOCK_STEP_MIN.as_millis()).unwrap_or(u64::MAX) {
        let way = if set > 0 { "forward" } else { "back" };
        let text = format!(
            "the clock was set {way} by {:.1}s: leases, times in logs and times in the store are \
             inconsistent",
            Duration::from_millis(set.unsigned_abs()).as_secs_f64()
        );
        host.report(codes::CLOCK_JUMP.problem("", "clock", text), results);
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
