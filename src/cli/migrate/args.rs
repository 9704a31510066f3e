//! Arguments of `tortie migrate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::daemons::StopWith;

/// Default folder for the state of a migration.
pub(in crate::cli) const STATE_DIR: &str = "/var/lib/tortie/migrate";

/// Subcommands of `tortie migrate`.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum MigrateCommand {
    /// Check that this host can be moved: what runs here, what is not supported, what has to be fixed first;
    /// exit 1 if it cannot
    Check(CheckCommand),
    /// Show the exact steps of adopt, the effect of each on traffic, and its rollback; changes nothing
    Plan(Box<AdoptCommand>),
    /// Take this host over from BIRD and Felix; continues an interrupted run
    Adopt(Box<AdoptCommand>),
    /// Give this host back to BIRD and Felix, from any step of adopt
    Rollback(RollbackCommand),
    /// Convert the store of the v1 data model to Calico 3's objects; shows them, and writes them only into
    /// another, empty store; exit 1 if the store has to be corrected first
    Data(DataCommand),
}

impl MigrateCommand {
    /// True if the command starts an agent that writes the data model. A rollback is permitted on any store.
    pub(in crate::cli) fn writes_model(&self) -> bool {
        matches!(self, Self::Adopt(_))
    }
}

/// Options that all migration commands accept.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct Common {
    /// Folder for the progress of the migration and the state before it
    #[arg(long, value_name = "DIR", env = "TORTIE_MIGRATE_STATE", default_value = STATE_DIR)]
    pub(super) state_dir: PathBuf,
    /// Protocol number of Tortie's kernel routes, as configured for the agent
    #[arg(long, value_name = "N", env = "TORTIE_ROUTE_PROTOCOL", default_value_t = 179, value_parser = clap::value_parser!(u8).range(5..))]
    pub(super) route_protocol: u8,
    /// Metric of Tortie's kernel routes, as configured for the agent
    #[arg(long, value_name = "N", env = "TORTIE_ROUTE_METRIC", default_value_t = 1790, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) route_metric: u32,
    /// Seconds to wait for peers, the agent or Felix
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    pub(super) wait: u64,
}

/// Paths of BIRD's control sockets.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct Sockets {
    /// BIRD's control sockets, if they are not in /var/run/calico or /run/bird
    #[arg(long, value_name = "PATH", env = "TORTIE_BIRD_SOCKET", value_delimiter = ',')]
    pub(super) bird_socket: Vec<PathBuf>,
}

/// Arguments of `tortie migrate check`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct CheckCommand {
    #[command(flatten)]
    pub(super) sockets: Sockets,
    #[command(flatten)]
    pub(super) common: Common,
}

/// Arguments of `tortie migrate adopt` and `plan`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct AdoptCommand {
    #[command(flatten)]
    pub(super) stop: StopWith,
    /// Command that starts our agent, which has to program the kernel; run by `sh -c`
    #[arg(long, value_name = "COMMAND", default_value = "systemctl start tortie.service")]
    pub(super) agent_with: String,
    /// Take the host over although the states of Calico and Tortie differ
    #[arg(long)]
    pub(super) accept_differences: bool,
    /// Compare and show the steps; change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) sockets: Sockets,
    #[command(flatten)]
    pub(super) common: Common,
}

/// Arguments of `tortie migrate rollback`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct RollbackCommand {
    /// Command that starts Calico's daemons; run by `sh -c`. Units that `adopt --unit` stopped are started
    /// without it [example: docker start calico-node]
    #[arg(long, value_name = "COMMAND")]
    pub(super) start_with: Option<String>,
    /// Restore the saved rules although workloads were added since, whose packets Felix's rules drop until
    /// Felix runs
    #[arg(long)]
    pub(super) accept_differences: bool,
    /// Show the steps; change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

/// Arguments of `tortie migrate data`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct DataCommand {
    /// Store for the objects, which has to be empty: sqlite:PATH, etcd://HOST:PORT[,HOST:PORT...] or
    /// etcds://...; with the credentials of --datastore
    #[arg(long, value_name = "URL")]
    pub(super) to: Option<String>,
    /// Write the objects; without this nothing changes
    #[arg(long, requires = "to")]
    pub(super) write: bool,
}
