//! Load generator of the benchmarks: BGP peers that announce routes to a daemon, count the routes that it
//! sends, and measure its CPU time and memory.
//!
//! ```text
//! bgp_load plan SCENARIO                    prints the peers, for the daemon's configuration
//! bgp_load run SCENARIO --pids 12,34        runs the scenario; prints one JSON object per measurement
//! bgp_load table RESULTS                    prints these objects as a Markdown table
//! ```
//!
//! `benches/side-by-side.sh` creates the two network namespaces that it needs and runs the daemons;
//! `benches/README.md` describes each scenario.

mod fib;
mod load;
mod measure;
mod mix;
mod mrt;
mod received;
mod run;
mod scenario;
mod session;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use scenario::Scenario;

/// Load for BGP daemons.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print what a daemon has to be configured with.
    Plan(Which),
    /// Run a scenario.
    Run {
        #[command(flatten)]
        which: Which,
        /// Port of the daemon.
        #[arg(long, default_value_t = 179)]
        port: u16,
        /// All processes of the daemon.
        #[arg(long, value_delimiter = ',')]
        pids: Vec<u32>,
        /// Another seed gives other prefixes and attributes.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Seconds after which to give up.
        #[arg(long, default_value_t = 60)]
        timeout: u64,
        /// File with the time at which the daemon was started, seconds since 1970.
        #[arg(long)]
        started: Option<PathBuf>,
        /// Seconds to measure the daemon idle after D.
        #[arg(long, default_value_t = 0)]
        idle: u64,
    },
    /// Print results side by side.
    Table {
        /// Files with JSON objects, one a line.
        #[arg(required = true)]
        results: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct Which {
    /// Its name.
    scenario: String,
    /// Prefixes of IPv6, over IPv6.
    #[arg(long, default_value = "v4", value_parser = ["v4", "v6"])]
    mix: String,
    /// MRT files that R replays: tables first, then updates.
    #[arg(long)]
    mrt: Vec<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let scenario = |which: &Which| Scenario::named(&which.scenario, which.mix == "v6", &which.mrt);
    match Cli::parse().command {
        Command::Plan(which) => print!("{}", scenario(&which)?.plan()),
        Command::Run { which, port, pids, seed, timeout, started, idle } => {
            raise_file_limit();
            let options = run::Options {
                port,
                daemon: measure::Processes(pids),
                seed,
                timeout: Duration::from_secs(timeout),
                started,
                idle: Duration::from_secs(idle),
            };
            for row in run::run(&scenario(&which)?, &options)? {
                println!("{}", serde_json::Value::Object(row));
            }
        }
        Command::Table { results } => print!("{}", table::markdown(&results)?),
    }
    Ok(())
}

fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If this fails, connections beyond the limit fail, and the generator reports that.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
