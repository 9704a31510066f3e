//! Builds the demo's network: hosts on one link with a router, and on each host a workload in its own
//! namespace.
//!
//! It generates a containerlab file, the router's configuration and the store's content for the topology
//! crate. The lab itself configures workloads like a CNI plugin (veth pair, routes, proxy ARP).

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::runtime::Runtime;
use tortie_config::key::Key;
use tortie_config::resource::{Affinity, AffinityState, Attribute, Block, BlockAffinity, Pool};
use tortie_net::Cidr;
use tortie_topology::{Lab, Options, Running};

use super::router::{LEARNED_V4, LEARNED_V6, Router};
use crate::cli::failure::{Exit, Failure};
use crate::cli::{Client, lab};
use tortie_store::{Op, Outcome, Store, StoreOptions, Txn};

/// AS number of the hosts.
pub const HOST_AS: u32 = 64_512;
/// AS number of the router.
pub const ROUTER_AS: u32 = 64_513;
/// Node name of the router.
pub const ROUTER: &str = "tor";
/// IPv4 address of the router.
pub const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 254);
/// IPv6 address of the router.
pub const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, 0xfe);
/// Interface of the hosts on the shared link.
pub const UPLINK: &str = "eth1";
/// URL of the store on every host of the demo.
pub(super) const STORE: &str = "sqlite:/store/store.db";
/// Name of the bridge that is the shared link.
pub const WIRE: &str = "lan";
/// Maximum number of hosts: each needs its own third octet, and page and checks should stay readable.
pub const MOST_HOSTS: usize = 20;

/// Specification of the network.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Number of hosts, 2 to [`MOST_HOSTS`].
    pub hosts: usize,
    /// Implementation of the router.
    pub router: Router,
    /// True for IPv6 in addition to IPv4.
    pub v6: bool,
    /// True if the namespaces have only one user.
    pub rootless: bool,
    /// Path of the tortie executable.
    pub binary: PathBuf,
    /// Folder of the lab's state, which is created and removed.
    pub state_dir: PathBuf,
    /// Store of the hosts: a URL that is the same in every node, or `None` for SQLite in the lab's folder.
    pub datastore: Option<String>,
}

/// A host of the demo.
#[derive(Debug, Clone)]
pub struct Host {
    /// Name: `host1` and so on.
    pub name: String,
    /// Number, from 1.
    pub number: u8,
    /// IPv4 address on the shared link.
    pub v4: Ipv4Addr,
    /// IPv6 address on the shared link.
    pub v6: Option<Ipv6Addr>,
    /// Blocks of the host.
    pub blocks: Vec<Cidr>,
    /// Workload of the host.
    pub workload: Workload,
}

/// A workload of the demo.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Name of its node: `web`, `db`, `api`, `w4` and so on.
    pub name: String,
    /// Name of the interface on the host.
    pub interface: String,
    /// Addresses, each from a block of its host.
    pub addresses: Vec<IpAddr>,
}

/// A running network, which is removed on drop.
#[derive(Debug)]
pub struct Network {
    /// Specification from which the network was built.
    pub spec: Spec,
    /// Hosts of the network.
    pub hosts: Vec<Host>,
    /// The running lab.
    pub running: Running,
    /// Time at which building began.
    pub begin: Instant,
    /// Time at which the first agent was started.
    pub started: Instant,
    /// Time that namespaces and links took.
    pub linked: Duration,
    runtime: Runtime,
    store: SharedStore,
}

struct SharedStore(Arc<dyn Store>);

impl std::fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.describe())
    }
}

impl Spec {
    /// Returns the hosts of this specification.
    #[must_use]
    pub fn hosts(&self) -> Vec<Host> {
        let numbers = (1..=u8::MAX).take(self.hosts);
        let host = |n: u8| {
            let hextet = u16::from(n);
            let v4_block = Cidr::v4(Ipv4Addr::new(10, 244, n, 0), 26);
            let v6_block = Cidr::v6(Ipv6Addr::new(0xfd00, 0x10, 0x244, hextet, 0, 0, 0, 0), 122);
            let blocks: Vec<Cidr> =
                [Some(v4_block), self.v6.then_some(v6_block)].into_iter().flatten().collect();
            let name = match n {
                1 => "web".to_owned(),
                2 => "db".to_owned(),
                3 => "api".to_owned(),
                _ => format!("w{n}"),
            };
            Host {
                name: format!("host{n}"),
                number: n,
                v4: Ipv4Addr::new(172, 30, 0, n),
                v6: self.v6.then(|| Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, hextet)),
                workload: Workload {
                    name,
                    interface: format!("cali{n:011x}"),
                    addresses: blocks.iter().filter_map(|b| b.nth(1)).collect(),
                },
                blocks,
            }
        };
        numbers.map(host).collect()
    }

    /// Returns the lab as the text of a containerlab file.
    #[must_use]
    pub fn lab(&self, hosts: &[Host]) -> String {
        let forwarding = match self.v6 {
            true => "{net.ipv4.ip_forward: 1, net.ipv6.conf.all.forwarding: 1}",
            false => "{net.ipv4.ip_forward: 1}",
        };
        let datastore = self.datastore.as_deref().unwrap_or(STORE);
        let mut nodes = format!(
            "    {WIRE}: {{kind: bridge}}\n    {ROUTER}: {{sysctls: {forwarding}, {}}}\n",
            self.router.node(self.v6)
        );
        let mut links = String::new();
        let link = |node: &str, addresses: Vec<String>, out: &mut String| {
            let _ = writeln!(
                out,
                "    - type: veth\n      endpoints: [{{node: {node}, interface: {UPLINK}{}}}, {{node: {WIRE}, interface: {WIRE}-{node}}}]",
                addresses.iter().fold(String::new(), |text, a| text + ", " + a)
            );
        };
        let addresses = |v4: Ipv4Addr, v6: Option<Ipv6Addr>| {
            let mut list = vec![format!("ipv4: {v4}/24")];
            list.extend(v6.map(|a| format!("ipv6: \"{a}/64\"")));
            list
        };
        link(ROUTER, addresses(ROUTER_V4, self.v6.then_some(ROUTER_V6)), &mut links);
        for host in hosts {
            let Host { name, workload, .. } = host;
            let (work, cali) = (&workload.name, &workload.interface);
            // The kernel answers ARP for the workload's gateway only if it has a route to it over another
            // interface.
            let mut exec = vec![
                format!(
                    "sh -c 'cd /proc/sys/net/ipv4; echo 1 > conf/{cali}/proxy_arp; echo 0 > neigh/{cali}/proxy_delay'"
                ),
                format!("ip route add 169.254.1.1 dev {UPLINK} scope link"),
            ];
            let mut inner = vec![
                "ip route add 169.254.1.1 dev eth1 scope link".to_owned(),
                "ip route add default via 169.254.1.1 dev eth1".to_owned(),
            ];
            for address in &workload.addresses {
                // The agent may have created this route already.
                exec.push(format!("ip route replace {address} dev {cali}"));
                inner.insert(
                    0,
                    format!(
                        "ip addr add {} dev eth1{}",
                        Cidr::host(*address),
                        if address.is_ipv6() { " nodad" } else { "" }
                    ),
                );
            }
            if self.v6 {
                exec.push(format!("ip addr add fe80::1/64 dev {cali} nodad"));
                inner.push("ip route add default via fe80::1 dev eth1".to_owned());
            }
            let list = |commands: &[String]| {
                commands.iter().map(|c| format!("\"{c}\"")).collect::<Vec<_>>().join(", ")
            };
            let _ = write!(
                nodes,
                "    {name}: {{image: tortie, sysctls: {forwarding}, binds: [\"__clabDir__/store:/store\", \
                 \"__clabNodeDir__/run:/run/tortie\"], env: {{TORTIE_DATASTORE: \"{datastore}\", TORTIE_NODE: {name}}}, \
                 exec: [{}]}}\n    {work}: {{image: tortie, cmd: sleep infinity, exec: [{}]}}\n",
                list(&exec),
                list(&inner)
            );
            link(name, addresses(host.v4, host.v6), &mut links);
            let _ = writeln!(links, "    - {{endpoints: [\"{name}:{cali}\", \"{work}:eth1\"]}}");
        }
        format!(
            "name: demo\nprefix: \"\"\ntopology:\n  defaults: {{kind: linux, network-mode: none}}\n  nodes:\n{nodes}  links:\n{links}"
        )
    }

    /// Returns the initial content of the hosts' store.
    #[must_use]
    pub fn store(&self, hosts: &[Host]) -> Vec<(String, Vec<u8>)> {
        let text = |value: &str| value.as_bytes().to_vec();
        let peer = |ip: IpAddr, family: &str| {
            let value =
                json!({ "ip": ip, "as_num": ROUTER_AS.to_string(), "own_only": true, "families": [family] });
            value.to_string().into_bytes()
        };
        let mut all = vec![
            ("/calico/v1/Ready".to_owned(), text("true")),
            ("/calico/bgp/v1/global/as_num".to_owned(), text(&HOST_AS.to_string())),
            ("/calico/bgp/v1/global/node_mesh".to_owned(), text("{\"enabled\": true}")),
            (format!("/calico/bgp/v1/global/peer_v4/{ROUTER_V4}"), peer(ROUTER_V4.into(), "ipv4")),
            pool(Cidr::v4(Ipv4Addr::new(10, 244, 0, 0), 16)),
            ("/calico/v1/policy/profile/demo/tags".to_owned(), text("[\"demo\"]")),
            (
                "/calico/v1/policy/profile/demo/rules".to_owned(),
                text(
                    "{\"inbound_rules\": [{\"action\": \"allow\"}], \"outbound_rules\": [{\"action\": \"allow\"}]}",
                ),
            ),
        ];
        if self.v6 {
            all.push((format!("/calico/bgp/v1/global/peer_v6/{ROUTER_V6}"), peer(ROUTER_V6.into(), "ipv6")));
            all.push(pool(Cidr::v6(Ipv6Addr::new(0xfd00, 0x10, 0x244, 0, 0, 0, 0, 0), 48)));
        }
        for host in hosts {
            all.extend(addresses(&host.name, host.v4, host.v6));
            let handle = format!("demo.{}", host.workload.name);
            for block in &host.blocks {
                all.extend(block_of(&host.name, *block, Some(&handle)));
            }
            let counts: serde_json::Map<String, serde_json::Value> =
                host.blocks.iter().map(|b| (b.to_string(), 1.into())).collect();
            let value = json!({ "id": handle, "block": counts });
            all.push((format!("/calico/ipam/v2/handle/{handle}"), value.to_string().into_bytes()));
            let nets = |v4: bool| {
                let of = host.workload.addresses.iter().filter(|a| a.is_ipv4() == v4);
                of.map(|a| Cidr::host(*a).to_string()).collect::<Vec<_>>()
            };
            let value = json!({
                "state": "active", "name": host.workload.interface, "mac": null, "profile_ids": ["demo"],
                "ipv4_nets": nets(true), "ipv6_nets": nets(false), "labels": { "app": host.workload.name },
            });
            all.push((
                format!("/calico/v1/host/{}/workload/cni/{}/endpoint/eth1", host.name, host.workload.name),
                value.to_string().into_bytes(),
            ));
        }
        all
    }

    /// Returns the initial store content of a Tortie router: no mesh, the hosts as peers, blocks to announce.
    #[must_use]
    pub fn router_store(&self, hosts: &[Host]) -> Vec<(String, Vec<u8>)> {
        let text = |value: &str| value.as_bytes().to_vec();
        let mut all = vec![
            ("/calico/v1/Ready".to_owned(), text("true")),
            ("/calico/bgp/v1/global/node_mesh".to_owned(), text("{\"enabled\": false}")),
            (format!("/calico/bgp/v1/host/{ROUTER}/as_num"), text(&ROUTER_AS.to_string())),
        ];
        all.extend(addresses(ROUTER, ROUTER_V4, self.v6.then_some(ROUTER_V6)));
        let blocks = [Some(LEARNED_V4), self.v6.then_some(LEARNED_V6)];
        for block in blocks.into_iter().flatten().filter_map(|b| b.parse::<Cidr>().ok()) {
            all.extend(block_of(ROUTER, block, None));
        }
        for host in hosts {
            for (addr, family) in [(Some(IpAddr::from(host.v4)), "4"), (host.v6.map(IpAddr::from), "6")] {
                let Some(addr) = addr else { continue };
                let value = json!({
                    "ip": addr, "as_num": HOST_AS.to_string(), "own_only": true, "families": [format!("ipv{family}")],
                });
                let key = format!("/calico/bgp/v1/host/{ROUTER}/peer_v{family}/{addr}");
                all.push((key, value.to_string().into_bytes()));
            }
        }
        all
    }
}

fn pool(cidr: Cidr) -> (String, Vec<u8>) {
    (Key::Pool(cidr).to_string(), Pool::new(cidr).to_value())
}

fn addresses(node: &str, v4: Ipv4Addr, v6: Option<Ipv6Addr>) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![
        (format!("/calico/bgp/v1/host/{node}/ip_addr_v4"), v4.to_string()),
        (format!("/calico/bgp/v1/host/{node}/network_v4"), "172.30.0.0/24".to_owned()),
        (format!("/calico/v1/host/{node}/bird_ip"), v4.to_string()),
    ];
    if let Some(v6) = v6 {
        all.push((format!("/calico/bgp/v1/host/{node}/ip_addr_v6"), v6.to_string()));
        all.push((format!("/calico/bgp/v1/host/{node}/network_v6"), "fd00:172:30::/64".to_owned()));
    }
    all.into_iter().map(|(key, value)| (key, value.into_bytes())).collect()
}

/// Returns the keys of a block and its affinity; with `handle`, its second address is allocated.
fn block_of(node: &str, cidr: Cidr, handle: Option<&str>) -> Vec<(String, Vec<u8>)> {
    let Ok(mut block) = Block::new(cidr, BlockAffinity::Host(node.to_owned()), false) else {
        return Vec::new();
    };
    if let Some(handle) = handle {
        block.allocate(1, &Attribute { handle: Some(handle.to_owned()), ..Attribute::default() });
    }
    let affinity = Key::Affinity { host: node.to_owned(), block: cidr };
    vec![
        (Key::Block(cidr).to_string(), block.to_value()),
        (affinity.to_string(), Affinity::new(AffinityState::Confirmed).to_value()),
    ]
}

impl Network {
    /// Builds the network and starts all nodes. `progress` is called for each step of the lab.
    ///
    /// # Errors
    /// If the store or the lab cannot be created.
    pub fn up(spec: Spec, progress: &mut dyn FnMut(&str)) -> Result<Self, Failure> {
        let begin = Instant::now();
        let runtime = crate::cli::context::runtime()?;
        let hosts = spec.hosts();
        let dir = spec.state_dir.join("lab");
        let url = spec
            .datastore
            .clone()
            .unwrap_or_else(|| format!("sqlite:{}", dir.join("store/store.db").display()));
        let store = runtime.block_on(fill(&url, &spec.store(&hosts)))?;
        if let Some((name, text)) = spec.router.config(&hosts) {
            write(&dir.join(ROUTER).join("etc").join(name), &text)?;
        }
        if spec.router == Router::Tortie {
            let url = format!("sqlite:{}", dir.join(ROUTER).join("store/store.db").display());
            runtime.block_on(fill(&url, &spec.router_store(&hosts)))?;
        }
        let text = spec.lab(&hosts);
        let lab = Lab::from_text(&text, &spec.state_dir.join("demo.clab.yml")).map_err(lab::failure)?;
        let options = Options { rootless: spec.rootless, ..Options::tied(&spec.binary, &spec.state_dir) };
        let mut started = None;
        let running = lab
            .up(&options, &mut |step| {
                if step.text.ends_with(": start") && started.is_none() {
                    started = Some(Instant::now());
                }
                progress(step.text);
            })
            .map_err(lab::failure)?;
        let started = started.unwrap_or_else(Instant::now);
        let linked = started.duration_since(begin);
        Ok(Self { spec, hosts, running, begin, started, linked, runtime, store: SharedStore(store) })
    }

    /// Returns the socket of a node's agent, as seen by the process that built the network.
    #[must_use]
    pub fn socket(&self, node: &str) -> PathBuf {
        socket(&self.spec.state_dir, node)
    }

    /// Queries a node's agent.
    ///
    /// # Errors
    /// The error of the agent or of the socket.
    pub fn ask<T: DeserializeOwned>(&self, node: &str, path: &str) -> Result<T, String> {
        let client = Client::new(&self.socket(node));
        self.runtime.block_on(client.get(path)).map_err(|e| format!("{node}: {e}"))
    }

    /// Writes or deletes keys in one transaction; returns the time at which it began.
    ///
    /// # Errors
    /// The error of the store.
    pub fn commit(&self, ops: Vec<Op>) -> Result<Instant, String> {
        let txn = Txn { ops, ..Txn::default() };
        let begin = Instant::now();
        match self.runtime.block_on(self.store.0.commit(txn)) {
            Ok(Outcome::Committed(_)) => Ok(begin),
            Ok(Outcome::Conflict) => Err("another process wrote in the same moment".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Returns the writes that add a block to a host, or remove it.
    #[must_use]
    pub fn block_ops(host: &str, block: Cidr, give: bool) -> Vec<Op> {
        let all = block_of(host, block, None).into_iter();
        if give {
            all.map(|(key, value)| Op::Put { key, value, lease: None }).collect()
        } else {
            all.map(|(key, _)| Op::Delete { key }).collect()
        }
    }
}

/// Returns the path of a node's agent socket below the lab's state folder.
#[must_use]
pub fn socket(state_dir: &Path, node: &str) -> PathBuf {
    state_dir.join("lab").join(node).join("run/tortie.sock")
}

async fn fill(url: &str, content: &[(String, Vec<u8>)]) -> Result<Arc<dyn Store>, Failure> {
    if let Some(path) = url.strip_prefix("sqlite:")
        && let Some(dir) = Path::new(path).parent()
    {
        fs::create_dir_all(dir).map_err(|e| unwritable(dir, &e))?;
    }
    let store =
        tortie_store::open(&StoreOptions { url: url.to_owned(), create: true, ..StoreOptions::default() })
            .await?;
    let put =
        |(key, value): &(String, Vec<u8>)| Op::Put { key: key.clone(), value: value.clone(), lease: None };
    for txn in tortie_store::split(content.iter().map(put))? {
        if store.commit(txn).await? == Outcome::Conflict {
            return Err(Failure::new(Exit::No, "conflict", "another process writes the demo's store"));
        }
    }
    Ok(store)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(|e| unwritable(dir, &e))?;
    }
    fs::write(path, text).map_err(|e| unwritable(path, &e))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Permission, "denied", format!("{} cannot be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(router: Router, v6: bool) -> Spec {
        Spec {
            hosts: 4,
            router,
            v6,
            rootless: false,
            binary: "/bin/true".into(),
            state_dir: "/nowhere".into(),
            datastore: None,
        }
    }

    #[test]
    fn every_key_and_value_is_readable_and_every_lab_valid() {
        for router in [Router::Bird, Router::Frr, Router::Gobgp, Router::Openbgpd, Router::Tortie] {
            for v6 in [false, true] {
                let spec = spec(router, v6);
                let hosts = spec.hosts();
                for (key, value) in spec.store(&hosts).into_iter().chain(spec.router_store(&hosts)) {
                    tortie_config::check(&key, &value).unwrap_or_else(|e| panic!("{key}: {e}"));
                }
                let text = spec.lab(&hosts);
                let lab = Lab::from_text(&text, Path::new("/x/demo.clab.yml"))
                    .unwrap_or_else(|e| panic!("{e}\n{text}"));
                assert_eq!(lab.topology.nodes.len(), 2 + 2 * 4);
                assert_eq!(lab.topology.links.len(), 1 + 2 * 4);
            }
        }
    }

    #[test]
    fn workloads_have_addresses_of_their_own_hosts_blocks() {
        for host in spec(Router::Bird, true).hosts() {
            assert_eq!(host.blocks.len(), 2);
            for address in &host.workload.addresses {
                assert!(host.blocks.iter().any(|b| b.contains(*address)), "{address}");
            }
            assert_eq!(host.workload.interface.len(), 15, "cali and 11 characters");
        }
    }
}
