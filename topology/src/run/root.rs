//! Root directory of a node: the files of this machine, with private /run and temporary directories, users,
//! and the binds of the lab.
//!
//! Every entry of `/` is bind-mounted in a new tmpfs. If a mount point does not exist, its parent directory
//! is replaced by a tmpfs that contains the same entries, so nothing is ever created in the directories of
//! this machine.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::plan::Space;

/// Directory of a node's substitute programs.
pub(crate) const PROGRAMS: &str = "/run/lab/bin";

/// Directories that are always private and empty, so that files written there do not reach this machine.
const PRIVATE: &[&str] = &["/run", "/var/tmp", "/var/log", "/var/lib/tortie", "/var/lib/calico", "/dev/shm"];

/// Builds the root directory and moves this thread's mount namespace into it. `stage` is an existing empty
/// directory for the construction, and `lab` the lab's own directory.
pub(crate) fn enter(space: &Space, stage: &Path, lab: &Path) -> io::Result<()> {
    let root = Root { new: stage.to_owned(), devices: RefCell::default() };
    root.tmpfs(stage)?;
    root.show(Path::new("/"), stage, &["run", "lost+found"])?;
    for dir in PRIVATE {
        root.private(Path::new(dir))?;
    }
    for dir in &space.tmpfs {
        root.private(dir)?;
    }
    // Mounts sysfs for the interfaces of this node. If a container forbids it, the outer one stays.
    let _ = rustix::mount::mount(
        "sysfs",
        stage.join("sys"),
        "sysfs",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    );
    for dir in ["lock", "netns", "lab/bin", "lab/etc"].iter().chain(&space.image.folders) {
        fs::create_dir_all(stage.join("run").join(dir))?;
    }
    root.programs(space)?;
    root.identity(space)?;
    for (path, content) in &space.image.files {
        root.file(Path::new(path), content.as_bytes())?;
    }
    for bind in &space.binds {
        let source = if bind.lab { lab.join(&bind.source) } else { bind.source.clone() };
        if bind.lab {
            fs::create_dir_all(&source).map_err(at(&source))?;
        }
        root.bind(&source, &bind.target, bind.read_only).map_err(at(&source))?;
    }
    rustix::process::chdir(stage)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    // Makes the directory below the stage visible again.
    let _ = rustix::mount::unmount(stage, UnmountFlags::DETACH);
    Ok(())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |e| io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

struct Root {
    /// Path at which the new root is built.
    new: PathBuf,
    /// Device numbers of the tmpfs mounted for it.
    devices: RefCell<Vec<u64>>,
}

impl Root {
    /// Bind-mounts the current entries of directory `from` in the empty directory `to`.
    fn show(&self, from: &Path, to: &Path, except: &[&str]) -> io::Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type()?;
            if except.iter().any(|e| entry.file_name() == *e) {
                if kind.is_dir() {
                    fs::create_dir(&target)?;
                }
            } else if kind.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?;
            } else {
                if kind.is_dir() {
                    fs::create_dir(&target)?;
                } else {
                    fs::File::create(&target)?;
                }
                rustix::mount::mount_bind_recursive(&source, &target).map_err(|e| at(&source)(e.into()))?;
            }
        }
        Ok(())
    }

    /// Creates a private empty directory at `dir`.
    fn private(&self, dir: &Path) -> io::Result<()> {
        let target = self.place(dir, true)?;
        self.tmpfs(&target)
    }

    /// Creates a private file at `path`.
    fn file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let name = path.strip_prefix("/").unwrap_or(path).to_string_lossy().replace('/', "+");
        let source = self.new.join("run/lab/etc").join(name);
        fs::write(&source, content)?;
        self.bind(&source, path, false)
    }

    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
        let source = fs::canonicalize(source)?;
        let target = self.place(target, source.is_dir())?;
        rustix::mount::mount_bind_recursive(&source, &target)?;
        if read_only {
            // In a user namespace, restrictions of the outer mount cannot be removed, so its flags are
            // repeated.
            let held = rustix::fs::statvfs(&target)?.f_flag;
            let mut flags = MountFlags::BIND | MountFlags::RDONLY;
            for (is, flag) in [
                (rustix::fs::StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
                (rustix::fs::StatVfsMountFlags::NODEV, MountFlags::NODEV),
                (rustix::fs::StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
                (rustix::fs::StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
                (rustix::fs::StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
            ] {
                if held.contains(is) {
                    flags |= flag;
                }
            }
            rustix::mount::mount_remount(&target, flags, "")?;
        }
        Ok(())
    }

    /// Ensures that a directory or file exists at `path` in the new root as a mount point, and returns its
    /// current path.
    fn place(&self, path: &Path, dir: bool) -> io::Result<PathBuf> {
        let path = resolve(path);
        let inner = path.strip_prefix("/").unwrap_or(&path);
        let target = self.new.join(inner);
        if target.symlink_metadata().is_ok_and(|m| m.is_dir() == dir) {
            return Ok(target);
        }
        // Finds the deepest existing directory.
        let mut existing = target.clone();
        while !existing.symlink_metadata().is_ok_and(|m| m.is_dir()) {
            existing.pop();
        }
        if !self.is_ours(&existing) {
            self.replace(&existing)?;
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        if dir {
            fs::create_dir(&target)?
        } else {
            drop(fs::File::create(&target)?)
        }
        Ok(target)
    }

    /// Returns true if files can be created in this directory of the new root without creating them on this
    /// machine.
    fn is_ours(&self, dir: &Path) -> bool {
        fs::metadata(dir).is_ok_and(|m| self.devices.borrow().contains(&m.dev()))
    }

    /// Mounts a tmpfs that belongs to this root.
    fn tmpfs(&self, dir: &Path) -> io::Result<()> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("tmpfs", dir, "tmpfs", flags, Some(c"mode=755"))?;
        self.devices.borrow_mut().push(fs::metadata(dir)?.dev());
        Ok(())
    }

    /// Replaces a directory of this machine by a tmpfs that contains the same entries.
    fn replace(&self, dir: &Path) -> io::Result<()> {
        let aside = self.new.join("run/lab/aside");
        fs::create_dir_all(&aside)?;
        let mode = fs::metadata(dir)?.permissions();
        self.tmpfs(&aside)?;
        self.show(dir, &aside, &[])?;
        fs::set_permissions(&aside, mode)?;
        Ok(rustix::mount::mount_move(&aside, dir)?)
    }

    fn programs(&self, space: &Space) -> io::Result<()> {
        let dir = self.new.join("run/lab/bin");
        for (name, path) in &space.image.programs {
            // A wrapper script finds its libraries relative to itself, so it is executed at its original
            // path.
            let quoted = path.to_string_lossy().replace('\'', r"'\''");
            script(&dir.join(name), &format!("#!/bin/sh\nexec '{quoted}' \"$@\"\n"))?;
        }
        for (name, content) in &space.image.scripts {
            script(&dir.join(name), content)?;
        }
        // A parent directory may be hidden by a private one (/run, or /tmp as tmpfs), so the program is
        // mounted at a fixed path.
        if let Some((_, path)) = space.image.programs.iter().find(|(name, _)| *name == "tortie") {
            self.bind(path, Path::new("/run/lab/tortie"), false).map_err(at(path))?;
            script(&dir.join("tortie"), "#!/bin/sh\nexec /run/lab/tortie \"$@\"\n")?;
        }
        Ok(())
    }

    /// Writes the node's users, groups, host name and hosts file.
    fn identity(&self, space: &Space) -> io::Result<()> {
        let host = &space.hostname;
        self.file(Path::new("/etc/hostname"), format!("{host}\n").as_bytes())?;
        let hosts = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 {host}\n");
        self.file(Path::new("/etc/hosts"), hosts.as_bytes())?;
        if space.image.users.is_empty() {
            return Ok(());
        }
        let mut passwd =
            fs::read_to_string("/etc/passwd").unwrap_or_else(|_| "root:x:0:0::/root:/bin/sh\n".to_owned());
        let mut group = fs::read_to_string("/etc/group").unwrap_or_else(|_| "root:x:0:\n".to_owned());
        // A user with this name on this machine may lack required properties, so the node's own entry
        // replaces it.
        let drop_line = |text: &mut String, name: &str| {
            *text = text
                .lines()
                .filter(|l| l.split(':').next() != Some(name))
                .map(|l| format!("{l}\n"))
                .collect();
        };
        for (user, id) in space.image.users.iter().zip(64_900..) {
            drop_line(&mut passwd, user.name);
            drop_line(&mut group, user.name);
            passwd += &format!("{}:x:{id}:{id}::{}:/bin/false\n", user.name, user.home);
            group += &format!("{}:x:{id}:\n", user.name);
            if let Some(shared) = user.shared_group {
                drop_line(&mut group, shared);
                group += &format!("{shared}:x:{}:root,{}\n", id + 50, user.name);
            }
        }
        self.file(Path::new("/etc/passwd"), passwd.as_bytes())?;
        self.file(Path::new("/etc/group"), group.as_bytes())
    }
}

fn script(path: &Path, content: &str) -> io::Result<()> {
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Resolves symbolic links in the existing part of `path`, so that no link leads out of the new root.
fn resolve(path: &Path) -> PathBuf {
    let mut rest = Vec::new();
    let mut existing = path;
    loop {
        if let Ok(real) = fs::canonicalize(existing) {
            return rest.iter().rev().fold(real, |p, c: &Component<'_>| p.join(c));
        }
        match (existing.parent(), existing.components().next_back()) {
            (Some(parent), Some(last)) => {
                rest.push(last);
                existing = parent;
            }
            _ => return path.to_owned(),
        }
    }
}
