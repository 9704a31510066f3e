//! Namespaces for a whole program: a demo or a test that must leave nothing behind, and needs no root.

use std::fs;
use std::io;
use std::process::Command;

use super::{netlink::Netlink, ns};
use crate::error::LabError;

/// A way to run a program where it may build labs and nothing of what it does is seen outside.
///
/// Inside, the program is process number 1 with its own network, mounts (with an empty /run), process ids, host name and
/// IPC. It and everything that it started ends when the process that started it does, or is killed by any means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// This process may make namespaces: all users exist inside.
    Root,
    /// A user namespace as well: inside, this user is root and the only one.
    Rootless {
        /// The number of the user that the program is started as, outside.
        user: u32,
        /// The number of its group.
        group: u32,
    },
}

impl Sandbox {
    /// The way that this process has.
    ///
    /// # Errors
    /// [`LabError::Forbidden`] with a sentence that names the setting in the way.
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

    /// Makes `command` start inside. The thread that spawns it has to live as long as it should: the kernel ties the
    /// life of a process to the thread, not to the process, that started it.
    ///
    /// The child that `spawn` returns stands for the program: same exit status (128 + N for signal N). Kill it, and
    /// everything inside is gone.
    pub fn wrap(self, command: &mut Command) {
        let user = match self {
            Self::Root => None,
            Self::Rootless { user, group } => Some((user, group)),
        };
        ns::sandbox(command, user);
    }
}

/// Sets this process's loopback interface up; in a fresh network it is down.
///
/// # Errors
/// What the kernel says.
pub fn loopback_up() -> io::Result<()> {
    Netlink::here()?.set_up("lo", true)
}

/// Why namespaces cannot be made here, and what to do.
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
