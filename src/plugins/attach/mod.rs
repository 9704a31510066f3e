//! Attaches a container to addresses that its plugin has allocated: creates the interface, writes the
//! endpoint, and waits until the agent has put both in force.
//!
//! It allocates and releases no addresses (the caller does, with [`tortie_engine::ipam`]) and reads no
//! configuration.
//!
//! ```text
//!   AttachRequest --attach--> interface, addresses, routes --> bandwidth, port mappings
//!                             --> endpoint and profile (one transaction) --> POST /v1/applied
//!                             after a failure all is undone, in reverse order
//!   DetachRequest --detach--> endpoint; port mappings; bandwidth, interface (concurrently)
//!                             --> POST /v1/applied, at most 1 s
//!   AttachRequest --check---> differences
//! ```
//!
//! Callers release addresses after [`detach`], so that no other container gets an address that still leads to
//! the old interface.

mod agent;
mod allocate;
mod check;
mod endpoint;
mod error;
mod links;
mod preflight;
mod rehearsal;
mod request;

use self::error::blocking;
use tortie_kernel::container;
use tortie_store::Store;

pub use self::agent::{AgentAbsent, AgentClient, applied, departed};
pub use self::allocate::allocate;
pub use self::check::{Difference, check};
pub use self::endpoint::{
    KeptEndpoint, Removed, Written, may_remove, ready, remove_endpoint, stored_endpoint, stored_endpoints,
    write_endpoint, write_profiles, writer,
};
pub use self::error::AttachError;
pub use self::links::{alias, host_interface};
pub use self::preflight::{Absent, excluded, exclusions, preflight, twin};
pub use self::rehearsal::{allocation_problem, rehearse_addresses, rehearse_endpoint, rehearse_workload};
pub use self::request::{AttachRequest, Attachment, DetachRequest, LinkSpec};
pub use tortie_engine::writer::{EndpointSpec, ProfileChoice};

/// Creates the interface, writes the endpoint, and waits until the agent has put both in force.
///
/// An interface of the requested name that an earlier attempt for the same endpoint left is replaced.
///
/// # Errors
/// If a step fails. All steps are undone then, except the creation of a profile, which others may use
/// already.
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
        more_profiles: &[],
        labels: &wanted.labels,
        instance: wanted.instance.as_deref(),
    };
    let written = match write_endpoint(store, &spec).await {
        Ok(written) => written,
        Err(error) => {
            blocking(move || made.undo()).await?;
            return Err(error);
        }
    };
    match applied(agent, &written).await {
        Ok(note) => {
            let mut notes = made.notes;
            notes.extend(note);
            Ok(Attachment {
                host_ifname: wanted.host_ifname.clone(),
                host_mac: made.host.mac,
                mac: made.mac,
                mtu: made.host.mtu,
                gateways: made.gateways,
                revision: written.revision,
                notes,
            })
        }
        Err(error) => {
            endpoint::take_back(store, &wanted.key, written.revision).await;
            blocking(move || made.undo()).await?;
            Err(error)
        }
    }
}

/// Removes endpoint and interface. Missing parts are no error; an endpoint that belongs to another container
/// now is kept, with its interface. Continues after errors.
///
/// # Errors
/// The first error.
pub async fn detach(
    store: &dyn Store,
    agent: &AgentClient,
    leaving: &DetachRequest,
) -> Result<(), AttachError> {
    let others = endpoint::is_of_another(store, &leaving.key, leaving.instance.as_deref()).await;
    // The kernel needs tens of milliseconds to remove an interface, and as much to remove packet rules while
    // the agent changes its own; a disk may be as slow. The steps run concurrently, so that none waits for
    // another.
    let asked = leaving.clone();
    let tables = [leaving.ports_table.clone(), leaving.former_ports_table.clone()];
    let (removed, unmapped, cleared) = tokio::join!(
        remove_endpoint(store, &leaving.key, leaving.instance.as_deref()),
        blocking(move || tables.iter().try_for_each(|table| container::unmap_ports(table))),
        blocking(move || if others { Ok(()) } else { links::clear(&asked) }),
    );
    if let Ok(Ok(Some(removed))) = &removed {
        departed(agent, removed).await;
    }
    removed.and(unmapped?.and(cleared?).map_err(AttachError::Network))
}
