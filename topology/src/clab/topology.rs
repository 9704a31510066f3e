//! A lab as its file describes it: nodes with everything they inherit folded in, and the links between them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A lab: nodes and the links between them, in the order of the file.
#[derive(Debug, Clone)]
pub struct Topology {
    /// The file it came from.
    pub file: PathBuf,
    /// The lab's name.
    pub name: String,
    /// What stands before node names in the names of namespaces: `None` = `clab`, empty = nothing.
    pub prefix: Option<String>,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The links.
    pub links: Vec<Link>,
    /// What the file asks for and a lab of namespaces does not do, one sentence each.
    pub notes: Vec<String>,
}

/// One node with everything it inherits folded in.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name, unique in the lab.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The image's name; it decides which program stands for it.
    pub image: Option<String>,
    /// Replaces the image's entry point.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces the image's command, or gives the entry point its arguments.
    pub cmd: Option<Vec<String>>,
    /// Commands run in the node after its command was started, in order.
    pub exec: Vec<Vec<String>>,
    /// Files and folders of this machine shown in the node.
    pub binds: Vec<Bind>,
    /// Folders that are empty and private to the node.
    pub tmpfs: Vec<PathBuf>,
    /// Environment of everything run in the node.
    pub env: Vec<(String, String)>,
    /// Kernel settings of the node's network, such as `net.ipv4.ip_forward` = `1`.
    pub sysctls: Vec<(String, String)>,
    /// The host name that programs in the node see.
    pub hostname: String,
    /// How long after the start of the lab this node is made.
    pub startup_delay: Duration,
    /// What its stages wait for and run.
    pub stages: [StagePlan; 5],
    /// How its health is asked.
    pub healthcheck: Option<Healthcheck>,
}

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `linux`: network, mount and process namespaces of its own.
    Linux,
    /// `bridge`: a bridge in the lab's host namespace.
    Bridge,
    /// `host`: the lab's host namespace itself.
    Host,
}

/// A file or folder of this machine at a place in a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// Where it lies here: absolute, or below the lab's own folder (see [`Bind::lab`]).
    pub source: PathBuf,
    /// True when `source` is relative to the lab's state folder (`__clabDir__`), which is made when missing.
    pub lab: bool,
    /// Where the node sees it, absolute.
    pub target: PathBuf,
    /// The node may not write to it.
    pub read_only: bool,
}

/// A stage of a node's life, in the order in which they pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The node exists.
    Create,
    /// Its links to nodes that exist are made.
    CreateLinks,
    /// Its command runs and its `exec` commands are done.
    Configure,
    /// Its health check passed.
    Healthy,
    /// Its command has ended.
    Exit,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 5] = [Self::Create, Self::CreateLinks, Self::Configure, Self::Healthy, Self::Exit];

    /// The name in lab files.
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

/// What one stage of a node waits for and runs.
#[derive(Debug, Clone, Default)]
pub struct StagePlan {
    /// It begins when these nodes have passed these stages.
    pub wait_for: Vec<(String, Stage)>,
    /// Commands run in the node when the stage begins.
    pub on_enter: Vec<Vec<String>>,
    /// Commands run in the node when the stage is done.
    pub on_exit: Vec<Vec<String>>,
}

/// How a node's health is asked.
#[derive(Debug, Clone)]
pub struct Healthcheck {
    /// A command run in the node; exit status 0 is healthy.
    pub test: Vec<String>,
    /// Time between two questions.
    pub interval: Duration,
    /// How many failures in a row make the node unhealthy.
    pub retries: u64,
    /// Time before failures count.
    pub start_period: Duration,
}

/// A link.
#[derive(Debug, Clone)]
pub enum Link {
    /// A cable between two nodes; an end at a bridge is a port of it.
    Veth {
        /// Its two ends.
        ends: [End; 2],
        /// Octets; `None` = the kernel's 1500.
        mtu: Option<u32>,
    },
    /// An interface that leads nowhere.
    Dummy {
        /// Where it is.
        end: End,
        /// Octets; `None` = the kernel's 1500.
        mtu: Option<u32>,
    },
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The node, or `host` for the lab's host namespace.
    pub node: String,
    /// The interface's name, 1 to 15 octets.
    pub interface: String,
    /// Its hardware address; `None` = the kernel chooses.
    pub mac: Option<[u8; 6]>,
    /// Addresses with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// The node name by which link ends reach the lab's host namespace.
pub const HOST: &str = "host";

impl Topology {
    /// The name of a node's namespace: `PREFIX-LAB-NODE`, as containerlab names its containers.
    #[must_use]
    pub fn namespace(&self, node: &str) -> String {
        match self.prefix.as_deref() {
            Some("") => node.to_owned(),
            Some("__lab-name") => format!("{}-{node}", self.name),
            prefix => format!("{}-{}-{node}", prefix.unwrap_or("clab"), self.name),
        }
    }

    /// The number of a node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.name == name)
    }
}
