//! Sysctls of a workload's interface, and two of the host that affect them.
//!
//! - `rp_filter` 1: drops packets with a foreign source address, even before packet rules are installed.
//! - `proxy_arp` 1, `proxy_delay` 0: the host answers for the gateway of workloads, at once.
//! - `forwarding` 1, even if the rest of the host does not forward.
//! - `route_localnet` 1: rules of the host may redirect a workload's packets to 127.0.0.0/8. Packets that a
//!   workload sends there are dropped by packet rules (compare CVE-2020-8558).
//! - `accept_ra` 0: a workload must not give the host a route (CVE-2020-13597).
//! - With IPv6 addresses behind the interface, also `proxy_ndp` 1 and `forwarding` for IPv6. They make the
//!   kernel join multicast groups and add routes, so they are not set for IPv4-only workloads.

use std::path::{Path, PathBuf};

use super::super::sysctl::{NET, read, set};

fn desired_sysctls(name: &str, ipv6: bool) -> Vec<(PathBuf, &'static str)> {
    let net = Path::new(NET);
    let v4 = net.join("ipv4/conf").join(name);
    let mut all: Vec<(PathBuf, &'static str)> = ["rp_filter", "route_localnet", "proxy_arp", "forwarding"]
        .iter()
        .map(|s| (v4.join(s), "1"))
        .collect();
    all.push((net.join("ipv4/neigh").join(name).join("proxy_delay"), "0"));
    // Absent if the kernel has no IPv6.
    if net.join("ipv6").is_dir() {
        let v6 = net.join("ipv6/conf").join(name);
        all.push((v6.join("accept_ra"), "0"));
        if ipv6 {
            all.extend(["proxy_ndp", "forwarding"].map(|s| (v6.join(s), "1")));
        }
    }
    all
}

/// Returns the number of sysctls with wrong values.
pub(super) fn wrong_sysctls(name: &str, ipv6: bool) -> usize {
    desired_sysctls(name, ipv6).iter().filter(|(path, value)| read(path).as_deref() != Some(value)).count()
}

/// Sets all sysctls without reading them first, since most interfaces are new and reading would be half of
/// the work. Returns the first refusal as text; a sysctl that cannot be written but is correct is no refusal.
pub(super) fn apply(name: &str, ipv6: bool) -> Result<(), String> {
    let put = |(path, value): &(PathBuf, &str)| std::fs::write(path, value).or_else(|_| set(path, value));
    desired_sysctls(name, ipv6).iter().try_for_each(put)
}

/// Returns the problem with the host's reverse path filter: the greater of `all` and the interface's own
/// value applies.
pub(super) fn loose() -> Option<String> {
    let path = Path::new(NET).join("ipv4/conf/all/rp_filter");
    (read(&path).as_deref() == Some("2")).then(|| {
        format!(
            "{} is 2 (loose), so that workloads' source addresses are filtered by packet rules alone; set it to 0 or 1, or \
             IgnoreLooseRPF to true",
            path.display()
        )
    })
}
