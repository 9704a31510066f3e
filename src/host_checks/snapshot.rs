//! The state of a host as the checks see it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tortie_kernel::{ForwardDrop, KernelCapability};
use tortie_net::Cidr;
use tortie_store::{KeyValue, StoreUrl};

use super::owners::Owner;
use crate::api::status::Status;
use crate::speaker::SocketAbility;

/// The state of the host as read; `None` and absent: it could not be read.
///
/// The health probe reads the fields from `forwarding` to `forward_drops` ([`HostSnapshot::read`]); `doctor` and `migrate check` read
/// those from `kernel` to `agent`, too, and `migrate check` the last one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostSnapshot {
    /// Whether IPv4 and IPv6 are forwarded.
    pub forwarding: [Option<bool>; 2],
    /// The effective capabilities of this process, a bit each.
    pub capabilities: Option<u64>,
    /// The table of connections.
    pub conntrack: Option<Conntrack>,
    /// The interfaces.
    pub links: Vec<Link>,
    /// Packets that reverse path filters dropped, since this namespace is there.
    pub rp_filtered: Option<u64>,
    /// The clocks.
    pub clock: Option<Clock>,
    /// The networks that this host is connected to, each with the interface.
    pub networks: Vec<(String, Cidr)>,
    /// Chains of other programs that drop forwarded packets.
    pub forward_drops: Vec<ForwardDrop>,
    /// The file systems that the agent writes to.
    pub disks: Vec<Disk>,
    /// The release of the kernel.
    pub kernel: String,
    /// The features of the kernel, each tried.
    pub kernel_features: Vec<KernelCapability>,
    /// The options of sockets, each tried.
    pub sockets: Vec<SocketAbility>,
    /// The processes that listen on [`PORTS`].
    pub ports: BTreeMap<u16, Vec<Owner>>,
    /// Daemons that do the same work.
    pub other_daemons: Vec<Owner>,
    /// Rules of Felix in the old tables, and in those of nf_tables; `None`: they could not be read.
    pub felix_rules: [Option<usize>; 2],
    /// NetworkManager runs, and leaves our interfaces alone or not.
    pub network_manager: Option<bool>,
    /// The group `tortie` exists.
    pub group: bool,
    /// The file at the path of the agent's socket.
    pub socket: Option<SocketFile>,
    /// The store's answer.
    pub store: Option<Result<StoreState, Unreadable>>,
    /// The agent's answer.
    pub agent: Option<Result<Status, Unreadable>>,
    /// The state of Calico on this host, and of a migration.
    pub migration: Migration,
}

/// The TCP ports of BGP and HTTP by default.
pub const PORTS: [u16; 2] = [179, 9099];

/// The reason why the store or the agent could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// This process has no permission.
    pub denied: bool,
    /// It is damaged.
    pub damaged: bool,
    /// The reason, for people.
    pub text: String,
}

/// The file of the agent's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketFile {
    /// It is a socket.
    pub is_socket: bool,
    /// Permission bits.
    pub mode: u32,
    /// It belongs to the group `tortie`.
    pub of_group: bool,
}

/// A summary of the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreState {
    /// Its address, without secrets.
    pub describe: String,
    /// Its revision.
    pub revision: u64,
    /// Keys of pools.
    pub pools: usize,
    /// The value of `Ready`, where there is one.
    pub ready: Option<String>,
    /// A pool needs IPIP.
    pub ipip: bool,
    /// It has objects of Calico 3.
    pub calico_3: bool,
    /// The prefixes of the pools.
    pub prefixes: Vec<Cidr>,
    /// Pools that overlap an address or a network of a host, with that in words.
    pub overlaps: Vec<(Cidr, String)>,
    /// Why no workload of this host can be added: the code of the problem, and the reason.
    pub no_workload: Option<(String, String)>,
}

/// The state of Calico on this host, and of a migration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Migration {
    /// The name of this host in the store.
    pub node: String,
    /// The phase of a migration that was begun.
    pub state: Option<Result<MigrationPhase, String>>,
    /// All keys of Calico's store.
    pub store: Option<Result<StoreContent, String>>,
    /// Daemons of Calico in this network namespace.
    pub daemons: Vec<CalicoDaemon>,
    /// Options of `tortie migrate adopt` that end these daemons.
    pub suggested_stop: String,
    /// Restarts of BGP.
    pub restarts: Restarts,
    /// Routes, rules and sets of Calico in the kernel.
    pub kernel: Option<Result<CalicoKernel, String>>,
    /// Variables of Felix's environment that begin with `FELIX_`.
    pub felix_environment: BTreeMap<String, String>,
    /// [`FELIX_FILE`] has settings.
    pub felix_file: bool,
}

/// The configuration file of Felix.
pub const FELIX_FILE: &str = "/etc/calico/felix.cfg";

/// The phase of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPhase {
    /// `adopt` was begun.
    Adopting,
    /// `adopt` ended.
    Adopted,
    /// `rollback` was begun.
    RollingBack,
    /// `rollback` ended.
    RolledBack,
}

impl MigrationPhase {
    /// `adopting`, `adopted`, `rolling-back` or `rolled-back`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Adopting => "adopting",
            Self::Adopted => "adopted",
            Self::RollingBack => "rolling-back",
            Self::RolledBack => "rolled-back",
        }
    }
}

/// The content of the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreContent {
    /// Its address, without secrets.
    pub describe: String,
    /// Its revision.
    pub revision: u64,
    /// Every key below `/calico/`.
    pub entries: Vec<KeyValue>,
}

/// One of Calico's daemons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CalicoDaemon {
    /// Its process id.
    pub pid: u32,
    /// `bird`, `bird6`, `confd`, `felix` or `node` (a helper of calico-node).
    pub role: String,
    /// Its command line.
    pub command: String,
    /// The container that it runs in, by the start of its id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<String>,
    /// The unit that it runs in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unit: Option<String>,
    /// Clock ticks from boot to its start, which tell it from a later process of the same number.
    pub started: u64,
}

/// Restarts of BGP that are under way, as BIRD reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restarts {
    /// Each restart that is under way, in words.
    pub under_way: Vec<String>,
    /// Sessions whose neighbour does not keep routes through a restart.
    pub forgetful: Vec<String>,
    /// The reason why it is not known.
    pub unseen: Option<String>,
}

/// Routes, rules and sets of Calico in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CalicoKernel {
    /// Their numbers, in words.
    pub objects: String,
    /// Tools whose FORWARD chain drops packets of workloads without Felix, each with the reason.
    pub drops: Vec<(String, String)>,
    /// A tool that cannot list all tables.
    pub hidden: Option<String>,
}

/// The kernel's table of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conntrack {
    /// Connections in it.
    pub count: u64,
    /// Its size.
    pub max: u64,
    /// Packets dropped because it was full, since boot.
    pub dropped: u64,
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The largest packet that it takes, in bytes.
    pub mtu: u32,
    /// Set up by the administrator.
    pub up: bool,
    /// Its reverse path filter as the kernel applies it (the greater of its own and `all`): 0 none, 1 strict, 2 loose.
    pub rp_filter: Option<u8>,
}

/// The file system of a file that the agent writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The file, with what it is.
    pub of: String,
    /// Octets that are left.
    pub free: u64,
    /// Octets in all.
    pub size: u64,
    /// Files that can still be made; `None`: it does not count them.
    pub files: Option<u64>,
}

/// Two clocks, read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// CLOCK_REALTIME, since the Unix epoch.
    pub wall: Duration,
    /// CLOCK_BOOTTIME: sleep included, never set.
    pub since_boot: Duration,
}

/// The tasks of the host that decide which checks apply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Role {
    /// The agent writes routes and rules.
    pub programs: bool,
    /// It listens below port 1024.
    pub low_port: bool,
    /// Whether IPv4 and IPv6 are routed.
    pub routes: [bool; 2],
    /// Interfaces that BGP peers are reached by.
    pub uplinks: BTreeSet<String>,
    /// The interface of the tunnel, where there is one.
    pub tunnel: Option<String>,
    /// Workloads: endpoint and interface.
    pub workloads: Vec<(String, String)>,
    /// The prefixes of the pools that the agent knows.
    pub pools: Vec<Cidr>,
}

impl Disk {
    /// The files that an agent writes besides its log, with what they are: the store, where that is a file, and the cache.
    #[must_use]
    pub fn files(datastore: &str, cache: PathBuf) -> Vec<(&'static str, PathBuf)> {
        let store = match datastore.parse() {
            Ok(StoreUrl::Sqlite(path)) => Some(("the store", path)),
            _ => None,
        };
        store.into_iter().chain([("the cache", cache)]).collect()
    }

    /// Reads the file system of a file, which need not be there yet; `None`: it has none.
    #[must_use]
    pub fn read(what: &str, path: &Path) -> Option<Self> {
        let stat = path.ancestors().find_map(|at| rustix::fs::statvfs(at).ok())?;
        Some(Self {
            of: format!("{what} ({})", path.display()),
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            size: stat.f_blocks.saturating_mul(stat.f_frsize),
            files: (stat.f_files > 0).then_some(stat.f_favail),
        })
    }
}

impl HostSnapshot {
    /// The interface of this name.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }
}

impl Clock {
    /// How far the clock was set since then, forward positive, in milliseconds.
    #[must_use]
    pub fn stepped_since(self, before: Self) -> i64 {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let wall = millis(self.wall).saturating_sub(millis(before.wall));
        wall.saturating_sub(millis(self.since_boot).saturating_sub(millis(before.since_boot)))
    }
}
