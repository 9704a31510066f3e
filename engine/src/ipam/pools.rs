//! Selects the pools, and the ranges of pools, that may serve a request.

use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::{AssignmentMode, Pool};
use tortie_net::Cidr;

use super::{AddressRange, AddressUse, IpamError};
use crate::ipam::cluster::HostLabels;

/// Pools that IPAM uses, in key order.
pub(super) struct PoolSelection(Vec<CandidatePool>);

/// A pool, with the reasons that may speak against it for one request.
struct CandidatePool {
    pool: Pool,
    /// Use of the request, if the pool does not allow it.
    misuse: Option<AddressUse>,
    /// The pool's node selector matches the requesting host.
    serves_host: bool,
    /// Addresses are allocated without naming the pool.
    automatic: bool,
}

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
    /// Creates the selection of pools of the v1 model.
    pub(super) fn new(pools: Vec<Pool>) -> Self {
        let used = pools.into_iter().filter(|pool| pool.ipam);
        let all = used.map(|pool| CandidatePool { pool, misuse: None, serves_host: true, automatic: true });
        Self(all.collect())
    }

    /// Creates the selection of pools of a Calico 3 store for a host with these labels.
    pub(super) fn with_rules(
        pools: impl Iterator<Item = Pool>,
        labels: &HostLabels,
        address_use: AddressUse,
    ) -> Self {
        let candidate = |pool: Pool| CandidatePool {
            misuse: (!pool.allows(address_use.in_pools())).then_some(address_use),
            serves_host: pool.node_selector.as_ref().is_none_or(|selector| selector.matches(labels)),
            automatic: pool.assignment_mode == AssignmentMode::Automatic,
            pool,
        };
        Self(pools.map(candidate).collect())
    }

    fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter().map(|candidate| &candidate.pool)
    }

    fn names(&self, family: IpFamily) -> Vec<Cidr> {
        self.pools().map(|pool| pool.cidr).filter(|cidr| IpFamily::of_cidr(cidr) == family).collect()
    }

    /// Returns true if any pool shares an address with the prefix.
    pub(super) fn overlap(&self, cidr: &Cidr) -> bool {
        self.pools().any(|pool| pool.cidr.overlaps(cidr))
    }

    /// Returns the pool of a block or address: the most specific one, since pools may be nested.
    pub(super) fn of(&self, cidr: &Cidr) -> Option<&Pool> {
        self.candidate(cidr).map(|candidate| &candidate.pool)
    }

    fn candidate(&self, cidr: &Cidr) -> Option<&CandidatePool> {
        let covering = self.0.iter().filter(|candidate| candidate.pool.cidr.covers(cidr));
        covering.max_by_key(|candidate| candidate.pool.cidr.len())
    }

    /// Returns true if the pool of a block no longer serves the host.
    pub(super) fn is_deselected(&self, block: &Cidr) -> bool {
        self.candidate(block).is_some_and(|candidate| !candidate.serves_host)
    }

    /// Returns the enabled pool of an address, or the reason why there is none.
    pub(super) fn enabled_of(&self, addr: IpAddr) -> Result<&Pool, IpamError> {
        match self.candidate(&Cidr::host(addr)) {
            Some(candidate) => candidate.check().map(|()| &candidate.pool),
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
            match self.0.iter().find(|candidate| candidate.pool.cidr == *cidr) {
                None => return Err(IpamError::UnknownPool { pool: *cidr, pools: self.names(family) }),
                Some(candidate) => candidate.check()?,
            }
        }
        let of_family = self.0.iter().filter(|candidate| {
            IpFamily::of_cidr(&candidate.pool.cidr) == family && !candidate.pool.disabled
        });
        Ok(of_family
            .filter(|candidate| match asked {
                [] => candidate.is_automatic(),
                asked => asked.contains(&candidate.pool.cidr),
            })
            .map(|candidate| PoolRange::whole(&candidate.pool))
            .collect())
    }

    /// Returns the error for a family without a pool that serves the host.
    pub(super) fn none_of(&self, family: IpFamily, host: &str) -> IpamError {
        let enabled = |candidate: &&CandidatePool| {
            IpFamily::of_cidr(&candidate.pool.cidr) == family && !candidate.pool.disabled
        };
        let Some(candidate) = self.0.iter().find(enabled) else { return IpamError::NoPools(family) };
        let cidr = candidate.pool.cidr;
        let why = if !candidate.serves_host {
            format!(
                "the `nodeSelector` of {cidr} does not match its Node; change it, or the labels of the Node"
            )
        } else if let Some(misuse) = candidate.misuse {
            format!("the `allowedUses` of {cidr} do not name {}; add it, or add a pool", misuse.as_str())
        } else {
            format!("{cidr} is for requests that name it (`assignmentMode: Manual`); name it, or add a pool")
        };
        IpamError::NoFittingPool { family, host: host.to_owned(), why }
    }

    /// Returns the disabled pools of a family. Addresses in blocks that the host still has there are
    /// allocated.
    pub(super) fn disabled(&self, family: IpFamily) -> Vec<PoolRange> {
        let of_family = self.pools().filter(|pool| IpFamily::of_cidr(&pool.cidr) == family);
        of_family.filter(|pool| pool.disabled).map(PoolRange::whole).collect()
    }

    /// Returns the parts of enabled pools that lie within a range.
    pub(super) fn inside(&self, range: &AddressRange) -> Result<Vec<PoolRange>, IpamError> {
        let (first, last) = range.ends()?;
        let usable = self.0.iter().filter(|candidate| candidate.check().is_ok());
        let enabled =
            usable.map(|candidate| &candidate.pool).filter(|pool| pool.cidr.overlaps(&range.subnet));
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
            .pools()
            .find(|pool| pool.disabled && ranges.iter().any(|range| pool.cidr.covers(&range.subnet)));
        match disabled {
            Some(pool) => IpamError::Disabled(pool.cidr),
            None => IpamError::OutsidePools { what: names(ranges), pools: self.names(family) },
        }
    }
}

impl CandidatePool {
    /// Returns an error if the pool is not enabled for the use of the request.
    fn check(&self) -> Result<(), IpamError> {
        match self.misuse {
            _ if self.pool.disabled => Err(IpamError::Disabled(self.pool.cidr)),
            Some(misuse) => Err(IpamError::PoolUse { pool: self.pool.cidr, use_name: misuse.as_str() }),
            None => Ok(()),
        }
    }

    /// Returns true if the pool serves requests that do not name it.
    fn is_automatic(&self) -> bool {
        self.misuse.is_none() && self.serves_host && self.automatic
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
