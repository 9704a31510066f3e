//! Encoding of rules as nf_tables expressions: loads into registers, comparisons, statements.
//!
//! Registers have four octets; every match starts again at the first one.

use std::net::IpAddr;

use sha2::{Digest as _, Sha256};
use tortie_config::resource::PortRange;
use tortie_net::Cidr;

use super::batch::{APPEND, Batch, INSERT, comment};
use super::set::{ANONYMOUS, Anonymous, Key, Span, interface, udata, verdict};
use crate::netlink::codec::Writer;
use crate::nft::ir::{Field, Log, Match, Rule, Side, Statement};
use crate::nft::uapi::*;

/// The verdict register.
const VERDICT: u32 = 0;
/// The first register of four octets; 15 more follow.
const REG: u32 = 8;

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_NFTRACE: u32 = 12;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;

const CT_STATE: u32 = 0;
const CT_INVALID: u32 = 1;
const CT_ESTABLISHED_RELATED: u32 = 2 | 4;

const FIB_RESULT_ADDRTYPE: u32 = 3;
const RTN_LOCAL: u32 = 2;

const NAT_SRC: u32 = 0;
const NAT_DST: u32 = 1;

/// Syslog level notice.
const LOG_NOTICE: u32 = 5;
/// Number of octets of a packet that a log group receives: the headers, including the inner ones of a tunnel.
pub(in crate::nft) const LOG_SNAPLEN: u32 = 128;

/// Hash that identifies a rule: the first 128 bits of SHA-256, so that no author of policies can construct a
/// rule that is mistaken for another one and so left in the kernel in its place.
pub(crate) type RuleHash = [u8; 16];

/// Returns a hash of a rule's effect and comment, the same in every process and build. It is stored in the
/// rule's userdata and identifies existing rules after a restart.
pub(crate) fn rule_hash(rule: &Rule) -> RuleHash {
    Encoded::of(rule).hash(rule)
}

/// Appends a rule after those of its chain, with its anonymous sets.
pub(super) fn append(batch: &mut Batch<'_>, edit: usize, chain: &str, rule: &Rule) {
    write(batch, edit, chain, rule, APPEND);
}

/// Inserts a rule before those of its chain.
pub(super) fn insert(batch: &mut Batch<'_>, chain: &str, rule: &Rule) {
    write(batch, 0, chain, rule, INSERT);
}

fn write(batch: &mut Batch<'_>, edit: usize, chain: &str, rule: &Rule, flags: u16) {
    let mut encoded = Encoded::of(rule);
    let hash = encoded.hash(rule);
    for (set, hole) in encoded.sets.iter().zip(&encoded.holes) {
        let id = set.create(batch, edit);
        if let Some(field) = encoded.expressions.get_mut(*hole..*hole + 4) {
            field.copy_from_slice(&id.to_be_bytes());
        }
    }
    batch.message(NFT_MSG_NEWRULE, flags, Some(edit), |w| {
        w.attr_text(NFTA_RULE_CHAIN, chain);
        w.nest(NFTA_RULE_EXPRESSIONS, |w| {
            w.raw(&encoded.expressions);
        });
        let mut userdata = Vec::with_capacity(160);
        if let Some(text) = comment_of(rule) {
            let mut text = text.into_bytes();
            text.push(0);
            udata(&mut userdata, UDATA_RULE_COMMENT, &text);
        }
        udata(&mut userdata, UDATA_RULE_HASH, &hash);
        w.attr(NFTA_RULE_USERDATA, &userdata);
    });
}

fn comment_of(rule: &Rule) -> Option<String> {
    rule.comment.as_deref().map(comment).filter(|c| !c.is_empty())
}

/// Returns true if a rule is for IPv4: by its family match, else by its networks. It determines the width of
/// loaded addresses.
pub(in crate::nft) fn family_v4(rule: &Rule) -> bool {
    let by_match = rule.matches.iter().find_map(|m| match m {
        Match::Family { v4 } => Some(*v4),
        _ => None,
    });
    let by_net = || {
        rule.matches.iter().find_map(|m| match m {
            Match::InNet { net, .. } => Some(net.is_v4()),
            Match::InNets { nets, .. } => nets.first().map(Cidr::is_v4),
            _ => None,
        })
    };
    by_match.or_else(by_net).unwrap_or(true)
}

/// Returns true if networks need an interval set.
pub(in crate::nft) fn wide(nets: &[Cidr]) -> bool {
    nets.iter().any(|n| !n.is_host())
}

/// Encoded expressions of a rule; its anonymous sets have no ID yet.
#[derive(Default)]
struct Encoded {
    expressions: Vec<u8>,
    sets: Vec<Anonymous>,
    /// Offsets at which the IDs of the sets are filled in.
    holes: Vec<usize>,
}

impl Encoded {
    fn of(rule: &Rule) -> Self {
        let mut encoded = Self { expressions: Vec::with_capacity(512), ..Self::default() };
        let v4 = family_v4(rule);
        for m in &rule.matches {
            encoded.matching(m, v4);
        }
        if let Some(rate) = rule.limit {
            encoded.limit(rate);
        }
        if rule.counted {
            encoded.expr("counter", |_| ());
        }
        if let Some(log) = &rule.log {
            encoded.log(log);
        }
        encoded.statement(&rule.statement, v4);
        encoded
    }

    fn hash(&self, rule: &Rule) -> RuleHash {
        let mut sets = Vec::new();
        let mut w = Writer::bare(&mut sets);
        self.sets.iter().for_each(|set| set.bytes(&mut w));
        let text = comment_of(rule).unwrap_or_default();
        let hash =
            Sha256::new().chain_update(&self.expressions).chain_update(&sets).chain_update(text).finalize();
        hash.first_chunk().copied().unwrap_or_default()
    }

    fn matching(&mut self, m: &Match, v4: bool) {
        match m {
            Match::Family { v4 } => {
                self.meta(META_NFPROTO, REG);
                self.cmp(false, &[if *v4 { NFPROTO_IPV4 } else { NFPROTO_IPV6 }]);
            }
            Match::Protocol { not, number } => {
                self.meta(META_L4PROTO, REG);
                self.cmp(*not, &[*number]);
            }
            Match::InSet { not, key, set } => {
                self.key(key, v4);
                self.lookup(set, *not, None);
            }
            Match::InNet { side, not, net } => self.in_net(*side, *not, net),
            Match::InNets { side, not, nets } => {
                let v4 = nets.first().is_none_or(Cidr::is_v4);
                self.address(*side, v4, REG);
                let interval = wide(nets);
                let spans = nets.iter().map(|net| Span::of_net(interval, net)).collect();
                self.anonymous(*not, Anonymous { field: addr_type(v4), interval, spans });
            }
            Match::Port { side, not, ranges } => self.port(*side, *not, ranges),
            Match::Icmp { not, icmp } => match icmp.code() {
                None => {
                    self.payload(TRANSPORT_HEADER, 0, 1, REG);
                    self.cmp(*not, &[icmp.icmp_type()]);
                }
                Some(code) => {
                    self.payload(TRANSPORT_HEADER, 0, 2, REG);
                    self.cmp(*not, &[icmp.icmp_type(), code]);
                }
            },
            Match::IcmpTypes { first, last } => {
                self.payload(TRANSPORT_HEADER, 0, 1, REG);
                self.range(false, &[*first], &[*last]);
            }
            Match::Interface { inbound, not, name } => {
                self.meta(if *inbound { META_IIFNAME } else { META_OIFNAME }, REG);
                self.cmp(*not, &interface(name));
            }
            Match::InterfacePrefix { inbound, not, prefix } => {
                self.meta(if *inbound { META_IIFNAME } else { META_OIFNAME }, REG);
                let len = prefix.len().min(16);
                self.cmp(*not, interface(prefix).get(..len).unwrap_or_default());
            }
            Match::Established => self.ct_state(CT_ESTABLISHED_RELATED),
            Match::Invalid => self.ct_state(CT_INVALID),
            Match::Local { side } => {
                self.expr("fib", |w| {
                    let flags = match side {
                        Side::Src => 1,
                        Side::Dst => 2,
                    };
                    w.attr_be32(1, REG).attr_be32(2, FIB_RESULT_ADDRTYPE).attr_be32(3, flags);
                });
                self.cmp(false, &RTN_LOCAL.to_ne_bytes());
            }
            Match::Marked(bits) => {
                self.meta(META_MARK, REG);
                self.bitwise(&bits.to_ne_bytes(), &[0; 4]);
                self.cmp(true, &[0; 4]);
            }
        }
    }

    fn statement(&mut self, statement: &Statement, v4: bool) {
        match statement {
            Statement::Go => {}
            Statement::Accept => self.verdict(NF_ACCEPT, None),
            Statement::Drop => self.verdict(NF_DROP, None),
            Statement::Return => self.verdict(NFT_RETURN, None),
            Statement::Jump(chain) => self.verdict(NFT_JUMP, Some(chain)),
            Statement::Goto(chain) => self.verdict(NFT_GOTO, Some(chain)),
            Statement::VerdictMap { key, map } => {
                self.key(key, v4);
                self.lookup(map, false, Some(VERDICT));
            }
            Statement::MarkAndReturn(bits) => {
                self.mark(!bits, *bits);
                self.verdict(NFT_RETURN, None);
            }
            Statement::MarkAndAccept(bits) => {
                self.mark(!bits, *bits);
                self.verdict(NF_ACCEPT, None);
            }
            Statement::Untrack(bits) => {
                self.mark(!bits, *bits);
                self.expr("notrack", |_| ());
                self.verdict(NF_ACCEPT, None);
            }
            Statement::NoTrack => self.expr("notrack", |_| ()),
            Statement::Unmark(bits) => self.mark(!bits, 0),
            Statement::Trace => {
                self.expr("immediate", |w| {
                    w.attr_be32(1, REG);
                    data(w, 2, &[1]);
                });
                self.expr("meta", |w| {
                    w.attr_be32(2, META_NFTRACE).attr_be32(3, REG);
                });
            }
            Statement::UnmarkAndReturn(bits) => {
                self.mark(!bits, 0);
                self.verdict(NFT_RETURN, None);
            }
            Statement::Masquerade => self.expr("masq", |_| ()),
            Statement::DestinationNat { v4, key, map } => self.nat(NAT_DST, *v4, key, map),
            Statement::DestinationNatTo { addr, port } => self.nat_to(*addr, *port),
            Statement::SourceNat { v4, key, map } => self.nat(NAT_SRC, *v4, key, map),
        }
    }

    fn expr(&mut self, name: &str, fill: impl FnOnce(&mut Writer<'_>)) {
        Writer::bare(&mut self.expressions).nest(NFTA_LIST_ELEM, |w| {
            w.attr_text(NFTA_EXPR_NAME, name);
            w.nest(NFTA_EXPR_DATA, fill);
        });
    }

    fn meta(&mut self, key: u32, register: u32) {
        self.expr("meta", |w| {
            w.attr_be32(1, register).attr_be32(2, key);
        });
    }

    fn payload(&mut self, base: u32, offset: u32, len: u32, register: u32) {
        self.expr("payload", |w| {
            w.attr_be32(1, register).attr_be32(2, base).attr_be32(3, offset).attr_be32(4, len);
        });
    }

    fn cmp(&mut self, not: bool, value: &[u8]) {
        self.expr("cmp", |w| {
            w.attr_be32(1, REG).attr_be32(2, u32::from(not));
            data(w, 3, value);
        });
    }

    fn range(&mut self, not: bool, first: &[u8], last: &[u8]) {
        if first == last {
            return self.cmp(not, first);
        }
        self.expr("range", |w| {
            w.attr_be32(1, REG).attr_be32(2, u32::from(not));
            data(w, 3, first);
            data(w, 4, last);
        });
    }

    /// Appends `register = (register & mask) ^ xor`.
    fn bitwise(&mut self, mask: &[u8], xor: &[u8]) {
        self.expr("bitwise", |w| {
            let len = u32::try_from(mask.len()).unwrap_or_default();
            w.attr_be32(1, REG).attr_be32(2, REG).attr_be32(3, len);
            data(w, 4, mask);
            data(w, 5, xor);
        });
    }

    fn ct_state(&mut self, bits: u32) {
        self.expr("ct", |w| {
            w.attr_be32(1, REG).attr_be32(2, CT_STATE);
        });
        self.bitwise(&bits.to_ne_bytes(), &[0; 4]);
        self.cmp(true, &[0; 4]);
    }

    fn mark(&mut self, mask: u32, xor: u32) {
        self.meta(META_MARK, REG);
        self.bitwise(&mask.to_ne_bytes(), &xor.to_ne_bytes());
        self.expr("meta", |w| {
            w.attr_be32(2, META_MARK).attr_be32(3, REG);
        });
    }

    fn address(&mut self, side: Side, v4: bool, register: u32) {
        let (at, len) = place(side, v4);
        self.payload(NETWORK_HEADER, at, len, register);
    }

    fn in_net(&mut self, side: Side, not: bool, net: &Cidr) {
        let (at, len) = place(side, net.is_v4());
        let first = Key::default().addr(net.addr());
        let whole = net.len() / 8;
        if net.len() > 0 && net.len().is_multiple_of(8) {
            // Load only the octets that the prefix covers.
            self.payload(NETWORK_HEADER, at, u32::from(whole), REG);
            return self.cmp(not, first.as_bytes().get(..usize::from(whole)).unwrap_or_default());
        }
        self.payload(NETWORK_HEADER, at, len, REG);
        let mask = u128::MAX.checked_shl(128 - u32::from(net.len())).unwrap_or(0).to_be_bytes();
        let octets = first.as_bytes().len();
        self.bitwise(mask.get(..octets).unwrap_or_default(), [0; 16].get(..octets).unwrap_or_default());
        self.cmp(not, first.as_bytes());
    }

    fn port(&mut self, side: Side, not: bool, ranges: &[PortRange]) {
        let at = match side {
            Side::Src => 0,
            Side::Dst => 2,
        };
        self.payload(TRANSPORT_HEADER, at, 2, REG);
        if let [one] = ranges {
            return self.range(not, &one.first().to_be_bytes(), &one.last().to_be_bytes());
        }
        let interval = ranges.iter().any(|r| r.first() != r.last());
        let key = |port: u16| Key::default().push(&port.to_be_bytes());
        let span = |r: &PortRange| match interval {
            true => Span::Range(key(r.first()), key(r.last())),
            false => Span::One(key(r.first())),
        };
        let spans = ranges.iter().map(span).collect();
        self.anonymous(not, Anonymous { field: INET_SERVICE, interval, spans });
    }

    /// Loads the fields of a key into consecutive registers.
    fn key(&mut self, key: &[Field], v4: bool) {
        let mut register = REG;
        for field in key {
            register += match field {
                Field::Addr(side) => {
                    self.address(*side, v4, register);
                    addr_type(v4).len / 4
                }
                Field::InInterface => {
                    self.meta(META_IIFNAME, register);
                    IFNAME.len / 4
                }
                Field::OutInterface => {
                    self.meta(META_OIFNAME, register);
                    IFNAME.len / 4
                }
            };
        }
    }

    /// Looks up the registers in a set. The value of a map goes to register `to`; a missing key ends the
    /// rule.
    fn lookup(&mut self, set: &str, not: bool, to: Option<u32>) {
        self.expr("lookup", |w| {
            w.attr_text(1, set).attr_be32(2, REG);
            if let Some(to) = to {
                w.attr_be32(3, to);
            }
            if not {
                w.attr_be32(5, 1);
            }
        });
    }

    fn anonymous(&mut self, not: bool, set: Anonymous) {
        let mut hole = 0;
        self.expr("lookup", |w| {
            w.attr_text(1, ANONYMOUS).attr_be32(2, REG);
            hole = w.len() + 4;
            w.attr_be32(4, 0);
            if not {
                w.attr_be32(5, 1);
            }
        });
        self.sets.push(set);
        self.holes.push(hole);
    }

    fn verdict(&mut self, code: i32, chain: Option<&str>) {
        self.expr("immediate", |w| {
            w.attr_be32(1, VERDICT);
            w.nest(2, |w| verdict(w, code, chain));
        });
    }

    fn limit(&mut self, rate: u32) {
        self.expr("limit", |w| {
            w.attr_be64(1, u64::from(rate)).attr_be64(2, 1).attr_be32(3, rate.saturating_mul(2));
            w.attr_be32(4, 0).attr_be32(5, 0);
        });
    }

    fn log(&mut self, log: &Log) {
        self.expr("log", |w| {
            let prefix = log_prefix(&log.prefix);
            if !prefix.is_empty() {
                w.attr_text(2, prefix);
            }
            match log.group {
                None => w.attr_be32(5, LOG_NOTICE),
                Some(group) => w.attr_be16(1, group).attr_be32(3, LOG_SNAPLEN),
            };
        });
    }

    /// Appends destination NAT to this address and port.
    fn nat_to(&mut self, addr: IpAddr, port: u16) {
        // Registers after an address of either family.
        const PORT_REG: u32 = REG + 4;
        let load = |this: &mut Self, register, value: &[u8]| {
            this.expr("immediate", |w| {
                w.attr_be32(1, register);
                data(w, 2, value);
            });
        };
        load(self, REG, Key::default().addr(addr).as_bytes());
        load(self, PORT_REG, &port.to_be_bytes());
        let family = if addr.is_ipv4() { NFPROTO_IPV4 } else { NFPROTO_IPV6 };
        self.expr("nat", |w| {
            w.attr_be32(1, NAT_DST).attr_be32(2, u32::from(family)).attr_be32(3, REG).attr_be32(5, PORT_REG);
        });
    }

    /// Appends NAT to the address that the map returns, if it has the key.
    fn nat(&mut self, kind: u32, v4: bool, key: &[Field], map: &str) {
        self.key(key, v4);
        self.lookup(map, false, Some(REG));
        self.expr("nat", |w| {
            let family = if v4 { NFPROTO_IPV4 } else { NFPROTO_IPV6 };
            w.attr_be32(1, kind).attr_be32(2, u32::from(family)).attr_be32(3, REG);
        });
    }
}

/// Returns offset and length of an address in its header.
fn place(side: Side, v4: bool) -> (u32, u32) {
    match (v4, side) {
        (true, Side::Src) => (12, 4),
        (true, Side::Dst) => (16, 4),
        (false, Side::Src) => (8, 16),
        (false, Side::Dst) => (24, 16),
    }
}

fn data(w: &mut Writer<'_>, kind: u16, value: &[u8]) {
    w.nest(kind, |w| {
        w.attr(NFTA_DATA_VALUE, value);
    });
}

/// Cuts a log prefix to the 127 octets that the kernel accepts.
pub(in crate::nft) fn log_prefix(prefix: &str) -> &str {
    prefix.get(..prefix.floor_char_boundary(127)).unwrap_or_default()
}
