//! Tests of excluded addresses: those that IPAM must not allocate on this host, and blocks withheld because
//! of its networks.

use super::*;
use crate::api::status::AppliedRequest;
use tortie_engine::ipam::Exclusions;
use tortie_kernel::ConnectedNetwork;

fn connected(networks: &[(&str, &str, &str)]) -> Input {
    let network = |(interface, network, addr): &(&str, &str, &str)| ConnectedNetwork {
        interface: (*interface).to_owned(),
        network: network.parse().unwrap(),
        addr: addr.parse().unwrap(),
    };
    Input::Kernel(KernelFact::Connected(networks.iter().map(network).collect()))
}

fn exclusions(core: &Core, after: u64) -> Exclusions {
    view::CoreView::of(core).exclusions(Instant::now() + Duration::from_secs(after))
}

fn excluded(core: &Core) -> Vec<String> {
    let prefixes = exclusions(core, 0).prefixes.into_iter();
    prefixes.map(|prefix| format!("{}: {}", prefix.cidr, prefix.holder)).collect()
}

/// Builds a block of this host whose first address is allocated.
fn used_block() -> String {
    let nulls = vec!["null"; 63].join(",");
    let attribute = r#"{"handle_id":"libnetwork.10.244.1.0","secondary":{"node":"h1"}}"#;
    format!(
        r#"{{"cidr":"10.244.1.0/26","affinity":"host:h1","allocations":[0,{nulls}],"attributes":[{attribute}]}}"#
    )
}

#[test]
fn no_pool_gives_addresses_of_hosts_and_of_networks_that_the_kernel_is_connected_to_as_long_as_it_is() {
    let mut core = core();
    whole(&mut core);
    applied(&mut core, 1, Vec::new());
    assert!(excluded(&core).is_empty());
    // Hosts: an address in the pool, a network that covers another host's address, and an address outside of
    // all pools.
    for (n, (key, value)) in (2..).zip([
        ("h3/ip_addr_v4", "10.244.9.9"),
        ("h4/ip_addr_v4", "10.244.64.1"),
        ("h4/network_v4", "10.244.64.0/24"),
        ("h5/ip_addr_v4", "192.0.2.5"),
    ]) {
        feed(&mut core, put(&format!("/calico/bgp/v1/host/{key}"), value, n));
    }
    let of_hosts = ["10.244.64.0/24: the network of host h4", "10.244.9.9/32: the address of host h3"];
    assert_eq!(excluded(&core), of_hosts);
    // Networks known only to the kernel, as they appear and disappear.
    give(
        &mut core,
        connected(&[
            ("docker0", "10.244.128.0/20", "10.244.128.1"),
            ("eth1", "203.0.113.0/24", "203.0.113.7"),
            ("lo", "10.244.5.5/32", "10.244.5.5"),
        ]),
    );
    let mut all = vec!["10.244.128.0/20: a network that host h1 is connected to by docker0"];
    all.extend(of_hosts.iter().take(1));
    all.extend(["10.244.5.5/32: an address of lo on host h1"]);
    all.extend(of_hosts.iter().skip(1));
    assert_eq!(excluded(&core), all);
    give(&mut core, connected(&[]));
    assert_eq!(excluded(&core), of_hosts);
}

#[test]
fn a_bridge_of_docker_whose_own_address_ipam_gave_has_our_addresses_on_purpose() {
    let mut core = core();
    whole(&mut core);
    let bridge = || connected(&[("br-0123456789ab", "10.244.1.0/26", "10.244.1.0")]);
    give(&mut core, bridge());
    assert_eq!(excluded(&core).len(), 1);
    feed(&mut core, put(BLOCK, &used_block(), 2));
    assert!(excluded(&core).is_empty());
    give(&mut core, connected(&[("eth1", "10.244.1.0/26", "10.244.1.0")]));
    assert_eq!(excluded(&core).len(), 1, "of an interface of the host it is a fault");
}

/// All hosts count as known only while the store answers; otherwise each allocation reads them from the
/// store.
#[test]
fn hosts_are_all_known_only_as_long_as_the_store_is_followed() {
    let mut core = core();
    assert!(!exclusions(&core, 0).complete);
    whole(&mut core);
    assert!(exclusions(&core, 0).complete);
    assert!(!exclusions(&core, 30).complete, "nothing was read for half a minute");
    let reason = tortie_store::StoreError::Unreachable("away".to_owned());
    let away = FeedEvent::Unreachable { since: std::time::SystemTime::UNIX_EPOCH, reason };
    feed(&mut core, away);
    assert!(!exclusions(&core, 0).complete);
    feed(&mut core, FeedEvent::Reconnected);
    assert!(exclusions(&core, 0).complete);
}

#[test]
fn a_block_is_withheld_as_soon_as_the_host_is_connected_to_its_addresses_and_as_long() {
    let mut core = core();
    whole(&mut core);
    applied(&mut core, 1, Vec::new());
    let blackholes =
        |effects: &[Effect]| kernel_intents(effects).last().map(|intent| intent.blackholes.len());
    let elsewhere = connected(&[("eth0", "172.30.0.0/24", "172.30.0.1")]);
    assert_eq!(blackholes(&give(&mut core, elsewhere)), None, "nothing is decided otherwise");
    let over = || connected(&[("docker0", "10.244.0.0/20", "10.244.0.1")]);
    assert_eq!(blackholes(&give(&mut core, over())), Some(0));
    assert!(core.intent.as_ref().unwrap().withheld_blocks.values().any(|why| why.contains("10.244.0.0/20")));
    assert_eq!(give(&mut core, over()).len(), 0, "as before");
    // A single address of the host is delivered locally, whatever routes exist.
    let single = connected(&[("lo", "10.244.1.7/32", "10.244.1.7")]);
    assert_eq!(blackholes(&give(&mut core, single)), Some(1));
    assert_eq!(announced(&applied(&mut core, 3, Vec::new())).unwrap(), ["10.244.1.0/26"]);
    // A network reported during a freeze takes effect after it.
    feed(&mut core, put("/calico/v1/Ready", "false", 2));
    assert_eq!(blackholes(&give(&mut core, over())), None);
    assert_eq!(blackholes(&feed(&mut core, put("/calico/v1/Ready", "true", 3))), Some(0));
}

/// A host registers between the agent's answer and a plugin's transaction: the plugin's last query is at a
/// revision at which the agent has read both.
#[test]
fn an_endpoint_whose_address_became_a_host_s_meanwhile_does_not_come_into_force() {
    let mut core = core();
    whole(&mut core);
    applied(&mut core, 1, Vec::new());
    let key = "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0";
    let value = r#"{"state":"active","name":"cali1","ipv4_nets":["10.244.1.5/32"]}"#;
    feed(&mut core, put("/calico/bgp/v1/host/h9/ip_addr_v4", "10.244.1.5", 2));
    feed(&mut core, put(key, value, 3));
    let (generation, serial) = (core.generation, core.enforcement.serial());
    applied(&mut core, generation, Vec::new());
    core.on_enforced(serial, ChangeId(1), BTreeMap::new(), 1);
    let request = AppliedRequest { key: key.to_owned(), revision: 3, wait_millis: 0, elapsed_millis: None };
    let (result, reason) = verdict(&core, &request, &mut None).unwrap();
    assert_eq!(result, "failed");
    assert!(reason.unwrap().contains("10.244.1.5 is the address of host h9"));
    feed(&mut core, put("/calico/bgp/v1/host/h9/ip_addr_v4", "172.30.0.9", 4));
    let (generation, serial) = (core.generation, core.enforcement.serial());
    applied(&mut core, generation, Vec::new());
    core.on_enforced(serial, ChangeId(1), BTreeMap::new(), 1);
    assert_eq!(verdict(&core, &request, &mut None).unwrap().0, "applied");
}
