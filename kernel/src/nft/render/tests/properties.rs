//! Properties of the renderer, tested on random rulesets.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::nft::ir::{Edit, Name, SetKey, SetValue, Table};
use crate::nft::ir::{SetType, Statement};
use crate::nft::render::desired;
use crate::nft::render::draft::Options;
use crate::nft::render::node::Node;
use crate::nft::render::node::{Denied, Usage};
use crate::nft::render::renderer::Renderer;
use crate::nft::render::tests::generators::{
    RandomRuleset, RulesetStep, difference, local, packet, sent, set_id, step, world,
};
use crate::nft::render::{names, ranges, sets};
use crate::nft::simulate::interpret::{Conn, Masqueraded, Route, SimulatedOutcome, check, send, through};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use tortie_config::Dialect;
use tortie_engine::policy::path::{self, Flow, Path, Place, Reason, Routes, Stage, State};
use tortie_engine::policy::{ChainId, HostInterfaces, Ruleset};
use tortie_engine::policy::{
    Decider, Decision, Direction, EndpointPolicy, Packet, SetChange, Stages, Verdict,
};
use tortie_net::Cidr;

const OPTIONS: Options = Options { log_group: Some(5), deny_group: 179 };

/// A renderer that received everything at once.
fn whole(world: &RandomRuleset) -> Renderer {
    let mut renderer = Renderer::new(OPTIONS);
    let delta = difference(&Ruleset::default(), &world.ruleset());
    renderer.take(&delta, Some(&world.globals), Some(&world.hosts));
    renderer
}

/// Applies a ruleset and then its changes, `at_once` changes at a time, to a renderer; `each` receives every
/// batch of edits.
pub(in crate::nft) fn apply_history(
    mut world: RandomRuleset,
    history: Vec<Vec<RulesetStep>>,
    at_once: usize,
    mut each: impl FnMut(&RandomRuleset, &[Edit], &Renderer),
) -> (RandomRuleset, Renderer) {
    let mut renderer = Renderer::new(OPTIONS);
    let mut before = Ruleset::default();
    for (at, steps) in std::iter::once(Vec::new()).chain(history).enumerate() {
        let first = renderer.globals().is_none();
        steps.iter().for_each(|step| world.apply(step));
        let now = world.ruleset();
        let moved = |what: fn(&RulesetStep) -> bool| first || steps.iter().any(what);
        let globals = moved(|step| matches!(step, RulesetStep::Globals(_))).then_some(&world.globals);
        let hosts = moved(|step| matches!(step, RulesetStep::Hosts(_))).then_some(&world.hosts);
        renderer.absorb(&difference(&before, &now), globals, hosts);
        if at % at_once == 0 {
            let edits = renderer.edits();
            each(&world, &edits, &renderer);
        }
        before = now;
    }
    (world, renderer)
}

/// Applies edits one after the other as the kernel would; all references are valid after each.
fn carry_out(table: &mut Table, edits: &[Edit]) {
    for edit in edits {
        match edit {
            Edit::DeleteTable => *table = Table::default(),
            Edit::ClearDormant | Edit::ReplaceElements(..) => {
                unreachable!("what others did is not known here")
            }
            Edit::Set(name, set) => {
                assert!(
                    table.sets.insert(Arc::clone(name), set.clone()).is_none(),
                    "{name} is there already"
                );
            }
            Edit::Elements { set, of, add, remove } => {
                assert!(!(add.is_empty() && remove.is_empty()), "{set}: nothing happens");
                let of: &SetType = of;
                let set = table.sets.get_mut(set).expect("the set is there");
                assert_eq!(set.of, *of);
                for (key, value) in remove {
                    assert_eq!(set.elements.remove(key).as_ref(), Some(value), "{key}");
                }
                for (key, value) in add {
                    assert_eq!(set.elements.insert(key.clone(), value.clone()), None, "{key}");
                }
            }
            Edit::DeleteSet(name) | Edit::DeleteMap(name) => {
                assert!(table.sets.remove(name).is_some(), "{name}")
            }
            Edit::NewChain(name, chain) => {
                assert!(chain.hook.is_none(), "{name} has a hook");
                assert!(
                    table.chains.insert(Arc::clone(name), (**chain).clone()).is_none(),
                    "{name} is not new"
                );
            }
            Edit::Chain(name, chain) => {
                let before = table.chains.insert(Arc::clone(name), (**chain).clone());
                assert_ne!(before.as_ref(), Some(&**chain), "{name} did not change");
                assert!(before.is_none_or(|before| before.hook == chain.hook), "{name} keeps its hook");
            }
            Edit::DeleteChain(name) => assert!(table.chains.remove(name).is_some(), "{name}"),
        }
        check(table);
    }
}

/// Checks that no chain or set is unreferenced.
fn check_used(table: &Table) {
    let mut used: BTreeSet<Name> =
        table.chains.iter().filter(|(_, c)| c.hook.is_some()).map(|(n, _)| n.clone()).collect();
    let values = table.sets.values().flat_map(|set| set.elements.values());
    used.extend(values.filter_map(|value| match value {
        SetValue::Goto(name) | SetValue::Jump(name) => Some(name.clone()),
        SetValue::Member | SetValue::Addr(_) => None,
    }));
    for chain in table.chains.values() {
        for rule in &chain.rules {
            if let Statement::Jump(to) | Statement::Goto(to) = &rule.statement {
                used.insert(to.clone());
            }
        }
    }
    assert!(used.iter().eq(table.chains.keys()), "chains without a user");
}

/// Converts the interpreter's result to a policy decision.
fn decision(
    renderer: &Renderer,
    end: Option<bool>,
    outcome: &SimulatedOutcome,
) -> (Option<Verdict>, Option<Decider>) {
    let mut denied =
        outcome.logs.iter().filter(|log| log.group == Some(OPTIONS.deny_group)).map(|log| &*log.prefix);
    let by =
        denied.next_back().map(|prefix| match renderer.explain(prefix).expect("it knows its prefixes") {
            Denied::Rule(id, at) => Decider::Rule(id.clone(), *at),
            Denied::EndOfTier { tier, .. } => Decider::EndOfTier((**tier).into()),
            Denied::EndOfProfiles { .. } => Decider::EndOfProfiles,
            other => panic!("{other:?}"),
        });
    let verdict = end.map(|accepted| if accepted { Verdict::Allow } else { Verdict::Deny });
    (verdict, by)
}

/// Returns the rules of policies and profiles that counted a packet.
fn counted(renderer: &Renderer, outcome: &SimulatedOutcome) -> Vec<(ChainId, usize)> {
    let places: BTreeMap<Name, &ChainId> =
        renderer.ruleset().chains.keys().filter_map(|id| Some((renderer.place_of(id)?, id))).collect();
    let rule = |(chain, at): &(Name, usize)| {
        let id = *places.get(chain)?;
        Some((id.clone(), renderer.rules_of(id)[*at]))
    };
    outcome.counted.iter().filter_map(rule).collect()
}

fn agree(
    renderer: &Renderer,
    expected: &Decision,
    end: Option<bool>,
    outcome: &SimulatedOutcome,
    what: &str,
) {
    let (verdict, by) = decision(renderer, end, outcome);
    assert_eq!(verdict, expected.verdict, "{what}: {:?}", expected.by);
    if expected.verdict == Some(Verdict::Deny) {
        assert_eq!(by.as_ref(), Some(&expected.by), "{what}");
    }
    assert_eq!(counted(renderer, outcome), expected.matched, "{what}");
    let logs: Vec<String> = outcome
        .logs
        .iter()
        .filter(|log| log.group == OPTIONS.log_group)
        .map(|log| log.prefix.trim_end_matches(": ").to_owned())
        .collect();
    let expected: Vec<&str> = expected.logs.iter().map(|log| log.as_str()).collect();
    assert_eq!(logs, expected, "{what}");
}

/// Returns the chains for a workload's packets, as referred to by the maps of its interface.
fn passed(stages: &Stages, direction: Direction) -> Vec<Name> {
    let profiles = match &stages.profiles[..] {
        [] => None,
        [one] => Some(Node::Rules { id: one.clone(), usage: Usage::Filter }),
        several => Some(Node::Profiles { profiles: several.to_vec(), direction }),
    };
    let end = Node::Denied(Denied::EndOfProfiles { direction });
    let then = profiles.iter().chain([&end]).map(names::chain);
    std::iter::once(names::tiers(&stages.tiers, direction)).chain(then).collect()
}

/// Runs a packet through the chains, each with the result of the one before, until one decides.
fn in_order(renderer: &Renderer, chains: &[Name], packet: &Packet) -> (Option<bool>, SimulatedOutcome) {
    let mut sum: Option<SimulatedOutcome> = None;
    for chain in chains {
        let now = sum.as_ref().map_or_else(|| sent(packet, None, Conn::New), |sum| sum.packet.clone());
        let (end, mut outcome) = through(renderer.table(), chain, now, &local());
        if let Some(before) = sum.take() {
            outcome.counted.splice(0..0, before.counted);
            outcome.logs.splice(0..0, before.logs);
        }
        if end.is_some() {
            return (end, outcome);
        }
        sum = Some(outcome);
    }
    (None, sum.expect("one chain at least"))
}

/// Checks that the chains of an endpoint give the same result as the policy engine.
fn check_endpoint(renderer: &Renderer, dialect: Dialect, endpoint: &EndpointPolicy, packet: &Packet) {
    let ruleset = renderer.ruleset();
    let run = |chain: Name| through(renderer.table(), &chain, sent(packet, None, Conn::New), &local());
    let both: [(&Stages, Direction); 2] = match endpoint {
        EndpointPolicy::Workload(w) => [(&w.inbound, Direction::Inbound), (&w.outbound, Direction::Outbound)],
        EndpointPolicy::Host(h) => [(&h.inbound, Direction::Inbound), (&h.outbound, Direction::Outbound)],
    };
    for (stages, direction) in both {
        let chains = match endpoint {
            EndpointPolicy::Workload(_) => passed(stages, direction),
            EndpointPolicy::Host(_) => vec![names::host(stages, direction)],
        };
        if chains.iter().all(|chain| renderer.table().chains.contains_key(chain)) {
            let (end, outcome) = in_order(renderer, &chains, packet);
            agree(renderer, &ruleset.decide(stages, packet), end, &outcome, "stages");
        }
    }
    if let EndpointPolicy::Host(host) = endpoint {
        for (chains, usage, direction) in [
            (&host.untracked_inbound, Usage::Untracked, Direction::Inbound),
            (&host.untracked_outbound, Usage::Untracked, Direction::Outbound),
            (&host.pre_dnat, Usage::PreDnat, Direction::Inbound),
        ] {
            let chain = names::chain(&Node::Early { chains: chains.clone(), usage, direction });
            if chains.is_empty() || !renderer.table().chains.contains_key(&chain) {
                continue;
            }
            let (end, outcome) = run(chain);
            let expected = ruleset.decide_early(dialect, chains, packet);
            // An undecided packet continues, which the end of a chain and `next-tier` express in two ways.
            let marked = outcome.packet.mark != 0;
            let end = if end == Some(true) && !marked { None } else { end };
            agree(renderer, &expected, end, &outcome, "early");
            let untracked = outcome.packet.state == Conn::Untracked;
            let allowed = expected.verdict == Some(Verdict::Allow);
            assert_eq!(untracked, allowed && usage == Usage::Untracked);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_rendered_rules_say_what_policy_says(world in world(), packets in proptest::collection::vec(packet(), 100)) {
        let mut world = world;
        world.globals.ipv6 = true;
        // Failsafe ports precede policy, and the policy engine does not know them.
        world.globals.failsafe_inbound.clear();
        world.globals.failsafe_outbound.clear();
        let renderer = whole(&world);
        for packet in &packets {
            for endpoint in world.endpoints.values() {
                check_endpoint(&renderer, world.globals.dialect, endpoint, packet);
            }
        }
    }

    #[test]
    fn change_by_change_it_is_as_from_nothing(
        world in world(),
        history in proptest::collection::vec(proptest::collection::vec(step(), 1..4), 1..20),
        at_once in 1usize..4,
    ) {
        let mut table = Table::default();
        let (mut world, mut renderer) = apply_history(world, history, at_once, |world, edits, renderer| {
            carry_out(&mut table, edits);
            assert_eq!(&table, renderer.table());
            assert_eq!(renderer.ruleset(), &world.ruleset());
            check_used(&table);
            let fresh = whole(world);
            assert_eq!(&table.chains, &fresh.table().chains);
            assert_eq!(&table.sets, &fresh.table().sets);
        });
        // Nothing is left after all endpoints are removed.
        let empty = difference(&world.ruleset(), &Ruleset::default());
        let edits = renderer.take(&empty, None, Some(&HostInterfaces::new()));
        carry_out(&mut table, &edits);
        world.endpoints.clear();
        world.hosts.clear();
        let fresh = whole(&world);
        prop_assert_eq!(&table, fresh.table());
    }

    #[test]
    fn a_set_of_networks_shows_the_fewest(changes in proptest::collection::vec((0u8..16, 27u8..=32, any::<bool>()), 1..60)) {
        let net = |at: u8, len| Cidr::v4([10, 0, 0, at].into(), len);
        let (mut ruleset, mut wanted, mut sets) = (Ruleset::default(), desired::DesiredTable::default(), sets::Sets::default());
        let id = set_id(0);
        sets.change(&id, &SetChange::New([net(128, 25)].into()), &mut ruleset, &mut wanted);
        sets.acquire(&id, true, &"c".into(), &ruleset, &mut wanted);
        let mut members: BTreeSet<Cidr> = [net(128, 25)].into();
        for (at, len, come) in changes {
            let (mut add, mut remove) = (BTreeSet::new(), BTreeSet::new());
            if come { &mut add } else { &mut remove }.insert(net(at, len));
            if come { members.insert(net(at, len)); } else { members.remove(&net(at, len)); }
            sets.change(&id, &SetChange::Members { add, remove }, &mut ruleset, &mut wanted);
            let shown: Vec<SetKey> = wanted.elements(&sets.name(&id, true).unwrap()).unwrap().keys().cloned().collect();
            let fewest: Vec<SetKey> = ranges::uncovered(members.iter().copied()).into_iter().map(SetKey::Addr).collect();
            prop_assert_eq!(shown, fewest);
        }
    }
}

/// Routes of the packets in these tests.
fn routes() -> Routes {
    let via = [
        ("10.0.0.1/32", "cali1"),
        ("10.0.0.2/32", "cali2"),
        ("10.0.0.3/32", "cali3"),
        ("10.0.0.4/32", "eth1"),
        ("10.0.0.5/32", "tap9"),
        ("10.0.1.0/24", "tunl0"),
        ("0.0.0.0/0", "eth0"),
        ("fd00::1/128", "cali1"),
        ("fd00::2/128", "cali2"),
        ("::/0", "eth0"),
    ];
    let via = via.map(|(net, name)| (net.parse().unwrap(), name.into()));
    Routes { local: local(), via: via.into() }
}

/// Returns addresses from which a workload interface may send.
fn sources(renderer: &Renderer, interface: &str, v4: bool) -> Vec<IpAddr> {
    let own = renderer.ruleset().endpoints.values().filter_map(|endpoint| match &**endpoint {
        EndpointPolicy::Workload(workload) if workload.interface.as_str() == interface => {
            Some(&workload.nets)
        }
        _ => None,
    });
    own.flatten().filter(|net| net.is_v4() == v4).map(Cidr::last).collect()
}

/// Converts the end of the engine's path to a reason for a drop; `None` if it is not dropped, or dropped
/// without a reason.
fn dropped_by(path: &Path) -> Option<Denied> {
    let step = path.steps.last().filter(|_| path.verdict == Verdict::Deny)?;
    let direction = match step.stage {
        Stage::HostInbound | Stage::ForwardInbound | Stage::ToWorkload => Direction::Inbound,
        _ => Direction::Outbound,
    };
    Some(match &step.reason {
        Reason::Policy(decision) => match &decision.by {
            Decider::Rule(id, at) => Denied::Rule(id.clone(), *at),
            Decider::EndOfTier(tier) => Denied::EndOfTier { tier: (**tier).into(), direction },
            Decider::EndOfProfiles => Denied::EndOfProfiles { direction },
            Decider::Nobody => panic!("nobody drops nothing"),
        },
        Reason::UnknownInterface => Denied::UnknownInterface,
        Reason::Spoofed => Denied::Spoofed,
        Reason::Loopback => Denied::Loopback,
        Reason::Inactive => Denied::Inactive,
        Reason::UnknownTunnel => Denied::Ipip,
        Reason::UnknownVxlan => Denied::Vxlan,
        Reason::VxlanOfWorkload => Denied::VxlanOfWorkload,
        Reason::ToHost(_) => Denied::ToHost,
        Reason::NoIpv6 => Denied::NoIpv6,
        Reason::Invalid => return None,
        other => panic!("{other:?}"),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_whole_way_is_as_policy_says(
        world in world(), flows in proptest::collection::vec((packet(), 0usize..8, 0usize..6, 0usize..4), 100),
    ) {
        let renderer = whole(&world);
        let ruleset = world.ruleset();
        let routes = routes();
        let node = path::Node { ruleset: &ruleset, globals: &world.globals, hosts: &world.hosts, routes: &routes };
        for (packet, from, state, own) in flows {
            let mut packet = packet;
            // From the host itself, by each interface, and by an unknown one.
            let by = [None, Some("cali1"), Some("cali2"), Some("cali3"), Some("eth0"), Some("eth1"), Some("tunl0"), Some("tap9")][from];
            // Mostly from an address of the interface's endpoint.
            let sources = by.map(|name| sources(&renderer, name, packet.dst.is_ipv4())).unwrap_or_default();
            packet.src = sources.get(own).copied().unwrap_or(packet.src);
            let (state, conn) = [
                (State::New, Conn::New),
                (State::New, Conn::New),
                (State::New, Conn::New),
                (State::Invalid, Conn::Invalid),
                (State::Established { reply: false }, Conn::Established { reply: false }),
                (State::Established { reply: true }, Conn::Established { reply: true }),
            ][state];
            let from = by.map_or(Place::Host, |name| Place::Interface(name.into()));
            let path = node.path(&Flow { packet, from: from.clone(), state });
            let route = |addr| match routes.place(addr).expect("everything has a route") {
                Place::Host => Route::Local,
                Place::Interface(name) => Route::Out(name),
            };
            let outcome = send(renderer.table(), sent(&packet, by, conn), &local(), route);
            let what = format!("{packet:?} from {from:?} {state:?}: {path:?}");
            prop_assert_eq!(outcome.dropped.is_none(), path.verdict == Verdict::Allow, "{}", what);
            let logged = outcome.logs.iter().rfind(|log| log.group == Some(OPTIONS.deny_group));
            let logged = logged.map(|log| renderer.explain(&log.prefix).expect("it knows its prefixes"));
            if outcome.dropped.is_some() {
                prop_assert_eq!(logged.cloned(), dropped_by(&path), "{}", what);
            }
            prop_assert_eq!(outcome.packet.dst, path.packet.dst, "{}", what);
            prop_assert_eq!(outcome.packet.state == Conn::Untracked, path.untracked, "{}", what);
            let matched: Vec<(ChainId, usize)> = path.steps.iter().flat_map(|step| match &step.reason {
                Reason::Policy(decision) => decision.matched.clone(),
                _ => Vec::new(),
            }).collect();
            prop_assert_eq!(counted(&renderer, &outcome), matched, "{}", what);
            let snat = path.steps.iter().find(|step| step.stage == Stage::Snat).map(|step| match step.reason {
                Reason::Translated(_, to) => Ok(to),
                _ => Err(Masqueraded),
            });
            prop_assert_eq!(outcome.source, snat, "{}", what);
        }
    }
}
