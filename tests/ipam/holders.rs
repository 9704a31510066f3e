//! Addresses of others: those of hosts and their networks are never allocated, whatever the pools are.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tortie_config::key::IpFamily;
use tortie_engine::ipam::{
    AddressRange, AddressRequest, ExcludedPrefix, Exclusions, HostNetwork, Ipam, IpamError,
};
use tortie_engine::model::{Model, WatchPart};
use tortie_net::Cidr;

use crate::rig::*;

/// Hosts, some in networks that overlap a pool, some with a single address inside a pool; tunnels; and pools,
/// all within one /22, so that they overlap in many ways.
struct Scene {
    rig: Rig,
    pools: Vec<Cidr>,
    taken: Vec<Cidr>,
}

impl Scene {
    async fn new(rng: &mut StdRng, base: &str) -> Self {
        let base = cidr(base);
        let rig = Rig::new(&[]).await;
        let part = |rng: &mut StdRng, len: u8| {
            let ordinal = rng.random_range(0..1024u128);
            Cidr::new(base.nth(ordinal).unwrap(), len).unwrap()
        };
        let host_len = base.max_len();
        let mut pools: Vec<Cidr> = Vec::new();
        for _ in 0..rng.random_range(1..4) {
            let len = host_len - rng.random_range(6..9);
            let pool = part(rng, len);
            if pools.iter().all(|other| !other.overlaps(&pool)) {
                rig.pool(&pool.to_string(), "{}").await;
                pools.push(pool);
            }
        }
        let family = if base.is_v4() { "v4" } else { "v6" };
        let mut taken = Vec::new();
        for host in 0..rng.random_range(1..5) {
            let addr = part(rng, host_len).addr();
            rig.put(&format!("/calico/bgp/v1/host/h{host}/ip_addr_{family}"), &addr.to_string()).await;
            taken.push(Cidr::host(addr));
            if rng.random_bool(0.5) {
                let network = Cidr::new(addr, host_len - rng.random_range(0..7)).unwrap();
                rig.put(&format!("/calico/bgp/v1/host/h{host}/network_{family}"), &network.to_string()).await;
                taken.push(network);
            }
        }
        if base.is_v4() {
            let tunnel = part(rng, host_len).addr();
            rig.put("/calico/v1/host/h0/config/IpInIpTunnelAddr", &tunnel.to_string()).await;
            taken.push(Cidr::host(tunnel));
        }
        Self { rig, pools, taken }
    }

    /// Returns IPAM as the host's plugins use it: without an agent, with one that has read all hosts, or with
    /// one that has read none but knows the networks of its kernel.
    async fn ipam(&mut self, rng: &mut StdRng, base: &str) -> Ipam {
        let ipam = self.rig.ipam.clone();
        let known = match rng.random_range(0..3) {
            0 => return ipam,
            1 => {
                let mut model = Model::new("h0");
                model.replace(WatchPart::All, &self.rig.store.list(&["/calico/".to_owned()]).await.unwrap());
                let hosts = HostNetwork::within(&model, &self.pools);
                Exclusions { prefixes: hosts.into_iter().map(ExcludedPrefix::from).collect(), complete: true }
            }
            _ => Exclusions::default(),
        };
        let base = cidr(base);
        let addr = base.nth(rng.random_range(0..1024u128)).unwrap();
        let own = Cidr::new(addr, base.max_len() - rng.random_range(0..7)).unwrap();
        self.taken.push(own);
        let own = ExcludedPrefix { cidr: own, holder: "a network of docker0".to_owned() };
        let prefixes = known.prefixes.into_iter().chain([own]).collect();
        ipam.excluding(Exclusions { prefixes, ..known })
    }

    fn is_taken(&self, addr: IpAddr) -> bool {
        self.taken.iter().any(|network| network.contains(addr))
    }

    fn free(&self) -> BTreeSet<IpAddr> {
        let all = self.pools.iter().flat_map(|pool| (0..1024).map_while(|n| pool.nth(n)));
        all.filter(|addr| !self.is_taken(*addr)).collect()
    }
}

/// All permitted addresses are allocated and no others: by number, by address and from ranges, with and
/// without an agent's answer.
#[tokio::test]
async fn no_address_of_a_host_a_tunnel_or_a_host_s_network_is_given_and_no_other_is_lost() {
    let (mut given, mut refused) = (0, 0);
    for seed in 0..40 {
        let rng = &mut StdRng::seed_from_u64(seed);
        let base = if seed % 4 == 3 { "fd00::/118" } else { "10.0.0.0/22" };
        let mut scene = Scene::new(rng, base).await;
        let ipam = scene.ipam(rng, base).await;
        let family = IpFamily::of_cidr(&cidr(base));
        let mut free = scene.free();
        // Addresses of others are rejected by explicit request, with their owner.
        let in_pools = scene.pools.iter().flat_map(|pool| (0..1024).map_while(|n| pool.nth(n)));
        for addr in in_pools.filter(|addr| scene.is_taken(*addr)).step_by(3) {
            let error = ipam.assign(&exact("h0", &addr.to_string())).await.unwrap_err();
            assert!(matches!(&error, IpamError::Excluded { addr: a, .. } if *a == addr), "{seed}: {error}");
            refused += 1;
        }
        // All other addresses, until none is left.
        loop {
            let wanted = match rng.random_range(0..3) {
                0 => AddressRequest::Any { family, count: rng.random_range(1..5), pools: vec![] },
                1 => AddressRequest::OneOf(scene.pools.iter().map(|pool| AddressRange::of(*pool)).collect()),
                _ => match free.iter().nth(rng.random_range(0..free.len().max(1))) {
                    Some(addr) => AddressRequest::Exact(*addr),
                    None => AddressRequest::Any { family, count: 1, pools: vec![] },
                },
            };
            let mut request = request("h0", wanted);
            request.partial = true;
            match ipam.assign(&request).await {
                Ok(answer) => {
                    for allocation in &answer {
                        assert!(!scene.is_taken(allocation.addr), "{seed}: {}", allocation.addr);
                        assert!(free.remove(&allocation.addr), "{seed}: {} twice", allocation.addr);
                    }
                    given += answer.len();
                    if answer.is_empty() {
                        break;
                    }
                }
                Err(IpamError::Full { .. }) => break,
                Err(error) => panic!("{seed}: {error}"),
            }
        }
        assert_eq!(free, BTreeSet::new(), "{seed}: these were never given");
    }
    println!("{given} addresses given, none of them a host's; {refused} refused by address");
    assert!(given > 3_000 && refused > 50);
}

#[tokio::test]
async fn a_pool_inside_of_a_host_s_network_gives_nothing_and_says_why() {
    let rig = Rig::new(&["192.0.2.0/24"]).await;
    rig.put("/calico/bgp/v1/host/h2/network_v4", "192.0.2.0/24").await;
    let error = rig.ipam.assign(&any("h1", 1)).await.unwrap_err().to_string();
    assert!(error.contains("192.0.2.0/24, the network of host h2"), "{error}");
    // A block without any usable address is not claimed either.
    assert!(rig.ipam.blocks_of("h1").await.unwrap().is_empty());
}
