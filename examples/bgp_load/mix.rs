//! Generates the announcements of senders: runs with equal seeds have equal prefixes and attributes.
//!
//! Each attribute set has eight prefixes. AS paths have one to six ASes, a quarter of the sets has MED, three
//! quarters have one to three communities, and prefix lengths follow the public Internet table approximately.
//! An attribute set may occur twice.

use std::net::{IpAddr, Ipv4Addr};

use std::collections::HashSet;

/// Number of prefixes that share an attribute set.
const SHARED: usize = 8;
/// Maximum message length in octets (RFC 4271 4.1).
const MESSAGE: usize = 4096;
/// IPv4 prefix lengths, each with its share in percent.
const LENGTHS_V4: [(u8, u64); 9] =
    [(24, 58), (23, 10), (22, 12), (21, 5), (20, 5), (19, 4), (18, 2), (17, 1), (16, 3)];
/// IPv6 prefix lengths, each with its share in percent.
const LENGTHS_V6: [(u8, u64); 6] = [(48, 54), (44, 9), (40, 9), (36, 6), (32, 20), (29, 2)];

/// Splitmix64 random number generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// A prefix; an IPv4 address occupies the first 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix {
    bits: u128,
    len: u8,
}

impl Prefix {
    pub(crate) fn new(address: IpAddr, len: u8) -> Self {
        let bits = match address {
            IpAddr::V4(a) => u128::from(u32::from(a)) << 96,
            IpAddr::V6(a) => u128::from(a),
        };
        Self { bits, len }
    }

    /// Decodes a prefix from the front of an NLRI field, and returns the rest.
    pub(crate) fn read(field: &[u8]) -> Option<(Self, &[u8])> {
        let (len, rest) = field.split_first()?;
        let octets = rest.get(..usize::from(len.div_ceil(8)))?;
        let mut bits = [0; 16];
        bits.get_mut(..octets.len())?.copy_from_slice(octets);
        Some((Self { bits: u128::from_be_bytes(bits), len: *len }, rest.get(octets.len()..)?))
    }

    /// Encodes the prefix in one integer, which is unique among prefixes of one family with at most 56 bits.
    pub(crate) fn key(self) -> u64 {
        u64::try_from(self.bits >> 72).unwrap_or(0) << 8 | u64::from(self.len)
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.push(self.len);
        out.extend(self.bits.to_be_bytes().into_iter().take(usize::from(self.len.div_ceil(8))));
    }

    /// True if this prefix contains every address of the other one.
    pub(crate) fn covers(self, other: &Self) -> bool {
        self.len <= other.len && (self.bits ^ other.bits) & u128::MAX << (128 - self.len) == 0
    }

    /// Returns the first IPv4 address of the prefix.
    pub(crate) fn first(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(u32::try_from(self.bits >> 96).unwrap_or(0)))
    }

    fn size(self) -> usize {
        1 + usize::from(self.len.div_ceil(8))
    }
}

/// Generates distinct prefixes that no daemon rejects as martians, outside of 10.0.0.0/8, which the lab uses.
pub(crate) fn prefixes(count: usize, v6: bool, seed: u64) -> Vec<Prefix> {
    let mut random = Random::new(seed);
    let lengths: &[(u8, u64)] = if v6 { &LENGTHS_V6 } else { &LENGTHS_V4 };
    let mut seen = HashSet::new();
    let mut out = Vec::with_capacity(count);
    while out.len() < count {
        let mut nth = random.below(100);
        let len = lengths.iter().find(|(_, share)| {
            let here = nth < *share;
            nth = nth.saturating_sub(*share);
            here
        });
        let len = len.map_or(24, |(len, _)| *len);
        let word = u128::from(random.next()) << 64;
        let bits = if v6 { 0x2a << 120 | word >> 8 } else { word };
        let prefix = Prefix { bits: bits & u128::MAX << (128 - len), len };
        let first = prefix.bits >> 120;
        if (!v6 && (first == 0 || first == 10 || first == 127 || first >= 224)) || !seen.insert(prefix.key())
        {
            continue;
        }
        out.push(prefix);
    }
    out
}

/// A peer that announces routes.
#[derive(Debug, Clone)]
pub(crate) struct Sender<'a> {
    pub(crate) asn: u32,
    pub(crate) ebgp: bool,
    /// Next hops, which attribute sets use in rotation.
    pub(crate) next_hops: &'a [IpAddr],
    pub(crate) seed: u64,
}

/// Encodes UPDATE messages that announce these prefixes.
pub(crate) fn updates(prefixes: &[Prefix], sender: &Sender<'_>) -> Vec<u8> {
    let mut random = Random::new(sender.seed ^ 0xA77);
    let mut out = Vec::with_capacity(prefixes.len() * 12);
    for (chunk, next_hop) in prefixes.chunks(SHARED).zip(sender.next_hops.iter().cycle()) {
        let attributes = attributes(&mut random, sender);
        announce(&mut out, &attributes, *next_hop, chunk);
    }
    out
}

/// Encodes a message that announces prefixes with one attribute set, to which it adds the next hop.
pub(crate) fn announce(out: &mut Vec<u8>, attributes: &[u8], next_hop: IpAddr, prefixes: &[Prefix]) {
    let mut nlri = Vec::with_capacity(64);
    prefixes.iter().for_each(|p| p.write(&mut nlri));
    let mut all = Vec::with_capacity(attributes.len() + nlri.len() + 32);
    match next_hop {
        IpAddr::V4(hop) => {
            all.extend(attributes);
            all.extend([0x40, 3, 4]);
            all.extend(hop.octets());
        }
        IpAddr::V6(hop) => {
            let len = u16::try_from(nlri.len() + 21).unwrap_or(u16::MAX);
            all.extend([0x90, 14]);
            all.extend(len.to_be_bytes());
            all.extend([0, 2, 1, 16]);
            all.extend(hop.octets());
            all.push(0);
            all.append(&mut nlri);
            all.extend(attributes);
        }
    }
    let mut body = vec![0, 0];
    body.extend(u16::try_from(all.len()).unwrap_or(u16::MAX).to_be_bytes());
    body.extend(all);
    body.extend(nlri);
    message(out, 2, &body);
}

/// Encodes UPDATE messages that withdraw these prefixes, each filled to the maximum length.
pub(crate) fn withdrawals(prefixes: &[Prefix], v6: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(prefixes.len() * 4);
    let mut rest = prefixes;
    while !rest.is_empty() {
        let mut size = 0;
        let fits = rest.iter().take_while(|p| {
            size += p.size();
            size <= MESSAGE - 40
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        let mut field = Vec::with_capacity(MESSAGE);
        now.iter().for_each(|p| p.write(&mut field));
        let len = u16::try_from(field.len() + if v6 { 3 } else { 0 }).unwrap_or(u16::MAX).to_be_bytes();
        let mut body = Vec::with_capacity(MESSAGE);
        if v6 {
            let attributes = u16::try_from(field.len() + 7).unwrap_or(u16::MAX).to_be_bytes();
            body.extend([0, 0, attributes[0], attributes[1], 0x90, 15, len[0], len[1], 0, 2, 1]);
            body.extend(field);
        } else {
            body.extend(len);
            body.extend(field);
            body.extend([0, 0]);
        }
        message(&mut out, 2, &body);
        rest = later;
    }
    out
}

/// Generates ORIGIN, AS_PATH, MED, LOCAL_PREF and COMMUNITIES of one attribute set.
fn attributes(random: &mut Random, sender: &Sender<'_>) -> Vec<u8> {
    let mut path: Vec<u32> = sender.ebgp.then_some(sender.asn).into_iter().collect();
    let length = 1 + usize::try_from(random.below(6)).unwrap_or(0);
    while path.len() < length {
        let four_octets = random.below(8) == 0;
        let asn = if four_octets { 196_608 + random.below(40_000) } else { 1_000 + random.below(60_000) };
        path.push(u32::try_from(asn).unwrap_or(1));
    }
    let mut out = vec![0x40, 1, 1, 0, 0x40, 2];
    out.push(u8::try_from(2 + 4 * path.len()).unwrap_or(0));
    out.extend([2, u8::try_from(path.len()).unwrap_or(0)]);
    path.iter().for_each(|asn| out.extend(asn.to_be_bytes()));
    if random.below(4) == 0 {
        out.extend([0x80, 4, 4, 0, 0]);
        out.extend(u16::try_from(random.below(500)).unwrap_or(0).to_be_bytes());
    }
    if !sender.ebgp {
        out.extend([0x40, 5, 4, 0, 0, 0, 100]);
    }
    if random.below(4) != 0 {
        let count = 1 + u8::try_from(random.below(3)).unwrap_or(0);
        out.extend([0xc0, 8, 4 * count]);
        for _ in 0..count {
            out.extend(u16::try_from(1_000 + random.below(60_000)).unwrap_or(0).to_be_bytes());
            out.extend(u16::try_from(random.below(3_000)).unwrap_or(0).to_be_bytes());
        }
    }
    out
}

/// Encodes one iBGP UPDATE with only the mandatory attributes and LOCAL_PREF.
pub(crate) fn plain(prefixes: &[Prefix], next_hop: IpAddr) -> Vec<u8> {
    let mut out = Vec::new();
    announce(&mut out, &[0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 5, 4, 0, 0, 0, 100], next_hop, prefixes);
    out
}

/// Appends a message of this type to `out`.
pub(crate) fn message(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.extend([0xff; 16]);
    out.extend(u16::try_from(19 + body.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.push(kind);
    out.extend(body);
}
