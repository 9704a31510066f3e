//! Allocates addresses for a container of this host, except addresses that an interface of this host already
//! has: after a restore, the store may list such an address as free.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tortie_config::resource::InterfaceName;
use tortie_engine::ipam::{Allocation, AllocationRequest, Ipam, IpamError};

/// Allocates addresses by IPAM. `own` is the container's interface: addresses that an earlier attempt left on
/// it may be allocated again.
///
/// # Errors
/// Those of IPAM; no address is allocated then.
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
        "interfaces of this host have addresses that are free in the store ({} of them): they are skipped; \
         see `tortie ipam check`",
        request.attached.len()
    );
    ipam.assign(&request).await
}

/// Returns the addresses that interfaces of this host have. If the kernel cannot be read, that is none.
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

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;

    use tortie_config::key::IpFamily;
    use tortie_engine::ipam::AddressRequest;
    use tortie_store::{Op, Store, Txn, sqlite::SqliteStore};

    use super::*;

    async fn rig(dir: &std::path::Path) -> Ipam {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.join("store.db"), true).await.unwrap());
        let pool = Op::Put {
            key: "/calico/v1/ipam/v4/pool/10.0.0.0-26".to_owned(),
            value: br#"{"cidr":"10.0.0.0/26"}"#.to_vec(),
            lease: None,
        };
        store.commit(Txn { ops: vec![pool], ..Txn::default() }).await.unwrap();
        Ipam::new(store)
    }

    fn request(want: AddressRequest) -> AllocationRequest {
        AllocationRequest {
            host: "h1".to_owned(),
            addresses: vec![want],
            handle: Some("a".to_owned()),
            ..AllocationRequest::default()
        }
    }

    /// After the store lost its state, no address of an interface of this host is allocated, whether it is
    /// requested by value or not, except addresses of the container's own interface; and a rejected request
    /// leaves nothing allocated.
    #[test]
    fn no_address_that_an_interface_of_this_host_holds_is_given() {
        tortie_topology::netns::in_netns(|| {
            let ip = |words: &str| {
                assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
            };
            ip("link add cali1 type veth peer name web");
            ip("link set cali1 up");
            ip("link set web up");
            let held: BTreeSet<IpAddr> = (0..40).map(|n| IpAddr::from([10, 0, 0, n])).collect();
            for addr in &held {
                ip(&format!("route add {addr} dev cali1"));
            }
            let dir = tempfile::tempdir().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let ipam = rig(dir.path()).await;
                let any = |count| AddressRequest::Any { family: IpFamily::V4, count, pools: Vec::new() };
                let given = allocate(&ipam, request(any(24)), None).await.unwrap();
                assert!(given.iter().all(|given| !held.contains(&given.addr)), "{given:?}");
                let full = allocate(&ipam, request(any(1)), None).await.unwrap_err();
                assert!(matches!(full, IpamError::Full { .. }), "{full}");
                let exact = || request(AddressRequest::Exact("10.0.0.7".parse().unwrap()));
                let taken = allocate(&ipam, exact(), None).await.unwrap_err();
                assert!(taken.to_string().contains("an interface of this host"), "{taken}");
                assert_eq!(ipam.allocated_to("a").await.unwrap().len(), 24, "nothing stays by a refusal");
                let own = "cali1".parse().unwrap();
                let given = allocate(&ipam, exact(), Some(&own)).await.unwrap();
                assert_eq!(given.first().map(|given| given.addr.to_string()).as_deref(), Some("10.0.0.7"));
            });
        });
    }
}
