//! `tortie why packet|drop`: what becomes of a packet on the live host, and who is denied what.

use clap::Subcommand;

use super::Context;
use super::client::Client;
use super::failure::Failure;
use super::output::{self, span, table};
use super::trace;
use crate::serve::api::List;
use crate::serve::policy::{DropRow, Trace};

/// The why family of commands.
#[derive(Debug, Subcommand)]
pub(super) enum Why {
    /// As `policy trace`, with the interfaces and routes that this host has now; exit 1 when it is denied
    Packet {
        #[command(flatten)]
        packet: trace::PacketArgs,
    },
    /// Who holds an address, with endpoint, block, owner and routes: as `ipam show`
    Ip {
        /// The address
        address: std::net::IpAddr,
    },
    /// Who is denied what now, and by which rule: at most ten packets a second and rule are counted
    Drop {
        /// How far back: 30s, 10m, 2h or seconds
        #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = seconds)]
        since: u64,
    },
}

fn seconds(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err("write a number with s, m, h or d, such as 10m".to_owned()),
    };
    let number: u64 =
        number.parse().map_err(|_| "write a number with s, m, h or d, such as 10m".to_owned())?;
    Ok(number.saturating_mul(factor))
}

pub(super) async fn run(context: &Context, command: &Why) -> Result<(), Failure> {
    let client = Client::new(&context.globals.socket);
    match command {
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
    table(&["COUNT", "FIRST", "LAST", "FROM", "TO", "WHAT", "RULE"], rows.collect())
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
