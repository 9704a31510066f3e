//! Scenario D of the benchmarks: how a BGP daemon takes a mesh of many nodes with a few blocks each.
//!
//! ```text
//! bgp_load --target 10.64.0.1:179 --peers 1000 --observer 10.64.0.2 --pid PID [--burst] [--idle 30]
//! bgp_load --target 10.64.0.1:179 --peers 1000 --observer 10.64.0.2 --bird-config > bird.conf
//! bgp_load --target 10.64.0.1:179 --peers 1000 --observer 10.64.0.2 --store > store.json
//! ```
//!
//! `benches/mesh.sh` sets up the addresses. The first form runs it and prints one JSON object; the others print what BIRD 2 and `tortie store import` need to
//! know of the same peers.

mod load;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use serde_json::json;

/// Many small BGP sessions against one daemon.
#[derive(Debug, Parser)]
struct Args {
    /// Where the daemon listens.
    #[arg(long)]
    target: SocketAddr,
    /// iBGP peers.
    #[arg(long, default_value_t = 1000)]
    peers: u32,
    /// Address of the first peer; the others follow.
    #[arg(long, default_value = "10.65.0.1")]
    first: Ipv4Addr,
    /// AS of daemon and peers.
    #[arg(long = "as", default_value_t = 64512)]
    asn: u32,
    /// /26 blocks of each peer.
    #[arg(long, default_value_t = 4)]
    blocks: u32,
    /// The first block.
    #[arg(long, default_value = "10.128.0.0")]
    base: Ipv4Addr,
    /// Address of an eBGP observer.
    #[arg(long)]
    observer: Option<Ipv4Addr>,
    /// AS of the observer.
    #[arg(long, default_value_t = 65000)]
    observer_as: u32,
    /// Blocks that the daemon originates.
    #[arg(long, default_value_t = 4)]
    originated: u32,
    /// Connects under way at a time.
    #[arg(long, default_value_t = 4)]
    at_once: usize,
    /// All at once.
    #[arg(long)]
    burst: bool,
    /// Seconds after which to give up.
    #[arg(long, default_value_t = 60)]
    timeout: u64,
    /// Seconds to measure the daemon idle.
    #[arg(long, default_value_t = 0)]
    idle: u64,
    /// The daemon's process.
    #[arg(long)]
    pid: Option<u32>,
    /// The daemon programs its kernel: wait for the routes there, and let BIRD's configuration do so.
    #[arg(long)]
    kernel: bool,
    /// Print BIRD 2's configuration for this.
    #[arg(long)]
    bird_config: bool,
    /// Print the store of a Tortie node for this.
    #[arg(long)]
    store: bool,
    /// Name of the node in the store.
    #[arg(long, default_value = "bench")]
    node: String,
}

/// Where the blocks of the daemon itself begin, away from those of the peers.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 127, 0, 0);

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.peers > 0 && args.peers <= 60_000, "--peers takes 1 to 60000");
    let first = u32::from(args.first);
    let last = first.checked_add(args.peers - 1).context("--first: the addresses run over the end")?;
    let peers: Vec<Ipv4Addr> = (first..=last).map(Ipv4Addr::from).collect();
    if args.bird_config {
        print!("{}", bird(&args, &peers));
        return Ok(());
    }
    if args.store {
        println!("{}", serde_json::to_string_pretty(&store(&args, &peers))?);
        return Ok(());
    }
    raise_file_limit();
    let plan = load::Plan {
        target: args.target,
        asn: args.asn,
        at_once: if args.burst { peers.len() } else { args.at_once },
        peers,
        blocks: args.blocks,
        base: args.base,
        observer: args.observer.map(|o| (o, args.observer_as)),
        originated: args.originated as usize,
        timeout: Duration::from_secs(args.timeout),
        idle: Duration::from_secs(args.idle),
        pid: args.pid,
        fib: args.kernel,
    };
    let r = load::run(&plan).with_context(|| format!("load on {}", args.target))?;
    println!(
        "{}",
        json!({
            "peers": args.peers, "burst": args.burst, "upSeconds": r.up, "observerSeconds": r.observer,
            "peersSeconds": r.peers, "fibSeconds": r.fib, "established": r.established, "observed": r.observed, "retries": r.retries,
            "lost": r.lost, "cpuSeconds": r.cpu, "peakMb": r.peak_mb, "idleMb": r.idle_mb, "idlePercent": r.idle_percent,
        })
    );
    Ok(())
}

/// BIRD 2 with one protocol a peer, passive and without delays.
fn bird(args: &Args, peers: &[Ipv4Addr]) -> String {
    use std::fmt::Write;
    let SocketAddr::V4(target) = args.target else { return String::new() };
    let mut out = format!(
        "log stderr {{ error, fatal, bug }};\nrouter id {ip};\nprotocol device {{ scan time 3600; }}\nprotocol static {{ ipv4;\n",
        ip = target.ip()
    );
    for i in 0..args.originated {
        let _ = writeln!(out, "  route {}/26 blackhole;", Ipv4Addr::from(u32::from(OWN) + i * 64));
    }
    let _ = write!(
        out,
        "}}\ntemplate bgp node {{ local {} port {} as {}; strict bind yes; {way}; passive; hold time 90; \
         connect delay time 0; ipv4 {{ import all; export where source = RTS_STATIC; }}; }}\n",
        target.ip(),
        target.port(),
        args.asn,
        way = if args.kernel { "direct" } else { "multihop" }
    );
    if args.kernel {
        out.push_str(
            "protocol kernel { scan time 3600; merge paths yes; ipv4 { import none; export where source = RTS_BGP; }; }\n",
        );
    }
    for (i, peer) in peers.iter().enumerate() {
        let _ = writeln!(out, "protocol bgp n{i} from node {{ neighbor {peer} as {}; }}", args.asn);
    }
    if let Some(observer) = args.observer {
        let _ = writeln!(
            out,
            "protocol bgp observer from node {{ neighbor {observer} as {}; ipv4 {{ import none; export all; next hop self; }}; }}",
            args.observer_as
        );
    }
    out
}

/// A node with global passive peers, an own pool and own blocks.
fn store(args: &Args, peers: &[Ipv4Addr]) -> serde_json::Value {
    let mut keys = serde_json::Map::new();
    let mut put = |key: String, value: serde_json::Value| {
        let text = if let serde_json::Value::String(text) = value { text } else { value.to_string() };
        keys.insert(format!("/calico{key}"), text.into());
    };
    let node = &args.node;
    put("/v1/Ready".into(), "true".into());
    put(format!("/bgp/v1/host/{node}/ip_addr_v4"), args.target.ip().to_string().into());
    put("/bgp/v1/global/as_num".into(), args.asn.to_string().into());
    put("/bgp/v1/global/node_mesh".into(), json!({"enabled": false}));
    put("/v1/ipam/v4/pool/10.0.0.0-8".into(), json!({"cidr": "10.0.0.0/8"}));
    for i in 0..args.originated {
        let block = Ipv4Addr::from(u32::from(OWN) + i * 64);
        put(format!("/ipam/v2/host/{node}/ipv4/block/{block}-26"), json!({"state": "confirmed"}));
        put(
            format!("/ipam/v2/assignment/ipv4/block/{block}-26"),
            json!({
                "cidr": format!("{block}/26"), "affinity": format!("host:{node}"), "strictAffinity": false,
                "allocations": vec![serde_json::Value::Null; 64], "attributes": [], "unallocated": (0..64).collect::<Vec<_>>(),
            }),
        );
    }
    for peer in peers {
        put(
            format!("/bgp/v1/global/peer_v4/{peer}"),
            json!({"ip": peer.to_string(), "as_num": args.asn.to_string(), "passive_mode": true}),
        );
    }
    if let Some(observer) = args.observer {
        put(
            format!("/bgp/v1/host/{node}/peer_v4/{observer}"),
            json!({"ip": observer.to_string(), "as_num": args.observer_as.to_string(), "passive_mode": true}),
        );
    }
    serde_json::Value::Object(keys)
}

fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without it the connects beyond the limit fail, and that is reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
