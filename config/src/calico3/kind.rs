//! Kinds of objects, and the keys under which they are stored.

use std::fmt;

use crate::key::prefix;

/// API group of the objects, the first element of their keys below [`prefix::CALICO_3`].
const GROUP: &str = "projectcalico.org";

macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident, $plural:literal, $namespaced:literal;)+) => {
        /// Kind of an object.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])+ $kind,)+
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// Returns the name of the kind, the member `kind` of its objects.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$kind => stringify!($kind),)+ }
            }

            /// Returns the plural in lower case, an element of the key.
            #[must_use]
            pub fn plural(self) -> &'static str {
                match self { $(Self::$kind => $plural,)+ }
            }

            /// Returns true if objects of this kind have a namespace.
            #[must_use]
            pub fn is_namespaced(self) -> bool {
                match self { $(Self::$kind => $namespaced,)+ }
            }
        }
    };
}

kinds! {
    /// A host.
    Node, "nodes", false;
    /// An address pool.
    IPPool, "ippools", false;
    /// Addresses that automatic assignment skips.
    IPReservation, "ipreservations", false;
    /// BGP peers, explicit or by selector.
    BGPPeer, "bgppeers", false;
    /// BGP values of all hosts or of one.
    BGPConfiguration, "bgpconfigurations", false;
    /// Route filters of peers.
    BGPFilter, "bgpfilters", false;
    /// Settings of all hosts, of one, or of the hosts that a selector matches.
    FelixConfiguration, "felixconfigurations", false;
    /// Readiness and identity of the cluster.
    ClusterInformation, "clusterinformations", false;
    /// The interface of a workload.
    WorkloadEndpoint, "workloadendpoints", true;
    /// An interface of a host.
    HostEndpoint, "hostendpoints", false;
    /// Rules and labels that endpoints name.
    Profile, "profiles", false;
    /// A policy for endpoints of all namespaces.
    GlobalNetworkPolicy, "globalnetworkpolicies", false;
    /// A policy for the endpoints of its namespace.
    NetworkPolicy, "networkpolicies", true;
    /// A group of policies with an order and an end action.
    Tier, "tiers", false;
    /// Labelled networks.
    GlobalNetworkSet, "globalnetworksets", false;
    /// Labelled networks of a namespace.
    NetworkSet, "networksets", true;
    /// A global policy that is previewed and never enforced.
    StagedGlobalNetworkPolicy, "stagedglobalnetworkpolicies", false;
    /// A policy that is previewed and never enforced.
    StagedNetworkPolicy, "stagednetworkpolicies", true;
    /// A Kubernetes policy that is previewed and never enforced.
    StagedKubernetesNetworkPolicy, "stagedkubernetesnetworkpolicies", true;
    /// The move of a workload between hosts.
    LiveMigration, "livemigrations", true;
    /// Request for a status report of a host.
    CalicoNodeStatus, "caliconodestatuses", false;
    /// Settings of controllers, which no host reads.
    KubeControllersConfiguration, "kubecontrollersconfigurations", false;
    /// IPAM settings, which IPAM on etcd does not read.
    IPAMConfig, "ipamconfigs", false;
    /// IPAM settings, which IPAM on etcd does not read.
    IPAMConfiguration, "ipamconfigurations", false;
    /// Affinity of a block, which IPAM on etcd does not read.
    BlockAffinity, "blockaffinities", false;
}

/// Key of an object. Sorted by kind, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Kind of the object.
    pub kind: Kind,
    /// Namespace; `None` for kinds without one.
    pub namespace: Option<String>,
    /// Name as in the key. A policy's key may have a prefix that its name for users has not.
    pub name: String,
}

impl ObjectKey {
    /// Creates the key of an object without namespace.
    #[must_use]
    pub fn global(kind: Kind, name: &str) -> Self {
        Self { kind, namespace: None, name: name.to_owned() }
    }

    /// Creates the key of an object in a namespace.
    #[must_use]
    pub fn namespaced(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    /// Parses a key. `None` for a key that Calico's readers skip: another group, an unknown plural, a missing
    /// or superfluous namespace. `%2f` and `%25` are undone, although writers do not escape.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(prefix::CALICO_3)?.strip_prefix(GROUP)?.strip_prefix('/')?;
        let mut parts = rest.split('/');
        let plural = parts.next()?;
        let kind = Kind::ALL.iter().copied().find(|kind| kind.plural() == plural)?;
        let namespace = if kind.is_namespaced() { Some(element(parts.next()?)?) } else { None };
        let name = element(parts.next()?)?;
        parts.next().is_none().then_some(Self { kind, namespace, name })
    }

    /// Returns the kind and the name for people, such as `BGPPeer rack1-tor` or `NetworkPolicy shop/web`.
    #[must_use]
    pub fn title(&self) -> String {
        let kind = self.kind.as_str();
        match &self.namespace {
            Some(namespace) => format!("{kind} {namespace}/{}", self.name),
            None => format!("{kind} {}", self.name),
        }
    }

    /// Returns the prefix of the keys of all objects of a kind.
    #[must_use]
    pub fn prefix_of(kind: Kind) -> String {
        format!("{}{GROUP}/{}/", prefix::CALICO_3, kind.plural())
    }
}

fn element(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| crate::key::unescape(text).into_owned())
}

impl fmt::Display for ObjectKey {
    /// Formats the full key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{GROUP}/{}/", prefix::CALICO_3, self.kind.plural())?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}
