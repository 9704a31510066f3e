//! Tests if a workload could be added now: plans the writes, and has the store check them without committing.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tortie_config::key::{EndpointKey, IpFamily};
use tortie_config::resource::Labels;
use tortie_engine::ipam::{AddressRequest, AllocationRequest, Exclusions, Ipam, IpamError};
use tortie_engine::writer::{EndpointSpec, ProfileChoice};
use tortie_store::{Store, StoreError};

use super::endpoint::{new_birth, writer};
use crate::api::codes;
use crate::api::problem::Problem;

/// Name of the rehearsed workload, which no real workload has.
const NAME: &str = "rehearsal";

/// Plans the allocation of these addresses for a workload of the host. `excluded` are the exclusions that its
/// agent knows.
///
/// # Errors
/// The error that a real request would get.
pub async fn rehearse_addresses(
    store: &Arc<dyn Store>,
    node: &str,
    addresses: Vec<AddressRequest>,
    excluded: Exclusions,
) -> Result<(), IpamError> {
    let request = AllocationRequest {
        host: node.to_owned(),
        addresses,
        handle: Some(format!("{NAME}.{node}")),
        ..AllocationRequest::default()
    };
    Ipam::new(Arc::clone(store)).excluding(excluded).rehearse(&request).await
}

/// Tests the write of a workload endpoint of the host.
///
/// # Errors
/// The error that a real write would get.
pub async fn rehearse_endpoint(store: &dyn Store, node: &str) -> Result<(), StoreError> {
    let key = EndpointKey::Workload {
        host: node.to_owned(),
        orchestrator: "cni".to_owned(),
        workload: NAME.to_owned(),
        endpoint: "eth0".to_owned(),
    };
    let refused = |text: &str| StoreError::Refused(text.to_owned());
    let spec = EndpointSpec {
        key: &key,
        host_ifname: &"cali0".parse().map_err(|_| refused("no interface name"))?,
        mac: None,
        addrs: &[Ipv4Addr::LOCALHOST.into()],
        gateways: &[],
        profile: &ProfileChoice::None,
        more_profiles: &[],
        labels: &Labels::new(),
        instance: None,
    };
    let planned = writer(store).await?.endpoint(&spec, &[], &mut new_birth);
    match planned.map_err(|error| refused(&error.to_string()))? {
        Some(txn) => store.rehearse(&txn).await,
        None => Ok(()),
    }
}

/// Tests a workload with one address of each family that has pools; a family without pools is no error.
///
/// # Errors
/// The error that a real workload would get.
pub async fn rehearse_workload(
    store: &Arc<dyn Store>,
    node: &str,
    excluded: Exclusions,
) -> Result<(), IpamError> {
    for family in [IpFamily::V4, IpFamily::V6] {
        let any = AddressRequest::Any { family, count: 1, pools: Vec::new() };
        match rehearse_addresses(store, node, vec![any], excluded.clone()).await {
            Err(IpamError::NoPools(_) | IpamError::NoFittingPool { .. }) | Ok(()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(rehearse_endpoint(&**store, node).await?)
}

/// Returns the problem that prevents new workloads; `None` without an error, or if another problem reports
/// the cause (store unavailable or frozen, no pool, invalid value).
#[must_use]
pub fn allocation_problem(rehearsed: &Result<(), IpamError>) -> Option<Problem> {
    let error = rehearsed.as_ref().err()?;
    match error {
        IpamError::Full { .. } | IpamError::BlockLimit { .. } => {
            Some(codes::NO_ADDRESSES.problem("", "addresses", format!("no workload can be added: {error}")))
        }
        IpamError::Store(
            StoreError::Unwritable(_) | StoreError::PermissionDenied(_) | StoreError::Unusable(_),
        ) => Some(codes::STORE_READ_ONLY.problem("", "store", format!("no workload can be added: {error}"))),
        IpamError::Store(StoreError::Damaged(_)) => {
            Some(codes::STORE_DAMAGED.problem("", "store", format!("no workload can be added: {error}")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_workloads_away_is_one_problem_and_what_others_report_is_none() {
        let full = IpamError::Full { requested: 1, free: 0, place: "10.0.0.0/30".to_owned() };
        let limit = IpamError::BlockLimit { host: "h1".to_owned(), limit: 2 };
        let store = |error: StoreError| IpamError::Store(error);
        for (error, code) in [
            (full, Some("no-addresses")),
            (limit, Some("no-addresses")),
            (store(StoreError::Unwritable("full".to_owned())), Some("store-read-only")),
            (store(StoreError::PermissionDenied("no role".to_owned())), Some("store-read-only")),
            (store(StoreError::Unusable("no store".to_owned())), Some("store-read-only")),
            (store(StoreError::Damaged("damaged".to_owned())), Some("store-damaged")),
            (store(StoreError::Unreachable("away".to_owned())), None),
            (IpamError::NotReady, None),
            (IpamError::NoPools(IpFamily::V4), None),
            (IpamError::Busy { attempts: 3 }, None),
        ] {
            let text = error.to_string();
            let found = allocation_problem(&Err(error));
            assert_eq!(found.as_ref().map(|p| p.code.as_str()), code, "{text}");
            assert!(found.is_none_or(|p| p.text.contains(&text)));
        }
        assert_eq!(allocation_problem(&Ok(())), None);
    }
}
