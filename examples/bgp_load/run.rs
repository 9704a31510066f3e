//! Runs a scenario against a daemon and measures it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};

use super::fib::{self, Mark};
use super::load::Load;
use super::measure::{Processes, own_cpu};
use super::mix::{self, Prefix, Sender};
use super::received::Universe;
use super::scenario::{self, Kind, OWN_AS, Role, Scenario};
use super::session::{Session, Stage, Target};

/// Pause between the last established session and the start of the clock, with an addition per session: FRR
/// begins to write to a new update group after 1 s and 50 ms per peer.
const SETTLE: Duration = Duration::from_secs(1);
const SETTLE_EACH: Duration = Duration::from_millis(50);
/// Pause between the end of a scenario and the measurement of its memory.
const IDLE: Duration = Duration::from_secs(5);
/// Interval of the observer's keepalives once all sessions are established.
const CHATTER: Duration = Duration::from_millis(50);

pub(crate) struct Options {
    pub(crate) port: u16,
    pub(crate) daemon: Processes,
    pub(crate) seed: u64,
    pub(crate) timeout: Duration,
    /// File with the start time of the daemon.
    pub(crate) started: Option<PathBuf>,
    /// Time for which D's sessions are kept, to measure the daemon while idle.
    pub(crate) idle: Duration,
}

/// One measurement: duration and cost.
type Row = Map<String, Value>;

/// Runs a scenario and returns a row per measurement.
pub(crate) fn run(scenario: &Scenario, options: &Options) -> anyhow::Result<Vec<Row>> {
    let target = SocketAddr::new(scenario::daemon(scenario.v6), options.port);
    match scenario.kind {
        Kind::Nodes { at_once } => nodes(scenario, options, target, at_once),
        Kind::Start => start(scenario, options, target),
        Kind::Feed { prefixes, .. } | Kind::Kernel { prefixes, .. } | Kind::Lost { prefixes } => {
            feed(scenario, options, target, prefixes)
        }
        Kind::Replay => replay(scenario, options, target),
    }
}

/// Start values of a measurement.
struct Clock<'a> {
    daemon: &'a Processes,
    cpu: f64,
    own: f64,
    at: Instant,
}

impl<'a> Clock<'a> {
    fn start(daemon: &'a Processes) -> io::Result<Self> {
        Ok(Self { daemon, cpu: daemon.cpu()?, own: own_cpu(), at: Instant::now() })
    }

    fn row(&self, name: &str, end: Option<Instant>, load: &Load) -> io::Result<Row> {
        let mut row = Row::new();
        row.insert("scenario".into(), name.into());
        row.insert("seconds".into(), json!(end.map(|end| self.since(end))));
        row.insert("cpuSeconds".into(), json!(round(self.daemon.cpu()? - self.cpu)));
        row.insert("peakMb".into(), json!(round(self.daemon.peak_mb()?)));
        row.insert("generatorCpuSeconds".into(), json!(round(own_cpu() - self.own)));
        row.insert("lost".into(), load.lost.into());
        Ok(row)
    }

    fn since(&self, end: Instant) -> f64 {
        round(end.saturating_duration_since(self.at).as_secs_f64())
    }
}

fn round(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

fn sessions(scenario: &Scenario) -> Vec<Session> {
    let make = |(n, peer): (u32, &scenario::Peer)| {
        let mut session = Session::new(peer.address, peer.asn, n);
        session.watches = peer.role != Role::Source;
        session
    };
    (1..).zip(&scenario.peers).map(make).collect()
}

fn all_up(load: &mut Load, timeout: Duration) -> anyhow::Result<()> {
    let all = load.sessions.len();
    let mut waiting = 0..all;
    let deadline = Instant::now() + timeout;
    while load.up < all {
        // BIRD and OpenBGPD lose connections that arrive faster than they accept; that is scenario Dburst,
        // not this one.
        while load.under_way < 4
            && let Some(next) = waiting.next()
        {
            load.start(next)?;
        }
        let why = load.why.as_ref().map(ToString::to_string).unwrap_or_default();
        ensure!(Instant::now() < deadline, "{} of {all} sessions came up: {why}", load.up);
        load.step(Duration::from_millis(20))?;
    }
    load.run_for(SETTLE + SETTLE_EACH * u32::try_from(all).unwrap_or(0))?;
    Ok(())
}

/// Runs the sessions until all `sinks` have reached their targets; `None` on timeout.
fn wait(load: &mut Load, sinks: usize, deadline: Instant) -> io::Result<Option<Instant>> {
    while load.met < sinks {
        if Instant::now() >= deadline {
            return Ok(None);
        }
        load.step(Duration::from_millis(20))?;
    }
    Ok(load.sessions.iter().filter_map(|s| s.met_at).max())
}

fn feed(
    scenario: &Scenario,
    options: &Options,
    target: SocketAddr,
    count: usize,
) -> anyhow::Result<Vec<Row>> {
    let sources: Vec<usize> = indices(scenario, Role::Source);
    let sinks = scenario.peers.len() - sources.len();
    let all = mix::prefixes(count + sources.len(), scenario.v6, options.seed);
    // With one sender, the last prefix serves as mark.
    let (common, marks) = all.split_at(if sources.len() > 1 { count } else { all.len() - 1 });
    let marks = if sources.len() > 1 { marks } else { &[] };
    let whole = common.len() + marks.len();
    let universe = Universe::new(marks, common.iter().copied());
    let hops = match scenario.kind {
        Kind::Kernel { next_hops, .. } if next_hops > 1 => next_hops,
        _ => 0,
    };
    let mut load = Load::new(target, universe)?;
    load.sessions = sessions(scenario);
    let mut streams = Vec::new();
    for (n, index) in sources.iter().enumerate() {
        let Some(peer) = scenario.peers.get(*index) else { continue };
        let third: Vec<_> = (0..hops).map(|h| scenario::address(scenario.v6, 32_768 + h)).collect();
        let own = [peer.address];
        let sender = Sender {
            asn: peer.asn,
            ebgp: peer.asn != OWN_AS,
            next_hops: if third.is_empty() { &own } else { &third },
            seed: options.seed + n as u64,
        };
        let mut stream = mix::updates(common, &sender);
        if let Some(mark) = marks.get(n) {
            stream.extend(mix::updates(&[*mark], &sender));
        }
        streams.push((*index, Rc::new(stream)));
    }
    all_up(&mut load, options.timeout)?;
    let empty = if scenario.kernel { options.daemon.fib()? } else { 0 };
    let mark = scenario.kernel.then(|| Mark::new(&options.daemon, common)).transpose()?;
    load.aim(|_| Target::AtLeast(whole));
    let clock = Clock::start(&options.daemon)?;
    let deadline = clock.at + options.timeout;
    give(&mut load, &streams);
    let end = match &mark {
        Some(mark) => fib::wait(&mut load, &options.daemon, mark, (empty, empty + count), deadline)?,
        None => wait(&mut load, sinks, deadline)?,
    };
    let mut row = clock.row(&scenario.name, end, &load)?;
    if sinks > 1 {
        let first = load.sessions.iter().filter_map(|s| s.met_at).min();
        row.insert("firstSeconds".into(), json!(first.map(|at| clock.since(at))));
    }
    if sources.len() > 1 {
        let last = load.sessions.iter().filter_map(|s| s.last_update).max();
        row.insert("lastUpdateSeconds".into(), json!(last.map(|at| clock.since(at))));
    }
    reached(&mut row, &load, end);
    let (then, name) = match scenario.kind {
        Kind::Feed { then_withdraw: true, .. } => {
            (true, if scenario.name == "A" { "F".into() } else { format!("F{}", &scenario.name[1..]) })
        }
        Kind::Kernel { .. } => (true, format!("{}down", scenario.name)),
        Kind::Lost { .. } => (true, scenario.name.clone()),
        _ => (false, String::new()),
    };
    if !then || end.is_none() {
        return Ok(vec![row]);
    }
    load.run_for(IDLE)?;
    row.insert("idleMb".into(), json!(round(options.daemon.resident_mb()?)));
    load.aim(|_| Target::AtMost(0));
    let withdrawn = mix::withdrawals(common, scenario.v6);
    let clock = Clock::start(&options.daemon)?;
    let deadline = clock.at + options.timeout;
    if matches!(scenario.kind, Kind::Lost { .. }) {
        for index in &sources {
            load.reset(*index)?;
        }
    } else {
        let streams: Vec<_> = sources.iter().map(|i| (*i, Rc::new(withdrawn.clone()))).collect();
        give(&mut load, &streams);
    }
    let end = match &mark {
        Some(mark) => fib::wait(&mut load, &options.daemon, mark, (empty + count, empty), deadline)?,
        None => wait(&mut load, sinks, deadline)?,
    };
    let mut down = clock.row(&name, end, &load)?;
    load.run_for(IDLE)?;
    down.insert("idleMb".into(), json!(round(options.daemon.resident_mb()?)));
    reached(&mut down, &load, end);
    Ok(if matches!(scenario.kind, Kind::Lost { .. }) { vec![down] } else { vec![row, down] })
}

/// Records the progress of a run that did not reach its end.
fn reached(row: &mut Row, load: &Load, end: Option<Instant>) {
    let watching = || load.sessions.iter().filter(|s| s.watches);
    let strange = watching().map(|s| s.received.strange).sum::<usize>();
    if strange > 0 {
        row.insert("strangePrefixes".into(), strange.into());
    }
    if end.is_none() {
        let counts = watching().map(|s| s.received.count);
        row.insert("prefixesAtEnd".into(), json!([counts.clone().min(), counts.max()]));
        row.insert("why".into(), json!(load.why.as_ref().map(ToString::to_string)));
    }
}

fn give(load: &mut Load, streams: &[(usize, Rc<Vec<u8>>)]) {
    for (index, stream) in streams {
        if let Some(session) = load.sessions.get_mut(*index) {
            session.send(stream.clone());
        }
        load.poke(*index);
    }
}

fn indices(scenario: &Scenario, role: Role) -> Vec<usize> {
    scenario.peers.iter().enumerate().filter(|(_, p)| p.role == role).map(|(i, _)| i).collect()
}

/// Replays feeds: tables at the same time, then recorded updates. A mark at the end of each stream shows when
/// it was processed.
fn replay(scenario: &Scenario, options: &Options, target: SocketAddr) -> anyhow::Result<Vec<Row>> {
    let marks: Vec<Prefix> = (0..scenario.feeds.len())
        .map(|n| {
            Prefix::new(std::net::Ipv4Addr::new(223, 255, u8::try_from(n).unwrap_or(u8::MAX), 0).into(), 24)
        })
        .collect();
    let universe = Universe::new(&marks, scenario.feeds.iter().flat_map(|f| f.prefixes.iter().copied()));
    let mut load = Load::new(target, universe)?;
    load.sessions = sessions(scenario);
    let mut rows = Vec::new();
    all_up(&mut load, options.timeout)?;
    // Recorded updates come from one peer, and are the last feed if both kinds were given.
    let tables = if scenario.feeds.len() > 1 { scenario.feeds.len() - 1 } else { 1 };
    let parts = [("R", 0..tables), ("Rupdates", tables..scenario.feeds.len())];
    for (name, part) in parts.into_iter().filter(|(_, p)| !p.is_empty()) {
        let streams: Vec<_> = part
            .clone()
            .filter_map(|n| {
                let (feed, peer, mark) = (scenario.feeds.get(n)?, scenario.peers.get(n)?, marks.get(n)?);
                let mut stream = feed.messages.clone();
                let next_hops = [peer.address];
                let sender = Sender { asn: peer.asn, ebgp: true, next_hops: &next_hops, seed: options.seed };
                stream.extend(mix::updates(&[*mark], &sender));
                Some((n, Rc::new(stream)))
            })
            .collect();
        load.aim(|_| Target::Marks(part.end));
        let clock = Clock::start(&options.daemon)?;
        give(&mut load, &streams);
        let end = wait(&mut load, 1, clock.at + options.timeout)?;
        let mut row = clock.row(name, end, &load)?;
        load.run_for(SETTLE)?;
        let sink = load.sessions.iter().find(|s| s.watches).context("no sink")?;
        row.insert("prefixes".into(), sink.received.count.into());
        reached(&mut row, &load, end);
        rows.push(row);
    }
    Ok(rows)
}

fn nodes(
    scenario: &Scenario,
    options: &Options,
    target: SocketAddr,
    at_once: usize,
) -> anyhow::Result<Vec<Row>> {
    let nodes = indices(scenario, Role::Node);
    let blocks = (0..).take(nodes.len()).flat_map(scenario::blocks);
    let universe = Universe::new(&[], scenario.originated.iter().copied().chain(blocks));
    let (whole, own) = (universe.len(), scenario.originated.len());
    let mut load = Load::new(target, universe)?;
    load.sessions = sessions(scenario);
    for (n, index) in (0..).zip(&nodes) {
        if let Some(session) = load.sessions.get_mut(*index) {
            let blocks: Vec<Prefix> = scenario::blocks(n).collect();
            session.first = Rc::new(mix::plain(&blocks, session.source));
        }
    }
    let sink = indices(scenario, Role::Sink);
    for index in &sink {
        load.start(*index)?;
    }
    let deadline = Instant::now() + options.timeout;
    while load.up < sink.len() {
        ensure!(Instant::now() < deadline, "the observer's session did not come up");
        load.step(Duration::from_millis(20))?;
    }
    load.run_for(SETTLE)?;
    load.aim(|i| if sink.contains(&i) { Target::AtLeast(whole) } else { Target::AtLeast(own) });
    let empty = if scenario.kernel { options.daemon.fib()? } else { 0 };
    let mut waiting = nodes.iter().copied();
    let (mut up, mut fib, mut fib_again) = (None, None, Instant::now());
    let clock = Clock::start(&options.daemon)?;
    let mut chatter = clock.at;
    let mut end = None;
    while clock.at.elapsed() < options.timeout {
        while load.under_way < at_once
            && let Some(next) = waiting.next()
        {
            load.start(next)?;
        }
        load.step(Duration::from_millis(5))?;
        if load.up == load.sessions.len() {
            up = up.or_else(|| Some(Instant::now()));
        }
        if scenario.kernel && fib.is_none() && fib_again <= Instant::now() {
            fib_again = Instant::now() + fib::FIRST;
            fib =
                (options.daemon.fib()? >= empty + nodes.len() * scenario::BLOCKS as usize).then(Instant::now);
        }
        // BIRD 2.0.12 resumes pending work of its last event only after 3 s without input. No real network is
        // that quiet.
        if up.is_some() && chatter <= Instant::now() {
            chatter = Instant::now() + CHATTER;
            for index in &sink {
                load.keepalive(*index);
            }
        }
        if load.met == load.sessions.len() && (fib.is_some() || !scenario.kernel) {
            end = Some(Instant::now());
            break;
        }
    }
    let mut row = clock.row(&scenario.name, end, &load)?;
    row.insert("upSeconds".into(), json!(up.map(|at| clock.since(at))));
    let met = |role| indices(scenario, role).into_iter().map(|i| load.sessions.get(i)?.met_at);
    let last = |role| met(role).collect::<Option<Vec<_>>>()?.into_iter().max();
    row.insert("observerSeconds".into(), json!(last(Role::Sink).map(|at| clock.since(at))));
    row.insert("peersSeconds".into(), json!(last(Role::Node).map(|at| clock.since(at))));
    row.insert("fibSeconds".into(), json!(fib.map(|at| clock.since(at))));
    row.insert("established".into(), load.sessions.iter().filter(|s| s.stage == Stage::Up).count().into());
    row.insert("retries".into(), load.retries.into());
    reached(&mut row, &load, end);
    if !options.idle.is_zero() {
        // The daemon may still write or compute at first; that is not idle.
        load.run_for(Duration::from_secs(2))?;
        let before = options.daemon.cpu()?;
        load.run_for(options.idle)?;
        let share = (options.daemon.cpu()? - before) / options.idle.as_secs_f64() * 100.0;
        row.insert("idlePercent".into(), json!(round(share)));
        row.insert("idleMb".into(), json!(round(options.daemon.resident_mb()?)));
    }
    Ok(vec![row])
}

/// Measures a daemon that dials: from its start to Established.
fn start(scenario: &Scenario, options: &Options, target: SocketAddr) -> anyhow::Result<Vec<Row>> {
    let mut load = Load::new(target, Universe::new(&[], std::iter::empty()))?;
    load.sessions = sessions(scenario);
    let deadline = Instant::now() + options.timeout;
    load.accept(0, deadline)?;
    while load.up == 0 {
        ensure!(Instant::now() < deadline, "the session did not come up: {:?}", load.why);
        load.step(Duration::from_millis(5))?;
    }
    let up = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    let file = options.started.as_ref().context("--started: the file with the time of the daemon's start")?;
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let started: f64 = text.trim().parse().with_context(|| format!("{}: {text}", file.display()))?;
    let mut row = Row::new();
    row.insert("scenario".into(), scenario.name.clone().into());
    row.insert("seconds".into(), json!(round(up - started)));
    Ok(vec![row])
}
