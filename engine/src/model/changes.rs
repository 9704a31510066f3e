//! The difference that a batch of changes made, by aspects: only what reads one of them is computed again.
//!
//! The aspects are one list (the macro below): none can be missing from [`ModelChanges::everything`],
//! [`ModelChanges::is_clean`] or [`ModelChanges::merge`].

use std::collections::BTreeSet;
use std::net::IpAddr;

use tortie_config::key::Key;
use tortie_store::Revision;

/// Declares [`ModelChanges`] with a flag for each aspect, and everything that has to name all of them.
macro_rules! aspects {
    ($($(#[$doc:meta])+ $aspect:ident,)+) => {
        /// Which aspects of the model differ from before. Nothing set: nothing that anybody computes from changed.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct ModelChanges {
            /// The sessions of this host.
            pub peers: ChangedPeers,
            $($(#[$doc])+ pub $aspect: bool,)+
            /// Every key that was written or deleted, in the order of the changes.
            pub keys: Vec<ChangedKey>,
        }

        impl ModelChanges {
            /// Everything, for a first computation.
            #[must_use]
            pub fn everything() -> Self {
                let peers = ChangedPeers { all: true, addrs: BTreeSet::new(), hints: true };
                Self { peers, $($aspect: true,)+ keys: Vec::new() }
            }

            /// Whether nothing that anybody computes from changed (keys may have been rewritten with the same value).
            #[must_use]
            pub fn is_clean(&self) -> bool {
                !(self.peers.any() || self.peers.hints $(|| self.$aspect)+)
            }

            /// Adds what `later` changed.
            pub fn merge(&mut self, later: Self) {
                self.peers.all |= later.peers.all;
                self.peers.hints |= later.peers.hints;
                self.peers.addrs.extend(later.peers.addrs);
                $(self.$aspect |= later.$aspect;)+
                self.keys.extend(later.keys);
            }
        }
    };
}

aspects! {
    /// What this host may originate besides its endpoints' addresses: own affinities, own blocks, pools.
    originated,
    /// Endpoints of this host: those among [`keys`](Self::keys).
    own_endpoints,
    /// Own affinities came, went or changed their state: [`Model::block_scope`](super::Model::block_scope) may differ.
    affinities,
    /// Pools.
    pools,
    /// `prefix_advertisements` that apply to this host.
    advertisements,
    /// Own address, network, AS, port or cluster id.
    node,
    /// Other hosts: which there are, their addresses and BGP values.
    hosts,
    /// Filters, those of BIRD among them.
    filters,
    /// Endpoints of any host.
    endpoints,
    /// Profiles, tiers and policies.
    policy,
    /// Settings that apply to this host, log levels, BMP stations and `multipath` among them.
    settings,
    /// `Ready`, or the schema that the store needs.
    ready,
    /// IPAM's configuration.
    ipam,
    /// The list of unreadable values.
    invalid_keys,
}

/// Which sessions may differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedPeers {
    /// Any of them: something changed that all sessions depend on.
    pub all: bool,
    /// Those with one of these addresses, old or new.
    pub addrs: BTreeSet<IpAddr>,
    /// No session, but the notes about them: which other hosts peer with a router.
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
    /// What the key means, under today's path also where an older one was written; `None`: it is no key of the data model.
    pub key: Option<Key>,
    /// The full key, as stored.
    pub text: String,
    /// The revision of the write or of the deletion (for a relist: the revision of the list).
    pub revision: Revision,
    /// It is gone.
    pub deleted: bool,
}
