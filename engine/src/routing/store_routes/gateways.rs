//! Routes to peers by the gateway that `reachable_by` of the peer names.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::key::{IpFamily, Scope};
use tortie_net::Cidr;

use crate::model::Model;
use crate::routing::local::Local;

/// Returns the gateways to the explicit peers of this host, by the prefix of the peer's address alone. If
/// several peers at one address name gateways, the first counts: that of a global peer, then that of the
/// least port.
pub(super) fn gateways(model: &Model, local: &Local) -> BTreeMap<Cidr, IpAddr> {
    let mut found = BTreeMap::new();
    for scope in [Scope::Global, Scope::Host(model.node().to_owned())] {
        for peer in model.peers(&scope) {
            let (addr, gateway) = (peer.value.ip, peer.value.reachable_by);
            let Some(gateway) = gateway.filter(|gateway| gateway.is_ipv4() == addr.is_ipv4()) else {
                continue;
            };
            // A peer without a session needs no route, and none leads to an address of this host.
            let has_session = local.addr(IpFamily::of(addr)).is_some() && !local.is_own(addr);
            if has_session && gateway != addr {
                found.entry(Cidr::host(addr)).or_insert(gateway);
            }
        }
    }
    found
}
