//! What the agent gives up before its first thread starts: who takes over the process that parses BGP and serves HTTP gets
//! little with it.
//!
//! - Capabilities ([`capabilities`]). Two of them, which only network namespaces of containers need, go to a helper
//!   ([`tortie_kernel::namespaces`]).
//! - no_new_privs (prctl(2)): no program that it runs has more than itself.
//! - Not dumpable (prctl(2)): processes of the same user read neither its memory nor its environment, and a crash leaves no file
//!   with passwords.
//! - Files (landlock(7)): it opens those that [`rules`] names, and sends signals to no process but its own children.
//!
//! All of it belongs to threads, or to what is opened later. A kernel without Landlock leaves that one out; the others are older
//! than any kernel that the agent runs on.

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

/// The rights of this version are handled, as far as the kernel has them (Linux 6.12).
const VERSION: ABI = ABI::V6;

/// The command that is the helper.
pub const HELPER: &str = "__namespaces";

type Access = BitFlags<AccessFs>;

/// What an agent is, as far as its files are concerned.
pub(in crate::agent) struct AgentFiles<'a> {
    /// Flags, environment and file, merged.
    pub(in crate::agent) settings: &'a Settings,
    /// The store.
    pub(in crate::agent) store: &'a StoreOptions,
    /// The unix socket of the API.
    pub(in crate::agent) socket: &'a Path,
    /// It programs the kernel, and writes to the store for its host.
    pub(in crate::agent) writes: bool,
    /// It compares what others do, and runs their tools for that.
    pub(in crate::agent) observes: bool,
}

/// Starts the helper and gives up the rest. Before there is a second thread.
pub(in crate::agent) fn enter(agent: &AgentFiles<'_>) -> (Namespaces, ProtectionStatus) {
    let serves_docker = agent.settings.docker("", agent.socket).is_some();
    // It has the capabilities that go next.
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
            tracing::warn!(target: "tortie", "Landlock does not hold: {error}");
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

/// The life of the helper: it has its three capabilities and its standard input, and ends with the agent.
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

/// Folders of an agent.
struct Folders {
    /// In which files are made, replaced and removed.
    files: Vec<PathBuf>,
    /// In which sockets are.
    sockets: Vec<PathBuf>,
}

fn parent(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    parent.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Makes the folders that are not there: a rule is about a folder that is. One that cannot be made is named by who needs it.
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
        // Port mappings of containers, which plugins write down and the agent puts back.
        files.push(make(&parent(Path::new(tortie_kernel::container::PORTS_FOLDER)), 0o755));
    }
    Folders { files, sockets }
}

/// What may be opened: each path with what is below it.
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
    // Programs and libraries: the service manager's own tool says whether the host goes down, name resolution loads modules.
    add(run, &["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32"]);
    add(read, &SYSTEM_FILES);
    // Passwords of peers, renewed by a new file under the old name.
    add(read, &["/etc/tortie", speaker::SECRETS]);
    // New lines in the log that the store names; nothing is read, cut or removed there.
    add(make_bitflags!(AccessFs::{ReadDir | WriteFile | MakeReg | MakeDir}), &[logging::FOLDER]);
    let files = agent.store.files();
    if files.resolves_names {
        // The resolver's file is replaced by a new one, as a whole: its folder has to be open.
        add(read, &["/etc", "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager"]);
    }
    if agent.observes {
        // iptables-save, ipset and what they read, wherever PATH has them. It still changes nothing but its own files.
        add(run, &["/"]);
    }
    rules.extend(folders.files.iter().map(|folder| (folder.clone(), change)));
    rules.extend(folders.sockets.iter().map(|folder| (folder.clone(), listen)));
    // Certificates, keys and passwords are renewed like secrets: by name, and by a link to another name.
    for file in files.read {
        rules.extend(file.canonicalize().ok().map(|real| (parent(&real), read)));
        rules.push((parent(&file), read));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    rules.extend(std::env::split_paths(&path).map(|folder| (folder, run)));
    rules
}

/// What the C library, the loader and we read of the system.
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

/// Restricts this thread and all that it starts.
fn restrict(rules: &[(PathBuf, Access)]) -> Result<(Landlock, Option<u32>), RulesetError> {
    let mut ruleset =
        Ruleset::default().handle_access(AccessFs::from_all(VERSION))?.scope(Scope::Signal)?.create()?;
    for (path, access) in rules {
        // What is not there cannot be opened either.
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
