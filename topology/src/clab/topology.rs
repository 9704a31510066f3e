//! A lab as its file describes it: nodes with merged configuration, and the links between them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A lab: nodes and links in file order.
#[derive(Debug, Clone)]
pub struct Topology {
    /// Path of the lab file.
    pub file: PathBuf,
    /// Name of the lab.
    pub name: String,
    /// Prefix of namespace names: `None` for `clab`, empty for no prefix.
    pub prefix: Option<String>,
    /// Nodes in file order.
    pub nodes: Vec<Node>,
    /// Links in file order.
    pub links: Vec<Link>,
    /// Sentences about features in the file that labs of namespaces do not support.
    pub notes: Vec<String>,
}

/// A node with the merged configuration of all levels.
#[derive(Debug, Clone)]
pub struct Node {
    /// Node name, unique in the lab.
    pub name: String,
    /// Kind of the node.
    pub kind: Kind,
    /// Image name, which selects the substitute programs.
    pub image: Option<String>,
    /// Entry point that replaces the image's.
    pub entrypoint: Option<Vec<String>>,
    /// Command that replaces the image's, or arguments of the entry point.
    pub cmd: Option<Vec<String>>,
    /// Commands to run in the node after its command started, in order.
    pub exec: Vec<Vec<String>>,
    /// Files and directories of this machine that are mounted in the node.
    pub binds: Vec<Bind>,
    /// Paths of private tmpfs mounts.
    pub tmpfs: Vec<PathBuf>,
    /// Environment variables of all processes in the node.
    pub env: Vec<(String, String)>,
    /// Network sysctls of the node, such as `net.ipv4.ip_forward` = `1`.
    pub sysctls: Vec<(String, String)>,
    /// Host name of the node's UTS namespace.
    pub hostname: String,
    /// Delay from the start of the lab to the creation of this node.
    pub startup_delay: Duration,
    /// Dependencies and commands of the node's stages.
    pub stages: [StagePlan; 5],
    /// Health check of the node, if it has one.
    pub healthcheck: Option<Healthcheck>,
}

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `linux`: a node with its own network, mount and process id namespaces.
    Linux,
    /// `bridge`: a bridge in the lab's host namespace.
    Bridge,
    /// `host`: the lab's host namespace itself.
    Host,
}

/// A file or directory of this machine that is mounted in a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// Path on this machine: absolute, or relative to the lab's own directory (see [`Bind::lab`]).
    pub source: PathBuf,
    /// True if `source` is relative to the lab's state directory (`__clabDir__`), where it is created if
    /// missing.
    pub lab: bool,
    /// Absolute path in the node.
    pub target: PathBuf,
    /// True if the node must not write to it.
    pub read_only: bool,
}

/// Lifecycle stage of a node, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The node exists.
    Create,
    /// The links to existing nodes are created.
    CreateLinks,
    /// The command is running, and the `exec` commands have finished.
    Configure,
    /// The health check succeeded.
    Healthy,
    /// The command has ended.
    Exit,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 5] = [Self::Create, Self::CreateLinks, Self::Configure, Self::Healthy, Self::Exit];

    /// Returns the name used in lab files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::CreateLinks => "create-links",
            Self::Configure => "configure",
            Self::Healthy => "healthy",
            Self::Exit => "exit",
        }
    }
}

/// Dependencies and commands of one stage of a node.
#[derive(Debug, Clone, Default)]
pub struct StagePlan {
    /// Nodes and stages that must be reached before this stage begins.
    pub wait_for: Vec<(String, Stage)>,
    /// Commands to run in the node when the stage begins.
    pub on_enter: Vec<Vec<String>>,
    /// Commands to run in the node when the stage ends.
    pub on_exit: Vec<Vec<String>>,
}

/// Health check of a node.
#[derive(Debug, Clone)]
pub struct Healthcheck {
    /// Command to run in the node; exit status 0 means healthy.
    pub test: Vec<String>,
    /// Interval between two checks.
    pub interval: Duration,
    /// Number of consecutive failures after which the node is unhealthy.
    pub retries: u64,
    /// Time after the start during which failures do not count.
    pub start_period: Duration,
}

/// A link of the lab.
#[derive(Debug, Clone)]
pub enum Link {
    /// A veth pair between two nodes; an end at a bridge is a port of it.
    Veth {
        /// Both ends of the link.
        ends: [End; 2],
        /// MTU in octets; `None` for the kernel's default of 1500.
        mtu: Option<u32>,
    },
    /// A dummy interface.
    Dummy {
        /// Node and interface.
        end: End,
        /// MTU in octets; `None` for the kernel's default of 1500.
        mtu: Option<u32>,
    },
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Node name, or `host` for the lab's host namespace.
    pub node: String,
    /// Interface name, 1 to 15 octets.
    pub interface: String,
    /// MAC address; `None` lets the kernel choose.
    pub mac: Option<[u8; 6]>,
    /// Addresses with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Node name with which link ends refer to the lab's host namespace.
pub const HOST: &str = "host";

impl Topology {
    /// Returns the name of a node's namespace, `PREFIX-LAB-NODE`, as containerlab names its containers.
    #[must_use]
    pub fn namespace(&self, node: &str) -> String {
        match self.prefix.as_deref() {
            Some("") => node.to_owned(),
            Some("__lab-name") => format!("{}-{node}", self.name),
            prefix => format!("{}-{}-{node}", prefix.unwrap_or("clab"), self.name),
        }
    }

    /// Returns the index of a node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.name == name)
    }
}
