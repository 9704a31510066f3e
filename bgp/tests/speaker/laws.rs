//! Property: after any sequence of events, the result equals that of a fresh start.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tortie_bgp::attr::{Attributes, Edit};
use tortie_bgp::{
    Export, Family, Import, Input, PathInfo, PeerId, PeerView, Policy, Reset, RouteTable, RouteView,
};
use tortie_net::Cidr;

use crate::net::Net;
use crate::support::{Rng, cidr, no, policy, route, yes};

/// Policy that withholds and rejects routes by number and prefix, so that each number is a different policy.
struct Numbered(u64);

impl Numbered {
    fn bit(&self, prefix: Cidr, salt: u64) -> bool {
        let text = prefix.to_string();
        let sum: u64 =
            text.bytes().fold(self.0 ^ salt, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        (sum >> 20).is_multiple_of(4)
    }
}

impl Policy for Numbered {
    fn import(&self, from: &PeerView<'_>, prefix: Cidr, received: &Attributes) -> Import {
        match (self.0, self.bit(prefix, 1)) {
            (0, _) => Import::Accept,
            (_, true) => Import::Reject("numbered"),
            (number, false) if self.bit(prefix, 7) => {
                // The edits depend on the received attributes, so that an evaluation of edited ones would
                // show.
                let seen = u32::try_from(received.communities.len()).unwrap();
                // A member with several paths from nodes behind it is less preferred: it prefers our routes
                // to its own, and with equal preference there would be two stable solutions.
                let far = from.asn > 65001;
                let pref = Edit::LocalPref(if far { 90 } else { 100 + from.id.0 * number as u32 });
                Import::AcceptWith(
                    [pref, Edit::AddCommunities([seen, 1000 + number as u32].into())].into_iter().collect(),
                )
            }
            _ => Import::Accept,
        }
    }

    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        if self.0 > 0 && self.bit(route.prefix, 2 + to.class) {
            return no("numbered");
        }
        if self.0 > 0 && self.bit(route.prefix, 20 + to.class) {
            let times = self.0 as u8;
            let edits =
                [Edit::Prepend { asn: None, times }, Edit::MedAdd(5), Edit::AddCommunities([7].into())];
            return yes("numbered").with_edits(edits.into_iter().collect());
        }
        yes("numbered")
    }
}

fn prefix(n: usize) -> Cidr {
    cidr(&format!("10.{}.{}.0/24", n / 256, n % 256))
}

/// Routes by prefix and path identifier.
type Routes = BTreeMap<(Cidr, Option<u32>), PathInfo>;

fn routes(net: &Net, at: usize, table: RouteTable) -> Routes {
    let all = net.table(at, table, Family::Ipv4Unicast).into_iter();
    all.flat_map(|(prefix, paths)| paths.into_iter().map(move |p| ((prefix, p.path_id), p))).collect()
}

/// Returns the Adj-RIB-In of a node from another one.
fn view(net: &Net, at: usize, from: usize) -> BTreeMap<(Cidr, Option<u32>), Arc<Attributes>> {
    let routes = routes(net, at, RouteTable::AdjIn(PeerId(from as u32)));
    routes.into_iter().map(|(key, path)| (key, path.attributes)).collect()
}

/// Nodes behind the last member, in an AS each. They originate the same prefixes as others, so that this
/// member has several paths to send.
const LEAVES: usize = 3;

fn asn(members: usize, n: usize) -> u32 {
    match n {
        0..=3 => 64512,
        _ if n < members => 65001,
        _ => 65100 + n as u32,
    }
}

/// Returns the nodes with a session to node `n`.
fn neighbours(members: usize, n: usize) -> Vec<usize> {
    match n {
        0 => (1..=members).collect(),
        _ if n < members => vec![0],
        _ if n == members => std::iter::once(0).chain(members + 1..=members + LEAVES).collect(),
        _ => vec![members],
    }
}

/// Configures `n` as a peer of `at`. Node 0 sends two paths to member 1, three to member 4 and to the last
/// one (in another class: one or six), accepts several of the last one, and offers to send several to member
/// 2, which does not accept them.
fn half(net: &mut Net, members: usize, at: usize, n: usize, class: u64) {
    net.half(at, n, &|_: usize, c: &mut tortie_bgp::PeerConfig| {
        c.asn = asn(members, n);
        c.reflector_client = (at == 0 && n < 3).then_some(9);
        c.policy_class = class;
        c.allow_own_as = if at.max(n) < members { 3 } else { 0 };
        let many = [1, 4, members].contains(&at.max(n)) && at.min(n) == 0;
        c.add_path_receive = many;
        c.add_path_send = match (at, n) {
            (0, 1 | 2) => 2,
            (0, _) if many => [3, 1, 6][class as usize % 3],
            _ if many => 3,
            _ => 0,
        };
    });
}

/// One numbered policy for most prefixes, others for some.
#[derive(Clone, Default)]
struct Mixed {
    rest: u64,
    some: BTreeMap<Cidr, u64>,
}

impl Mixed {
    fn about(&self, prefix: Cidr) -> Numbered {
        Numbered(self.some.get(&prefix).copied().unwrap_or(self.rest))
    }
}

impl Policy for Mixed {
    fn import(&self, from: &PeerView<'_>, prefix: Cidr, received: &Attributes) -> Import {
        self.about(prefix).import(from, prefix, received)
    }

    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        self.about(route.prefix).export(to, route)
    }
}

/// Configures all peers of a node.
fn halves(net: &mut Net, members: usize, at: usize) {
    for n in neighbours(members, at) {
        half(net, members, at, n, at as u64);
    }
}

/// A reflector or transit router (0) with members around it: random events, then a quiet period.
fn life(seed: u64, members: usize, prefixes: usize, steps: usize) -> Net {
    let mut net = Net::new(seed);
    let mut rng = Rng(seed ^ 0xabcd);
    // Members 1 and 2 are clients, 3 is an iBGP peer, the others are eBGP in one AS, the last one in another
    // AS.
    let nodes = 1 + members + LEAVES;
    for n in 0..nodes {
        net.node(asn(members, n));
    }
    net.ready_all();
    for n in 0..nodes {
        halves(&mut net, members, n);
    }
    let (mut down, mut mixed) = (None, Mixed::default());
    for _ in 0..steps {
        let node = rng.below(nodes);
        let count = 1 + rng.below(6);
        match rng.below(15) {
            0..=5 => {
                let up = rng.below(3) > 0;
                let changes: Vec<_> =
                    (0..count).map(|_| (prefix(rng.below(prefixes)), up.then(route))).collect();
                if net.nodes[node].up {
                    net.give(node, Input::Local(&changes));
                }
            }
            6 => {
                if net.nodes[node].up && node != 0 {
                    net.cut(node);
                }
            }
            7 => {
                mixed = Mixed { rest: rng.next() % 5, some: BTreeMap::new() };
                net.give(0, Input::Policy(policy(mixed.clone())));
            }
            13 => {
                let number = rng.next() % 5;
                let about: Vec<_> = (0..count).map(|_| prefix(rng.below(prefixes))).collect();
                mixed.some.extend(about.iter().map(|prefix| (*prefix, number)));
                net.give(0, Input::PolicyAbout(policy(mixed.clone()), &about));
            }
            8 => {
                let n = 1 + rng.below(members);
                let class = rng.next() % 3;
                half(&mut net, members, 0, n, class);
            }
            9 => net.nodes[1 + rng.below(members)].stuck ^= true,
            10 => {
                let address = net.address(1 + rng.below(members));
                if !net.nodes[0].unreachable.remove(&address) {
                    net.nodes[0].unreachable.insert(address);
                }
                net.next_hop_changed(0, address);
            }
            11 => {
                let n = 1 + rng.below(members);
                net.nodes[n].room = [50, 400, 16 * 1024][rng.below(3)];
                net.give(
                    0,
                    Input::Reset(
                        PeerId(n as u32),
                        [Reset::SoftIn, Reset::SoftOut, Reset::Hard(String::new())][rng.below(3)].clone(),
                    ),
                );
            }
            12 => match down.take() {
                None => {
                    down = Some(1 + rng.below(members));
                    net.kill(down.unwrap());
                }
                Some(n) => {
                    let id = 0x0aff_0001 + n as u32;
                    let global = tortie_bgp::GlobalConfig {
                        restarting: (rng.below(2) == 0).then(|| vec![Family::Ipv4Unicast]),
                        ..crate::support::global(asn(members, n), id)
                    };
                    net.start(n, global, policy(crate::support::TakeAll));
                    net.give(n, Input::LocalReady);
                    halves(&mut net, members, n);
                }
            },
            _ => {
                let time = [1, 50, 3000, 20_000][rng.below(4)];
                net.run(std::time::Duration::from_millis(time));
            }
        }
        // A few steps, so that inputs meet work in progress.
        net.some(rng.below(30));
    }
    if let Some(n) = down {
        net.start(
            n,
            crate::support::global(asn(members, n), 0x0aff_0001 + n as u32),
            policy(crate::support::TakeAll),
        );
        net.give(n, Input::LocalReady);
        halves(&mut net, members, n);
    }
    for node in &mut net.nodes {
        node.stuck = false;
        node.room = 16 * 1024;
    }
    // Longer than hold time, retries, restart and stale timers together.
    net.secs(600);
    net
}

fn check(net: &mut Net, members: usize) {
    for n in 1..=members {
        assert!(net.is_up(0, n), "member {n}: {:?} {:?}", net.status(0, n), net.status(n, 0));
    }
    let held: Vec<_> = (1..=members).map(|n| view(net, n, 0)).collect();
    for (n, have) in (1..).zip(&held) {
        // The Adj-RIB-Out of node 0 equals the Adj-RIB-In of the members.
        let out = routes(net, 0, RouteTable::AdjOut(PeerId(n as u32)));
        assert_eq!(have.keys().collect::<Vec<_>>(), out.keys().collect::<Vec<_>>(), "member {n}");
        let status = net.status(0, n);
        assert_eq!(status.families[0].advertised as usize, out.len(), "member {n}");
        assert!(status.families[0].end_of_rib_sent && net.status(n, 0).families[0].end_of_rib_received);
        // No route is sent twice.
        let many = n == 1 || n == 4 || n == members;
        let mut sent: Vec<_> = out
            .iter()
            .map(|((p, _), path)| (*p, format!("{:?} {:?}", path.source, path.attributes)))
            .collect();
        let total = sent.len();
        sent.sort();
        sent.dedup();
        assert_eq!(sent.len(), total, "member {n}");
        assert!(out.keys().all(|(_, id)| id.is_some() == many), "member {n}");
        // The explanation agrees with the announcement.
        for p in 0..40 {
            let trace = net.nodes[0].speaker.explain_export(prefix(p), PeerId(n as u32));
            let first = have.range((prefix(p), None)..).next().filter(|((has, _), _)| *has == prefix(p));
            assert_eq!(trace.announced.is_some(), first.is_some(), "member {n} {p} {trace:?}");
            if let (Some(attributes), Some((_, got))) = (trace.announced, first) {
                let mut got = (**got).clone();
                // Sent on iBGP only; next hops have no link-local address here.
                got.local_pref = attributes.local_pref;
                assert_eq!(*attributes, got, "member {n} {p}");
            }
        }
        // Counters agree with the table.
        let inn = routes(net, 0, RouteTable::AdjIn(PeerId(n as u32)));
        let filtered =
            inn.values().filter(|p| matches!(p.unusable, Some(tortie_bgp::Unusable::Filtered(_)))).count();
        let best = inn.values().filter(|p| p.best).count();
        let f = status.families[0];
        let counted = (f.received as usize, f.filtered as usize, f.best as usize, f.stale);
        assert_eq!(counted, (inn.len(), filtered, best, 0), "member {n}");
        // And with the Adj-RIB-Out of the member.
        let theirs = routes(net, n, RouteTable::AdjOut(PeerId(0)));
        assert_eq!(inn.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "member {n}");
    }
    // The best paths of the table are those that take_best reported.
    let loc = net.table(0, RouteTable::Loc, Family::Ipv4Unicast);
    for (prefix, paths) in &loc {
        let learned = paths[0].best && matches!(paths[0].source, tortie_bgp::PathSource::Peer { .. });
        assert_eq!(net.nodes[0].best.contains_key(prefix), learned, "{prefix}");
        if learned {
            let hops: std::collections::BTreeSet<_> =
                paths.iter().filter(|p| p.multipath).map(|p| p.attributes.next_hop).collect();
            assert!(net.nodes[0].best[prefix].next_hops.iter().eq(hops.iter()), "{prefix}");
        }
    }
    assert!(net.nodes[0].best.keys().all(|p| loc.contains_key(p)));
    // A new session results in the same routes.
    for n in 1..=members {
        net.give(n, Input::Reset(PeerId(0), Reset::Hard(String::new())));
    }
    net.secs(60);
    for (n, have) in (1..).zip(&held) {
        assert_eq!(&view(net, n, 0), have, "member {n} after a fresh start");
    }
}

#[test]
fn thousands_of_lives_end_like_a_fresh_start() {
    for seed in 0..1500 {
        let mut net = life(seed, 5, 40, 40);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&mut net, 5)));
        assert!(result.is_ok(), "seed {seed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// When all routes are withdrawn, no prefix, attribute set or tracked next hop is left.
    #[test]
    fn nothing_is_left_behind(seed in any::<u64>()) {
        let mut net = life(seed, 5, 40, 30);
        for n in 0..6 + LEAVES {
            let all: Vec<_> = (0..40).map(|p| (prefix(p), None)).collect();
            net.give(n, Input::Local(&all));
        }
        net.secs(200);
        for node in &net.nodes {
            let totals = node.speaker.totals();
            prop_assert_eq!((totals.paths, totals.prefixes, totals.attribute_sets), ([0, 0], [0, 0], 0));
            prop_assert!(node.best.is_empty());
            prop_assert!(node.tracked.is_empty());
        }
    }
}
