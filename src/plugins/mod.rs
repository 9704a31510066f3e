//! The front doors for those who start containers: thin, on top of ipam, the store and the kernel.
//!
//! What it does: speaks the protocols of CNI, Docker and Kurma, and writes transactions on the store. What it does not:
//! decide which address is free (ipam), program routes and rules of endpoints (the agent, asked by `Applied`), or run the
//! agent's core. A plugin is the same executable under another name, chosen before anything heavy starts: runtimes call
//! `VERSION` at every command.
//!
//! ```text
//!  argv[0] -> door() -> tortie-cni, calico         cni::main_plugin  --+--> ipam (store)
//!                    -> tortie-ipam, calico-ipam   cni::ipam_plugin  --+--> attach (links, endpoint, Applied)
//!                    -> .../setup, add, del       kurma::run         --+
//!                    -> anything else              the command line
//! ```

pub mod attach;
pub mod cni;
pub mod docker;
pub mod kurma;
pub mod metrics;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// What the name of the executable selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryPoint {
    /// The CNI plugin that makes interfaces.
    Cni,
    /// The CNI plugin that gives addresses only. `calico`: called by Calico's name, it answers in Calico's form.
    Ipam {
        /// Called `calico-ipam`.
        calico: bool,
    },
    /// The network plugin of Kurma.
    Kurma(kurma::Verb),
}

/// The door that this `argv[0]` selects; `None`: the command line.
#[must_use]
pub fn entry_point(argv0: &OsStr) -> Option<EntryPoint> {
    let path = Path::new(argv0);
    match path.file_name()?.to_str()? {
        "tortie-cni" | "calico" => Some(EntryPoint::Cni),
        "tortie-ipam" => Some(EntryPoint::Ipam { calico: false }),
        "calico-ipam" => Some(EntryPoint::Ipam { calico: true }),
        // Words that other programs are called, too: only with a path, as Kurma calls them.
        name if path.parent().is_some_and(|dir| dir != Path::new("")) => {
            kurma::Verb::of(name).map(EntryPoint::Kurma)
        }
        _ => None,
    }
}

/// Runs the plugin that the name of this process selects; `None`: it is the command line.
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
