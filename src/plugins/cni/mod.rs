//! The two plugins of the Container Network Interface: `tortie-cni` makes interfaces, `tortie-ipam` gives addresses.
//!
//! What it does: the protocol in all versions from 0.1.0 to 1.1.0, and the areas of its extension conventions. What it does
//! not: choose addresses (ipam), touch interfaces (kernel) or bring endpoints into force (the agent).
//!
//! ```text
//!  environment --env.rs----+
//!  stdin -------config.rs--+-> a call -> answer -> stdout
//! ```

mod env;
mod error;
mod version;

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

pub use env::{Command, Env, is_identifier};
pub use error::{CniError, code};
pub use version::Version;

/// Which of the two plugins this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    /// `tortie-cni`
    Main,
    /// `tortie-ipam`
    Ipam {
        /// Called `calico-ipam`: /32 and /128 without gateway, whatever calls it.
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

/// Most bytes of a configuration.
const INPUT_MAX: u64 = 1_000_000;

/// Runs one call: the environment and stdin in, the answer to stdout.
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
        // Runtimes ask at every command: nothing else has started yet, and nothing else does.
        Ok(Some(env)) if env.command == Command::Version => {
            Ok(Some(Version::answer(&input(INPUT_MAX).unwrap_or_default())))
        }
        Ok(Some(env)) => {
            let msg = format!("CNI_COMMAND is {}, which this version does not answer", env.command.as_str());
            Err((Version::NEWEST, CniError::new(code::ENVIRONMENT, msg)))
        }
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

/// What the runtime wrote. A terminal writes nothing.
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
