#![allow(unsafe_code, reason = "a thread of its own enters a network namespace of its own")]
//! Probes the features of the running kernel: each is used once, with the encoders of the agent, in a
//! temporary network namespace that ends with the probing thread. Nothing of the host changes, and nothing is
//! inferred from a version.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use rustix::thread::UnshareFlags;
use tortie_net::Cidr;

use crate::netlink::codec::{NLM_F_CREATE, NLM_F_EXCL, Put};
use crate::netlink::link::{self, LinkChange};
use crate::netlink::nexthop::{self, Content};
use crate::netlink::route::{self, RouteId, Via};
use crate::netlink::socket::Socket;
use crate::netlink::vxlan::{DeviceChange, VxlanSpec};
use crate::netlink::{conntrack::connections, dump, message};
use crate::nft::ir::{
    At, Chain, Edit, Field, Hook, KeyType, Kind, Log, Match, Rule, Set, SetKey, SetType, SetValue, Side,
    Statement, ValueType,
};
use crate::nft::socket::{BatchError, Socket as Rules};
use crate::vxlan::name as vxlan_device;

/// Protocol, metric and first nexthop ID as in [`crate::Options::new`].
const PROTOCOL: u8 = 179;
const METRIC: u32 = 1790;
const NEXTHOP: u32 = 0x5400_0001;
/// Number of routes in the timed batch.
const BATCH: u16 = 1_000;
/// Name of the nftables table used for probing.
const TABLE: &str = "tortie-doctor";
/// Names of the veth pair.
const PAIR: [&str; 2] = ["doctor0", "doctor1"];
/// Gateway of the probed routes (RFC 5737, RFC 2544).
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The feature works; with an observation, or an empty text.
    Works(String),
    /// The kernel refused it; with its answer.
    Refused(String),
    /// The probe could not run; with the reason.
    NotTried(String),
}

/// A feature of the kernel, with the result of its probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelCapability {
    /// Stable identifier: `nft-sets`, `nexthop-objects`, ...
    pub name: &'static str,
    /// Description of the feature.
    pub about: &'static str,
    /// Function of Tortie that needs it.
    pub needed_for: &'static str,
    /// True if the agent can work without it.
    pub optional: bool,
    /// Result of the probe.
    pub outcome: ProbeOutcome,
}

/// All probes, in order; later ones use objects that earlier ones created.
const PROBES: [(&str, &str, &str, bool, Probe); 15] = [
    ("links", "a veth pair, up, with an address", "workloads", false, links),
    ("routes", "a batch of 1,000 routes", "routes", false, routes),
    ("nexthop-objects", "a nexthop object and a route over it", "routes that change quickly", true, nexthops),
    ("ipip", "an ipip tunnel device", "pools with ipip", true, ipip),
    ("vxlan", "a vxlan device", "pools with vxlan", true, vxlan),
    ("nft-table", "a table of family inet with a base chain", "policy", false, table),
    ("nft-sets", "a hash set and an interval set", "policy", false, sets),
    (
        "nft-concatenation",
        "a set of interfaces with networks",
        "checks of source addresses",
        false,
        concatenation,
    ),
    ("nft-verdict-map", "a verdict map of interfaces", "policy", false, verdict_map),
    ("nft-counters", "rules with counter, rate and comment", "policy", false, counters),
    ("nft-conntrack", "rules on the state of connections", "policy", false, conntrack_rules),
    ("nft-fib", "rules on local addresses", "failsafe ports and host endpoints", false, fib),
    ("nft-log", "a rule with a log group", "`tortie why drop`", true, log),
    ("nft-nat", "masquerade and a map of destinations", "masquerade, floating addresses", true, nat),
    (
        "conntrack",
        "the table of connections, read over netlink",
        "ending denied connections",
        true,
        conntrack,
    ),
];

type Probe = fn(&mut ProbeNamespace) -> io::Result<Result<String, String>>;

/// State shared by the probes.
struct ProbeNamespace {
    netlink: Socket,
    rules: Rules,
    /// Index of the first interface of the pair.
    near: Option<u32>,
}

/// Runs all probes, in about 50 ms; the caller's namespace does not change.
#[must_use]
pub fn probe_kernel() -> Vec<KernelCapability> {
    let capability = |(name, about, needed_for, optional, _): (_, _, _, _, Probe), outcome| {
        KernelCapability { name, about, needed_for, optional, outcome }
    };
    let body = move || -> Result<Vec<KernelCapability>, String> {
        // SAFETY: only the network namespace of this fresh thread changes; no other code runs on it.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
            .map_err(|error| format!("no network namespace of its own ({error}): try it as root"))?;
        let netlink = Socket::open().map_err(|e| format!("no netlink socket: {e}"))?;
        let rules = Rules::open().map_err(|e| format!("no nfnetlink socket: {e}"))?;
        let mut namespace = ProbeNamespace { netlink, rules, near: None };
        let outcome = |probe: Probe, namespace: &mut ProbeNamespace| match probe(namespace) {
            Ok(Ok(seen)) => ProbeOutcome::Works(seen),
            Ok(Err(refused)) => ProbeOutcome::Refused(refused),
            Err(error) => ProbeOutcome::Refused(error.to_string()),
        };
        Ok(PROBES.into_iter().map(|row| capability(row, outcome(row.4, &mut namespace))).collect())
    };
    let thread = std::thread::Builder::new().name("abilities".to_owned()).spawn(body);
    let done = match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => Err("the thread that tries ended early".to_owned()),
        Err(error) => Err(format!("no thread to try in: {error}")),
    };
    done.unwrap_or_else(|why| {
        PROBES.into_iter().map(|row| capability(row, ProbeOutcome::NotTried(why.clone()))).collect()
    })
}

fn links(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let [near, far] = PAIR;
    let made = namespace.netlink.request(|(), buf, flags, seq| {
        let pair = link::veth(link::named(near), link::named(far));
        message::write(buf, flags | NLM_F_CREATE | NLM_F_EXCL, seq, pair);
    })?;
    if let Err(refusal) = made {
        return Ok(Err(format!("{refusal}: is the kernel module veth loaded?")));
    }
    let (devices, _) = dump::devices(&mut namespace.netlink)?;
    for device in devices.iter().filter(|d| PAIR.contains(&d.name.as_str())) {
        let up = LinkChange::Set { ifindex: device.index, mtu: None };
        if let Err(refusal) = namespace.netlink.request(|(), buf, flags, seq| up.encode(buf, flags, seq))? {
            return Ok(Err(refusal.to_string()));
        }
    }
    namespace.near = devices.iter().find(|d| d.name == near).map(|d| d.index);
    let Some(ifindex) = namespace.near else {
        return Ok(Err("the pair was made and is not there".to_owned()));
    };
    let address = LinkChange::AddAddress { ifindex, addr: Ipv4Addr::new(192, 0, 2, 1) };
    let set = namespace.netlink.request(|(), buf, flags, seq| address.encode(buf, flags, seq))?;
    Ok(set.map(|()| String::new()).map_err(|refusal| refusal.to_string()))
}

fn id(prefix: Cidr) -> RouteId {
    RouteId { prefix, protocol: PROTOCOL, metric: METRIC }
}

fn routes(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let prefix = |n: u16| {
        let [high, low] = n.to_be_bytes();
        Cidr::host(IpAddr::V4(Ipv4Addr::new(198, 18, high, low)))
    };
    let prefixes: Vec<Cidr> = (0..BATCH).map(prefix).collect();
    let mut refused = None;
    let begin = Instant::now();
    namespace.netlink.batch(
        &prefixes,
        |prefix, buf, flags, seq| {
            route::encode_put(buf, flags, seq, &id(*prefix), Via::Blackhole, Put::Add);
        },
        |_, result| refused = refused.take().or(result.err()),
    )?;
    let took = begin.elapsed();
    Ok(match refused {
        None => Ok(format!("in {:.1} ms", took.as_secs_f64() * 1_000.0)),
        Some(refusal) => Err(refusal.to_string()),
    })
}

fn nexthops(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let Some(ifindex) = namespace.near else { return Ok(Err("there is no interface to use".to_owned())) };
    let content = Content::Single { gateway: IpAddr::V4(GATEWAY), ifindex, onlink: true };
    let made = namespace.netlink.request(|(), buf, flags, seq| {
        nexthop::encode_put(buf, flags, seq, NEXTHOP, PROTOCOL, &content, Put::Add);
    })?;
    if let Err(refusal) = made {
        return Ok(Err(refusal.to_string()));
    }
    let prefix = Cidr::host(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)));
    let written = namespace.netlink.request(|(), buf, flags, seq| {
        route::encode_put(buf, flags, seq, &id(prefix), Via::Nexthop(NEXTHOP), Put::Add);
    })?;
    Ok(written.map(|()| String::new()).map_err(|refusal| refusal.to_string()))
}

fn ipip(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    // The agent's request: the kernel creates its fallback device of that name when the module is loaded.
    let create = LinkChange::CreateIpip { name: "tunl0".to_owned() };
    let made = namespace.netlink.request(|(), buf, flags, seq| create.encode(buf, flags, seq))?;
    Ok(match made {
        Err(refusal) if refusal.code != libc::EEXIST => {
            Err(format!("{refusal}: is the kernel module ipip loaded?"))
        }
        _ => Ok(String::new()),
    })
}

fn vxlan(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let spec = VxlanSpec {
        vni: 4096,
        port: 4789,
        parent: namespace.near.unwrap_or(0),
        local: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        mac: [0x66, 0, 0, 0, 0, 1],
    };
    let create = DeviceChange::Create { name: vxlan_device(true), spec, mtu: 1_400 };
    let made = namespace.netlink.request(|(), buf, flags, seq| create.encode(buf, flags, seq))?;
    Ok(made
        .map(|()| String::new())
        .map_err(|refusal| format!("{refusal}: is the kernel module vxlan loaded?")))
}

/// Applies edits to the table.
fn write(namespace: &mut ProbeNamespace, edits: &[Edit]) -> io::Result<Result<String, String>> {
    match namespace.rules.batch(edits, TABLE) {
        Ok(()) => Ok(Ok(String::new())),
        Err(BatchError::Refused(refusal)) => Ok(Err(refusal.text)),
        Err(BatchError::Unknown) => Ok(Err("the kernel's answer was lost".to_owned())),
        Err(BatchError::Socket(error)) => Err(error),
    }
}

fn chain(name: &str, hook: Option<Hook>, rules: Vec<Rule>) -> Edit {
    Edit::Chain(name.into(), Arc::new(Chain { hook, rules }))
}

fn set<const N: usize>(
    name: &str,
    key: KeyType,
    value: ValueType,
    interval: bool,
    all: [(SetKey, SetValue); N],
) -> Edit {
    let of = SetType { key, value, interval };
    Edit::Set(name.into(), Set { of, comment: "tried by doctor".into(), elements: BTreeMap::from(all) })
}

fn network() -> Cidr {
    Cidr::v4(GATEWAY, 24)
}

fn table(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let hook = Hook { kind: Kind::Filter, at: At::Forward, priority: 0 };
    write(namespace, &[chain("forward", Some(hook), Vec::new())])
}

fn sets(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let one = (SetKey::Addr(Cidr::host(IpAddr::V4(GATEWAY))), SetValue::Member);
    let net = (SetKey::Addr(network()), SetValue::Member);
    let key = KeyType::Addr { v4: true };
    let hash = set("addresses", key, ValueType::Member, false, [one]);
    write(namespace, &[hash, set("networks", key, ValueType::Member, true, [net])])
}

fn concatenation(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let element = (SetKey::InterfaceAddr("cali0".into(), network()), SetValue::Member);
    let from = set("from", KeyType::InterfaceAddr { v4: true }, ValueType::Member, true, [element]);
    let looked_up = Match::InSet {
        not: false,
        key: vec![Field::InInterface, Field::Addr(Side::Src)],
        set: "from".into(),
    };
    let rule = Rule { matches: vec![Match::Family { v4: true }, looked_up], ..Rule::default() };
    write(namespace, &[from, chain("sources", None, vec![rule])])
}

fn verdict_map(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let element = (SetKey::Interface("cali0".into()), SetValue::Goto("target".into()));
    let map = set("dispatch", KeyType::Interface, ValueType::Verdict, false, [element]);
    let statement = Statement::VerdictMap { key: vec![Field::InInterface], map: "dispatch".into() };
    let rule = Rule { statement, ..Rule::default() };
    write(namespace, &[chain("target", None, Vec::new()), map, chain("dispatcher", None, vec![rule])])
}

fn counters(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let rule = Rule {
        limit: Some(10),
        counted: true,
        statement: Statement::Drop,
        comment: Some("tried by doctor".into()),
        ..Rule::default()
    };
    write(namespace, &[chain("counted", None, vec![rule])])
}

fn conntrack_rules(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let rule = |matched, statement| Rule { matches: vec![matched], statement, ..Rule::default() };
    let rules = vec![rule(Match::Established, Statement::Accept), rule(Match::Invalid, Statement::Drop)];
    write(namespace, &[chain("states", None, rules)])
}

fn fib(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let rule = Rule { matches: vec![Match::Local { side: Side::Dst }], ..Rule::default() };
    let hook = Hook { kind: Kind::Filter, at: At::Prerouting, priority: -300 };
    write(namespace, &[chain("raw", Some(hook), vec![rule])])
}

fn log(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let log = Some(Log { prefix: "doctor".into(), group: Some(crate::nft::DENY_GROUP) });
    write(namespace, &[chain("logged", None, vec![Rule { log, ..Rule::default() }])])
}

fn nat(namespace: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    let key = KeyType::Addr { v4: true };
    let element = (SetKey::Addr(Cidr::host(IpAddr::V4(GATEWAY))), SetValue::Addr(IpAddr::V4(GATEWAY)));
    let map = set("floating", key, ValueType::Addr { v4: true }, false, [element]);
    let to =
        Statement::DestinationNat { v4: true, key: vec![Field::Addr(Side::Dst)], map: "floating".into() };
    let rule = |statement| Rule { matches: vec![Match::Family { v4: true }], statement, ..Rule::default() };
    let at = |at, priority| Some(Hook { kind: Kind::Nat, at, priority });
    let edits = [
        map,
        chain("dnat", at(At::Prerouting, -100), vec![rule(to)]),
        chain("snat", at(At::Postrouting, 100), vec![rule(Statement::Masquerade)]),
    ];
    write(namespace, &edits)
}

fn conntrack(_: &mut ProbeNamespace) -> io::Result<Result<String, String>> {
    connections().map(|_| Ok(String::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_tried_and_the_host_stays_as_it_was() {
        let before = std::fs::read_to_string("/proc/net/dev").unwrap().lines().count();
        let all = probe_kernel();
        assert_eq!(all.len(), PROBES.len());
        assert_eq!(std::fs::read_to_string("/proc/net/dev").unwrap().lines().count(), before);
        if matches!(all[0].outcome, ProbeOutcome::NotTried(_)) {
            assert!(std::env::var_os("CI").is_none(), "no network namespace in CI: {:?}", all[0]);
            return eprintln!("skipped: {:?}", all[0]);
        }
        // The machines of this test have no ipip; everything else must work as in the agent's own tests.
        let wrong: Vec<&KernelCapability> =
            all.iter().filter(|a| a.name != "ipip" && !matches!(a.outcome, ProbeOutcome::Works(_))).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let ProbeOutcome::Works(seen) = &all[1].outcome else { panic!("{:?}", all[1]) };
        assert!(seen.starts_with("in ") && seen.ends_with(" ms"), "{seen}");
    }

    #[test]
    fn without_rights_nothing_is_tried_and_nothing_is_claimed() {
        // A thread without CAP_SYS_ADMIN cannot create a namespace, nor can the threads it starts.
        let all = std::thread::spawn(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(rustix::thread::CapabilitySet::SYS_ADMIN);
            rustix::thread::set_capabilities(None, sets).unwrap();
            probe_kernel()
        })
        .join()
        .unwrap();
        let why = "no network namespace of its own";
        assert!(
            all.iter().all(|a| matches!(&a.outcome, ProbeOutcome::NotTried(text) if text.starts_with(why))),
            "{all:#?}"
        );
    }
}
