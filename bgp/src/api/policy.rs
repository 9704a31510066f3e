//! Policy interface: import and export decisions of the embedder.

use std::sync::Arc;

use smallvec::SmallVec;
use tortie_net::Cidr;

use super::PeerId;
use crate::api::ExportStep;
use crate::attr::{Attributes, Edits};
use crate::wire::Role;

/// Import and export policy, implemented by the embedder. Pure: equal arguments give equal results, until
/// [`Input::Policy`](crate::Input::Policy) replaces the policy.
pub trait Policy: Send + Sync {
    /// Import policy: accepts or rejects a received route.
    fn import(&self, from: &PeerView<'_>, prefix: Cidr, attributes: &Attributes) -> Import;
    /// Returns true if [`Policy::import`] gives the same result for these attributes and every prefix shorter
    /// than a host route. The speaker then evaluates it once per UPDATE, not once per prefix.
    fn imports_alike(&self, _from: &PeerView<'_>, _attributes: &Attributes) -> bool {
        false
    }
    /// Export policy: decides if a best path is announced to peers of this class, and with which changes.
    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export;
    /// Returns the evaluation of [`Policy::import`] check by check, up to the one that decided. For
    /// explanations only.
    fn import_steps(&self, from: &PeerView<'_>, prefix: Cidr, attributes: &Attributes) -> Vec<ExportStep> {
        let (pass, verdict) = match self.import(from, prefix, attributes) {
            Import::Accept | Import::AcceptWith(_) => (true, "accepted".into()),
            Import::Reject(reason) => (false, reason.into()),
        };
        vec![ExportStep { step: "policy", pass, verdict }]
    }
    /// Returns the evaluation of [`Policy::export`] check by check, up to the one that decided. For
    /// explanations only.
    fn export_steps(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Vec<ExportStep> {
        let answer = self.export(to, route);
        vec![ExportStep { step: "policy", pass: answer.accept, verdict: answer.gate.into() }]
    }
}

/// A shared [`Policy`].
#[derive(Clone)]
pub struct PolicyHandle(pub Arc<dyn Policy>);

impl PolicyHandle {
    /// Returns a policy that accepts and announces every route, for tools and tests. eBGP peers exchange
    /// routes only if [`PeerConfig::ebgp_policy`](crate::PeerConfig::ebgp_policy) is set (RFC 8212).
    #[must_use]
    pub fn accept_all() -> Self {
        Self(Arc::new(AcceptAll))
    }
}

/// The policy of [`PolicyHandle::accept_all`].
struct AcceptAll;

impl Policy for AcceptAll {
    fn import(&self, _: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        Import::Accept
    }

    fn imports_alike(&self, _: &PeerView<'_>, _: &Attributes) -> bool {
        true
    }

    fn export(&self, _: &PeerView<'_>, _: &RouteView<'_>) -> Export {
        Export::announce("accept-all")
    }
}

impl std::fmt::Debug for PolicyHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PolicyHandle")
    }
}

/// A peer as seen by policy. On export only the fields that define the update group are meaningful: `ebgp`,
/// `asn`, `local_asn`, `class` and `role`.
#[derive(Debug, Clone, Copy)]
pub struct PeerView<'a> {
    /// The peer; on export the first member of the update group.
    pub id: PeerId,
    /// Name of the peer, for explanations.
    pub name: &'a str,
    /// True if the peer is in another AS.
    pub ebgp: bool,
    /// AS number of the peer.
    pub asn: u32,
    /// Local AS number towards the peer.
    pub local_asn: u32,
    /// Class of the peer, [`PeerConfig::policy_class`](crate::PeerConfig::policy_class).
    pub class: u64,
    /// Local role towards the peer (RFC 9234). `None` for an iBGP peer, to which roles do not apply.
    pub role: Option<Role>,
}

/// A route as seen by policy.
#[derive(Debug, Clone, Copy)]
pub struct RouteView<'a> {
    /// Destination prefix.
    pub prefix: Cidr,
    /// Path attributes.
    pub attributes: &'a Attributes,
    /// [`Origination::kind`](crate::Origination::kind) of a local route. `None` for a learned one.
    pub local: Option<u32>,
    /// The peer that sent a learned route. `None` for a local one.
    pub from: Option<PeerView<'a>>,
}

/// Result of [`Policy::import`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Import {
    /// Accepts the route as received.
    Accept,
    /// Accepts the route with these changes. The received attributes are kept too, so that another policy can
    /// be applied later.
    AcceptWith(Edits),
    /// Keeps the route as filtered, with a stable reason.
    Reject(&'static str),
}

/// Result of [`Policy::export`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Export {
    /// True if the route is announced.
    pub accept: bool,
    /// Name of the export gate that decided. Stable: metrics and explanations use the same name.
    pub gate: &'static str,
    /// Changes to the attributes of the Loc-RIB, applied before the session's own changes (AS_PATH, next hop,
    /// LOCAL_PREF).
    pub edits: Edits,
    /// Communities (RFC 1997) to add after the changes.
    pub communities: SmallVec<[u32; 2]>,
    /// Large communities (RFC 8092) to add after the changes.
    pub large_communities: SmallVec<[[u32; 3]; 1]>,
}

impl Export {
    /// Announces the route without changes.
    #[must_use]
    pub fn announce(gate: &'static str) -> Self {
        Self {
            accept: true,
            gate,
            edits: Edits::NONE,
            communities: SmallVec::new(),
            large_communities: SmallVec::new(),
        }
    }

    /// Withholds the route.
    #[must_use]
    pub fn withhold(gate: &'static str) -> Self {
        Self { accept: false, ..Self::announce(gate) }
    }

    /// Adds these changes.
    #[must_use]
    pub fn with_edits(mut self, edits: Edits) -> Self {
        self.edits = edits;
        self
    }

    /// Adds these communities and large communities.
    #[must_use]
    pub fn with_communities(
        mut self,
        communities: impl IntoIterator<Item = u32>,
        large: impl IntoIterator<Item = [u32; 3]>,
    ) -> Self {
        self.communities = communities.into_iter().collect();
        self.large_communities = large.into_iter().collect();
        self
    }
}
