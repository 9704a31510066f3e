//! A process that does not run for a while (SIGSTOP, a frozen cgroup, a suspended machine): a peer that spoke meanwhile is no silent one.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use serde_json::json;
use socket2::{Domain, Socket, Type};
use tortie_topology::Signal;

use crate::common::hosts::{Hosts, PATIENCE, Plan, poll_until};

const PEER: &str = "172.30.0.253";
/// The least hold time that there is but none (RFC 4271 4.2).
const HOLD: u16 = 3;
/// Longer than the hold time.
const PAUSE: Duration = Duration::from_secs(5);

/// A message of RFC 4271 4.1.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(19 + body.len()).unwrap().to_be_bytes();
    [&[0xff; 16][..], &length, &[kind], body].concat()
}

/// The session of a scripted neighbour, which says KEEPALIVE and nothing else.
struct Neighbour(TcpStream);

impl Neighbour {
    /// Its connection comes from the switch.
    fn dial(hosts: &Hosts) -> Self {
        let netns = hosts.lab.netns("switch").unwrap();
        let stream = std::thread::spawn(move || {
            let file = std::fs::File::open(netns).unwrap();
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
            let [own, host] = [(PEER, 0), ("172.30.0.1", 179)]
                .map(|(addr, port)| SocketAddr::new(addr.parse::<IpAddr>().unwrap(), port));
            let dial = || {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                socket.bind(&own.into())?;
                socket.connect(&host.into())?;
                Ok::<_, std::io::Error>(TcpStream::from(socket))
            };
            // The agent knows its peers before it listens.
            poll_until(PATIENCE, "the agent listens", || dial().map_err(|error| error.to_string())).unwrap()
        });
        let mut neighbour = Self(stream.join().unwrap());
        let open = [&[4][..], &65_001_u16.to_be_bytes(), &HOLD.to_be_bytes(), &[172, 30, 0, 253], &[0]];
        neighbour.0.write_all(&message(1, &open.concat())).unwrap();
        neighbour
    }

    fn keepalive(&mut self) {
        let _ = self.0.write_all(&message(4, &[]));
    }

    /// What has come; `Err`: the session is over, and this was the last.
    fn received(&mut self) -> Result<Vec<u8>, Vec<u8>> {
        self.0.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (mut all, mut octets) = (Vec::new(), [0; 4096]);
        loop {
            match self.0.read(&mut octets) {
                Ok(0) => return Err(all),
                Ok(n) => all.extend_from_slice(&octets[..n]),
                Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => return Ok(all),
                Err(_) => return Err(all),
            }
        }
    }

    /// Speaks for a while, as the protocol asks for.
    fn speaks(&mut self, span: Duration, what: &str) {
        let begin = Instant::now();
        while begin.elapsed() < span {
            self.keepalive();
            let received = self.received();
            assert!(received.is_ok(), "{what}: {received:?}");
            std::thread::sleep(Duration::from_millis(400));
        }
    }
}

#[test]
fn a_pause_of_the_process_ends_no_session_whose_peer_went_on_and_every_one_whose_peer_did_not() {
    let Some(mut hosts) = Hosts::up(Plan { hosts: 1, router: true, ..Plan::default() }) else { return };
    hosts.run("switch", &format!("ip addr add {PEER}/32 dev lo"));
    let peer = json!({ "ip": PEER, "as_num": 65001, "passive_mode": true }).to_string();
    hosts.put(&format!("/calico/bgp/v1/host/host1/peer_v4/{PEER}"), &peer);
    hosts.until(1, "the peer is wanted", |s| s["bgp"]["peers"]["of"] == 2);
    // As soon as the session is there, and at moments of it when timers are about to run.
    for wait in [0, 300, 900] {
        let mut neighbour = Neighbour::dial(&hosts);
        let begin = Instant::now();
        let mut opened = Vec::new();
        // OPEN and KEEPALIVE.
        while opened.len() < 19 + 29 {
            assert!(begin.elapsed() < Duration::from_secs(10), "no OPEN: {}", hosts.log(1));
            opened.extend(neighbour.received().unwrap());
        }
        neighbour.keepalive();
        std::thread::sleep(Duration::from_millis(wait));
        hosts.signal("host1", Signal::STOP);
        let stopped = Instant::now();
        while stopped.elapsed() < PAUSE {
            neighbour.keepalive();
            std::thread::sleep(Duration::from_secs(1));
        }
        hosts.signal("host1", Signal::CONT);
        neighbour.speaks(Duration::from_secs(2), &format!("stopped after {wait} ms"));
        // The other half: nothing came, so silence is silence.
        hosts.signal("host1", Signal::STOP);
        std::thread::sleep(PAUSE);
        hosts.signal("host1", Signal::CONT);
        let resumed = Instant::now();
        let last = loop {
            match neighbour.received() {
                Err(last) => break last,
                Ok(_) => assert!(resumed.elapsed() < Duration::from_secs(3), "a silent peer is kept"),
            }
        };
        assert!(last.ends_with(&message(3, &[4, 0])), "hold timer expired, not {last:?}");
    }
}
