//! Log of packets dropped by rules, received from the kernel through a netlink log group (nfnetlink_log:
//! `linux/netfilter/nfnetlink_log.h`).
//!
//! Each rule logs at most ten dropped packets per second, so the counts are a sample: what was denied, and
//! the times of the first and the last packet. There is one entry per source, destination, protocol, port and
//! rule.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket as Raw, SocketAddr};
use rustix::event::{PollFd, PollFlags, poll};

use crate::netlink::codec::{self, Attrs, Messages, NLM_F_ACK, NLMSG_ERROR, Writer};
use crate::nft::render::Denied;
use tortie_engine::policy::{Direction, Source};

/// `NFNL_SUBSYS_ULOG` in the upper half, `NFULNL_MSG_*` in the lower.
const PACKET: u16 = 0x400;
const CONFIG: u16 = 0x401;
const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_TIMEOUT: u16 = 4;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_COPY_PACKET: u8 = 2;
const NFULA_PAYLOAD: u16 = 9;
const NFULA_PREFIX: u16 = 10;
/// Length of `struct nfgenmsg` (family, version, resource), in octets.
const NFGENMSG: usize = 4;
/// Number of octets copied from each packet, enough for its headers.
const HEAD: u32 = 128;
/// Maximum number of entries.
const KINDS: usize = 4_096;

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(id, at) => write!(f, "{} {}, rule {at}", id.source, id.direction.as_str()),
            Self::EndOfTier { tier, direction } => write!(f, "end of tier {tier}, {}", direction.as_str()),
            Self::EndOfProfiles { direction } => {
                write!(f, "no policy and no profile allows it, {}", direction.as_str())
            }
            Self::UnknownInterface => f.write_str("no endpoint has the workload interface"),
            Self::Spoofed => f.write_str("its source is none of its endpoint's addresses"),
            Self::Loopback => f.write_str("from a workload to a loopback address of its host"),
            Self::Inactive => f.write_str("its endpoint is not active"),
            Self::Ipip => f.write_str("IPIP from a source that is not a host of the cluster"),
            Self::Vxlan => f.write_str("VXLAN from a source that is not a host of the cluster"),
            Self::VxlanOfWorkload => f.write_str("VXLAN from a workload (AllowVXLANPacketsFromWorkloads)"),
            Self::ToHost => f.write_str("from a workload to its host (DefaultEndpointToHostAction)"),
            Self::NoIpv6 => f.write_str("IPv6 of workloads is disabled (Ipv6Support)"),
        }
    }
}

/// Classification of a drop, for counters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Denial {
    /// `ingress` (to an endpoint) or `egress` (from one).
    pub direction: &'static str,
    /// Name of the tier that denied, `profiles` for profiles, empty for other reasons.
    pub tier: String,
    /// `rule`, `end_of_tier`, `profile`, `unknown_endpoint`, `anti_spoof`, or another identifier of a drop by
    /// the base rules.
    pub reason: &'static str,
}

impl Denied {
    pub(crate) fn denial(&self) -> Denial {
        let way = |direction: &Direction| match direction {
            Direction::Inbound => "ingress",
            Direction::Outbound => "egress",
        };
        let (direction, tier, reason) = match self {
            Self::Rule(id, _) => match &id.source {
                Source::Policy { tier, .. } => (way(&id.direction), &**tier, "rule"),
                Source::Profile(_) => (way(&id.direction), "profiles", "profile"),
            },
            Self::EndOfTier { tier, direction } => (way(direction), &**tier, "end_of_tier"),
            Self::EndOfProfiles { direction } => (way(direction), "profiles", "profile"),
            Self::UnknownInterface => ("egress", "", "unknown_endpoint"),
            Self::Spoofed => ("egress", "", "anti_spoof"),
            Self::Loopback => ("egress", "", "loopback"),
            Self::Inactive => ("egress", "", "inactive"),
            Self::Ipip => ("ingress", "", "ipip"),
            Self::Vxlan => ("ingress", "", "vxlan"),
            Self::VxlanOfWorkload => ("egress", "", "vxlan"),
            Self::ToHost => ("egress", "", "to_host"),
            Self::NoIpv6 => ("egress", "", "no_ipv6"),
        };
        Denial { direction, tier: tier.to_owned(), reason }
    }
}

/// Dropped packets with equal properties.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DropKind {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Destination port, or the ICMP type.
    pub port: Option<u16>,
    /// Log prefix, which identifies the rule.
    pub prefix: String,
}

/// Number and times of logged packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Number of logged packets; more may have been dropped.
    pub count: u64,
    /// Time of the first packet.
    pub first: Instant,
    /// Time of the last packet.
    pub last: Instant,
}

/// Dropped packets since the start.
#[derive(Debug, Default)]
pub struct DropLog(Mutex<DropCounters>);

#[derive(Debug, Default)]
struct DropCounters {
    kinds: BTreeMap<DropKind, Dropped>,
    /// Numbers of logged packets by prefix; there are as many prefixes as rules that drop.
    logged: BTreeMap<String, u64>,
    /// Number of overruns: the kernel had more packets than the socket could take.
    overruns: u64,
    problem: Option<String>,
}

impl DropLog {
    /// Returns the entries with a packet within `age`, in no order.
    #[must_use]
    pub fn within(&self, age: Duration) -> Vec<(DropKind, Dropped)> {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = counters.kinds.iter().filter(|(_, dropped)| dropped.last.elapsed() <= age);
        recent.map(|(kind, dropped)| (kind.clone(), *dropped)).collect()
    }

    /// Returns the numbers of logged packets by prefix, and the number of overruns; both only increase.
    #[must_use]
    pub fn logged(&self) -> (Vec<(String, u64)>, u64) {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (counters.logged.iter().map(|(prefix, count)| (prefix.clone(), *count)).collect(), counters.overruns)
    }

    fn overrun(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).overruns += 1;
    }

    /// Returns the reason why no drops are received at all.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).problem.clone()
    }

    pub(crate) fn set_problem(&self, problem: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).problem = Some(problem);
    }

    fn record(&self, kinds: impl Iterator<Item = DropKind>, now: Instant) {
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for kind in kinds {
            match counters.logged.get_mut(&kind.prefix) {
                Some(count) => *count += 1,
                None => drop(counters.logged.insert(kind.prefix.clone(), 1)),
            }
            if let Some(dropped) = counters.kinds.get_mut(&kind) {
                dropped.count += 1;
                dropped.last = now;
                continue;
            }
            if counters.kinds.len() >= KINDS {
                let oldest = counters
                    .kinds
                    .iter()
                    .min_by_key(|(_, dropped)| dropped.last)
                    .map(|(kind, _)| kind.clone());
                oldest.and_then(|kind| counters.kinds.remove(&kind));
            }
            counters.kinds.insert(kind, Dropped { count: 1, first: now, last: now });
        }
    }
}

/// Receives packets of one log group of the caller's network namespace.
pub(crate) struct Listener {
    raw: Raw,
    drops: Arc<DropLog>,
}

impl Listener {
    /// Binds a group.
    ///
    /// # Errors
    /// Another process uses the group, or the kernel does not support log groups.
    pub(crate) fn open(group: u16, drops: Arc<DropLog>) -> io::Result<Self> {
        let mut raw = Raw::new(NETLINK_NETFILTER)?;
        raw.bind_auto()?;
        raw.connect(&SocketAddr::new(0, 0))?;
        let config = |kind: u16, data: &[u8]| {
            let mut buf = Vec::new();
            let mut w = Writer::begin(&mut buf, CONFIG, NLM_F_ACK, 1);
            let [high, low] = group.to_be_bytes();
            w.raw(&[0, 0, high, low]).attr(kind, data);
            w.end();
            raw.send(&buf, 0)?;
            acknowledged(&raw)
        };
        config(NFULA_CFG_CMD, &[NFULNL_CFG_CMD_BIND])?;
        let [a, b, c, d] = HEAD.to_be_bytes();
        config(NFULA_CFG_MODE, &[a, b, c, d, NFULNL_COPY_PACKET, 0])?;
        // Delivered after a fifth of a second, or as soon as 32 packets wait.
        config(NFULA_CFG_TIMEOUT, &20u32.to_be_bytes())?;
        config(NFULA_CFG_QTHRESH, &32u32.to_be_bytes())?;
        raw.set_non_blocking(true)?;
        Ok(Self { raw, drops })
    }

    /// Runs until `stop` is readable.
    pub(crate) fn run(self, stop: &OwnedFd) -> io::Result<()> {
        let mut buf = Vec::with_capacity(64 << 10);
        loop {
            let mut fds = [
                PollFd::new(&self.raw, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            if fds.iter().skip(1).any(|fd| !fd.revents().is_empty()) {
                return Ok(());
            }
            loop {
                buf.clear();
                match self.raw.recv(&mut buf, 0) {
                    Ok(_) => self.drops.record(kinds(&buf), Instant::now()),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    // Packets were lost; the log is a sample anyway.
                    Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => self.drops.overrun(),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        }
    }
}

/// Waits for the kernel's answer to the last request.
fn acknowledged(raw: &Raw) -> io::Result<()> {
    let mut buf = Vec::with_capacity(8 << 10);
    loop {
        buf.clear();
        raw.recv(&mut buf, 0)?;
        if let Some(message) = Messages(&buf).find(|message| message.kind == NLMSG_ERROR) {
            let code = codec::u32_at(message.body, 0).map_or(0, u32::cast_signed);
            return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
        }
    }
}

fn kinds(bytes: &[u8]) -> impl Iterator<Item = DropKind> + '_ {
    Messages(bytes).filter(|message| message.kind == PACKET).filter_map(|message| {
        let (mut prefix, mut packet) = (String::new(), None);
        for (kind, data) in Attrs::after(message.body, NFGENMSG) {
            match kind {
                NFULA_PREFIX => prefix = codec::text(data),
                NFULA_PAYLOAD => packet = Some(data),
                _ => {}
            }
        }
        read(packet?, prefix)
    })
}

/// Parses the headers of a packet.
fn read(packet: &[u8], prefix: String) -> Option<DropKind> {
    let (src, dst, protocol, rest) = match packet.first()? >> 4 {
        4 => {
            let length = usize::from(packet.first()? & 0x0f) * 4;
            let (src, dst) = (codec::addr(packet.get(12..16)?)?, codec::addr(packet.get(16..20)?)?);
            // Only the first fragment has ports.
            let offset = u16::from_be_bytes(packet.get(6..8)?.try_into().ok()?) & 0x1fff;
            (src, dst, *packet.get(9)?, packet.get(length..).filter(|_| offset == 0))
        }
        6 => {
            let (src, dst) = (codec::addr(packet.get(8..24)?)?, codec::addr(packet.get(24..40)?)?);
            let (protocol, rest) = after_extensions(*packet.get(6)?, packet.get(40..)?);
            (src, dst, protocol, rest)
        }
        _ => return None,
    };
    let port = match protocol {
        6 | 17 | 132 | 136 => {
            rest.and_then(|rest| Some(u16::from_be_bytes(rest.get(2..4)?.try_into().ok()?)))
        }
        1 | 58 => rest.and_then(|rest| rest.first().copied().map(u16::from)),
        _ => None,
    };
    Some(DropKind { src, dst, protocol, port, prefix })
}

/// Returns the protocol after IPv6 extension headers (RFC 8200 section 4), and its header if present.
fn after_extensions(mut protocol: u8, mut rest: &[u8]) -> (u8, Option<&[u8]>) {
    for _ in 0..8 {
        let length = match protocol {
            0 | 43 | 60 => rest.get(1).map_or(usize::MAX, |units| (usize::from(*units) + 1) * 8),
            // Only the first fragment has the next header.
            44 if rest.get(2..4).is_none_or(|offset| offset != [0, 0] && offset != [0, 1]) => {
                return (rest.first().copied().unwrap_or(protocol), None);
            }
            44 => 8,
            _ => return (protocol, Some(rest)),
        };
        let (Some(next), Some(behind)) = (rest.first(), rest.get(length..)) else { return (protocol, None) };
        (protocol, rest) = (*next, behind);
    }
    (protocol, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, transport: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 65, 0, 2, 192, 0, 2, 9];
        packet.extend_from_slice(transport);
        packet
    }

    #[test]
    fn headers_of_both_families_are_read() {
        let kind = read(&v4(6, &[0x9c, 0x40, 0x15, 0x38, 0, 0, 0, 0]), "p".into()).unwrap();
        assert_eq!(
            (kind.src.to_string().as_str(), kind.dst.to_string().as_str()),
            ("10.65.0.2", "192.0.2.9")
        );
        assert_eq!((kind.protocol, kind.port), (6, Some(5432)));
        assert_eq!(read(&v4(1, &[8, 0, 0, 0]), String::new()).unwrap().port, Some(8));
        let mut later = v4(17, &[0, 1, 0, 53]);
        later[7] = 9;
        assert_eq!(read(&later, String::new()).unwrap().port, None, "a later fragment has no ports");
        let mut six = vec![0x60, 0, 0, 0, 0, 16, 0, 64];
        six.extend_from_slice(&[0xfd; 32]);
        // Hop-by-hop options, then UDP.
        six.extend_from_slice(&[17, 0, 1, 4, 0, 0, 0, 0, 0x10, 0, 0, 53, 0, 8, 0, 0]);
        let kind = read(&six, String::new()).unwrap();
        assert_eq!((kind.protocol, kind.port), (17, Some(53)));
        for len in 0..six.len() {
            let _ = read(&six[..len], String::new());
        }
    }

    #[test]
    fn kinds_are_counted_and_the_oldest_make_room() {
        let drops = DropLog::default();
        let kind = |port: u16| DropKind {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            protocol: 6,
            port: Some(port),
            prefix: "tortie:in x".into(),
        };
        let now = Instant::now();
        drops.record([kind(1), kind(1), kind(2)].into_iter(), now);
        let count = |port| {
            drops.within(Duration::from_secs(60)).iter().find(|(k, _)| *k == kind(port)).map(|(_, d)| d.count)
        };
        assert_eq!((count(1), count(2)), (Some(2), Some(1)));
        for port in 3..=u16::try_from(KINDS).unwrap() + 1 {
            drops.record([kind(port), kind(2)].into_iter(), now + Duration::from_millis(u64::from(port)));
        }
        assert_eq!(count(1), None, "nothing of it was dropped for longest");
        assert_eq!(drops.within(Duration::from_secs(60)).len(), KINDS);
    }
}
