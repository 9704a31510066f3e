//! The two plugins of the Container Network Interface: `tortie-cni` creates interfaces, `tortie-ipam`
//! allocates addresses.
//!
//! It implements the protocol in all versions from 0.1.0 to 1.1.0, and the areas of the extension
//! conventions. It does not select addresses (ipam), configure interfaces (kernel) or put endpoints in force
//! (the agent).
//!
//! ```text
//!  environment --protocol/env.rs--+
//!  stdin --------config/----------+-> a call -> result -> stdout
//! ```

mod addresses;
mod call;
mod config;
#[cfg(test)]
mod conventions;
mod delegate;
mod install;
mod ipam_plugin;
mod log;
mod main_plugin;
mod mtu;
mod protocol;
mod status;

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use serde_json::Value;

pub use crate::plugins::pools::PoolNames;
pub use addresses::names::{Identity, NETWORK_LABEL, handle};
pub use addresses::requests::{CniAddressRequest, address_requests};
pub use config::args::{Args, EnvArgs};
pub use config::datastore::{Datastore, options as store_options};
pub use config::runtime::{IpRange, RuntimeConfig};
pub use config::settings::{Frame, IpamSettings, LogSettings, LogTarget, PoolRef};
pub use config::{Attachment, Config, Strictness};
pub use install::{Done, InstallError, Installation, Network};
pub(crate) use mtu::MTU_FILE;
pub use protocol::address::Address;
pub use protocol::env::{Command, Env, is_identifier};
pub use protocol::error::{CniError, code};
pub use protocol::result::{CniResult, Dns, Interface, Ip, Route};
pub use protocol::version::Version;

/// The plugin that this process runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    /// `tortie-cni`, the main plugin.
    Main,
    /// `tortie-ipam`, the IPAM plugin.
    Ipam {
        /// True if called as `calico-ipam`: it returns /32 and /128 without gateway to every caller.
        calico: bool,
    },
}

impl Plugin {
    fn name(self) -> &'static str {
        match self {
            Self::Main => "tortie-cni",
            Self::Ipam { .. } => "tortie-ipam",
        }
    }
}

/// Maximum size of a configuration in bytes.
const INPUT_MAX: u64 = 1_000_000;
/// Maximum size in bytes of a configuration that lists the attachments of a host.
const GC_INPUT_MAX: u64 = 16_000_000;

/// An error with the version for its output.
type Failure = (Version, CniError);

/// Executes one call: reads the environment and stdin, and prints the result on stdout.
#[must_use]
pub fn run(plugin: Plugin) -> ExitCode {
    let answer = match Env::read(|name| std::env::var_os(name)) {
        Ok(None) => {
            let (name, version) = (plugin.name(), env!("CARGO_PKG_VERSION"));
            let versions = Version::ALL.map(Version::as_str).join(", ");
            eprintln!(
                "{name} {version}, a CNI plugin for versions {versions}; runtimes call it with CNI_COMMAND"
            );
            return ExitCode::SUCCESS;
        }
        // Runtimes call `VERSION` before every command, so it is answered before anything else starts.
        Ok(Some(env)) if env.command == Command::Version => {
            Ok(Some(Version::answer(&input(INPUT_MAX).unwrap_or_default())))
        }
        Ok(Some(env)) => answer(plugin, env),
        Err(error) => Err((Version::NEWEST, error)),
    };
    let (text, exit) = match answer {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(answer)) => (answer.to_string(), ExitCode::SUCCESS),
        Err((version, error)) => (error.to_json(version).to_string(), ExitCode::FAILURE),
    };
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush())
    {
        Ok(()) => exit,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Executes a command that needs a configuration.
fn answer(plugin: Plugin, env: Env) -> Result<Option<Value>, Failure> {
    let unknown = |error| (Version::NEWEST, error);
    let gc = env.command == Command::Gc;
    let input = input(if gc { GC_INPUT_MAX } else { INPUT_MAX }).map_err(unknown)?;
    let del = env.command == Command::Del;
    let strictness = match plugin {
        _ if del => Strictness::Lenient,
        Plugin::Main => Strictness::Refuse,
        Plugin::Ipam { .. } => Strictness::Ipam,
    };
    let mut config = Config::parse(&input, strictness, &[])?;
    let version = config.version;
    let with_version = |error| (version, error);
    supported(env.command, version).map_err(with_version)?;
    let (args, error) = EnvArgs::read(&env.args);
    match error {
        Some(error) if del => config.notes.push(format!("{error}; ignored")),
        Some(error) => return Err((version, error)),
        None => {}
    }
    log::start(&config.log, plugin.name());
    for note in &config.notes {
        tracing::warn!(target: "tortie", network = config.name, "{note}");
    }
    let node = call::node(&config).map_err(with_version)?;
    let call = call::Call { env, args, config, node, started_at: std::time::Instant::now(), input };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| (version, CniError::new(code::IO, format!("this process cannot start: {error}"))))?;
    let begin = std::time::Instant::now();
    let answer = runtime.block_on(async {
        let answer = match plugin {
            Plugin::Main => main_plugin::answer(&call).await,
            Plugin::Ipam { calico } => ipam_plugin::answer(&call, calico).await,
        };
        let name = if matches!(plugin, Plugin::Main) { "cni" } else { "cni-ipam" };
        let command = call.env.command.as_str();
        crate::plugins::metrics::report(&call.agent().socket, name, command, answer.is_ok(), begin.elapsed())
            .await;
        answer
    });
    let (command, network) = (call.env.command.as_str(), &call.config.name);
    let (container, ifname) = (&call.env.container_id, &call.env.ifname);
    let millis = begin.elapsed().as_millis();
    match &answer {
        Ok(_) => tracing::info!(target: "tortie", command, network, container, ifname, millis, "done"),
        Err(error) => {
            let code = error.code;
            tracing::error!(target: "tortie", command, network, container, ifname, millis, code, "{error}");
        }
    }
    // Does not wait for blocking work that a failed call left.
    runtime.shutdown_background();
    answer.map_err(with_version)
}

/// Rejects commands that the version of the configuration does not have.
fn supported(command: Command, version: Version) -> Result<(), CniError> {
    let since = match command {
        Command::Check => Version::V0_4_0,
        Command::Gc | Command::Status => Version::V1_1_0,
        Command::Add | Command::Del | Command::Version => return Ok(()),
    };
    if version >= since {
        return Ok(());
    }
    let (command, since, version) = (command.as_str(), since.as_str(), version.as_str());
    let msg = format!("CNI_COMMAND is {command}, which came with version {since}; `cniVersion` is {version}");
    Err(CniError::new(code::ENVIRONMENT, msg))
}

/// Reads stdin, which is empty if it is a terminal.
fn input(max: u64) -> Result<Vec<u8>, CniError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(Vec::new());
    }
    let mut bytes = Vec::new();
    stdin.lock().take(max + 1).read_to_end(&mut bytes).map_err(|error| {
        CniError::new(code::IO, format!("the configuration on stdin cannot be read: {error}"))
    })?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > max) {
        let msg = format!("the configuration on stdin has more than {max} bytes");
        return Err(CniError::new(code::DECODE, msg));
    }
    Ok(bytes)
}
