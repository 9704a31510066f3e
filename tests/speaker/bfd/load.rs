//! BFD on a busy machine: no session goes down unless the path fails, and a cut is detected in time.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tortie::speaker::SpeakerFact;
use tortie_bgp::bfd::{Cause, State as BfdState};

use crate::bfd::stalls::Stalls;
use crate::bfd::{Frr, times};
use crate::rig::bird::Bird;
use crate::rig::net::{self, Commands, Far};
use crate::rig::node::{Node, intent, peer, wait_for};

/// Number of sessions, each with its own peer address.
const SESSIONS: usize = 20;
/// Number of routes of the first peer.
const ROUTES: u32 = 200_000;
/// Upper limit of detection: 3 x 50 ms, plus time for the scheduler.
const SEEN: Duration = Duration::from_millis(200);
/// Time within which the kernel cuts the link. The moment of a slower cut is not known: it counts from its end,
/// and at most half of the cuts may be slower.
const CUT: Duration = Duration::from_millis(20);

/// A process that uses a whole processor until dropped.
struct Busy(Child);

impl Busy {
    fn loops(count: usize) -> Vec<Self> {
        let busy =
            || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        (0..count).map(|_| Self(busy())).collect()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn address(session: usize) -> String {
    format!("198.51.100.{}", 101 + session)
}

/// Returns our address for a session: BIRD has at most one session with an address.
fn own(session: usize) -> String {
    format!("198.51.100.{}", 201 + session)
}

fn name(session: usize) -> String {
    format!("s{session:02}")
}

/// Implementation of the other BFD end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    Bird,
    Frr,
}

/// BIRD with BGP at each of the addresses, and BFD independent of it, so that a cut costs no time for BGP to
/// re-establish.
fn config(other: Other) -> String {
    let mut text = "protocol static full { disabled; ipv4;\n".to_owned();
    for route in 0..ROUTES {
        let [_, a, b, c] = (route << 4).to_be_bytes();
        let _ = writeln!(text, "route {}.{a}.{b}.{c}/28 blackhole;", 20 + (route >> 20));
    }
    text += "}\n";
    if other == Other::Bird {
        text += "protocol bfd { interface \"*\" { interval 50 ms; multiplier 3; };\n";
        for session in 0..SESSIONS {
            let _ = writeln!(text, "neighbor {} dev \"far\" local {};", own(session), address(session));
        }
        text += "}\n";
    }
    for session in 0..SESSIONS {
        let export = if session == 0 { "where source = RTS_STATIC" } else { "none" };
        let _ = writeln!(
            text,
            "protocol bgp p{session} {{ local {} port 1790 as {}; neighbor {} port 1790 as 64512; direct; strict bind yes;
               connect delay time 1; connect retry time 1; error wait time 1, 1;
               ipv4 {{ import none; export {export}; }}; }}",
            address(session),
            65000 + session,
            own(session)
        );
    }
    text
}

/// FRR's bfdd with the same sessions; the routes stay with BIRD.
fn bfdd() -> String {
    let mut text = "bfd\n profile fast\n  receive-interval 50\n  transmit-interval 50\n exit\n".to_owned();
    for session in 0..SESSIONS {
        let (ours, theirs) = (own(session), address(session));
        let _ = writeln!(text, " peer {ours} local-address {theirs} interface far\n  profile fast\n exit");
    }
    text
}

fn setup(test: &str, other: Other) -> Option<(Far, Bird, Option<Frr>, Node)> {
    // The test measures its own load only.
    net::alone();
    let far = Far::make(test)?;
    for session in 0..SESSIONS {
        far.ip(&["addr", "add", &format!("{}/24", address(session)), "dev", "far"]);
        net::ip(&["addr", "add", &format!("{}/24", own(session)), "dev", "near"]);
    }
    let bird = Bird::start_in(Some(&far.0), &config(other))?;
    let frr = match other {
        Other::Bird => None,
        Other::Frr => Some(Frr::start_with(&far, None, &bfdd())?),
    };
    let mut us = intent(&format!("{}:1790", net::NEAR[0]), 64512, &["10.1.0.0/26"]);
    us.listen = (0..SESSIONS).map(|session| format!("{}:1790", own(session)).parse().unwrap()).collect();
    for session in 0..SESSIONS {
        let asn = 65000 + u32::try_from(session).unwrap();
        let mut far = peer(&format!("{}:1790", address(session)), &own(session), asn);
        far.ipv6 = false;
        far.bfd = times(50, 3);
        us.peers.insert(name(session), far);
    }
    let a = Node::start(us);
    for session in 0..SESSIONS {
        a.wait_established(&name(session));
    }
    all_up(&a);
    Some((far, bird, frr, a))
}

fn all_up(a: &Node) {
    wait_for(Duration::from_secs(60), "all BFD sessions to be up", || {
        let all = a.ask(|view| view.bfd_sessions());
        let up =
            all.values().filter(|(_, s)| s.state == BfdState::Up && s.remote_state == BfdState::Up).count();
        if up == SESSIONS { Ok(()) } else { Err(format!("{up} of {SESSIONS}: {all:#?}")) }
    });
}

/// Returns the sessions that went down since, with cause, time of detection and time of the report to the
/// speaker.
fn downs(a: &Node, since: Instant) -> Vec<(String, Cause, Instant, Instant)> {
    let down = |(reported, fact)| match fact {
        SpeakerFact::Bfd { peer, from: BfdState::Up, cause, at, .. } if at >= since => {
            Some((peer.to_string(), cause, at, reported))
        }
        _ => None,
    };
    a.timed_facts().into_iter().filter_map(down).collect()
}

/// A session that goes down within this time after a stall of the machine went down because of it.
const AFTER_STALL: Duration = Duration::from_millis(300);
/// Stall that can end a session: with it, three packets in a row may be late.
const STALL: Duration = Duration::from_millis(50);

/// Two busy loops, and a full table that is announced and withdrawn for this time: no session may go down. On
/// a slow machine the first table may still be incomplete at the end.
fn quiet_under_load(far: &Far, bird: &Bird, a: &Node, time: Duration) {
    bird.ask("enable full");
    wait_for(Duration::from_secs(60), "the first of the table", || match a.routes() {
        n if n > 10 => Ok(()),
        n => Err(n.to_string()),
    });
    let (busy, stalls) = (Busy::loops(2), Stalls::watch_with_link(far));
    all_up(a);
    let ups = || a.ask(|view| view.bfd_sessions()).values().map(|(_, s)| s.ups).sum::<u64>();
    let (since, before) = (Instant::now(), ups());
    let (mut rounds, mut most) = (0, 0);
    while since.elapsed() < time {
        bird.ask("enable full");
        while since.elapsed() < time && most < ROUTES as usize * (rounds + 1) {
            most = most.max(a.routes() + ROUTES as usize * rounds);
            std::thread::sleep(Duration::from_millis(20));
        }
        bird.ask("disable full");
        while since.elapsed() < time && a.routes() > 10 {
            std::thread::sleep(Duration::from_millis(20));
        }
        rounds += 1;
    }
    drop(busy);
    // What the speaker reports may come later than what it answers.
    let lost = ups() - before;
    wait_for(Duration::from_secs(60), "all losses to be reported", || match downs(a, since).len() as u64 {
        reported if reported >= lost => Ok(()),
        reported => Err(format!("{reported} of {lost}")),
    });
    let is_stall = |at: Instant| stalls.between(at.checked_sub(AFTER_STALL).unwrap_or(at), at) > STALL;
    let (excused, lost): (Vec<_>, Vec<_>) =
        downs(a, since).into_iter().partition(|(_, _, at, _)| is_stall(*at));
    assert_eq!(lost, [], "after {rounds} rounds in {:?}", since.elapsed());
    if !excused.is_empty() {
        eprintln!("lost while the machine stood still: {excused:?}");
    }
    eprintln!("no session lost in {:?}, {most} routes came, {rounds} times from the start", since.elapsed());
}

/// Waits until the kernel carries out a change of a link at once: it removes the namespaces of earlier tests
/// meanwhile, and holds its lock.
fn calm(commands: &mut Commands) {
    let mut quick = 0;
    wait_for(Duration::from_secs(60), "the kernel to have time", || {
        let at = Instant::now();
        commands.run("link set far mtu 1500");
        quick = if at.elapsed() < CUT { quick + 1 } else { 0 };
        if quick >= 5 { Ok(()) } else { Err(format!("{:?}", at.elapsed())) }
    });
}

/// Cuts the link repeatedly under load. Returns the detection times of all sessions and cuts, sorted.
fn cuts(far: &Far, a: &Node, count: usize) -> Vec<Duration> {
    let (busy, stalls) = (Busy::loops(2), Stalls::watch());
    let mut commands = far.commands();
    let (mut seen, mut received) = (Vec::new(), Vec::new());
    let mut slow = Vec::new();
    for round in 0..count {
        all_up(a);
        calm(&mut commands);
        // At varying times after the last packets.
        std::thread::sleep(Duration::from_millis(u64::try_from(round * 37 % 100).unwrap()));
        let at = Instant::now();
        commands.run("link set far down");
        let took = at.elapsed();
        wait_for(Duration::from_secs(60), "all to see the cut", || match downs(a, at).len() {
            SESSIONS => Ok(()),
            n => {
                let up = a
                    .ask(|view| view.bfd())
                    .map(|v| v.sessions.values().filter(|s| s.state == BfdState::Up).count());
                Err(format!("{n}, {up:?} are up in cut {round}"))
            }
        });
        slow.extend((took > CUT).then_some(took));
        let from = if took > CUT { at + took } else { at };
        for (_, _, noticed, reported) in downs(a, at) {
            // Time in which the machine stood still is not the speaker's.
            seen.push(noticed.saturating_duration_since(from).saturating_sub(stalls.between(from, noticed)));
            received.push(reported.saturating_duration_since(from));
        }
        commands.run("link set far up");
    }
    drop(busy);
    assert!(slow.len() * 2 <= count, "the kernel took too long for the cuts: {slow:?}");
    eprintln!("cuts that the kernel took long for: {slow:?}");
    received.sort_unstable();
    // The delay of the report to the speaker depends on processor load.
    eprintln!("told to the speaker: p99 {:?}", percentile(&received, 99));
    seen.sort_unstable();
    seen
}

fn percentile(sorted: &[Duration], share: usize) -> Duration {
    sorted[(sorted.len() * share).div_ceil(100).saturating_sub(1)]
}

fn judge(seen: &[Duration]) {
    let (half, most, worst) = (percentile(seen, 50), percentile(seen, 99), percentile(seen, 100));
    eprintln!("{} times seen: p50 {half:?}, p99 {most:?}, worst {worst:?}", seen.len());
    assert!(most < SEEN, "p50 {half:?}, p99 {most:?}, worst {worst:?}");
}

fn holds(test: &str, other: Other, quiet: u64, cut: usize) {
    let Some((far, bird, _frr, a)) = setup(test, other) else { return };
    quiet_under_load(&far, &bird, &a, Duration::from_secs(quiet));
    judge(&cuts(&far, &a, cut));
}

#[test]
fn bfd_with_bird_holds_under_load_and_sees_a_cut_in_time() {
    holds("bfd-load", Other::Bird, 6, 10);
}

#[test]
fn bfd_with_frr_holds_under_load_and_sees_a_cut_in_time() {
    holds("bfd-frr", Other::Frr, 6, 10);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn long_bfd_with_bird_holds_a_minute_under_load_and_sees_a_hundred_cuts_in_time() {
    holds("bfd-long", Other::Bird, 60, 100);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn long_bfd_with_frr_holds_a_minute_under_load_and_sees_a_hundred_cuts_in_time() {
    holds("bfd-flong", Other::Frr, 60, 100);
}
