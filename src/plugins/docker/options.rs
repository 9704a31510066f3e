//! Options of the drivers: sockets, roles, and the source of labels.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::plugins::attach::AgentClient;
use tortie_kernel::Namespaces;

/// Folder in which dockerd finds sockets of plugins.
pub const PLUGINS: &str = "/run/docker/plugins";
/// Socket of dockerd's own API.
pub const API: &str = "/run/docker.sock";
/// Prefix of container labels that become labels of endpoints, as with Calico's driver.
pub const LABEL_PREFIX: &str = "org.projectcalico.label.";

/// Driver that a socket serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Network,
    Ipam,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Network => "NetworkDriver",
            Self::Ipam => "IpamDriver",
        }
    }
}

/// Container labels that are copied to endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelSource {
    /// No labels; dockerd's API is not queried for them.
    Off,
    /// Labels with this prefix, which is removed, and `docker.network`.
    Prefix(String),
}

impl std::str::FromStr for LabelSource {
    type Err = std::convert::Infallible;

    /// Parses `none`, or a prefix.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "none" { Self::Off } else { Self::Prefix(text.to_owned()) })
    }
}

/// Options of the drivers.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of this host in the data model.
    pub node: String,
    /// The agent that puts endpoints in force.
    pub agent: AgentClient,
    /// Folder of the sockets.
    pub dir: PathBuf,
    /// True to serve the names `calico` and `calico-ipam`, too.
    pub compat: bool,
    /// Socket of dockerd's own API.
    pub api: PathBuf,
    /// Source of endpoint labels.
    pub labels: LabelSource,
    /// Process that enters the network namespaces of containers.
    pub namespaces: Namespaces,
}

impl Options {
    pub(super) fn sockets(&self) -> Vec<(&'static str, Role)> {
        let mut all = vec![("tortie", Role::Network), ("tortie-ipam", Role::Ipam)];
        if self.compat {
            all.extend([("calico", Role::Network), ("calico-ipam", Role::Ipam)]);
        }
        all
    }

    /// Returns the names of IPAM drivers that may have records, even if they are not served now.
    pub(super) fn ipam_drivers(&self) -> Vec<&'static str> {
        vec!["tortie-ipam", "calico-ipam"]
    }

    pub(super) fn drivers(&self) -> BTreeSet<&'static str> {
        ["tortie", "tortie-ipam", "calico", "calico-ipam"].into()
    }
}
