//! A network namespace for a test, entered by its thread: what the thread starts lives there, and it is gone with them.

use std::path::PathBuf;
use std::process::Command;

use rustix::thread::UnshareFlags;

/// Whether a test can go on without something: never in CI.
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("SKIPPED: {why}");
}

/// Enters a new namespace where all of 192.0.2.0/24 and 10.65.0.0/16 are addresses of this host (127.0.0.0/8 would not
/// do: a route with such a next hop is malformed), and these. `false`: not permitted, skip.
pub(crate) fn enter(addresses: &[&str]) -> bool {
    // SAFETY: NEWNET touches no file descriptors and no memory; it moves this thread alone into the new namespace.
    #[expect(unsafe_code, reason = "unshare")]
    let entered = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
    if let Err(e) = entered {
        skip(&format!("network namespaces need root: {e}"));
        return false;
    }
    ip(&["link", "set", "lo", "up"]);
    for network in ["192.0.2.0/24", "10.65.0.0/16"] {
        ip(&["route", "add", "local", network, "dev", "lo"]);
    }
    for address in addresses {
        let mut args = vec!["addr", "add", address, "dev", "lo"];
        if address.contains(':') {
            args.push("nodad");
        }
        ip(&args);
    }
    true
}

pub(crate) fn ip(args: &[&str]) {
    let status = Command::new("ip").args(args).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {}", args.join(" "));
}

/// The path of a daemon; `None`: not there, skip.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/bin"));
    let dirs = std::env::var_os("TORTIE_PEERS").map(PathBuf::from).into_iter().chain([own]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = dirs.chain(std::env::split_paths(&path)).map(|d| d.join(name)).find(|p| p.is_file());
    if found.is_none() {
        skip(&format!("{name} is neither in target/peers (make peers) nor in PATH"));
    }
    found
}
