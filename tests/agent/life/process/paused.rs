//! A process that does not run for a while (SIGSTOP, a frozen cgroup, a suspended machine): a peer that sent
//! messages in the meantime is not silent.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use socket2::{Domain, Socket, Type};
use tortie_topology::Signal;

use crate::common::concurrency::uninterrupted;
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

/// Types of messages (RFC 4271, section 4.1).
const OPEN: u8 = 1;
const NOTIFICATION: u8 = 3;
const KEEPALIVE: u8 = 4;
/// Length of a message's header.
const HEADER: usize = 19;

/// Type and body of a message.
type Message = (u8, Vec<u8>);

/// Builds a message (RFC 4271, section 4.1).
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(HEADER + body.len()).unwrap().to_be_bytes();
    [&[0xff; 16][..], &length, &[kind], body].concat()
}

/// Session of a scripted neighbour that only sends KEEPALIVE messages.
struct Neighbour {
    stream: TcpStream,
    /// Received octets of an incomplete message.
    rest: Vec<u8>,
}

impl Neighbour {
    /// Connects from the switch, opens a session, and sends KEEPALIVE messages from then on: the hold time of a
    /// neighbour that waited for the others to open theirs could expire.
    fn join(hosts: &Hosts, peer: &str) -> (Self, Speech) {
        let joined =
            poll_until(PATIENCE, &format!("a session from {peer}"), || Self::dial(hosts, peer).open());
        let neighbour = joined.unwrap_or_else(|missed| panic!("{missed}\n{}", hosts.log(1)));
        let speech = neighbour.speaks();
        (neighbour, speech)
    }

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
        let mut stream = stream.join().unwrap();
        let IpAddr::V4(id) = own.ip() else { unreachable!() };
        let open = [&[4][..], &65_001_u16.to_be_bytes(), &HOLD.to_be_bytes(), &id.octets(), &[0]];
        // An agent that refuses the connection has closed it, which `open` reports.
        let _ = stream.write_all(&message(OPEN, &open.concat()));
        Self { stream, rest: Vec::new() }
    }

    /// Waits for the agent's OPEN and KEEPALIVE, and answers with KEEPALIVE. An error if the agent ends the
    /// session instead.
    fn open(mut self) -> Result<Self, String> {
        let begin = Instant::now();
        let mut opened = Vec::new();
        while !opened.iter().any(|(kind, _)| *kind == KEEPALIVE) {
            let (messages, end) = self.received();
            opened.extend(messages);
            if end.is_some() || begin.elapsed() > PATIENCE {
                return Err(format!("{end:?} after {:?}, received {opened:?}", begin.elapsed()));
            }
        }
        self.stream.write_all(&message(KEEPALIVE, &[])).map_err(|error| error.to_string())?;
        Ok(self)
    }

    /// Returns the received messages, and if the session is over, how it ended.
    fn received(&mut self) -> (Vec<Message>, Option<String>) {
        self.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut octets = [0; 4096];
        let mut end = loop {
            match uninterrupted(|| self.stream.read(&mut octets)) {
                Ok(0) => break Some("closed without NOTIFICATION".to_owned()),
                Ok(n) => self.rest.extend_from_slice(&octets[..n]),
                Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => break None,
                Err(e) => break Some(e.to_string()),
            }
        };
        let mut messages = Vec::new();
        while let Some(length) = self.rest.get(16..18).map(|field| u16::from_be_bytes([field[0], field[1]])) {
            let length = usize::from(length).max(HEADER);
            if self.rest.len() < length {
                break;
            }
            let whole: Vec<u8> = self.rest.drain(..length).collect();
            if whole[18] == NOTIFICATION {
                end = Some(format!("NOTIFICATION {:?}", &whole[HEADER..]));
            }
            messages.push((whole[18], whole[HEADER..].to_vec()));
        }
        (messages, end)
    }

    /// Sends a KEEPALIVE message per second until the guard is dropped, and as many as the agent reads after
    /// [`Speech::without_pause`]. The last message is complete.
    fn speaks(&self) -> Speech {
        let mut stream = self.stream.try_clone().unwrap();
        let (order, orders) = channel();
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let thread = std::thread::spawn(move || {
            let one = message(KEEPALIVE, &[]);
            while stream.write_all(&one).is_ok() {
                match orders.recv_timeout(Duration::from_secs(1)) {
                    Ok(()) => break,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            let many = one.repeat(AT_ONCE);
            while !ends.load(Relaxed) && stream.write_all(&many).is_ok() {}
        });
        Speech { order: Some(order), end, thread: Some(thread) }
    }
}

/// Thread that sends messages; dropping this ends it and waits for its end.
struct Speech {
    order: Option<Sender<()>>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Speech {
    /// Lets the thread send without pause from now on.
    fn without_pause(&self) {
        let order = self.order.as_ref().unwrap();
        assert!(order.send(()).is_ok(), "the session is over");
    }

    /// Tells the thread to end.
    fn ends(&mut self) {
        self.end.store(true, Relaxed);
        self.order = None;
    }
}

impl Drop for Speech {
    fn drop(&mut self) {
        self.ends();
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
        let (mut neighbours, mut speeches): (Vec<Neighbour>, Vec<Speech>) =
            PEERS.iter().map(|addr| Neighbour::join(&hosts, addr)).unzip();
        hosts.until(1, "the sessions are established", |s| s["bgp"]["peers"]["up"] == PEERS.len() + 1);
        speeches[..RESTLESS].iter().for_each(Speech::without_pause);
        std::thread::sleep(Duration::from_millis(wait));
        for round in 1..=2 {
            hosts.signal("host1", Signal::STOP);
            std::thread::sleep(PAUSE);
            hosts.signal("host1", Signal::CONT);
            let resumed = Instant::now();
            while resumed.elapsed() < Duration::from_secs(1) {
                for (neighbour, addr) in neighbours.iter_mut().zip(PEERS) {
                    let (received, end) = neighbour.received();
                    if let Some(end) = end {
                        // The agent logs the end of a session after it has closed the connection.
                        let after = resumed.elapsed();
                        std::thread::sleep(Duration::from_secs(1));
                        panic!(
                            "stopped after {wait} ms, pause {round}, {after:?} after its end: {addr} received \
                             {received:?}, {end:?}\n{}",
                            hosts.log(1)
                        );
                    }
                }
            }
        }
        // Counter-test: no message arrives, so the silence is real.
        speeches.iter_mut().for_each(Speech::ends);
        drop(speeches);
        // The agent reads the last messages of the neighbours that do not send without pause.
        std::thread::sleep(Duration::from_secs(1));
        hosts.signal("host1", Signal::STOP);
        std::thread::sleep(PAUSE);
        hosts.signal("host1", Signal::CONT);
        let resumed = Instant::now();
        for (index, neighbour) in neighbours.iter_mut().enumerate().rev() {
            // What a restless neighbour sent last may still wait in the sockets: its hold time begins when the
            // agent has read it.
            let most = if index < RESTLESS { PATIENCE } else { Duration::from_secs(HOLD.into()) };
            let end = loop {
                if let Some(end) = neighbour.received().1 {
                    break end;
                }
                assert!(resumed.elapsed() < most, "a silent peer is kept");
            };
            assert_eq!(end, "NOTIFICATION [4, 0]", "hold timer expired\n{}", hosts.log(1));
        }
    }
}
