//! The command line: one file per command or family of commands.
//!
//! It parses arguments, queries the agent over its unix socket or opens the store, prints tables, JSON or
//! YAML, and exits with a documented code. Decisions are left to the agent.
//!
//! ```text
//!  arguments -> Context -> status | bgp | route --client.rs--> agent
//!                       -> endpoint | policy    --offline.rs-> agent, or store with `--offline`
//!                       -> store | selector     -------------> store, config
//!                       -> lab | demo           -------------> topology
//!                       -> bgp mrt              -------------> files; tortie-bgp parses and replays them
//!                       -> agent                -------------> the agent itself, in this process
//! ```

mod agent;
mod aliases;
mod bgp;
mod calico_file;
mod client;
mod cni;
mod complete;
mod configured_peers;
mod context;
#[doc(hidden)]
pub mod demo;
mod diags;
mod diff;
mod docker;
mod doctor;
mod drain;
mod dry_run;
mod endpoint;
mod environment_file;
mod explain;
mod failure;
mod history;
mod ipam;
mod kurma;
mod lab;
mod live;
mod log;
mod man;
mod migrate;
#[cfg(test)]
mod model_guard_tests;
mod monitor;
mod mrt;
#[cfg(test)]
mod next_tests;
mod node;
mod node_delete;
mod node_settings;
mod nodes;
mod offline;
pub mod output;
mod policy;
mod purge;
mod replay;
mod route;
mod schema;
mod selector;
mod status;
mod store;
mod store_export;
mod store_names;
mod store_project;
mod store_validate;
mod supposed;
mod top;
mod trace;
mod watch;

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use client::{Client, escape};
pub use context::Globals;
use context::{Context, report, runtime};
pub use failure::{Exit, Failure};
use output::Format;
use tortie_store::Purpose;
use watch::{From, repeat};

/// One process per host for BGP, IPAM, kernel routes and policy, in networks on Calico's data in etcd.
#[derive(Debug, Parser)]
#[command(name = "tortie", version, propagate_version = true, max_term_width = 120)]
#[command(
    after_help = "Exit codes: 0 yes or done, 1 no, 2 wrong usage or invalid input, 3 agent or store not reachable, \
4 no permission,\n5 timed out, 6 partial answer, 7 refused by a safety check."
)]
pub struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent of this host
    Agent(Box<agent::AgentCommand>),
    /// One screen: what works, what does not, and what to do next
    Status(status::StatusCommand),
    /// BGP sessions and routes
    #[command(subcommand)]
    Bgp(bgp::Bgp),
    /// Kernel routes
    #[command(subcommand)]
    Route(route::Route),
    /// Workload and host endpoints, with the rules that their packets pass
    #[command(subcommand)]
    Endpoint(endpoint::EndpointCommand),
    /// Policies and profiles
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Explain the state of a session, a route, a packet or an address
    #[command(subcommand)]
    Why(explain::Why),
    /// Show recent changes: the last 16,384 with their reasons, and the last 16 of each of 4,096 prefixes
    History(history::History),
    /// Follow changes live: one line per entry, with `-o json` one object per line
    Monitor(monitor::Monitor),
    /// Watch sessions and changes on one live screen
    Top,
    /// Show differences between the kernel and the desired state; exit 1 when there are any
    Diff(diff::DiffCommand),
    /// Pools, blocks and addresses, directly in the store
    #[command(subcommand)]
    Ipam(ipam::IpamCommand),
    /// Hosts in the store
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Keys and values of the data model, directly in the store
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Evaluate label selectors
    #[command(subcommand)]
    Selector(selector::SelectorCommand),
    /// Install and check the CNI plugins
    #[command(subcommand)]
    Cni(cni::CniCommand),
    /// Run a network of hosts with a real router on this machine, and check that it works
    Demo(demo::DemoCommand),
    /// Serve the Docker drivers without the agent's own flag --docker
    Docker(docker::DockerCommand),
    /// Check that the agent can work on this host, and show the fix of each problem; exit 1 when a check
    /// fails
    Doctor,
    /// Log levels of the agent
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Write one file to attach to a report: the state of agent, store, kernel and system, without secrets
    Diags(diags::DiagsCommand),
    /// Replay the journal of `tortie diags`: the agent's decisions on each input and its state at any time;
    /// exit 1 when this version decides otherwise
    Replay(replay::ReplayCommand),
    /// Move this host from Calico's BIRD, confd and Felix to Tortie, and back
    #[command(subcommand)]
    Migrate(migrate::MigrateCommand),
    /// Remove what the agent keeps on this host when it stops: routes, rules, files, and with --keys its keys
    /// in the store
    Purge(purge::PurgeCommand),
    /// Labs of network namespaces from containerlab files
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Kurma's network plugin, as /opt/network/setup, add and del of its container, with the configuration on
    /// stdin
    #[command(subcommand)]
    Kurma(kurma::KurmaCommand),
    /// Print a shell script that completes commands, flags and existing names
    Completion(complete::CompletionCommand),
    /// What the scripts of `completion` ask
    #[command(name = "__complete", hide = true)]
    Complete(complete::CompleteCommand),
    /// The agent's helper, which enters network namespaces: its requests come on stdin
    #[command(name = crate::agent::NAMESPACE_HELPER, hide = true)]
    Namespaces,
    /// Print the JSON Schema of the output of commands
    Schema(schema::SchemaCommand),
    /// Manual pages
    Man(man::ManCommand),
    /// The version of this program
    Version,
}

/// Runs the command line and returns the exit code.
#[must_use]
pub fn run() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if words.len() <= 1 {
        return short();
    }
    // If `CI` is set, clap would also use colours on a dumb terminal.
    let color =
        if crate::api::terminal::is_dumb() { clap::ColorChoice::Never } else { clap::ColorChoice::Auto };
    let said = match Cli::command().color(color).try_get_matches_from(aliases::rewrite(words)) {
        Ok(said) => said,
        Err(error) => return misused(&error),
    };
    let mut cli = match Cli::from_arg_matches(&said) {
        Ok(cli) => cli,
        Err(error) => return misused(&error.format(&mut Cli::command().color(color))),
    };
    let format = cli.globals.output;
    let keys = cli.command.prints_exactly();
    output::style(cli.globals.no_headers, cli.globals.color, cli.globals.watch, keys, format);
    cli.globals.datastore_given =
        said.value_source("datastore") == Some(clap::parser::ValueSource::CommandLine);
    let file = std::path::Path::new(environment_file::FILE);
    let settled = environment_file::settle(&mut cli.globals, &said, file, |name| std::env::var(name).ok());
    match settled.and_then(|()| dispatch(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(format, &failure);
            failure.exit.into()
        }
    }
}

/// Prints the text of `tortie` without arguments: first commands, and the verdict if an agent answers.
fn short() -> ExitCode {
    let mut text = String::from(
        "Tortie: BGP, IPAM, kernel routes and policy of this host in one process.\n\n\
         \u{20} tortie status          what works, what does not, and what to do next\n\
         \u{20} tortie bgp peers       the BGP sessions\n\
         \u{20} tortie route list      the kernel's routes\n\
         \u{20} tortie endpoint list   workloads, and the rules that their packets pass\n\
         \u{20} tortie ipam show       pools, blocks and addresses\n\
         \u{20} tortie why ...         why a peer, a route, a packet or an address is as it is\n\
         \u{20} tortie demo            a network of hosts on this machine, shown working\n\
         \u{20} tortie help            every command\n",
    );
    let socket = Cli::command().get_arguments().find(|arg| arg.get_id() == "socket").and_then(|arg| {
        std::env::var_os("TORTIE_SOCKET")
            .or_else(|| arg.get_default_values().first().map(|v| v.to_os_string()))
    });
    let status = socket.zip(runtime().ok()).and_then(|(socket, runtime)| {
        let client = Client::new(std::path::Path::new(&socket));
        let asked =
            async { tokio::time::timeout(std::time::Duration::from_secs(1), client.get("/v1/status")).await };
        runtime.block_on(asked).ok()?.ok()
    });
    if let Some(status) = status {
        let _ = write!(text, "\n{}\n", status::headline(&status));
    }
    match output::write_out(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit.into(),
    }
}

/// Prints help, version or a usage error; the error is JSON if that was requested.
fn misused(error: &clap::Error) -> ExitCode {
    let words: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let json = words.iter().any(|w| w == "-ojson" || w == "-o=json" || w == "--output=json")
        || words
            .windows(2)
            .any(|w| matches!(w, [flag, value] if value == "json" && (flag == "-o" || flag == "--output")));
    if error.use_stderr() && json {
        let text = error.render().to_string();
        let text = text.trim().trim_start_matches("error: ");
        report(Format::Json, &Failure::usage(text));
        return Exit::Usage.into();
    }
    // A closed pipe is not an error.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS }
}

impl Command {
    /// True if the output is store keys, or in a format that another party defines.
    fn prints_exactly(&self) -> bool {
        matches!(
            self,
            Self::Store(_)
                | Self::Cni(_)
                | Self::Kurma(_)
                | Self::Completion(_)
                | Self::Complete(_)
                | Self::Schema(_)
                | Self::Man(_)
        )
    }

    /// Returns as what the command writes the data model. The match lists every command, so that a new one
    /// cannot be forgotten. `store put`, `rm` and `import` write the keys that a user names, of any model.
    fn writes_model(&self) -> Option<Purpose> {
        match self {
            Self::Ipam(ipam::IpamCommand::Pool(_)) => Some(Purpose::Pools),
            Self::Ipam(command) => command.writes().then_some(Purpose::Ipam),
            Self::Node(command) => command.writes().then_some(Purpose::NodeDelete),
            Self::Purge(command) => command.writes_model().then_some(Purpose::Purge),
            Self::Migrate(command) => command.writes_model().then_some(Purpose::Adopt),
            Self::Docker(_) => Some(Purpose::Docker),
            // The agent reports this in its status; plugins have their own format for errors.
            Self::Agent(_) | Self::Kurma(_) => None,
            Self::Status(_)
            | Self::Bgp(_)
            | Self::Route(_)
            | Self::Endpoint(_)
            | Self::Policy(_)
            | Self::Why(_)
            | Self::History(_)
            | Self::Monitor(_)
            | Self::Top
            | Self::Diff(_)
            | Self::Store(_)
            | Self::Selector(_)
            | Self::Cni(_)
            | Self::Demo(_)
            | Self::Doctor
            | Self::Log(_)
            | Self::Diags(_)
            | Self::Replay(_)
            | Self::Lab(_)
            | Self::Completion(_)
            | Self::Complete(_)
            | Self::Namespaces
            | Self::Schema(_)
            | Self::Man(_)
            | Self::Version => None,
        }
    }
}

/// Rejects the command before it reads or prints anything if it does not write the store's data model. Other
/// errors of the store are left to the command.
async fn refuse_other_model(context: &Context, purpose: Purpose) -> Result<(), Failure> {
    let Ok(store) = store::open(&context.globals, false).await else { return Ok(()) };
    match store.may_write(purpose).await {
        Err(error @ tortie_store::StoreError::Guarded(_)) => Err(error.into()),
        _ => Ok(()),
    }
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let context = Context { globals: cli.globals };
    if let Some(purpose) = cli.command.writes_model() {
        runtime()?.block_on(refuse_other_model(&context, purpose))?;
    }
    match &cli.command {
        Command::Agent(command) => agent::run(&context, command),
        Command::Status(command) => {
            repeat(&context, From::store_if(command.all_nodes), || status::run(&context, command))
        }
        // The output is a recording, which `--watch` must not repeat.
        Command::Bgp(bgp::Bgp::Mrt(command)) => runtime()?.block_on(mrt::run(&context, command)),
        Command::Bgp(command) => {
            let of_store =
                matches!(command, bgp::Bgp::Peers { all_nodes, offline } if *all_nodes || *offline);
            repeat(&context, From::store_if(of_store), || bgp::run(&context, command))
        }
        Command::Route(command) => repeat(&context, From::Agent, || route::run(&context, command)),
        Command::Endpoint(command) => {
            repeat(&context, From::store_if(command.is_offline()), || endpoint::run(&context, command))
        }
        Command::Policy(command) => {
            repeat(&context, From::store_if(command.is_offline()), || policy::run(&context, command))
        }
        Command::Why(command) => repeat(&context, From::Agent, || explain::run(&context, command)),
        Command::History(command) => repeat(&context, From::Agent, || history::run(&context, command)),
        Command::Monitor(command) => runtime()?.block_on(monitor::run(&context, command)),
        Command::Top => runtime()?.block_on(top::run(&context)),
        Command::Diff(command) => repeat(&context, From::Agent, || diff::run(&context, command)),
        Command::Ipam(command) if command.writes() => runtime()?.block_on(ipam::run(&context, command)),
        Command::Ipam(command) => repeat(&context, From::Store, || ipam::run(&context, command)),
        Command::Node(command) if command.writes() => runtime()?.block_on(node::run(&context, command)),
        Command::Node(command) => repeat(&context, From::Store, || node::run(&context, command)),
        Command::Store(command) => runtime()?.block_on(store::run(&context, command)),
        Command::Selector(command) => selector::run(&context, command),
        Command::Cni(command) => cni::run(&context, command),
        Command::Demo(command) => demo::run(&context, command),
        Command::Docker(command) => docker::run(&context, command),
        Command::Doctor => runtime()?.block_on(doctor::run(&context)),
        Command::Log(command) => runtime()?.block_on(log::run(&context, command)),
        Command::Diags(command) => runtime()?.block_on(diags::run(&context, command)),
        Command::Replay(command) => replay::run(&context, command),
        Command::Migrate(command) => runtime()?.block_on(migrate::run(&context, command)),
        Command::Purge(command) => runtime()?.block_on(purge::run(&context, command)),
        Command::Lab(command) => lab::run(&context, command),
        Command::Kurma(command) => kurma::run(&context, command),
        Command::Completion(command) => complete::script(&context, command),
        Command::Complete(command) => runtime()?.block_on(complete::run(&context, command)),
        Command::Namespaces => {
            crate::agent::enter_namespaces();
            Ok(())
        }
        Command::Schema(command) => schema::run(command),
        Command::Man(command) => man::run(&context, command),
        Command::Version => {
            let version = env!("CARGO_PKG_VERSION");
            let json =
                serde_json::json!({ "apiVersion": crate::api::status::API_VERSION, "version": version });
            output::print(context.globals.output, &json, |out, _| {
                let _ = writeln!(out, "tortie {version}");
            })
        }
    }
}
