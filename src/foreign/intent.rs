//! The intent for this host, computed from the store by the functions that the agent uses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::Dialect;
use tortie_config::key::{EndpointKey, IpFamily, Key, prefix};
use tortie_config::resource;
use tortie_config::resource::Affinity;
use tortie_net::Cidr;

use tortie_engine::model::{Model, WatchPart};
use tortie_engine::policy::{Engine, Globals, Ruleset};
use tortie_engine::routing::{self, NodeOptions, PeerKind, RoutingIntent};
use tortie_store::{Snapshot, Store, StoreError};

/// Affinities of all hosts: the claims of hosts on blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Affinities {
    /// Confirmed affinities, including values written before affinities had states.
    pub confirmed: BTreeSet<(String, Cidr)>,
    /// Affinities in the states pending and pendingDeletion.
    pub unsettled: BTreeSet<(String, Cidr)>,
}

impl Affinities {
    /// Reads the affinities from the store. The agent does not watch them, because each of 5,000 hosts would
    /// receive the claims of all others; this is called rarely.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn read(store: &dyn Store) -> Result<Self, StoreError> {
        Ok(Self::of(&store.list(&[prefix::AFFINITIES.to_owned()]).await?))
    }

    /// Parses the affinities in a snapshot; values that cannot be parsed are ignored.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut all = Self::default();
        for entry in &snapshot.entries {
            if let Ok(Key::Affinity { host, block }) = entry.key.parse::<Key>()
                && let Ok(affinity) = Affinity::parse(&entry.value)
            {
                let of = if affinity.is_confirmed() { &mut all.confirmed } else { &mut all.unsettled };
                of.insert((host, block));
            }
        }
        all
    }
}

/// A prefix that another host announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Name of the host.
    pub host: Arc<str>,
    /// Address of the host in the prefix's family, which is the BGP next hop in the mesh; `None` if the host
    /// takes no part in this family.
    pub next_hop: Option<IpAddr>,
    /// True if a mesh session with the host exists; otherwise a route reflector or router decides the next
    /// hop.
    pub direct: bool,
    /// True for an address of a workload outside of its host's blocks.
    pub borrowed: bool,
}

/// The intent for this host, with the data that the comparison needs.
#[derive(Debug, Clone)]
pub struct HostIntent {
    /// Intent for blackholes, sessions and the tunnel, with the input of routing decisions.
    pub intent: Arc<RoutingIntent>,
    /// Prefixes that other hosts announce, from the store; `None` if the affinities were not read.
    pub remote: Option<BTreeMap<Cidr, Remote>>,
    /// Own blocks whose affinity is not confirmed, or whose value names another owner.
    pub unsettled: BTreeSet<Cidr>,
    /// Desired endpoints, chains and sets.
    pub ruleset: Ruleset,
    /// Settings that apply to all endpoints.
    pub globals: Arc<Globals>,
    /// True if Tortie manages endpoints and rules; false with `--policy off`.
    pub rules: bool,
}

impl HostIntent {
    /// Combines the agent's data; `affinities` are those of all hosts, if they were read.
    #[must_use]
    pub fn of(
        model: &Model,
        intent: Arc<RoutingIntent>,
        ruleset: Ruleset,
        globals: Arc<Globals>,
        affinities: Option<&Affinities>,
    ) -> Self {
        let own: BTreeSet<Cidr> = model.own_blocks().map(|(block, _)| block).collect();
        let unsettled =
            model.affinities(model.node()).map(|a| *a.key).filter(|block| !own.contains(block)).collect();
        let remote = affinities.map(|affinities| remote(model, &intent, affinities));
        Self { intent, remote, unsettled, ruleset, globals, rules: true }
    }

    /// Computes the intent from a snapshot of the whole store, without an agent.
    #[must_use]
    pub fn offline(node: &str, dialect: Dialect, snapshot: &Snapshot, options: &NodeOptions) -> Self {
        let mut model = Model::new(node);
        model.set_dialect(dialect);
        model.replace(WatchPart::All, snapshot);
        let (_, delta) = Engine::new(&model);
        let mut ruleset = Ruleset::default();
        delta.apply(&mut ruleset);
        let intent = Arc::new(routing::intent(&model, options));
        let globals = Arc::new(Globals::of(&model));
        Self::of(&model, intent, ruleset, globals, Some(&Affinities::of(snapshot)))
    }
}

/// Returns the blocks of other hosts, and the addresses of their workloads outside of these blocks.
fn remote(model: &Model, intent: &RoutingIntent, affinities: &Affinities) -> BTreeMap<Cidr, Remote> {
    let meshed: BTreeSet<(&str, bool)> = intent
        .peers
        .values()
        .filter(|peer| peer.kind == PeerKind::Mesh)
        .map(|peer| (peer.name.as_str(), peer.remote.is_ipv4()))
        .collect();
    let names: BTreeMap<&str, Arc<str>> = model
        .hosts()
        .map(|(name, _)| name)
        .filter(|name| *name != model.node())
        .map(|n| (n, n.into()))
        .collect();
    let one = |host: &str, v4: bool, borrowed: bool| -> Option<Remote> {
        let shared = Arc::clone(names.get(host)?);
        let family = if v4 { IpFamily::V4 } else { IpFamily::V6 };
        Some(Remote {
            host: shared,
            next_hop: model.host(host).and_then(|host| host.addr(family)),
            direct: meshed.contains(&(host, v4)),
            borrowed,
        })
    };
    let mut found = BTreeMap::new();
    let mut blocks: BTreeMap<&str, BTreeSet<Cidr>> = BTreeMap::new();
    for (host, block) in &affinities.confirmed {
        if let Some(remote) = one(host, block.is_v4(), false) {
            found.entry(*block).or_insert(remote);
            blocks.entry(host).or_default().insert(*block);
        }
    }
    let none = BTreeSet::new();
    for host in names.keys() {
        let own = blocks.get(host).unwrap_or(&none);
        let inside =
            |prefix: &Cidr| own.range(..=prefix).next_back().is_some_and(|block| block.covers(prefix));
        for workload in model.workloads(host).filter(|w| w.value.active) {
            for net in prefixes_of(model, workload.key, workload.value).filter(|net| !inside(net)) {
                let announced = intent.view.pool_of(&net).is_some();
                if let Some(remote) = one(host, net.is_v4(), true).filter(|_| announced) {
                    found.entry(net).or_insert(remote);
                }
            }
        }
    }
    found
}

/// Returns the prefixes that lead to a workload: its networks, and the external addresses of 1:1 NAT.
fn prefixes_of<'a>(
    model: &Model,
    key: &EndpointKey,
    workload: &'a resource::WorkloadEndpoint,
) -> impl Iterator<Item = Cidr> + use<'a> {
    let outside = model.nats(key, workload).map(|(_, outside)| Cidr::host(outside));
    workload.nets().copied().chain(outside)
}
