//! `tortie bgp mrt dump|updates|show|replay`: MRT files (RFC 6396).
//!
//! `dump` and `updates` write records that the agent sends over its socket; `show` and `replay` read a file
//! and need no agent.
//!
//! ```text
//!  agent --socket--> record.rs --> FILE --file.rs--> show.rs   --> stdout
//!                                               `--> replay.rs --> player.rs (messages) --> a BGP session
//! ```

mod file;
mod other_families;
mod player;
mod record;
mod replay;
mod show;

use std::path::PathBuf;

use clap::Subcommand;

use super::context::Context;
use super::failure::Failure;

/// Subcommands of `tortie bgp mrt`.
#[derive(Debug, Subcommand)]
pub(super) enum Mrt {
    /// Write the agent's BGP table to a file (TABLE_DUMP_V2)
    Dump {
        /// The file; `-` for stdout
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Write UPDATEs, OPENs, NOTIFICATIONs and state changes to a file as they come (BGP4MP_ET), until ctrl-c
    Updates {
        /// The file; `-` for stdout
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Only those of this peer: session name, node name or address
        #[arg(long, value_name = "PEER")]
        peer: Option<String>,
        /// End after this many seconds
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
    },
    /// Print the routes and messages of a file; with -o json one object a line
    Show {
        /// The file; `-` for stdin
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print counts only
        #[arg(long)]
        summary: bool,
        /// At most this many records
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Replay a file to a lab router in a BGP session
    Replay(replay::Replay),
}

pub(super) async fn run(context: &Context, command: &Mrt) -> Result<(), Failure> {
    match command {
        Mrt::Dump { file } => record::dump(context, file).await,
        Mrt::Updates { file, peer, seconds } => {
            record::updates(context, file, peer.as_deref(), *seconds).await
        }
        Mrt::Show { file, summary, limit } => show::run(context.globals.output, file, *summary, *limit),
        Mrt::Replay(replay) => replay::run(context.globals.output, replay).await,
    }
}
