//! Sandbox of the agent, set up before its first thread starts: it limits the damage if the process that
//! parses BGP and serves HTTP is taken over.
//!
//! - Capabilities ([`capabilities`]). A helper process has two of them, which are only needed for network
//!   namespaces of containers ([`tortie_kernel::namespaces`]).
//! - no_new_privs (prctl(2)): programs that the agent runs gain no privileges.
//! - Not dumpable (prctl(2)): other processes of the same user cannot read its memory or environment, and a
//!   crash writes no core file with passwords.
//! - Landlock (landlock(7)): the agent opens only files that [`rules`] allows, and signals only its own
//!   children.
//!
//! All restrictions apply to threads, or to files opened later. A kernel without Landlock skips that part;
//! all supported kernels have the others.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, make_bitflags,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tortie_kernel::Namespaces;
use tortie_store::StoreOptions;

use super::capabilities;
use crate::agent::config::Settings;
use crate::agent::logging;
use crate::api::status::{Landlock, ProtectionStatus};
use crate::speaker;

/// Landlock version whose access rights are handled, as far as the kernel has them (Linux 6.12).
const VERSION: ABI = ABI::V6;

/// Command name of the helper process.
pub const HELPER: &str = "__namespaces";

type Access = BitFlags<AccessFs>;

/// Options of an agent that determine its file access.
pub(in crate::agent) struct AgentFiles<'a> {
    /// Settings merged from flags, environment and file.
    pub(in crate::agent) settings: &'a Settings,
    /// Access to the store.
    pub(in crate::agent) store: &'a StoreOptions,
    /// Path of the API's unix socket.
    pub(in crate::agent) socket: &'a Path,
    /// True if the agent programs the kernel and writes to the store for its host.
    pub(in crate::agent) writes: bool,
    /// True in observe mode, in which the agent runs other daemons' tools.
    pub(in crate::agent) observes: bool,
}

/// Starts the helper and applies all restrictions. Must run before a second thread exists.
pub(in crate::agent) fn enter(agent: &AgentFiles<'_>) -> (Namespaces, ProtectionStatus) {
    let serves_docker = agent.settings.docker("", agent.socket).is_some();
    // The helper keeps capabilities that the agent drops next.
    let namespaces = if agent.writes || serves_docker { start_helper() } else { Namespaces::Direct };
    capabilities::keep(&capabilities::NEEDED);
    let no_new_privs = no_new_privs();
    let mut status = ProtectionStatus { no_new_privs, ..ProtectionStatus::default() };
    if agent.settings.no_sandbox() {
        status.landlock = Landlock::Off;
    } else {
        not_dumpable();
        let folders = make_folders(agent);
        (status.landlock, status.landlock_abi) = restrict(&rules(agent, &folders)).unwrap_or_else(|error| {
            tracing::warn!(target: "tortie", "Landlock cannot be enabled: {error}");
            (Landlock::Failed, None)
        });
    }
    status.dumpable = rustix::process::dumpable_behavior().is_ok_and(|d| d == DumpableBehavior::Dumpable);
    status.capabilities = capabilities::held();
    (namespaces, status)
}

fn start_helper() -> Namespaces {
    Namespaces::start_helper(&[HELPER]).unwrap_or_else(|error| {
        let text = format!("the helper that enters network namespaces cannot be started: {error}");
        tracing::warn!(target: "tortie", "{text}");
        Namespaces::Closed(text)
    })
}

/// Runs the helper: it keeps three capabilities, reads requests from standard input, and ends with the agent.
pub fn enter_namespaces() {
    capabilities::keep(&capabilities::OF_HELPER);
    no_new_privs();
    not_dumpable();
    let _ = rustix::thread::set_name(c"namespaces");
    tortie_kernel::namespaces::serve(std::io::stdin());
}

fn no_new_privs() -> bool {
    let done = rustix::thread::set_no_new_privs(true);
    if let Err(error) = done {
        tracing::warn!(target: "tortie", "no_new_privs cannot be set: {error}");
    }
    done.is_ok()
}

fn not_dumpable() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(target: "tortie", "processes of the same user can read this one's memory: {error}");
    }
}

/// Folders to which the agent writes.
struct Folders {
    /// Folders in which files are created, replaced and removed.
    files: Vec<PathBuf>,
    /// Folders in which sockets are created.
    sockets: Vec<PathBuf>,
}

fn parent(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    parent.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Creates missing folders, since a Landlock rule needs an existing folder. The later user of a folder
/// reports an error.
fn make_folders(agent: &AgentFiles<'_>) -> Folders {
    let make = |folder: &Path, mode: u32| {
        if !folder.exists() {
            let _ = DirBuilder::new().recursive(true).mode(mode).create(folder);
        }
        folder.to_owned()
    };
    let mut files: Vec<PathBuf> =
        agent.store.files().folders.iter().map(|folder| make(folder, 0o700)).collect();
    files.push(make(&parent(&agent.settings.cache_path()), 0o700));
    let mut sockets = vec![make(&parent(agent.socket), 0o755)];
    if let Some(drivers) = agent.settings.docker("", agent.socket) {
        sockets.push(make(&drivers.dir, 0o755));
    }
    if agent.writes {
        files.push(make(&parent(&agent.settings.mtu_file()), 0o755));
        // Port mappings of containers: written by plugins, restored by the agent.
        files.push(make(&parent(Path::new(tortie_kernel::container::PORTS_FOLDER)), 0o755));
    }
    Folders { files, sockets }
}

/// Returns the allowed paths, each with everything below it, and the access to them.
fn rules(agent: &AgentFiles<'_>, folders: &Folders) -> Vec<(PathBuf, Access)> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let run = read | AccessFs::Execute;
    let change = read | make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | MakeDir | RemoveFile});
    let listen = read | make_bitflags!(AccessFs::{MakeSock | RemoveFile});
    let mut rules: Vec<(PathBuf, Access)> = Vec::new();
    let mut add = |access: Access, paths: &[&str]| {
        rules.extend(paths.iter().map(|path| (PathBuf::from(path), access)));
    };
    add(read, &["/proc", "/sys"]);
    // Sysctls of the network namespace.
    add(read | make_bitflags!(AccessFs::{WriteFile | Truncate}), &["/proc/sys/net"]);
    add(read | AccessFs::WriteFile, &["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]);
    // Programs and libraries: `systemctl` tells whether the host shuts down, and name resolution loads
    // modules.
    add(run, &["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32"]);
    add(read, &SYSTEM_FILES);
    // Passwords of peers, which are renewed by a new file under the old name.
    add(read, &["/etc/tortie", speaker::SECRETS]);
    // Appending to the log file that the store configures; reading, truncating and removing are not allowed.
    add(make_bitflags!(AccessFs::{ReadDir | WriteFile | MakeReg | MakeDir}), &[logging::FOLDER]);
    let files = agent.store.files();
    if files.resolves_names {
        // The resolver's file is replaced as a whole, so its folder must be readable.
        add(read, &["/etc", "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager"]);
    }
    if agent.observes {
        // iptables-save, ipset and their files, wherever PATH has them. Write access is still limited to the
        // agent's own files.
        add(run, &["/"]);
    }
    rules.extend(folders.files.iter().map(|folder| (folder.clone(), change)));
    rules.extend(folders.sockets.iter().map(|folder| (folder.clone(), listen)));
    // Certificates, keys and passwords are renewed by name, or by a symbolic link to another name.
    for file in files.read {
        rules.extend(file.canonicalize().ok().map(|real| (parent(&real), read)));
        rules.push((parent(&file), read));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    rules.extend(std::env::split_paths(&path).map(|folder| (folder, run)));
    rules
}

/// System files that the C library, the loader and the agent read.
const SYSTEM_FILES: [&str; 15] = [
    "/etc/group",
    "/etc/passwd",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/os-release",
    "/etc/alternatives",
];

/// Restricts this thread and its future children with Landlock.
fn restrict(rules: &[(PathBuf, Access)]) -> Result<(Landlock, Option<u32>), RulesetError> {
    let mut ruleset =
        Ruleset::default().handle_access(AccessFs::from_all(VERSION))?.scope(Scope::Signal)?.create()?;
    for (path, access) in rules {
        // A missing path needs no rule.
        let Ok(opened) = PathFd::new(path) else { continue };
        let access = if path.is_dir() { *access } else { *access & AccessFs::from_file(VERSION) };
        ruleset = ruleset.add_rule(PathBeneath::new(opened, access))?;
    }
    let done = ruleset.restrict_self()?;
    let version = match done.landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi.to_string().parse().ok(),
        _ => None,
    };
    let landlock = match done.ruleset {
        RulesetStatus::FullyEnforced => Landlock::Enforced,
        RulesetStatus::PartiallyEnforced => Landlock::Partial,
        RulesetStatus::NotEnforced => Landlock::Unsupported,
    };
    Ok((landlock, version))
}
