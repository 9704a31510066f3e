//! What every plugin does once addresses are there: interface, endpoint, and the agent's word that both are in force.
//!
//! What it does not: it gives and releases no address (the caller does, with [`tortie_engine::ipam`]) and reads no configuration.
//!
//! ```text
//!   Wanted --attach--> interface, addresses, routes --> bandwidth, port mappings --> endpoint and profile (one
//!                      transaction) --> POST /v1/applied        any failure: all of it undone, last first
//!   Leaving --detach-> endpoint; port mappings; bandwidth, interface (all at once) --> POST /v1/applied, at most 1 s
//!   Wanted --check---> what differs
//! ```
//!
//! Callers release addresses after [`detach`], so that nobody gets one that still leads to another interface.

mod agent;
mod check;
mod endpoint;
mod links;

use std::net::IpAddr;
use std::path::PathBuf;

use tortie_config::key::EndpointKey;
use tortie_config::resource::{InterfaceName, Labels, MacAddr};
use tortie_net::Cidr;

use tortie_kernel::container::{self, Bandwidth, ContainerNetError, PortMapping};
use tortie_store::{Revision, Store, StoreError};

pub use self::agent::{AgentAbsent, AgentClient, applied, departed};
pub use self::check::{Difference, check};
pub use self::endpoint::{
    EndpointSpec, KeptEndpoint, ProfileChoice, Removed, ready, remove_endpoint, write_endpoint,
};
pub use self::links::{alias, host_interface};

/// How a container gets its interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkSpec {
    /// A new pair.
    Veth,
    /// One that an earlier plugin made: a veth pair, or a tap device of a virtual machine. The host's end is renamed to
    /// [`AttachRequest::host_ifname`] and leaves its bridge; [`detach`] gives it its name back and leaves it to the plugin that
    /// made it.
    Existing {
        /// The host's end as it is called now.
        host: InterfaceName,
        /// The container's end as it is called now; `None`: a machine that configures itself (tap).
        inside: Option<InterfaceName>,
    },
}

/// What one interface of a container should be.
#[derive(Debug, Clone)]
pub struct AttachRequest {
    /// The endpoint; a workload's.
    pub key: EndpointKey,
    /// The container's network namespace.
    pub netns: PathBuf,
    /// The interface in it.
    pub ifname: InterfaceName,
    /// The interface on the host; see [`host_interface`].
    pub host_ifname: InterfaceName,
    /// New or existing.
    pub link: LinkSpec,
    /// MAC address in the container; `None`: the kernel draws one, or the existing one stays.
    pub mac: Option<MacAddr>,
    /// In octets; `None`: the kernel's default.
    pub mtu: Option<u32>,
    /// Its addresses.
    pub addrs: Vec<IpAddr>,
    /// Where to by this interface; `None`: everywhere.
    pub routes: Option<Vec<Cidr>>,
    /// The profile that the endpoint has.
    pub profile: ProfileChoice,
    /// Labels of the endpoint.
    pub labels: Labels,
    /// Container id, which guards against late removals (`active_instance_id`).
    pub instance: Option<String>,
    /// Ports of the host that lead to it.
    pub ports: Vec<PortMapping>,
    /// The table that holds them; see [`tortie_kernel::container::ports_table`].
    pub ports_table: String,
    /// How much may pass.
    pub bandwidth: Bandwidth,
}

/// What there is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The interface on the host.
    pub host_ifname: InterfaceName,
    /// Its MAC address.
    pub host_mac: MacAddr,
    /// The MAC address in the container; `None`: nobody but the machine behind a tap knows.
    pub mac: Option<MacAddr>,
    /// In octets.
    pub mtu: u32,
    /// What the container sends to instead of routers, one for each family that it has addresses of.
    pub gateways: Vec<IpAddr>,
    /// Store revision of the endpoint.
    pub revision: Revision,
    /// What to log: nothing is wrong, but somebody may wonder.
    pub notes: Vec<String>,
}

/// What goes.
#[derive(Debug, Clone)]
pub struct DetachRequest {
    /// The endpoint.
    pub key: EndpointKey,
    /// Only if it is this container's; `None`: whoever's it is.
    pub instance: Option<String>,
    /// The interface on the host.
    pub host_ifname: InterfaceName,
    /// `false`: an earlier plugin made it and will remove it.
    pub own_link: bool,
    /// The container's network namespace, if it is known; it may be gone, or have become somebody else's.
    pub netns: Option<PathBuf>,
    /// The interface in it.
    pub ifname: InterfaceName,
    /// The table of port mappings.
    pub ports_table: String,
}

/// Why it was not done. [`attach`] has undone what it did.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Interfaces, routes, port mappings, bandwidth.
    #[error(transparent)]
    Network(#[from] ContainerNetError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// `Ready` is not `true`.
    #[error("the network is frozen ({0}): try again later")]
    NotReady(String),
    /// The agent cannot be asked.
    #[error("{0}")]
    AgentAbsent(String),
    /// The agent has not done it in time.
    #[error("{0}")]
    Timeout(String),
    /// The agent says why it cannot be done.
    #[error("the agent cannot put it in force: {0}")]
    Failed(String),
    /// A value in the store that cannot be read.
    #[error("{key}: {why}; see `tortie store validate`")]
    Unreadable {
        /// The key.
        key: String,
        /// Why not.
        why: String,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
}

impl AttachError {
    /// Whether the same call may succeed later (CNI code 11).
    #[must_use]
    pub fn try_later(&self) -> bool {
        match self {
            Self::NotReady(_)
            | Self::AgentAbsent(_)
            | Self::Timeout(_)
            | Self::Store(StoreError::Unreachable(_)) => true,
            Self::Network(_)
            | Self::Store(_)
            | Self::Failed(_)
            | Self::Unreadable { .. }
            | Self::Invalid(_) => false,
        }
    }
}

/// Makes the interface, writes the endpoint, and waits until the agent has both in force.
///
/// An interface of the wanted name that is left over from an earlier try for the same endpoint is replaced.
///
/// # Errors
/// Why not; everything is undone then, but for a profile that was made (others may use it already).
pub async fn attach(
    store: &dyn Store,
    agent: &AgentClient,
    wanted: &AttachRequest,
) -> Result<Attachment, AttachError> {
    links::is_valid_prefix(wanted)?;
    ready(store).await?;
    let asked = wanted.clone();
    let made = blocking(move || links::make(&asked)).await?.map_err(AttachError::Network)?;
    let spec = EndpointSpec {
        key: &wanted.key,
        host_ifname: &wanted.host_ifname,
        mac: made.mac,
        addrs: &wanted.addrs,
        gateways: &made.gateways,
        profile: &wanted.profile,
        labels: &wanted.labels,
        instance: wanted.instance.as_deref(),
    };
    let revision = match write_endpoint(store, &spec).await {
        Ok(revision) => revision,
        Err(error) => {
            blocking(move || made.undo()).await?;
            return Err(error);
        }
    };
    match applied(agent, &wanted.key, revision).await {
        Ok(note) => {
            let mut notes = made.notes;
            notes.extend(note);
            Ok(Attachment {
                host_ifname: wanted.host_ifname.clone(),
                host_mac: made.host.mac,
                mac: made.mac,
                mtu: made.host.mtu,
                gateways: made.gateways,
                revision,
                notes,
            })
        }
        Err(error) => {
            endpoint::take_back(store, &wanted.key, revision).await;
            blocking(move || made.undo()).await?;
            Err(error)
        }
    }
}

/// Removes endpoint and interface. What is not there is no error, whatever is missing; an endpoint that another
/// container has by now stays, with its interface. Goes on past errors.
///
/// # Errors
/// The first that came.
pub async fn detach(
    store: &dyn Store,
    agent: &AgentClient,
    leaving: &DetachRequest,
) -> Result<(), AttachError> {
    let others = endpoint::is_of_another(store, &leaving.key, leaving.instance.as_deref()).await;
    // The kernel takes tens of milliseconds to let go of an interface, as much for packet rules while the agent changes its
    // own, and a disk may be as slow: none of them waits for another.
    let (asked, table) = (leaving.clone(), leaving.ports_table.clone());
    let (removed, unmapped, cleared) = tokio::join!(
        remove_endpoint(store, &leaving.key, leaving.instance.as_deref()),
        blocking(move || container::unmap_ports(&table)),
        blocking(move || if others { Ok(()) } else { links::clear(&asked) }),
    );
    if let Ok(Ok(Some(removed))) = &removed {
        departed(agent, &leaving.key, removed.revision).await;
    }
    removed.and(unmapped?.and(cleared?).map_err(AttachError::Network))
}

/// Runs what blocks for milliseconds off the runtime.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, AttachError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| AttachError::Invalid(format!("a task of this program ended early: {error}")))
}
