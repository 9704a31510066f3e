//! How the drivers run: sockets and their roles, and where labels come from.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::plugins::attach::AgentClient;
use tortie_kernel::Namespaces;

/// Where dockerd looks for sockets of plugins.
pub const PLUGINS: &str = "/run/docker/plugins";
/// Where dockerd's own API is.
pub const API: &str = "/run/docker.sock";
/// Labels of containers that begin so become labels of endpoints, as with Calico's driver.
pub const LABEL_PREFIX: &str = "org.projectcalico.label.";

/// The driver that a socket serves.
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

/// Which labels of containers endpoints get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelSource {
    /// None; dockerd's API is not asked for them.
    Off,
    /// Those whose names begin so, without that beginning, and `docker.network`.
    Prefix(String),
}

impl std::str::FromStr for LabelSource {
    type Err = std::convert::Infallible;

    /// `none`, or a prefix.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "none" { Self::Off } else { Self::Prefix(text.to_owned()) })
    }
}

/// How the drivers run.
#[derive(Debug, Clone)]
pub struct Options {
    /// This host's name in the data model.
    pub node: String,
    /// The agent that puts endpoints in force.
    pub agent: AgentClient,
    /// The folder of the sockets.
    pub dir: PathBuf,
    /// Serve `calico` and `calico-ipam`, too.
    pub compat: bool,
    /// dockerd's own API.
    pub api: PathBuf,
    /// Labels of endpoints.
    pub labels: LabelSource,
    /// Who enters the network namespaces of containers.
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

    /// Names of IPAM drivers whose records there may be, served now or not.
    pub(super) fn ipam_drivers(&self) -> Vec<&'static str> {
        vec!["tortie-ipam", "calico-ipam"]
    }

    pub(super) fn drivers(&self) -> BTreeSet<&'static str> {
        ["tortie", "tortie-ipam", "calico", "calico-ipam"].into()
    }
}
