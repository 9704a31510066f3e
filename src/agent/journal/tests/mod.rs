//! Tests of the journal: it replays to equal effects from any state and beginning, stays small, and a changed
//! decision is found at its input.

mod random_runs;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tortie_net::Cidr;

use super::decisions::Decisions;
use super::format::{FILE, JournalError, Line, Lines, unpack};
use super::writer::{MEMBER, SEGMENT, Writer};
use crate::agent::core::Core;
use crate::agent::core::checkpoint::{restore, take};
use crate::agent::core::effect::Effect;
use crate::agent::core::input::{Input, Now};
use crate::agent::core::options::CoreOptions;
use crate::agent::replay::{ReplayError, Run};
use tortie_engine::routing::{self, ChangeId, NodeOptions};
use tortie_kernel::{BlackholeAck, BlackholeOutcome, KernelFact, Mode};
use tortie_store::{Change, DataModel, Delta, FeedEvent, KeyValue, Snapshot};

fn options() -> CoreOptions {
    CoreOptions {
        name: "h1".to_owned(),
        node: NodeOptions::default(),
        observes: false,
        data_model: DataModel::Auto,
        kernel_writes: true,
        policy: Mode::Program,
    }
}

fn block_value(block: &str, host: &str) -> String {
    let nulls = vec!["null"; 64].join(",");
    format!(r#"{{"cidr":"{block}","affinity":"host:{host}","allocations":[{nulls}],"attributes":[]}}"#)
}

/// A store with its revision, which produces feed events.
struct Store {
    revision: u64,
    id: String,
    keys: BTreeMap<String, KeyValue>,
    generation: u64,
}

impl Store {
    fn new() -> Self {
        let mut store = Self { revision: 0, id: "a".to_owned(), keys: BTreeMap::new(), generation: 0 };
        for (key, value) in [
            ("/calico/v1/Ready", "true".to_owned()),
            ("/calico/v1/ipam/v4/pool/10.244.0.0-16", r#"{"cidr":"10.244.0.0/16"}"#.to_owned()),
            ("/calico/bgp/v1/host/h1/ip_addr_v4", "172.30.0.1".to_owned()),
            ("/calico/bgp/v1/host/h2/ip_addr_v4", "172.30.0.2".to_owned()),
            ("/calico/ipam/v2/host/h1/ipv4/block/10.244.1.0-26", r#"{"state":"confirmed"}"#.to_owned()),
            ("/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26", block_value("10.244.1.0/26", "h1")),
            (
                "/calico/v1/policy/profile/open/rules",
                r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#.to_owned(),
            ),
        ] {
            store.put(key, &value);
        }
        store
    }

    fn put(&mut self, key: &str, value: &str) -> FeedEvent {
        self.revision += 1;
        let kv = KeyValue {
            key: key.to_owned(),
            value: value.into(),
            mod_revision: self.revision,
            create_revision: self.keys.get(key).map_or(self.revision, |kv| kv.create_revision),
        };
        self.keys.insert(key.to_owned(), kv.clone());
        FeedEvent::Delta(Delta { revision: self.revision, changes: vec![Change::Put(kv)] })
    }

    fn delete(&mut self, key: &str) -> FeedEvent {
        self.revision += 1;
        self.keys.remove(key);
        let changes = vec![Change::Delete { key: key.to_owned() }];
        FeedEvent::Delta(Delta { revision: self.revision, changes })
    }

    fn list(&self, wanted: impl Fn(&str) -> bool) -> Snapshot {
        let entries = self.keys.values().filter(|kv| wanted(&kv.key)).cloned().collect();
        Snapshot { revision: self.revision, store_id: self.id.clone(), term: 0, entries }
    }

    fn snapshot(&mut self) -> FeedEvent {
        self.generation += 1;
        FeedEvent::Snapshot { snapshot: self.list(|_| true).into(), generation: self.generation }
    }
}

/// A core whose inputs are recorded.
struct Recorded {
    core: Core,
    writer: Writer,
    /// Effects of each input.
    effects: Vec<Vec<Effect>>,
    now: Now,
    checkpoints: usize,
}

impl Recorded {
    fn new(segment: usize, member: usize) -> Self {
        let wall = Timestamp::from_microsecond(1_790_000_000_000_000).unwrap();
        let now = Now { mono: Instant::now(), wall };
        Self {
            core: Core::new(&options(), now),
            writer: Writer::with_sizes(options(), now, segment, member),
            effects: Vec::new(),
            now,
            checkpoints: 0,
        }
    }

    fn input(&mut self, after: Duration, input: Input) -> Vec<Effect> {
        let wall = self.now.wall + jiff::SignedDuration::try_from(after).unwrap();
        self.now = Now { mono: self.now.mono + after, wall };
        let effects = self.core.handle(input.clone(), self.now);
        self.writer.input(self.now, input, &effects);
        self.effects.push(effects.clone());
        if self.writer.wants_checkpoint()
            && let Some(checkpoint) = take(&self.core)
        {
            self.checkpoints += 1;
            self.writer.checkpoint(self.now, checkpoint);
        }
        effects
    }

    /// Applies a store change; the blocks that the core then watches are delivered at once.
    fn feed(&mut self, after: Duration, store: &Store, event: FeedEvent) -> Vec<Effect> {
        let mut effects = self.input(after, Input::Feed(event));
        effects.extend(self.input(Duration::ZERO, Input::FeedIdle));
        for effect in effects.clone() {
            if let Effect::Scope(keys) = effect {
                let snapshot = store.list(|key| keys.iter().any(|wanted| key.starts_with(wanted.as_str())));
                effects.extend(
                    self.input(Duration::ZERO, Input::Feed(FeedEvent::Added { prefixes: keys, snapshot })),
                );
                effects.extend(self.input(Duration::ZERO, Input::FeedIdle));
            }
        }
        effects
    }

    fn applied(&mut self, effects: &[Effect], failed: Vec<(Cidr, String)>) {
        for effect in effects {
            match effect {
                Effect::Kernel(intent) => {
                    let ack = |(prefix, change): (&Cidr, &ChangeId)| BlackholeAck {
                        prefix: *prefix,
                        change: *change,
                        outcome: BlackholeOutcome::Written,
                    };
                    let fact = KernelFact::Applied {
                        generation: intent.generation,
                        change: intent.change,
                        failed: failed.clone(),
                        acknowledged: intent.blackholes.iter().map(ack).collect(),
                        micros: 70,
                    };
                    self.input(Duration::from_micros(70), Input::Kernel(fact));
                }
                Effect::Enforce(change) => {
                    let fact = KernelFact::Enforced {
                        serial: change.serial,
                        change: change.change,
                        failed: BTreeMap::new(),
                        micros: 300,
                    };
                    self.input(Duration::from_micros(300), Input::Kernel(fact));
                }
                _ => {}
            }
        }
    }
}

/// Replays a journal through a new core; returns the effects of each input.
fn replayed(octets: &[u8]) -> Vec<Vec<Effect>> {
    let mut lines = Lines::of(octets);
    let header = lines.header().unwrap();
    let started = Instant::now();
    let wall = Timestamp::from_microsecond(header.started).unwrap();
    let mut core = Core::new(&header.options, Now { mono: started, wall });
    let mut effects = Vec::new();
    while let Some(line) = lines.next().unwrap() {
        match line {
            Line::Input(step) => effects.push(core.handle(step.input, step.time.now(started))),
            Line::Checkpoint(base) => {
                let now = base.time.now(started);
                core = restore(&header.options, started, now, base.core.clone(), base.entries);
                assert_eq!(take(&core), Some(base.core), "a restored core is the one that was taken down");
            }
            Line::Journal(_) | Line::Boundary => {}
        }
    }
    effects
}

/// Export gate without knowledge of own blocks.
fn changed_gate(
    view: &routing::RoutingView,
    policy: &routing::PeerPolicy,
    external: bool,
    route: &routing::FilterRoute<'_>,
) -> routing::GateDecision {
    let blocks_unknown = routing::RoutingView { own_blocks: Default::default(), ..view.clone() };
    routing::export_gate(&blocks_unknown, policy, external, route)
}

#[test]
fn a_changed_gate_is_found_at_the_first_input_that_it_decides() {
    let mut recorded = Recorded::new(SEGMENT, MEMBER);
    let mut store = Store::new();
    let first = store.snapshot();
    let effects = recorded.feed(Duration::from_millis(1), &store, first);
    assert!(
        !effects.iter().any(|effect| matches!(effect, Effect::Speaker(..))),
        "the kernel has not answered"
    );
    recorded.applied(&effects, Vec::new());
    // Later inputs do not involve the gate.
    let unrelated = store.put("/calico/v1/config/LogSeverityScreen", "info");
    recorded.feed(Duration::from_secs(9), &store, unrelated);
    let octets = recorded.writer.export();
    let expected =
        recorded.effects.iter().position(|effects| effects.iter().any(|e| matches!(e, Effect::Speaker(..))));
    let expected = expected.unwrap() + 1;
    assert_eq!(Run::of(&octets, None, Decisions::new()).unwrap().report().different, 0);
    let report = Run::of(&octets, None, Decisions::with_gate(changed_gate)).unwrap().report();
    let found: Vec<usize> = report.differences.iter().map(|difference| difference.input).collect();
    assert_eq!((report.different, found), (1, vec![expected]));
    let [difference] = &report.differences[..] else { panic!("{report:#?}") };
    assert!(difference.subject.starts_with("kernel: Applied generation: 1"), "{difference:#?}");
    assert_eq!(difference.recorded, ["gates: 10.244.1.0/26; announced to 1 iBGP peers by own-block"]);
    assert_eq!(difference.now, ["gates: 10.244.1.0/26; announced to 1 iBGP peers by pool"]);
}

#[test]
fn a_replay_ends_at_the_given_time() {
    let mut recorded = Recorded::new(SEGMENT, MEMBER);
    let mut store = Store::new();
    let first = store.snapshot();
    let effects = recorded.feed(Duration::from_secs(1), &store, first);
    recorded.applied(&effects, Vec::new());
    let (before, peer) = (recorded.now.wall, "/calico/bgp/v1/global/peer_v4/192.0.2.1");
    let put = store.put(peer, r#"{"ip":"192.0.2.1","as_num":"64999"}"#);
    recorded.feed(Duration::from_secs(60), &store, put);
    let octets = recorded.writer.export();
    let peers = |until| {
        let report = Run::of(&octets, until, Decisions::new()).unwrap().report();
        report.intents.iter().filter(|line| line.starts_with("routing: + peer")).count()
    };
    assert_eq!((peers(Some(before)), peers(None)), (1, 2));
    let early = Run::of(&octets, Some(Timestamp::UNIX_EPOCH), Decisions::new());
    assert!(matches!(early.err(), Some(ReplayError::TooEarly(_))));
}

#[test]
fn after_lost_inputs_the_journal_begins_at_the_next_checkpoint() {
    let mut recorded = Recorded::new(SEGMENT, MEMBER);
    let mut store = Store::new();
    let first = store.snapshot();
    let effects = recorded.feed(Duration::from_millis(1), &store, first);
    recorded.applied(&effects, Vec::new());
    recorded.writer.lose(3);
    assert!(recorded.writer.wants_checkpoint());
    // The feed is followed while inputs are lost: the checkpoint contains this pool.
    let put = store.put("/calico/v1/ipam/v4/pool/10.9.0.0-16", r#"{"cidr":"10.9.0.0/16"}"#);
    let effects = recorded.feed(Duration::from_secs(1), &store, put);
    recorded.applied(&effects, Vec::new());
    assert_eq!(recorded.checkpoints, 1);
    recorded.input(Duration::from_secs(1), Input::Kernel(KernelFact::Overrun));
    let octets = recorded.writer.export();
    let run = Run::of(&octets, None, Decisions::new()).unwrap();
    assert_eq!(run.core().model().pools().count(), 2);
    let report = run.report();
    assert_eq!((report.different, report.from_checkpoint), (0, true), "{:#?}", report.differences);
    assert!(report.lost >= 3 && report.inputs > 0, "{report:#?}");
}

#[test]
fn an_archive_of_diags_a_journal_and_plain_lines_are_read_and_others_are_refused_with_their_line() {
    let octets = Recorded::new(SEGMENT, MEMBER).writer.export();
    let plain = {
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(&*octets), &mut text).unwrap();
        text
    };
    let gzip = |octets: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, octets).unwrap();
        encoder.finish().unwrap()
    };
    let archive = |name: &str| {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(octets.len() as u64);
        header.set_mode(0o600);
        tar.append_data(&mut header, format!("tortie-diags-h1/{name}"), &*octets).unwrap();
        gzip(&tar.into_inner().unwrap())
    };
    for file in [octets.clone(), plain.clone(), archive(FILE)] {
        let journal = unpack(file).unwrap();
        assert_eq!(Lines::of(&journal).header().unwrap().options, options());
    }
    assert!(matches!(unpack(archive("status.json")), Err(JournalError::NoJournal)));
    let later = String::from_utf8(plain).unwrap().replace(r#""format":1"#, r#""format":9"#);
    assert!(matches!(Lines::of(later.as_bytes()).header(), Err(JournalError::Format(9))));
    let broken = later.replace(r#""format":9"#, r#""format":1"#) + "{\"input\":{}}\n";
    let error = Run::of(broken.as_bytes(), None, Decisions::new()).err().unwrap().to_string();
    assert!(error.starts_with("line 2: "), "{error}");
}
