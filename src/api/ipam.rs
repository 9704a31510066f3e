//! JSON of pools, blocks and addresses, computed from an [`IpamState`]: the same for the command line, which
//! reads the store itself, and for the agent's API.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Serialize;
use serde_json::{Map, Value};
use tortie_config::resource::{AffinityState, Attribute, Block, IpipMode, Pool};
use tortie_net::Cidr;

use tortie_engine::ipam::check::{IpamState, StoredValue};

/// A pool with its usage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolRow {
    /// Prefix of the pool.
    pub pool: Cidr,
    /// State of the pool: `enabled`, `disabled` or `no-ipam`.
    pub state: &'static str,
    /// IPIP mode, which decides the packets to tunnel; `None` disables the tunnel.
    pub ipip: Option<&'static str>,
    /// VXLAN mode, which decides the packets to tunnel; `None` disables the tunnel.
    pub vxlan: Option<&'static str>,
    /// True if packets from the pool to addresses outside of all pools are masqueraded.
    pub masquerade: bool,
    /// Prefix length of its blocks.
    pub block_size: u8,
    /// Number of existing blocks.
    pub blocks: usize,
    /// Number of allocated addresses.
    pub used: usize,
    /// Number of free addresses in existing blocks.
    pub free_in_blocks: usize,
    /// Number of addresses allocated by other hosts than the owners of the blocks.
    pub borrowed: usize,
    /// Number of addresses in the pool; `None` above 2^53, which JSON readers cannot represent.
    pub addresses: Option<u64>,
}

/// A block with its usage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockRow {
    /// Prefix of the block.
    pub block: Cidr,
    /// Pool that contains the block.
    pub pool: Option<Cidr>,
    /// Host that the block's value names as owner.
    pub owner: Option<String>,
    /// State of the owner's affinity: `confirmed`, `pending`, `pendingDeletion`, `no-affinity` or `no-owner`.
    pub state: &'static str,
    /// Number of allocated addresses.
    pub used: usize,
    /// Number of free addresses.
    pub free: usize,
    /// Number of addresses allocated by other hosts than the owner.
    pub borrowed: usize,
    /// True if no other host may allocate from the block (strict affinity).
    pub strict: bool,
    /// Store revision of the block.
    pub revision: u64,
}

/// A block with the allocations of its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockView {
    /// Prefix of the block.
    pub block: Cidr,
    /// Pool that contains the block.
    pub pool: Option<Cidr>,
    /// Host that the block's value names as owner.
    pub owner: Option<String>,
    /// State of the owner's affinity, as in [`BlockRow`].
    pub state: &'static str,
    /// True if no other host may allocate from the block (strict affinity).
    pub strict: bool,
    /// Store revision of the block.
    pub revision: u64,
    /// Number of free addresses.
    pub free: usize,
    /// Allocated addresses, in order.
    pub allocations: Vec<Allocation>,
}

/// An allocated address with its handle and users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// The allocated address.
    pub address: IpAddr,
    /// Handle that releases the address.
    pub handle: Option<String>,
    /// Attributes that were stored with the allocation: `node`, `timestamp` and others.
    pub attributes: Map<String, Value>,
    /// Endpoints that use the address.
    pub endpoints: Vec<Holder>,
    /// Hosts that use the address for their tunnel.
    pub tunnel_of: Vec<String>,
}

/// An endpoint that uses an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Name of the endpoint.
    pub name: String,
    /// Host of the endpoint.
    pub host: String,
    /// Full store key.
    pub key: String,
}

/// Returns all pools, ordered by prefix.
#[must_use]
pub fn pools(ipam_state: &IpamState) -> Vec<PoolRow> {
    let (none, blocks) = (Vec::new(), by_pool(ipam_state));
    let row = |(cidr, pool): (&Cidr, &StoredValue<Pool>)| {
        pool_row(&pool.value, blocks.get(&Some(*cidr)).unwrap_or(&none))
    };
    ipam_state.pools.iter().map(row).collect()
}

/// Returns the number of blocks outside of all pools.
#[must_use]
pub fn in_no_pool(ipam_state: &IpamState) -> usize {
    by_pool(ipam_state).get(&None).map_or(0, Vec::len)
}

/// Groups the blocks by pool; blocks outside of all pools are under `None`.
fn by_pool(ipam_state: &IpamState) -> BTreeMap<Option<Cidr>, Vec<&Block>> {
    let mut found: BTreeMap<Option<Cidr>, Vec<&Block>> = BTreeMap::new();
    for (cidr, block) in &ipam_state.blocks {
        let pool = ipam_state.pool_of(cidr.addr()).map(|pool| pool.cidr);
        found.entry(pool).or_default().push(&block.value);
    }
    found
}

fn pool_row(pool: &Pool, blocks: &[&Block]) -> PoolRow {
    PoolRow {
        pool: pool.cidr,
        state: match pool {
            // A disabled pool of Calico 3 is also one that IPAM does not use.
            Pool { disabled: true, .. } => "disabled",
            Pool { ipam: false, .. } => "no-ipam",
            _ => "enabled",
        },
        ipip: pool.ipip.as_ref().map(|ipip| ipip.mode.as_str()),
        vxlan: pool.vxlan.map(IpipMode::as_str),
        masquerade: pool.masquerade,
        block_size: pool.block_len(),
        blocks: blocks.len(),
        used: blocks.iter().map(|block| used(block)).sum(),
        free_in_blocks: blocks.iter().map(|block| block.free().len()).sum(),
        borrowed: blocks.iter().map(|block| borrowed(block)).sum(),
        addresses: addresses(pool.cidr),
    }
}

/// Number of addresses in a prefix; `None` above 2^53, which JSON readers cannot represent.
fn addresses(cidr: Cidr) -> Option<u64> {
    let bits = u32::from(cidr.max_len() - cidr.len());
    (bits <= 53).then(|| 1u64 << bits)
}

fn used(block: &Block) -> usize {
    block.size() - block.free().len()
}

fn borrowed(block: &Block) -> usize {
    let owner = block.host();
    let foreign = |(_, attribute): &(u32, &Attribute)| matches!((attribute.get("node"), owner), (Some(node), Some(owner)) if node != owner);
    block.allocated().filter(foreign).count()
}

/// Returns the state of the owner's affinity to the block, as [`BlockRow::state`] lists it.
#[must_use]
pub fn state(ipam_state: &IpamState, block: &Block) -> &'static str {
    let Some(owner) = block.host() else { return "no-owner" };
    match ipam_state.affinities.get(&(owner.to_owned(), block.cidr())) {
        Some(affinity) => affinity.value.state.map_or("confirmed", AffinityState::as_str),
        None => "no-affinity",
    }
}

/// Returns the blocks of one pool or all pools, and of one owner or all owners, the fullest first.
#[must_use]
pub fn blocks(ipam_state: &IpamState, pool: Option<Cidr>, owner: Option<&str>) -> Vec<BlockRow> {
    let row = |StoredValue { value: block, revision }: &StoredValue<Block>| BlockRow {
        block: block.cidr(),
        pool: ipam_state.pool_of(block.cidr().addr()).map(|pool| pool.cidr),
        owner: block.host().map(str::to_owned),
        state: state(ipam_state, block),
        used: used(block),
        free: block.free().len(),
        borrowed: borrowed(block),
        strict: block.strict(),
        revision: *revision,
    };
    let mut rows: Vec<BlockRow> = ipam_state.blocks.values().map(row).collect();
    rows.retain(|r| {
        pool.is_none_or(|pool| r.pool == Some(pool)) && owner.is_none_or(|o| r.owner.as_deref() == Some(o))
    });
    // Fullest first: used / size, compared without a division.
    rows.sort_by(|a, b| {
        let cross = (b.used * (a.used + a.free)).cmp(&(a.used * (b.used + b.free)));
        cross.then_with(|| a.block.cmp(&b.block))
    });
    rows
}

/// Returns one block with its addresses, or `None` if it does not exist; `holders` maps addresses to the
/// endpoints that use them.
#[must_use]
pub fn block(
    ipam_state: &IpamState,
    cidr: Cidr,
    mut holders: BTreeMap<IpAddr, Vec<Holder>>,
) -> Option<BlockView> {
    let StoredValue { value: block, revision } = ipam_state.blocks.get(&cidr)?;
    let tunnel_of = |addr: IpAddr| {
        let of = ipam_state.tunnels.iter().filter(|(_, tunnel)| *tunnel == addr);
        of.map(|(host, _)| host.clone()).collect()
    };
    let allocation = |(ordinal, attribute): (u32, &Attribute)| {
        let address = cidr.nth(ordinal.into())?;
        Some(Allocation {
            address,
            handle: attribute.handle.clone(),
            attributes: attribute.secondary.clone().unwrap_or_default(),
            endpoints: holders.remove(&address).unwrap_or_default(),
            tunnel_of: tunnel_of(address),
        })
    };
    Some(BlockView {
        block: cidr,
        pool: ipam_state.pool_of(cidr.addr()).map(|pool| pool.cidr),
        owner: block.host().map(str::to_owned),
        state: state(ipam_state, block),
        strict: block.strict(),
        revision: *revision,
        free: block.free().len(),
        allocations: block.allocated().filter_map(allocation).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pools_have_no_number() {
        assert_eq!(addresses("10.0.0.0/16".parse().unwrap()), Some(65_536));
        assert_eq!(addresses("2001:db8::/64".parse().unwrap()), None);
        assert_eq!(addresses("2001:db8::/75".parse().unwrap()), Some(1 << 53));
    }
}
