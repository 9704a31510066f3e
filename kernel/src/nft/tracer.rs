//! Kernel trace of one flow: the rules of all tables that its packets meet, with their verdicts.
//!
//! A separate table (`inet tortie-trace`) marks the packets before Tortie's rules; the kernel then reports
//! every rule that they meet to a multicast group. The table is deleted when the time is up, when the caller
//! disconnects and, together with its socket, when the process ends. Packets traced by other programs are
//! ignored.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_sys::Socket as Raw;
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tortie_config::resource::{Icmp, PortRange};
use tortie_net::Cidr;

use crate::netlink::codec::{self, Attrs, Messages};
use crate::netlink::socket::grow_recv_buffer;
use crate::nft::dump::{self, RuleDump};
use crate::nft::encode::RuleHash;
use crate::nft::firewall::TABLE;
use crate::nft::ir::{At, Chain, Hook, Kind, Match, Rule, Side, Statement, Table};
use crate::nft::socket::{BatchError, Socket};
use crate::nft::uapi::*;

/// Name of the table that marks packets.
pub(super) const MARKS: &str = "tortie-trace";
/// Priority before Tortie's first chains.
const PRIORITY: i32 = -301;
/// Rate limit of marking, in packets per second.
const RATE: u32 = 10;
/// Maximum number of packets; the trace ends with the last one.
const PACKETS_MAX: usize = 32;
/// Maximum number of steps recorded per packet.
const STEPS_MAX: usize = 512;
/// Time within which a marked packet has passed all rules.
const PASSAGE: Duration = Duration::from_millis(50);
/// Size of the receive buffer, in bytes.
const BUFFER: usize = 4 << 20;

/// Selection of the traced packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedFlow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port; `None` means any.
    pub source_port: Option<u16>,
    /// Destination port; `None` means any.
    pub destination_port: Option<u16>,
    /// Type and code of ICMP and ICMPv6; `None` means any.
    pub icmp: Option<(u8, u8)>,
}

/// Result of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traced {
    /// At most 32 packets, in order; packets beyond ten per second are omitted.
    pub packets: Vec<TracedPacket>,
    /// True if the kernel reported more than could be read, so that steps are missing.
    pub lost: bool,
}

/// The path of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedPacket {
    /// Time of arrival, since the beginning of the trace.
    pub after: Duration,
    /// Source port, for protocols with ports.
    pub source_port: Option<u16>,
    /// The rules that it met, in order.
    pub steps: Vec<TracedStep>,
}

/// A rule that matched, or the end of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedStep {
    /// Family and name of the table, such as `inet tortie`.
    pub table: String,
    /// True for Tortie's table.
    pub ours: bool,
    /// Name of the chain.
    pub chain: String,
    /// The kernel's handle of the rule; `None` for the end of the chain.
    pub handle: Option<u64>,
    /// Identity of a rule of Tortie's table; `None` in other tables, and for a rule that existed only during
    /// the trace.
    pub place: Option<RulePlace>,
    /// Verdict of the rule or of the end of the chain.
    pub verdict: TracedVerdict,
}

/// A rule of Tortie's table: its index in the chain, from 0, and its hash; without a hash another process
/// wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RulePlace {
    pub(crate) at: usize,
    pub(crate) hash: Option<RuleHash>,
}

impl RulePlace {
    /// Returns true if Tortie wrote the rule.
    #[must_use]
    pub fn is_ours(self) -> bool {
        self.hash.is_some()
    }
}

/// Verdict of a rule or of the end of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TracedVerdict {
    /// Continues with the next rule.
    Continue,
    /// Accepted by the base chain of this hook.
    Accept,
    /// Dropped.
    Drop,
    /// Returns to the calling chain, or to the policy of this chain.
    Return,
    /// Continues in another chain, and returns.
    Jump(String),
    /// Continues in another chain.
    Goto(String),
    /// Any other verdict, by its number.
    Other(i32),
}

/// Deletes the table left by a process that was killed, on kernels where tables do not end with their socket.
pub(crate) fn tidy() {
    // The result is ignored: at worst the table belongs to a trace that is running.
    let _ = Socket::open().map(|mut socket| socket.remove(MARKS));
}

/// Traces a flow in the caller's network namespace until the time is up, enough packets were seen, or `stop`
/// is readable or hung up. Blocks meanwhile.
///
/// # Errors
/// The refusal of the kernel, as text; nothing of the trace is left then.
pub fn trace(flow: &TracedFlow, time: Duration, stop: impl AsFd) -> Result<Traced, String> {
    let words = |error: io::Error| format!("the kernel does not trace packets here: {error}");
    let mut socket = Socket::open().map_err(words)?;
    // Subscribed before packets are marked, so that no report is missed.
    let listener = Listener::open().map_err(words)?;
    let refused = |error: BatchError| {
        format!(
            "table inet {MARKS} cannot be made: {error} (`nft list table inet {MARKS}` shows whose it is)"
        )
    };
    socket.remove(MARKS).map_err(refused)?;
    let mut places = Places::default();
    places.read(&mut socket).map_err(words)?;
    socket.keep_generation(MARKS, &marks(flow)).map_err(refused)?;
    let assembler = listener.listen(time, stop);
    let removed = socket.remove(MARKS);
    let mut assembler = assembler.map_err(words)?;
    removed.map_err(|error| format!("table inet {MARKS} cannot be removed: {error}"))?;
    if assembler
        .steps()
        .any(|step| step.ours && step.handle.is_some_and(|handle| places.of(handle).is_none()))
    {
        places.read(&mut socket).map_err(words)?;
    }
    for step in assembler.packets.iter_mut().flat_map(|packet| &mut packet.steps).filter(|step| step.ours) {
        step.place = step.handle.and_then(|handle| places.of(handle));
    }
    Ok(assembler)
}

impl Traced {
    fn steps(&self) -> impl Iterator<Item = &TracedStep> {
        self.packets.iter().flat_map(|packet| &packet.steps)
    }
}

/// Returns the table that marks the packets of a flow.
fn marks(flow: &TracedFlow) -> Table {
    let mut matches = vec![
        Match::Family { v4: flow.src.is_ipv4() },
        Match::InNet { side: Side::Src, not: false, net: Cidr::host(flow.src) },
        Match::InNet { side: Side::Dst, not: false, net: Cidr::host(flow.dst) },
        Match::Protocol { not: false, number: flow.protocol },
    ];
    for (side, port) in [(Side::Src, flow.source_port), (Side::Dst, flow.destination_port)] {
        let range = port.and_then(|port| PortRange::new(port, port));
        matches.extend(range.map(|range| Match::Port { side, not: false, ranges: vec![range] }));
    }
    let icmp = flow.icmp.and_then(|(kind, code)| Icmp::new(kind, Some(code)));
    matches.extend(icmp.map(|icmp| Match::Icmp { not: false, icmp }));
    let rule = Rule { matches, limit: Some(RATE), statement: Statement::Trace, ..Rule::default() };
    let chain = |at| Chain {
        hook: Some(Hook { kind: Kind::Filter, at, priority: PRIORITY }),
        rules: vec![rule.clone()],
    };
    let chains = [(At::Prerouting, "prerouting"), (At::Output, "output")];
    Table {
        sets: BTreeMap::new(),
        chains: chains.into_iter().map(|(at, name)| (name.into(), chain(at))).collect(),
    }
}

/// The rules of Tortie's table by the kernel's handles, which are never reused.
#[derive(Default)]
struct Places(FxHashMap<u64, RulePlace>);

impl Places {
    fn read(&mut self, socket: &mut Socket) -> io::Result<()> {
        for rules in dump::rules(socket, TABLE)?.into_values() {
            let place = |(at, rule): (usize, RuleDump)| (rule.handle, RulePlace { at, hash: rule.hash });
            self.0.extend(rules.into_iter().enumerate().map(place));
        }
        Ok(())
    }

    fn of(&self, handle: u64) -> Option<RulePlace> {
        self.0.get(&handle).copied()
    }
}

struct Listener(Raw);

impl Listener {
    fn open() -> io::Result<Self> {
        let mut raw = Raw::new(NETLINK_NETFILTER)?;
        raw.bind_auto()?;
        grow_recv_buffer(&raw, BUFFER)?;
        raw.add_membership(TRACE_GROUP)?;
        raw.set_non_blocking(true)?;
        Ok(Self(raw))
    }

    fn listen(&self, time: Duration, stop: impl AsFd) -> io::Result<Traced> {
        let mut assembler = PacketAssembler::default();
        let begin = Instant::now();
        let mut end = begin + time;
        let mut buf = Vec::with_capacity(64 << 10);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(assembler.traced);
            }
            let wait = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut fds =
                [PollFd::new(&self.0, PollFlags::IN), PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&wait)) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            if fds.iter().skip(1).any(|fd| !fd.revents().is_empty()) {
                return Ok(assembler.traced);
            }
            self.read(&mut buf, begin, &mut assembler)?;
            if assembler.traced.packets.len() >= PACKETS_MAX {
                end = end.min(Instant::now() + PASSAGE);
            }
        }
    }

    /// Reads the pending messages.
    fn read(&self, buf: &mut Vec<u8>, begin: Instant, assembler: &mut PacketAssembler) -> io::Result<()> {
        // Bounded, since a flood of other programs' traces must not delay the check of the time.
        for _ in 0..256 {
            buf.clear();
            match self.0.recv(buf, 0) {
                Ok(_) => assembler.push(buf, begin.elapsed()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => assembler.traced.lost = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Assigns trace messages to packets.
#[derive(Default)]
struct PacketAssembler {
    traced: Traced,
    /// Indices of packets by the kernel's trace ID, which a later packet may reuse.
    current: FxHashMap<u32, usize>,
}

impl PacketAssembler {
    fn push(&mut self, bytes: &[u8], after: Duration) {
        for message in Messages(bytes).filter(|m| m.kind == (SUBSYSTEM << 8) | NFT_MSG_TRACE) {
            let family = codec::u8_at(message.body, 0).unwrap_or_default();
            if let Some(message) = TraceMessage::read(family, message.body) {
                self.put(message, after);
            }
        }
    }

    fn put(&mut self, message: TraceMessage, after: Duration) {
        let packets = &mut self.traced.packets;
        if message.marks {
            // Begin of a packet; the end of the marking chain has no further information.
            if message.step.handle.is_some() {
                self.current.remove(&message.packet);
                if packets.len() < PACKETS_MAX {
                    self.current.insert(message.packet, packets.len());
                    packets.push(TracedPacket { after, source_port: message.source_port, steps: Vec::new() });
                }
            }
            return;
        }
        let at = self.current.get(&message.packet).copied();
        if let Some(packet) = at.and_then(|at| packets.get_mut(at))
            && packet.steps.len() < STEPS_MAX
        {
            let end = |s: &TracedStep| s.handle.is_none() && s.chain == message.step.chain;
            // For a base chain the kernel reports both that no rule was left and the chain policy.
            if end(&message.step) && packet.steps.last().is_some_and(end) {
                packet.steps.pop();
            }
            packet.steps.push(message.step);
        }
    }
}

/// One trace message.
struct TraceMessage {
    packet: u32,
    /// True if it is about the table that marks packets.
    marks: bool,
    source_port: Option<u16>,
    step: TracedStep,
}

impl TraceMessage {
    fn read(family: u8, body: &[u8]) -> Option<Self> {
        let (mut packet, mut kind, mut handle, mut header) = (None, None, None, None);
        let (mut table, mut chain, mut verdict) = (String::new(), String::new(), TracedVerdict::Continue);
        for (attribute, data) in Attrs::after(body, GENMSG) {
            match attribute {
                NFTA_TRACE_TABLE => table = codec::text(data),
                NFTA_TRACE_CHAIN => chain = codec::text(data),
                NFTA_TRACE_RULE_HANDLE => handle = codec::be64(data),
                NFTA_TRACE_TYPE => kind = codec::be32(data),
                NFTA_TRACE_ID => packet = codec::be32(data),
                NFTA_TRACE_TRANSPORT_HEADER => header = Some(data),
                NFTA_TRACE_VERDICT => verdict = verdict_of(data)?,
                NFTA_TRACE_POLICY => verdict = code(codec::be32(data)?.cast_signed(), String::new()),
                _ => {}
            }
        }
        if !matches!(kind?, TRACE_POLICY | TRACE_RETURN | TRACE_RULE) {
            return None;
        }
        // The end of a chain is reported with the handle of the last rule that matched.
        let handle = handle.filter(|_| kind == Some(TRACE_RULE));
        let port = header.and_then(|header| header.get(..2)?.try_into().ok()).map(u16::from_be_bytes);
        let inet = family == NFPROTO_INET;
        Some(Self {
            packet: packet?,
            marks: inet && table == MARKS,
            source_port: port,
            step: TracedStep {
                ours: inet && table == TABLE,
                table: format!("{} {table}", family_name(family)),
                chain,
                handle,
                place: None,
                verdict,
            },
        })
    }
}

fn verdict_of(data: &[u8]) -> Option<TracedVerdict> {
    let find = |wanted| Attrs(data).find(|(kind, _)| *kind == wanted).map(|(_, data)| data);
    let number = find(NFTA_VERDICT_CODE).and_then(codec::be32)?.cast_signed();
    Some(code(number, find(NFTA_VERDICT_CHAIN).map(codec::text).unwrap_or_default()))
}

fn code(number: i32, chain: String) -> TracedVerdict {
    // The upper half of a netfilter verdict is an errno or a queue number.
    match if number >= 0 { number & 0xff } else { number } {
        NF_DROP => TracedVerdict::Drop,
        NF_ACCEPT => TracedVerdict::Accept,
        -1 => TracedVerdict::Continue,
        NFT_JUMP => TracedVerdict::Jump(chain),
        NFT_GOTO => TracedVerdict::Goto(chain),
        NFT_RETURN => TracedVerdict::Return,
        other => TracedVerdict::Other(other),
    }
}

/// Returns the family name in nft syntax.
fn family_name(family: u8) -> &'static str {
    match family {
        NFPROTO_INET => "inet",
        NFPROTO_IPV4 => "ip",
        3 => "arp",
        5 => "netdev",
        7 => "bridge",
        NFPROTO_IPV6 => "ip6",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::codec::Writer;

    fn message(packet: u32, table: &str, handle: Option<u64>, verdict: Option<i32>) -> Vec<u8> {
        let mut buf = Vec::new();
        let mut w = Writer::begin(&mut buf, (SUBSYSTEM << 8) | NFT_MSG_TRACE, 0, 0);
        w.raw(&[NFPROTO_INET, 0, 0, 0]).attr_be32(NFTA_TRACE_ID, packet);
        w.attr_text(NFTA_TRACE_TABLE, table).attr_text(NFTA_TRACE_CHAIN, "c");
        w.attr_be32(NFTA_TRACE_TYPE, if handle.is_some() { TRACE_RULE } else { TRACE_POLICY });
        handle.into_iter().for_each(|handle| _ = w.attr_be64(NFTA_TRACE_RULE_HANDLE, handle));
        if let Some(verdict) = verdict {
            w.nest(NFTA_TRACE_VERDICT, |w| _ = w.attr_be32(NFTA_VERDICT_CODE, verdict.cast_unsigned()));
        }
        w.attr(NFTA_TRACE_TRANSPORT_HEADER, &[0x9c, 0x40, 0x15, 0x38]);
        w.end();
        buf
    }

    #[test]
    fn steps_go_to_their_packet_and_those_of_others_traces_to_none() {
        let mut assembler = PacketAssembler::default();
        let messages = [
            message(9, "tortie", Some(4), Some(NF_DROP)),
            message(1, MARKS, Some(1), Some(-1)),
            message(1, MARKS, None, None),
            message(2, MARKS, Some(1), Some(-1)),
            message(1, "tortie", Some(4), Some(NF_ACCEPT)),
            message(2, "docker", Some(5), Some(0x0016_0000)),
            // The kernel reuses an ID after the packet was freed.
            message(1, MARKS, Some(1), Some(-1)),
            message(1, "tortie", Some(6), Some(-1)),
        ];
        assembler.push(&messages.concat(), Duration::from_secs(1));
        let shown: Vec<Vec<_>> = assembler
            .traced
            .packets
            .iter()
            .map(|packet| {
                packet.steps.iter().map(|s| (s.table.as_str(), s.handle, s.verdict.clone())).collect()
            })
            .collect();
        assert_eq!(
            shown,
            [
                vec![("inet tortie", Some(4), TracedVerdict::Accept)],
                vec![("inet docker", Some(5), TracedVerdict::Drop)],
                vec![("inet tortie", Some(6), TracedVerdict::Continue)],
            ]
        );
        assert_eq!(assembler.traced.packets[0].source_port, Some(40_000));
    }

    #[test]
    fn broken_messages_are_left_out() {
        let whole = message(1, MARKS, Some(1), Some(-1));
        for len in 0..whole.len() {
            PacketAssembler::default().push(&whole[..len], Duration::ZERO);
            let _ = TraceMessage::read(NFPROTO_INET, &whole[..len]);
        }
    }

    #[test]
    fn floods_are_bounded() {
        let mut assembler = PacketAssembler::default();
        for packet in 0..100 {
            assembler.push(&message(packet, MARKS, Some(1), Some(-1)), Duration::ZERO);
            for _ in 0..6 {
                assembler.push(&message(packet, "tortie", Some(4), Some(-1)), Duration::ZERO);
            }
        }
        assert_eq!(assembler.traced.packets.len(), PACKETS_MAX);
        assert!(
            assembler.current.len() <= PACKETS_MAX
                && assembler.traced.packets.iter().all(|p| p.steps.len() == 6)
        );
    }
}
