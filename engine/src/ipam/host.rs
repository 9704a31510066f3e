//! The plans about a host and its blocks.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::{Attribute, Block, BlockAffinity};
use tortie_net::Cidr;

use super::assign::ordinal;
use super::check::Picture;
use super::pools::Pools;
use super::{Claims, IpamError, Unclaims, release};
use crate::ipam::draft::{self, Desk};
use crate::ipam::keyspace::Space;
use crate::ipam::reads::{Next, State, Stop};

/// Blocks of one call of `claim` at most.
const MOST: u32 = 4096;

/// The blocks that a claim of `cidr` is about.
pub(super) fn blocks_in(space: &Space, state: &State, cidr: Cidr) -> Next<Vec<Cidr>> {
    draft::run(space, state, |desk| {
        desk.state.want([Key::Ready.to_string()], [desk.space.pools()])?;
        desk.ready()?;
        let pools = Pools::new(desk.pools()?);
        let pool = pools.enabled_of(cidr.addr())?;
        if !pool.cidr.covers(&cidr) {
            let text = format!("{cidr} is larger than pool {}; claim the pool or a part of it", pool.cidr);
            return Err(IpamError::BadRequest(text).into());
        }
        let len = pool.block_len();
        if cidr.len() > len {
            let text = format!("{cidr} is less than a block: the blocks of pool {} are /{len}", pool.cidr);
            return Err(IpamError::BadRequest(text).into());
        }
        let count = 1u32.checked_shl(u32::from(len - cidr.len())).filter(|count| *count <= MOST);
        let Some(count) = count else {
            let text = format!("{cidr} has more than {MOST} blocks; claim parts of it");
            return Err(IpamError::BadRequest(text).into());
        };
        let step = u32::from(cidr.max_len() - len);
        let nth =
            |n: u32| cidr.nth(u128::from(n).checked_shl(step)?).and_then(|addr| Cidr::new(addr, len).ok());
        Ok((0..count).filter_map(nth).collect())
    })
}

/// Claims one block.
pub(super) fn claim(space: &Space, state: &State, host: &str, cidr: Cidr) -> Next<Claims> {
    draft::run(space, state, |desk| {
        let keys = [Key::Ready.to_string(), space.config(), space.block(&cidr)];
        desk.state.want(keys, [space.pools(), space.affinities(host)])?;
        desk.ready()?;
        let config = desk.config()?;
        let pools = Pools::new(desk.pools()?);
        let pool = pools.enabled_of(cidr.addr())?;
        let mut claims = Claims::default();
        let others = desk.overlapping(&cidr)?;
        let block = match others.as_slice() {
            [] => {
                let own = desk.affinities_of(host)?;
                let family = IpFamily::of_cidr(&cidr);
                let own = own.iter().filter(|own| IpFamily::of_cidr(own) == family && **own != cidr).count();
                if let Some(limit) = config.max_blocks_per_host.filter(|limit| own >= *limit as usize) {
                    return Err(IpamError::BlockLimit { host: host.to_owned(), limit }.into());
                }
                let owner = BlockAffinity::Host(host.to_owned());
                let block = Block::new(cidr, owner, config.strict_affinity);
                block.map_err(|error| IpamError::BadRequest(error.to_string()))?
            }
            [same] if *same == cidr => {
                let Some(mut block) = desk.block(same)? else { return Ok(claims) };
                match block.affinity() {
                    BlockAffinity::None => block.set_affinity(BlockAffinity::Host(host.to_owned())),
                    BlockAffinity::Host(owner) if owner == host => {}
                    BlockAffinity::Host(owner) | BlockAffinity::Other(owner) => {
                        claims.refused.push((cidr, owner.clone()));
                        return Ok(claims);
                    }
                }
                block
            }
            [other, ..] => {
                claims.refused.push((cidr, format!("block {other}, which overlaps it")));
                return Ok(claims);
            }
        };
        desk.confirm(host, &cidr)?;
        desk.guard_pool(&pool.cidr);
        desk.guard_config();
        desk.put_block(block);
        claims.claimed.push(cidr);
        Ok(claims)
    })
}

/// The host's affinities.
pub(super) fn affinities(space: &Space, state: &State, host: &str) -> Next<Vec<Cidr>> {
    draft::run(space, state, |desk| desk.affinities_of(host))
}

/// Gives one block up. It is deleted when it is empty; its addresses keep it alive without an owner else.
pub(super) fn unclaim(space: &Space, state: &State, host: &str, cidr: Cidr) -> Next<Unclaims> {
    draft::run(space, state, |desk| {
        desk.state.want([space.affinity(host, &cidr), space.block(&cidr)], [])?;
        let mut unclaims = Unclaims::default();
        match desk.block(&cidr)? {
            Some(mut block) if block.host() == Some(host) => {
                block.set_affinity(BlockAffinity::None);
                let list = if block.is_empty() { &mut unclaims.deleted } else { &mut unclaims.kept };
                list.push(cidr);
                desk.put_or_delete_block(block);
            }
            // Somebody else's: the affinity was stale.
            Some(_) => {}
            None => unclaims.deleted.push(cidr),
        }
        desk.delete_affinity(host, &cidr);
        Ok(unclaims)
    })
}

/// An address, and what has to be remembered of it if it is still the same allocation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Holding {
    pub(super) addr: IpAddr,
    pub(super) block: Cidr,
    pub(super) attribute: Attribute,
}

/// What a host holds: what says so itself, what its endpoints have, and in its blocks what nobody else has.
pub(super) fn holdings(picture: &Picture, host: &str) -> Vec<Holding> {
    let mut users: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for endpoint in &picture.endpoints {
        for net in endpoint.nets.iter().filter(|net| net.is_host()) {
            users.entry(net.addr()).or_default().push(&endpoint.host);
        }
    }
    let tunnel = format!("ipip-tunnel-addr-{host}");
    let mut holdings = Vec::new();
    for (cidr, stored) in &picture.blocks {
        let block = &stored.value;
        for (ordinal, attribute) in block.allocated() {
            let Some(addr) = cidr.nth(ordinal.into()) else { continue };
            let his = match (attribute.get("node"), users.get(&addr)) {
                (Some(node), _) => node == host,
                (None, Some(users)) => users.contains(&host),
                (None, None) => block.host() == Some(host) || attribute.handle.as_deref() == Some(&tunnel),
            };
            if his {
                holdings.push(Holding { addr, block: *cidr, attribute: attribute.clone() });
            }
        }
    }
    holdings
}

/// Releases allocations that are still the same; gives the addresses.
pub(super) fn drop_holdings(space: &Space, state: &State, holdings: &[Holding]) -> Next<Vec<IpAddr>> {
    draft::run(space, state, |desk| drop_same(desk, holdings))
}

pub(super) fn drop_same(desk: &mut Desk<'_>, holdings: &[Holding]) -> Result<Vec<IpAddr>, Stop> {
    let mut blocks: BTreeMap<Cidr, (Block, Vec<Attribute>)> = BTreeMap::new();
    let mut released = Vec::new();
    desk.state.want(holdings.iter().map(|holding| desk.space.block(&holding.block)), [])?;
    for holding in holdings {
        if let std::collections::btree_map::Entry::Vacant(vacant) = blocks.entry(holding.block) {
            let Some(block) = desk.block(&holding.block)? else { continue };
            vacant.insert((block, Vec::new()));
        }
        let Some((block, gone)) = blocks.get_mut(&holding.block) else { continue };
        let Some(ordinal) = ordinal(block, holding.addr) else { continue };
        if block.allocation(ordinal) == Some(&holding.attribute) {
            gone.extend(block.release(ordinal));
            released.push(holding.addr);
        }
    }
    release::give_back(desk, blocks)?;
    Ok(released)
}
