//! Pools and blocks.

use std::collections::BTreeMap;

use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use tortie_config::Cidr;
use tortie_config::key::{Key, Scope, prefix};
use tortie_config::resource::{AffinityState, Block, Ipip, IpipMode, Pool};

use super::{Context, open};
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::{self, table};
use crate::ipam::Space;
use crate::ipam::check::{Picture, Stored};
use crate::store::{Compare, Op, Outcome, Store, Txn};

/// What can be done to a pool.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum PoolCommand {
    /// Make a pool that blocks are cut from
    Create {
        /// Its prefix
        cidr: Cidr,
        /// Tunnel packets to its addresses (IPv4)
        #[arg(long, value_name = "MODE", value_enum)]
        ipip: Option<IpipChoice>,
        /// Masquerade packets from it to addresses outside of all pools
        #[arg(long)]
        masquerade: bool,
        /// Length of its blocks: 20 to 32, or 116 to 128 [default: 26 or 122]
        #[arg(long, value_name = "LENGTH")]
        block_size: Option<u8>,
        /// Announce and tunnel only; no address is given out from it
        #[arg(long)]
        no_ipam: bool,
    },
    /// Give out no address from a pool any more; those in use stay
    Disable {
        /// Its prefix
        cidr: Cidr,
    },
    /// Give out addresses from a pool again
    Enable {
        /// Its prefix
        cidr: Cidr,
    },
    /// Remove a pool and its empty blocks; refused while an address of it is in use
    Delete {
        /// Its prefix
        cidr: Cidr,
    },
}

/// When packets to a pool are tunnelled.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(in crate::cli) enum IpipChoice {
    /// Always
    Always,
    /// When the next hop lies outside of the node's own network
    CrossSubnet,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PoolRow {
    pool: Cidr,
    /// `enabled`, `disabled` or `no-ipam`.
    state: &'static str,
    ipip: Option<&'static str>,
    masquerade: bool,
    block_size: u8,
    blocks: usize,
    /// Allocated addresses.
    used: usize,
    /// Free addresses of the blocks that there are.
    free_in_blocks: usize,
    /// Held by another host than the block's owner.
    borrowed: usize,
    /// How many addresses it has; none: more than 2^53.
    addresses: Option<u64>,
}

/// Addresses of a prefix, when a JSON reader can hold the number.
fn addresses(cidr: Cidr) -> Option<u64> {
    let bits = u32::from(cidr.max_len() - cidr.len());
    (bits <= 53).then(|| 1u64 << bits)
}

fn borrowed(block: &Block) -> usize {
    let owner = block.host();
    block
        .allocated()
        .filter(|(_, attribute)| matches!((attribute.get("node"), owner), (Some(node), Some(owner)) if node != owner))
        .count()
}

fn pool_row(pool: &Pool, blocks: &[&Block]) -> PoolRow {
    let used = |block: &&Block| block.size() - block.free().len();
    PoolRow {
        pool: pool.cidr,
        state: match pool {
            Pool { ipam: false, .. } => "no-ipam",
            Pool { disabled: true, .. } => "disabled",
            _ => "enabled",
        },
        ipip: pool.ipip.as_ref().map(|ipip| ipip.mode.as_str()),
        masquerade: pool.masquerade,
        block_size: pool.block_len(),
        blocks: blocks.len(),
        used: blocks.iter().map(used).sum(),
        free_in_blocks: blocks.iter().map(|block| block.free().len()).sum(),
        borrowed: blocks.iter().map(|block| borrowed(block)).sum(),
        addresses: addresses(pool.cidr),
    }
}

/// The blocks of each pool; those of no pool under none.
fn by_pool(picture: &Picture) -> BTreeMap<Option<Cidr>, Vec<&Block>> {
    let mut found: BTreeMap<Option<Cidr>, Vec<&Block>> = BTreeMap::new();
    for (cidr, block) in &picture.blocks {
        let pool = picture.pool_of(cidr.addr()).map(|pool| pool.cidr);
        found.entry(pool).or_default().push(&block.value);
    }
    found
}

async fn picture(context: &Context) -> Result<Picture, Failure> {
    let (store, _) = open(context).await?;
    // Endpoints are not needed here, and may be most of the store.
    let prefixes = [prefix::POOLS, prefix::BLOCKS, prefix::AFFINITIES].map(str::to_owned);
    let snapshot = store.list(&prefixes).await?;
    Ok(Picture::of(&Space::Global, &snapshot))
}

pub(super) async fn list(context: &Context) -> Result<(), Failure> {
    let picture = picture(context).await?;
    let blocks = by_pool(&picture);
    let none = Vec::new();
    let rows: Vec<PoolRow> = picture
        .pools
        .iter()
        .map(|(cidr, pool)| pool_row(&pool.value, blocks.get(&Some(*cidr)).unwrap_or(&none)))
        .collect();
    output::print(context.globals.output, &rows, |out, wide| {
        out.push_str(&pool_table(&rows, wide));
        if rows.is_empty() {
            out.push_str("There is no pool: tortie ipam pool create 10.65.0.0/16\n");
        }
        if let Some(lost) = blocks.get(&None) {
            out.push_str(&format!("{} blocks lie in no pool: tortie ipam blocks\n", lost.len()));
        }
    })
}

fn pool_table(rows: &[PoolRow], wide: bool) -> String {
    let mut head = vec!["POOL", "STATE", "IPIP", "BLOCKS", "USED", "FREE", "TOTAL", "FILL"];
    head.extend(
        wide.then_some(["BORROWED", "FREE IN BLOCKS", "BLOCK SIZE", "MASQUERADE"]).into_iter().flatten(),
    );
    let rows = rows.iter().map(|r| {
        let used = u64::try_from(r.used).unwrap_or(u64::MAX);
        let many = || format!("2^{}", r.pool.max_len() - r.pool.len());
        let mut row = vec![
            r.pool.to_string(),
            r.state.to_owned(),
            r.ipip.unwrap_or("-").to_owned(),
            r.blocks.to_string(),
            r.used.to_string(),
            r.addresses.map_or_else(many, |all| all.saturating_sub(used).to_string()),
            r.addresses.map_or_else(many, |all| all.to_string()),
            fill(used, r.addresses.unwrap_or(u64::MAX)),
        ];
        if wide {
            row.extend([
                r.borrowed.to_string(),
                r.free_in_blocks.to_string(),
                format!("/{}", r.block_size),
                if r.masquerade { "yes" } else { "no" }.to_owned(),
            ]);
        }
        row
    });
    table(&head, rows.collect())
}

/// A bar of sixteen and the percentage, rounded up so that only nothing is 0 %.
fn fill(used: u64, all: u64) -> String {
    let part = |of: u128| (u128::from(used) * of).div_ceil(u128::from(all.max(1))).min(of);
    let marks = usize::try_from(part(16)).unwrap_or(16);
    format!("{}{} {:>3} %", "#".repeat(marks), ".".repeat(16 - marks), part(100))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockRow {
    block: Cidr,
    pool: Option<Cidr>,
    owner: Option<String>,
    /// `confirmed`, `pending`, `pendingDeletion`, `no-affinity` or `no-owner`.
    state: &'static str,
    used: usize,
    free: usize,
    borrowed: usize,
    strict: bool,
    revision: u64,
}

/// How far a block's owner has got with it.
pub(super) fn state(picture: &Picture, block: &Block) -> &'static str {
    let Some(owner) = block.host() else { return "no-owner" };
    match picture.affinities.get(&(owner.to_owned(), block.cidr())) {
        Some(affinity) => affinity.value.state.map_or("confirmed", AffinityState::as_str),
        None => "no-affinity",
    }
}

pub(super) async fn blocks(
    context: &Context,
    pool: Option<Cidr>,
    owner: Option<&str>,
) -> Result<(), Failure> {
    let picture = picture(context).await?;
    if let Some(pool) = pool.filter(|pool| !picture.pools.contains_key(pool)) {
        return Err(no_pool(pool));
    }
    let row = |Stored { value: block, revision }: &Stored<Block>| BlockRow {
        block: block.cidr(),
        pool: picture.pool_of(block.cidr().addr()).map(|pool| pool.cidr),
        owner: block.host().map(str::to_owned),
        state: state(&picture, block),
        used: block.size() - block.free().len(),
        free: block.free().len(),
        borrowed: borrowed(block),
        strict: block.strict(),
        revision: *revision,
    };
    let mut rows: Vec<BlockRow> = picture.blocks.values().map(row).collect();
    rows.retain(|r| {
        pool.is_none_or(|pool| r.pool == Some(pool)) && owner.is_none_or(|o| r.owner.as_deref() == Some(o))
    });
    // Fullest first: used / size, compared without a division.
    rows.sort_by(|a, b| {
        let cross = (b.used * (a.used + a.free)).cmp(&(a.used * (b.used + b.free)));
        cross.then_with(|| a.block.cmp(&b.block))
    });
    output::print(context.globals.output, &rows, |out, wide| {
        let mut head = vec!["BLOCK", "OWNER", "STATE", "USED", "FREE", "BORROWED", "FILL"];
        head.extend(wide.then_some(["POOL", "STRICT", "REVISION"]).into_iter().flatten());
        let lines = rows.iter().map(|r| {
            let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
            let mut line = vec![
                r.block.to_string(),
                r.owner.clone().unwrap_or_else(|| "-".to_owned()),
                r.state.to_owned(),
                r.used.to_string(),
                r.free.to_string(),
                r.borrowed.to_string(),
                fill(count(r.used), count(r.used + r.free)),
            ];
            if wide {
                let pool = r.pool.map_or_else(|| "-".to_owned(), |pool| pool.to_string());
                line.extend([pool, if r.strict { "yes" } else { "no" }.to_owned(), r.revision.to_string()]);
            }
            line
        });
        out.push_str(&table(&head, lines.collect()));
    })
}

fn no_pool(pool: Cidr) -> Failure {
    Failure::new(Exit::No, "not-found", format!("there is no pool {pool}: `tortie ipam pools` lists them"))
}

pub(super) async fn change(context: &Context, command: &PoolCommand) -> Result<(), Failure> {
    match command {
        PoolCommand::Create { cidr, ipip, masquerade, block_size, no_ipam } => {
            let ipip = ipip.map(|choice| {
                let mode = match choice {
                    IpipChoice::Always => IpipMode::Always,
                    IpipChoice::CrossSubnet => IpipMode::CrossSubnet,
                };
                "tunl0".parse().map(|device| Ipip { device, mode })
            });
            let mut pool = Pool::new(*cidr);
            pool.ipip = ipip.transpose().map_err(|_| Failure::usage("tunl0 is no interface name"))?;
            (pool.masquerade, pool.block_size, pool.ipam) = (*masquerade, *block_size, !*no_ipam);
            create(context, &pool).await
        }
        PoolCommand::Disable { cidr } => switch(context, *cidr, true).await,
        PoolCommand::Enable { cidr } => switch(context, *cidr, false).await,
        PoolCommand::Delete { cidr } => delete(context, *cidr).await,
    }
}

async fn create(context: &Context, pool: &Pool) -> Result<(), Failure> {
    let cidr = pool.cidr;
    let value = pool.to_value();
    Pool::parse(cidr, &value).map_err(|error| Failure::usage(format!("pool {cidr}: {error}")))?;
    let store = super::store::open(&context.globals, true).await?;
    let known = Picture::of(&Space::Global, &store.list(&[Space::Global.pools()]).await?);
    if known.pools.contains_key(&cidr) {
        return Err(Failure::new(
            Exit::No,
            "exists",
            format!("the pool {cidr} is there already: nothing was changed"),
        ));
    }
    if let Some(other) = known.pools.keys().find(|other| other.overlaps(&cidr)) {
        return Err(Failure::usage(format!("{cidr} overlaps the pool {other}: choose another prefix")));
    }
    let key = Space::Global.pool(&cidr);
    let mut txn = Txn { compare: vec![Compare::Absent(key.clone())], ops: vec![put(&key, value)] };
    let mut text = format!("pool {cidr} is there");
    // As Calico's tool does with the first such pool: without it no host takes tunnelled packets.
    let enabled = Key::Setting(Scope::Global, "IpInIpEnabled".to_owned()).to_string();
    if pool.ipip.is_some() && store.get(&enabled).await?.is_none_or(|kv| kv.value.trim_ascii() != b"true") {
        txn.ops.push(put(&enabled, b"true".to_vec()));
        text.push_str(", and IpInIpEnabled is true");
    }
    commit(&*store, txn, cidr).await?;
    super::store::say(context.globals.output, &text)
}

fn put(key: &str, value: Vec<u8>) -> Op {
    Op::Put { key: key.to_owned(), value, lease: None }
}

async fn commit(store: &dyn Store, txn: Txn, cidr: Cidr) -> Result<(), Failure> {
    match store.commit(txn).await? {
        Outcome::Committed(_) => Ok(()),
        Outcome::Conflict => Err(Failure::new(
            Exit::No,
            "conflict",
            format!(
                "somebody else changed the pool {cidr} at the same moment: nothing was written, try again"
            ),
        )),
    }
}

async fn find(store: &dyn Store, cidr: Cidr) -> Result<(String, Pool, u64), Failure> {
    let key = Space::Global.pool(&cidr);
    let kv = store.get(&key).await?.ok_or_else(|| no_pool(cidr))?;
    let pool = Pool::parse(cidr, &kv.value).map_err(|error| Failure::usage(format!("{key}: {error}")))?;
    Ok((key, pool, kv.mod_revision))
}

async fn switch(context: &Context, cidr: Cidr, disabled: bool) -> Result<(), Failure> {
    let (store, _) = open(context).await?;
    let (key, mut pool, revision) = find(&*store, cidr).await?;
    pool.disabled = disabled;
    let txn = Txn {
        compare: vec![Compare::ModRevision(key.clone(), revision)],
        ops: vec![put(&key, pool.to_value())],
    };
    commit(&*store, txn, cidr).await?;
    let word = if disabled { "gives out no addresses any more" } else { "gives out addresses" };
    super::store::say(context.globals.output, &format!("pool {cidr} {word}"))
}

async fn delete(context: &Context, cidr: Cidr) -> Result<(), Failure> {
    let (store, ipam) = open(context).await?;
    let (key, mut pool, revision) = find(&*store, cidr).await?;
    let in_use = |picture: &Picture| {
        let blocks = picture.blocks.values().filter(|b| cidr.covers(&b.value.cidr()));
        blocks.map(|b| b.value.size() - b.value.free().len()).sum::<usize>()
    };
    let refuse = |used: usize| {
        Failure::new(
            Exit::Refused,
            "in-use",
            format!(
                "{used} addresses of {cidr} are in use: `tortie ipam blocks --pool {cidr}` says where; `tortie ipam pool disable \
                 {cidr}` gives out no more of them"
            ),
        )
    };
    let used = in_use(&picture(context).await?);
    if used > 0 {
        return Err(refuse(used));
    }
    // Nobody takes an address meanwhile; then the blocks go, then the pool.
    let mut last = revision;
    let was_disabled = std::mem::replace(&mut pool.disabled, true);
    if !was_disabled {
        let txn = Txn {
            compare: vec![Compare::ModRevision(key.clone(), revision)],
            ops: vec![put(&key, pool.to_value())],
        };
        last = match store.commit(txn).await? {
            Outcome::Committed(revision) => revision,
            Outcome::Conflict => {
                return Err(Failure::new(
                    Exit::No,
                    "conflict",
                    format!("the pool {cidr} changed: try again"),
                ));
            }
        };
    }
    let now = picture(context).await?;
    let used = in_use(&now);
    if used > 0 {
        return Err(refuse(used));
    }
    let mut blocks = 0;
    for block in now.blocks.values().map(|b| &b.value).filter(|b| cidr.covers(&b.cidr())) {
        if let Some(owner) = block.host() {
            let gone = ipam.unclaim(owner, block.cidr()).await.map_err(super::failed)?;
            blocks += gone.deleted.len();
            if let Some(kept) = gone.kept.first() {
                return Err(Failure::new(
                    Exit::Refused,
                    "in-use",
                    format!("an address of {kept} was taken meanwhile"),
                ));
            }
        }
    }
    let txn = Txn { compare: vec![Compare::ModRevision(key.clone(), last)], ops: vec![Op::Delete { key }] };
    commit(&*store, txn, cidr).await?;
    super::store::say(context.globals.output, &format!("pool {cidr} is removed with {blocks} empty blocks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nothing_is_empty_and_only_all_is_full() {
        assert_eq!(fill(0, 64), "................   0 %");
        assert_eq!(fill(1, 65_536), "#...............   1 %");
        assert_eq!(fill(63, 64), "################  99 %");
        assert_eq!(fill(64, 64), "################ 100 %");
        assert_eq!(fill(3, u64::MAX), "#...............   1 %");
    }

    #[test]
    fn large_pools_have_no_number() {
        assert_eq!(addresses("10.0.0.0/16".parse().unwrap()), Some(65_536));
        assert_eq!(addresses("2001:db8::/64".parse().unwrap()), None);
        assert_eq!(addresses("2001:db8::/75".parse().unwrap()), Some(1 << 53));
    }
}
