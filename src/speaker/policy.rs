//! Implements the BGP core's policy interface with the decisions of `routing`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tortie_bgp::attr::{Attributes, Edit, EditNextHop, Edits, Masked};
use tortie_bgp::{Export, ExportStep, Import, PeerView, Policy, RouteView};
use tortie_config::resource::{
    BgpFilterOperation, Community, CommunityChange, CommunityKind, FilterSet, MedChange, NextHopChange,
    RouteSource,
};
use tortie_net::Cidr;

use tortie_engine::routing::{
    self, Addresses, Direction, FilterChanges, FilterInput, FilterRoute, Interface, OriginKind, PeerPolicy,
    RoutingView, RuleRef, StepOutcome,
};

/// The distinct [`PeerPolicy`] values so far. The number of a value never changes, so that policies of
/// different age may share the table.
#[derive(Clone, Default)]
pub(crate) struct Classes(Arc<ArcSwap<Vec<Arc<PeerPolicy>>>>);

impl Classes {
    /// Copies the table: the values keep their numbers, and later additions are not shared.
    pub(crate) fn separate(&self) -> Self {
        Self(Arc::new(ArcSwap::new(self.0.load_full())))
    }

    /// Returns the number of this value, and adds it if it is new.
    pub(crate) fn of(&self, policy: &PeerPolicy) -> u64 {
        let classes = self.0.load();
        let at = classes.iter().position(|p| **p == *policy).unwrap_or_else(|| {
            let mut longer = Vec::clone(&classes);
            longer.push(Arc::new(policy.clone()));
            self.0.store(Arc::new(longer));
            classes.len()
        });
        u64::try_from(at).unwrap_or(u64::MAX)
    }

    /// Calls `answer` with the value of this number. The value is borrowed, because this runs for each
    /// prefix.
    fn with<T>(&self, class: u64, answer: impl FnOnce(&PeerPolicy) -> T) -> Option<T> {
        let classes = self.0.load();
        classes.get(usize::try_from(class).ok()?).map(|policy| answer(policy))
    }
}

/// Reason for a peer whose policy number does not exist.
const UNKNOWN_CLASS: &str = "unknown-class";

/// Export gates and import checks over one routing view.
pub(crate) struct ViewPolicy {
    view: Arc<RoutingView>,
    /// Addresses of this host's endpoints.
    held: Addresses,
    classes: Classes,
    /// Attribute changes by filter rules: per filter, for import and export, by number of the rule.
    edits: Arc<BTreeMap<String, [Vec<Edits>; 2]>>,
}

impl ViewPolicy {
    pub(crate) fn new(view: Arc<RoutingView>, held: Addresses, classes: Classes) -> Self {
        let mut edits: BTreeMap<String, [Vec<Edits>; 2]> = BTreeMap::new();
        for (at, direction) in [Direction::Import, Direction::Export].into_iter().enumerate() {
            for (name, rules) in view.filters.rules(direction) {
                if let Some(place) = edits.entry(name.to_owned()).or_default().get_mut(at) {
                    *place = rules.iter().map(|rule| edits_of(&rule.set)).collect();
                }
            }
            for (name, rules) in view.filters.calico3_rules(direction) {
                if let Some(place) = edits.entry(name.to_owned()).or_default().get_mut(at) {
                    *place = rules.iter().map(|rule| edits_of_operations(&rule.operations)).collect();
                }
            }
        }
        Self { view, held, classes, edits: Arc::new(edits) }
    }

    /// Derives the policy for another view and other addresses; shares unchanged parts.
    pub(crate) fn follow(&self, view: &Arc<RoutingView>, held: &Addresses) -> Self {
        let (view, held, classes) = (Arc::clone(view), held.clone(), self.classes.clone());
        if view == self.view {
            return Self { view, held, classes, edits: Arc::clone(&self.edits) };
        }
        Self::new(view, held, classes)
    }

    fn edits(&self, policy: &PeerPolicy, direction: usize, changes: &FilterChanges) -> Edits {
        let of = |at: &RuleRef| {
            let name = policy.filters.get(at.filter)?;
            self.edits.get(name)?.get(direction)?.get(at.rule)
        };
        match changes.as_slice() {
            [] => Edits::NONE,
            [one] => of(one).cloned().unwrap_or_default(),
            all => all.iter().filter_map(of).flat_map(|edits| edits.as_slice().iter().cloned()).collect(),
        }
    }
}

/// A received route in the form that routing evaluates.
struct ReceivedRoute<'a> {
    from: &'a PeerView<'a>,
    prefix: Cidr,
    attributes: &'a Attributes,
}

impl FilterInput for ReceivedRoute<'_> {
    fn prefix(&self) -> Cidr {
        self.prefix
    }

    fn source(&self) -> RouteSource {
        source(self.from)
    }

    fn interface(&self) -> Interface<'_> {
        Interface::Link
    }

    fn local_pref(&self) -> Option<u32> {
        self.attributes.local_pref
    }

    fn whole<T>(&self, ask: impl FnOnce(&FilterRoute<'_>) -> T) -> T {
        let path: SmallVec<[u32; 16]> = self.attributes.as_path.ases().collect();
        let prepend_as = self.from.ebgp.then_some(self.from.asn);
        let route = FilterRoute { prepend_as, ..FilterRoute::local(self.prefix) };
        ask(&filter_route(route, self.attributes, &path, self.from))
    }
}

/// A best path to be announced to a peer, in the form that routing evaluates.
struct SentRoute<'a> {
    to: &'a PeerView<'a>,
    route: &'a RouteView<'a>,
}

impl FilterInput for SentRoute<'_> {
    fn prefix(&self) -> Cidr {
        self.route.prefix
    }

    fn source(&self) -> RouteSource {
        self.route.from.as_ref().map_or(RouteSource::Local, source)
    }

    fn interface(&self) -> Interface<'_> {
        match self.route.local.and_then(origin_kind) {
            Some(OriginKind::Borrowed | OriginKind::Floating) => Interface::Workload,
            Some(OriginKind::OwnBlock | OriginKind::ServiceRange) => Interface::None,
            None => Interface::Link,
        }
    }

    fn local_pref(&self) -> Option<u32> {
        self.route.attributes.local_pref
    }

    fn whole<T>(&self, ask: impl FnOnce(&FilterRoute<'_>) -> T) -> T {
        let attributes = self.route.attributes;
        let prepend_as = self.to.ebgp.then_some(self.to.local_asn);
        let plain = FilterRoute { prepend_as, ..FilterRoute::local(self.route.prefix) };
        match &self.route.from {
            Some(from) => {
                let path: SmallVec<[u32; 16]> = attributes.as_path.ases().collect();
                ask(&filter_route(plain, attributes, &path, from))
            }
            None => ask(&FilterRoute {
                communities: Cow::Borrowed(&attributes.communities),
                large: Cow::Borrowed(&attributes.large_communities),
                interface: self.interface(),
                ..plain
            }),
        }
    }
}

fn role(role: tortie_bgp::wire::Role) -> Option<routing::Role> {
    Some(match role {
        tortie_bgp::wire::Role::Provider => routing::Role::Provider,
        tortie_bgp::wire::Role::Customer => routing::Role::Customer,
        tortie_bgp::wire::Role::Peer => routing::Role::Peer,
        tortie_bgp::wire::Role::RouteServer => routing::Role::RsServer,
        tortie_bgp::wire::Role::RouteServerClient => routing::Role::RsClient,
        tortie_bgp::wire::Role::Other(_) => return None,
    })
}

fn source(from: &PeerView<'_>) -> RouteSource {
    if from.ebgp { RouteSource::Ebgp } else { RouteSource::Ibgp }
}

/// Adds the attributes that filters can match to a learned route.
fn filter_route<'a>(
    route: FilterRoute<'a>,
    attributes: &'a Attributes,
    path: &'a [u32],
    from: &PeerView<'a>,
) -> FilterRoute<'a> {
    FilterRoute {
        next_hop: Some(attributes.next_hop.addr()),
        communities: Cow::Borrowed(&attributes.communities),
        large: Cow::Borrowed(&attributes.large_communities),
        extended: Cow::Borrowed(attributes.ext_communities()),
        path: Cow::Borrowed(path),
        path_length: attributes.as_path.hops(),
        neighbour: attributes.as_path.first(),
        origin_as: attributes.as_path.origin(),
        source: source(from),
        peer: Some(from.name),
        role: from.role.and_then(role),
        interface: Interface::Link,
        local_pref: attributes.local_pref,
        ..route
    }
}

impl Policy for ViewPolicy {
    fn import(&self, from: &PeerView<'_>, prefix: Cidr, attributes: &Attributes) -> Import {
        let answer = self.classes.with(from.class, |policy| {
            match routing::import(&self.view, &self.held, policy, &ReceivedRoute { from, prefix, attributes })
            {
                Ok(changes) if changes.is_empty() => Import::Accept,
                Ok(changes) => Import::AcceptWith(self.edits(policy, 0, &changes)),
                Err(reason) => Import::Reject(reason),
            }
        });
        answer.unwrap_or(Import::Reject(UNKNOWN_CLASS))
    }

    fn imports_alike(&self, from: &PeerView<'_>, _: &Attributes) -> bool {
        self.classes.with(from.class, routing::imports_all_networks).unwrap_or_default()
    }

    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        let answer = self.classes.with(to.class, |policy| {
            let answer = routing::export_gate(&self.view, policy, to.ebgp, &SentRoute { to, route });
            if !answer.accept {
                return Export::withhold(answer.gate);
            }
            let mut export = Export::announce(answer.gate);
            if !answer.changes.is_empty() {
                export.edits = self.edits(policy, 1, &answer.changes);
            }
            if let Some(pref) = answer.local_pref.filter(|_| !to.ebgp) {
                // A filter may set another one after it.
                let changes = export.edits.as_slice().iter().cloned();
                export.edits = std::iter::once(Edit::LocalPref(pref)).chain(changes).collect();
            }
            export.communities = SmallVec::from_vec(answer.communities);
            export.large_communities = SmallVec::from_vec(answer.large_communities);
            export
        });
        answer.unwrap_or_else(|| Export::withhold(UNKNOWN_CLASS))
    }

    fn import_steps(&self, from: &PeerView<'_>, prefix: Cidr, attributes: &Attributes) -> Vec<ExportStep> {
        let steps = self.classes.with(from.class, |policy| {
            let route = ReceivedRoute { from, prefix, attributes };
            rungs(routing::explain_import(&self.view, &self.held, policy, &route).1)
        });
        steps.unwrap_or_else(unknown)
    }

    fn export_steps(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Vec<ExportStep> {
        let steps = self.classes.with(to.class, |policy| {
            rungs(routing::explain_export(&self.view, policy, to.ebgp, &SentRoute { to, route }).1)
        });
        steps.unwrap_or_else(unknown)
    }
}

/// Returns the steps that were evaluated.
fn rungs(steps: Vec<routing::Step>) -> Vec<ExportStep> {
    let reached = steps.into_iter().filter(|step| step.outcome != StepOutcome::NotReached);
    let rung = |step: routing::Step| ExportStep {
        step: step.name,
        pass: step.outcome != StepOutcome::No,
        verdict: step.text,
    };
    reached.map(rung).collect()
}

fn unknown() -> Vec<ExportStep> {
    vec![ExportStep { step: "policy", pass: false, verdict: UNKNOWN_CLASS.into() }]
}

/// Converts the changes of a filter rule to the speaker's form.
fn edits_of(set: &FilterSet) -> Edits {
    let mut all = Vec::new();
    all.extend(set.local_pref.map(Edit::LocalPref));
    all.extend(set.med.map(|med| match med {
        MedChange::Set(med) => Edit::Med(Some(med)),
        MedChange::Add(by) => Edit::MedAdd(by),
        MedChange::Subtract(by) => Edit::MedSub(by),
        MedChange::Remove => Edit::Med(None),
    }));
    all.extend(
        set.prepend
            .map(|p| Edit::Prepend { asn: p.asn.map(tortie_config::resource::Asn::get), times: p.count }),
    );
    all.extend(set.next_hop.map(|hop| {
        Edit::NextHop(match hop {
            NextHopChange::Own => EditNextHop::Own,
            NextHopChange::Address(address) => EditNextHop::Address(address),
        })
    }));
    communities(&mut all, &set.communities, Edit::RemoveCommunities, Edit::AddCommunities);
    communities(&mut all, &set.large, Edit::RemoveLarge, Edit::AddLarge);
    communities(&mut all, &set.extended, Edit::RemoveExtended, Edit::AddExtended);
    all.into_iter().collect()
}

/// Converts the operations of a filter of Calico 3 to the speaker's form.
fn edits_of_operations(operations: &[BgpFilterOperation]) -> Edits {
    let edits = operations.iter().flat_map(|operation| -> Vec<Edit> {
        match operation {
            BgpFilterOperation::AddCommunity(Community::Standard(value)) => {
                vec![Edit::AddCommunities([*value].into())]
            }
            BgpFilterOperation::AddCommunity(Community::Large(value)) => {
                vec![Edit::AddLarge([*value].into())]
            }
            // The last one that is prepended comes first.
            BgpFilterOperation::PrependAsPath(path) => {
                path.iter().rev().map(|asn| Edit::Prepend { asn: Some(asn.get()), times: 1 }).collect()
            }
            BgpFilterOperation::SetPriority(priority) => {
                vec![Edit::LocalPref(routing::local_pref_of(*priority))]
            }
        }
    });
    edits.collect()
}

fn communities<T: CommunityKind>(
    all: &mut Vec<Edit>,
    change: &CommunityChange<T>,
    remove: impl FnOnce(Box<[Masked<T>]>) -> Edit,
    add: impl FnOnce(Box<[T]>) -> Edit,
) {
    if !change.remove.is_empty() {
        let masked =
            |p: &tortie_config::resource::CommunityPattern<T>| Masked { value: p.value, mask: p.mask };
        all.push(remove(change.remove.iter().map(masked).collect()));
    }
    if !change.add.is_empty() {
        all.push(add(change.add.iter().copied().collect()));
    }
}

/// Returns the code of an [`OriginKind`] for [`tortie_bgp::Origination::kind`].
pub(crate) fn kind_code(kind: OriginKind) -> u32 {
    match kind {
        OriginKind::OwnBlock => 0,
        OriginKind::Borrowed => 1,
        OriginKind::Floating => 2,
        OriginKind::ServiceRange => 3,
    }
}

/// Returns the kind of a local route by its [`tortie_bgp::Origination::kind`].
#[must_use]
pub fn origin_kind(code: u32) -> Option<OriginKind> {
    [OriginKind::OwnBlock, OriginKind::Borrowed, OriginKind::Floating, OriginKind::ServiceRange]
        .into_iter()
        .find(|k| kind_code(*k) == code)
}

#[cfg(test)]
mod tests {
    use tortie_config::resource::BgpFilter;
    use tortie_engine::routing::{Calico3View, Filters};

    use super::*;

    #[test]
    fn equal_policies_share_a_number_and_numbers_last() {
        let classes = Classes::default();
        let own = PeerPolicy { own_only: true, ..PeerPolicy::default() };
        let first = classes.of(&PeerPolicy::default());
        assert_ne!(first, classes.of(&own));
        assert_eq!(first, classes.of(&PeerPolicy::default()));
        assert_eq!(classes.with(classes.of(&own), PeerPolicy::clone), Some(own));
        assert_eq!(classes.with(7, PeerPolicy::clone), None);
    }

    #[test]
    fn routes_of_a_calico_3_store_have_their_priority_towards_ibgp_peers() {
        let filter = r#"{"exportV4":[{"action":"Accept","cidr":"10.0.2.0/26","matchOperator":"Equal","operations":[
            {"setPriority":{"value":512}},{"addCommunity":{"value":"65000:9"}},{"prependASPath":{"prefix":[65001,65002]}}]}]}"#;
        let view = RoutingView {
            own_blocks: ["10.0.1.0/26".parse().unwrap(), "10.0.2.0/26".parse().unwrap()].into(),
            filters: Filters::from_calico3([("f".to_owned(), BgpFilter::parse(filter.as_bytes()).unwrap())]),
            calico3: Some(Calico3View::default()),
            ..RoutingView::default()
        };
        let classes = Classes::default();
        let class = classes.of(&PeerPolicy { filters: vec!["f".to_owned()], ..PeerPolicy::default() });
        let policy = ViewPolicy::new(Arc::new(view), Addresses::default(), classes);
        let attributes = Attributes::new(std::net::IpAddr::from([192, 0, 2, 9]));
        let edits = |prefix: &str, ebgp| {
            let to = PeerView {
                id: tortie_bgp::PeerId(1),
                name: "p",
                ebgp,
                asn: 64512,
                local_asn: 64512,
                class,
                role: None,
            };
            let local = Some(kind_code(OriginKind::OwnBlock));
            let prefix = prefix.parse().unwrap();
            let route = RouteView { prefix, attributes: &attributes, local, from: None };
            let answer = policy.export(&to, &route);
            assert!(answer.accept);
            answer.edits.as_slice().to_vec()
        };
        assert_eq!(edits("10.0.1.0/26", false), [Edit::LocalPref(2_147_482_623)]);
        assert_eq!(edits("10.0.1.0/26", true), []);
        let changes = [
            Edit::LocalPref(2_147_483_135),
            Edit::AddCommunities([65000 << 16 | 9].into()),
            Edit::Prepend { asn: Some(65002), times: 1 },
            Edit::Prepend { asn: Some(65001), times: 1 },
        ];
        assert_eq!(edits("10.0.2.0/26", true), changes);
        assert_eq!(edits("10.0.2.0/26", false)[1..], changes);
    }

    #[test]
    fn kinds_survive_the_trip_through_the_speaker() {
        let all =
            [OriginKind::OwnBlock, OriginKind::Borrowed, OriginKind::Floating, OriginKind::ServiceRange];
        for kind in all {
            assert_eq!(origin_kind(kind_code(kind)), Some(kind));
        }
        assert_eq!(origin_kind(4), None);
    }
}
