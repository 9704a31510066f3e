//! Port mappings that another process flushed, and host addresses that cannot have any.

use std::process::Command;

use super::{addrs, attach_container, enable_forwarding, mapping, remove_earlier_records};
use crate::common::containers::*;
use crate::common::netns::{in_netns, ip};
use crate::common::tools::tool;
use tortie_kernel::container::{self, *};

#[test]
fn mapped_ports_come_back_after_a_flush_and_only_those_of_containers_that_are_there() {
    let Some(nft) = tool("nft") else { return };
    in_netns(move || {
        remove_earlier_records();
        enable_forwarding();
        let (a, b) = (Pod::new(), Pod::new());
        attach_container(&a, "calia", &["10.65.0.2"]);
        attach_container(&b, "calib", &["10.65.0.3"]);
        ip("addr add 192.0.2.1/32 dev lo");
        a.serve_source_address(7000);
        let tables =
            ["net1 a eth0", "net1 b eth0", "net1 c eth0"].map(|id| container::ports_table(PORTS_PREFIX, id));
        let [one, two, gone] = &tables;
        container::map_ports(one, &addrs(&["10.65.0.2"]), &[mapping(None, 8080, Transport::Tcp)]).unwrap();
        container::map_ports(
            two,
            &addrs(&["10.65.0.3"]),
            &[mapping(Some("192.0.2.1"), 8081, Transport::Udp)],
        )
        .unwrap();
        container::map_ports(gone, &addrs(&["10.65.0.4"]), &[mapping(None, 8082, Transport::Tcp)]).unwrap();
        let written: Vec<String> =
            container::mapped_ports().unwrap().into_iter().map(|mapped| mapped.table).collect();
        let mut all = vec![one.clone(), two.clone()];
        all.sort();
        assert_eq!(written, all, "no route leads to the third container");
        assert_eq!(container::restore_ports().unwrap(), Vec::<String>::new(), "nothing is missing");
        let flush = Command::new(&nft).args(["flush", "ruleset"]).output().unwrap();
        assert!(flush.status.success());
        assert!(b.source_seen_by(Kind::Tcp, "192.0.2.1:8080").is_err());
        let mut restored = container::restore_ports().unwrap();
        restored.sort();
        let mut expected = vec![one.clone(), two.clone()];
        expected.sort();
        assert_eq!(restored, expected, "a container that is gone gets none");
        b.source_seen_by(Kind::Tcp, "192.0.2.1:8080").unwrap();
        // As in a namespace that reuses the number of a deleted one: same names and addresses, different
        // interfaces.
        ip("link del calib");
        attach_container(&b, "calib", &["10.65.0.3"]);
        let flush = Command::new(&nft).args(["flush", "ruleset"]).output().unwrap();
        assert!(flush.status.success());
        assert_eq!(container::restore_ports().unwrap(), vec![one.clone()], "the interface is another one");
        for table in &tables {
            container::unmap_ports(table).unwrap();
        }
        assert_eq!(container::mapped_ports().unwrap(), []);
        assert_eq!(container::restore_ports().unwrap(), Vec::<String>::new());
        // An address that is not local, and one from which no packets are routed.
        for (host, says) in [("198.51.100.7", "no address of this host"), ("::1", "127.0.0.1")] {
            let list = addrs(&["10.65.0.2", "2001:db8:65::2"]);
            let error = container::map_ports(one, &list, &[mapping(Some(host), 8080, Transport::Tcp)]);
            let error = error.unwrap_err().to_string();
            assert!(error.contains(host) && error.contains(says), "{error}");
        }
        assert_eq!(container::mapped_ports().unwrap(), []);
    });
}

#[test]
fn a_mapped_port_is_refused_at_the_ipv6_loopback_as_one_that_nobody_maps() {
    in_netns(|| {
        enable_forwarding();
        let a = Pod::new();
        attach_container(&a, "calia", &["10.65.0.2", "2001:db8:65::2"]);
        ip("link set lo up");
        ip("addr add 192.0.2.1/32 dev lo");
        ip("addr add 2001:db8:1::1/128 dev lo nodad");
        a.serve_source_address(7000);
        let list = addrs(&["10.65.0.2", "2001:db8:65::2"]);
        let table = container::ports_table(PORTS_PREFIX, "net1 loopback eth0");
        container::map_ports(&table, &list, &[mapping(None, 8080, Transport::Tcp)]).unwrap();
        source_seen_by(Kind::Tcp, "127.0.0.1:8080").unwrap();
        source_seen_by(Kind::Tcp, "[2001:db8:1::1]:8080").unwrap();
        let error = source_seen_by(Kind::Tcp, "[::1]:8080").unwrap_err();
        assert!(error.contains("refused"), "{error}");
        container::unmap_ports(&table).unwrap();
    });
}
