//! Tests with the real kernel, each in a separate network namespace, with nft as a second opinion.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

use crate::nft::dump::{self, TableDump};
use crate::nft::encode::{RuleHash, rule_hash};
use crate::nft::ir::*;
use crate::nft::socket::{BatchError, Socket};
use crate::nft::tests::fixtures::{any_table, cidr, edits, everything, set_of};
use crate::nft::text;

pub(in crate::nft) use tortie_topology::netns::in_netns;

/// The nft program unpacked by tests/tools/peers.sh, else from PATH. Without it a test is skipped; in CI that
/// is a failure.
pub(in crate::nft) fn nft() -> Option<PathBuf> {
    let peers = std::env::var_os("TORTIE_PEERS").map(PathBuf::from);
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = peers.into_iter().chain([own]).chain(std::env::split_paths(&path)).chain(["/usr/sbin".into()]);
    let found = dirs.map(|dir| dir.join("nft")).find(|p| p.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "nft is missing; run tests/tools/peers.sh");
        eprintln!("skipped: nft is missing; tests/tools/peers.sh brings it");
    }
    found
}

/// Runs nft in the namespace of the calling thread.
pub(in crate::nft) fn run(nft: &PathBuf, words: &[&str], input: &str) -> String {
    let mut child = Command::new(nft)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let numbered: String = input.lines().enumerate().map(|(i, l)| format!("{:4} {l}\n", i + 1)).collect();
    assert!(out.status.success(), "nft {words:?}: {}\n{numbered}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Asserts that nft accepts a text.
pub(in crate::nft) fn taken(nft: &PathBuf, text: &str) {
    run(nft, &["-c", "-f", "-"], text);
}

/// Lists a table with nft, without properties that differ between two equal tables.
fn listed(nft: &PathBuf, table: &str) -> Vec<String> {
    let json: Value = serde_json::from_str(&run(nft, &["-j", "list", "table", "inet", table], "")).unwrap();
    let mut lines: Vec<String> = json["nftables"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item.get("metainfo").is_none())
        .map(|item| {
            let mut item = item.clone();
            for part in item.as_object_mut().unwrap().values_mut() {
                let part = part.as_object_mut().unwrap();
                part.remove("handle");
                part.remove("table");
                if let Some(Value::Array(elements)) = part.get_mut("elem") {
                    elements.sort_by_key(Value::to_string);
                }
            }
            item.to_string()
        })
        .filter(|line| !line.starts_with("{\"table\""))
        .collect();
    // Rules keep their order; chains and sets are listed in the order of creation.
    lines.sort_by_key(|line| (!line.starts_with("{\"rule\"")).then(|| line.clone()));
    let rules = lines.iter().filter(|l| l.starts_with("{\"rule\"")).count();
    lines[..rules].sort_by_key(|line| {
        let rule: Value = serde_json::from_str(line).unwrap();
        rule["rule"]["chain"].to_string()
    });
    lines
}

/// Chains with the hashes of their rules, and sets with their elements.
pub(in crate::nft) type Contents =
    (BTreeMap<Name, (Option<Hook>, Vec<RuleHash>)>, BTreeMap<Name, (SetType, BTreeMap<SetKey, SetValue>)>);

/// Returns the expected dump of a correct table.
pub(in crate::nft) fn desired(table: &Table) -> Contents {
    let chains = table
        .chains
        .iter()
        .map(|(name, chain)| (Arc::clone(name), (chain.hook, chain.rules.iter().map(rule_hash).collect())));
    let sets = table.sets.iter().map(|(name, set)| (Arc::clone(name), (set.of, set.elements.clone())));
    (chains.collect(), sets.collect())
}

/// Returns the content of a dump.
pub(in crate::nft) fn contents(found: &TableDump) -> Contents {
    let chains = found.chains.iter().map(|(name, chain)| {
        assert!(!chain.foreign, "{name}");
        (Arc::clone(name), (chain.hook, chain.rules.iter().map(|r| r.hash.unwrap()).collect()))
    });
    let sets = found.sets.iter().map(|(name, set)| {
        assert!(set.whole, "{name}");
        (Arc::clone(name), (set.of.unwrap(), set.elements.clone()))
    });
    (chains.collect(), sets.collect())
}

#[test]
fn the_messages_and_the_text_make_the_same_table() {
    let Some(nft) = nft() else { return };
    in_netns(move || {
        let table = everything();
        let mut socket = Socket::open().unwrap();
        socket.batch(&edits(&table), "ours").unwrap();
        run(&nft, &["-f", "-"], &text::table(&table, "theirs"));
        let (ours, theirs) = (listed(&nft, "ours"), listed(&nft, "theirs"));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs);
        }
        assert_eq!(ours.len(), theirs.len());
        let found = dump::table(&mut socket, "ours").unwrap().unwrap();
        assert_eq!(contents(&found), desired(&table));
        // The form in which nft writes intervals is parsed, too.
        let found = dump::table(&mut socket, "theirs").unwrap().unwrap();
        for (name, set) in &found.sets {
            assert_eq!(set.of, Some(table.sets[name].of), "{name}");
            assert!(set.whole && set.elements == table.sets[name].elements, "{name}: {set:?}");
        }
        assert!(found.chains.values().flat_map(|c| &c.rules).all(|r| r.hash.is_none()), "not our rules");
    });
}

#[test]
fn any_table_comes_back_as_it_was_written_and_its_text_is_taken() {
    let nft = nft();
    in_netns(move || {
        let mut runner = TestRunner::new(Config { cases: 6, failure_persistence: None, ..Config::default() });
        let tables = proptest::collection::vec(any_table(), 8);
        let result = runner.run(&tables, |tables| {
            let mut socket = Socket::open().unwrap();
            let mut all = String::new();
            for (i, table) in tables.iter().enumerate() {
                socket.batch(&edits(table), "any").map_err(|e| TestCaseError::fail(format!("{e:?}")))?;
                let found = dump::table(&mut socket, "any").unwrap().unwrap();
                prop_assert_eq!(contents(&found), desired(table));
                socket.batch(&[Edit::DeleteTable], "any").unwrap();
                all.push_str(&text::table(table, &format!("t{i}")));
            }
            if let Some(nft) = &nft {
                taken(nft, &all);
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    });
}

fn single(v4: bool, interval: bool) -> SetType {
    set_of(KeyType::Addr { v4 }, ValueType::Member, interval)
}

fn members(keys: &[&str]) -> BTreeMap<SetKey, SetValue> {
    keys.iter().map(|key| (SetKey::Addr(cidr(key)), SetValue::Member)).collect()
}

fn set(of: SetType, keys: &[&str]) -> Set {
    Set { of, comment: "".into(), elements: members(keys) }
}

fn elements(name: &str, of: SetType, add: &[&str], remove: &[&str]) -> Edit {
    Edit::Elements { set: name.into(), of, add: members(add), remove: members(remove) }
}

fn rule(matches: Vec<Match>, statement: Statement) -> Rule {
    Rule { matches, statement, counted: true, ..Rule::default() }
}

fn chain(name: &str, hook: Option<Hook>, rules: Vec<Rule>) -> Edit {
    Edit::Chain(name.into(), Arc::new(Chain { hook, rules }))
}

const FORWARD: Option<Hook> = Some(Hook { kind: Kind::Filter, at: At::Forward, priority: 0 });

fn in_set(name: &str) -> Vec<Match> {
    vec![
        Match::Family { v4: true },
        Match::InSet { not: false, key: vec![Field::Addr(Side::Src)], set: name.into() },
    ]
}

pub(in crate::nft) fn found(socket: &mut Socket) -> TableDump {
    dump::table(socket, "t").unwrap().unwrap()
}

fn refusal(result: Result<(), BatchError>) -> (Option<usize>, i32) {
    match result {
        Err(BatchError::Refused(refusal)) => (refusal.edit, refusal.code),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn one_element_comes_to_and_goes_from_a_hundred_thousand() {
    in_netns(|| {
        let mut socket = Socket::open().unwrap();
        for (name, interval, len) in [("addrs", false, 32), ("nets", true, 28)] {
            let of = single(true, interval);
            let key = |i: u32| {
                let addr = std::net::Ipv4Addr::from_bits(0x0a00_0000 + (i << (32 - len)));
                SetKey::Addr(tortie_net::Cidr::v4(addr, u8::try_from(len).unwrap()))
            };
            let all: BTreeMap<_, _> = (0..100_000).map(|i| (key(i * 2), SetValue::Member)).collect();
            let whole = Set { of, comment: "".into(), elements: all.clone() };
            socket.batch(&[Edit::DeleteTable, Edit::Set(name.into(), whole)], "t").unwrap();
            let one = BTreeMap::from([(key(28_001), SetValue::Member)]);
            let edit = |add: &BTreeMap<_, _>, remove: &BTreeMap<_, _>| {
                [Edit::Elements { set: name.into(), of, add: add.clone(), remove: remove.clone() }]
            };
            socket.batch(&edit(&one, &BTreeMap::new()), "t").unwrap();
            let mut more = all.clone();
            more.extend(one.clone());
            assert!(found(&mut socket).sets[name].elements == more, "{name}: one more");
            socket.batch(&edit(&BTreeMap::new(), &one), "t").unwrap();
            assert!(found(&mut socket).sets[name].elements == all, "{name}: as before");
        }
    });
}

#[test]
fn a_refused_transaction_changes_nothing_and_names_the_edit() {
    in_netns(|| {
        let mut socket = Socket::open().unwrap();
        assert_eq!(dump::table(&mut socket, "t").unwrap(), None);
        let of = single(true, true);
        let good = [
            Edit::Set("nets".into(), set(of, &["10.0.0.0/8"])),
            chain("forward", FORWARD, vec![rule(in_set("nets"), Statement::Accept)]),
        ];
        socket.batch(&good, "t").unwrap();
        let before = found(&mut socket);
        let fine = || chain("other", None, Vec::new());
        let cases = [
            // A chain that does not exist.
            (chain("broken", None, vec![rule(vec![], Statement::Jump("nowhere".into()))]), libc::ENOENT),
            // An element that does not exist.
            (elements("nets", of, &[], &["11.0.0.0/8"]), libc::ENOENT),
            // An element that overlaps another.
            (elements("nets", of, &["10.1.0.0/16"], &[]), libc::EEXIST),
            (Edit::DeleteSet("unknown".into()), libc::ENOENT),
            (Edit::DeleteChain("unknown".into()), libc::ENOENT),
            // A rule still refers to it.
            (Edit::DeleteSet("nets".into()), libc::EBUSY),
            (elements("unknown", of, &["1.2.3.4"], &[]), libc::ENOENT),
        ];
        for (bad, code) in cases {
            let what = format!("{bad:?}");
            let refused = refusal(socket.batch(&[fine(), bad, fine()], "t"));
            assert_eq!(refused, (Some(1), code), "{what}");
            assert_eq!(found(&mut socket), before, "{what}");
        }
        // A loop is detected at the end of the transaction: the kernel blames no message, or the one that
        // closes the loop.
        let there = chain("a", None, vec![rule(vec![], Statement::Jump("b".into()))]);
        let back = chain("b", None, vec![rule(vec![], Statement::Jump("a".into()))]);
        let from = chain("forward", FORWARD, vec![rule(vec![], Statement::Jump("a".into()))]);
        let (_, code) = refusal(socket.batch(&[there, back, from], "t"));
        assert!(matches!(code, libc::ELOOP | libc::EMLINK), "{code}");
        assert_eq!(found(&mut socket), before);
        // With more errors than the socket buffer holds, the result is still known: nothing was executed.
        let many: Vec<_> = (0..20_000).map(|i| Edit::DeleteChain(format!("unknown-{i}").into())).collect();
        assert_eq!(refusal(socket.batch(&many, "t")).1, libc::ENOENT);
        assert_eq!(found(&mut socket), before);
    });
}

#[test]
fn edits_change_what_they_name_in_any_order() {
    in_netns(|| {
        let mut socket = Socket::open().unwrap();
        let generation = socket.generation().unwrap();
        let map_of = set_of(KeyType::Interface, ValueType::Verdict, false);
        let entry = |interface: &str, chain: &str| {
            BTreeMap::from([(SetKey::Interface(interface.into()), SetValue::Goto(chain.into()))])
        };
        let dispatch =
            rule(vec![], Statement::VerdictMap { key: vec![Field::InInterface], map: "from".into() });
        let of = single(true, true);
        // Names are used before their objects are defined.
        let first = [
            chain("forward", FORWARD, vec![dispatch.clone()]),
            Edit::Elements {
                set: "from".into(),
                of: map_of,
                add: entry("cali1", "one"),
                remove: BTreeMap::new(),
            },
            chain("one", None, vec![rule(in_set("nets"), Statement::Jump("two".into()))]),
            Edit::Set("from".into(), Set { of: map_of, comment: "".into(), elements: BTreeMap::new() }),
            chain("two", None, vec![rule(vec![], Statement::Drop)]),
            Edit::Set("nets".into(), set(of, &["10.0.0.0/9", "10.128.0.0/9", "255.0.0.0/8"])),
        ];
        // Element edits before the edit of their set concern the old set.
        socket.batch(&first, "t").unwrap();
        assert_eq!(socket.generation().unwrap(), generation + 1);
        let table = found(&mut socket);
        assert_eq!(table.generation, generation + 1);
        assert_eq!(table.sets["from"].elements, BTreeMap::new());
        assert_eq!(table.sets["nets"].elements, members(&["10.0.0.0/9", "10.128.0.0/9", "255.0.0.0/8"]));
        let add = Edit::Elements {
            set: "from".into(),
            of: map_of,
            add: entry("cali1", "one"),
            remove: BTreeMap::new(),
        };
        socket.batch(&[add], "t").unwrap();
        assert_eq!(found(&mut socket).sets["from"].elements, entry("cali1", "one"));
        // Another value, other networks in place of a wider one, removal of the last network, deletion of
        // chains to which a changed object refers, a set of another type with the old name.
        let second = [
            Edit::DeleteChain("two".into()),
            Edit::DeleteChain("one".into()),
            Edit::Elements {
                set: "from".into(),
                of: map_of,
                add: entry("cali1", "three"),
                remove: entry("cali1", "one"),
            },
            elements("nets", of, &["10.0.0.0/10", "10.64.0.0/10"], &["10.0.0.0/9", "255.0.0.0/8"]),
            chain("three", None, vec![rule(in_set("nets"), Statement::Return)]),
        ];
        socket.batch(&second, "t").unwrap();
        let table = found(&mut socket);
        assert_eq!(table.chains.keys().map(|n| &**n).collect::<Vec<_>>(), ["forward", "three"]);
        assert_eq!(table.sets["from"].elements, entry("cali1", "three"));
        assert_eq!(table.sets["nets"].elements, members(&["10.0.0.0/10", "10.64.0.0/10", "10.128.0.0/9"]));
        let moved = Some(Hook { priority: -5, ..FORWARD.unwrap() });
        let third = [
            Edit::DeleteSet("nets".into()),
            Edit::Set("nets".into(), set(single(true, false), &["192.0.2.1"])),
            chain("three", None, vec![rule(in_set("nets"), Statement::Accept)]),
            Edit::DeleteChain("forward".into()),
            chain("forward", moved, vec![dispatch]),
        ];
        socket.batch(&third, "t").unwrap();
        let table = found(&mut socket);
        assert_eq!(table.chains["forward"].hook, moved);
        assert_eq!(table.chains["forward"].rules.len(), 1);
        assert_eq!(table.sets["nets"].of, Some(single(true, false)));
        assert_eq!(table.sets["nets"].elements, members(&["192.0.2.1"]));
        // After recreation of the table, earlier edits have no effect.
        let last = [chain("x", None, vec![]), Edit::DeleteTable, chain("y", None, vec![])];
        socket.batch(&last, "t").unwrap();
        let table = found(&mut socket);
        assert_eq!((table.chains.len(), table.sets.len()), (1, 0));
        assert!(table.chains.contains_key("y"));
    });
}

#[test]
fn what_others_did_to_the_table_is_seen_and_can_be_undone() {
    let Some(nft) = nft() else { return };
    in_netns(move || {
        let mut socket = Socket::open().unwrap();
        let of = single(true, true);
        let desired = [
            Edit::Set("nets".into(), set(of, &["10.0.0.0/8"])),
            chain("forward", FORWARD, vec![rule(in_set("nets"), Statement::Accept)]),
        ];
        socket.batch(&desired, "t").unwrap();
        let before = found(&mut socket);
        // Other tables with objects of the same names, of the same and of another family.
        let others = "table inet other { set nets { type ipv4_addr; }\n chain forward { counter; }\n}\n\
                      table ip t { chain forward { counter; }\n}\n";
        run(&nft, &["-f", "-"], others);
        let list = || {
            run(&nft, &["list", "table", "inet", "other"], "") + &run(&nft, &["list", "table", "ip", "t"], "")
        };
        let theirs = list();
        let same = |found: &TableDump| (found.chains.clone(), found.sets.clone());
        assert_eq!(same(&found(&mut socket)), same(&before));

        let generation = socket.generation().unwrap();
        run(&nft, &["add rule inet t forward counter drop"], "");
        assert_ne!(socket.generation().unwrap(), generation);
        run(&nft, &["add chain inet t forward { policy drop; }"], "");
        run(&nft, &["add element inet t nets { 192.0.2.3-192.0.2.9, 198.51.100.0/24 }"], "");
        run(&nft, &["add table inet t { flags dormant; }"], "");
        run(&nft, &["add set inet t odd { type inet_service; timeout 5m; }"], "");
        run(&nft, &["add chain inet t stranger { type route hook output priority 0; }"], "");
        let changed = found(&mut socket);
        assert!(changed.dormant);
        assert!(changed.chains["forward"].foreign && changed.chains["stranger"].foreign);
        let hashes: Vec<_> = changed.chains["forward"].rules.iter().map(|r| r.hash).collect();
        assert_eq!(hashes, [before.chains["forward"].rules[0].hash, None]);
        assert!(!changed.sets["nets"].whole);
        assert_eq!(changed.sets["nets"].elements, members(&["10.0.0.0/8", "198.51.100.0/24"]));
        assert_eq!(changed.sets["odd"].of, None);

        socket.batch(&[Edit::DeleteSet("odd".into()), Edit::DeleteChain("stranger".into())], "t").unwrap();
        let without = found(&mut socket);
        assert!(!without.dormant && without.chains.len() == 1 && without.sets.len() == 1);
        // Foreign elements are removed when the set is refilled.
        let [set, chain] = desired;
        let Edit::Set(name, set) = set else { unreachable!("the first is the set") };
        socket
            .batch(&[Edit::ReplaceElements(name, set), Edit::DeleteChain("forward".into()), chain], "t")
            .unwrap();
        let after = found(&mut socket);
        assert!(!after.dormant && !after.chains["forward"].foreign);
        assert_eq!(after.sets, before.sets);
        assert_eq!(after.chains["forward"].rules.len(), 1);
        assert_eq!(list(), theirs);

        // A base chain in place of a regular one, and vice versa, called by a chain that is changed as well.
        run(&nft, &["add chain inet t base { type filter hook input priority 7; }"], "");
        run(&nft, &["add chain inet t plain"], "");
        run(&nft, &["add rule inet t forward jump plain"], "");
        let renew = |name: &str, hook| [Edit::DeleteChain(name.into()), self::chain(name, hook, vec![])];
        let mut round = renew("base", None).to_vec();
        round.extend(renew("plain", FORWARD));
        round.push(self::chain("forward", FORWARD, vec![rule(vec![], Statement::Jump("base".into()))]));
        socket.batch(&round, "t").unwrap();
        let reversed = found(&mut socket);
        assert_eq!((reversed.chains["base"].hook, reversed.chains["plain"].hook), (None, FORWARD));
        // Dormant, without any other difference.
        run(&nft, &["add table inet t { flags dormant; }"], "");
        let off = found(&mut socket);
        assert!(off.dormant);
        socket.batch(&[], "t").unwrap();
        assert_eq!(
            found(&mut socket),
            TableDump { generation: off.generation + 1, dormant: false, ..off.clone() }
        );
        run(&nft, &["add table inet t { flags dormant; }"], "");
        socket.batch(&[Edit::DeleteTable, self::chain("forward", FORWARD, vec![])], "t").unwrap();
        let anew = found(&mut socket);
        assert_eq!((anew.dormant, anew.chains.len()), (false, 1));
        assert_eq!(list(), theirs);
        socket.batch(&[Edit::DeleteTable], "t").unwrap();
        assert_eq!(list(), theirs);
    });
}

#[test]
fn a_rule_keeps_its_hash_from_one_build_to_the_next() {
    let table = everything();
    let hashes: Vec<RuleHash> = table.chains.values().flat_map(|c| &c.rules).map(rule_hash).collect();
    let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
    let rules: std::collections::HashSet<_> = table.chains.values().flat_map(|c| &c.rules).collect();
    assert_eq!(distinct.len(), rules.len());
    let rule = Rule { comment: Some("x".into()), ..rule(in_set("nets"), Statement::Accept) };
    // A different hash means that every agent rewrites all of its rules after an upgrade.
    assert_eq!(u128::from_be_bytes(rule_hash(&rule)), 0xf825_f784_259f_4233_d053_e3ef_6399_8784);
}
