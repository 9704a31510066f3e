//! Edits of policy: on import, on export, and after a change of policy.

use tortie_bgp::attr::{AsPath, Attributes, Edit, EditNextHop, Edits, Masked};
use tortie_bgp::{Export, Family, Import, Input, PeerId, PeerView, Policy, RouteTable, RouteView, Unusable};
use tortie_net::Cidr;

use crate::net::Net;
use crate::support::{TakeAll, cidr, global, ip, policy, yes};

/// Policy that applies the same edits to every route.
#[derive(Default)]
struct Same {
    import: Edits,
    export: Edits,
}

impl Policy for Same {
    fn import(&self, _: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        Import::AcceptWith(self.import.clone())
    }

    fn export(&self, _: &PeerView<'_>, _: &RouteView<'_>) -> Export {
        yes("same").with_edits(self.export.clone())
    }
}

fn import(edits: impl IntoIterator<Item = Edit>) -> Input<'static> {
    Input::Policy(policy(Same { import: edits.into_iter().collect(), ..Same::default() }))
}

fn export(edits: impl IntoIterator<Item = Edit>) -> Input<'static> {
    Input::Policy(policy(Same { export: edits.into_iter().collect(), ..Same::default() }))
}

/// Nodes 0 in AS 64512, 1 in 64513, 2 in 64512: eBGP 0 - 1, iBGP 0 - 2.
fn triangle() -> Net {
    let mut net = Net::new(3);
    net.node_at(ip("10.255.0.1"), global(64512, 1), policy(TakeAll));
    net.node(64513);
    net.node(64512);
    net.ready_all();
    net.join(0, 1, |at, c| c.asn = if at == 0 { 64513 } else { 64512 });
    net.join(0, 2, |_, c| c.asn = 64512);
    net.originate(1, &["10.1.0.0/24"]);
    net.originate(0, &["10.0.0.0/24"]);
    net.secs(3);
    net
}

fn loc(net: &Net, at: usize, prefix: &str) -> Attributes {
    let paths = net.table(at, RouteTable::Loc, Family::Ipv4Unicast);
    (*paths[&cidr(prefix)][0].attributes).clone()
}

fn all() -> Box<[Masked<u32>]> {
    [Masked { value: 0, mask: 0 }].into()
}

#[test]
fn import_changes_act_on_what_was_received_however_often_policy_changes() {
    let mut net = triangle();
    let before = loc(&net, 0, "10.1.0.0/24");
    let sets = net.nodes[0].speaker.totals().attribute_sets;
    for (pref, community) in [(200, 1), (50, 2), (200, 3)] {
        net.give(
            0,
            import([Edit::LocalPref(pref), Edit::AddCommunities([community].into()), Edit::MedAdd(7)]),
        );
        net.secs(1);
        let used = loc(&net, 0, "10.1.0.0/24");
        assert_eq!((used.local_pref, used.med), (Some(pref), Some(7)));
        assert_eq!(*used.communities, [community], "earlier changes are gone");
        // The edits are passed on to iBGP; the received attributes are kept.
        let passed = loc(&net, 2, "10.1.0.0/24");
        assert_eq!(
            (passed.local_pref, passed.med, &*passed.communities),
            (Some(pref), Some(7), &[community][..])
        );
        assert_eq!(*net.received(0, 1)[&cidr("10.1.0.0/24")], before);
        let trace = net.nodes[0].speaker.explain_import(cidr("10.1.0.0/24"), PeerId(1)).unwrap();
        assert_eq!((&*trace.received, trace.used.as_deref()), (&before, Some(&used)));
    }
    net.give(0, import([]));
    net.secs(1);
    assert_eq!(loc(&net, 0, "10.1.0.0/24"), before);
    assert_eq!(net.nodes[0].speaker.totals().attribute_sets, sets, "no set is left behind");
    assert_eq!((net.status(0, 1).flaps, net.status(0, 2).flaps), (0, 0));
}

/// Policy with one result for all networks and another for host routes.
struct Split {
    networks: u32,
    addresses: u32,
}

fn preferring(preference: u32) -> Import {
    Import::AcceptWith([Edit::LocalPref(preference)].into_iter().collect())
}

impl Policy for Split {
    fn import(&self, _: &PeerView<'_>, prefix: Cidr, _: &Attributes) -> Import {
        preferring(if prefix.is_host() { self.addresses } else { self.networks })
    }

    fn imports_alike(&self, _: &PeerView<'_>, _: &Attributes) -> bool {
        true
    }

    fn export(&self, _: &PeerView<'_>, _: &RouteView<'_>) -> Export {
        yes("open")
    }
}

#[test]
fn an_answer_about_all_networks_is_none_about_single_addresses() {
    let mut net = triangle();
    let sets = net.nodes[0].speaker.totals().attribute_sets;
    net.give(0, Input::Policy(policy(Split { networks: 200, addresses: 50 })));
    net.secs(1);
    // In one UPDATE, in any order.
    let prefixes = ["10.1.0.0/24", "10.1.1.1/32", "10.1.2.0/24", "10.1.3.0/25", "10.1.4.1/32", "10.1.5.0/24"];
    net.originate(1, &prefixes);
    net.secs(2);
    let preferences = |net: &Net| prefixes.map(|prefix| loc(net, 0, prefix).local_pref);
    assert_eq!(preferences(&net), [200, 50, 200, 200, 50, 200].map(Some));
    // Evaluated again for the present routes.
    net.give(0, Input::Policy(policy(Split { networks: 7, addresses: 8 })));
    net.secs(1);
    assert_eq!(preferences(&net), [7, 8, 7, 7, 8, 7].map(Some));
    net.withdraw(1, &prefixes);
    net.secs(2);
    assert!(net.nodes[0].speaker.totals().attribute_sets < sets, "no set is left behind");
}

#[test]
fn an_import_next_hop_is_resolved_and_must_fit() {
    let mut net = triangle();
    net.give(0, import([Edit::NextHop(EditNextHop::Address(ip("10.255.0.77")))]));
    net.secs(1);
    assert!(net.nodes[0].tracked.contains(&ip("10.255.0.77")));
    assert_eq!(net.nodes[0].best[&cidr("10.1.0.0/24")].next_hops[..], [ip("10.255.0.77")]);
    for hop in [EditNextHop::Own, EditNextHop::Address(ip("10.255.0.1"))] {
        net.give(0, import([Edit::NextHop(hop)]));
        net.secs(1);
        let paths = net.table(0, RouteTable::AdjIn(PeerId(1)), Family::Ipv4Unicast);
        assert_eq!(paths[&cidr("10.1.0.0/24")][0].unusable, Some(Unusable::Filtered("next_hop_self")));
    }
    assert!(!net.nodes[0].tracked.contains(&ip("10.255.0.77")));
}

#[test]
fn export_changes_reach_the_peer_and_lie_behind_the_as_of_the_session() {
    let mut net = triangle();
    net.give(
        0,
        export([
            Edit::Med(Some(40)),
            Edit::LocalPref(300),
            Edit::RemoveCommunities(all()),
            Edit::AddCommunities([9].into()),
            Edit::AddLarge([[1, 2, 3]].into()),
            Edit::AddExtended([[0, 2, 0xfd, 0xe8, 0, 0, 0, 1]].into()),
            Edit::Prepend { asn: Some(65100), times: 2 },
            Edit::NextHop(EditNextHop::Address(ip("10.255.0.9"))),
        ]),
    );
    net.secs(1);
    let ebgp = loc(&net, 1, "10.0.0.0/24");
    assert_eq!(ebgp.as_path, AsPath::from_sequence(&[64512, 65100, 65100]));
    assert_eq!((ebgp.med, ebgp.local_pref, ebgp.next_hop), (Some(40), None, ip("10.255.0.9").into()));
    assert_eq!((&*ebgp.communities, &*ebgp.large_communities), (&[9][..], &[[1, 2, 3]][..]));
    assert_eq!(ebgp.ext_communities(), [[0, 2, 0xfd, 0xe8, 0, 0, 0, 1]]);
    let ibgp = loc(&net, 2, "10.0.0.0/24");
    assert_eq!((ibgp.med, ibgp.local_pref), (Some(40), Some(300)));
    assert_eq!(ibgp.as_path, AsPath::from_sequence(&[65100, 65100]));
    net.give(0, export([Edit::Prepend { asn: None, times: 3 }]));
    net.secs(1);
    assert_eq!(loc(&net, 1, "10.0.0.0/24").as_path, AsPath::from_sequence(&[64512; 4]));
    assert!(loc(&net, 2, "10.0.0.0/24").as_path.is_empty(), "it would be a loop");
    assert_eq!((net.status(0, 1).flaps, net.status(0, 2).flaps), (0, 0));
}

/// Non-transitive: type bit 0x40.
const INSIDE: [u8; 8] = [0x40, 4, 0xfd, 0xe8, 0, 0, 0, 1];
const ONWARD: [u8; 8] = [0, 2, 0xfd, 0xe8, 0, 0, 0, 1];

fn extended(add: impl Into<Box<[[u8; 8]]>>) -> Input<'static> {
    export([Edit::AddExtended(add.into())])
}

#[test]
fn a_non_transitive_extended_community_leaves_the_as_only_where_policy_adds_it() {
    let mut net = triangle();
    net.node(64514);
    net.give(3, Input::LocalReady);
    net.join(0, 3, |at, c| c.asn = if at == 0 { 64514 } else { 64512 });
    net.give(1, extended([INSIDE, ONWARD]));
    net.secs(2);
    assert_eq!(loc(&net, 0, "10.1.0.0/24").ext_communities(), [INSIDE, ONWARD]);
    assert_eq!(loc(&net, 2, "10.1.0.0/24").ext_communities(), [INSIDE, ONWARD], "the same AS");
    assert_eq!(loc(&net, 3, "10.1.0.0/24").ext_communities(), [ONWARD]);
    net.give(1, extended([INSIDE]));
    net.secs(1);
    assert!(loc(&net, 3, "10.1.0.0/24").extra().is_none());
    let added = [0x40, 4, 0xfd, 0xe8, 0, 0, 0, 7];
    net.give(0, extended([added]));
    net.secs(1);
    assert_eq!(loc(&net, 3, "10.1.0.0/24").ext_communities(), [added]);
    assert_eq!(loc(&net, 2, "10.1.0.0/24").ext_communities(), [INSIDE, added]);
}

#[test]
fn the_validation_state_that_another_as_found_is_not_taken() {
    let mut net = triangle();
    net.originate(2, &["10.2.0.0/24"]);
    // RFC 8097 2: validation state "invalid".
    let state = [0x43, 0, 0, 0, 0, 0, 0, 2];
    for from in [1, 2] {
        net.give(from, extended([state, ONWARD]));
    }
    net.secs(2);
    assert_eq!(loc(&net, 0, "10.1.0.0/24").ext_communities(), [ONWARD]);
    assert_eq!(loc(&net, 0, "10.2.0.0/24").ext_communities(), [state, ONWARD], "the same AS");
    net.give(1, extended([state]));
    net.secs(1);
    assert!(loc(&net, 0, "10.1.0.0/24").extra().is_none());
}

#[test]
fn a_next_hop_that_does_not_fit_withholds_the_route_and_says_so() {
    let mut net = triangle();
    net.give(0, export([Edit::NextHop(EditNextHop::Address(ip("fe80::1")))]));
    net.secs(1);
    assert!(net.received(1, 0).is_empty() && net.received(2, 0).is_empty());
    let withheld = net.nodes[0].speaker.totals().withheld;
    assert!(withheld.iter().any(|(gate, n)| *gate == "next-hop" && *n > 0), "{withheld:?}");
    let trace = net.nodes[0].speaker.explain_export(cidr("10.0.0.0/24"), PeerId(1));
    let last = trace.steps.last().unwrap();
    assert_eq!((last.step, last.pass), ("next-hop", false));
    assert!(last.verdict.contains("fe80::1"), "{}", last.verdict);
}

#[test]
fn what_grows_beyond_a_message_is_withheld_by_size() {
    let mut net = triangle();
    net.give(0, export([Edit::AddLarge((0..400).map(|n| [n, 0, 0]).collect())]));
    net.secs(1);
    assert!(net.received(1, 0).is_empty());
    let withheld = net.nodes[0].speaker.totals().withheld;
    assert!(withheld.iter().any(|(gate, n)| *gate == "size" && *n > 0), "{withheld:?}");
    net.give(0, export([]));
    net.secs(1);
    assert_eq!(net.received(1, 0).len(), 1);
    assert_eq!(net.status(0, 1).flaps, 0);
}
