//! `tortie ipam ...`: pools, blocks and addresses, directly in the store, without an agent.
//!
//! All decisions about addresses are in [`tortie_engine::ipam`]; the commands print its results.

mod check;
pub(super) mod in_use;
mod open;
mod pools;
mod show;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value};
use tortie_config::counted;
use tortie_config::key::IpFamily;
use tortie_net::Cidr;

use self::open::open;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{self, table};
use crate::plugins::attach::allocate;
use tortie_engine::ipam::check::RESERVED;
use tortie_engine::ipam::{AddressRequest, AllocationRequest};

pub(super) use open::failed;
pub(super) use show::why as why_ip;

/// Subcommands of `tortie ipam`.
#[derive(Debug, Subcommand)]
pub(super) enum IpamCommand {
    /// List pools and their usage
    Pools,
    /// Create, change or remove a pool
    #[command(subcommand)]
    Pool(pools::PoolCommand),
    /// List blocks with owner and usage, fullest first
    Blocks {
        /// Only blocks of this pool
        #[arg(long, value_name = "CIDR")]
        pool: Option<Cidr>,
        /// Only blocks that this host owns
        #[arg(long, value_name = "HOST")]
        owner: Option<String>,
    },
    /// Show the holder of an address, with endpoint, block, owner and routes; or all addresses of a block
    Show {
        /// An address, or a block as ADDRESS/LENGTH
        #[arg(value_name = "ADDRESS|BLOCK")]
        what: Cidr,
    },
    /// Allocate addresses to the host of --node and print them, one per line
    Assign(AssignArgs),
    /// Release addresses; refused while endpoints use them
    Release(ReleaseArgs),
    /// Claim a block for the host of --node
    Claim {
        /// The block, or a prefix that contains whole blocks of a pool
        #[arg(value_name = "CIDR")]
        block: Cidr,
    },
    /// Release the claim of the host of --node on a block; an empty block is deleted. Refused while endpoints
    /// use its addresses
    Unclaim {
        /// The block, or a prefix that contains whole blocks
        #[arg(value_name = "CIDR")]
        block: Cidr,
        /// Even while endpoints use its addresses
        #[arg(long)]
        force: bool,
    },
    /// Show or change how addresses are allocated
    Configure(ConfigureArgs),
    /// Compare store, kernel and network namespaces for leaked, unaccounted, duplicate and ownerless
    /// addresses; exit 1 when there are any
    Check(check::CheckArgs),
}

/// Arguments of `tortie ipam assign`.
#[derive(Debug, Args)]
pub(super) struct AssignArgs {
    /// Number of IPv4 addresses [default: 1 if nothing else is requested]
    #[arg(long, value_name = "K")]
    num4: Option<u32>,
    /// Number of IPv6 addresses
    #[arg(long, value_name = "K")]
    num6: Option<u32>,
    /// This address; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    ip: Vec<IpAddr>,
    /// Handle under which they are released together later
    #[arg(long, value_name = "HANDLE")]
    handle: Option<String>,
    /// Attribute stored with each address (node and timestamp are added by themselves); may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    attr: Vec<(String, String)>,
    /// Only from this pool; may be repeated
    #[arg(long, value_name = "CIDR")]
    pool: Vec<Cidr>,
    /// Keep the address although no endpoint has it: `ipam check` and the garbage collection skip it
    /// (attribute `type` = `reserved`)
    #[arg(long)]
    reserve: bool,
}

/// Arguments of `tortie ipam release`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["ip", "handle", "from_check"]))]
pub(super) struct ReleaseArgs {
    /// This address; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    ip: Vec<IpAddr>,
    /// Every address of this handle
    #[arg(long, value_name = "HANDLE")]
    handle: Option<String>,
    /// Repair the findings of `tortie ipam check -o json` that still hold; without a file the check is made
    /// now
    #[arg(long, value_name = "FILE|-")]
    from_check: Option<Option<PathBuf>>,
    /// Even while endpoints use them: another container may then get the same address
    #[arg(long, conflicts_with = "from_check")]
    force: bool,
}

/// Arguments of `tortie ipam configure`; without any the settings are printed.
#[derive(Debug, Args)]
pub(super) struct ConfigureArgs {
    /// No host borrows addresses from another host's block
    #[arg(long, value_name = "BOOL")]
    strict_affinity: Option<bool>,
    /// Hosts claim blocks when they need them
    #[arg(long, value_name = "BOOL")]
    auto_allocate: Option<bool>,
    /// Maximum number of blocks per host and address family; 0: no limit
    #[arg(long, value_name = "N")]
    max_blocks_per_host: Option<u32>,
}

impl ConfigureArgs {
    fn changes(&self) -> bool {
        self.strict_affinity.is_some() || self.auto_allocate.is_some() || self.max_blocks_per_host.is_some()
    }
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

impl IpamCommand {
    /// True if the command changes the store; such a command is not repeated by `--watch`.
    pub(super) fn writes(&self) -> bool {
        match self {
            Self::Pools | Self::Blocks { .. } | Self::Show { .. } | Self::Check(_) => false,
            Self::Configure(args) => args.changes(),
            _ => true,
        }
    }
}

pub(super) async fn run(context: &Context, command: &IpamCommand) -> Result<(), Failure> {
    match command {
        IpamCommand::Pools => pools::list(context).await,
        IpamCommand::Pool(command) => pools::change(context, command).await,
        IpamCommand::Blocks { pool, owner } => pools::blocks(context, *pool, owner.as_deref()).await,
        IpamCommand::Show { what } if what.is_host() => show::address(context, what.addr()).await,
        IpamCommand::Show { what } => show::block(context, *what).await,
        IpamCommand::Assign(args) => assign(context, args).await,
        IpamCommand::Release(args) => match &args.from_check {
            Some(file) => check::repair(context, file.as_deref()).await,
            None => release(context, args).await,
        },
        IpamCommand::Claim { block } => claim(context, *block).await,
        IpamCommand::Unclaim { block, force } => unclaim(context, *block, *force).await,
        IpamCommand::Configure(args) => configure(context, args).await,
        IpamCommand::Check(args) => check::run(context, args).await,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigView {
    strict_affinity: bool,
    auto_allocate_blocks: bool,
    max_blocks_per_host: Option<u32>,
    reserved: Vec<Cidr>,
}

async fn configure(context: &Context, args: &ConfigureArgs) -> Result<(), Failure> {
    let (_, ipam) = open(context).await?;
    let mut config = ipam.config().await.map_err(failed)?;
    if args.changes() {
        config.strict_affinity = args.strict_affinity.unwrap_or(config.strict_affinity);
        config.auto_allocate_blocks = args.auto_allocate.unwrap_or(config.auto_allocate_blocks);
        if let Some(most) = args.max_blocks_per_host {
            config.max_blocks_per_host = Some(most).filter(|most| *most > 0);
        }
        ipam.set_config(&config).await.map_err(failed)?;
    }
    let view = ConfigView {
        strict_affinity: config.strict_affinity,
        auto_allocate_blocks: config.auto_allocate_blocks,
        max_blocks_per_host: config.max_blocks_per_host,
        reserved: config.reserved,
    };
    output::print(context.globals.output, &view, |out, _| {
        let _ = writeln!(out, "strict affinity      {}", view.strict_affinity);
        let _ = writeln!(out, "auto allocate        {}", view.auto_allocate_blocks);
        let most = view.max_blocks_per_host.map_or_else(|| "no limit".to_owned(), |most| most.to_string());
        let _ = writeln!(out, "max blocks per host  {most}");
        if !view.reserved.is_empty() {
            let list: Vec<String> = view.reserved.iter().map(ToString::to_string).collect();
            let _ = writeln!(out, "reserved             {}", list.join(", "));
        }
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AllocatedAddress {
    address: Cidr,
    block: Cidr,
    pool: Cidr,
}

async fn assign(context: &Context, args: &AssignArgs) -> Result<(), Failure> {
    let host = context.globals.node_name()?;
    let mut addresses: Vec<AddressRequest> =
        args.ip.iter().map(|addr| AddressRequest::Exact(*addr)).collect();
    let nothing = args.ip.is_empty() && args.num4.is_none() && args.num6.is_none();
    let numbers =
        [(IpFamily::V4, args.num4.unwrap_or(u32::from(nothing))), (IpFamily::V6, args.num6.unwrap_or(0))];
    for (family, count) in numbers.into_iter().filter(|(_, count)| *count > 0) {
        let pools =
            args.pool.iter().copied().filter(|pool| IpFamily::of_cidr(pool) == family).collect::<Vec<_>>();
        if pools.is_empty() && !args.pool.is_empty() {
            return Err(Failure::usage(format!(
                "no --pool is of IP{}, but {} of it requested",
                family.as_str(),
                counted(count, "address")
            )));
        }
        addresses.push(AddressRequest::Any { family, count, pools });
    }
    if let Some(addr) =
        args.ip.iter().find(|addr| !args.pool.is_empty() && !args.pool.iter().any(|p| p.contains(**addr)))
    {
        return Err(Failure::usage(format!("--ip {addr} is in none of the pools of --pool")));
    }
    if addresses.is_empty() {
        return Err(Failure::usage("nothing is requested: give --num4, --num6 or --ip"));
    }
    let mut attributes: Map<String, Value> = Map::new();
    attributes.insert("node".to_owned(), host.clone().into());
    attributes.insert("timestamp".to_owned(), format!("{:.0}", jiff::Timestamp::now()).into());
    if args.reserve {
        attributes.insert("type".to_owned(), RESERVED.into());
    }
    attributes.extend(args.attr.iter().map(|(name, value)| (name.clone(), value.clone().into())));
    let request = AllocationRequest {
        host,
        addresses,
        handle: args.handle.clone(),
        attributes,
        ..AllocationRequest::default()
    };
    let (_, ipam) = open(context).await?;
    let has_handle = request.handle.is_some();
    let given = allocate(&ipam, request, None).await.map_err(failed)?;
    if !has_handle {
        eprintln!(
            "note: no handle was given, so these addresses can only be released one by one (tortie ipam \
             release --ip); --handle NAME gives them one"
        );
    }
    let given: Vec<AllocatedAddress> = given
        .into_iter()
        .map(|given| AllocatedAddress {
            address: Cidr::host(given.addr),
            block: given.block,
            pool: given.pool,
        })
        .collect();
    output::print(context.globals.output, &given, |out, wide| {
        for AllocatedAddress { address, block, pool } in &given {
            let more = if wide { format!("  block {block}  pool {pool}") } else { String::new() };
            let _ = writeln!(out, "{address}{more}");
        }
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReleasedAddresses {
    released: Vec<IpAddr>,
    not_allocated: Vec<IpAddr>,
}

async fn release(context: &Context, args: &ReleaseArgs) -> Result<(), Failure> {
    let (store, ipam) = open(context).await?;
    if !args.force {
        let used = in_use::read(&*store).await?;
        let found =
            args.handle.as_deref().map_or_else(|| used.among(&args.ip), |handle| used.of_handle(handle));
        in_use::refuse(&found, "nothing was released")?;
    }
    let mut free = ReleasedAddresses { released: Vec::new(), not_allocated: Vec::new() };
    if let Some(handle) = &args.handle {
        free.released = ipam.release_handle(handle).await.map_err(failed)?;
        if free.released.is_empty() {
            return Err(Failure::new(
                Exit::No,
                "not-found",
                format!(
                    "nothing is allocated to the handle {handle}: nothing was released; `tortie ipam show \
                     ADDRESS -o wide` shows unshortened handles"
                ),
            ));
        }
    } else {
        let done = ipam.release(&args.ip, None).await.map_err(failed)?;
        (free.released, free.not_allocated) = (done.released, done.absent);
    }
    output::print(context.globals.output, &free, |out, _| {
        for addr in &free.released {
            let _ = writeln!(out, "{addr} released");
        }
    })?;
    if free.not_allocated.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = free.not_allocated.iter().map(ToString::to_string).collect();
    Err(Failure::new(Exit::No, "not-allocated", format!("not allocated: {}", list.join(", "))))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockResult {
    block: Cidr,
    result: &'static str,
    owner: Option<String>,
}

fn block_results(context: &Context, words: &[BlockResult]) -> Result<(), Failure> {
    output::print(context.globals.output, &words, |out, _| {
        let rows = words.iter().map(|w| {
            vec![w.block.to_string(), w.result.to_owned(), w.owner.clone().unwrap_or_else(|| "-".to_owned())]
        });
        out.push_str(&table(&["BLOCK", "RESULT", "OWNER"], rows.collect()));
    })
}

async fn claim(context: &Context, block: Cidr) -> Result<(), Failure> {
    let host = context.globals.node_name()?;
    let (_, ipam) = open(context).await?;
    let claims = ipam.claim(&host, block).await.map_err(failed)?;
    let own = claims.claimed.iter().map(|block| BlockResult {
        block: *block,
        result: "claimed",
        owner: Some(host.clone()),
    });
    let others = claims.refused.iter().map(|(block, owner)| BlockResult {
        block: *block,
        result: "refused",
        owner: Some(owner.clone()),
    });
    block_results(context, &own.chain(others).collect::<Vec<_>>())?;
    match claims.refused.first() {
        None => Ok(()),
        Some((block, owner)) => Err(Failure::new(
            Exit::No,
            "taken",
            format!("{block} belongs to {owner}: `tortie ipam unclaim {block} --node {owner}` releases it"),
        )),
    }
}

async fn unclaim(context: &Context, block: Cidr, force: bool) -> Result<(), Failure> {
    let host = context.globals.node_name()?;
    let (store, ipam) = open(context).await?;
    if !force {
        let own = ipam.blocks_of(&host).await.map_err(failed)?;
        let used = in_use::read(&*store).await?;
        let found = own.iter().filter(|own| block.covers(own)).flat_map(|own| used.in_blocks(own));
        in_use::refuse(&found.collect::<Vec<_>>(), "nothing was changed")?;
    }
    let gone = ipam.unclaim(&host, block).await.map_err(failed)?;
    if gone.deleted.is_empty() && gone.kept.is_empty() {
        return Err(Failure::new(
            Exit::No,
            "not-found",
            format!("{host} owns no block in {block}: `tortie ipam blocks` lists them with their owners"),
        ));
    }
    let words = [("deleted", &gone.deleted), ("in use, without an owner now", &gone.kept)];
    let words = words.into_iter().flat_map(|(result, blocks)| {
        blocks.iter().map(move |block| BlockResult { block: *block, result, owner: None })
    });
    block_results(context, &words.collect::<Vec<_>>())
}
