//! Selects gateways and prefixes of an interface, distinct from those of the container's other interfaces. It
//! does no I/O.

use std::collections::BTreeSet;

use tortie_net::Cidr;

use crate::plugins::docker::error::Refusal;
use crate::plugins::docker::records::EndpointRecord;
use tortie_kernel::container;

/// Maximum number of prefixes per interface.
const ROUTES_MAX: usize = 64;

/// Returns the record with gateways and prefixes that the container's other endpoints do not use.
pub(super) fn place(
    record: EndpointRecord,
    pools: &[Cidr],
    others: &[EndpointRecord],
) -> Result<EndpointRecord, Refusal> {
    let taken: BTreeSet<_> = others.iter().flat_map(|other| &other.gateways).collect();
    let gateways = (1..=254)
        .map(|number| container::gateways(number, &record.addresses))
        .find(|gateways| !gateways.iter().any(|gateway| taken.contains(gateway)))
        .ok_or_else(|| Refusal::new("the container is in 254 networks already, which is the most"))?;
    let routed: BTreeSet<_> = others.iter().flat_map(|other| &other.routes).collect();
    let has = |pool: &Cidr| gateways.iter().any(|gateway| gateway.is_ipv4() == pool.is_v4());
    let routes = pools.iter().filter(|pool| has(pool) && !routed.contains(pool));
    let routes = routes.copied().take(ROUTES_MAX).collect();
    Ok(EndpointRecord { gateways, routes, ..record })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addrs(list: &[&str]) -> Vec<std::net::IpAddr> {
        list.iter().map(|addr| addr.parse().unwrap()).collect()
    }

    fn pools(list: &[&str]) -> Vec<Cidr> {
        list.iter().map(|pool| pool.parse().unwrap()).collect()
    }

    #[test]
    fn the_first_interface_has_calicos_gateway_and_further_ones_their_own() {
        let both =
            EndpointRecord { addresses: addrs(&["10.65.0.2", "fd00::2"]), ..EndpointRecord::default() };
        let first = place(both.clone(), &pools(&["10.65.0.0/16"]), &[]).unwrap();
        assert_eq!(first.gateways, addrs(&["169.254.1.1", "fe80::ecee:eeff:feee:eeee"]));
        assert_eq!(first.routes, pools(&["10.65.0.0/16"]));
        let second = place(both, &pools(&["10.65.0.0/16", "10.66.0.0/16"]), &[first]).unwrap();
        assert_eq!(second.gateways, addrs(&["169.254.1.2", "fe80::a9fe:102"]));
        assert_eq!(second.routes, pools(&["10.66.0.0/16"]), "a prefix leads one way");
    }

    proptest! {
        /// Networks are connected and disconnected in any order: no two interfaces share a gateway or a
        /// prefix.
        #[test]
        fn interfaces_of_one_container_share_no_gateway_and_no_prefix(
            steps in proptest::collection::vec((0_u8..4, 0_usize..8), 0..40)
        ) {
            let all = pools(&["10.65.0.0/16", "10.66.0.0/16", "fd00:65::/64"]);
            let mut joined: Vec<EndpointRecord> = Vec::new();
            for (step, which) in steps {
                if step == 0 && !joined.is_empty() {
                    joined.remove(which % joined.len());
                    continue;
                }
                let list: &[&str] = [&["10.65.0.2"][..], &["fd00:65::2"], &["10.66.0.2", "fd00:65::3"]][which % 3];
                let record = EndpointRecord { addresses: addrs(list), ..EndpointRecord::default() };
                let record = place(record, &all, &joined).unwrap();
                prop_assert_eq!(record.gateways.len(), list.len());
                joined.push(record);
            }
            let gateways: Vec<_> = joined.iter().flat_map(|record| &record.gateways).collect();
            prop_assert_eq!(gateways.iter().collect::<BTreeSet<_>>().len(), gateways.len());
            let routes: Vec<_> = joined.iter().flat_map(|record| &record.routes).collect();
            prop_assert_eq!(routes.iter().collect::<BTreeSet<_>>().len(), routes.len());
        }
    }
}
