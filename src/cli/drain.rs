//! `tortie bgp drain`: graceful shutdown towards peers (RFC 8326) in steps, with the result of each step.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::client::Client;
use super::failure::{Exit, Failure};
use super::output::{self, Format, table};
use crate::api::bgp::Peer;
use crate::api::status::{ActionResult, DrainRequest, List};

/// Interval of queries for the state of peers.
const LOOK: Duration = Duration::from_millis(100);

/// Arguments of `tortie bgp drain`.
#[derive(Debug, Args)]
pub(super) struct Drain {
    /// Session names, node names or addresses [default: all sessions, including future ones]
    peers: Vec<String>,
    /// End the drain: announce routes as usual again
    #[arg(long, conflicts_with = "withdraw")]
    undo: bool,
    /// When peers have received the announcements, wait for --grace, then withdraw all routes
    #[arg(long)]
    withdraw: bool,
    /// Seconds between the announcements and the withdrawal, for networks behind the peers to converge
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "withdraw")]
    grace: u64,
    /// Seconds to wait for peers
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
}

/// Result for one peer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    peer: String,
    name: String,
    /// Result: `taken` (messages received), `waiting` or `down`.
    result: &'static str,
    drain: String,
    advertised: u64,
}

/// JSON answer of the command.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// Step: `announce`, `withdraw` or `off`.
    drain: &'static str,
    items: Vec<Row>,
}

pub(super) async fn run(client: &Client, format: Format, drain: &Drain) -> Result<(), Failure> {
    if drain.undo {
        let done = order(client, drain, "off").await?;
        return output::print(format, &done, |out, _| {
            let _ = writeln!(out, "{}", done.text);
        });
    }
    let mut report = step(client, drain, "announce").await?;
    if drain.withdraw && all_taken(&report) {
        tokio::time::sleep(Duration::from_secs(drain.grace)).await;
        report = step(client, drain, "withdraw").await?;
    }
    output::print(format, &report, |out, _| out.push_str(&text(&report)))?;
    if all_taken(&report) {
        return Ok(());
    }
    let text = format!(
        "not every established peer has received its routes within {} s{}",
        drain.timeout,
        if drain.withdraw {
            "; routes are withdrawn only after they were announced with GRACEFUL_SHUTDOWN"
        } else {
            ""
        }
    );
    Err(Failure::new(Exit::TimedOut, "timeout", text))
}

async fn order(client: &Client, drain: &Drain, what: &str) -> Result<ActionResult, Failure> {
    let request = DrainRequest { peers: drain.peers.clone(), drain: what.to_owned() };
    client.post("/v1/bgp/drain", &request).await
}

/// Starts a step, and waits until all established peers have received its messages.
async fn step(client: &Client, drain: &Drain, what: &'static str) -> Result<Report, Failure> {
    order(client, drain, what).await?;
    let end = Instant::now() + Duration::from_secs(drain.timeout);
    loop {
        let list: List<Peer> = client.get("/v1/bgp/peers").await?;
        // Only the agent resolves names of peers, so the peers are those that it drains in this step.
        let items = list.items.iter().filter(|p| p.drain == what).map(|p| Row {
            peer: p.address.clone(),
            name: p.name.clone(),
            result: match (p.state == "Established", p.drain_sent) {
                (false, _) => "down",
                (true, true) => "taken",
                (true, false) => "waiting",
            },
            drain: p.drain.clone(),
            advertised: p.families.iter().map(|f| f.advertised).sum(),
        });
        let report = Report { drain: what, items: items.collect() };
        let nobody = report.items.is_empty() && !list.items.is_empty();
        if (all_taken(&report) && !nobody) || Instant::now() >= end {
            return Ok(report);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn all_taken(report: &Report) -> bool {
    report.items.iter().all(|row| row.result != "waiting")
}

fn text(report: &Report) -> String {
    let rows = report.items.iter().map(|row| {
        let result = match row.result {
            "taken" => "has received all routes",
            "down" => "session is down; the drain applies when it comes up",
            _ => "has not received all routes yet",
        };
        vec![row.peer.clone(), row.name.clone(), row.advertised.to_string(), result.to_owned()]
    });
    let mut out = table(&["PEER", "NAME", "PFXSNT", "RESULT"], rows.collect());
    let what = match report.drain {
        "withdraw" => "all routes are withdrawn",
        _ => "all routes are announced with GRACEFUL_SHUTDOWN",
    };
    let _ = writeln!(out, "\n{what}; `tortie bgp drain --undo` or a restart of the agent ends this");
    out
}
