//! Aspects of the model that a batch of changes affected, so that only what depends on them is computed
//! again.
//!
//! The aspects are listed once (in the macro below), so none can be missing from
//! [`ModelChanges::everything`], [`ModelChanges::is_clean`] or [`ModelChanges::merge`].

use std::collections::BTreeSet;
use std::net::IpAddr;

use tortie_config::calico3::ObjectKey;
use tortie_config::key::Key;
use tortie_store::Revision;

/// Declares [`ModelChanges`] with a flag for each aspect, and the functions that enumerate all aspects.
macro_rules! aspects {
    ($($(#[$doc:meta])+ $aspect:ident,)+) => {
        /// Aspects of the model that differ from before. If none is set, no computed value can change.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct ModelChanges {
            /// BGP sessions of this host.
            pub peers: ChangedPeers,
            $($(#[$doc])+ pub $aspect: bool,)+
            /// Every key that was written or deleted, in the order of the changes.
            pub keys: Vec<ChangedKey>,
            /// Objects of a Calico 3 store that were written or deleted. A relist gives those whose entries
            /// changed, and none if there are many.
            pub objects: Vec<ChangedObject>,
        }

        impl ModelChanges {
            /// Marks every aspect as changed, for the first computation.
            #[must_use]
            pub fn everything() -> Self {
                let peers = ChangedPeers { all: true, addrs: BTreeSet::new(), hints: true };
                Self { peers, $($aspect: true,)+ keys: Vec::new(), objects: Vec::new() }
            }

            /// Returns true if no computed value can change. Keys may have been rewritten with the same
            /// value.
            #[must_use]
            pub fn is_clean(&self) -> bool {
                !(self.peers.any() || self.peers.hints $(|| self.$aspect)+)
            }

            /// Adds the changes of `later`.
            pub fn merge(&mut self, later: Self) {
                self.peers.all |= later.peers.all;
                self.peers.hints |= later.peers.hints;
                self.peers.addrs.extend(later.peers.addrs);
                $(self.$aspect |= later.$aspect;)+
                self.keys.extend(later.keys);
                self.objects.extend(later.objects);
            }
        }
    };
}

aspects! {
    /// Sources of originated routes other than endpoint addresses: own affinities, own blocks, pools.
    originated,
    /// Endpoints of this host; [`keys`](Self::keys) lists which.
    own_endpoints,
    /// Own affinities were added, deleted or changed state, so
    /// [`Model::block_scope`](super::Model::block_scope) may differ.
    affinities,
    /// Pools were written or deleted.
    pools,
    /// `prefix_advertisements` that apply to this host.
    advertisements,
    /// Address, network, AS, port or cluster id of this host.
    node,
    /// Other hosts: their existence, addresses and BGP values.
    hosts,
    /// Inputs of the VXLAN: ends of hosts, owners of blocks, and borrowed addresses.
    vxlan,
    /// Export filters, including BIRD's.
    filters,
    /// Endpoints of any host, including this one.
    endpoints,
    /// Profiles, tiers and policies were written or deleted.
    policy,
    /// Settings that apply to this host, including log levels, BMP stations and `multipath`.
    settings,
    /// `Ready`, or the minimum schema version of the store.
    ready,
    /// IPAM configuration.
    ipam,
    /// Live migrations, or the state of one of this host's endpoints in them.
    migrations,
    /// The list of values that cannot be parsed.
    invalid_keys,
}

/// BGP sessions that may differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedPeers {
    /// All sessions, because a value that they share changed.
    pub all: bool,
    /// Sessions with one of these addresses, old or new.
    pub addrs: BTreeSet<IpAddr>,
    /// No session, but notes on sessions: other hosts that peer with the same router.
    pub hints: bool,
}

impl ChangedPeers {
    /// Returns true if any session may differ.
    #[must_use]
    pub fn any(&self) -> bool {
        self.all || !self.addrs.is_empty()
    }
}

/// An object of a Calico 3 store that was written or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedObject {
    /// Key of the object.
    pub key: ObjectKey,
    /// Revision of the write or deletion.
    pub revision: Revision,
    /// True if the object was deleted.
    pub deleted: bool,
}

/// A key that was written or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedKey {
    /// Parsed key; an older path is translated to the current one. `None` for keys outside of the data model.
    pub key: Option<Key>,
    /// Full key, as stored.
    pub text: String,
    /// Revision of the write or deletion; for a relist, the revision of the list.
    pub revision: Revision,
    /// True if the key was deleted.
    pub deleted: bool,
}
