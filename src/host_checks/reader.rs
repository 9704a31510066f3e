//! Reads the state of this host for `doctor` and `migrate check`; changes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use super::checks::health::TUNNELS;
use super::owners::{self, Owner};
use super::snapshot::{HostSnapshot, PORTS, Role, SocketFile};

/// Other programs that write routes or rules.
const OTHER_DAEMONS: [&str; 6] = ["bird", "bird6", "calico-felix", "calico-node", "confd", "bgpd"];

/// Reads the host; `socket` is the path of the agent's socket. Tests kernel and socket features, which takes
/// about 50 ms.
#[must_use]
pub fn read(socket: &Path) -> HostSnapshot {
    let group = group_id("tortie");
    HostSnapshot {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        kernel_features: tortie_kernel::probe_kernel(),
        vxlan_devices: tortie_kernel::vxlan_ports().unwrap_or_default(),
        sockets: crate::speaker::try_sockets(),
        ports: owners::owners(&PORTS),
        other_daemons: other_daemons(&owners::processes()),
        felix_rules: ["iptables-legacy-save", "iptables-nft-save"].map(felix_rules),
        felix_tables: felix_tables(),
        network_manager: network_manager(),
        group: group.is_some(),
        socket: socket_file(socket, group),
        ..HostSnapshot::read(links())
    }
}

/// Returns name, MTU and administrative state of each interface.
fn links() -> Vec<(String, u32, bool)> {
    let one = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.to_owned();
        let mtu = fs::read_to_string(entry.path().join("mtu")).ok()?.trim().parse().ok()?;
        let flags = fs::read_to_string(entry.path().join("flags")).ok()?;
        let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()?;
        Some((name, mtu, flags & 1 != 0))
    };
    fs::read_dir("/sys/class/net").into_iter().flatten().flatten().filter_map(one).collect()
}

/// Returns the interfaces of the main table's default routes, from the text of `/proc/net/route`.
fn default_interfaces(table: &str) -> BTreeSet<String> {
    let row = |line: &str| {
        let mut fields = line.split_whitespace();
        let (name, destination) = (fields.next()?, fields.next()?);
        let mask = fields.nth(5)?;
        (destination == "00000000" && mask == "00000000").then(|| name.to_owned())
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Derives the tasks of this host without the agent.
#[must_use]
pub fn role(now: &HostSnapshot) -> Role {
    let table = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let workloads = now.links.iter().filter(|l| l.name.starts_with("cali"));
    Role {
        programs: true,
        low_port: true,
        // The agent enables forwarding, so disabled forwarding before its start is no problem.
        routes: [false, false],
        uplinks: default_interfaces(&table),
        tunnels: (TUNNELS.iter().map(|(name, ..)| *name))
            .filter(|name| now.link(name).is_some_and(|link| link.up))
            .collect(),
        workloads: workloads.map(|l| (l.name.clone(), l.name.clone())).collect(),
        // Comes from the store, which is read by another part.
        pools: Vec::new(),
    }
}

fn other_daemons(processes: &[(u32, String)]) -> Vec<Owner> {
    let one = |(pid, name): &(u32, String)| {
        OTHER_DAEMONS.contains(&name.as_str()).then(|| Owner { pid: *pid, name: name.clone() })
    };
    processes.iter().filter_map(one).collect()
}

/// Counts Felix's rules in a tool's listing. A missing tool, or a kernel without its tables, means 0; a
/// listing that is not permitted means `None`.
fn felix_rules(tool: &str) -> Option<usize> {
    // Running the tool would load the modules of the legacy tables.
    if tool.contains("legacy") && fs::read_to_string("/proc/net/ip_tables_names").is_ok_and(|t| t.is_empty())
    {
        return Some(0);
    }
    let output = Command::new(tool).stdin(Stdio::null()).stderr(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Some(count_felix(&String::from_utf8_lossy(&output.stdout))),
        Ok(_) => None,
        Err(_) => Some(0),
    }
}

/// Lists Felix's own tables of nftables, as of Calico 3.29.
fn felix_tables() -> Vec<String> {
    let all = tortie_kernel::filter_tables().unwrap_or_default();
    let of_felix = all.into_iter().filter(|table| table.name == "calico");
    of_felix.map(|table| format!("{} {}", table.family, table.name)).collect()
}

/// Counts rules in Felix's chains or with a jump to them.
fn count_felix(listing: &str) -> usize {
    listing.lines().filter(|l| l.starts_with("-A ") && l.contains("cali-")).count()
}

/// Returns true if NetworkManager ignores Tortie's interfaces; `None` if it does not run.
fn network_manager() -> Option<bool> {
    owners::processes().iter().any(|(_, name)| name == "NetworkManager").then(|| {
        let folders =
            ["/etc/NetworkManager/conf.d", "/usr/lib/NetworkManager/conf.d", "/run/NetworkManager/conf.d"];
        let files = folders.iter().flat_map(|f| fs::read_dir(f).into_iter().flatten().flatten());
        let main = [Path::new("/etc/NetworkManager/NetworkManager.conf").to_owned()];
        files.map(|f| f.path()).chain(main).any(|p| fs::read_to_string(p).is_ok_and(|t| leaves_alone(&t)))
    })
}

/// True if a configuration file has `unmanaged-devices` with Tortie's interfaces (NetworkManager.conf(5)).
fn leaves_alone(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim();
        line.starts_with("unmanaged-devices") && line.contains("interface-name:cali")
    })
}

fn socket_file(path: &Path, group: Option<u32>) -> Option<SocketFile> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some(SocketFile {
        is_socket: meta.file_type().is_socket(),
        mode: meta.mode() & 0o777,
        of_group: group == Some(meta.gid()),
    })
}

fn group_id(name: &str) -> Option<u32> {
    let text = fs::read_to_string("/etc/group").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_print_is_read() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            eth1\t00000000\t010200C0\t0003\t0\t0\t10\t00000000\t0\t0\t0\n";
        assert_eq!(default_interfaces(routes).into_iter().collect::<Vec<_>>(), ["eth0", "eth1"]);
        // Rules of Felix 3.20 from `iptables-save`, shortened.
        let listing = "*filter\n:INPUT ACCEPT [0:0]\n:cali-INPUT - [0:0]\n\
            -A INPUT -m comment --comment \"cali:Cz_u1IQiXIMmKD4c\" -j cali-INPUT\n\
            -A cali-INPUT -i cali+ -j cali-wl-to-host\n-A INPUT -p tcp --dport 22 -j ACCEPT\nCOMMIT\n";
        assert_eq!(count_felix(listing), 2);
        assert!(leaves_alone("[keyfile]\nunmanaged-devices=interface-name:cali*;interface-name:tunl*\n"));
        assert!(!leaves_alone("[keyfile]\n# unmanaged-devices=interface-name:cali*\n"));
        let found = other_daemons(&[(1, "systemd".to_owned()), (812, "bird".to_owned())]);
        assert_eq!(found, [Owner { pid: 812, name: "bird".to_owned() }]);
    }
}
