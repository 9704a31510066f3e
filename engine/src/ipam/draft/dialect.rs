//! Where the v1 model and Calico 3 differ: readiness, pools and reservations, and how blocks are created, claimed
//! and released.

use tortie_config::key::Key;
use tortie_config::resource::{Attribute, Block, BlockAffinity, IpamConfig, Pool, ValueError};
use tortie_net::Cidr;

use super::Draft;
use crate::ipam::cluster::{self, Cluster, HostLabels};
use crate::ipam::cooldown;
use crate::ipam::keyspace::Place;
use crate::ipam::pools::PoolSelection;
use crate::ipam::reads::{PlanStop, ReadValue};
use crate::ipam::{AddressUse, IpamError};

impl Draft<'_> {
    /// Returns the objects of a Calico 3 store.
    pub(in crate::ipam) fn cluster(&self) -> Result<&Cluster, PlanStop> {
        self.state.request_key([], cluster::prefixes())?;
        Ok(self.cluster.get_or_init(|| Cluster::of(self.state)))
    }

    /// Returns an error unless the data model is ready: the key `Ready` is absent or `true`, or the
    /// ClusterInformation of a Calico 3 store says so.
    pub(in crate::ipam) fn ready(&self) -> Result<(), PlanStop> {
        if self.keyspace.is_calico_3() {
            return if self.cluster()?.is_ready() { Ok(()) } else { Err(IpamError::ClusterNotReady.into()) };
        }
        match self.state.read(&Key::Ready.to_string())? {
            Some(ReadValue { value, .. }) if value != b"true" => Err(IpamError::NotReady.into()),
            _ => Ok(()),
        }
    }

    /// Returns the pools, with what speaks against each of them for this host and use.
    pub(in crate::ipam) fn pool_selection(
        &self,
        host: &str,
        address_use: AddressUse,
    ) -> Result<PoolSelection, PlanStop> {
        if !self.keyspace.is_calico_3() {
            return Ok(PoolSelection::new(self.pools()?));
        }
        let Some(labels) = cluster::host_labels(self.state, host)? else {
            return Err(IpamError::NoNode { host: host.to_owned() }.into());
        };
        Ok(PoolSelection::with_rules(self.cluster()?.pools(), &labels, address_use))
    }

    /// Returns the enabled pools whatever they are for.
    pub(in crate::ipam) fn any_pools(&self) -> Result<PoolSelection, PlanStop> {
        if !self.keyspace.is_calico_3() {
            return Ok(PoolSelection::new(self.pools()?));
        }
        let pools = self.cluster()?.pools();
        Ok(PoolSelection::with_rules(pools, &HostLabels::new(), AddressUse::default()))
    }

    /// Returns the prefixes whose addresses automatic assignment skips.
    pub(in crate::ipam) fn reserved(&self, config: &IpamConfig) -> Result<Vec<Cidr>, PlanStop> {
        let mut reserved = config.reserved.clone();
        if self.keyspace.is_calico_3() {
            reserved.extend(self.cluster()?.reserved());
        }
        Ok(reserved)
    }

    /// Returns all pools that can be parsed, in key order.
    fn pools(&self) -> Result<Vec<Pool>, PlanStop> {
        let prefix = self.keyspace.pools();
        self.state.request_key([], [prefix.clone()])?;
        let pools = self.state.existing(&prefix).filter_map(|(key, known)| match self.keyspace.place(key) {
            Some(Place::Pool(cidr)) => Pool::parse(cidr, &known.value).ok(),
            _ => None,
        });
        Ok(pools.collect())
    }

    /// Prepares a stored block for a change: in a Calico 3 store it counts its writes, and addresses whose
    /// cooling down is over are free.
    pub(super) fn at_present(&self, mut block: Block) -> Result<Block, PlanStop> {
        if self.keyspace.is_calico_3() {
            block.start_sequence();
            if block.cooling().next().is_some() {
                cooldown::sweep(&mut block, self.state.now(), &self.config()?);
            }
        }
        Ok(block)
    }

    /// Creates an empty block with this owner.
    pub(in crate::ipam) fn new_block(
        &self,
        cidr: Cidr,
        host: &str,
        config: &IpamConfig,
    ) -> Result<Block, ValueError> {
        let owner = BlockAffinity::Host(host.to_owned());
        if !self.keyspace.is_calico_3() {
            return Block::new(cidr, owner, config.strict_affinity);
        }
        let mut block = Block::numbered(cidr, owner, cooldown::first_sequence(self.state.now()))?;
        block.set_claim_time(cooldown::text(self.state.now()));
        Ok(block)
    }

    /// Makes a host the owner of an existing block.
    pub(in crate::ipam) fn take_ownership(&self, block: &mut Block, host: &str) {
        block.set_affinity(BlockAffinity::Host(host.to_owned()));
        if self.keyspace.is_calico_3() {
            block.set_claim_time(cooldown::text(self.state.now()));
        }
    }

    /// Releases an address of a block; in a Calico 3 store it may have to cool down. Returns `None` if it is not
    /// allocated.
    pub(in crate::ipam) fn release(
        &self,
        block: &mut Block,
        ordinal: u32,
    ) -> Result<Option<Attribute>, PlanStop> {
        if self.keyspace.is_calico_3() {
            if let BlockAffinity::Other(owner) = block.affinity() {
                let text = format!("block {} belongs to {owner}, which manages it", block.cidr());
                return Err(IpamError::Refused(text).into());
            }
            if cooldown::is_needed(&self.config()?) {
                return Ok(block.cool_down(ordinal, &cooldown::text(self.state.now())));
            }
        }
        Ok(block.release(ordinal))
    }

    /// Returns the maximum number of blocks per host and family, if there is one. Calico 3 has a default.
    pub(in crate::ipam) fn block_limit(&self, config: &IpamConfig) -> Option<u32> {
        const CALICO_3: u32 = 20;
        config.max_blocks_per_host.or(self.keyspace.is_calico_3().then_some(CALICO_3))
    }
}
