//! A kernel trace of one flow: which rules its packets meet, of whatever table, and what each says.
//!
//! A table of its own (`inet tortie-trace`) marks the packets before any rule of ours sees them; the kernel then reports a
//! multicast group of every rule that they meet. The table goes when the time is up, when the caller hangs up and, with
//! its socket, when the process ends. Packets that others trace are left out.

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

/// The table that marks packets.
pub(super) const MARKS: &str = "tortie-trace";
/// Before our first chains.
const PRIORITY: i32 = -301;
/// Packets a second that are marked.
const RATE: u32 = 10;
/// Packets that are kept; with the last one the trace ends.
const PACKETS_MAX: usize = 32;
/// Steps of one packet that are kept.
const STEPS_MAX: usize = 512;
/// Within this time a marked packet is through.
const PASSAGE: Duration = Duration::from_millis(50);
/// Receive buffer, in bytes.
const BUFFER: usize = 4 << 20;

/// Which packets are traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedFlow {
    /// Where they come from.
    pub src: IpAddr,
    /// Where they go.
    pub dst: IpAddr,
    /// The IP protocol's number.
    pub protocol: u8,
    /// Only this source port.
    pub source_port: Option<u16>,
    /// Only this destination port.
    pub destination_port: Option<u16>,
    /// Only this type and code, of ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
}

/// What was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traced {
    /// At most 32 packets, in order; of more than ten a second some are left out.
    pub packets: Vec<TracedPacket>,
    /// The kernel reported more than could be read: steps are missing.
    pub lost: bool,
}

/// A packet's way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedPacket {
    /// When it came, from the beginning of the trace.
    pub after: Duration,
    /// Its source port, of protocols that have them.
    pub source_port: Option<u16>,
    /// The rules that it met, in order.
    pub steps: Vec<TracedStep>,
}

/// A rule that matched, or the end of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedStep {
    /// The family and name of the table, such as `inet tortie`.
    pub table: String,
    /// It is our table.
    pub ours: bool,
    /// The chain.
    pub chain: String,
    /// The kernel's number of the rule; none: the end of the chain.
    pub handle: Option<u64>,
    /// Which rule of our table it is; none: another table's, or one that came and went while the trace was armed.
    pub place: Option<RulePlace>,
    /// What it said.
    pub verdict: TracedVerdict,
}

/// A rule of our table: its place in the chain, counted from 0, and what it was when we wrote it; none: another process did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RulePlace {
    pub(crate) at: usize,
    pub(crate) hash: Option<RuleHash>,
}

impl RulePlace {
    /// Whether we wrote the rule.
    #[must_use]
    pub fn is_ours(self) -> bool {
        self.hash.is_some()
    }
}

/// What a rule or the end of a chain says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TracedVerdict {
    /// The next rule.
    Continue,
    /// Through this hook's chain.
    Accept,
    /// The end.
    Drop,
    /// Back to the calling chain, or this chain's policy.
    Return,
    /// To another chain, and back.
    Jump(String),
    /// To another chain.
    Goto(String),
    /// Any other, by its number.
    Other(i32),
}

/// Takes away what a process left that died where tables do not go with their socket.
pub(crate) fn tidy() {
    // Nobody waits for it: at worst it is somebody's who traces now.
    let _ = Socket::open().map(|mut socket| socket.remove(MARKS));
}

/// Traces a flow in the caller's network namespace until the time is up, enough was seen, or `stop` can be read or is hung
/// up. Blocks meanwhile.
///
/// # Errors
/// In words, when the kernel refuses it; nothing is left of the trace then.
pub fn trace(flow: &TracedFlow, time: Duration, stop: impl AsFd) -> Result<Traced, String> {
    let words = |error: io::Error| format!("the kernel does not trace packets here: {error}");
    let mut socket = Socket::open().map_err(words)?;
    // Subscribed before anything is marked, so that no packet comes between.
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

/// The table that marks the packets of a flow.
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

/// The rules of our table by the kernel's numbers, which are never used twice.
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

    /// What is there to be read.
    fn read(&self, buf: &mut Vec<u8>, begin: Instant, assembler: &mut PacketAssembler) -> io::Result<()> {
        // A flood of others' traces must not keep it from looking at the clock.
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

/// Sorts trace messages by packet.
#[derive(Default)]
struct PacketAssembler {
    traced: Traced,
    /// By the kernel's number of the packet, which a later one may have, too.
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
            // Its packet begins here; the end of the marking chain says nothing more.
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
            // Of a base chain both are reported: that no rule was left, and its policy.
            if end(&message.step) && packet.steps.last().is_some_and(end) {
                packet.steps.pop();
            }
            packet.steps.push(message.step);
        }
    }
}

/// One message.
struct TraceMessage {
    packet: u32,
    /// It is of the table that marks.
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
        // The end of a chain is reported with the last rule that matched.
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
    // The upper half of a verdict of netfilter's is an errno or a queue.
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

/// As nft writes it.
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
            // The kernel gives a number again: the packet was freed.
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
