//! `tortie why peer|route|ip|packet|drop`: explains the state of a session, a route or an address, the fate
//! of a packet on the live host, and recent drops.

use clap::Subcommand;

use super::client::{Client, escape};
use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{self, span, table};
use super::supposed::Supposed;
use super::trace;
use crate::api::explain::Why as Answer;
use crate::api::policy::{DropRow, Trace};
use crate::api::status::List;

/// Subcommands of `tortie why`.
#[derive(Debug, Subcommand)]
pub(super) enum Why {
    /// Why a session is up or down: its configuration, the end of the last session, connection attempts, the
    /// path, the status of the peer; exit 1 when it is not established
    Peer {
        /// Session name, node name or address
        name: String,
    },
    /// Why a prefix is used or not, from the store to the kernel, and which peers it is announced to; exit 1
    /// when it is not in use
    Route {
        /// A prefix, or an address that stands for the prefix that covers it
        #[arg(value_name = "PREFIX|ADDRESS", value_parser = super::context::prefix_or_address)]
        prefix: String,
        /// Why it is announced to this peer or not: each export check in order, by the code that announces;
        /// exit 1 when it is not
        #[arg(long, value_name = "PEER")]
        to: Option<String>,
        #[command(flatten)]
        supposed: Supposed,
    },
    /// Like `policy trace`, with the interfaces and routes that this host has now; exit 1 when the packet is
    /// denied
    Packet {
        #[command(flatten)]
        packet: trace::PacketArgs,
    },
    /// The holder of an address, with endpoint, block, owner, routes and policy: `ipam show` and the agent's
    /// state
    Ip {
        /// The address
        address: std::net::IpAddr,
    },
    /// Packets that rules deny now, by source, destination and rule; at most ten per second and rule are
    /// counted
    Drop {
        /// How far back: 30s, 10m, 2h or seconds
        #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = seconds)]
        since: u64,
    },
}

/// Parses a time span: 30s, 10m, 2h, 1d or seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err("write a number and s, m, h or d, such as 10m".to_owned()),
    };
    let number: u64 =
        number.parse().map_err(|_| "write a number and s, m, h or d, such as 10m".to_owned())?;
    Ok(number.saturating_mul(factor))
}

pub(super) async fn run(context: &Context, command: &Why) -> Result<(), Failure> {
    let client = Client::of(&context.globals);
    match command {
        Why::Peer { name } => {
            print_answer(context, client.get(&format!("/v1/why/peer?name={}", escape(name))).await?)
        }
        Why::Route { prefix, to, supposed } if supposed.offline => {
            super::supposed::run(context, prefix, to.as_deref(), supposed).await
        }
        Why::Route { prefix, to, .. } => {
            let to = to.as_ref().map_or_else(String::new, |to| format!("&to={}", escape(to)));
            print_answer(context, client.get(&format!("/v1/why/route?prefix={}{to}", escape(prefix))).await?)
        }
        Why::Packet { packet } => {
            let found: Trace = client.get(&trace::path("/v1/why/packet", &packet.query())).await?;
            trace::print(context.globals.output, &found)
        }
        Why::Ip { address } => super::ipam::why_ip(context, *address).await,
        Why::Drop { since } => {
            let list: List<DropRow> = client.get(&format!("/v1/why/drop?since={since}")).await?;
            output::print(context.globals.output, &list, |out, _| out.push_str(&drops(&list.items)))
        }
    }
}

/// Prints an answer; the exit code is 1 unless the subject is in its desired state.
fn print_answer(context: &Context, answer: Answer) -> Result<(), Failure> {
    output::print(context.globals.output, &answer, |out, _| out.push_str(&answer.to_string()))?;
    if answer.good { Ok(()) } else { Err(Failure::new(Exit::No, &answer.code, "")) }
}

fn drops(items: &[DropRow]) -> String {
    let end = |addr: &str, endpoint: &Option<String>| match endpoint {
        Some(name) => format!("{name} ({addr})"),
        None => addr.to_owned(),
    };
    let rows = items.iter().map(|row| {
        vec![
            row.count.to_string(),
            span(row.first_seconds),
            span(row.last_seconds),
            end(&row.from, &row.from_endpoint),
            end(&row.to, &row.to_endpoint),
            row.what.clone(),
            row.rule.clone(),
        ]
    });
    let mut out = table(&["COUNT", "FIRST", "LAST", "FROM", "TO", "WHAT", "RULE"], rows.collect());
    out.push_str(match items {
        [] => "no rule dropped a packet in that time\n",
        _ => "at most ten packets per second and rule are counted   [packets-denied]\n",
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units() {
        assert_eq!(seconds("90"), Ok(90));
        assert_eq!(seconds("10m"), Ok(600));
        assert_eq!(seconds("2h"), Ok(7_200));
        assert!(seconds("m").is_err() && seconds("1w").is_err() && seconds("-1").is_err());
    }
}
