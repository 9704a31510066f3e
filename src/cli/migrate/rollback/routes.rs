//! Which routes a rollback writes, under whose protocol and metric. It does no I/O.

use std::collections::BTreeSet;

use tortie_kernel::maintenance::handover::{BIRD, FELIX, KeptRoute};
use tortie_net::Cidr;

/// Returns the routes to write, so that BIRD or Felix has a route for every prefix that is reachable now.
pub(super) fn wanted(
    ours: &[KeptRoute],
    saved: &[KeptRoute],
    there: &BTreeSet<Cidr>,
    without_ours: &[Cidr],
    fits: bool,
) -> Vec<KeptRoute> {
    let missing = ours.iter().filter(|route| !there.contains(&route.prefix));
    let mut wanted: Vec<KeptRoute> = missing
        .map(|route| {
            // The saved one has further attributes, such as an MTU.
            if let Some(same) =
                saved.iter().find(|known| known.prefix == route.prefix && known.has_hops_of(route))
            {
                return same.clone();
            }
            let (protocol, metric) = writer(route, saved);
            route.under(protocol, metric)
        })
        .collect();
    // Routes that the operator gave up; all other missing ones were withdrawn since.
    let lost = without_ours.iter().filter(|prefix| fits && !there.contains(prefix));
    wanted.extend(lost.filter_map(|prefix| saved.iter().find(|route| route.prefix == *prefix)).cloned());
    wanted
}

/// Returns protocol and metric with which Calico would write a route of ours: those of the saved route of its
/// prefix; of a prefix that is new since, those of the saved route that is most alike: the same kind, over the
/// same device, and of the same pool, as far as prefixes show it.
fn writer(route: &KeptRoute, saved: &[KeptRoute]) -> (u8, u32) {
    /// Protocol number of routes over VXLAN devices (`RTPROT_BOOT`).
    const BOOT: u8 = 3;
    let of = |found: &KeptRoute| (found.protocol, found.metric);
    if let Some(same) = saved.iter().find(|known| known.prefix == route.prefix) {
        return of(same);
    }
    let alike = saved.iter().filter(|known| {
        known.prefix.is_v4() == route.prefix.is_v4()
            && known.blackhole == route.blackhole
            && known.device == route.device
    });
    if let Some(nearest) = alike.max_by_key(|known| common_bits(&known.prefix, &route.prefix)) {
        return of(nearest);
    }
    let device = route.device.as_deref().unwrap_or_default();
    let usual = if route.prefix.is_v4() { 0 } else { 1024 };
    if device == tortie_kernel::vxlan_device(route.prefix.is_v4()) {
        (BOOT, usual)
    } else if saved.is_empty() || saved.iter().any(|known| known.protocol == BIRD) {
        (BIRD, usual)
    } else {
        (FELIX, usual)
    }
}

/// Returns the number of leading bits that two prefixes share.
fn common_bits(one: &Cidr, other: &Cidr) -> u32 {
    let bits = |cidr: &Cidr| match cidr.addr() {
        std::net::IpAddr::V4(addr) => u128::from(addr.to_bits()) << 96,
        std::net::IpAddr::V6(addr) => addr.to_bits(),
    };
    (bits(one) ^ bits(other)).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A route as a snapshot has it: prefix, protocol, metric, device; without one it is a blackhole.
    fn route(prefix: &str, protocol: u8, metric: u32, device: &str) -> KeptRoute {
        let json = serde_json::json!({
            "prefix": prefix, "metric": metric, "protocol": protocol, "blackhole": device.is_empty(),
            "device": (!device.is_empty()).then_some(device), "message": "00".repeat(12),
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn each_route_gets_the_writer_that_calico_would_have() {
        let saved = [
            route("10.1.1.0/26", 12, 0, ""),
            route("10.1.2.0/26", 12, 2_147_482_623, "eth0"),
            route("10.2.1.0/26", 80, 0, ""),
            route("10.2.2.0/26", 80, 0, "eth0"),
            route("10.2.3.0/26", 3, 0, "vxlan.calico"),
            route("fd00::40/122", 12, 1024, ""),
        ];
        let ours = |prefix: &str, device: &str| writer(&route(prefix, 179, 1790, device), &saved);
        assert_eq!(ours("10.1.2.0/26", "eth0"), (12, 2_147_482_623), "the same prefix");
        assert_eq!(ours("10.1.2.0/26", "vxlan.calico"), (12, 2_147_482_623), "another device since");
        assert_eq!(ours("10.1.9.0/26", "eth0"), (12, 2_147_482_623), "of BIRD's pool");
        assert_eq!(ours("10.2.9.0/26", "eth0"), (80, 0), "of Felix's pool");
        assert_eq!(ours("10.2.7.0/26", ""), (80, 0));
        assert_eq!(ours("10.1.7.0/26", ""), (12, 0));
        assert_eq!(ours("10.2.9.0/26", "vxlan.calico"), (3, 0));
        assert_eq!(ours("fd00::80/122", ""), (12, 1024));
        assert_eq!(ours("fd00::80/122", "vxlan-v6.calico"), (3, 1024), "the first of its kind");
        let only_felix = [route("10.2.1.0/26", 80, 0, "")];
        assert_eq!(writer(&route("10.2.9.0/26", 179, 1790, "tunl0"), &only_felix), (80, 0));
        assert_eq!(writer(&route("10.2.9.0/26", 179, 1790, "eth0"), &[]), (12, 0));
    }

    #[test]
    fn what_was_given_up_comes_back_and_what_is_there_is_not_written_again() {
        let saved = [route("10.1.1.0/26", 12, 0, "eth0"), route("10.1.2.0/26", 12, 0, "eth0")];
        let ours = [route("10.1.2.0/26", 179, 1790, "eth0"), route("10.1.3.0/26", 179, 1790, "eth0")];
        let there: BTreeSet<Cidr> = ["10.1.2.0/26".parse().unwrap()].into();
        let lost = ["10.1.1.0/26".parse().unwrap()];
        let written = |fits| -> Vec<String> {
            wanted(&ours, &saved, &there, &lost, fits).iter().map(|route| route.prefix.to_string()).collect()
        };
        assert_eq!(written(true), ["10.1.3.0/26", "10.1.1.0/26"]);
        assert_eq!(written(false), ["10.1.3.0/26"]);
    }
}
