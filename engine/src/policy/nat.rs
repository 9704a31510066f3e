//! Floating addresses in force on this host (data model, `ipv4_nat` and `ipv6_nat`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::types::{EndpointPolicy, Ruleset};

/// 1:1 NAT mappings of the active workload endpoints of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Floating {
    /// External to internal address.
    pub inward: BTreeMap<IpAddr, IpAddr>,
    /// Internal to external address, for an endpoint that connects to its own external address.
    pub outward: BTreeMap<IpAddr, IpAddr>,
}

impl Floating {
    /// Collects the mappings of a ruleset. If several endpoints claim an external address, the smallest
    /// internal address (as text) gets it. An internal address with several external ones is represented by
    /// the smallest, as text.
    #[must_use]
    pub fn of(ruleset: &Ruleset) -> Self {
        let mut floating = Self::default();
        for endpoint in ruleset.endpoints.values() {
            let EndpointPolicy::Workload(workload) = &**endpoint else { continue };
            for (inside, outside) in workload.nats.iter().filter(|_| workload.active) {
                keep_smaller(&mut floating.inward, *outside, *inside);
            }
        }
        for (outside, inside) in &floating.inward {
            keep_smaller(&mut floating.outward, *inside, *outside);
        }
        floating
    }
}

fn keep_smaller(map: &mut BTreeMap<IpAddr, IpAddr>, key: IpAddr, value: IpAddr) {
    let kept = map.entry(key).or_insert(value);
    if value.to_string() < kept.to_string() {
        *kept = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::ruleset;

    fn of(endpoints: &[&str]) -> Vec<String> {
        let keys: Vec<String> = (0..endpoints.len())
            .map(|at| format!("/calico/v1/host/h1/workload/cni/w{at}/endpoint/eth0"))
            .collect();
        let entries: Vec<(&str, &str)> = keys.iter().zip(endpoints).map(|(k, v)| (k.as_str(), *v)).collect();
        let floating = Floating::of(&ruleset(&entries));
        let inward = floating.inward.iter().map(|(outside, inside)| format!("{outside} > {inside}"));
        inward
            .chain(floating.outward.iter().map(|(inside, outside)| format!("{inside} < {outside}")))
            .collect()
    }

    const TWO: &str = r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.9/32"],
        "ipv4_nat":[{"int_ip":"10.0.0.9","ext_ip":"192.0.2.9"},{"int_ip":"10.0.0.9","ext_ip":"192.0.2.10"}]}"#;

    #[test]
    fn an_address_with_several_is_known_by_the_smallest_as_text() {
        assert_eq!(of(&[TWO]), ["192.0.2.9 > 10.0.0.9", "192.0.2.10 > 10.0.0.9", "10.0.0.9 < 192.0.2.10"]);
    }

    #[test]
    fn of_two_claims_the_smaller_inside_address_has_it_as_text() {
        let other = r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.0.10/32"],
            "ipv4_nat":[{"int_ip":"10.0.0.10","ext_ip":"192.0.2.10"}]}"#;
        let expected = [
            "192.0.2.9 > 10.0.0.9",
            "192.0.2.10 > 10.0.0.10",
            "10.0.0.9 < 192.0.2.9",
            "10.0.0.10 < 192.0.2.10",
        ];
        assert_eq!(of(&[TWO, other]), expected);
        assert_eq!(of(&[other, TWO]), expected);
    }

    #[test]
    fn inactive_endpoints_and_foreign_addresses_map_nothing() {
        assert_eq!(of(&[&TWO.replace("\"active\"", "\"inactive\"")]), [""; 0]);
        assert_eq!(of(&[&TWO.replace("10.0.0.9/32", "10.0.0.8/32")]), [""; 0]);
    }
}
