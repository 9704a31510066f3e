//! Addresses for a container of this host: those that IPAM gives, but for what an interface of this host holds already. A store that
//! was put back to an earlier state calls such an address free.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tortie_config::resource::InterfaceName;
use tortie_engine::ipam::{Allocation, AllocationRequest, Ipam, IpamError};

/// Takes addresses by IPAM. `own` is the interface of the container that they are for: what an earlier try left there is no
/// obstacle.
///
/// # Errors
/// As IPAM says; nothing is taken then.
pub async fn allocate(
    ipam: &Ipam,
    mut request: AllocationRequest,
    own: Option<&InterfaceName>,
) -> Result<Vec<Allocation>, IpamError> {
    let given = ipam.assign(&request).await?;
    if held(given.iter().map(|given| given.addr), own).await.is_empty() {
        return Ok(given);
    }
    let addrs: Vec<IpAddr> = given.iter().map(|given| given.addr).collect();
    let handle = request.handle.as_deref().filter(|_| !request.handle_per_address);
    ipam.release(&addrs, handle).await?;
    request.attached = all_held(own).await;
    tracing::warn!(
        target: "tortie",
        "the store calls addresses free that interfaces of this host hold ({} of them): they are passed over; see `tortie ipam check`",
        request.attached.len()
    );
    ipam.assign(&request).await
}

/// Those of these addresses that interfaces of this host hold. A kernel that cannot be asked knows of none.
async fn held(addrs: impl Iterator<Item = IpAddr>, own: Option<&InterfaceName>) -> Vec<IpAddr> {
    let addrs: Vec<IpAddr> = addrs.collect();
    let own = own.cloned();
    let look = move || {
        let elsewhere = |addr: &IpAddr| {
            let interface = tortie_kernel::attached_at(*addr).ok().flatten();
            interface.is_some_and(|name| own.as_ref().is_none_or(|own| own.as_str() != name))
        };
        addrs.into_iter().filter(elsewhere).collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

async fn all_held(own: Option<&InterfaceName>) -> BTreeSet<IpAddr> {
    let own = own.cloned();
    let look = move || {
        let routes = tortie_kernel::attached_routes().unwrap_or_default().into_iter();
        routes
            .filter(|route| own.as_ref().is_none_or(|own| own.as_str() != route.interface))
            .map(|route| route.addr)
            .collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}
