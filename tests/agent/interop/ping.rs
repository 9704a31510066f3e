//! Echo requests between workloads at a fixed pace, with a record of each.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::interop::rig::{self, Net};

/// A running sender.
pub(crate) struct Pinger {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<(Vec<bool>, Vec<Instant>)>,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Pings {
    pub(crate) sent: usize,
    /// Sequence numbers of unanswered requests.
    pub(crate) lost: Vec<usize>,
    /// Send times of those requests, after the begin time passed to [`Pinger::stop`].
    pub(crate) lost_at: Vec<Duration>,
    pub(crate) took: Duration,
}

impl Pinger {
    /// Sends a request per millisecond from a node to an address.
    pub(crate) fn start(net: &Net, node: &str, to: &str) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (netns, to): (_, IpAddr) = (net.running.netns(node).unwrap(), to.parse().unwrap());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            rig::enter(&netns);
            send(to, &stopped, &count)
        });
        Self { stop, sent, thread }
    }

    /// Waits until this many further requests were sent.
    pub(crate) fn wait(&self, more: u64) {
        let until = self.sent.load(Ordering::Relaxed) + more;
        rig::within(rig::DEADLINE, Instant::now(), "echo requests are sent", || {
            assert!(!self.thread.is_finished(), "the sender ended");
            let sent = self.sent.load(Ordering::Relaxed);
            (sent >= until).then_some(()).ok_or_else(|| format!("{sent} of {until}"))
        });
    }

    /// Stops sending, and waits two seconds for the last answers.
    pub(crate) fn stop(self, begin: Instant) -> Pings {
        self.stop.store(true, Ordering::Relaxed);
        let took = begin.elapsed();
        let (answered, sent) = self.thread.join().expect("the sender lives");
        let lost: Vec<usize> = (0..answered.len()).filter(|n| !answered[*n]).collect();
        let lost_at = lost.iter().map(|n| sent[*n].saturating_duration_since(begin)).collect();
        Pings { sent: answered.len(), lost, lost_at, took }
    }
}

fn send(to: IpAddr, stop: &AtomicBool, count: &AtomicU64) -> (Vec<bool>, Vec<Instant>) {
    const PACE: Duration = Duration::from_millis(1);
    let (domain, protocol) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.set_recv_buffer_size(1 << 20).unwrap();
    socket.connect(&SocketAddr::new(to, 0).into()).unwrap();
    let (mut answered, mut sent): (Vec<bool>, Vec<Instant>) = Default::default();
    let mut next = Instant::now();
    let mut end = None;
    loop {
        let now = Instant::now();
        if stop.load(Ordering::Relaxed) {
            let end = *end.get_or_insert(now + Duration::from_secs(2));
            if now > end || answered.iter().all(|a| *a) {
                return (answered, sent);
            }
        } else if now >= next {
            // A rejected request counts as lost.
            let _ = socket.send(&request(to.is_ipv4(), u64::try_from(answered.len()).unwrap()));
            answered.push(false);
            sent.push(now);
            count.fetch_add(1, Ordering::Relaxed);
            // A sender that was not scheduled does not catch up: a burst would measure the sender.
            next = (next + PACE).max(now);
        }
        // A socket's own timeout counts in kernel ticks, which are longer than the pace.
        let wait = next.saturating_duration_since(Instant::now()).min(PACE);
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout));
        let mut buffer = [0u8; 256];
        while let Ok(len) = (&socket).read(&mut buffer) {
            // A raw IPv4 socket includes the IP header. Type 0 is an echo reply (RFC 792), for IPv6 129 (RFC
            // 4443, section 4.2).
            let (head, reply) = if to.is_ipv4() { (usize::from(buffer[0] & 0x0f) * 4, 0) } else { (0, 129) };
            let icmp = &buffer[head..len];
            if icmp.len() >= 16 && icmp[0] == reply {
                let number = u64::from_be_bytes(icmp[8..16].try_into().unwrap());
                answered[usize::try_from(number).unwrap()] = true;
            }
        }
    }
}

/// Builds an echo request (RFC 792; RFC 4443, section 4.1, whose checksum the kernel computes) with its full
/// number as data.
fn request(v4: bool, number: u64) -> Vec<u8> {
    let mut out = vec![if v4 { 8 } else { 128 }, 0, 0, 0, 0x70, 0x17];
    out.extend(&number.to_be_bytes()[6..]);
    out.extend(number.to_be_bytes());
    let sum: u32 = out.chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    out.splice(2..4, sum.to_be_bytes());
    out
}
