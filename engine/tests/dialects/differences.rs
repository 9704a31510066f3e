//! Differences by design between a v1 network and its converted form, in one table. Everything else is equal.
//!
//! Sections are those of Calico 3's documentation and sources as this project describes them: `upgrade` is what
//! Calico's own upgrade does with a v1 store, `peers`, `export`, `import` and `tiers` what Calico 3 does.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tortie_config::resource::{Setting, Settings};
use tortie_engine::routing::{NextHopMode, PeerKind};
use tortie_net::Cidr;

use crate::decisions::{Decisions, Export, Import};
use crate::equalize::{
    Fits, edit_keys, fits, forwarded, is_peer, keep, object, orders, tags_as_labels, withhold,
};
use crate::network::{HOST, HOSTS, Store, full};
use crate::pair::Names;

/// A difference, with the reason for it.
pub(crate) struct Difference {
    /// What differs.
    pub(crate) what: &'static str,
    /// Where Calico says so, and why.
    pub(crate) why: &'static str,
    /// Makes both equal.
    pub(crate) equalize: Equalize,
    /// Keys below `/calico/` of a network that shows it.
    pub(crate) example: &'static [(&'static str, &'static str)],
}

/// How a difference is made equal.
#[derive(Clone, Copy)]
pub(crate) enum Equalize {
    /// Writes into the v1 store what the converted one means.
    Store(fn(&mut Store, &Names)),
    /// Changes the decisions of the v1 model (first) or of the other.
    Decisions(fn(&mut Decisions, &mut Decisions)),
}

use Equalize::{Decisions as InDecisions, Store as InStore};

const V6: &[(&str, &str)] =
    &[("bgp/v1/host/h1/ip_addr_v6", "2001:db8::1"), ("bgp/v1/host/h2/ip_addr_v6", "2001:db8::2")];
const WORKLOAD: (&str, &str) = (
    "v1/host/h1/workload/cni/0a/endpoint/eth0",
    r#"{"state":"active","name":"cali1","profile_ids":["web","open"],"ipv4_nets":["10.1.1.1/32"],"labels":{"role":"front","t":"own"}}"#,
);
const OPEN: (&str, &str) =
    ("v1/policy/profile/open/rules", r#"{"inbound_rules":[{}],"outbound_rules":[{}]}"#);
const HOST_ENDPOINT: (&str, &str) =
    ("v1/host/h1/endpoint/e0", r#"{"name":"eth0","profile_ids":[],"labels":{"host":"yes"}}"#);
const RACK: (&str, &str) = ("bgp/v1/host/Rack_4/ip_addr_v4", "198.51.100.4");
const POOL: (&str, &str) = ("v1/ipam/v4/pool/10.1.0.0-16", r#"{"cidr":"10.1.0.0/16","ipip":"tunl0"}"#);
const ROUTER: (&str, &str) =
    ("bgp/v1/global/peer_v4/192.0.2.254", r#"{"ip":"192.0.2.254","as_num":"65001"}"#);

/// All differences.
pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        what: "members of v1 peers and of the mesh that Calico 3 does not have",
        why: "upgrade: a peer has address, AS and password, the mesh is on or off; the conversion reports the others",
        equalize: InStore(|store, _| {
            keep(store, is_peer, &["ip", "as_num", "port", "password", "password_file"]);
            keep(store, |key| key.ends_with("/node_mesh"), &["enabled", "password", "password_file"]);
        }),
        example: &[(
            "bgp/v1/global/peer_v4/192.0.2.254",
            r#"{"ip":"192.0.2.254","as_num":"65001","own_only":true,"restart_time":"60s"}"#,
        )],
    },
    Difference {
        what: "two hosts with addresses of both families have two sessions",
        why: "mesh, peers: Calico 3 runs one daemon per family, and each peer is one of a family",
        equalize: InStore(|store, _| {
            let mesh = store.entry(full("bgp/v1/global/node_mesh")).or_insert_with(|| "{}".to_owned());
            let mut members = object(mesh);
            members.insert("per_family".to_owned(), true.into());
            *mesh = Value::Object(members).to_string();
        }),
        example: V6,
    },
    Difference {
        what: "a host listens on all addresses",
        why: "node-wide values: bindMode is None unless the BGPConfiguration says NodeIP",
        equalize: InDecisions(|v1, _| {
            for addr in &mut v1.listen {
                let any = if addr.is_ipv4() { "0.0.0.0" } else { "::" };
                addr.set_ip(any.parse().unwrap());
            }
        }),
        example: &[],
    },
    Difference {
        what: "iBGP peers receive learned routes with the next hop that they have",
        why: "session attributes: BIRD's `next hop self` is set towards eBGP peers and where nextHopMode says so",
        equalize: InDecisions(|v1, _| {
            let external: BTreeSet<SocketAddr> =
                v1.exports.iter().filter(|(_, export)| export.ebgp).map(|((addr, _), _)| *addr).collect();
            let internal = v1.sessions.iter_mut().filter(|(addr, _)| !external.contains(addr));
            for (_, session) in internal.filter(|(_, session)| session.next_hop == NextHopMode::Auto) {
                session.next_hop = NextHopMode::Keep;
            }
        }),
        example: &[],
    },
    Difference {
        what: "the IPIP device has the whole MTU of its link",
        why: "VXLAN and IPIP, MTU: the host's MTU less 20; in the v1 model 1440 at most",
        equalize: InDecisions(|v1, _| {
            if let Some(tunnel) = v1.texts.get_mut("tunnel") {
                *tunnel = tunnel.replace("max_mtu: Some(1440)", "max_mtu: None");
            }
        }),
        example: &[POOL],
    },
    Difference {
        what: "prefix advertisements of a host replace the global ones of both families",
        why: "node-wide values: the BGPConfiguration of a node has one list for both families",
        equalize: InStore(|store, _| {
            let lists = |host: &str| {
                ["ip_v4", "ip_v6"]
                    .map(|name| full(&format!("bgp/v1/host/{host}/prefix_advertisements/{name}")))
            };
            for lists in HOSTS.map(|(host, _)| lists(host)) {
                if lists.iter().any(|list| store.contains_key(list)) {
                    for list in lists {
                        store.entry(list).or_insert_with(|| "[]".to_owned());
                    }
                }
            }
        }),
        example: &[
            (
                "bgp/v1/global/prefix_advertisements/ip_v6",
                r#"[{"cidr":"fd00::/64","communities":["65000:6"]}]"#,
            ),
            (
                "bgp/v1/host/h1/prefix_advertisements/ip_v4",
                r#"[{"cidr":"10.2.0.0/16","communities":["65000:9"]}]"#,
            ),
            ("v1/ipam/v6/pool/fd00::-64", r#"{"cidr":"fd00::/64"}"#),
        ],
    },
    Difference {
        what: "both ends of a peering of one host dial at once",
        why: "mesh: only global peers that are nodes, and the mesh, are passive at one end",
        equalize: InDecisions(|v1, _| {
            for session in v1.sessions.values_mut().filter(|session| session.kind == PeerKind::Node) {
                session.dial_after = Some(Duration::ZERO);
            }
        }),
        example: &[("bgp/v1/host/h1/peer_v4/192.0.2.2", r#"{"ip":"192.0.2.2","as_num":"64512"}"#)],
    },
    Difference {
        what: "an explicit peer by address has no cluster id",
        why: "peers: rr_cluster_id is that of the node only if the peer comes from a selector or a reverse peering",
        equalize: InStore(|store, _| {
            edit_keys(store, is_peer, |_, peer| {
                peer.insert("rr_cluster_id".to_owned(), "0.0.0.1".into());
            });
        }),
        example: &[
            ("bgp/v1/host/h1/rr_cluster_id", "244.0.0.1"),
            ("bgp/v1/host/h2/rr_cluster_id", "244.0.0.1"),
            ("bgp/v1/host/h1/peer_v4/192.0.2.2", r#"{"ip":"192.0.2.2","as_num":"64512"}"#),
        ],
    },
    Difference {
        what: "an explicit peer has the port of a host only if its AS is that of the host",
        why: "peers: the listen port counts when address and AS fit a node; otherwise the port is 179",
        equalize: InStore(|store, _| {
            let known = store.clone();
            edit_keys(store, is_peer, |_, peer| {
                let is_other = |fits: &Fits| !fits.asn && peer.get("port").is_none();
                if fits(&known, peer).as_ref().is_some_and(is_other) {
                    peer.insert("port".to_owned(), 179.into());
                }
            });
        }),
        example: &[
            ("bgp/v1/host/h2/listen_port", "1790"),
            ("bgp/v1/host/h1/peer_v4/192.0.2.2", r#"{"ip":"192.0.2.2","as_num":"65001"}"#),
        ],
    },
    Difference {
        what: "a host that has this one as its peer is no peer in return unless AS and port fit",
        why: "peers, reverse pass: nodes whose address, AS and port equal those of the BGPPeer",
        equalize: InStore(|store, _| {
            let known = store.clone();
            store.retain(|key, value| {
                let key = key.trim_start_matches("/calico/");
                let at_us = || fits(&known, &object(value)).filter(|fits| fits.host == HOST);
                !is_peer(key) || at_us().is_none_or(|fits| fits.asn && fits.port)
            });
        }),
        example: &[("bgp/v1/host/h2/peer_v4/192.0.2.1", r#"{"ip":"192.0.2.1","as_num":"65001"}"#)],
    },
    Difference {
        what: "a peering in return at another port is a session of its own",
        why: "peers, reverse pass: an explicit peering with the same address and port is never replaced, others stay",
        equalize: InDecisions(|v1, v3| {
            let is_known = |at: &std::net::SocketAddr| {
                v1.sessions.contains_key(at) || v1.sessions.keys().all(|other| other.ip() != at.ip())
            };
            v3.sessions.retain(|at, session| is_known(at) || session.kind != PeerKind::Node);
            v3.exports.retain(|(at, _), _| is_known(at));
            v3.imports.retain(|(at, _), _| is_known(at));
        }),
        example: &[
            ("bgp/v1/global/peer_v4/192.0.2.2-1790", r#"{"ip":"192.0.2.2","as_num":"64512","port":1790}"#),
            ("bgp/v1/host/h2/peer_v4/192.0.2.1", r#"{"ip":"192.0.2.1","as_num":"64512"}"#),
        ],
    },
    Difference {
        what: "a password in a value is one in a file of the host",
        why: "passwords: objects refer to a secret by its name, and without Kubernetes the host reads it from a file",
        equalize: InStore(|store, names| {
            edit_keys(
                store,
                |key| is_peer(key) || key.ends_with("/node_mesh"),
                |key, peer| {
                    if peer.remove("password").is_none() {
                        return;
                    }
                    let name = match names.peer(&full(key)).filter(|_| is_peer(key)) {
                        Some(name) => format!("bgp-{name}"),
                        None => "node-mesh".to_owned(),
                    };
                    let path = format!("/etc/tortie/secrets/{name}/password");
                    peer.insert("password_file".to_owned(), path.into());
                },
            );
        }),
        example: &[("bgp/v1/global/node_mesh", r#"{"enabled":true,"password":"mesh"}"#)],
    },
    Difference {
        what: "the address for tunnels and that for BGP are one, of the Node",
        why: "Node: there is no bird_ip; without an address for BGP the upgrade takes that of Felix",
        equalize: InStore(|store, _| {
            for (host, _) in HOSTS {
                let addr = store.remove(&full(&format!("v1/host/{host}/bird_ip")));
                let of_bgp = store.entry(full(&format!("bgp/v1/host/{host}/ip_addr_v4"))).or_default();
                if let Some(addr) = addr.filter(|_| of_bgp.is_empty()) {
                    *of_bgp = addr;
                }
            }
        }),
        example: &[("v1/host/h2/bird_ip", "203.0.113.2"), ("v1/config/IpInIpEnabled", "true")],
    },
    Difference {
        what: "a host without any value of BGP has no IPIP tunnel address",
        why: "upgrade: the address is a member of the BGP values of a Node; the conversion reports it",
        equalize: InStore(|store, _| {
            for (host, _) in HOSTS {
                let of_bgp = |item: &str| store.get(&full(&format!("bgp/v1/host/{host}/{item}")));
                let items = ["ip_addr_v4", "ip_addr_v6", "as_num", "rr_cluster_id"];
                if items.into_iter().filter_map(of_bgp).all(String::is_empty) {
                    store.remove(&full(&format!("v1/host/{host}/config/IpInIpTunnelAddr")));
                }
            }
        }),
        example: &[("bgp/v1/host/h1/ip_addr_v4", ""), ("v1/host/h1/config/IpInIpTunnelAddr", "10.1.9.1")],
    },
    Difference {
        what: "the network of a host is a part of its address: the address alone without it, none without address",
        why: "upgrade: the address of a Node has a length, /32 or /128 without a network",
        equalize: InStore(|store, _| {
            for (host, _) in HOSTS {
                for (family, full_len) in [("v4", 32), ("v6", 128)] {
                    let key = |item: &str| full(&format!("bgp/v1/host/{host}/{item}_{family}"));
                    let addr = store.get(&key("ip_addr")).filter(|addr| !addr.is_empty()).cloned();
                    let Some(addr) = addr else {
                        store.remove(&key("network"));
                        continue;
                    };
                    let known = store.entry(key("network")).or_default();
                    let network = known.parse::<Cidr>().ok();
                    if !network.is_some_and(|network| network.contains(addr.parse().unwrap())) {
                        *known = format!("{addr}/{full_len}");
                    }
                }
            }
        }),
        example: &[RACK, ("bgp/v1/host/h1/ip_addr_v6", "2001:db8::1"), ("bgp/v1/host/h1/network_v4", "")],
    },
    Difference {
        what: "names of hosts are DNS names",
        why: "upgrade: lower case, other characters become dashes",
        equalize: InStore(|store, names| {
            for (old, new) in names.renamed_hosts() {
                let owner = (format!("\"host:{old}\""), format!("\"host:{new}\""));
                *store = std::mem::take(store)
                    .into_iter()
                    .map(|(key, value)| (names.with_new_hosts(&key), value.replace(&owner.0, &owner.1)))
                    .collect();
            }
        }),
        example: &[RACK],
    },
    Difference {
        what: "a pool that IPAM does not use is disabled",
        why: "upgrade: an IPPool has no other member that keeps IPAM from using it",
        equalize: InStore(|store, _| {
            edit_keys(
                store,
                |key| key.contains("/pool/"),
                |_, pool| {
                    if pool.get("ipam") == Some(&false.into()) {
                        pool.insert("disabled".to_owned(), true.into());
                    }
                },
            );
        }),
        example: &[("v1/ipam/v4/pool/10.1.0.0-16", r#"{"cidr":"10.1.0.0/16","ipam":false}"#)],
    },
    Difference {
        what: "other ports of the host are always reachable",
        why: "FelixConfiguration: 5473, 6443 and etcd's later ports are failsafe, 4001 and 7001 are not",
        equalize: InStore(|store, _| {
            for setting in Settings::calico3().all() {
                if matches!(
                    setting,
                    Setting::FailsafeInboundHostPorts(_) | Setting::FailsafeOutboundHostPorts(_)
                ) {
                    let key = full(&format!("v1/config/{}", setting.name()));
                    store.entry(key).or_insert_with(|| setting.to_text());
                }
            }
        }),
        example: &[],
    },
    Difference {
        what: "a pool with IPIP turns the filter of IPIP on",
        why: "FelixConfiguration: ipipEnabled is unset, and the pools decide",
        equalize: InStore(|store, _| {
            store.entry(full("v1/config/IpInIpEnabled")).or_insert_with(|| "none".to_owned());
        }),
        example: &[],
    },
    Difference {
        what: "what controllers write again is left out",
        why: "upgrade: policies knp.default.*, profiles k8s_ns.* and openstack-sg-*, endpoints of openstack",
        equalize: InStore(|store, _| {
            let of_controllers = [
                "/policy/knp.default.",
                "/profile/k8s_ns.",
                "/profile/openstack-sg-",
                "/workload/openstack/",
            ];
            store.retain(|key, _| !of_controllers.iter().any(|part| key.contains(part)));
        }),
        example: &[(
            "v1/host/h1/workload/openstack/vm/endpoint/eth0",
            r#"{"state":"active","name":"cali6","profile_ids":["open"],"ipv4_nets":["10.1.1.1/32"]}"#,
        )],
    },
    Difference {
        what: "an endpoint that is not active does not exist",
        why: "upgrade, WorkloadEndpoint: the state is always active",
        equalize: InStore(|store, _| {
            store.retain(|key, value| {
                !key.contains("/workload/")
                    || object(value).get("state").is_none_or(|state| state == "active")
            });
        }),
        example: &[(
            "v1/host/h1/workload/cni/0a/endpoint/eth0",
            r#"{"state":"inactive","name":"cali1","profile_ids":["open"],"ipv4_nets":["10.1.1.1/32"]}"#,
        )],
    },
    Difference {
        what: "endpoints have labels of their namespace and orchestrator",
        why: "names: clients set projectcalico.org/namespace and /orchestrator, and calico/k8s_ns is renamed",
        equalize: InStore(|store, names| {
            for value in store.values_mut() {
                *value = value.replace("calico/k8s_ns", "projectcalico.org/namespace");
            }
            for object in names.converted.objects.values() {
                let Some(value) = object.from.first().filter(|key| key.contains("/workload/")) else {
                    continue;
                };
                let Some(value) = store.get_mut(&names.with_new_hosts(value)) else { continue };
                let mut endpoint = crate::equalize::object(value);
                endpoint.insert("labels".to_owned(), json!(object.labels));
                *value = Value::Object(endpoint).to_string();
            }
        }),
        example: &[
            WORKLOAD,
            OPEN,
            (
                "v1/policy/tier/default/policy/p",
                r#"{"selector":"has(projectcalico.org/namespace)","inbound_rules":[],"outbound_rules":[]}"#,
            ),
        ],
    },
    Difference {
        what: "a profile with tags or labels only has rules, which are none",
        why: "upgrade: a Profile is one object; without rules the next profile of the endpoint decides",
        equalize: InStore(|store, _| {
            let of_parts: Vec<String> = store
                .keys()
                .filter(|key| key.contains("/policy/profile/"))
                .filter_map(|key| Some(format!("{}/rules", key.rsplit_once('/')?.0)))
                .collect();
            for key in of_parts {
                store.entry(key).or_insert_with(|| "{}".to_owned());
            }
        }),
        example: &[WORKLOAD, OPEN, ("v1/policy/profile/web/tags", r#"["t"]"#)],
    },
    Difference {
        what: "a tag is a label with an empty value, which an own label of that name hides",
        why: "upgrade: tag t of a rule becomes the selector t == ''",
        equalize: InStore(|store, _| {
            edit_keys(
                store,
                |key| key.contains("v1/policy/"),
                |_, policy| {
                    for rules in ["inbound_rules", "outbound_rules"] {
                        for rule in policy.get_mut(rules).and_then(Value::as_array_mut).into_iter().flatten()
                        {
                            rule.as_object_mut().into_iter().for_each(tags_as_labels);
                        }
                    }
                },
            );
        }),
        example: &[
            WORKLOAD,
            ("v1/policy/profile/open/tags", r#"["t"]"#),
            ("v1/policy/profile/web/rules", r#"{"inbound_rules":[],"outbound_rules":[{"src_tag":"t"}]}"#),
            ("v1/policy/profile/open/rules", r#"{"inbound_rules":[],"outbound_rules":[]}"#),
        ],
    },
    Difference {
        what: "rules have no log_prefix",
        why: "upgrade, rules: Calico 3 has the action Log only, with the prefix of the settings",
        equalize: InStore(|store, _| {
            edit_keys(
                store,
                |key| key.contains("v1/policy/"),
                |_, policy| {
                    for rules in ["inbound_rules", "outbound_rules"] {
                        for rule in policy.get_mut(rules).and_then(Value::as_array_mut).into_iter().flatten()
                        {
                            rule.as_object_mut().map(|rule| rule.remove("log_prefix"));
                        }
                    }
                },
            );
        }),
        example: &[
            WORKLOAD,
            (
                "v1/policy/profile/web/rules",
                r#"{"inbound_rules":[],"outbound_rules":[{"log_prefix":"seen"}]}"#,
            ),
        ],
    },
    Difference {
        what: "policies of equal order act in the order of other names",
        why: "upgrade, tiers: names change, and equal orders are sorted by name",
        equalize: InStore(orders),
        example: &[
            WORKLOAD,
            OPEN,
            (
                "v1/policy/tier/default/policy/a-a",
                r#"{"selector":"all()","inbound_rules":[{}],"outbound_rules":[{}]}"#,
            ),
            (
                "v1/policy/tier/default/policy/Zoo",
                r#"{"selector":"all()","inbound_rules":[{}],"outbound_rules":[{}]}"#,
            ),
        ],
    },
    Difference {
        what: "policies of a host endpoint apply to forwarded packets only if they say so",
        why: "policies: applyOnForward, which the upgrade sets for untracked and pre-DNAT policies only",
        equalize: InDecisions(|v1, v3| {
            for (v1, v3) in v1.paths.iter_mut().zip(&mut v3.paths).filter(|(v1, _)| v1.is_forwarded) {
                forwarded(v1, v3);
            }
        }),
        example: &[HOST_ENDPOINT, WORKLOAD, OPEN],
    },
    Difference {
        what: "addresses outside of pools and advertisements are originated",
        why: "export: a filter of a peer comes first and may accept any route; without one none is announced",
        equalize: InDecisions(|v1, v3| {
            let of_v1 = |prefix: &Cidr| v1.originated.contains_key(prefix);
            v3.originated.retain(|prefix, _| of_v1(prefix));
        }),
        example: &[WORKLOAD],
    },
    Difference {
        what: "a prefix advertisement adds communities, and announces nothing by itself",
        why: "export: prefixAdvertisements are no gate; own blocks, pools and service ranges are announced",
        equalize: InDecisions(|v1, _| {
            for export in
                v1.exports.values_mut().filter(|export| export.gate == "advertised" && !export.is_in_pool)
            {
                withhold(export);
            }
        }),
        example: &[
            ROUTER,
            (
                "bgp/v1/global/prefix_advertisements/ip_v4",
                r#"[{"cidr":"203.0.113.0/24","communities":["65000:1"]}]"#,
            ),
        ],
    },
    Difference {
        what: "a route on a tunnel device is not passed on to iBGP peers",
        why: "export: iBGP peers have their own routes instead of those on tunl0 and the VXLAN devices",
        equalize: InDecisions(|v1, _| {
            let on_tunnel = |export: &&mut Export| export.is_on_tunnel && !export.ebgp;
            v1.exports.values_mut().filter(on_tunnel).for_each(withhold);
        }),
        example: &[POOL],
    },
    Difference {
        what: "an address of an own block is announced while its workload moves",
        why: "export, import: a route better than normal is that of a workload that moves",
        equalize: InDecisions(|v1, v3| {
            for (at, export) in v1.exports.iter_mut() {
                if export.is_better && export.gate == "inside-own-block" {
                    export.accept = true;
                    export.communities.clone_from(&v3.exports[at].communities);
                }
            }
            let of_endpoint = |import: &&mut Import| import.refused == Some("own-endpoint");
            v1.imports.values_mut().filter(of_endpoint).for_each(|import| {
                import.refused = import.refused.filter(|_| !import.is_better);
            });
        }),
        example: &[
            POOL,
            ("ipam/v2/host/h1/ipv4/block/10.1.1.0-30", r#"{"state":"confirmed"}"#),
            (
                "ipam/v2/assignment/ipv4/block/10.1.1.0-30",
                r#"{"cidr":"10.1.1.0/30","affinity":"host:h1","allocations":[null,null,null,null],"unallocated":[0,1,2,3],"attributes":[]}"#,
            ),
        ],
    },
    Difference {
        what: "own routes have the LOCAL_PREF of their priority",
        why: "session attributes: LOCAL_PREF is 2147483647 less the metric",
        equalize: InDecisions(|_, v3| v3.exports.values_mut().for_each(|export| export.local_pref = None)),
        example: &[POOL],
    },
];
