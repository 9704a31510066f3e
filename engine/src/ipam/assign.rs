//! The plan of a request: own blocks first, then new ones, then others'.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::{AffinityState, Attribute, Block, BlockAffinity, Handle, IpamConfig};
use tortie_net::Cidr;

use super::pools::{Pools, Zone, names};
use super::{Assignment, IpamError, Request, Want};
use crate::ipam::block_order::Walk;
use crate::ipam::draft;
use crate::ipam::draft::Desk;
use crate::ipam::keyspace::Space;
use crate::ipam::reads::{Next, State, Stop};

/// Most addresses of one request: what one transaction holds.
pub(super) const MOST: u32 = 4096;

/// Plans a request. `tried` are the answers of attempts of which nobody knows whether they were committed.
pub(super) fn plan(
    space: &Space,
    state: &State,
    request: &Request,
    tried: &[Vec<Assignment>],
) -> Next<Vec<Assignment>> {
    draft::run(space, state, |desk| {
        for answer in tried {
            if stands(desk, request, answer)? {
                return Ok(answer.clone());
            }
        }
        Taker::new(desk, request)?.take()
    })
}

/// Whether an attempt was committed after all: the addresses are held as this request holds them.
fn stands(desk: &Desk<'_>, request: &Request, answer: &[Assignment]) -> Result<bool, Stop> {
    for given in answer {
        let attribute = attribute(request, given.addr);
        let block = desk.block(&given.block)?;
        let held = block.as_ref().and_then(|block| block.allocation(ordinal(block, given.addr)?));
        if held != Some(&attribute) {
            return Ok(false);
        }
    }
    Ok(!answer.is_empty())
}

pub(super) fn ordinal(block: &Block, addr: IpAddr) -> Option<u32> {
    u32::try_from(block.cidr().ordinal(addr)?).ok()
}

fn attribute(request: &Request, addr: IpAddr) -> Attribute {
    let handle = match &request.handle {
        Some(handle) if request.handle_per_address => Some(format!("{handle}{addr}")),
        handle => handle.clone(),
    };
    let secondary = Some(request.attributes.clone()).filter(|attributes| !attributes.is_empty());
    Attribute { handle, secondary, ..Attribute::default() }
}

/// Blocks that are read at once when it takes many.
const AHEAD: usize = 100;

/// What is asked of pools.
struct Ask<'a> {
    family: IpFamily,
    count: u32,
    /// Where addresses may come from, in this order.
    zones: Vec<Zone>,
    /// Where own blocks are used up, but none is claimed.
    leftover: Vec<Zone>,
    except: &'a [IpAddr],
}

/// How far it went.
struct Taken {
    given: Vec<Assignment>,
    /// The host may own no more blocks.
    limit: Option<u32>,
}

/// A plan in the making.
struct Taker<'d, 's, 'r> {
    desk: &'d mut Desk<'s>,
    request: &'r Request,
    config: IpamConfig,
    pools: Pools,
}

impl<'d, 's, 'r> Taker<'d, 's, 'r> {
    fn new(desk: &'d mut Desk<'s>, request: &'r Request) -> Result<Self, Stop> {
        let bad = |text: &str| Err(IpamError::BadRequest(text.to_owned()).into());
        if request.host.is_empty() {
            return bad("the request names no host; give the name of the node");
        }
        if request.handle.as_deref() == Some("") && !request.handle_per_address {
            return bad("the handle is empty; leave it out or give it a name");
        }
        let count = |want: &Want| if let Want::Any { count, .. } = want { *count } else { 1 };
        let wanted = request.wants.iter().map(count).fold(0u32, u32::saturating_add);
        if wanted > MOST {
            return bad(&format!(
                "{wanted} addresses in one request, at most {MOST} are possible; ask several times"
            ));
        }
        let space = desk.space;
        let handle = request.handle.as_deref().filter(|_| !request.handle_per_address);
        let keys = [Key::Ready.to_string(), space.config()];
        let handle_keys = handle.map(|id| space.handle(id)).into_iter();
        let old_keys = handle.and_then(|id| space.old_handle(id));
        desk.state.want(
            keys.into_iter().chain(handle_keys).chain(old_keys),
            [space.pools(), space.affinities(&request.host)],
        )?;
        desk.ready()?;
        let config = desk.config()?;
        let pools = Pools::new(desk.pools()?);
        Ok(Self { desk, request, config, pools })
    }

    fn take(mut self) -> Result<Vec<Assignment>, Stop> {
        let mut all = Vec::new();
        let request = self.request;
        for want in &request.wants {
            match want {
                Want::Any { family, count, pools } => all.extend(self.any(*family, *count, pools)?),
                Want::Exact(addr) => all.push(self.exact(*addr)?),
                Want::OneOf(ranges) => all.push(self.one_of(ranges)?),
            }
        }
        self.count_handles(&all)?;
        Ok(all)
    }

    fn any(&mut self, family: IpFamily, count: u32, pools: &[Cidr]) -> Result<Vec<Assignment>, Stop> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let zones = self.pools.chosen(family, pools)?;
        let leftover = if pools.is_empty() { self.pools.disabled(family) } else { Vec::new() };
        let none = zones.is_empty();
        let place = zones.iter().map(|zone| zone.pool.cidr.to_string()).collect::<Vec<_>>().join(", ");
        let taken = self.serve(&Ask { family, count, zones, leftover, except: &[] })?;
        let free = u32::try_from(taken.given.len()).unwrap_or(u32::MAX);
        if free == count || (self.request.partial && !none) {
            return Ok(taken.given);
        }
        Err(match taken.limit {
            _ if none => IpamError::NoPools(family),
            Some(limit) => IpamError::BlockLimit { host: self.request.host.clone(), limit },
            None => IpamError::Full { wanted: count, free, place },
        }
        .into())
    }

    fn one_of(&mut self, ranges: &[super::Range]) -> Result<Assignment, Stop> {
        let mut inside = false;
        let mut limit = None;
        for range in ranges {
            let zones = self.pools.inside(range)?;
            if zones.is_empty() {
                continue;
            }
            inside = true;
            let family = IpFamily::of_cidr(&range.subnet);
            let ask = Ask { family, count: 1, zones, leftover: Vec::new(), except: &range.except };
            let taken = self.serve(&ask)?;
            if let Some(given) = taken.given.first() {
                return Ok(*given);
            }
            limit = limit.or(taken.limit);
        }
        if !inside {
            return Err(self.pools.outside(ranges).into());
        }
        Err(match limit {
            Some(limit) => IpamError::BlockLimit { host: self.request.host.clone(), limit },
            None => IpamError::Full { wanted: 1, free: 0, place: names(ranges) },
        }
        .into())
    }

    /// Gives as many as there are.
    fn serve(&mut self, ask: &Ask<'_>) -> Result<Taken, Stop> {
        let mut taken = Taken { given: Vec::new(), limit: None };
        let revivable = self.use_own(ask, &mut taken)?;
        for (zone, block) in revivable {
            if self.rest(ask, &taken) > 0 && self.desk.overlapping(&block)?.is_empty() {
                self.claim(ask, &zone, block, &mut taken)?;
            }
        }
        if self.rest(ask, &taken) > 0 && self.config.auto_allocate_blocks {
            self.claim_new(ask, &mut taken)?;
        }
        if self.rest(ask, &taken) > 0 && taken.limit.is_none() && !self.config.strict_affinity {
            self.borrow(ask, &mut taken)?;
        }
        Ok(taken)
    }

    fn rest(&self, ask: &Ask<'_>, taken: &Taken) -> usize {
        (ask.count as usize).saturating_sub(taken.given.len())
    }

    /// The zone that a block lies in: a block is of the most specific pool.
    fn zone<'z>(&self, zones: impl IntoIterator<Item = &'z Zone>, block: &Cidr) -> Option<&'z Zone> {
        let pool = self.pools.of(block)?.cidr;
        zones.into_iter().find(|zone| zone.pool.cidr == pool && zone.touches(block))
    }

    /// Takes from the host's own blocks. Gives the blocks that it has an affinity to and that do not exist.
    fn use_own(&mut self, ask: &Ask<'_>, taken: &mut Taken) -> Result<Vec<(Zone, Cidr)>, Stop> {
        let host = self.request.host.as_str();
        let affinities = self.desk.affinities_of(host)?;
        let own: Vec<(Cidr, &Zone)> = affinities
            .into_iter()
            .filter(|block| IpFamily::of_cidr(block) == ask.family)
            .filter_map(|block| Some((block, self.zone(ask.zones.iter().chain(&ask.leftover), &block)?)))
            .collect();
        let mut revivable = Vec::new();
        // A host has a few blocks: one read for all of them.
        for part in own.chunks(64) {
            if self.rest(ask, taken) == 0 {
                break;
            }
            self.desk.state.want(part.iter().map(|(block, _)| self.desk.space.block(block)), [])?;
            for (cidr, zone) in part {
                if self.desk.is_full(host, cidr) {
                    continue;
                }
                match look(self.desk, host, cidr)? {
                    Own::Here(block) => self.fill(ask, zone, block, true, taken)?,
                    Own::Gone if !zone.pool.disabled => revivable.push(((*zone).clone(), *cidr)),
                    Own::Gone | Own::Not => {}
                }
            }
        }
        Ok(revivable)
    }

    /// Claims blocks that nobody has.
    fn claim_new(&mut self, ask: &Ask<'_>, taken: &mut Taken) -> Result<(), Stop> {
        let host = self.request.host.as_str();
        for zone in &ask.zones {
            let len = zone.pool.block_len();
            let walk = Walk::new(host, zone.pool.cidr, len, zone.first, zone.last);
            for (seen, candidate) in walk.blocks().enumerate() {
                if self.rest(ask, taken) == 0 {
                    return Ok(());
                }
                if self.pools.of(&candidate).is_none_or(|pool| pool.cidr != zone.pool.cidr) {
                    continue;
                }
                let others = match self.desk.overlapping(&candidate) {
                    Err(Stop::Need(_)) => return Err(self.look_ahead(&walk, ask.family, seen)),
                    others => others?,
                };
                match others.as_slice() {
                    [] => {
                        if let Some(limit) = self.limit_reached(ask.family)? {
                            taken.limit = Some(limit);
                            return Ok(());
                        }
                        self.claim(ask, zone, candidate, taken)?;
                    }
                    // Claimed for this host a moment ago, or by a writer that never wrote the affinity. Those that a walk this
                    // long has not read are left to `borrow`.
                    [same] if *same == candidate && self.desk.is_known(same) => match self.desk.block(same) {
                        Ok(Some(block)) if block.host() == Some(host) => {
                            self.fill(ask, zone, block, true, taken)?;
                        }
                        Ok(_) | Err(Stop::Err(IpamError::Unreadable { .. })) => {}
                        Err(stop) => return Err(stop),
                    },
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// What to read when the walk comes to blocks that are not known: ever more of them, at last all.
    fn look_ahead(&self, walk: &Walk, family: IpFamily, seen: usize) -> Stop {
        let (batch, most) = (seen * 4 + 1, 100);
        if seen > most {
            let all = self.desk.all_blocks(family);
            return all.err().unwrap_or_else(|| IpamError::Busy { attempts: 0 }.into());
        }
        let mut needs = crate::ipam::reads::Needs::default();
        for candidate in walk.blocks().skip(seen).take(batch) {
            if let Err(Stop::Need(more)) = self.desk.overlapping(&candidate) {
                needs.keys.extend(more.keys);
                needs.prefixes.extend(more.prefixes);
            }
        }
        Stop::Need(needs)
    }

    /// The limit of blocks, when the host has as many.
    fn limit_reached(&self, family: IpFamily) -> Result<Option<u32>, Stop> {
        let Some(limit) = self.config.max_blocks_per_host else { return Ok(None) };
        let own = self.desk.affinities_of(&self.request.host)?;
        let own = own.iter().filter(|block| IpFamily::of_cidr(block) == family).count();
        Ok((own >= limit as usize).then_some(limit))
    }

    /// Makes a block of the host's own, when it has an address to give.
    fn claim(&mut self, ask: &Ask<'_>, zone: &Zone, cidr: Cidr, taken: &mut Taken) -> Result<(), Stop> {
        let owner = BlockAffinity::Host(self.request.host.clone());
        // An affinity to a prefix that can be no block.
        let Ok(block) = Block::new(cidr, owner, self.config.strict_affinity) else { return Ok(()) };
        let before = taken.given.len();
        self.fill(ask, zone, block, true, taken)?;
        if taken.given.len() > before {
            self.desk.guard_pool(&zone.pool.cidr);
            self.desk.guard_config();
        }
        Ok(())
    }

    /// Borrows from blocks of others and of nobody. Reads a few at first, then ever more of them.
    fn borrow(&mut self, ask: &Ask<'_>, taken: &mut Taken) -> Result<(), Stop> {
        let host = self.request.host.as_str();
        let all = self.desk.all_blocks(ask.family)?;
        for zone in &ask.zones {
            let walk = Walk::new(host, zone.pool.cidr, zone.pool.block_len(), zone.first, zone.last);
            let in_zone = |cidr: &&Cidr| self.zone([zone], cidr).is_some();
            let mut blocks: Vec<Cidr> = all.iter().filter(in_zone).copied().collect();
            blocks.sort_by_key(|block| (walk.place(block), *block));
            for (seen, cidr) in blocks.iter().enumerate() {
                if self.rest(ask, taken) == 0 {
                    return Ok(());
                }
                if !self.desk.is_known(cidr) {
                    let batch = blocks.iter().skip(seen).take((seen * 3).clamp(4, AHEAD));
                    self.desk.state.want(batch.map(|cidr| self.desk.space.block(cidr)), [])?;
                }
                let block = match self.desk.block(cidr) {
                    Err(Stop::Err(IpamError::Unreadable { .. })) => continue,
                    block => block?,
                };
                let Some(block) = block else { continue };
                // One of the host's own that no affinity leads to is no loan.
                let own = block.host() == Some(host);
                let lendable = match block.affinity() {
                    BlockAffinity::Host(_) => own || !block.strict(),
                    BlockAffinity::None => true,
                    BlockAffinity::Other(_) => false,
                };
                if lendable {
                    self.fill(ask, zone, block, own, taken)?;
                }
            }
        }
        Ok(())
    }

    /// Takes what is wanted and free from one block, in the order of its free list.
    fn fill(
        &mut self,
        ask: &Ask<'_>,
        zone: &Zone,
        mut block: Block,
        own: bool,
        taken: &mut Taken,
    ) -> Result<(), Stop> {
        let cidr = block.cidr();
        let usable = |addr: &IpAddr| {
            zone.contains(*addr)
                && !ask.except.contains(addr)
                && !self.config.reserved.iter().any(|reserved| reserved.contains(*addr))
        };
        let free = block.free().iter().filter_map(|ordinal| cidr.nth((*ordinal).into())).filter(usable);
        let chosen: Vec<IpAddr> = free.take(self.rest(ask, taken)).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        for addr in chosen {
            self.allocate(&mut block, addr);
            taken.given.push(Assignment { addr, block: cidr, pool: zone.pool.cidr });
        }
        if own {
            self.desk.confirm(&self.request.host, &cidr)?;
        }
        self.desk.put_block(block);
        Ok(())
    }

    fn allocate(&self, block: &mut Block, addr: IpAddr) {
        if let Some(ordinal) = ordinal(block, addr) {
            block.allocate(ordinal, &attribute(self.request, addr));
        }
    }

    fn exact(&mut self, addr: IpAddr) -> Result<Assignment, Stop> {
        let pool = self.pools.enabled_of(addr)?.clone();
        let host = self.request.host.clone();
        let (mut block, own) = match self.desk.block_around(addr, Some(pool.block_len()))? {
            None => (self.block_for(addr, pool.block_len())?, true),
            Some(block) => {
                if let Some(held) = ordinal(&block, addr).and_then(|ordinal| block.allocation(ordinal)) {
                    return Err(IpamError::Taken { addr, holder: held.handle.clone() }.into());
                }
                let strict = self.config.strict_affinity || block.strict();
                let owner = match block.affinity() {
                    BlockAffinity::Host(owner) if *owner == host => None,
                    BlockAffinity::Host(owner) => Some(owner.clone()).filter(|_| strict),
                    BlockAffinity::Other(owner) => Some(owner.clone()),
                    BlockAffinity::None => None,
                };
                if let Some(owner) = owner {
                    return Err(IpamError::StrictOwner { addr, block: block.cidr(), owner }.into());
                }
                let mut block = block;
                if strict && *block.affinity() == BlockAffinity::None {
                    // Nobody could ever use it.
                    block.set_affinity(BlockAffinity::Host(host.clone()));
                }
                let own = block.host() == Some(host.as_str());
                (block, own)
            }
        };
        self.allocate(&mut block, addr);
        let cidr = block.cidr();
        if own {
            self.desk.confirm(&host, &cidr)?;
        }
        self.desk.guard_pool(&pool.cidr);
        self.desk.put_block(block);
        Ok(Assignment { addr, block: cidr, pool: pool.cidr })
    }

    /// A new block that holds the address: of the pool's length, or of the next one that does not overlap another block.
    fn block_for(&mut self, addr: IpAddr, len: u8) -> Result<Block, Stop> {
        let family = IpFamily::of(addr);
        if let Some(limit) = self.limit_reached(family)? {
            return Err(IpamError::BlockLimit { host: self.request.host.clone(), limit }.into());
        }
        let max = Cidr::host(addr).len();
        for cidr in (len..=max).filter_map(|len| Cidr::new(addr, len).ok()) {
            if self.desk.overlapping(&cidr)?.is_empty() {
                let owner = BlockAffinity::Host(self.request.host.clone());
                self.desk.guard_config();
                return Block::new(cidr, owner, self.config.strict_affinity)
                    .map_err(|error| IpamError::Refused(error.to_string()).into());
            }
        }
        // Cannot be: the /32 or /128 overlaps a block only when that holds the address.
        Err(IpamError::Busy { attempts: 1 }.into())
    }

    /// Counts what was given in the handles.
    fn count_handles(&mut self, given: &[Assignment]) -> Result<(), Stop> {
        let mut counts: BTreeMap<String, BTreeMap<Cidr, u32>> = BTreeMap::new();
        for given in given {
            if let Some(handle) = attribute(self.request, given.addr).handle {
                *counts.entry(handle).or_default().entry(given.block).or_default() += 1;
            }
        }
        let space = self.desk.space;
        let keys = counts.keys().flat_map(|id| [space.handle(id)].into_iter().chain(space.old_handle(id)));
        self.desk.state.want(keys.collect::<Vec<_>>(), [])?;
        for (id, blocks) in counts {
            let mut handle = self.desk.handle(&id)?.unwrap_or_else(|| Handle::new(&id));
            for (block, count) in blocks {
                let entry = handle.blocks.entry(block).or_default();
                *entry = entry.saturating_add(count);
            }
            self.desk.put_handle(handle);
        }
        Ok(())
    }
}

/// What an affinity of the host's turns out to be.
pub(super) enum Own {
    /// The block is there and the host's.
    Here(Block),
    /// There is no block: a claim that stopped half way.
    Gone,
    /// Not the host's: the affinity is stale and goes, or it cannot be read.
    Not,
}

/// Looks at a block that the host has an affinity to.
pub(super) fn look(desk: &mut Desk<'_>, host: &str, cidr: &Cidr) -> Result<Own, Stop> {
    let unreadable = |stop: &Stop| matches!(stop, Stop::Err(IpamError::Unreadable { .. }));
    let affinity = match desk.affinity(host, cidr) {
        Err(stop) if unreadable(&stop) => return Ok(Own::Not),
        affinity => affinity?.unwrap_or_default(),
    };
    match desk.block(cidr) {
        Err(stop) if unreadable(&stop) => Ok(Own::Not),
        Err(stop) => Err(stop),
        Ok(Some(block)) if block.host() == Some(host) => Ok(Own::Here(block)),
        Ok(None) if affinity.state != Some(AffinityState::PendingDeletion) => Ok(Own::Gone),
        Ok(_) => {
            desk.tidy_affinity(host, cidr);
            Ok(Own::Not)
        }
    }
}
