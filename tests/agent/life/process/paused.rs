//! A process that does not run for a while (SIGSTOP, a frozen cgroup, a suspended machine): a peer that sent
//! messages in the meantime is not silent.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use socket2::{Domain, Socket, Type};
use tortie_topology::Signal;

use crate::common::hosts::{Hosts, PATIENCE, Plan, poll_until};

/// Addresses of the neighbours. The first [`RESTLESS`] send without pause, so that the agent is in the middle
/// of an iteration when it is stopped; the others send a message each second.
const PEERS: [&str; 8] = [
    "172.30.0.246",
    "172.30.0.247",
    "172.30.0.248",
    "172.30.0.249",
    "172.30.0.250",
    "172.30.0.251",
    "172.30.0.252",
    "172.30.0.253",
];
/// Smallest hold time in seconds other than 0 (RFC 4271, section 4.2).
const HOLD: u16 = 3;
/// Longer than the hold time.
const PAUSE: Duration = Duration::from_secs(5);
/// Number of neighbours that send without pause.
const RESTLESS: usize = 5;
/// KEEPALIVE messages per write of such a neighbour.
const AT_ONCE: usize = 10_000;

/// Builds a message (RFC 4271, section 4.1).
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(19 + body.len()).unwrap().to_be_bytes();
    [&[0xff; 16][..], &length, &[kind], body].concat()
}

/// Session of a scripted neighbour that only sends KEEPALIVE messages.
struct Neighbour(TcpStream);

impl Neighbour {
    /// Connects from the switch and sends OPEN.
    fn dial(hosts: &Hosts, peer: &str) -> Self {
        let netns = hosts.lab.netns("switch").unwrap();
        let [own, host] = [(peer, 0), ("172.30.0.1", 179)]
            .map(|(addr, port)| SocketAddr::new(addr.parse::<IpAddr>().unwrap(), port));
        let stream = std::thread::spawn(move || {
            let file = std::fs::File::open(netns).unwrap();
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
            let dial = || {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                socket.bind(&own.into())?;
                socket.connect(&host.into())?;
                Ok::<_, std::io::Error>(TcpStream::from(socket))
            };
            // The agent reads its peers before it listens.
            poll_until(PATIENCE, "the agent listens", || dial().map_err(|error| error.to_string())).unwrap()
        });
        let mut neighbour = Self(stream.join().unwrap());
        let IpAddr::V4(id) = own.ip() else { unreachable!() };
        let open = [&[4][..], &65_001_u16.to_be_bytes(), &HOLD.to_be_bytes(), &id.octets(), &[0]];
        neighbour.0.write_all(&message(1, &open.concat())).unwrap();
        neighbour
    }

    /// Waits for the agent's OPEN and KEEPALIVE, and answers with KEEPALIVE.
    fn open(&mut self, hosts: &Hosts) {
        let begin = Instant::now();
        let mut opened = Vec::new();
        while opened.len() < 19 + 29 {
            assert!(begin.elapsed() < Duration::from_secs(10), "no OPEN: {}", hosts.log(1));
            opened.extend(self.received().unwrap());
        }
        self.0.write_all(&message(4, &[])).unwrap();
    }

    /// Returns the received octets; `Err` if the session is over and these were the last.
    fn received(&mut self) -> Result<Vec<u8>, Vec<u8>> {
        self.0.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
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

    /// Sends KEEPALIVE messages until the guard is dropped: as fast as the agent reads if `restless`, else
    /// one per second. The last message is complete.
    fn speaks(&self, restless: bool) -> Speech {
        let mut stream = self.0.try_clone().unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let thread = std::thread::spawn(move || {
            let messages = message(4, &[]).repeat(if restless { AT_ONCE } else { 1 });
            while !ends.load(Relaxed) && stream.write_all(&messages).is_ok() {
                if !restless {
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        });
        Speech { end, thread: Some(thread) }
    }
}

/// Thread that sends messages; dropping this ends it and waits for its end.
struct Speech {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Speech {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn a_pause_of_the_process_ends_no_session_whose_peer_went_on_and_every_one_whose_peer_did_not() {
    let Some(mut hosts) = Hosts::up(Plan { hosts: 1, router: true, ..Plan::default() }) else { return };
    for addr in PEERS {
        hosts.run("switch", &format!("ip addr add {addr}/32 dev lo"));
        let peer = json!({ "ip": addr, "as_num": 65001, "passive_mode": true }).to_string();
        hosts.put(&format!("/calico/bgp/v1/host/host1/peer_v4/{addr}"), &peer);
    }
    hosts.until(1, "the peers are wanted", |s| s["bgp"]["peers"]["of"] == PEERS.len() + 1);
    // Right after the sessions are established, and at times when timers are about to expire.
    for wait in [0, 300, 900] {
        let mut neighbours = PEERS.map(|addr| Neighbour::dial(&hosts, addr));
        for neighbour in &mut neighbours {
            neighbour.open(&hosts);
        }
        let speeches = std::array::from_fn::<_, { PEERS.len() }, _>(|i| neighbours[i].speaks(i < RESTLESS));
        std::thread::sleep(Duration::from_millis(wait));
        for _ in 0..2 {
            hosts.signal("host1", Signal::STOP);
            std::thread::sleep(PAUSE);
            hosts.signal("host1", Signal::CONT);
            let resumed = Instant::now();
            while resumed.elapsed() < Duration::from_secs(1) {
                for neighbour in &mut neighbours {
                    let received = neighbour.received();
                    assert!(received.is_ok(), "stopped after {wait} ms: {received:?}");
                }
            }
        }
        // Counter-test: no message arrives, so the silence is real.
        drop(speeches);
        hosts.signal("host1", Signal::STOP);
        std::thread::sleep(PAUSE);
        hosts.signal("host1", Signal::CONT);
        let resumed = Instant::now();
        // What a restless neighbour sent last may still wait in the sockets: its hold time begins after the pause.
        for (index, neighbour) in neighbours.iter_mut().enumerate().rev() {
            let most = Duration::from_secs(if index < RESTLESS { 5 } else { 3 });
            let last = loop {
                match neighbour.received() {
                    Err(last) => break last,
                    Ok(_) => assert!(resumed.elapsed() < most, "a silent peer is kept"),
                }
            };
            assert!(last.ends_with(&message(3, &[4, 0])), "hold timer expired, not {last:?}");
        }
    }
}
