//! What a batch of changes touched, so that only that is computed again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tortie_store::Revision;

/// Which aspects of the model differ from before. Nothing set: nothing that anybody computes from changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelChanges {
    /// The sessions of this host.
    pub peers: ChangedPeers,
    /// What this host may originate besides its endpoints' addresses: own affinities, own blocks, pools.
    pub originated: bool,
    /// Endpoints of this host: those among [`touched`](Self::touched).
    pub own_endpoints: bool,
    /// Own affinities came, went or changed their state: [`Model::block_scope`](super::Model::block_scope) may differ.
    pub affinities: bool,
    /// Pools.
    pub pools: bool,
    /// `prefix_advertisements` that apply to this host.
    pub advertisements: bool,
    /// Own address, network, AS, port or cluster id.
    pub node: bool,
    /// Other hosts: which there are, their addresses and BGP values.
    pub hosts: bool,
    /// Filters, those of BIRD among them.
    pub filters: bool,
    /// Endpoints of any host.
    pub endpoints: bool,
    /// Profiles, tiers and policies.
    pub policy: bool,
    /// Settings that apply to this host, log levels, BMP stations and `multipath` among them.
    pub settings: bool,
    /// `Ready`, or the schema that the store needs.
    pub ready: bool,
    /// IPAM's configuration.
    pub ipam: bool,
    /// The list of unreadable values.
    pub invalid_keys: bool,
    /// Every key that was written or deleted, in the order of the changes.
    pub touched: Vec<ChangedKey>,
}

/// Which sessions may differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedPeers {
    /// Any of them: something changed that all sessions depend on.
    pub all: bool,
    /// Those with one of these addresses, old or new.
    pub addrs: BTreeSet<IpAddr>,
    /// No session, but what is worth saying about them: who else peers with a router.
    pub hints: bool,
}

impl ChangedPeers {
    /// Whether any session may differ.
    #[must_use]
    pub fn any(&self) -> bool {
        self.all || !self.addrs.is_empty()
    }
}

/// A key that was written or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedKey {
    /// The full key, as stored.
    pub key: String,
    /// The revision of the write or of the deletion (for a relist: the revision of the list).
    pub revision: Revision,
    /// It is gone.
    pub deleted: bool,
}

impl ModelChanges {
    /// Everything, for a first computation.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            peers: ChangedPeers { all: true, addrs: BTreeSet::new(), hints: true },
            originated: true,
            own_endpoints: true,
            affinities: true,
            pools: true,
            advertisements: true,
            node: true,
            hosts: true,
            filters: true,
            endpoints: true,
            policy: true,
            settings: true,
            ready: true,
            ipam: true,
            invalid_keys: true,
            touched: Vec::new(),
        }
    }

    /// Whether nothing that anybody computes from changed (keys may have been rewritten with the same value).
    #[must_use]
    pub fn is_clean(&self) -> bool {
        !(self.peers.any()
            || self.originated
            || self.own_endpoints
            || self.affinities
            || self.pools
            || self.advertisements
            || self.node
            || self.hosts
            || self.filters
            || self.peers.hints
            || self.endpoints
            || self.policy
            || self.settings
            || self.ready
            || self.ipam
            || self.invalid_keys)
    }

    /// Adds what `later` touched.
    pub fn merge(&mut self, later: Self) {
        self.peers.all |= later.peers.all;
        self.peers.addrs.extend(later.peers.addrs);
        self.originated |= later.originated;
        self.own_endpoints |= later.own_endpoints;
        self.affinities |= later.affinities;
        self.pools |= later.pools;
        self.advertisements |= later.advertisements;
        self.node |= later.node;
        self.hosts |= later.hosts;
        self.filters |= later.filters;
        self.peers.hints |= later.peers.hints;
        self.endpoints |= later.endpoints;
        self.policy |= later.policy;
        self.settings |= later.settings;
        self.ready |= later.ready;
        self.ipam |= later.ipam;
        self.invalid_keys |= later.invalid_keys;
        self.touched.extend(later.touched);
    }
}
