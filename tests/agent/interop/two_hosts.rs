//! Lab with two hosts, each with a workload, on both sides of one router, and blocks for them.

use tortie_store::Op;

use crate::interop::rig::put;

const LAB: &str = r#"
#   web1 - host1 eth1 - eth1 [tor] eth2 - eth1 host2 - web2
name: NAME
topology:
  defaults: {kind: linux, image: tortie, network-mode: none}
  groups:
    host:
      binds: ["__clabDir__/store:/store"]
      sysctls: {net.ipv4.ip_forward: 1, net.ipv6.conf.all.forwarding: 1}
      stages: {create: {wait-for: [{node: store, stage: exit}]}, configure: {wait-for: [{node: tor, stage: STAGE}]}}
    workload:
      cmd: sleep infinity
      exec:
        - ip route add 169.254.1.1 dev eth1
        - ip route add default via 169.254.1.1
  nodes:
    store:
      binds: ["__clabDir__/store:/store", "STORE:/lab/store.json:ro"]
      cmd: tortie --datastore sqlite:/store/store.db store import /lab/store.json
    tor:
      sysctls: {net.ipv4.ip_forward: 1, net.ipv6.conf.all.forwarding: 1}
TORHOSTS  links:
LINKS"#;

const HOST: &str = "    hostN:
      group: host
      cmd: tortie --datastore sqlite:/store/store.db --node hostN agent
      exec: [ip addr add 169.254.1.1/32 dev cali1 scope link, ip route replace 10.244.N.1/32 dev cali1, EXEC]
    webN:
      group: workload
      stages: {configure: {wait-for: [{node: hostN, stage: create-links}]}}
";

/// Parameters of labs with this topology. `N` stands for the number of the host.
pub(crate) struct TwoHosts<'a> {
    pub(crate) name: &'a str,
    /// File that is imported into the store.
    pub(crate) store: &'a str,
    /// Lines of the router's node.
    pub(crate) tor: String,
    /// Stage of the router for which hosts wait.
    pub(crate) stage: &'a str,
    /// Command in each host before its agent starts.
    pub(crate) exec: &'a str,
    /// Addresses of the link between host and router in the `ipv4` field; empty for none.
    pub(crate) link: &'a str,
}

impl TwoHosts<'_> {
    pub(crate) fn text(&self) -> String {
        let (mut hosts, mut links) = (String::new(), String::new());
        for n in ["1", "2"] {
            let with = |text: &str| text.replace('N', n);
            hosts += &with(HOST).replace("EXEC", &with(self.exec));
            links += &format!("    - endpoints: [\"host{n}:eth1\", \"tor:eth{n}\"]\n");
            if !self.link.is_empty() {
                links += &format!("      ipv4: {}\n", with(self.link));
            }
            links += &format!("    - endpoints: [\"host{n}:cali1\", \"web{n}:eth1\"]\n");
            links += &format!("      ipv4: [\"\", 10.244.{n}.1/32]\n");
        }
        LAB.replace("NAME", self.name)
            .replace("STORE", self.store)
            .replace("STAGE", self.stage)
            .replace("TORHOSTS", &(self.tor.clone() + &hosts))
            .replace("LINKS", &links)
    }
}

/// Returns the keys and values of an empty block of a host: affinity and block.
pub(crate) fn block(host: &str, cidr: &str) -> [(String, String); 2] {
    let family = if cidr.contains(':') { "ipv6" } else { "ipv4" };
    let dashed = cidr.replace('/', "-");
    let free: Vec<u32> = (0..64).collect();
    let value = serde_json::json!({
        "cidr": cidr, "affinity": format!("host:{host}"), "strictAffinity": false,
        "allocations": vec![(); 64], "unallocated": free, "attributes": [],
    });
    [
        (format!("/calico/ipam/v2/host/{host}/{family}/block/{dashed}"), String::new()),
        (format!("/calico/ipam/v2/assignment/{family}/block/{dashed}"), value.to_string()),
    ]
}

/// Returns the keys of both workloads, and of a profile that allows all traffic between them.
pub(crate) fn workloads() -> Vec<(String, String)> {
    let key = |text: &str| format!("/calico/v1/{text}");
    let open = serde_json::json!([{ "action": "allow" }]);
    let rules = serde_json::json!({ "inbound_rules": open, "outbound_rules": open });
    let mut keys = vec![(key("policy/profile/lab/rules"), rules.to_string())];
    for n in [1, 2] {
        let endpoint = serde_json::json!({
            "state": "active", "name": "cali1", "profile_ids": ["lab"], "ipv4_nets": [format!("10.244.{n}.1/32")],
        });
        keys.push((key(&format!("host/host{n}/workload/lab/web{n}/endpoint/eth1")), endpoint.to_string()));
    }
    keys
}

/// Returns the operations that write a block.
pub(crate) fn puts(block: &[(String, String); 2]) -> Vec<Op> {
    block.iter().rev().map(|(key, value)| put(key, value)).collect()
}
