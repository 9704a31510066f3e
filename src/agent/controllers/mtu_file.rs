//! Controller of the file with the MTU of workloads, which CNI plugins read where their configuration has none.
//!
//! On a store of Calico 3 only, whose own agent and plugin do the same. The MTU is the smallest of the tunnels
//! in use, as configured or what the host's smallest link leaves to it; without tunnels that of the link.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tortie_config::Dialect;
use tortie_config::key::IpFamily;
use tortie_config::resource::InterfaceRegex;
use tortie_kernel::{IPIP_OVERHEAD, VXLAN_OVERHEAD};

use super::life_cycle::{Context, Controller, ControllerHandle, Report, Wake};
use crate::agent::core::input::Input;

/// Time between two looks at the links.
const INTERVAL: Duration = Duration::from_secs(30);
/// MTU of a host none of whose interfaces matches the pattern: the smallest of common clouds, as in Calico.
const UNKNOWN_MTU: u32 = 1_460;

/// A tunnel in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TunnelMtu {
    /// MTU in the settings; `None` for that of the host less the overhead.
    given: Option<u32>,
    /// Octets that the tunnel adds to a packet.
    overhead: u32,
}

/// What the MTU of workloads depends on, besides the links of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct WorkloadMtu {
    pattern: InterfaceRegex,
    tunnels: Vec<TunnelMtu>,
}

/// A network interface of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostLink {
    name: String,
    mtu: u32,
    up: bool,
}

impl WorkloadMtu {
    fn of(&self, links: &[HostLink]) -> u32 {
        let matches = self.pattern.matcher();
        let host = links.iter().filter(|link| link.up && matches(&link.name)).map(|link| link.mtu).min();
        let host = host.unwrap_or(UNKNOWN_MTU);
        let of_tunnel = |tunnel: &TunnelMtu| tunnel.given.unwrap_or(host.saturating_sub(tunnel.overhead));
        self.tunnels.iter().map(of_tunnel).min().unwrap_or(host)
    }
}

/// Writes the file and repairs it.
pub(in crate::agent) struct MtuFileController {
    path: PathBuf,
    report: Report,
}

impl MtuFileController {
    pub(super) fn new(path: PathBuf, report: Report) -> Self {
        Self { path, report }
    }
}

impl Controller for MtuFileController {
    type Desired = Option<WorkloadMtu>;
    const WRITES: bool = true;

    /// An inner `None`: the file is left alone.
    fn desired(context: &Context<'_>) -> Option<Self::Desired> {
        let core = context.core;
        let model = core.model();
        if !core.running() || core.frozen().is_some() || model.dialect() == Dialect::V1 {
            return Some(None);
        }
        let settings = model.settings();
        let has_ipip = || model.pools().any(|pool| pool.key.is_v4() && pool.value.ipip.is_some());
        let [v4, v6] = VXLAN_OVERHEAD;
        let tunnels = [
            (settings.ip_in_ip_enabled.unwrap_or_else(has_ipip), settings.ip_in_ip_mtu, IPIP_OVERHEAD),
            (model.uses_vxlan(&settings, IpFamily::V4), settings.vxlan_mtu, v4),
            (settings.ipv6_support && model.uses_vxlan(&settings, IpFamily::V6), settings.vxlan_mtu_v6, v6),
        ];
        let used = tunnels.into_iter().filter(|(is_used, ..)| *is_used);
        let tunnels = used.map(|(_, given, overhead)| TunnelMtu { given, overhead }).collect();
        Some(Some(WorkloadMtu { pattern: settings.mtu_iface_pattern, tunnels }))
    }

    async fn run(self, mut handle: ControllerHandle<Self::Desired>) {
        let mut reported = None;
        loop {
            if let Some(wanted) = handle.desired() {
                let path = self.path.clone();
                let work = move || write(&path, wanted.of(&links()));
                let done =
                    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(io::Error::other(e)));
                let shown = self.path.display();
                let problem = match done {
                    Ok(None) => None,
                    Ok(Some(mtu)) => {
                        tracing::info!(target: "tortie", "the MTU of workloads is {mtu}, in {shown}");
                        None
                    }
                    Err(error) => Some(format!("{shown}: {error}")),
                };
                if problem != reported {
                    reported.clone_from(&problem);
                    (self.report)(Input::MtuFile(problem));
                }
            }
            if handle.wait(tokio::time::sleep(INTERVAL)).await == Wake::Stopped {
                return;
            }
        }
    }
}

/// Reads the links of the host.
fn links() -> Vec<HostLink> {
    let one = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.to_owned();
        let text = |file| fs::read_to_string(entry.path().join(file)).ok();
        let mtu = text("mtu")?.trim().parse().ok()?;
        // Interfaces without a notion of a carrier are always in state unknown (RFC 2863).
        let up = matches!(text("operstate")?.trim(), "up" | "unknown");
        Some(HostLink { name, mtu, up })
    };
    fs::read_dir("/sys/class/net").into_iter().flatten().flatten().filter_map(one).collect()
}

/// Writes an MTU unless the file has it. The file is replaced as a whole, so that a plugin never reads a part.
/// Returns the MTU if the file changed.
fn write(path: &Path, mtu: u32) -> io::Result<Option<u32>> {
    match fs::read_to_string(path) {
        Ok(text) if text.trim() == mtu.to_string() => return Ok(None),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // What is no text is no MTU.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
        Err(error) => return Err(error),
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let new = path.with_extension("tortie");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
    // The process's umask may have taken the rights of others.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(mtu.to_string().as_bytes())?;
    drop(file);
    fs::rename(&new, path)?;
    Ok(Some(mtu))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, mtu: u32, up: bool) -> HostLink {
        HostLink { name: name.to_owned(), mtu, up }
    }

    fn tunnel(given: Option<u32>, overhead: u32) -> TunnelMtu {
        TunnelMtu { given, overhead }
    }

    fn mtu(tunnels: &[TunnelMtu], links: &[HostLink]) -> u32 {
        WorkloadMtu { pattern: InterfaceRegex::default(), tunnels: tunnels.to_vec() }.of(links)
    }

    #[test]
    fn the_smallest_link_and_the_tunnel_with_the_most_octets_decide() {
        let links = [
            link("eth0", 9_000, true),
            link("eth1", 1_500, true),
            link("eth2", 1_280, false),
            link("bond0", 1_400, true),
            link("lo", 65_536, true),
        ];
        assert_eq!(mtu(&[], &links), 1_500, "eth2 is down, and a bond does not match");
        let [v4, v6] = VXLAN_OVERHEAD;
        assert_eq!(mtu(&[tunnel(None, IPIP_OVERHEAD)], &links), 1_480);
        assert_eq!(mtu(&[tunnel(None, IPIP_OVERHEAD), tunnel(None, v4), tunnel(None, v6)], &links), 1_430);
        // A given MTU counts as it is, also if it is larger.
        assert_eq!(mtu(&[tunnel(Some(8_950), v4)], &links), 8_950);
        assert_eq!(mtu(&[tunnel(Some(1_400), v4), tunnel(None, IPIP_OVERHEAD)], &links), 1_400);
        assert_eq!(mtu(&[tunnel(None, v4)], &links[3..]), 1_410, "no link matches");
    }

    #[test]
    fn the_file_is_replaced_only_if_its_mtu_differs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calico/mtu");
        assert_eq!(write(&path, 1_450).unwrap(), Some(1_450));
        assert_eq!(fs::read_to_string(&path).unwrap(), "1450");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(write(&path, 1_450).unwrap(), None);
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(write(&path, 1_450).unwrap(), Some(1_450));
        // Felix ends the number without a line break, an operator's editor with one.
        fs::write(&path, "1450\n").unwrap();
        assert_eq!(write(&path, 1_450).unwrap(), None);
        assert_eq!(write(&path, 1_430).unwrap(), Some(1_430));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
        // A folder in the place of the file.
        assert!(write(dir.path(), 1_430).is_err());
    }
}
