//! The scenarios: their sessions, and the configuration that a daemon needs for them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::mix::Prefix;
use super::mrt::{self, Feed};

/// AS number of the daemon.
pub(crate) const OWN_AS: u32 = 64512;
/// AS number of eBGP senders.
const SENDER_AS: u32 = 65001;
/// AS number of eBGP receivers.
const RECEIVER_AS: u32 = 65002;
/// Number of /26 blocks per node, and of the daemon.
pub(crate) const BLOCKS: u32 = 4;
/// First block of the daemon.
const OWN_BLOCK: Ipv4Addr = Ipv4Addr::new(10, 127, 0, 0);
/// First block of the nodes.
const NODE_BLOCK: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);

/// Role of a peer in a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Announces routes and ignores those that it receives.
    Source,
    /// Counts the routes that it receives.
    Sink,
    /// A node of an iBGP mesh: announces blocks, and counts the routes that it receives.
    Node,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    pub(crate) asn: u32,
    pub(crate) role: Role,
}

/// Course of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sources announce, sinks wait for all routes; with `then_withdraw` also for their withdrawal.
    Feed { prefixes: usize, then_withdraw: bool },
    /// As `Feed`, but measured in the kernel's table, over this number of next hops.
    Kernel { prefixes: usize, next_hops: u32 },
    /// The source's session is reset.
    Lost { prefixes: usize },
    /// Nodes connect, `at_once` at a time.
    Nodes { at_once: usize },
    /// The daemon dials after its start.
    Start,
    /// Sources replay MRT files.
    Replay,
}

#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) v6: bool,
    pub(crate) peers: Vec<Peer>,
    /// Blocks that the daemon originates.
    pub(crate) originated: Vec<Prefix>,
    /// True if the daemon writes to the kernel's table.
    pub(crate) kernel: bool,
    /// Feeds of a replay.
    pub(crate) feeds: Vec<Feed>,
}

/// Returns the address of the daemon.
pub(crate) fn daemon(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::new(0xfd64, 0, 0, 0, 0, 0, 0, 1).into() } else { Ipv4Addr::new(10, 64, 0, 1).into() }
}

/// Returns the address of a peer, or from 32,768 on of another host on the link.
pub(crate) fn address(v6: bool, number: u32) -> IpAddr {
    match v6 {
        true => {
            Ipv6Addr::from(u128::from(Ipv6Addr::new(0xfd64, 0x65, 0, 0, 0, 0, 0, 0)) + u128::from(number) + 1)
                .into()
        }
        false => Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 65, 0, 0)) + number + 1).into(),
    }
}

/// Returns the blocks of the n-th node.
pub(crate) fn blocks(node: u32) -> impl Iterator<Item = Prefix> {
    (0..BLOCKS).map(move |i| block(NODE_BLOCK, node * BLOCKS + i))
}

fn block(base: Ipv4Addr, number: u32) -> Prefix {
    Prefix::new(Ipv4Addr::from(u32::from(base) + number * 64).into(), 26)
}

impl Scenario {
    /// Returns the scenario of this name.
    pub(crate) fn named(name: &str, v6: bool, mrt: &[PathBuf]) -> anyhow::Result<Self> {
        let mut feeds = Vec::new();
        // AS numbers of the sources, of the sinks, and the number of nodes.
        let (kind, sources, sinks, nodes) = match name {
            "A" => (
                Kind::Feed { prefixes: 1_000_000, then_withdraw: true },
                vec![SENDER_AS],
                vec![RECEIVER_AS],
                0,
            ),
            "A10" => {
                (Kind::Feed { prefixes: 100_000, then_withdraw: true }, vec![SENDER_AS], vec![RECEIVER_AS], 0)
            }
            "B" => (
                Kind::Feed { prefixes: 100_000, then_withdraw: false },
                vec![OWN_AS; 10],
                vec![RECEIVER_AS],
                0,
            ),
            "C" => {
                (Kind::Feed { prefixes: 10_000, then_withdraw: false }, vec![SENDER_AS], vec![OWN_AS; 200], 0)
            }
            "D" | "Dk" => (Kind::Nodes { at_once: 4 }, vec![], vec![RECEIVER_AS], 1_000),
            "Dburst" => (Kind::Nodes { at_once: 1_000 }, vec![], vec![RECEIVER_AS], 1_000),
            "D5" | "D5k" => (Kind::Nodes { at_once: 4 }, vec![], vec![RECEIVER_AS], 5_000),
            "E" => (Kind::Kernel { prefixes: 100_000, next_hops: 1 }, vec![SENDER_AS], vec![], 0),
            "E1000" => (Kind::Kernel { prefixes: 100_000, next_hops: 1_000 }, vec![SENDER_AS], vec![], 0),
            "Gup" => (Kind::Start, vec![SENDER_AS], vec![], 0),
            "Gdown" => (Kind::Lost { prefixes: 100_000 }, vec![SENDER_AS], vec![RECEIVER_AS], 0),
            "R" => {
                for file in mrt {
                    let known = feeds.len();
                    feeds.extend(mrt::feeds(file, |n| {
                        Ipv4Addr::from(
                            u32::from(Ipv4Addr::new(10, 65, 0, 1)) + u32::try_from(known + n).unwrap_or(0),
                        )
                    })?);
                }
                feeds.first().context("R replays MRT files: name them with --mrt")?;
                (Kind::Replay, feeds.iter().map(|f| f.asn).collect(), vec![RECEIVER_AS], 0)
            }
            _ => bail!("there is no scenario {name}: A A10 B C D D5 Dk D5k Dburst E E1000 Gup Gdown R"),
        };
        let kernel = matches!(kind, Kind::Kernel { .. }) || matches!(name, "Dk" | "D5k");
        if v6 && (kernel || nodes > 0 || kind == Kind::Replay) {
            bail!("{name} is there for IPv4 only");
        }
        let roles = sources.into_iter().map(|asn| (asn, Role::Source));
        let roles = roles.chain(sinks.into_iter().map(|asn| (asn, Role::Sink)));
        let roles = roles.chain((0..nodes).map(|_| (OWN_AS, Role::Node)));
        let peers = (0..).zip(roles).map(|(n, (asn, role))| Peer { address: address(v6, n), asn, role });
        Ok(Self {
            name: name.to_owned(),
            kind,
            v6,
            peers: peers.collect(),
            originated: (0..if nodes > 0 { BLOCKS } else { 0 }).map(|i| block(OWN_BLOCK, i)).collect(),
            kernel,
            feeds,
        })
    }

    /// Formats the input of `benches/daemons/*`: one object per line, words separated by blanks.
    pub(crate) fn plan(&self) -> String {
        let mut out = format!("local {} {OWN_AS}\n", daemon(self.v6));
        for peer in &self.peers {
            let role = match peer.role {
                Role::Source => "source",
                Role::Sink => "sink",
                Role::Node => "node",
            };
            let dials = if self.kind == Kind::Start { "dial" } else { "wait" };
            let _ = writeln!(out, "peer {} {} {role} {dials}", peer.address, peer.asn);
        }
        for (i, _) in (0_u32..).zip(&self.originated) {
            let _ = writeln!(out, "originate {}/26", Ipv4Addr::from(u32::from(OWN_BLOCK) + i * 64));
        }
        if self.kernel {
            out.push_str("kernel\n");
        }
        out
    }
}
