//! Snapshot of a host, the input of the host checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tortie_config::Dialect;
use tortie_kernel::{ForwardDrop, KernelCapability, VxlanPort};
use tortie_net::Cidr;
use tortie_store::{KeyValue, StoreUrl};

use super::owners::Owner;
use crate::api::status::Status;
use crate::speaker::SocketAbility;

/// State of the host as read; `None` and empty values could not be read.
///
/// The health probe reads the fields from `forwarding` to `forward_drops` ([`HostSnapshot::read`]). `doctor`
/// and `migrate check` also read those from `kernel` to `agent`, and `migrate check` the last one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostSnapshot {
    /// Forwarding of IPv4 and IPv6.
    pub forwarding: [Option<bool>; 2],
    /// Effective capabilities of this process, one bit each.
    pub capabilities: Option<u64>,
    /// Connection tracking table.
    pub conntrack: Option<Conntrack>,
    /// Network interfaces.
    pub links: Vec<Link>,
    /// Packets dropped by reverse path filters since the network namespace was created.
    pub rp_filtered: Option<u64>,
    /// Wall clock and boot clock.
    pub clock: Option<Clock>,
    /// Connected networks of this host, each with its interface.
    pub networks: Vec<(String, Cidr)>,
    /// Chains of other programs that drop forwarded packets.
    pub forward_drops: Vec<ForwardDrop>,
    /// File systems to which the agent writes.
    pub disks: Vec<Disk>,
    /// Release of the kernel.
    pub kernel: String,
    /// Results of the kernel feature tests.
    pub kernel_features: Vec<KernelCapability>,
    /// VXLAN devices of all programs.
    pub vxlan_devices: Vec<VxlanPort>,
    /// Results of the socket feature tests.
    pub sockets: Vec<SocketAbility>,
    /// Processes that listen on [`PORTS`].
    pub ports: BTreeMap<u16, Vec<Owner>>,
    /// Other running daemons that write routes or rules.
    pub other_daemons: Vec<Owner>,
    /// Numbers of Felix's rules in the legacy and the nf_tables variant of iptables; `None` if unreadable.
    pub felix_rules: [Option<usize>; 2],
    /// Family and name of Felix's own tables of nftables.
    pub felix_tables: Vec<String>,
    /// True if NetworkManager ignores Tortie's interfaces; `None` if it does not run.
    pub network_manager: Option<bool>,
    /// True if the group `tortie` exists.
    pub group: bool,
    /// File at the path of the agent's socket.
    pub socket: Option<SocketFile>,
    /// Summary of the store, or the reason why it could not be read.
    pub store: Option<Result<StoreState, Unreadable>>,
    /// Status of the agent, or the reason why it could not be read.
    pub agent: Option<Result<Status, Unreadable>>,
    /// State of Calico on this host and of a migration.
    pub migration: Migration,
}

/// Default TCP ports of BGP and HTTP.
pub const PORTS: [u16; 2] = [179, 9099];

/// Reason why the store or the agent could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// This process lacks permission.
    pub denied: bool,
    /// The store's file is damaged.
    pub damaged: bool,
    /// Description of the reason.
    pub text: String,
}

/// File at the path of the agent's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketFile {
    /// True if it is a socket.
    pub is_socket: bool,
    /// Permission bits.
    pub mode: u32,
    /// True if it belongs to the group `tortie`.
    pub of_group: bool,
}

/// Summary of the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreState {
    /// Address of the store, without secrets.
    pub describe: String,
    /// Current revision.
    pub revision: u64,
    /// Number of pools.
    pub pools: usize,
    /// Value of the key `Ready`, if present.
    pub ready: Option<String>,
    /// True if a pool uses IPIP.
    pub ipip: bool,
    /// UDP port of the VXLAN tunnel, if a pool uses VXLAN.
    pub vxlan: Option<u16>,
    /// True if it contains objects of Calico 3.
    pub calico_3: bool,
    /// Prefixes of the pools.
    pub prefixes: Vec<Cidr>,
    /// Pools that overlap an address or a network of a host, with a description.
    pub overlaps: Vec<(Cidr, String)>,
    /// Reason why no workload can be added to this host: code of the problem and description.
    pub no_workload: Option<(String, String)>,
}

/// State of Calico on this host and of a migration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Migration {
    /// Node name of this host in the store.
    pub node: String,
    /// Phase of a migration that was started.
    pub state: Option<Result<MigrationPhase, String>>,
    /// All keys of Calico's store.
    pub store: Option<Result<StoreContent, String>>,
    /// Calico's daemons in this network namespace.
    pub daemons: Vec<CalicoDaemon>,
    /// Suggested options of `tortie migrate adopt` to stop these daemons.
    pub suggested_stop: String,
    /// BGP restarts in progress.
    pub restarts: Restarts,
    /// Routes, rules and sets of Calico in the kernel.
    pub kernel: Option<Result<CalicoKernel, String>>,
    /// Felix's environment variables whose names begin with `FELIX_`.
    pub felix_environment: BTreeMap<String, String>,
    /// Environment variables of calico-node that configure BGP, addresses and the name of this host.
    pub node_environment: BTreeMap<String, String>,
    /// True if [`FELIX_FILE`] contains settings.
    pub felix_file: bool,
}

/// Path of Felix's configuration file.
pub const FELIX_FILE: &str = "/etc/calico/felix.cfg";

/// Phase of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrationPhase {
    /// `adopt` was started.
    Adopting,
    /// `adopt` was completed.
    Adopted,
    /// `rollback` was started.
    RollingBack,
    /// `rollback` was completed.
    RolledBack,
}

impl MigrationPhase {
    /// Returns `adopting`, `adopted`, `rolling-back` or `rolled-back`.
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

/// Content of the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreContent {
    /// Address of the store, without secrets.
    pub describe: String,
    /// Current revision.
    pub revision: u64,
    /// Number of keys below `/calico/`.
    pub keys: usize,
    /// Data model of the store.
    pub dialect: Dialect,
    /// All entries below `/calico/`; of a Calico 3 store those of the v1 model that its objects imply.
    pub entries: Vec<KeyValue>,
    /// Objects of a Calico 3 store that have no effect as they are.
    pub problems: Vec<ObjectProblem>,
}

/// An object of a Calico 3 store, or a part of it, that has no effect as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectProblem {
    /// Name of the object for people.
    pub object: String,
    /// Code of the problem.
    pub code: &'static str,
    /// Description.
    pub text: String,
}

/// A daemon of Calico.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CalicoDaemon {
    /// Process id.
    pub pid: u32,
    /// `bird`, `bird6`, `confd`, `felix` or `node` (a helper of calico-node).
    pub role: String,
    /// Command line.
    pub command: String,
    /// Leading part of the id of its container.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<String>,
    /// systemd unit that it runs in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unit: Option<String>,
    /// Start time in clock ticks since boot; distinguishes it from a later process with the same id.
    pub started: u64,
}

/// BGP restarts in progress, as BIRD reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restarts {
    /// Description of each restart in progress.
    pub under_way: Vec<String>,
    /// Sessions whose neighbour does not keep routes during a restart.
    pub forgetful: Vec<String>,
    /// Reason why the restarts could not be read.
    pub unseen: Option<String>,
}

/// Routes, rules and sets of Calico in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CalicoKernel {
    /// Description of their numbers.
    pub objects: String,
    /// Tools whose FORWARD chain would drop packets of workloads without Felix, each with the reason.
    pub drops: Vec<(String, String)>,
    /// A tool that cannot list all tables.
    pub hidden: Option<String>,
    /// Data planes of Calico in use that Tortie has no counterpart of, each with the reason and a fix.
    pub others: Vec<(String, String)>,
    /// VXLAN devices that Tortie would not take over, each with the reason.
    pub misfits: Vec<String>,
}

/// The kernel's connection tracking table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conntrack {
    /// Number of connections.
    pub count: u64,
    /// Capacity of the table.
    pub max: u64,
    /// Packets dropped since boot because the table was full.
    pub dropped: u64,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Name of the interface.
    pub name: String,
    /// MTU in octets.
    pub mtu: u32,
    /// Administrative state.
    pub up: bool,
    /// Effective reverse path filter (the maximum of the interface's and `all`): 0 none, 1 strict, 2 loose.
    pub rp_filter: Option<u8>,
}

/// File system of a file that the agent writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Description and path of the file.
    pub of: String,
    /// Free space in octets.
    pub free: u64,
    /// Total size in octets.
    pub size: u64,
    /// Number of files that can still be created; `None` if the file system has no limit.
    pub files: Option<u64>,
}

/// Two clocks, read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// CLOCK_REALTIME, since the Unix epoch.
    pub wall: Duration,
    /// CLOCK_BOOTTIME, which includes sleep and is never set.
    pub since_boot: Duration,
}

/// Tasks of the host, which decide on the checks that apply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Role {
    /// True if the agent writes routes and rules.
    pub programs: bool,
    /// True if the agent listens on a port below 1024.
    pub low_port: bool,
    /// Routing of IPv4 and IPv6.
    pub routes: [bool; 2],
    /// Interfaces through which BGP peers are reached.
    pub uplinks: BTreeSet<String>,
    /// Tunnel devices in use.
    pub tunnels: BTreeSet<&'static str>,
    /// Workloads with endpoint and interface.
    pub workloads: Vec<(String, String)>,
    /// Prefixes of the pools that the agent knows.
    pub pools: Vec<Cidr>,
}

impl Disk {
    /// Returns the files that an agent writes besides its log, with descriptions: the store's file, if it is
    /// SQLite, and the cache.
    #[must_use]
    pub fn files(datastore: &str, cache: PathBuf) -> Vec<(&'static str, PathBuf)> {
        let store = match datastore.parse() {
            Ok(StoreUrl::Sqlite(path)) => Some(("the store", path)),
            _ => None,
        };
        store.into_iter().chain([("the cache", cache)]).collect()
    }

    /// Reads the file system of a file, which need not exist yet; `None` if it cannot be read.
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
    /// Returns the interface with this name.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }
}

impl Clock {
    /// Returns the change of the wall clock since `before` in milliseconds; positive is forward.
    #[must_use]
    pub fn stepped_since(self, before: Self) -> i64 {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let wall = millis(self.wall).saturating_sub(millis(before.wall));
        wall.saturating_sub(millis(self.since_boot).saturating_sub(millis(before.since_boot)))
    }
}
