//! Commands for pools and blocks.

use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use tortie_config::calico3::write::Birth;
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::prefix;
use tortie_config::resource::{Ipip, IpipMode, Pool};
use tortie_config::{Dialect, counted};
use tortie_net::Cidr;

use super::open::{failed, open};
use crate::api::escape;
use crate::api::ipam::{self as words, PoolRow};
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::{self, table};
use crate::cli::store;
use crate::host_checks::pool_overlap_text;
use tortie_engine::ipam::check::IpamState;
use tortie_engine::ipam::{HostNetwork, Keyspace, pool_overlap};
use tortie_engine::model::projected;
use tortie_engine::writer::{PoolError, StoredPool, Writer, birth, ipip_enabled};
use tortie_store::{Outcome, Revision, Store, Txn};

/// Time after which a client of Calico that saw the pool before it was disabled has allocated from it. It is
/// that of Calico's own client.
const ALLOCATIONS_END: Duration = Duration::from_millis(500);

/// Subcommands of `tortie ipam pool`.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum PoolCommand {
    /// Create a pool
    Create {
        /// Its prefix
        cidr: Cidr,
        /// Tunnel packets to its addresses with IPIP (IPv4)
        #[arg(long, value_name = "MODE", value_enum)]
        ipip: Option<TunnelChoice>,
        /// Tunnel packets to its addresses with VXLAN
        #[arg(long, value_name = "MODE", value_enum, conflicts_with = "ipip")]
        vxlan: Option<TunnelChoice>,
        /// Masquerade packets from it to addresses outside of all pools
        #[arg(long)]
        masquerade: bool,
        /// Length of its blocks: 20 to 32, or 116 to 128 [default: 26 or 122]
        #[arg(long, value_name = "LENGTH")]
        block_size: Option<u8>,
        /// Announce and tunnel only; allocate no address from it
        #[arg(long)]
        no_ipam: bool,
    },
    /// Stop allocating addresses from a pool; those in use stay
    Disable {
        /// Its prefix
        cidr: Cidr,
    },
    /// Allocate addresses from a pool again
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

/// Mode of a pool's tunnel, which decides the packets to tunnel.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(in crate::cli) enum TunnelChoice {
    /// Always
    Always,
    /// When the next hop (VXLAN: the other host) is outside of the node's own network
    CrossSubnet,
}

impl From<TunnelChoice> for IpipMode {
    fn from(choice: TunnelChoice) -> Self {
        match choice {
            TunnelChoice::Always => Self::Always,
            TunnelChoice::CrossSubnet => Self::CrossSubnet,
        }
    }
}

async fn ipam_state(context: &Context) -> Result<IpamState, Failure> {
    let (store, _) = open(context).await?;
    // Endpoints are not needed here, and may be the largest part of the store.
    let space = Keyspace::of(store.dialect().await?);
    let prefixes = [space.stored_pools(), prefix::BLOCKS.to_owned(), prefix::AFFINITIES.to_owned()];
    let snapshot = store.list(&prefixes).await?;
    Ok(IpamState::of(&space, &snapshot))
}

pub(super) async fn list(context: &Context) -> Result<(), Failure> {
    let ipam_state = ipam_state(context).await?;
    let rows = words::pools(&ipam_state);
    output::print(context.globals.output, &rows, |out, wide| {
        out.push_str(&pool_table(&rows, wide));
        if rows.is_empty() {
            out.push_str("There is no pool: tortie ipam pool create 10.65.0.0/16   [no-pool]\n");
        }
        for (key, why) in &ipam_state.unreadable {
            let object = ObjectKey::parse(key).filter(|object| object.kind == Kind::IPPool);
            if object.is_none() && !key.starts_with(prefix::POOLS) {
                continue;
            }
            let (name, what) = match object {
                Some(object) => (object.title(), "cannot be used as it is"),
                None => (key.clone(), "cannot be read"),
            };
            let (name, why) = (escape::line(&name), escape::line(why));
            out.push_str(&format!("{name} {what}: {why}   [invalid-value]\n"));
        }
        let lost = words::in_no_pool(&ipam_state);
        if lost > 0 {
            out.push_str(&format!("{} in no pool: tortie ipam blocks\n", counted(lost, "block")));
        }
    })
}

fn pool_table(rows: &[PoolRow], wide: bool) -> String {
    let mut head = vec!["POOL", "STATE", "IPIP", "VXLAN", "BLOCKS", "USED", "FREE", "TOTAL", "FILL"];
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
            r.vxlan.unwrap_or("-").to_owned(),
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

/// Formats a bar of sixteen characters and the percentage, rounded up so that only an empty pool shows 0 %.
fn fill(used: u64, all: u64) -> String {
    let part = |of: u128| (u128::from(used) * of).div_ceil(u128::from(all.max(1))).min(of);
    let marks = usize::try_from(part(16)).unwrap_or(16);
    format!("{}{} {:>3} %", "#".repeat(marks), ".".repeat(16 - marks), part(100))
}

pub(super) async fn blocks(
    context: &Context,
    pool: Option<Cidr>,
    owner: Option<&str>,
) -> Result<(), Failure> {
    let ipam_state = ipam_state(context).await?;
    if let Some(pool) = pool.filter(|pool| !ipam_state.pools.contains_key(pool)) {
        return Err(no_pool(pool));
    }
    let rows = words::blocks(&ipam_state, pool, owner);
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
        PoolCommand::Create { cidr, ipip, vxlan, masquerade, block_size, no_ipam } => {
            let ipip = ipip.map(|mode| "tunl0".parse().map(|device| Ipip { device, mode: mode.into() }));
            let mut pool = Pool::new(*cidr);
            pool.ipip = ipip.transpose().map_err(|_| Failure::usage("tunl0 is no interface name"))?;
            pool.vxlan = vxlan.map(IpipMode::from);
            (pool.masquerade, pool.block_size, pool.ipam) = (*masquerade, *block_size, !*no_ipam);
            create(context, &pool).await
        }
        PoolCommand::Disable { cidr } => switch(context, *cidr, true).await,
        PoolCommand::Enable { cidr } => switch(context, *cidr, false).await,
        PoolCommand::Delete { cidr } => delete(context, *cidr).await,
    }
}

fn unwritten(error: PoolError) -> Failure {
    Failure::usage(error.to_string())
}

/// Returns what a new object gets.
fn new_birth() -> Birth {
    birth(rand::random(), jiff::Timestamp::now())
}

async fn create(context: &Context, pool: &Pool) -> Result<(), Failure> {
    let cidr = pool.cidr;
    Pool::parse(cidr, &pool.to_value()).map_err(|error| Failure::usage(format!("pool {cidr}: {error}")))?;
    let store = store::open(&context.globals, true).await?;
    let dialect = store.dialect().await?;
    let (space, writer) = (Keyspace::of(dialect), Writer::of(dialect));
    let mut prefixes = vec![space.stored_pools()];
    // The blocks of an IPPool have one size.
    prefixes.extend((dialect == Dialect::V3).then(|| prefix::BLOCKS.to_owned()));
    let known = IpamState::of(&space, &store.list(&prefixes).await?);
    if known.pools.contains_key(&cidr) {
        return Err(Failure::new(
            Exit::No,
            "exists",
            format!("the pool {cidr} exists already: nothing was changed"),
        ));
    }
    if let Some(other) = known.pools.keys().find(|other| other.overlaps(&cidr)) {
        return Err(Failure::usage(format!("{cidr} overlaps the pool {other}: choose another prefix")));
    }
    let mut blocks = known.blocks.keys();
    if let Some(block) = blocks.find(|block| block.overlaps(&cidr) && block.len() != pool.block_len()) {
        return Err(Failure::usage(format!(
            "the block {block} is in {cidr}, whose blocks would be /{}: give --block-size {}, or release its addresses \
             first",
            pool.block_len(),
            block.len()
        )));
    }
    let enabled = store.get(&ipip_enabled()).await?;
    // As in calicoctl, the first such pool also enables IPIP: otherwise hosts accept no tunnelled packets.
    let enable = pool.ipip.is_some() && enabled.is_none_or(|kv| kv.value.trim_ascii() != b"true");
    let txn = writer.create_pool(pool, enable, &new_birth()).map_err(unwritten)?;
    let mut text = format!("pool {cidr} is created");
    match dialect {
        Dialect::V1 if enable => text.push_str(", and IpInIpEnabled is true"),
        Dialect::V1 => {}
        Dialect::V3 => text = format!("{text} as {}", writer.name_of_new_pool(&cidr)),
    }
    if store.commit(txn).await? == Outcome::Conflict {
        let name = writer.name_of_new_pool(&cidr);
        let text = format!("{name} exists already: nothing was changed; `tortie ipam pools` lists the pools");
        return Err(Failure::new(Exit::No, "exists", text));
    }
    store::say(context.globals.output, &text)?;
    let connected = || {
        let networks = tortie_kernel::connected_networks().unwrap_or_default();
        let found = networks.into_iter().find(|(_, network)| network.overlaps(&cidr));
        found.map(|(interface, network)| {
            format!("{network}, which this machine is connected to by {interface}")
        })
    };
    if let Some(what) = pool_overlap(&cidr, &host_networks(&*store, dialect).await?).or_else(connected) {
        eprintln!("warning: {}   [pool-over-network]", pool_overlap_text(&cidr, &what));
    }
    Ok(())
}

/// Reads the networks of all hosts.
async fn host_networks(store: &dyn Store, dialect: Dialect) -> Result<Vec<HostNetwork>, Failure> {
    let snapshot = match dialect {
        Dialect::V1 => store.list(&[prefix::BGP_HOSTS.to_owned()]).await?,
        Dialect::V3 => projected("", &store.list(&[ObjectKey::prefix_of(Kind::Node)]).await?),
    };
    Ok(snapshot.entries.iter().filter_map(|e| HostNetwork::of_entry(&e.key, &e.value)).collect())
}

/// Commits the change of a pool, and returns its revision.
async fn commit(store: &dyn Store, txn: Txn, cidr: Cidr) -> Result<Revision, Failure> {
    match store.commit(txn).await? {
        Outcome::Committed(revision) => Ok(revision),
        Outcome::Conflict => Err(Failure::new(
            Exit::No,
            "conflict",
            format!(
                "another process changed the pool {cidr} at the same moment: nothing was written, try again"
            ),
        )),
    }
}

async fn find(store: &dyn Store, writer: Writer, cidr: Cidr) -> Result<StoredPool, Failure> {
    let snapshot = store.list(&[Keyspace::of(writer.dialect()).stored_pools()]).await?;
    writer.find_pool(&snapshot, &cidr).map_err(unwritten)?.ok_or_else(|| no_pool(cidr))
}

async fn switch(context: &Context, cidr: Cidr, disabled: bool) -> Result<(), Failure> {
    let (store, _) = open(context).await?;
    let writer = Writer::of(store.dialect().await?);
    let pool = find(&*store, writer, cidr).await?;
    if let Some(txn) = writer.switch_pool(&pool, disabled, &new_birth()).map_err(unwritten)? {
        commit(&*store, txn, cidr).await?;
    }
    let word = if disabled {
        "is disabled: no address is allocated from it"
    } else {
        "is enabled: addresses are allocated from it"
    };
    store::say(context.globals.output, &format!("pool {cidr} {word}"))
}

/// Deletes a pool in the order of Calico's client: the pool is disabled first, so that no address is allocated
/// while its blocks and then the pool are deleted.
async fn delete(context: &Context, cidr: Cidr) -> Result<(), Failure> {
    let (store, ipam) = open(context).await?;
    let writer = Writer::of(store.dialect().await?);
    let mut pool = find(&*store, writer, cidr).await?;
    let in_use = |ipam_state: &IpamState| {
        let blocks = ipam_state.blocks.values().filter(|b| cidr.covers(&b.value.cidr()));
        blocks.map(|b| b.value.size() - b.value.free().len()).sum::<usize>()
    };
    let refuse = |used: usize, next: &str| {
        Failure::new(
            Exit::Refused,
            "in-use",
            format!(
                "{} of {cidr} in use: `tortie ipam blocks --pool {cidr}` shows where; {next}",
                counted(used, "address")
            ),
        )
    };
    let used = in_use(&ipam_state(context).await?);
    if used > 0 {
        let next = format!("`tortie ipam pool disable {cidr}` stops the allocation of more");
        return Err(refuse(used, &next));
    }
    if let Some(txn) = writer.switch_pool(&pool, true, &new_birth()).map_err(unwritten)? {
        let revision = commit(&*store, txn.clone(), cidr).await?;
        pool = pool.written(&txn, revision);
        if writer.dialect() == Dialect::V3 {
            tokio::time::sleep(ALLOCATIONS_END).await;
        }
    }
    let now = ipam_state(context).await?;
    let used = in_use(&now);
    if used > 0 {
        return Err(refuse(used, "the pool is disabled, and no more are allocated"));
    }
    let mut blocks = 0;
    for block in now.blocks.values().map(|b| &b.value).filter(|b| cidr.covers(&b.cidr())) {
        if let Some(owner) = block.host() {
            let gone = ipam.unclaim(owner, block.cidr()).await.map_err(failed)?;
            blocks += gone.deleted.len();
            if let Some(kept) = gone.kept.first() {
                return Err(Failure::new(
                    Exit::Refused,
                    "in-use",
                    format!("an address of {kept} was allocated meanwhile"),
                ));
            }
        }
    }
    commit(&*store, writer.delete_pool(&pool), cidr).await?;
    let mut text = format!("pool {cidr} is removed with {}", counted(blocks, "empty block"));
    if let Some(other) = pool.others.first() {
        text = format!("{text}; {other} has the same prefix, and counts from now on");
    }
    store::say(context.globals.output, &text)
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
}
