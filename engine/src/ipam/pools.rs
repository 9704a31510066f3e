//! Selects the pools, and the ranges of pools, that may serve a request.

use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::Pool;
use tortie_net::Cidr;

use super::{AddressRange, IpamError};

/// Pools that IPAM uses, in key order.
pub(super) struct PoolSelection(Vec<Pool>);

/// A range of addresses within a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolRange {
    pub(super) pool: Pool,
    pub(super) first: IpAddr,
    pub(super) last: IpAddr,
}

impl PoolRange {
    pub(super) fn whole(pool: &Pool) -> Self {
        Self { first: pool.cidr.addr(), last: pool.cidr.last(), pool: pool.clone() }
    }

    pub(super) fn contains(&self, addr: IpAddr) -> bool {
        (self.first..=self.last).contains(&addr)
    }

    /// Returns true if the block has an address in the range.
    pub(super) fn touches(&self, block: &Cidr) -> bool {
        self.pool.cidr.covers(block) && block.addr() <= self.last && self.first <= block.last()
    }
}

impl PoolSelection {
    pub(super) fn new(pools: Vec<Pool>) -> Self {
        Self(pools.into_iter().filter(|pool| pool.ipam).collect())
    }

    fn names(&self, family: IpFamily) -> Vec<Cidr> {
        self.0.iter().map(|pool| pool.cidr).filter(|cidr| IpFamily::of_cidr(cidr) == family).collect()
    }

    /// Returns true if any pool shares an address with the prefix.
    pub(super) fn overlap(&self, cidr: &Cidr) -> bool {
        self.0.iter().any(|pool| pool.cidr.overlaps(cidr))
    }

    /// Returns the pool of a block or address: the most specific one, since pools may be nested.
    pub(super) fn of(&self, cidr: &Cidr) -> Option<&Pool> {
        self.0.iter().filter(|pool| pool.cidr.covers(cidr)).max_by_key(|pool| pool.cidr.len())
    }

    /// Returns the enabled pool of an address, or the reason why there is none.
    pub(super) fn enabled_of(&self, addr: IpAddr) -> Result<&Pool, IpamError> {
        match self.of(&Cidr::host(addr)) {
            Some(pool) if pool.disabled => Err(IpamError::Disabled(pool.cidr)),
            Some(pool) => Ok(pool),
            None => {
                Err(IpamError::OutsidePools { what: addr.to_string(), pools: self.names(IpFamily::of(addr)) })
            }
        }
    }

    /// Returns all enabled pools of a family, or the requested ones, each of which must exist and be enabled.
    pub(super) fn chosen(&self, family: IpFamily, asked: &[Cidr]) -> Result<Vec<PoolRange>, IpamError> {
        for cidr in asked {
            if IpFamily::of_cidr(cidr) != family {
                let text =
                    format!("pool {cidr} is of the other address family; name it in requests of that family");
                return Err(IpamError::BadRequest(text));
            }
            match self.0.iter().find(|pool| pool.cidr == *cidr) {
                None => return Err(IpamError::UnknownPool { pool: *cidr, pools: self.names(family) }),
                Some(pool) if pool.disabled => return Err(IpamError::Disabled(*cidr)),
                Some(_) => {}
            }
        }
        let of_family =
            self.0.iter().filter(|pool| IpFamily::of_cidr(&pool.cidr) == family && !pool.disabled);
        Ok(of_family
            .filter(|pool| asked.is_empty() || asked.contains(&pool.cidr))
            .map(PoolRange::whole)
            .collect())
    }

    /// Returns the disabled pools of a family. Addresses in blocks that the host still has there are
    /// allocated.
    pub(super) fn disabled(&self, family: IpFamily) -> Vec<PoolRange> {
        let of_family = self.0.iter().filter(|pool| IpFamily::of_cidr(&pool.cidr) == family);
        of_family.filter(|pool| pool.disabled).map(PoolRange::whole).collect()
    }

    /// Returns the parts of enabled pools that lie within a range.
    pub(super) fn inside(&self, range: &AddressRange) -> Result<Vec<PoolRange>, IpamError> {
        let (first, last) = range.ends()?;
        let enabled = self.0.iter().filter(|pool| !pool.disabled && pool.cidr.overlaps(&range.subnet));
        let zones = enabled.map(|pool| PoolRange {
            first: first.max(pool.cidr.addr()),
            last: last.min(pool.cidr.last()),
            pool: pool.clone(),
        });
        Ok(zones.filter(|zone| zone.first <= zone.last).collect())
    }

    /// Returns the error for ranges that are all outside of the enabled pools.
    pub(super) fn outside(&self, ranges: &[AddressRange]) -> IpamError {
        let family = ranges.first().map_or(IpFamily::V4, |range| IpFamily::of_cidr(&range.subnet));
        let disabled = self
            .0
            .iter()
            .find(|pool| pool.disabled && ranges.iter().any(|range| pool.cidr.covers(&range.subnet)));
        match disabled {
            Some(pool) => IpamError::Disabled(pool.cidr),
            None => IpamError::OutsidePools { what: names(ranges), pools: self.names(family) },
        }
    }
}

impl AddressRange {
    /// Returns the range of a whole subnet.
    #[must_use]
    pub fn of(subnet: Cidr) -> Self {
        Self { subnet, first: None, last: None, except: Vec::new() }
    }

    fn ends(&self) -> Result<(IpAddr, IpAddr), IpamError> {
        let (first, last) =
            (self.first.unwrap_or(self.subnet.addr()), self.last.unwrap_or(self.subnet.last()));
        if !self.subnet.contains(first) || !self.subnet.contains(last) || first > last {
            let text = format!(
                "{first} to {last} is not a range of {}; give its first and last address",
                self.subnet
            );
            return Err(IpamError::BadRequest(text));
        }
        Ok((first, last))
    }
}

/// Describes the ranges for people.
pub(super) fn names(ranges: &[AddressRange]) -> String {
    let name = |range: &AddressRange| match (range.first, range.last) {
        (None, None) => format!("range {}", range.subnet),
        (first, last) => format!(
            "range {}-{} of {}",
            first.unwrap_or(range.subnet.addr()),
            last.unwrap_or(range.subnet.last()),
            range.subnet
        ),
    };
    ranges.iter().map(name).collect::<Vec<_>>().join(", ")
}
