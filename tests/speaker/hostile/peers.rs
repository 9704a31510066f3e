//! Messages of peers, and the hostile ones among them.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::place::Place;

pub(crate) const US: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(crate) const OURS: u32 = 64_512;
/// AS of all peers, so that they share an update group as the hosts of a rack do.
pub(crate) const THEIRS: u16 = 65_001;
pub(crate) const HOLD: Duration = Duration::from_secs(9);
pub(crate) const FEEDER: u32 = 20_000;
pub(crate) const GARBAGE: u32 = 20_001;
pub(crate) const CONNECTOR: u32 = 20_002;
pub(crate) const STUCK: u32 = 20_003;
pub(crate) const SLOW: u32 = 20_004;

pub(crate) fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 65, 0, 1)) + n)
}

pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 16];
    out.extend(u16::try_from(19 + body.len()).unwrap().to_be_bytes());
    out.push(kind);
    out.extend(body);
    out
}

/// Returns an OPEN for IPv4 with four-octet AS numbers, and the KEEPALIVE that accepts the agent's OPEN.
pub(crate) fn greeting(n: u32) -> Vec<u8> {
    let mut body = vec![4];
    body.extend(THEIRS.to_be_bytes());
    body.extend(u16::try_from(HOLD.as_secs()).unwrap().to_be_bytes());
    body.extend(address(n).octets());
    body.extend([14, 2, 12, 1, 4, 0, 1, 0, 1, 65, 4]);
    body.extend(u32::from(THEIRS).to_be_bytes());
    [message(1, &body), message(4, &[])].concat()
}

/// Announces /32s (or /24s) with a community that counts the changes.
pub(crate) fn announcement(n: u32, count: u32, prefixes: &[(u32, u8)]) -> Vec<u8> {
    let mut list = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 1];
    list.extend(u32::from(THEIRS).to_be_bytes());
    list.extend([0x40, 3, 4]);
    list.extend(address(n).octets());
    list.extend([0xc0, 8, 4]);
    list.extend(count.to_be_bytes());
    let mut body = vec![0, 0];
    body.extend(u16::try_from(list.len()).unwrap().to_be_bytes());
    body.extend(list);
    for (prefix, len) in prefixes {
        body.push(*len);
        body.extend(&prefix.to_be_bytes()[..usize::from(len.div_ceil(8))]);
    }
    message(2, &body)
}

pub(crate) fn dial(n: u32, receive_buffer: Option<usize>) -> std::io::Result<TcpStream> {
    dial_from(n, 0, receive_buffer)
}

/// Connects from `port`, 0 for any. A given port may be in TIME_WAIT.
fn dial_from(n: u32, port: u16, receive_buffer: Option<usize>) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if let Some(octets) = receive_buffer {
        socket.set_recv_buffer_size(octets)?;
    }
    socket.set_reuse_address(port > 0)?;
    socket.bind(&SocketAddr::from((address(n), port)).into())?;
    socket.connect(&SocketAddr::from((US, 179)).into())?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Opens a session.
pub(crate) fn session(n: u32) -> TcpStream {
    let mut stream = dial(n, None).unwrap();
    stream.write_all(&greeting(n)).unwrap();
    stream
}

/// Runs `step` on a thread repeatedly until stopped.
pub(crate) fn until(stop: &Arc<AtomicBool>, mut step: impl FnMut() + Send + 'static) -> JoinHandle<()> {
    let stop = stop.clone();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            step();
        }
    })
}

/// The four hostile peers, and counters of their actions.
pub(crate) struct Hostile {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    garbage: Arc<AtomicU64>,
    connects: Arc<AtomicU64>,
    stuck: Arc<AtomicU64>,
}

impl Hostile {
    /// Returns the number of garbage messages, connections and sessions that never read, so far.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (count(&self.garbage), count(&self.connects), count(&self.stuck))
    }

    /// Stops them. Returns the same at their end.
    pub(crate) fn stop(mut self) -> (u64, u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        self.counts()
    }
}

/// As [`until`], for peers that would run on other machines: their processor time must not affect the result.
fn elsewhere(
    place: Place,
    stop: &Arc<AtomicBool>,
    mut step: impl FnMut() + Send + 'static,
) -> JoinHandle<()> {
    let mut begun = false;
    until(stop, move || {
        if !std::mem::replace(&mut begun, true) {
            place.give_way();
        }
        step();
    })
}

/// Starts the hostile peers.
pub(crate) fn hostile(place: Place) -> Hostile {
    let stop = &Arc::new(AtomicBool::new(false));
    let [garbage, connects, stuck]: [Arc<AtomicU64>; 3] = Default::default();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let count = garbage.clone();
    let noise = elsewhere(place, stop, move || {
        let Ok(mut stream) = dial(GARBAGE, None) else { return };
        // Noise at once, or after a session is up, or after a valid header.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let choice = random >> 62;
        if choice > 0 {
            let _ = stream.write_all(&greeting(GARBAGE));
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut octets: Vec<u8> =
            (0..4000_u64).map(|n| (random ^ n.wrapping_mul(random | 1) >> 7).to_le_bytes()[3]).collect();
        if choice > 1 {
            octets.truncate(500);
            octets = message(2, &octets);
        }
        let _ = stream.write_all(&octets);
        count.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
    });
    let count = connects.clone();
    let began = Instant::now();
    // The kernel's search for a free port among thousands in TIME_WAIT would dominate the cost.
    let mut ports = (5_000..60_000).cycle();
    let connector = elsewhere(place, stop, move || {
        if u128::from(count.load(Ordering::Relaxed)) < began.elapsed().as_millis() {
            // Every third connection is from an address without a configured peer.
            let from =
                if count.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) { 30_000 } else { CONNECTOR };
            let _ = dial_from(from, ports.next().unwrap_or(0), None);
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let mut reader: Option<TcpStream> = None;
    let count = stuck.clone();
    let never_reads = elsewhere(place, stop, move || {
        if reader.is_none() {
            // The smallest buffer that the kernel permits, so that nearly everything waits at the other end.
            reader = dial(STUCK, Some(1)).ok();
            count.fetch_add(1, Ordering::Relaxed);
            if let Some(stream) = &mut reader {
                let _ = stream.write_all(&greeting(STUCK));
            }
        }
        let lost = reader.as_mut().is_none_or(|s| s.write_all(&message(4, &[])).is_err());
        if lost {
            reader = None;
        }
        std::thread::sleep(Duration::from_secs(1));
    });
    let mut slow: Option<(TcpStream, usize)> = None;
    let slowly = elsewhere(place, stop, move || {
        if slow.is_none() {
            slow = dial(SLOW, None).ok().map(|s| (s, 0));
        }
        if let Some((stream, at)) = &mut slow {
            let all = greeting(SLOW);
            if stream.write_all(&all[*at % all.len()..][..1]).is_err() {
                slow = None;
            } else {
                *at += 1;
            }
        }
        std::thread::sleep(Duration::from_secs(1));
    });
    let threads = vec![noise, connector, never_reads, slowly];
    Hostile { stop: stop.clone(), threads, garbage, connects, stuck }
}
