//! Runs a whole program in namespaces: for demos and tests that must leave nothing behind, and need no root
//! privileges.

use std::fs;
use std::io;
use std::process::Command;

use super::{netlink::Netlink, ns};
use crate::error::LabError;

/// A way to run a program that builds labs without any effect outside.
///
/// Inside, the program is process number 1 with its own network, mounts (with an empty /run), process ids,
/// host name and IPC. The program and all processes that it started end when the process that started it ends
/// or is killed in any way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// This process may create namespaces; all users exist inside.
    Root,
    /// Also a user namespace, in which this user is root and the only user.
    Rootless {
        /// User id outside of the namespace.
        user: u32,
        /// Group id outside of the namespace.
        group: u32,
    },
}

impl Sandbox {
    /// Returns the way that is available to this process.
    ///
    /// # Errors
    /// [`LabError::Forbidden`] with a sentence that names the setting that forbids it.
    pub fn detect() -> Result<Self, LabError> {
        if ns::allowed().is_ok() {
            return Ok(Self::Root);
        }
        let mut probe = Command::new("/bin/true");
        let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        ns::sandbox(&mut probe, Some((user, group)));
        match probe.status() {
            Ok(status) if status.success() => Ok(Self::Rootless { user, group }),
            Ok(status) => Err(LabError::Forbidden(why_forbidden(&io::Error::other(format!(
                "the probe ended with {status}"
            ))))),
            Err(e) => Err(LabError::Forbidden(why_forbidden(&e))),
        }
    }

    /// Makes `command` start inside. The thread that spawns it must live as long as the program should: the
    /// kernel ends a process with the thread, not with the process, that started it.
    ///
    /// The child that `spawn` returns represents the program: it has the same exit status (128 + N for signal
    /// N), and killing it ends everything inside.
    pub fn wrap(self, command: &mut Command) {
        let user = match self {
            Self::Root => None,
            Self::Rootless { user, group } => Some((user, group)),
        };
        ns::sandbox(command, user);
    }
}

/// Sets this process's loopback interface up, which is down in a new network namespace.
///
/// # Errors
/// The error of the kernel.
pub fn loopback_up() -> io::Result<()> {
    Netlink::here()?.set_up("lo", true)
}

/// Returns the reason why namespaces cannot be created, with the remedy.
pub(super) fn why_forbidden(error: &io::Error) -> String {
    let setting =
        |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).ok().map(|v| v.trim().to_owned());
    let because = if setting("user/max_user_namespaces").as_deref() == Some("0") {
        "sysctl user.max_user_namespaces is 0: set it to 10000 or run this with sudo".to_owned()
    } else if setting("kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        "sysctl kernel.unprivileged_userns_clone is 0: set it to 1 or run this with sudo".to_owned()
    } else if setting("kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        "sysctl kernel.apparmor_restrict_unprivileged_userns is 1: set it to 0 or run this with sudo"
            .to_owned()
    } else if rustix::process::geteuid().is_root() {
        "this looks like a container without CAP_SYS_ADMIN: start it with --privileged".to_owned()
    } else {
        "a seccomp filter or a security module forbids it: run this with sudo".to_owned()
    };
    format!("no namespaces can be made here ({error}): {because}")
}
