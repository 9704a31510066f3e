//! `tortie why packet`: what becomes of a packet on the live host.

use clap::Subcommand;

use super::Context;
use super::client::Client;
use super::failure::Failure;
use super::trace;
use crate::serve::policy::Trace;

/// The why family of commands.
#[derive(Debug, Subcommand)]
pub(super) enum Why {
    /// As `policy trace`, with the interfaces and routes that this host has now; exit 1 when it is denied
    Packet {
        #[command(flatten)]
        packet: trace::PacketArgs,
    },
}

pub(super) async fn run(context: &Context, command: &Why) -> Result<(), Failure> {
    let client = Client::new(&context.globals.socket);
    match command {
        Why::Packet { packet } => {
            let found: Trace = client.get(&trace::path("/v1/why/packet", &packet.query())).await?;
            trace::print(context.globals.output, &found)
        }
    }
}
