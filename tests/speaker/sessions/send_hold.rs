//! Sessions with a silent peer (RFC 4271 6.5) or one that does not read (RFC 9687): our timers with stopped
//! daemons, and theirs with us.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use tortie_bgp::wire::{Capabilities, Families, Open, write_keepalive};
use tortie_bgp::{DownCode, Family, RouterId, State};

use crate::rig::net;
use crate::rig::node::{Node, SOON, intent, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, our_intent};

/// Enough routes to fill the buffers of [`small_buffers`], and those that daemons request.
const MANY: u32 = 60_000;

/// Reduces the buffers of both ends of every connection in the thread's namespace.
fn small_buffers() {
    for name in ["tcp_rmem", "tcp_wmem"] {
        std::fs::write(format!("/proc/sys/net/ipv4/{name}"), "4096 16384 16384")
            .expect("the namespace is ours");
    }
}

fn blocks() -> Vec<String> {
    (0..MANY).map(|n| format!("10.{}.{}.{}/32", 128 + n / 65536, n / 256 % 256, n % 256)).collect()
}

const KINDS: [Kind; 5] = [Kind::Bird, Kind::Gobgp, Kind::Frr, Kind::Openbgpd, Kind::Exabgp];

/// Starts all daemons with sessions of this hold time, then stops all of them.
fn stopped(hold: Duration) -> Option<(Node, Vec<PeerDaemon>)> {
    if !PeerDaemon::enter_for(&KINDS) {
        return None;
    }
    small_buffers();
    let mut ours = our_intent(Kind::Bird, SessionSetup::IPV4);
    ours.peers = Default::default();
    let mut all = Vec::new();
    for kind in KINDS {
        // Without a hold time GoBGP 3.10 has a write timeout of zero and ends the session, so it gets nothing
        // to write.
        let reject = "[global.apply-policy.config]\ndefault-export-policy = \"reject-route\"\n";
        let more = if kind == Kind::Gobgp { reject } else { "" };
        let peer_daemon = PeerDaemon::start_here(kind, SessionSetup { more, ..SessionSetup::IPV4 })?;
        let mut peer = our_intent(kind, SessionSetup::IPV4).peers.remove("daemon").unwrap();
        (peer.hold_time, peer.send_hold_time) = (hold, Some(Duration::from_secs(2)));
        ours.peers.insert(kind.at(), peer);
        all.push(peer_daemon);
    }
    let a = Node::start(ours);
    for (kind, peer_daemon) in KINDS.into_iter().zip(&all) {
        wait(&format!("{kind:?} to come up"), || match a.peer(&kind.at()) {
            Some(p) if p.state == State::Established => Ok(()),
            p => Err(format!("{p:#?}\n{}", peer_daemon.log())),
        });
        assert_eq!(a.peer(&kind.at()).unwrap().session.unwrap().hold_time, hold, "{kind:?}");
    }
    for peer_daemon in &all {
        peer_daemon.stop();
    }
    Some((a, all))
}

/// Checks that all sessions end with this NOTIFICATION.
fn all_end(a: &Node, code: DownCode, notification: (u8, u8)) {
    for kind in KINDS {
        wait(&format!("the end with {kind:?}"), || match a.peer(&kind.at()).and_then(|p| p.last_down) {
            Some((down, _)) if down.code == code && down.notification == Some(notification) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
}

/// Without KEEPALIVEs (hold time 0), and before they have read all routes, our send hold timer ends the
/// sessions.
#[test]
fn send_hold_timer_ends_sessions_with_stopped_daemons() {
    let Some((mut a, _all)) = stopped(Duration::ZERO) else { return };
    let blocks = blocks();
    let more = intent("192.0.2.1:1790", 64512, &blocks.iter().map(String::as_str).collect::<Vec<_>>());
    (a.intent.originated, a.intent.view) = (more.originated, more.view);
    a.apply();
    all_end(&a, DownCode::SendHoldTimer, (8, 0));
}

#[test]
fn hold_timer_ends_sessions_with_stopped_daemons() {
    let Some((a, _all)) = stopped(Duration::from_secs(9)) else { return };
    all_end(&a, DownCode::HoldTimer, (4, 0));
}

/// Returns the messages of a peer in AS 64512 until its session is up.
fn greeting(hold: u16) -> Vec<u8> {
    let capabilities = Capabilities {
        multiprotocol: true,
        families: Families::NONE.with(Family::Ipv4Unicast),
        as4: Some(64512),
        ..Capabilities::default()
    };
    let mut bytes = Vec::new();
    Open { asn: 64512, hold_time: hold, router_id: RouterId(9), capabilities }.write(&mut bytes);
    write_keepalive(&mut bytes);
    bytes
}

/// Connects to the daemon from 192.0.2.1.
fn connect(kind: Kind) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(&SockAddr::from("192.0.2.1:0".parse::<SocketAddr>().unwrap())).unwrap();
    let at: SocketAddr = format!("{}:1790", kind.at()).parse().unwrap();
    wait("the connection", || socket.connect(&SockAddr::from(at)).map_err(|e| e.to_string()));
    socket
}

/// A peer that is silent after session setup receives Hold Timer Expired from each daemon.
#[test]
fn hold_timer_of_all_daemons_ends_sessions_with_a_silent_peer() {
    if !PeerDaemon::enter_for(&KINDS) {
        return;
    }
    let mut all = Vec::new();
    for kind in KINDS {
        let Some(peer_daemon) =
            PeerDaemon::start_here(kind, SessionSetup { passive: true, ..SessionSetup::IPV4 })
        else {
            return;
        };
        all.push(peer_daemon);
    }
    let sockets: Vec<Socket> = KINDS.into_iter().map(connect).collect();
    for socket in &sockets {
        socket.set_read_timeout(Some(SOON)).unwrap();
        let mut socket = socket;
        socket.write_all(&greeting(3)).unwrap();
    }
    for (peer_daemon, mut socket) in all.iter().zip(&sockets) {
        let mut said = Vec::new();
        let _ = socket.read_to_end(&mut said);
        // NOTIFICATION with hold timer expired; some have additional data.
        let last = said.windows(5).rfind(|w| w[0] == 0 && w[1] >= 21 && w[2..] == [3, 4, 0]);
        assert!(last.is_some(), "{:?}: {said:?}\n{}", peer_daemon.kind, peer_daemon.log());
    }
}

/// A clock that can be advanced: for timers that no configuration shortens.
struct Clock {
    dir: tempfile::TempDir,
    ahead: i64,
}

impl Clock {
    const SOURCE: &str = r"
        #include <fcntl.h>
        #include <sys/mman.h>
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        long syscall(long, ...);
        static const volatile long *ahead;
        __attribute__((constructor)) static void open_clock(void) {
            int file = open(CLOCK, O_RDONLY);
            void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
            if (page != MAP_FAILED) ahead = page;
        }
        int clock_gettime(clockid_t clock, struct timespec *time) {
            int result = (int)syscall(SYS_clock_gettime, clock, time);
            if (result == 0 && clock == CLOCK_MONOTONIC && ahead) time->tv_sec += *ahead;
            return result;
        }";

    /// Compiles the library. `None` without a compiler.
    fn make() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("seconds"), 0_i64.to_ne_bytes()).unwrap();
        std::fs::write(at("clock.c"), Self::SOURCE).unwrap();
        let define = format!("-DCLOCK=\"{}\"", at("seconds"));
        let (out, source) = (at("clock.so"), at("clock.c"));
        let made = Command::new("cc").args(["-shared", "-fPIC", &define, "-o", &out, &source]).status();
        if !made.is_ok_and(|status| status.success()) {
            net::skip("a library needs cc");
            return None;
        }
        Some(Self { dir, ahead: 0 })
    }

    fn advance(&mut self, seconds: i64) {
        self.ahead += seconds;
        // The file is mapped and must not be replaced.
        let file = std::fs::OpenOptions::new().write(true).open(self.dir.path().join("seconds")).unwrap();
        file.write_all_at(&self.ahead.to_ne_bytes(), 0).unwrap();
    }
}

/// No session timer expires earlier.
const EARLY: Duration = Duration::from_millis(2500);

/// Returns the time until the daemon drops a peer that sends KEEPALIVEs and reads nothing.
fn lasts(kind: Kind, hold: u16, clock: &mut Option<Clock>, peer_daemon: &PeerDaemon) -> Duration {
    let socket = connect(kind);
    (&socket).write_all(&greeting(hold)).unwrap();
    // The length of an OPEN.
    let _ = (&socket).read_exact(&mut [0; 29]);
    let (start, mut keepalive) = (Instant::now(), Vec::new());
    write_keepalive(&mut keepalive);
    for round in 1.. {
        std::thread::sleep(Duration::from_millis(200));
        if (&socket).write_all(&keepalive).is_err() {
            break;
        }
        // The feed has sent a KEEPALIVE since the last time.
        if let (0, Some(clock)) = (round % 6, &mut *clock) {
            clock.advance(40);
        }
        assert!(start.elapsed() < SOON, "{}", peer_daemon.log());
    }
    start.elapsed()
}

/// The daemon drops a peer that sends KEEPALIVEs and reads nothing, with this text in its log.
fn drops_us(kind: Kind, setup: SessionSetup, hold: u16, says: &str, mut clock: Option<Clock>) {
    if !PeerDaemon::enter(kind) {
        return;
    }
    small_buffers();
    let setup = SessionSetup { others: &[(3, 64603)], ..setup };
    let Some(peer_daemon) = PeerDaemon::start_here(kind, setup) else { return };
    // Source of the routes.
    let blocks = blocks();
    let mut feed = intent("192.0.2.3:1790", 64603, &blocks.iter().map(String::as_str).collect::<Vec<_>>());
    let mut peer = our_intent(kind, SessionSetup::IPV4).peers.remove("daemon").unwrap();
    peer.local = Some("192.0.2.3".parse().unwrap());
    peer.keepalive_time = Some(Duration::from_secs(1));
    feed.peers.insert("daemon".into(), peer);
    let feed = Node::start(feed);
    peer_daemon.wait_established(&feed);
    // FRR drops a connection during its change to passive mode, which is not the subject of this test.
    let lasted = (0..3).map(|_| lasts(kind, hold, &mut clock, &peer_daemon)).find(|time| *time > EARLY);
    wait(says, || if peer_daemon.log().contains(says) { Ok(()) } else { Err(peer_daemon.log()) });
    // Not because we were silent.
    assert!(lasted.is_some(), "{}", peer_daemon.log());
    let p = feed.peer("daemon").unwrap();
    assert_eq!((p.state, p.flaps), (State::Established, 0), "{}", peer_daemon.log());
}

#[test]
fn send_hold_timer_of_frr_ends_our_session() {
    // Its limit is twice the hold time.
    let neighbour = "neighbor 192.0.2.1 passive\nneighbor 192.0.2.1 timers 1 3";
    drops_us(
        Kind::Frr,
        SessionSetup { neighbour, ..SessionSetup::IPV4 },
        3,
        "SendQ progress for 2 holdtimes",
        None,
    );
}

/// Without a separate timer: no single write may take longer than the hold time.
#[test]
fn send_hold_timer_of_gobgp_ends_our_session() {
    drops_us(Kind::Gobgp, SessionSetup { passive: true, ..SessionSetup::IPV4 }, 3, "write-failed", None);
}

/// Its timer is the hold time, at least 90 s.
#[test]
fn send_hold_timer_of_openbgpd_ends_our_session() {
    let Some(clock) = Clock::make() else { return };
    let preload = clock.dir.path().join("clock.so").display().to_string().leak();
    let setup = SessionSetup { passive: true, preload, ..SessionSetup::IPV4 };
    drops_us(Kind::Openbgpd, setup, 90, "reason: SendHoldTimer expired", Some(clock));
}
