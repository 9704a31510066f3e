//! Finds the processes that listen on TCP ports of this host, in `/proc`.

use std::collections::BTreeMap;
use std::fs;

/// A process that owns a socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Process id; 0 if not visible, as in another namespace or without permission.
    pub pid: u32,
    /// Process name from `/proc/PID/comm`.
    pub name: String,
}

/// State `TCP_LISTEN` of the kernel's tcp_states.h.
const LISTEN: &str = "0A";

/// Returns the inodes of sockets that listen on `port`, from the text of `/proc/net/tcp` or `tcp6`
/// (proc_net_tcp.rst).
fn listening(table: &str, port: u16) -> Vec<u64> {
    let row = |line: &str| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?;
        let at = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?.parse().ok()?;
        (at == port && state == LISTEN).then_some(inode)
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Returns the processes that listen on these ports. Ports without a listener are omitted.
pub(super) fn owners(ports: &[u16]) -> BTreeMap<u16, Vec<Owner>> {
    let tables: Vec<String> =
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().filter_map(|p| fs::read_to_string(p).ok()).collect();
    let mut sockets: BTreeMap<u64, u16> = BTreeMap::new();
    for port in ports {
        let inodes = tables.iter().flat_map(|table| listening(table, *port));
        sockets.extend(inodes.map(|inode| (inode, *port)));
    }
    let mut found: BTreeMap<u16, Vec<Owner>> = BTreeMap::new();
    if sockets.is_empty() {
        return found;
    }
    for (pid, name) in processes() {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for file in files {
            let Ok(target) = fs::read_link(file.path()) else { continue };
            let inode = target
                .to_str()
                .and_then(|t| t.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok());
            if let Some(port) = inode.and_then(|inode| sockets.get(&inode)) {
                found.entry(*port).or_default().push(Owner { pid, name: name.clone() });
            }
        }
    }
    for port in sockets.into_values() {
        let owners = found.entry(port).or_default();
        if owners.is_empty() {
            owners.push(Owner { pid: 0, name: "a process that is not visible from here".to_owned() });
        }
    }
    for owners in found.values_mut() {
        owners.sort_unstable();
        owners.dedup();
    }
    found
}

/// Returns all visible processes with their names.
pub(super) fn processes() -> Vec<(u32, String)> {
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(pid);
    all.filter_map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some((pid, name.trim_end().to_owned()))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        // From a Debian 12 host; 00B3 = 179, state 0A listens, 01 is established.
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 00000000:00B3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41221 1 0000000000000000 100 0 0 10 0\n   \
            1: 0100007F:00B3 0100007F:D1E2 01 00000000:00000000 00:00000000 00000000     0        0 41399 1 0000000000000000 20 4 30 10 -1\n   \
            2: 0100007F:238B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41222 1 0000000000000000 100 0 0 10 0\n";
        assert_eq!((listening(table, 179), listening(table, 9099)), (vec![41_221], vec![41_222]));
        assert!(listening(table, 22).is_empty() && listening("", 179).is_empty());
    }

    #[test]
    fn our_own_socket_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let found = owners(&[port]);
        assert!(found[&port].iter().any(|o| o.pid == std::process::id()), "{found:?}");
        drop(listener);
        assert!(owners(&[port]).is_empty());
    }
}
