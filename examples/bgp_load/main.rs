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

/// Load generator for BGP daemons.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the peers that a daemon must be configured with.
    Plan(Which),
    /// Run a scenario and print its measurements.
    Run {
        #[command(flatten)]
        which: Which,
        /// TCP port of the daemon.
        #[arg(long, default_value_t = 179)]
        port: u16,
        /// Process ids of the daemon, separated by commas.
        #[arg(long, value_delimiter = ',')]
        pids: Vec<u32>,
        /// Seed of the generator of prefixes and attributes.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Time limit in seconds.
        #[arg(long, default_value_t = 60)]
        timeout: u64,
        /// File with the start time of the daemon in seconds since 1970.
        #[arg(long)]
        started: Option<PathBuf>,
        /// Duration in seconds of the idle measurement after D.
        #[arg(long, default_value_t = 0)]
        idle: u64,
    },
    /// Print results of several daemons as one table.
    Table {
        /// Files with one JSON object per line.
        #[arg(required = true)]
        results: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct Which {
    /// Name of the scenario.
    scenario: String,
    /// Address family of prefixes and sessions.
    #[arg(long, default_value = "v4", value_parser = ["v4", "v6"])]
    mix: String,
    /// MRT files for scenario R: table dumps first, then recorded updates.
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
