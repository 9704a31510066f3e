//! What this host should have, as Tortie would write it: computed from the store by the functions that the agent uses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{IpFamily, Key, prefix};
use tortie_config::resource;
use tortie_config::resource::Affinity;
use tortie_net::Cidr;

use tortie_engine::model::{Model, WatchPart};
use tortie_engine::policy::{Engine, Globals, Ruleset};
use tortie_engine::routing::{self, NodeOptions, PeerKind, RoutingIntent};
use tortie_store::{Snapshot, Store, StoreError};

/// Who has which block: the affinities of all hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Affinities {
    /// Confirmed ones, or those of the time before states.
    pub confirmed: BTreeSet<(String, Cidr)>,
    /// Pending ones, and those that are being given up.
    pub unsettled: BTreeSet<(String, Cidr)>,
}

impl Affinities {
    /// What an agent does not watch: 5,000 of them must not read each other's claims all the time. Asked rarely.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn read(store: &dyn Store) -> Result<Self, StoreError> {
        Ok(Self::of(&store.list(&[prefix::AFFINITIES.to_owned()]).await?))
    }

    /// Those of a listing; what cannot be read is nobody's.
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
    /// The host.
    pub host: Arc<str>,
    /// Its address of the prefix's family, the BGP next hop of the mesh; `None`: the host takes no part in this family.
    pub next_hop: Option<IpAddr>,
    /// A session of the mesh leads there; else the next hop is what a reflector or a router says.
    pub direct: bool,
    /// A workload's address outside of its host's blocks.
    pub borrowed: bool,
}

/// Everything that this host should have.
#[derive(Debug, Clone)]
pub struct HostIntent {
    /// Blackholes, sessions, tunnel, and what decisions about routes read.
    pub intent: Arc<RoutingIntent>,
    /// What other hosts announce, from the store; `None`: their affinities were not read.
    pub remote: Option<BTreeMap<Cidr, Remote>>,
    /// Own blocks whose affinity is not confirmed, or whose value does not name this host.
    pub unsettled: BTreeSet<Cidr>,
    /// Endpoints, chains and sets.
    pub ruleset: Ruleset,
    /// The frame that they stand in.
    pub globals: Arc<Globals>,
    /// Endpoints and rules are Tortie's to judge: not with `--policy off`.
    pub rules: bool,
}

impl HostIntent {
    /// Puts together what the agent has at hand; `affinities` are those of all hosts, where they were read.
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

    /// From a snapshot of the whole store, without an agent.
    #[must_use]
    pub fn offline(node: &str, snapshot: &Snapshot, options: &NodeOptions) -> Self {
        let mut model = Model::new(node);
        model.replace(WatchPart::All, snapshot);
        let (_, delta) = Engine::new(&model);
        let mut ruleset = Ruleset::default();
        delta.apply(&mut ruleset);
        let intent = Arc::new(routing::intent(&model, options));
        let globals = Arc::new(Globals::of(&model));
        Self::of(&model, intent, ruleset, globals, Some(&Affinities::of(snapshot)))
    }
}

/// The blocks of other hosts, and the addresses of their workloads that lie outside of them.
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
            for net in prefixes_of(workload.value).filter(|net| !inside(net)) {
                let announced = intent.view.pool_of(&net).is_some();
                if let Some(remote) = one(host, net.is_v4(), true).filter(|_| announced) {
                    found.entry(net).or_insert(remote);
                }
            }
        }
    }
    found
}

/// What leads to a workload: its networks, and the outside addresses of 1:1 NAT.
fn prefixes_of(workload: &resource::WorkloadEndpoint) -> impl Iterator<Item = Cidr> {
    let outside = workload.nats().map(|(_, outside)| Cidr::host(outside));
    workload.nets().copied().chain(outside)
}
