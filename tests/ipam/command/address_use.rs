//! Address uses that this host's kernel reports.

use std::os::fd::AsRawFd;
use std::process::{Child, Command};

use tortie_kernel::address_uses;
use tortie_kernel::{AddressUses, UsePlace};

use crate::common::netns::{in_netns, in_netns_kept, ip};

/// A named network namespace; dropping it removes it.
struct Named(String);

impl Named {
    fn new(word: &str) -> Self {
        let name = format!("tipam-{word}-{}", std::process::id());
        ip(&format!("netns add {name}"));
        Self(name)
    }

    fn ip(&self, words: &str) {
        ip(&format!("-n {} {words}", self.0));
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// A process with an unnamed network namespace; dropping it ends the process.
struct Process(Child);

impl Process {
    fn new() -> Self {
        let child = Command::new("unshare").args(["-n", "sleep", "600"]).spawn().unwrap();
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let of = |file: &str| format!("/proc/{}/{file}", child.id());
        // It is in its namespace, and has its final name.
        while std::fs::read_link(of("ns/net")).is_ok_and(|theirs| theirs == own)
            || std::fs::read_to_string(of("comm")).is_ok_and(|name| name.trim() != "sleep")
        {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn places(seen: &AddressUses, addr: &str) -> Vec<String> {
    seen.of(addr.parse().unwrap()).map(ToString::to_string).collect()
}

#[test]
fn addresses_are_seen_in_the_namespaces_that_share_a_link_with_this_one() {
    in_netns(|| {
        let inside = Named::new("in");
        let stranger = Named::new("other");
        let process = Process::new();
        let pid = process.0.id();
        ip("link add cali1 type veth peer name tmp1");
        ip(&format!("link set tmp1 netns {} name eth0", inside.0));
        inside.ip("address add 10.65.7.1/32 dev eth0");
        inside.ip("address add fd65::7:1/128 dev eth0 nodad");
        inside.ip("link set eth0 up");
        ip("link set cali1 up");
        ip("route add 10.65.7.1/32 dev cali1");
        ip("link add cali2 type veth peer name tmp2");
        ip(&format!("link set tmp2 netns {pid} name eth0"));
        ip("link set cali2 up");
        let within = format!("nsenter -t {pid} -n ip address add 10.65.7.2/32 dev eth0");
        let words: Vec<&str> = within.split_whitespace().collect();
        assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success());
        // No link of this namespace leads to the host.
        stranger.ip("link add dummy0 type veth peer name dummy1");
        stranger.ip("address add 10.65.7.3/32 dev dummy0");
        // A tap device has no guest interface on the host: a route and a neighbour entry show the use.
        ip("link add tap1 type veth peer name tap1p");
        ip("link set tap1 up");
        ip("link set tap1p up");
        ip("route add 10.65.7.4/32 dev tap1");
        ip("neighbour add 10.65.7.4 lladdr 02:00:00:00:00:04 dev tap1");
        ip("address add 10.65.7.5/32 dev lo");
        // A route through a gateway does not show an address of this host.
        ip("address add 192.0.2.1/24 dev tap1");
        ip("route add 10.65.7.6/32 via 192.0.2.9");

        let seen = address_uses().unwrap();
        assert_eq!(seen.unreadable, Vec::<String>::new());
        assert_eq!(seen.namespaces, 3);
        assert_eq!(
            places(&seen, "10.65.7.1"),
            [format!("on eth0 in /run/netns/{}", inside.0), "a route leads to cali1".to_owned()]
        );
        assert_eq!(places(&seen, "fd65::7:1"), [format!("on eth0 in /run/netns/{}", inside.0)]);
        assert_eq!(places(&seen, "10.65.7.2"), [format!("on eth0 in process {pid} (sleep)")]);
        assert_eq!(places(&seen, "10.65.7.3"), Vec::<String>::new());
        assert_eq!(
            places(&seen, "10.65.7.4"),
            ["a route leads to tap1", "neighbour 02:00:00:00:00:04 on tap1"]
        );
        assert_eq!(places(&seen, "10.65.7.5"), ["on lo of this host"]);
        assert_eq!(places(&seen, "10.65.7.6"), Vec::<String>::new());
        assert!(seen.found.iter().all(|s| !s.addr.is_loopback()));

        // Behind a bridge port only the namespace itself shows the use: first visible, then hidden (held by a
        // socket only).
        ip("link add br0 type bridge");
        let (go, hidden) = in_netns_kept(|| ());
        ip("link add port0 type veth peer name tmp3");
        ip("link set port0 master br0");
        let file = std::fs::File::open(&hidden).unwrap();
        ip(&format!("link set tmp3 netns {}", inside.0));
        assert_eq!(address_uses().unwrap().unreadable, Vec::<String>::new());
        inside.ip(&format!("link set tmp3 netns /proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        let blind = address_uses().unwrap().unreadable;
        assert!(blind.len() == 1 && blind[0].contains("port0"), "{blind:?}");
        drop(go);
        drop(inside);
        drop(process);
        let after = address_uses().unwrap();
        assert!(
            !after
                .found
                .iter()
                .any(|s| matches!(s.place, UsePlace::Workload { .. }) && s.addr.to_string() == "10.65.7.1")
        );
    });
}
