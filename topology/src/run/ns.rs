//! Creates and enters namespaces. This is the only file of the crate with `unsafe` outside of
//! [`crate::netns`].
//!
//! Namespaces belong to threads, so every entry uses a short-lived thread, and the rest of the process stays
//! in its namespaces. A process started from that thread stays in the namespaces of the thread.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::mount::MountFlags;
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Runs `f` on a thread in the namespaces of process `pid`: network, and with `whole` also mount, UTS, IPC
/// and, for processes that it starts, process id.
pub(crate) fn inside<T: Send>(
    pid: i32,
    whole: bool,
    f: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let mut kinds = vec![("net", LinkNameSpaceType::Network)];
    if whole {
        kinds.extend([
            ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
            ("ipc", LinkNameSpaceType::InterProcessCommunication),
            ("pid", LinkNameSpaceType::ProcessID),
            ("mnt", LinkNameSpaceType::Mount),
        ]);
    }
    // All files are opened before the first namespace is entered, since /proc may look different afterwards.
    let open = |(name, kind)| Ok((File::open(format!("/proc/{pid}/ns/{name}"))?, kind));
    let spaces = kinds.into_iter().map(open).collect::<io::Result<Vec<_>>>()?;
    on_thread(move || {
        if whole {
            detach(UnshareFlags::FS)?;
        }
        for (file, kind) in &spaces {
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(*kind))?;
        }
        f()
    })
}

/// Runs `f` on a thread with new network, mount, UTS and IPC namespaces. Processes that it starts are in a
/// new process id namespace, in which the first one has number 1. Mounts made there are not visible outside.
pub(crate) fn fresh<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    on_thread(move || {
        let all = UnshareFlags::FS
            | UnshareFlags::NEWNET
            | UnshareFlags::NEWNS
            | UnshareFlags::NEWUTS
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWPID;
        detach(all)?;
        rustix::mount::mount_change(
            "/",
            rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
        )?;
        f()
    })
}

fn on_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("lab-namespace".to_owned()).spawn_scoped(scope, f)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn detach(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: `unshare` is dangerous if it gives a thread its own table of file descriptors (CLONE_FILES).
    // This flag is never used here, so descriptors are valid on every thread.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(flags)?;
    }
    Ok(())
}

/// Makes `command` the first process of a namespace created by [`fresh`]: it mounts /proc for that namespace,
/// ignores SIGCHLD so that ended processes are reaped, and is detached from the terminal's signals.
pub(crate) fn first_process(command: &mut Command) {
    // SAFETY: between fork and exec only system calls are made; nothing is allocated and no lock is taken.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(|| {
            let _ = rustix::process::setsid();
            // Refused in containers that hide parts of /proc. The outer /proc then stays mounted, and shows
            // too many processes.
            let _ = rustix::mount::mount(
                c"proc",
                c"/proc",
                c"proc",
                MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
                None,
            );
            if libc::signal(libc::SIGCHLD, libc::SIG_IGN) == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Makes `command` run as process number 1 in its own namespaces (network, mount, process id, UTS, IPC; with
/// `user`, a user and a group id, also a user namespace in which that user is root), and end with the thread
/// that starts it. The child that [`Command::spawn`] returns represents it: it has the same exit status, and
/// killing it kills everything inside.
pub(super) fn sandbox(command: &mut Command, user: Option<(u32, u32)>) {
    let maps = user.map(|(uid, gid)| (format!("0 {uid} 1\n"), format!("0 {gid} 1\n")));
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only system calls are made; the texts were allocated before. The second
    // fork happens in a process with one thread; its parent never returns into the program.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || {
            let mut flags = UnshareFlags::NEWNS
                | UnshareFlags::NEWNET
                | UnshareFlags::NEWPID
                | UnshareFlags::NEWUTS
                | UnshareFlags::NEWIPC;
            if maps.is_some() {
                flags |= UnshareFlags::NEWUSER;
            }
            rustix::thread::unshare_unsafe(flags)?;
            if let Some((uid_map, gid_map)) = &maps {
                // After a change of user the files below would belong to root.
                rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)?;
                write(c"/proc/self/setgroups", b"deny")?;
                write(c"/proc/self/uid_map", uid_map.as_bytes())?;
                write(c"/proc/self/gid_map", gid_map.as_bytes())?;
            }
            // Set after the change of credentials, which would clear it.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            match libc::fork() {
                -1 => Err(io::Error::last_os_error()),
                0 => sandboxed(),
                child => stand_for(child),
            }
        });
    }
}

/// Sets up the first process inside the sandbox.
fn sandboxed() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let propagation =
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    rustix::mount::mount_change(c"/", propagation)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(c"proc", c"/proc", c"proc", flags, None)?;
    rustix::mount::mount(
        c"tmpfs",
        c"/run",
        c"tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(c"mode=755"),
    )?;
    // Otherwise /sys shows the interfaces of the outer network; nothing depends on this, so errors are
    // ignored.
    let _ = rustix::mount::mount(c"sysfs", c"/sys", c"sysfs", flags, None);
    Ok(())
}

/// Waits for the first process inside and ends with its status. Never returns.
fn stand_for(child: i32) -> ! {
    // SAFETY: only system calls are made; this process has one thread and shares no memory with the program
    // that it was forked from. Descriptors are closed first: one of them is the pipe by which the starting
    // process learns that exec succeeded.
    #[allow(unsafe_code)]
    unsafe {
        // The system call is made directly, because musl has no function for it.
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
        // A terminal's interrupt is for the process inside; this process ends after it.
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        let mut status = 0;
        while libc::waitpid(child, &raw mut status, 0) == -1 {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                libc::_exit(125);
            }
        }
        if libc::WIFSIGNALED(status) {
            libc::_exit(128 + libc::WTERMSIG(status));
        }
        libc::_exit(libc::WEXITSTATUS(status))
    }
}

fn write(path: &std::ffi::CStr, bytes: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(
        path,
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    rustix::io::write(&file, bytes)?;
    Ok(())
}

/// Checks that this process may create namespaces.
pub(crate) fn allowed() -> io::Result<()> {
    on_thread(|| detach(UnshareFlags::NEWNS | UnshareFlags::FS))
}
