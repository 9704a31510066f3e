//! Data planes of Calico other than routes and packet rules, by what they leave on the host. Tortie has no
//! counterpart of them: neither comparison nor adoption would see their effect on packets.

use std::path::Path;

/// Device of Felix's eBPF mode, through which it sends packets to its programs.
const EBPF: [&str; 2] = ["bpfin.cali", "bpfout.cali"];
/// Devices of WireGuard of IPv4 and IPv6.
const WIREGUARD: [&str; 2] = ["wireguard.cali", "wg-v6.cali"];
/// Folders in which Felix's eBPF mode pins its programs and maps.
const PINNED: [&str; 2] = ["/sys/fs/bpf/calico", "/sys/fs/bpf/tc/globals"];

/// Returns what is used, or left, of other data planes on this host, each with a fix.
pub(in crate::cli::migrate) fn others() -> Vec<(String, String)> {
    let links = tortie_kernel::links_named("").unwrap_or_default();
    let is_pinned = |dir: &str| {
        let mut names = std::fs::read_dir(Path::new(dir)).into_iter().flatten().flatten();
        let is_calicos = |name: &str| dir.ends_with("calico") || name.starts_with("cali_");
        names.any(|entry| entry.file_name().to_str().is_some_and(is_calicos))
    };
    // Programs are pinned in a file system that all network namespaces share.
    let pinned = PINNED.into_iter().find(|dir| is_pinned(dir)).filter(|_| is_first_namespace());
    of(&links, pinned)
}

fn is_first_namespace() -> bool {
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    of("self").is_some_and(|own| of("1") == Some(own))
}

fn of(links: &[String], pinned: Option<&str>) -> Vec<(String, String)> {
    let has =
        |names: &[&'static str]| names.iter().find(|name| links.iter().any(|link| link == *name)).copied();
    let mut found = Vec::new();
    if let Some(device) = has(&EBPF) {
        found.push((
            format!(
                "Felix runs its eBPF data plane here (device {device}): its programs decide about packets before any route \
                 or rule"
            ),
            "set bpfEnabled to false in the FelixConfiguration, and wait until Felix has removed the device".to_owned(),
        ));
    } else if let Some(dir) = pinned {
        found.push((
            format!(
                "programs of Felix's eBPF data plane are left in {dir}, and may be attached to interfaces"
            ),
            "let Felix run once with bpfEnabled false, or boot this host".to_owned(),
        ));
    }
    if let Some(device) = has(&WIREGUARD) {
        found.push((
            format!("Felix encrypts packets to other hosts with WireGuard (device {device}), which Tortie does not"),
            "set wireguardEnabled and wireguardEnabledV6 to false, and wait until Felix has removed the device"
                .to_owned(),
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_other_data_plane_is_named_by_what_it_leaves() {
        let texts = |links: &[&str], pinned| -> Vec<String> {
            let links: Vec<String> = links.iter().map(|link| (*link).to_owned()).collect();
            of(&links, pinned).into_iter().map(|(text, _)| text).collect()
        };
        assert_eq!(texts(&["eth0", "cali1", "vxlan.calico", "tunl0"], None), Vec::<String>::new());
        let ebpf = texts(&["bpfout.cali"], Some(PINNED[0]));
        assert!(ebpf.len() == 1 && ebpf[0].contains("bpfout.cali"), "{ebpf:?}");
        assert!(texts(&["eth0"], Some(PINNED[1]))[0].contains("/sys/fs/bpf/tc/globals"));
        assert!(texts(&["wg-v6.cali"], None)[0].contains("WireGuard"));
    }
}
