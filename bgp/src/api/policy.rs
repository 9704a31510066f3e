//! How the embedder decides about routes: what its policy is asked, and what it answers.

use std::sync::Arc;

use smallvec::SmallVec;
use tortie_net::Cidr;

use super::PeerId;
use crate::api::ExportStep;
use crate::attr::{Attributes, Edits};
use crate::wire::Role;

/// How the outside decides about routes. Pure: equal questions get equal answers until [`Input::Policy`](crate::Input::Policy) brings another.
pub trait Policy: Send + Sync {
    /// Import: decides if a received route is used.
    fn import(&self, from: &PeerView<'_>, prefix: Cidr, attributes: &Attributes) -> Import;
    /// True if [`Policy::import`] gives one answer about these attributes for all prefixes that are more than a single address:
    /// then it is evaluated for one of them and not for each prefix of an UPDATE.
    fn imports_alike(&self, _from: &PeerView<'_>, _attributes: &Attributes) -> bool {
        false
    }
    /// Export: decides if a best path is announced to peers of this class, and with which changes.
    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export;
    /// The same answer as [`Policy::import`] question by question, up to the one that decided; asked only by people.
    fn import_steps(&self, from: &PeerView<'_>, prefix: Cidr, attributes: &Attributes) -> Vec<ExportStep> {
        let (pass, verdict) = match self.import(from, prefix, attributes) {
            Import::Accept | Import::AcceptWith(_) => (true, "accepted".into()),
            Import::Reject(reason) => (false, reason.into()),
        };
        vec![ExportStep { step: "policy", pass, verdict }]
    }
    /// The same answer as [`Policy::export`] question by question, up to the one that decided.
    fn export_steps(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Vec<ExportStep> {
        let answer = self.export(to, route);
        vec![ExportStep { step: "policy", pass: answer.accept, verdict: answer.gate.into() }]
    }
}

/// A shared [`Policy`].
#[derive(Clone)]
pub struct PolicyHandle(pub Arc<dyn Policy>);

impl PolicyHandle {
    /// A policy that takes and announces everything: for tools and tests. eBGP peers stay closed all the same until
    /// [`PeerConfig::ebgp_policy`](crate::PeerConfig::ebgp_policy) opens them (RFC 8212).
    #[must_use]
    pub fn accept_all() -> Self {
        Self(Arc::new(AcceptAll))
    }
}

/// See [`PolicyHandle::accept_all`].
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

/// A peer, as policy sees it. On export only the fields that make the update group are meaningful:
/// `ebgp`, `asn`, `local_asn`, `class` and `role`.
#[derive(Debug, Clone, Copy)]
pub struct PeerView<'a> {
    /// The peer; on export the first of its group.
    pub id: PeerId,
    /// Its name, for reasons shown to people.
    pub name: &'a str,
    /// Another AS than ours.
    pub ebgp: bool,
    /// Its AS.
    pub asn: u32,
    /// Our AS towards it.
    pub local_asn: u32,
    /// [`PeerConfig::policy_class`](crate::PeerConfig::policy_class).
    pub class: u64,
    /// Our role towards it (RFC 9234); `None` also where it does not act because the peer is iBGP.
    pub role: Option<Role>,
}

/// A route, as policy sees it.
#[derive(Debug, Clone, Copy)]
pub struct RouteView<'a> {
    /// The prefix.
    pub prefix: Cidr,
    /// Its attributes.
    pub attributes: &'a Attributes,
    /// [`Origination::kind`](crate::Origination::kind) of a local route, `None` for a learned one.
    pub local: Option<u32>,
    /// Whom a learned route came from.
    pub from: Option<PeerView<'a>>,
}

/// The answer of [`Policy::import`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Import {
    /// Use it as received.
    Accept,
    /// Use it with these changes. What was received is kept beside, so that another policy can decide anew.
    AcceptWith(Edits),
    /// Keep it as filtered, with a stable reason.
    Reject(&'static str),
}

/// The answer of [`Policy::export`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Export {
    /// Announce it.
    pub accept: bool,
    /// The gate that decided, stable: the same word in metrics and explanations.
    pub gate: &'static str,
    /// Changes of the attributes: on those of the table, before the session's own rewriting (AS, next hop, LOCAL_PREF).
    pub edits: Edits,
    /// Communities to add, after the changes.
    pub communities: SmallVec<[u32; 2]>,
    /// Large communities to add, after the changes.
    pub large_communities: SmallVec<[[u32; 3]; 1]>,
}

impl Export {
    /// Announce it as it is.
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

    /// Withhold it.
    #[must_use]
    pub fn withhold(gate: &'static str) -> Self {
        Self { accept: false, ..Self::announce(gate) }
    }

    /// With these changes.
    #[must_use]
    pub fn with_edits(mut self, edits: Edits) -> Self {
        self.edits = edits;
        self
    }

    /// With these communities and large communities added.
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
