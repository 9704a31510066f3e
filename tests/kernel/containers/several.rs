//! A container with several interfaces answers at the address of each.

use std::path::Path;
use std::process::Command;

use super::{addrs, attach_container, attach_interface, enable_forwarding, name};
use crate::common::containers::*;
use crate::common::netns::{in_netns, ip};
use crate::common::tools::tool;
use tortie_config::resource::MacAddr;
use tortie_kernel::container::{self, *};

/// Makes the host drop packets of a workload with an address of another interface, as the agent's rules do.
fn drop_spoofed(nft: &Path, interfaces: &[(&str, &[&str])]) {
    let mut rules =
        String::from("table inet spoof { chain from { type filter hook prerouting priority -250;");
    for (interface, addrs) in interfaces {
        for addr in *addrs {
            let family = if addr.contains(':') { "ip6" } else { "ip" };
            rules += &format!(
                "iifname {interface} {family} saddr != {{ {addr}, {} }} drop; ",
                if family == "ip6" { "fe80::/10, ::" } else { "0.0.0.0" }
            );
        }
    }
    rules += "\n}\n}\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules).unwrap();
    let loaded = Command::new(nft).arg("-f").arg(file.path()).output().unwrap();
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
}

#[test]
fn every_address_of_a_container_answers_whichever_interface_has_its_default_route() {
    let Some(nft) = tool("nft") else { return };
    in_netns(move || {
        enable_forwarding();
        let (pod, far) = (Pod::new(), Pod::new());
        let first: &[&str] = &["10.65.0.2", "2001:db8:65::2"];
        let second: &[&str] = &["10.65.0.3", "2001:db8:65::3"];
        attach_container(&pod, "calia", first);
        attach_interface(&pod, "calib", "eth1", None, second);
        attach_container(&far, "calic", &["10.65.0.9", "2001:db8:65::9"]);
        drop_spoofed(&nft, &[("calia", first), ("calib", second)]);
        pod.serve_source_address(7000);
        let answers = |to: &[&str]| {
            for addr in to {
                let to = if addr.contains(':') { format!("[{addr}]:7000") } else { format!("{addr}:7000") };
                far.source_seen_by(Kind::Tcp, &to)
                    .unwrap_or_else(|error| panic!("{error}\n{}", pod.ip("rule")));
            }
        };
        answers(first);
        answers(second);
        // The default route moves to the other interface, as Docker assigns it to the network whose name
        // sorts first; or to a third one.
        for words in ["route del default dev eth0", "-6 route del default dev eth0"] {
            pod.ip(words);
        }
        answers(first);
        answers(second);
        ip("link add third type veth peer name eth2");
        ip(&format!("link set eth2 netns {}", pod.name));
        for words in [
            "addr add 192.0.2.2/24 dev eth2",
            "addr add 2001:db8:2::2/64 dev eth2 nodad",
            "link set eth2 up",
            "route add default via 192.0.2.1 dev eth2 metric 1",
            "-6 route add default via 2001:db8:2::1 dev eth2 metric 1",
        ] {
            pod.ip(words);
        }
        answers(first);
        answers(second);
        // One interface is removed: the other still answers, and no state of the removed one is left.
        container::remove_link(&name("calib")).unwrap();
        container::sweep_source_rules(&pod.path()).unwrap();
        assert!(!pod.ip("rule").contains("10.65.0.3") && !pod.ip("-6 rule").contains("2001:db8:65::3"));
        answers(first);
        attach_interface(&pod, "calib", "eth1", None, second);
        answers(second);
    });
}

/// Actions of dockerd on the end that the driver created, and additions of the driver.
#[test]
fn an_interface_that_another_program_moves_and_configures_gets_its_rules_when_that_is_done() {
    in_netns(|| {
        enable_forwarding();
        let pod = Pod::new();
        let list = addrs(&["10.65.0.2", "2001:db8:65::2"]);
        let mac: MacAddr = "02:00:00:00:00:07".parse().unwrap();
        let moved = MovedInterface {
            host: name("calia"),
            mac,
            addrs: list.clone(),
            gateways: container::gateways(2, &list),
            prefixes: vec!["10.65.0.0/16".parse().unwrap(), "2001:db8:65::/64".parse().unwrap()],
        };
        assert!(container::complete_moved(&moved, &pod.path()).is_err(), "the pair is not there");
        container::create_veth(&VethSpec {
            host: &name("calia"),
            host_mac: Some(HOST_MAC),
            peer: &name("tempa"),
            peer_mac: Some(mac),
            namespace: None,
            mtu: None,
            alias: "",
        })
        .unwrap();
        container::host_side(&HostSpec { name: &name("calia"), addrs: &list, mtu: None }).unwrap();
        container::add_router(&name("calia"), "fe80::a9fe:102".parse().unwrap()).unwrap();
        container::host_routes(&name("calia"), &list).unwrap();
        let step = || container::complete_moved(&moved, &pod.path()).unwrap();
        assert!(!container::is_attached(&name("calia")).unwrap());
        assert_eq!(step(), MoveState::NotMoved);
        ip(&format!("link set tempa netns {}", pod.name));
        assert!(container::is_attached(&name("calia")).unwrap());
        assert_eq!(step(), MoveState::NotConfigured);
        for words in ["link set tempa name eth0", "addr add 10.65.0.2/32 dev eth0", "link set eth0 up"] {
            pod.ip(words);
            assert_eq!(step(), MoveState::NotConfigured, "{words}");
        }
        pod.ip("addr add 2001:db8:65::2/128 dev eth0 nodad");
        assert_eq!(step(), MoveState::Complete);
        assert_eq!(step(), MoveState::Complete, "again");
        assert!(
            pod.ip("rule").contains("from 10.65.0.2") && pod.ip("-6 rule").contains("from 2001:db8:65::2")
        );
        assert!(pod.ip("neigh show 169.254.1.2").contains("PERMANENT"));
        assert!(pod.ip("rule").contains("to 10.65.0.0/16"));
        // Without a route in the main table it still answers, and reaches its network.
        let far = Pod::new();
        attach_container(&far, "calic", &["10.65.0.9", "2001:db8:65::9"]);
        pod.serve_source_address(7000);
        for to in ["10.65.0.2:7000", "[2001:db8:65::2]:7000"] {
            far.source_seen_by(Kind::Tcp, to).unwrap();
        }
        far.serve_source_address(7000);
        let from = |list: &str| Ok(list.parse().unwrap());
        assert_eq!(pod.source_seen_by(Kind::Tcp, "10.65.0.9:7000"), from("10.65.0.2"));
        assert_eq!(pod.source_seen_by(Kind::Tcp, "[2001:db8:65::9]:7000"), from("2001:db8:65::2"));
    });
}
