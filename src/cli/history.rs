//! `tortie history`: shows past events from the agent's flight recorder.

use std::fmt::Write as _;

use clap::Subcommand;

use super::client::{Client, escape};
use super::context::Context;
use super::failure::Failure;
use super::monitor::line;
use super::output;
use crate::api::status::{Event, List};
use crate::cli::explain::seconds;

/// Arguments of `tortie history`: filters of past events.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct History {
    #[command(subcommand)]
    of: Option<Of>,
    /// Only entries of this last span of time: 30s, 10m, 2h, 1d or seconds
    #[arg(long, global = true, value_name = "SPAN", value_parser = seconds)]
    since: Option<u64>,
    /// At most this many of the newest entries
    #[arg(long, global = true, value_name = "N", default_value_t = 1_000)]
    max: usize,
}

#[derive(Debug, Clone, Subcommand)]
enum Of {
    /// Changes of a session
    Peer {
        /// Session name, node name or address
        name: String,
    },
    /// Changes of a prefix, of prefixes within it and of prefixes that cover it
    Route {
        /// A prefix or an address
        #[arg(value_name = "PREFIX|ADDRESS", value_parser = super::context::prefix_or_address)]
        prefix: String,
    },
    /// Changes of an endpoint
    Endpoint {
        /// Any of its names
        name: String,
    },
    /// Entries of one change, by the change id in logs and other entries
    Change {
        /// Such as c-7f31
        id: String,
    },
}

pub(super) async fn run(context: &Context, command: &History) -> Result<(), Failure> {
    let client = Client::of(&context.globals);
    let mut url = format!("/v1/history?max={}", command.max);
    let of = match &command.of {
        None => None,
        Some(Of::Peer { name }) => Some(("peer", name)),
        Some(Of::Route { prefix }) => Some(("prefix", prefix)),
        Some(Of::Endpoint { name }) => Some(("endpoint", name)),
        Some(Of::Change { id }) => Some(("subject", id)),
    };
    if let Some((name, value)) = of {
        let _ = write!(url, "&{name}={}", escape(value));
    }
    if let Some(since) = command.since {
        let _ = write!(url, "&since={since}");
    }
    let list: List<Event> = client.get(&url).await?;
    output::print(context.globals.output, &list, |out, _| {
        for event in &list.items {
            out.push_str(&line(event, true));
        }
    })?;
    if list.items.is_empty() && context.globals.output.is_text() {
        eprintln!(
            "tortie: no entry matches; the recorder starts with the agent and keeps the last 16,384 entries"
        );
    }
    Ok(())
}
