//! Sysctls of the host that routing needs, and functions to read and set sysctls. `fib_multipath_hash_policy`
//! belongs to the operator and is not changed.
//!
//! The values are checked periodically, since most sysctls have no notification. If another process
//! (`sysctl --system`, a VPN, a hardening script) disables forwarding, every packet of every workload is
//! dropped.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const NET: &str = "/proc/sys/net";
/// Interval of checks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Sysctls of the host that the agent sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostSysctl {
    /// Forwarding of IPv4.
    ForwardV4,
    /// Forwarding of IPv6. A forwarding host ignores router advertisements unless `accept_ra` is 2.
    /// Interfaces that accept them (1) are set to 2, so that the host does not lose its own default route.
    ForwardV6,
    /// Reverse path filter of interfaces created later.
    FilterByDefault,
}

impl HostSysctl {
    /// Returns the subject, as text for people.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::ForwardV4 => "forwarding of IPv4",
            Self::ForwardV6 => "forwarding of IPv6",
            Self::FilterByDefault => "reverse path filter of new interfaces",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::ForwardV4 => "ipv4/ip_forward",
            Self::ForwardV6 => "ipv6/conf/all/forwarding",
            Self::FilterByDefault => "ipv4/conf/default/rp_filter",
        }
    }
}

/// A sysctl that is kept.
#[derive(Debug)]
struct Kept {
    what: HostSysctl,
    /// True if a difference was found and counted.
    differs: bool,
    /// The reason why it cannot be repaired.
    problem: Option<String>,
}

/// Result of a check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Changes by other processes since the last check, as text.
    pub(super) changes: Vec<String>,
    /// New faults, and `None` for those that ended.
    pub(super) problems: Vec<(HostSysctl, Option<String>)>,
}

/// The sysctls of the host that are kept at the agent's values.
#[derive(Debug)]
pub(super) struct HostSysctls {
    net: PathBuf,
    kept: Vec<Kept>,
    /// `accept_ra` paths of interfaces that accept router advertisements because this program set 2.
    listening: Vec<PathBuf>,
    due: Option<Instant>,
}

impl HostSysctls {
    pub(super) fn new(net: &Path) -> Self {
        Self { net: net.to_owned(), kept: Vec::new(), listening: Vec::new(), due: None }
    }

    /// Sets a sysctl and keeps it from now on; returns the reason if it cannot be set.
    pub(super) fn keep(&mut self, what: HostSysctl, now: Instant) -> Option<String> {
        if self.kept.iter().any(|kept| kept.what == what) {
            return None;
        }
        let problem = self.set(what).err();
        let differs = problem.is_some();
        self.kept.push(Kept { what, differs, problem: problem.clone() });
        self.due.get_or_insert(now + LOOK_INTERVAL);
        problem
    }

    /// Returns the time of the next [`HostSysctls::look`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Checks all kept sysctls; with `repairs`, sets those that differ again.
    pub(super) fn look(&mut self, repairs: bool, now: Instant) -> Changes {
        self.due = Some(now + LOOK_INTERVAL);
        let mut look = Changes::default();
        let mut kept = std::mem::take(&mut self.kept);
        for one in &mut kept {
            let path = self.net.join(one.what.path());
            match read(&path) {
                Some(value) if value != "1" => {
                    if !std::mem::replace(&mut one.differs, true) {
                        look.changes.push(format!("{} was set to {value}", name(one.what.path())));
                    }
                    if repairs {
                        let problem = self.set(one.what).err();
                        one.differs = problem.is_some();
                        if problem != one.problem {
                            one.problem.clone_from(&problem);
                            look.problems.push((one.what, problem));
                        }
                    }
                }
                // A sysctl that cannot be read is not a difference.
                _ => {
                    one.differs = false;
                    if one.problem.take().is_some() {
                        look.problems.push((one.what, None));
                    }
                }
            }
        }
        self.kept = kept;
        self.listen_again(repairs, &mut look);
        look
    }

    /// Sets `accept_ra` to 2 again on interfaces where it was reset to 1, which a forwarding host treats as
    /// off. Any other value is a choice of the operator.
    fn listen_again(&mut self, repairs: bool, look: &mut Changes) {
        self.listening.retain(|path| match read(path).as_deref() {
            Some("2") => true,
            Some("1") if repairs => {
                let shown = path.strip_prefix(&self.net).unwrap_or(path).display().to_string();
                look.changes.push(format!("{} was set to 1", name(&shown)));
                set(path, "2").is_ok()
            }
            Some("1") => true,
            _ => false,
        });
    }

    fn set(&mut self, what: HostSysctl) -> Result<(), String> {
        let path = self.net.join(what.path());
        if what == HostSysctl::ForwardV6 && read(&path).as_deref() != Some("1") {
            for interface in interfaces(&self.net.join("ipv6/conf")) {
                let accept = interface.join("accept_ra");
                if read(&accept).as_deref() == Some("1") {
                    set(&accept, "2")?;
                    self.listening.push(accept);
                }
            }
        }
        set(&path, "1")
    }
}

/// Returns the name in the form of sysctl(8).
fn name(path: &str) -> String {
    format!("net.{}", path.replace('.', "\u{0}").replace('/', ".").replace('\u{0}', "/"))
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

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [HostSysctl; 3] = [HostSysctl::ForwardV4, HostSysctl::ForwardV6, HostSysctl::FilterByDefault];

    fn host() -> (tempfile::TempDir, HostSysctls) {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, value: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value).unwrap();
        };
        for what in ALL {
            file(what.path(), "0\n");
        }
        for (interface, accepts) in [("all", "1"), ("eth0", "1"), ("eth1.7", "0"), ("eth2", "2")] {
            file(&format!("ipv6/conf/{interface}/accept_ra"), accepts);
        }
        let sysctls = HostSysctls::new(dir.path());
        (dir, sysctls)
    }

    /// Each sysctl, with any value by another process, and any number of changes.
    #[test]
    fn what_the_agent_sets_stays_set_and_each_change_counts_once() {
        let (dir, mut sysctls) = host();
        let now = Instant::now();
        assert_eq!(
            (sysctls.due(), sysctls.look(true, now)),
            (None, Changes::default()),
            "nothing is kept unasked"
        );
        for what in ALL {
            assert_eq!((sysctls.keep(what, now), sysctls.keep(what, now)), (None, None));
        }
        let value = |path: &str| read(&dir.path().join(path)).unwrap();
        for what in ALL {
            for value_of_others in ["0", "2"] {
                std::fs::write(dir.path().join(what.path()), value_of_others).unwrap();
                // During a hold, a change is reported once and kept.
                let held = sysctls.look(false, now);
                assert_eq!(
                    (held.changes.len(), sysctls.look(false, now)),
                    (1, Changes::default()),
                    "{what:?}"
                );
                assert!(held.changes[0].ends_with(&format!("was set to {value_of_others}")), "{held:?}");
                assert_eq!(
                    (sysctls.look(true, now), value(what.path())),
                    (Changes::default(), "1".to_owned())
                );
                std::fs::write(dir.path().join(what.path()), value_of_others).unwrap();
                let look = sysctls.look(true, now);
                assert_eq!(
                    (look.changes.len(), look.problems, value(what.path())),
                    (1, vec![], "1".to_owned())
                );
            }
        }
        assert_eq!(name("ipv4/ip_forward"), "net.ipv4.ip_forward");
    }

    #[test]
    fn interfaces_that_listen_to_routers_keep_listening_and_others_do_not_begin() {
        let (dir, mut sysctls) = host();
        let now = Instant::now();
        sysctls.keep(HostSysctl::ForwardV6, now);
        let value =
            |interface: &str| read(&dir.path().join(format!("ipv6/conf/{interface}/accept_ra"))).unwrap();
        let all = || ["all", "eth0", "eth1.7", "eth2"].map(value);
        assert_eq!(all(), ["1", "2", "0", "2"]);
        let write = |interface: &str, text: &str| {
            std::fs::write(dir.path().join(format!("ipv6/conf/{interface}/accept_ra")), text).unwrap();
        };
        write("eth0", "1");
        write("eth2", "1");
        let look = sysctls.look(true, now);
        assert_eq!(look.changes, ["net.ipv6.conf.eth0.accept_ra was set to 1"]);
        assert_eq!(all(), ["1", "2", "0", "1"], "what was not ours stays another's");
        // Disabled on purpose.
        write("eth0", "0");
        assert_eq!((sysctls.look(true, now), value("eth0")), (Changes::default(), "0".to_owned()));
    }

    #[test]
    fn what_cannot_be_set_is_said_once_and_when_it_is_over() {
        let (dir, mut sysctls) = host();
        let now = Instant::now();
        let what = HostSysctl::ForwardV4;
        let path = dir.path().join(what.path());
        sysctls.keep(what, now);
        // A folder in its place can be neither read nor written.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(sysctls.look(true, now), Changes::default());
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "0").unwrap();
        assert_eq!(sysctls.look(true, now).changes, ["net.ipv4.ip_forward was set to 0"]);
        assert_eq!(read(&path).as_deref(), Some("1"));
    }
}
