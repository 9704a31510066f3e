//! ICMP echo sender with a fixed pace, which matches every reply to its request.
//!
//! It runs as a process inside a workload. It sends until its standard input ends, waits a second for late
//! replies, and prints one JSON object.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::super::failure::{Exit, Failure};

/// Wait for replies to the last requests.
const STRAGGLERS: Duration = Duration::from_secs(1);

/// Result of a sender.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pings {
    /// Number of requests sent.
    pub sent: u64,
    /// Number of requests answered.
    pub answered: u64,
    /// Numbers of the first ten unanswered requests.
    pub lost: Vec<u64>,
    /// Number of requests that the kernel refused to send (no route, no buffer space); they count as lost,
    /// too.
    pub refused: u64,
    /// Shortest round-trip time in microseconds.
    pub min_micros: u64,
    /// Mean round-trip time in microseconds.
    pub mean_micros: u64,
    /// Time from the first request to the last in milliseconds.
    pub millis: u64,
}

impl Pings {
    /// Returns the number of unanswered requests.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.answered)
    }
}

/// Sends an echo request every `pace` until standard input ends or `count` requests were sent.
pub(super) fn run(to: IpAddr, pace: Duration, count: Option<u64>) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    if count.is_none() {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            let _ = std::io::stdin().read_to_end(&mut rest);
            stop.store(true, Ordering::Relaxed);
        });
    }
    let pings = send(to, pace, count, &stop)
        .map_err(|e| Failure::new(Exit::No, "ping", format!("cannot ping {to}: {e}")))?;
    let text = serde_json::to_string(&pings).map_err(|e| Failure::usage(e.to_string()))?;
    super::super::output::write_out(&format!("{text}\n"))
}

fn send(to: IpAddr, pace: Duration, count: Option<u64>, stop: &AtomicBool) -> std::io::Result<Pings> {
    let socket = match to {
        IpAddr::V4(_) => Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?,
        IpAddr::V6(_) => Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?,
    };
    socket.set_nonblocking(true)?;
    socket.connect(&SocketAddr::new(to, 0).into())?;
    // The low half of the process id distinguishes two senders in one namespace.
    let id = u16::try_from(std::process::id() & 0xffff).unwrap_or_default();
    let mut sent_at: Vec<Instant> = Vec::new();
    let mut answered: Vec<bool> = Vec::new();
    let mut pings = Pings { min_micros: u64::MAX, ..Pings::default() };
    let mut sum = Duration::ZERO;
    let begin = Instant::now();
    let mut next = begin;
    let mut last_sent = begin;
    loop {
        let now = Instant::now();
        let done = stop.load(Ordering::Relaxed) || count.is_some_and(|c| pings.sent >= c);
        if done && (pings.answered == pings.sent || now.duration_since(last_sent) > STRAGGLERS) {
            break;
        }
        if !done && now >= next {
            if let Err(error) = socket.send(&request(to, id, pings.sent)) {
                tracing::debug!(target: "tortie", %error, "an echo request was refused");
                pings.refused += 1;
            }
            sent_at.push(now);
            answered.push(false);
            pings.sent += 1;
            last_sent = now;
            // After a scheduling delay the sender does not catch up, because a burst would measure the sender
            // itself.
            next = (next + pace).max(now);
        }
        let until = if done { now + Duration::from_millis(10) } else { next };
        let wait = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).is_err() {
            continue;
        }
        let mut buffer = [0u8; 256];
        while let Ok(len) = (&socket).read(&mut buffer) {
            let Some(number) = buffer.get(..len).and_then(|packet| reply(to, id, packet)) else { continue };
            let Some(slot) = usize::try_from(number).ok().and_then(|n| answered.get_mut(n)) else { continue };
            if std::mem::replace(slot, true) {
                continue;
            }
            let Some(at) = usize::try_from(number).ok().and_then(|n| sent_at.get(n)) else { continue };
            let took = at.elapsed();
            pings.answered += 1;
            sum += took;
            pings.min_micros = pings.min_micros.min(micros(took));
        }
    }
    pings.millis = u64::try_from(last_sent.duration_since(begin).as_millis()).unwrap_or(u64::MAX);
    pings.lost = (0u64..).zip(&answered).filter(|(_, a)| !**a).map(|(n, _)| n).take(10).collect();
    match u32::try_from(pings.answered) {
        Ok(n) if n > 0 => pings.mean_micros = micros(sum / n),
        _ => pings.min_micros = 0,
    }
    Ok(pings)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Encodes an echo request (RFC 792, RFC 4443) with the full number as data, because the 16-bit sequence
/// number wraps within a minute.
fn request(to: IpAddr, id: u16, number: u64) -> Vec<u8> {
    let kind = if to.is_ipv4() { 8 } else { 128 };
    let mut out = vec![kind, 0, 0, 0];
    out.extend(id.to_be_bytes());
    out.extend(number.to_be_bytes().into_iter().skip(6));
    out.extend(number.to_be_bytes());
    // The kernel computes ICMPv6's checksum, which covers the addresses.
    if to.is_ipv4() {
        let sum = checksum(&out).to_be_bytes();
        out.splice(2..4, sum);
    }
    out
}

/// Returns the number of the request that this packet answers.
fn reply(from: IpAddr, id: u16, packet: &[u8]) -> Option<u64> {
    // Raw IPv4 sockets also deliver the IP header.
    let header = if from.is_ipv4() { usize::from(packet.first()? & 0x0f) * 4 } else { 0 };
    let icmp = packet.get(header..)?;
    let kind = if from.is_ipv4() { 0 } else { 129 };
    if *icmp.first()? != kind || icmp.get(4..6)? != id.to_be_bytes() {
        return None;
    }
    Some(u64::from_be_bytes(icmp.get(8..16)?.try_into().ok()?))
}

/// Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        let high = pair.first().copied().unwrap_or_default();
        let low = pair.get(1).copied().unwrap_or_default();
        sum += u32::from(u16::from_be_bytes([high, low]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_valid_icmp_and_replies_are_matched() {
        let to: IpAddr = "192.0.2.1".parse().unwrap();
        let request = request(to, 0x1234, 70_000);
        assert_eq!(checksum(&request), 0, "a valid packet sums to zero (RFC 1071)");
        let mut packet = vec![0x45; 20];
        packet.extend(&request);
        assert_eq!(reply(to, 0x1234, &packet), None, "a request is no reply");
        packet[20] = 0;
        assert_eq!(reply(to, 0x1234, &packet), Some(70_000));
        assert_eq!(reply(to, 0x1235, &packet), None);
        assert_eq!(reply(to, 0x1234, &packet[..30]), None);
    }
}
