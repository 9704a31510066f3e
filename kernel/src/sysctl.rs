//! The few sysctls that routing needs, and how sysctls are set. `fib_multipath_hash_policy` is the administrator's and left alone.

use std::path::{Path, PathBuf};

pub(super) const NET: &str = "/proc/sys/net";

/// Forwards IPv4; gives the reason when that cannot be switched on.
pub(super) fn forward_v4() -> Result<(), String> {
    set(&Path::new(NET).join("ipv4/ip_forward"), "1")
}

/// Forwards IPv6. A forwarding host ignores router advertisements unless `accept_ra` is 2, so interfaces that listened to
/// them (1) keep listening: the host must not lose its own default route.
pub(super) fn forward_v6() -> Result<(), String> {
    let conf = Path::new(NET).join("ipv6/conf");
    if read(&conf.join("all/forwarding")).as_deref() == Some("1") {
        return Ok(());
    }
    for interface in interfaces(&conf) {
        let accept = interface.join("accept_ra");
        if read(&accept).as_deref() == Some("1") {
            set(&accept, "2")?;
        }
    }
    set(&conf.join("all/forwarding"), "1")
}

fn interfaces(conf: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(conf).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|p| !p.ends_with("all")).collect()
}

pub(super) fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

pub(super) fn set(path: &Path, value: &str) -> Result<(), String> {
    if read(path).as_deref() == Some(value) {
        return Ok(());
    }
    std::fs::write(path, value).map_err(|e| {
        format!("{} cannot be set to {value}: {e}; set it before the agent starts", path.display())
    })
}
