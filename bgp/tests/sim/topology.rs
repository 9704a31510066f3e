//! Random networks with exactly one stable solution, whatever the order of messages.
//!
//! BGP in general has none, one or several (Griffin, Shepherd, Wilfong: The Stable Paths Problem and
//! Interdomain Routing, 2002). Without a dispute wheel there is exactly one, and every order of messages
//! reaches it. The networks generated here have no dispute wheel:
//!
//! * Without business relations every AS selects the shortest AS_PATH, and later steps only break ties.
//!   Around a dispute wheel, the AS_PATH would have to become shorter from AS to AS.
//! * With business relations each AS is one router. It prefers routes of customers to those of peers, and
//!   these to those of providers. It announces only its own routes and those of customers to peers and
//!   providers. No AS is its own indirect provider. See Gao and Rexford, Stable Internet Routing Without
//!   Global Coordination, 2001.
//! * Inside an AS with a full mesh each router receives all exits and selects by its own distances, so no
//!   selection depends on another that depends on it.
//! * Inside an AS with route reflectors all distances are equal, so after "eBGP over iBGP" the lowest
//!   ORIGINATOR_ID and then the shortest CLUSTER_LIST decide. The first is the same order for all routers,
//!   the second grows with each reflection. (With different distances, reflectors can oscillate: RFC 3345.)
//! * MED is never sent: compared within a neighbouring AS only, it makes route reflection oscillate (RFC
//!   3345).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tortie_bgp::attr::{Attributes, Edit};
use tortie_bgp::{Dial, Export, Family, GlobalConfig, Import, PeerConfig, PeerView, Policy, RouteView};
use tortie_net::Cidr;

use crate::support::{Rng, global, no, peer, yes};

/// Business relation of the peer; [`PeerConfig::policy_class`].
pub(crate) const CUSTOMER: u64 = 1;
pub(crate) const PEER: u64 = 2;
pub(crate) const PROVIDER: u64 = 3;

/// Returns the LOCAL_PREF of routes from a peer of this class.
pub(crate) fn local_pref(class: u64) -> u32 {
    match class {
        CUSTOMER => 300,
        PEER => 200,
        _ => 100,
    }
}

/// Gao-Rexford policy with business relations, else accept all.
pub(crate) struct Policies {
    pub(crate) relations: bool,
}

impl Policy for Policies {
    fn import(&self, from: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        if !self.relations {
            return Import::Accept;
        }
        Import::AcceptWith([Edit::LocalPref(local_pref(from.class))].into_iter().collect())
    }

    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        let uphill = to.class != CUSTOMER && route.from.is_some_and(|f| f.class != CUSTOMER);
        if self.relations && uphill { no("valley") } else { yes("open") }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Router {
    pub(crate) global: GlobalConfig,
    pub(crate) v4: IpAddr,
    pub(crate) v6: IpAddr,
    /// The routers of this AS have different distances.
    pub(crate) distances: bool,
}

/// Relation of two routers, from the point of view of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// eBGP; business relation of the second (`CUSTOMER` and so on).
    External(u64),
    /// iBGP.
    Internal,
    /// iBGP; the second is a reflector client of the first, in this cluster.
    Client(u32),
}

#[derive(Debug, Clone)]
pub(crate) struct Topology {
    pub(crate) routers: Vec<Router>,
    pub(crate) links: Vec<(usize, usize, Kind)>,
    /// Peers of each router, with their links.
    pub(crate) adjacent: Vec<Vec<(usize, usize)>>,
    pub(crate) relations: bool,
    /// Sessions run over IPv6.
    transport_v6: bool,
    hold: Duration,
    seed: u64,
}

impl Topology {
    /// Generates a network of about `size` routers, at least 2.
    pub(crate) fn random(rng: &mut Rng, size: usize) -> Self {
        let relations = rng.below(3) == 0;
        let mut t = Self {
            routers: Vec::new(),
            links: Vec::new(),
            adjacent: Vec::new(),
            relations,
            transport_v6: rng.below(3) == 0,
            hold: Duration::from_secs([9, 30, 90][rng.below(3)]),
            seed: rng.next(),
        };
        let mut systems: Vec<Vec<usize>> = Vec::new();
        while t.routers.len() < size {
            let left = size - t.routers.len();
            let system = if relations { t.single(systems.len()) } else { t.system(rng, systems.len(), left) };
            systems.push(system);
        }
        // A tree connects the ASes; additional links create loops.
        for n in 1..systems.len() {
            let other = rng.below(n);
            t.external(rng, &systems, other, n);
        }
        for _ in 0..rng.below(systems.len() + 2) {
            let (a, b) = (rng.below(systems.len()), rng.below(systems.len()));
            if a < b {
                t.external(rng, &systems, a, b);
            }
        }
        t.adjacent = vec![Vec::new(); t.routers.len()];
        for (n, (a, b, _)) in t.links.iter().enumerate() {
            t.adjacent[*a].push((*b, n));
            t.adjacent[*b].push((*a, n));
        }
        t
    }

    fn router(&mut self, system: usize, distances: bool) -> usize {
        let n = self.routers.len() as u32 + 1;
        let asn = if system.is_multiple_of(3) { 70_000 + system as u32 } else { 64_512 + system as u32 };
        let id = 0x0a00_0000 + (n * 7919) % 65_521;
        self.routers.push(Router {
            global: global(asn, id),
            v4: IpAddr::V4(Ipv4Addr::from(0xc000_0200 + n)),
            v6: IpAddr::V6(Ipv6Addr::from((0x2001_0db8_u128 << 96) + u128::from(n))),
            distances,
        });
        self.routers.len() - 1
    }

    fn single(&mut self, system: usize) -> Vec<usize> {
        vec![self.router(system, false)]
    }

    fn system(&mut self, rng: &mut Rng, system: usize, left: usize) -> Vec<usize> {
        let count = 1 + rng.below(left.min(12));
        match rng.below(4) {
            0 => self.single(system),
            1 | 2 if count < 8 => {
                let distances = rng.below(2) == 0;
                let all: Vec<_> = (0..count).map(|_| self.router(system, distances)).collect();
                self.mesh(&all);
                all
            }
            _ => {
                let all: Vec<_> = (0..count).map(|_| self.router(system, false)).collect();
                let reflectors = 1 + rng.below(count.min(3));
                self.mesh(&all[..reflectors]);
                let shared = rng.below(2) == 0;
                for (n, client) in all.iter().enumerate().skip(reflectors) {
                    // Each client has one or two reflectors.
                    let first = rng.below(reflectors);
                    let mut over = vec![first];
                    if reflectors > 1 && rng.below(2) == 0 {
                        over.push((first + 1 + n % (reflectors - 1)) % reflectors);
                    }
                    over.sort_unstable();
                    over.dedup();
                    for r in over {
                        let reflector = all[r];
                        // Reflectors in the same cluster ignore routes that the others reflected.
                        let cluster = if shared { 77 } else { self.routers[reflector].global.router_id.0 };
                        self.links.push((reflector, *client, Kind::Client(cluster)));
                    }
                }
                all
            }
        }
    }

    fn mesh(&mut self, all: &[usize]) {
        for (n, a) in all.iter().enumerate() {
            for b in &all[n + 1..] {
                self.links.push((*a, *b, Kind::Internal));
            }
        }
    }

    /// Connects two ASes. The older one is a provider or a peer of the newer one.
    fn external(&mut self, rng: &mut Rng, systems: &[Vec<usize>], older: usize, newer: usize) {
        let a = systems[older][rng.below(systems[older].len())];
        let b = systems[newer][rng.below(systems[newer].len())];
        if self.links.iter().any(|(x, y, _)| (*x, *y) == (a, b)) {
            return;
        }
        let class = if rng.below(4) == 0 { PEER } else { CUSTOMER };
        self.links.push((a, b, Kind::External(class)));
    }

    /// Returns the address that a router uses for sessions.
    pub(crate) fn address(&self, router: usize) -> IpAddr {
        if self.transport_v6 { self.routers[router].v6 } else { self.routers[router].v4 }
    }

    /// Returns the relation of `peer` to `router`.
    pub(crate) fn kind(&self, router: usize, peer: usize) -> Kind {
        let (_, link) = self.adjacent[router].iter().find(|(p, _)| *p == peer).unwrap();
        let (a, _, kind) = self.links[*link];
        match kind {
            _ if a == router => kind,
            Kind::External(CUSTOMER) => Kind::External(PROVIDER),
            Kind::External(class) => Kind::External(class),
            _ => Kind::Internal,
        }
    }

    /// Returns the distance from a router to a next hop; symmetric, and 0 outside ASes with distances.
    pub(crate) fn metric(&self, router: usize, next_hop: IpAddr) -> u32 {
        let owner = self.routers.iter().position(|r| r.v4 == next_hop || r.v6 == next_hop).unwrap();
        let (here, there) = (&self.routers[router], &self.routers[owner]);
        if here.global.asn != there.global.asn || !here.distances {
            return 0;
        }
        let (low, high) = (router.min(owner) as u64, router.max(owner) as u64);
        (Rng(self.seed ^ (low << 32) ^ high).next() % 5) as u32
    }

    /// Returns the peer configuration of a router.
    pub(crate) fn peers(&self, router: usize) -> Vec<(usize, PeerConfig)> {
        self.adjacent[router]
            .iter()
            .map(|(n, _)| {
                let mut config = peer(self.address(*n), self.routers[*n].global.asn);
                config.families = Family::ALL.to_vec();
                config.local_v4 = Some(self.routers[router].v4);
                config.local_v6 = Some(self.routers[router].v6);
                config.hold_time = self.hold;
                config.restart_time = Some(Duration::from_secs(20));
                match self.kind(router, *n) {
                    Kind::External(class) => config.policy_class = class,
                    Kind::Internal => {}
                    Kind::Client(cluster) => config.reflector_client = Some(cluster),
                }
                // Both ends dial, or one of them, or one of them later.
                config.dial = match (self.seed ^ (router + n) as u64) % 3 {
                    0 => Dial::Now,
                    1 if router < *n => Dial::Passive,
                    2 if router < *n => Dial::After(Duration::from_secs(2)),
                    _ => Dial::Now,
                };
                config.extended_messages = self.seed.is_multiple_of(2);
                (*n, config)
            })
            .collect()
    }
}
