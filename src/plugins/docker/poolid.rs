//! Pool ids of the driver protocol, `<space>/<pool>[/<sub-pool>]`, which contain all properties of a pool.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use tortie_config::key::{DockerItem, IpFamily};
use tortie_net::Cidr;

use super::error::Refusal;

/// Default address space for dockerd: pools of the data model if the subnet is one of them or none is given,
/// otherwise pools of this host only.
pub(super) const DEFAULT: &str = "default";
/// Address space with the pools of the data model.
pub(super) const GLOBAL: &str = "global";
/// Address space with pools of this host only.
pub(super) const LOCAL: &str = "local";

/// The address space of a pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SpaceName {
    /// Pools of the data model.
    Global,
    /// Pools of this host only, in an address space with this name.
    Local(String),
}

impl SpaceName {
    /// Parses the name of an address space other than [`DEFAULT`].
    pub(super) fn parse(text: &str) -> Result<Self, Refusal> {
        if text == GLOBAL {
            return Ok(Self::Global);
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let wrong = text.is_empty()
            || text.len() > 63
            || !text.bytes().all(plain)
            || !text.starts_with(|c: char| c.is_ascii_alphanumeric())
            || text == DEFAULT
            || DockerItem::RESERVED.contains(&text);
        if wrong {
            return Err(Refusal::new(format!(
                "address space `{}`: use {GLOBAL}, {LOCAL}, or a name of letters, digits, `.`, `_` and `-`, but none of {}",
                shorten(text),
                DockerItem::RESERVED.join(", ")
            )));
        }
        Ok(Self::Local(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Global => GLOBAL,
            Self::Local(name) => name,
        }
    }
}

/// Id of a pool in the driver protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolId {
    pub(super) space: SpaceName,
    /// Prefix of the pool; `0.0.0.0/0` and `::/0` stand for any pool of the data model with free addresses.
    pub(super) pool: Cidr,
    pub(super) sub: Option<Cidr>,
}

impl PoolId {
    /// Returns the id for all pools of the data model of a family.
    pub(super) fn any(family: IpFamily) -> Self {
        let pool = match family {
            IpFamily::V4 => Cidr::v4(Ipv4Addr::UNSPECIFIED, 0),
            IpFamily::V6 => Cidr::v6(Ipv6Addr::UNSPECIFIED, 0),
        };
        Self { space: SpaceName::Global, pool, sub: None }
    }

    /// True if this id stands for all pools of the data model.
    pub(super) fn is_any(&self) -> bool {
        self.pool.len() == 0
    }

    pub(super) fn family(&self) -> IpFamily {
        IpFamily::of_cidr(&self.pool)
    }

    /// Returns the part of the pool for requests without an address, with the first and last address that a
    /// container may have.
    pub(super) fn room(&self) -> (Cidr, IpAddr, IpAddr) {
        let part = self.sub.unwrap_or(self.pool);
        let (mut first, mut last) = (part.addr(), part.last());
        if self.pool.is_v4() && self.pool.len() <= 30 {
            if first == self.pool.addr() {
                first = part.nth(1).unwrap_or(first);
            }
            if last == self.pool.last() {
                let size = part.ordinal(last).unwrap_or(0);
                last = part.nth(size.saturating_sub(1)).unwrap_or(last);
            }
        } else if !self.pool.is_v4() && self.pool.len() <= 126 && first == self.pool.addr() {
            // The first address is the subnet-router anycast address, RFC 4291 2.6.1.
            first = part.nth(1).unwrap_or(first);
        }
        (part, first, last)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.space.as_str(), self.pool)?;
        self.sub.map_or(Ok(()), |sub| write!(f, "/{sub}"))
    }
}

impl FromStr for PoolId {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let unknown = || {
            Refusal::new(format!(
                "pool `{}` is unknown: the ids given here are SPACE/ADDRESS/LENGTH",
                shorten(text)
            ))
        };
        // Ids of networks that Calico's driver created.
        match text {
            "CalicoPoolIPv4" => return Ok(Self::any(IpFamily::V4)),
            "CalicoPoolIPv6" => return Ok(Self::any(IpFamily::V6)),
            _ => {}
        }
        let parts: Vec<&str> = text.split('/').collect();
        let cidr =
            |addr: &str, len: &str| Cidr::parse_strict(&format!("{addr}/{len}")).map_err(|_| unknown());
        let (space, pool, sub) = match parts.as_slice() {
            [space, addr, len] => (*space, cidr(addr, len)?, None),
            [space, addr, len, sub, sub_len] => (*space, cidr(addr, len)?, Some(cidr(sub, sub_len)?)),
            _ => return Err(unknown()),
        };
        let id = Self { space: SpaceName::parse(space).map_err(|_| unknown())?, pool, sub };
        let fits = id.sub.is_none_or(|sub| id.pool.covers(&sub) && !id.is_any());
        if fits && (!id.is_any() || id.space == SpaceName::Global) { Ok(id) } else { Err(unknown()) }
    }
}

/// Truncates text from a request for a message.
pub(super) fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(100).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for text in [
            "global/10.65.0.0/16",
            "local/172.30.1.0/24/172.30.1.128/25",
            "global/0.0.0.0/0",
            "global/::/0",
            "tenant-a/fd00:1::/64",
        ] {
            assert_eq!(text.parse::<PoolId>().unwrap().to_string(), text);
        }
        assert_eq!("CalicoPoolIPv6".parse::<PoolId>().unwrap(), PoolId::any(IpFamily::V6));
    }

    #[test]
    fn what_is_no_id_is_unknown() {
        let long = "x".repeat(1_000_000);
        for text in [
            "",
            "global",
            "global/10.65.0.0",
            "global/10.65.0.1/16",
            "default/10.65.0.0/16",
            "driver/10.65.0.0/16",
            "a b/10.65.0.0/16",
            "local/0.0.0.0/0",
            "global/0.0.0.0/0/10.0.0.0/8",
            "local/10.65.0.0/16/10.66.0.0/24",
            "local/10.65.0.0/16/fd00::/64",
            "/10.65.0.0/16",
            long.as_str(),
        ] {
            let error = text.parse::<PoolId>().unwrap_err().to_string();
            assert!(error.contains("unknown") && error.len() < 300, "{error}");
        }
    }

    #[test]
    fn the_room_of_a_subnet_leaves_out_its_own_addresses() {
        let room = |text: &str| {
            let (_, first, last) = text.parse::<PoolId>().unwrap().room();
            format!("{first} {last}")
        };
        assert_eq!(room("local/172.30.1.0/24"), "172.30.1.1 172.30.1.254");
        assert_eq!(room("local/172.30.1.0/24/172.30.1.128/25"), "172.30.1.128 172.30.1.254");
        assert_eq!(room("local/172.30.1.0/24/172.30.1.64/26"), "172.30.1.64 172.30.1.127");
        assert_eq!(room("local/172.30.1.0/31"), "172.30.1.0 172.30.1.1");
        assert_eq!(room("local/fd00:1::/126"), "fd00:1::1 fd00:1::3");
    }

    /// Generates ids of every form: the global space and local ones, both families, whole pools and parts.
    fn ids() -> impl Strategy<Value = PoolId> {
        let space = prop_oneof![
            Just(SpaceName::Global),
            "[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}"
                .prop_filter_map("reserved", |name| SpaceName::parse(&name).ok()),
        ];
        let cidr = |v4: bool, bits: u128, len: u8| {
            if v4 {
                Cidr::v4(Ipv4Addr::from_bits((bits >> 96) as u32), len % 33)
            } else {
                Cidr::v6(bits.into(), len % 129)
            }
        };
        // A pool, and the number of bits by which its part is longer, if there is one.
        let parts = (any::<bool>(), any::<u128>(), any::<u8>(), proptest::option::of(any::<u8>()));
        (space, parts).prop_map(move |(space, (v4, bits, len, part))| {
            let pool = cidr(v4, bits, len);
            // Only `any` has length 0; it has no part and is global.
            let pool = if pool.len() == 0 && space != SpaceName::Global { cidr(v4, bits, 1) } else { pool };
            let longer = |more: u8| pool.len() + more % (pool.max_len() - pool.len() + 1);
            let sub = part.filter(|_| pool.len() > 0).map(|more| cidr(v4, bits, longer(more)));
            PoolId { space, pool, sub }
        })
    }

    proptest! {
        #[test]
        fn every_id_is_read_as_it_is_written(id in ids()) {
            prop_assert_eq!(id.to_string().parse::<PoolId>().unwrap(), id);
        }

        /// Replaces, removes or inserts one character: an id that still parses has only one text form.
        #[test]
        fn a_damaged_id_is_an_id_or_a_refusal(
            id in ids(), at in any::<proptest::sample::Index>(), new in "[a-z0-9./:-]|\\PC", kind in 0..3
        ) {
            let mut text: Vec<char> = id.to_string().chars().collect();
            let at = at.index(text.len());
            let end = if kind == 0 { at } else { at + 1 };
            text.splice(at..end, new.chars().filter(|_| kind < 2));
            let text: String = text.into_iter().collect();
            if let Ok(id) = text.parse::<PoolId>() {
                prop_assert_eq!(id.to_string().parse::<PoolId>().unwrap(), id);
            }
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "[a-z0-9./:-]{0,40}|\\PC{0,40}") {
            let _ = text.parse::<PoolId>();
        }
    }
}
