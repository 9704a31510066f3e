//! The plugins for container runtimes: a thin layer on ipam, the store and the kernel.
//!
//! They implement the protocols of CNI, Docker and Kurma, and write transactions to the store. They do not
//! select addresses (ipam), program routes and rules of endpoints (the agent does, on an `Applied` request),
//! or run the agent's core. A plugin is the same executable under another name, which is evaluated before
//! anything expensive starts, because runtimes call `VERSION` before every command.
//!
//! ```text
//!  argv[0] -> entry_point() -> tortie-cni, calico        cni::main_plugin --+--> ipam (store)
//!                           -> tortie-ipam, calico-ipam  cni::ipam_plugin --+--> attach
//!                           -> .../setup, add, del       kurma::run       --+
//!                           -> anything else             the command line
//! ```

pub mod attach;
pub mod cni;
pub mod docker;
pub mod kurma;
pub mod metrics;
mod pools;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// Plugin that the name of the executable selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryPoint {
    /// The CNI plugin that creates interfaces.
    Cni,
    /// The CNI plugin that only allocates addresses.
    Ipam {
        /// True if called as `calico-ipam`, so that results have Calico's form.
        calico: bool,
    },
    /// The network plugin of Kurma.
    Kurma(kurma::Verb),
}

/// Returns the entry point for this `argv[0]`, or `None` for the command line.
#[must_use]
pub fn entry_point(argv0: &OsStr) -> Option<EntryPoint> {
    let path = Path::new(argv0);
    match path.file_name()?.to_str()? {
        "tortie-cni" | "calico" => Some(EntryPoint::Cni),
        "tortie-ipam" => Some(EntryPoint::Ipam { calico: false }),
        "calico-ipam" => Some(EntryPoint::Ipam { calico: true }),
        // These names are common to other programs, so they need a path, as in Kurma's calls.
        name if path.parent().is_some_and(|dir| dir != Path::new("")) => {
            kurma::Verb::of(name).map(EntryPoint::Kurma)
        }
        _ => None,
    }
}

/// Runs the plugin that the name of this process selects, or returns `None` for the command line.
#[must_use]
pub fn dispatch() -> Option<ExitCode> {
    let argv0 = std::env::args_os().next()?;
    Some(match entry_point(&argv0)? {
        EntryPoint::Cni => cni::run(cni::Plugin::Main),
        EntryPoint::Ipam { calico } => cni::run(cni::Plugin::Ipam { calico }),
        EntryPoint::Kurma(verb) => {
            let args: Vec<String> =
                std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
            kurma::run(verb, &args)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_executable_selects_the_door() {
        for (argv0, expected) in [
            ("/opt/cni/bin/tortie-cni", Some(EntryPoint::Cni)),
            ("tortie-cni", Some(EntryPoint::Cni)),
            ("/opt/cni/bin/calico", Some(EntryPoint::Cni)),
            ("./tortie-ipam", Some(EntryPoint::Ipam { calico: false })),
            ("/opt/cni/bin/calico-ipam", Some(EntryPoint::Ipam { calico: true })),
            ("/usr/bin/tortie", None),
            ("tortie-cni/", Some(EntryPoint::Cni)),
            ("/opt/network/setup", Some(EntryPoint::Kurma(kurma::Verb::Setup))),
            ("/opt/network/setup-wait", Some(EntryPoint::Kurma(kurma::Verb::SetupWait))),
            ("/opt/network/add", Some(EntryPoint::Kurma(kurma::Verb::Add))),
            ("./del", Some(EntryPoint::Kurma(kurma::Verb::Del))),
            ("add", None),
            ("/opt/network/sub", None),
            ("", None),
        ] {
            assert_eq!(entry_point(OsStr::new(argv0)), expected, "{argv0}");
        }
    }
}
