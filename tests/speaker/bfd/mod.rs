//! BFD (RFC 5880 to 5883) with BIRD 2 and FRR over a link between two namespaces, and its effect on the BGP
//! session.

mod load;
mod stalls;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tortie::speaker::SpeakerFact;
use tortie_bgp::bfd::{Cause, Diagnostic, Path, State as BfdState, Status};
use tortie_bgp::{DownCode, State};
use tortie_engine::routing::{Bfd, PeerKind, RangeIntent, RoutingIntent};

use crate::rig::bird::Bird;
use crate::rig::net::{self, FAR, Far, NEAR};
use crate::rig::node::{Node, cidr, intent, peer, wait};

/// Address family, as an index of [`NEAR`].
const V4: usize = 0;
const V6: usize = 1;

pub(crate) fn times(interval: u64, multiplier: u8) -> Option<Bfd> {
    Some(Bfd { interval: Duration::from_millis(interval), multiplier, ..Bfd::default() })
}

fn socket(addr: &str) -> String {
    if addr.contains(':') { format!("[{addr}]:1790") } else { format!("{addr}:1790") }
}

/// Detection time of both ends: 3 x 300 ms. The daemons have ordinary priority, and on a loaded machine one
/// of them may not run for a tenth of a second.
const DETECTION: Duration = Duration::from_millis(900);

/// Starts a node with the other end as its peer `far`, with BFD of 3 x 300 ms.
fn node(family: usize, asn: u32) -> Node {
    Node::start(wants(family, asn))
}

fn wants(family: usize, asn: u32) -> RoutingIntent {
    let mut us = intent(&socket(NEAR[family]), 64512, &["10.1.0.0/26", "fd00:1::/122"]);
    let mut far = peer(&socket(FAR[family]), NEAR[family], asn);
    (far.ipv4, far.ipv6) = (family == V4, family == V6);
    far.bfd = times(300, 3);
    us.peers.insert("far".into(), far);
    us
}

impl Node {
    pub(crate) fn bfd(&self, name: &str) -> Option<(Path, Status)> {
        let name = name.to_owned();
        self.ask(move |view| view.bfd_of(&name)).map(|(endpoint, status)| (endpoint.path, status))
    }

    fn bfd_up(&self, path: Path) {
        wait("BFD to come up", || match self.bfd("far") {
            Some((p, s)) if p == path && s.state == BfdState::Up && s.remote_state == BfdState::Up => Ok(()),
            other => Err(format!("{other:#?}\n{:#?}", self.facts())),
        });
    }

    /// Waits until BGP and BFD have been up for a while. FRR 8.4 replaces the BFD session of an IPv6
    /// neighbour when BGP comes up, and ends BGP because of that.
    fn steady(&self) {
        let while_up = DETECTION * 2;
        wait("both sessions to be steady", || {
            let bgp = self.peer("far").and_then(|p| p.uptime).unwrap_or_default();
            let bfd = self.bfd("far").filter(|(_, s)| s.state == BfdState::Up).map(|(_, s)| s.since);
            if bgp > while_up && bfd > Some(while_up) { Ok(()) } else { Err(format!("{bgp:?} {bfd:?}")) }
        });
    }

    /// Returns the time at which BFD ended the session.
    fn lost_since(&self, since: Instant) -> Option<Instant> {
        self.timed_facts().into_iter().filter(|(at, _)| *at >= since).find_map(|(at, fact)| match fact {
            SpeakerFact::Peer { from: State::Established, down: Some(down), .. } => {
                assert_eq!(
                    (down.code, down.notification, down.helper),
                    (DownCode::Bfd, Some((6, 10)), false)
                );
                assert!(down.text.starts_with("BFD: "), "{}", down.text);
                Some(at)
            }
            _ => None,
        })
    }
}

/// Drops our packets only: the other end detects the failure and reports Down.
fn cut_one_way(family: usize, a: &Node) {
    let name = ["-4", "-6"][family];
    net::ip(&[name, "route", "add", "blackhole", FAR[family], "metric", "1"]);
    a.fact("the neighbor's word", |f| {
        let cause = Cause::NeighborDown(Diagnostic::EXPIRED);
        matches!(f, SpeakerFact::Bfd { from: BfdState::Up, cause: c, .. } if *c == cause)
    });
    // By BFD here, or by the NOTIFICATION of the other end, whichever comes first.
    a.fact("the end of the session", |f| {
        matches!(f, SpeakerFact::Peer { from: State::Established, down: Some(down), .. }
            if down.notification.is_some_and(|(code, _)| code == 6) && !down.helper)
    });
}

/// Cuts the link and checks that the session goes down in time.
fn cut(far: &Far, a: &Node) {
    wait("the detection time of both ends", || match a.bfd("far") {
        Some((_, s)) if s.detection_time == Some(DETECTION) => Ok(()),
        other => Err(format!("{other:#?}")),
    });
    let at = Instant::now();
    far.link(false);
    let cut = Instant::now();
    wait("the session to end", || {
        if a.lost_since(at).is_some() { Ok(()) } else { Err(format!("{:#?}", a.bfd("far"))) }
    });
    let lost = a.lost_since(at).unwrap();
    // Not because of the link itself; the last packet came at most 300 ms before. How exact it is under load
    // is the subject of `load`, which runs alone.
    assert!(lost - at > Duration::from_millis(150), "{:?}", lost - at);
    assert!(lost.saturating_duration_since(cut) < DETECTION * 5, "{:?}", lost - cut);
    // The session may have begun anew since.
    let cause = a.facts().into_iter().filter_map(|fact| match fact {
        SpeakerFact::Bfd { from: BfdState::Up, cause, at: noticed, .. } if noticed >= at => Some(cause),
        _ => None,
    });
    assert_eq!(cause.collect::<Vec<_>>(), [Cause::Expired]);
}

/// Returns BIRD's configuration: BGP, and BFD of 3 x 300 ms. `options`: options of the BGP protocol.
fn bird_config(family: usize, asn: u32, options: &str) -> String {
    let channel = if family == V4 { "ipv4" } else { "ipv6" };
    format!(
        "protocol bfd {{ interface \"*\" {{ interval 300 ms; multiplier 3; }}; multihop {{ interval 300 ms; multiplier 3; }}; }}
         protocol bgp tortie {{ local {} port 1790 as {asn}; neighbor {} port 1790 as 64512;
           connect delay time 1; connect retry time 1; error wait time 1, 1; strict bind yes; bfd on; {options}
           {channel} {{ import all; export where source = RTS_STATIC; }}; }}",
        FAR[family], NEAR[family]
    )
}

/// Waits until BIRD reports this state, interval and timeout (seconds) of its session.
fn bird_says(bird: &Bird, state: &str, interval: &str, timeout: &str) {
    wait(&format!("BIRD to have {state} {interval} {timeout}"), || {
        let answer = bird.ask("show bfd sessions");
        let line = answer.lines().find(|l| NEAR.iter().any(|a| l.starts_with(a))).unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, _, s, .., i, t] if (s, i, t) == (state, interval, timeout) => Ok(()),
            _ => Err(format!("{answer}{}", bird.log())),
        }
    });
}

fn single_hop_with_bird(family: usize, test: &str) {
    let Some(far) = Far::make(test) else { return };
    let Some(bird) = Bird::start_in(Some(&far.0), &bird_config(family, 65009, "direct;")) else { return };
    let a = node(family, 65009);
    a.wait_established("far");
    a.bfd_up(Path::SingleHop);
    bird_says(&bird, "Up", "0.300", "0.900");
    cut(&far, &a);
    // The link comes up again, and both sessions with it.
    far.link(true);
    if family == V6 {
        far.ip(&["addr", "add", "2001:db8:51::9/64", "dev", "far", "nodad"]);
    }
    a.wait_established("far");
    a.bfd_up(Path::SingleHop);
}

fn noticed_by_bird(family: usize, test: &str) {
    let Some(far) = Far::make(test) else { return };
    let Some(bird) = Bird::start_in(Some(&far.0), &bird_config(family, 65009, "direct;")) else { return };
    let a = node(family, 65009);
    a.wait_established("far");
    a.bfd_up(Path::SingleHop);
    cut_one_way(family, &a);
    bird.wait_for_output("show protocols tortie", "BFD session down");
}

#[test]
fn bfd_single_hop_both_ways_with_bird() {
    single_hop_with_bird(V4, "bfd-b4");
}

#[test]
fn bfd_single_hop_ipv6_both_ways_with_bird() {
    single_hop_with_bird(V6, "bfd-b6");
}

#[test]
fn bfd_single_hop_loss_seen_by_bird() {
    noticed_by_bird(V4, "bfd-n4");
}

#[test]
fn bfd_single_hop_ipv6_loss_seen_by_bird() {
    noticed_by_bird(V6, "bfd-n6");
}

#[test]
fn bfd_multihop_both_ways_with_bird() {
    let Some(far) = Far::make("bfd-bm") else { return };
    // iBGP: both use port 4784 without configuration.
    let Some(bird) = Bird::start_in(Some(&far.0), &bird_config(V4, 64512, "")) else { return };
    let a = node(V4, 64512);
    a.wait_established("far");
    a.bfd_up(Path::Multihop);
    bird_says(&bird, "Up", "0.300", "0.900");
    cut(&far, &a);
    bird.wait_for_output("show protocols tortie", "BFD session down");
}

#[test]
fn bfd_times_change_by_poll_both_ways_with_bird() {
    let Some(far) = Far::make("bfd-bp") else { return };
    let config = bird_config(V4, 65009, "direct;");
    let Some(bird) = Bird::start_in(Some(&far.0), &config) else { return };
    let mut a = node(V4, 65009);
    a.wait_established("far");
    a.bfd_up(Path::SingleHop);
    bird_says(&bird, "Up", "0.300", "0.900");
    a.steady();
    let ups = a.bfd("far").unwrap().1.ups;
    a.intent.peers.get_mut("far").unwrap().bfd = times(500, 4);
    a.apply();
    // BIRD now sends at our interval, and waits for four of our packets.
    bird_says(&bird, "Up", "0.500", "2.000");
    bird.configure(&config.replace("interval 300 ms", "interval 800 ms"));
    wait("our times to follow", || match a.bfd("far") {
        Some((_, s))
            if s.transmit_interval == Some(Duration::from_millis(800))
                && s.detection_time == Some(Duration::from_millis(2400)) =>
        {
            Ok(())
        }
        other => Err(format!("{other:#?}")),
    });
    assert_eq!(a.bfd("far").unwrap().1.ups, ups);
    assert_eq!(a.state("far"), Some(State::Established));
}

#[test]
fn bfd_that_bird_no_longer_wants_costs_a_session_and_bgp_goes_on_without() {
    let Some(far) = Far::make("bfd-ba") else { return };
    let config = bird_config(V4, 65009, "direct;");
    let Some(bird) = Bird::start_in(Some(&far.0), &config) else { return };
    let a = node(V4, 65009);
    a.wait_established("far");
    a.bfd_up(Path::SingleHop);
    let (flaps, at) = (a.peer("far").unwrap().flaps, Instant::now());
    // It stops without AdminDown, which cannot be distinguished from a cut.
    bird.configure(&config.replace("bfd on;", "bfd off;"));
    wait("the session to end", || {
        if a.lost_since(at).is_some() { Ok(()) } else { Err(format!("{:#?}", a.bfd("far"))) }
    });
    a.wait_established("far");
    assert_ne!(a.bfd("far").unwrap().1.state, BfdState::Up);
    assert_eq!(a.peer("far").unwrap().flaps, flaps + 1);
}

#[test]
fn bfd_loss_during_a_graceful_restart_keeps_the_routes_of_bird() {
    let Some(far) = Far::make("bfd-bg") else { return };
    let config = bird_config(V4, 65009, "direct; graceful restart on;");
    let Some(mut bird) = Bird::start_in(Some(&far.0), &config) else { return };
    let a = node(V4, 65009);
    a.wait_for_route("10.9.0.0/24", FAR[V4]);
    a.bfd_up(Path::SingleHop);
    bird.kill();
    a.fact("BFD to notice", |f| matches!(f, SpeakerFact::Bfd { from: BfdState::Up, to: BfdState::Down, .. }));
    // RFC 5882 4.3.2: BIRD's C bit is clear, so its BFD shares fate with its control plane, and the restart
    // continues.
    assert!(!a.bfd("far").unwrap().1.remote_independent);
    assert!(a.route("10.9.0.0/24").is_some());
    bird.start_again(&config, &["-R"]);
    a.wait_established("far");
    a.bfd_up(Path::SingleHop);
    assert!(a.route("10.9.0.0/24").is_some());
    let down: Vec<_> = a
        .facts()
        .into_iter()
        .filter_map(|f| match f {
            SpeakerFact::Peer { from: State::Established, down: Some(down), .. } => {
                Some((down.code, down.helper))
            }
            _ => None,
        })
        .collect();
    assert_eq!(down, [(DownCode::TcpClosed, true)]);
}

/// FRR's bfdd with zebra, which connects it to bgpd, in another namespace.
pub(crate) struct Frr {
    dir: tempfile::TempDir,
    vtysh: PathBuf,
    child: Child,
}

impl Frr {
    fn start(far: &Far, config: &str) -> Option<Self> {
        let profile = "bfd\n profile fast\n  receive-interval 300\n  transmit-interval 300\n";
        Self::start_with(far, Some(config), profile)
    }

    /// Starts FRR with this configuration of bfdd, and of bgpd if given.
    pub(crate) fn start_with(far: &Far, config: Option<&str>, bfdd_config: &str) -> Option<Self> {
        let programs = ["frr-zebra", "frr-bfdd", "frr-bgpd", "vtysh"].map(net::tool);
        let [Some(zebra), Some(bfdd), Some(bgpd), Some(vtysh)] = programs else { return None };
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let at = dir.path().display();
        let bgpd = match config {
            Some(config) => {
                std::fs::write(dir.path().join("bgpd.conf"), config).unwrap();
                format!("{} $c -i {at}/bgpd.pid -p 1790 -f bgpd.conf &", bgpd.display())
            }
            None => String::new(),
        };
        std::fs::write(dir.path().join("bfdd.conf"), bfdd_config).unwrap();
        std::fs::write(dir.path().join("vtysh.conf"), "username root nopassword\n").unwrap();
        // The daemons require a group that an unpacked package does not create, so they see their own account
        // files. In a separate PID namespace all of them end with the shell.
        let script = format!(
            "cd {at}; cp /etc/group group; echo 'frrvty:x:64998:root' >> group; mount --bind group /etc/group; : > empty
             c='-u root -g root -P 0 --log stdout --vty_socket {at}/ -z {at}/zserv.api'
             {} $c -i {at}/zebra.pid -f empty & until [ -S zserv.api ]; do sleep 0.02; done
             {} $c -i {at}/bfdd.pid --bfdctl {at}/bfdd.sock -f bfdd.conf & until [ -S bfdd.vty ]; do sleep 0.02; done
             {bgpd} wait",
            zebra.display(),
            bfdd.display()
        );
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = net::command(Some(&far.0), "unshare".as_ref())
            .args(["-m", "-p", "-f", "--kill-child", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Some(Self { dir, vtysh, child })
    }

    fn ask(&self, commands: &[&str]) -> String {
        let dir = self.dir.path().display().to_string() + "/";
        let mut command = Command::new(&self.vtysh);
        command.args(["--config_dir", &dir, "--vty_socket", &dir]);
        for one in commands {
            command.args(["-c", one]);
        }
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn wait_for_output(&self, command: &str, texts: &[&str]) {
        wait(&format!("FRR to say {texts:?} to {command:?}"), || {
            let answer = self.ask(&[command]);
            if texts.iter().all(|text| answer.contains(text)) {
                Ok(())
            } else {
                Err(format!("{answer}\n{}", self.log()))
            }
        });
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn frr_config(family: usize, asn: u32) -> String {
    let (near, channel) = (NEAR[family], ["ipv4", "ipv6"][family]);
    format!(
        "router bgp {asn}
          bgp router-id 192.0.2.11
          no bgp ebgp-requires-policy
          bgp log-neighbor-changes
          no bgp fast-external-failover
          neighbor {near} remote-as 64512
          neighbor {near} port 1790
          neighbor {near} timers connect 1
          neighbor {near} update-source {}
          neighbor {near} bfd
          neighbor {near} bfd profile fast
          address-family {channel} unicast
           neighbor {near} activate
          exit-address-family
        ",
        FAR[family]
    )
}

const FRR_UP: [&str; 4] =
    ["Status: up", "Detect-multiplier: 3", "Transmission interval: 300ms", "Receive interval: 300ms"];

fn with_frr(family: usize, path: Path, test: &str) {
    let Some(far) = Far::make(test) else { return };
    let mut config = frr_config(family, 65011);
    let mut us = wants(family, 65011);
    if path == Path::Multihop {
        let line = format!("neighbor {} port 1790", NEAR[family]);
        config =
            config.replace(&line, &format!("{line}\n          neighbor {} ebgp-multihop 5", NEAR[family]));
        // FRR does not indicate that it treats an on-link neighbour as multihop.
        us.peers.get_mut("far").unwrap().bfd = times(300, 3).map(|b| Bfd { multihop: Some(true), ..b });
    }
    let Some(frr) = Frr::start(&far, &config) else { return };
    let a = Node::start(us);
    a.wait_established("far");
    a.bfd_up(path);
    frr.wait_for_output("show bfd peers", &FRR_UP);
    a.steady();
    assert_eq!(frr.ask(&["show bfd peers"]).contains("multihop"), path == Path::Multihop);
    // In the log: the reason that `show bgp neighbors` has is soon replaced by another.
    let ended_by_bfd = || {
        let of_ours = |line: &&str| line.contains(NEAR[family]) && line.contains("Cease/BFD Down");
        frr.log().lines().filter(of_ours).count()
    };
    let before = ended_by_bfd();
    cut(&far, &a);
    frr.wait_for_output("show bfd peers", &["Status: down", "Diagnostics: control detection time expired"]);
    if path == Path::SingleHop {
        wait("FRR to end the session", || match ended_by_bfd() {
            now if now > before => Ok(()),
            _ => Err(frr.log()),
        });
    }
}

#[test]
fn bfd_single_hop_both_ways_with_frr() {
    with_frr(V4, Path::SingleHop, "bfd-f4");
}

#[test]
fn bfd_single_hop_ipv6_both_ways_with_frr() {
    with_frr(V6, Path::SingleHop, "bfd-f6");
}

#[test]
fn bfd_multihop_both_ways_with_frr() {
    with_frr(V4, Path::Multihop, "bfd-fm");
}

#[test]
fn bfd_times_change_by_poll_both_ways_and_admin_down_is_received_by_frr() {
    let Some(far) = Far::make("bfd-fs") else { return };
    let Some(frr) = Frr::start(&far, &frr_config(V4, 65011)) else { return };
    let mut a = node(V4, 65011);
    a.wait_established("far");
    a.bfd_up(Path::SingleHop);
    a.steady();
    let ups = a.bfd("far").unwrap().1.ups;
    let profile = |lines: &[&str]| frr.ask(&[&["conf t", "bfd", "profile fast"], lines].concat());
    profile(&["detect-multiplier 5", "receive-interval 400", "transmit-interval 500"]);
    wait("our times to follow", || match a.bfd("far") {
        Some((_, s))
            if s.remote_multiplier == 5
                && s.transmit_interval == Some(Duration::from_millis(400))
                && s.detection_time == Some(Duration::from_millis(2500)) =>
        {
            Ok(())
        }
        other => Err(format!("{other:#?}\n{}", frr.ask(&["show bfd peers"]))),
    });
    a.intent.peers.get_mut("far").unwrap().bfd = times(600, 7);
    a.apply();
    // FRR's view of our parameters: its "Remote timers".
    frr.wait_for_output("show bfd peers", &["Detect-multiplier: 7", "Transmission interval: 600ms"]);
    assert_eq!(a.bfd("far").unwrap().1.ups, ups);
    assert_eq!(a.state("far"), Some(State::Established));
    // FRR receives our AdminDown. RFC 5882 3.2 requires that it keeps BGP; FRR 8.4 and BIRD 2.0 end the
    // session and re-establish it.
    a.intent.peers.get_mut("far").unwrap().bfd = None;
    a.apply();
    frr.wait_for_output("show bfd peers", &["Status: down", "Remote diagnostics: administratively down"]);
    a.wait_established("far");
}

/// A dynamic peer has the BFD parameters of its range, and is removed when its path fails.
#[test]
fn bfd_of_a_dynamic_peer_with_bird() {
    const NAME: &str = "Dynamic_198.51.100.9";
    let Some(far) = Far::make("bfd-range") else { return };
    let Some(bird) = Bird::start_in(Some(&far.0), &bird_config(V4, 65009, "")) else { return };
    let mut us = wants(V4, 0);
    let mut peer = us.peers.remove("far").unwrap();
    (peer.kind, peer.local, peer.dial_after) = (PeerKind::Dynamic, None, None);
    us.ranges.insert("lan".into(), RangeIntent { prefix: cidr("198.51.100.0/24"), max_sessions: 2, peer });
    let a = Node::start(us);
    wait("BFD of who came", || match (a.bfd(NAME), a.state(NAME)) {
        (Some((Path::SingleHop, s)), Some(State::Established)) if s.state == BfdState::Up => Ok(()),
        other => Err(format!("{other:#?}\n{}", bird.log())),
    });
    bird_says(&bird, "Up", "0.300", "0.900");
    let at = Instant::now();
    far.link(false);
    wait("the session to end", || a.lost_since(at).map(|_| ()).ok_or_else(|| format!("{:#?}", a.facts())));
    wait("nothing left of it", || match a.ask(|v| (v.dynamic(), v.bfd_sessions().len())) {
        (peers, 0) if peers.is_empty() => Ok(()),
        other => Err(format!("{other:?}")),
    });
}
