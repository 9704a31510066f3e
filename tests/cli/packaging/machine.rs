//! A machine with a real systemd as its first process: this machine's files below an overlay in memory, and
//! its own namespaces for processes, mounts, network, names and control groups. Dropping it removes
//! everything.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::command::{stderr, stdout};
use crate::common::concurrency::{LABS, Membership};

/// Timeout for events that take a second on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const SYSTEMD: &str = "/lib/systemd/systemd";

/// Boot script, run as root; its second half runs inside the new namespaces. Units that would change state
/// shared with this machine (sysctls, modules, devices) are masked, and so are all units that this machine
/// has enabled.
const BOOT: &str = r#"
set -e
mkdir "$2"; echo $$ > "$2/cgroup.procs"
exec unshare --pid --fork --kill-child --mount --net --uts --ipc --cgroup --propagation private bash -ec '
D=$1; R=$D/root
mount -t tmpfs -o size=2g tmpfs $D
mkdir $D/up $D/work $R
mount -t overlay overlay -o lowerdir=/,upperdir=$D/up,workdir=$D/work $R
mount -t proc proc $R/proc
mount -t sysfs sysfs $R/sys
mount -t cgroup2 cgroup2 $R/sys/fs/cgroup
for at in run tmp dev etc/systemd/system; do mkdir -p $R/$at; mount -t tmpfs -o mode=755 tmpfs $R/$at; done
chmod 1777 $R/tmp
# What is below a folder that is covered now, or on another file system than the root, is shown at its place again.
if [ -d "$4" ]; then mkdir -p "$R$4"; mount --bind "$4" "$R$4"; fi
rm -rf $R/var/lib/tortie $R/etc/tortie $R/var/log/journal
for n in null zero full random urandom tty; do touch $R/dev/$n; mount --bind /dev/$n $R/dev/$n; done
mkdir $R/dev/pts $R/dev/shm $R/run/out
mount -t devpts -o newinstance,ptmxmode=0666 devpts $R/dev/pts
ln -s pts/ptmx $R/dev/ptmx
mount -t tmpfs tmpfs $R/dev/shm
mount --bind "$3" $R/run/out
mount --bind "$2" $R/mnt
for unit in systemd-sysctl systemd-modules-load systemd-udevd systemd-udev-trigger systemd-remount-fs kmod-static-nodes \
  systemd-timesyncd systemd-random-seed systemd-hwdb-update systemd-journal-catalog-update systemd-machine-id-commit; do
  ln -s /dev/null $R/etc/systemd/system/$unit.service
done
ln -s /dev/null $R/etc/systemd/system/systemd-udevd-kernel.socket
ln -s /dev/null $R/etc/systemd/system/systemd-udevd-control.socket
hostname rack1-n03; echo rack1-n03 > $R/etc/hostname
ip link add eth0 type veth peer name eth0-far
ip address add 192.0.2.13/24 dev eth0
ip link set eth0-far up; ip link set eth0 up; ip link set lo up
ip route add default via 192.0.2.1
cd $R
mkdir run/old
pivot_root . run/old
umount -l /run/old
exec env -i container=tortie-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=journal --show-status=0 --unit=multi-user.target
' boot "$1" "$3" "$4" "$5"
"#;

/// Returns the folder of unpacked peer programs, which the machine may use.
fn peers() -> PathBuf {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/bin");
    let bin = std::env::var_os("TORTIE_PEERS").map_or_else(|| PathBuf::from(own), PathBuf::from);
    bin.parent().map(Path::to_owned).unwrap_or_default()
}

/// A running machine.
pub(crate) struct Machine {
    outer: Child,
    /// Process id of its first process, outside of its namespaces.
    first: u32,
    cgroup: PathBuf,
    dir: tempfile::TempDir,
    _group: Membership,
}

impl Machine {
    /// Boots a machine that sees the folder `files` as /mnt. Returns `None`, with the reason on stderr,
    /// without systemd or permission; in CI that is a failure.
    pub(crate) fn boot(files: &Path) -> Option<Self> {
        let skip = |why: &str| {
            assert!(std::env::var_os("CI").is_none(), "cannot run: {why}");
            eprintln!("skipped: {why}");
            None
        };
        if !Path::new(SYSTEMD).exists() {
            return skip("this machine has no systemd (Debian: apt install systemd)");
        }
        if !rustix::process::geteuid().is_root() {
            return skip("needs root to make a machine of namespaces");
        }
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let unified = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>()).find(|l| l[2] == "cgroup2");
        let Some(unified) = unified else { return skip("no control groups of version 2") };
        let group = LABS.join();
        let dir = tempfile::tempdir().unwrap();
        let (root, out) = (dir.path().join("root"), dir.path().join("out"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&out).unwrap();
        let cgroup = Path::new(unified[1]).join(format!(
            "tortie-machine-{}-{}",
            std::process::id(),
            rand::random::<u16>()
        ));
        let log = std::fs::File::create(dir.path().join("boot.log")).unwrap();
        let outer = Command::new("bash")
            .args(["-c", BOOT, "boot"])
            .args([&root, &cgroup, files, &out, &peers()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut this = Self { outer, first: 0, cgroup, dir, _group: group };
        this.until("systemd is the first process", |this| {
            let children = format!("/proc/{0}/task/{0}/children", this.outer.id());
            let first = std::fs::read_to_string(children).unwrap_or_default();
            let first: u32 = first.trim().parse().map_err(|_| this.said())?;
            match std::fs::read_to_string(format!("/proc/{first}/comm")).unwrap_or_default().trim() {
                "systemd" => Ok(first),
                _ => Err(this.said()),
            }
        });
        let first = this.until("its number", |this| {
            let children = format!("/proc/{0}/task/{0}/children", this.outer.id());
            std::fs::read_to_string(children).unwrap().trim().parse().map_err(|_| this.said())
        });
        this.first = first;
        this.until("it is up", |this| match stdout(&this.run("systemctl is-system-running")).trim() {
            "running" | "degraded" => Ok(()),
            other => Err(format!("{other}: {}", stdout(&this.run("systemctl list-jobs --no-pager")))),
        });
        Some(this)
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("boot.log")).unwrap_or_default()
    }

    /// Repeats a query until it succeeds.
    pub(crate) fn until<T>(&self, what: &str, mut ask: impl FnMut(&Self) -> Result<T, String>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            match ask(self) {
                Ok(found) => return found,
                Err(seen) => assert!(Instant::now() < end, "{what}: {seen}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a shell line on the machine.
    pub(crate) fn run(&self, line: &str) -> Output {
        let first = self.first.to_string();
        Command::new("nsenter")
            .args(["--all", "-t", &first, "sh", "-c", line])
            .env_clear()
            .envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/root"), ("LC_ALL", "C")])
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a shell line that must succeed.
    pub(crate) fn must(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(
            output.status.success(),
            "{line}: {}{}\n{}",
            stdout(&output),
            stderr(&output),
            self.journal()
        );
        stdout(&output)
    }

    /// Returns a property of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        self.must(&format!("systemctl show -P {name} {unit}")).trim().to_owned()
    }

    pub(crate) fn journal(&self) -> String {
        stdout(&self.run("journalctl --no-pager -n 60 -u tortie; systemctl status --no-pager tortie"))
    }

    /// Returns a file of the machine's /run/out, which remains after the machine has ended.
    pub(crate) fn out(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("out").join(name)).unwrap_or_default()
    }

    /// Returns the process id outside of the machine for one inside.
    pub(crate) fn outside(&self, pid: &str) -> u32 {
        let space = std::fs::read_link(format!("/proc/{}/ns/pid", self.first)).unwrap();
        let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let mut there =
            all.filter(|process| std::fs::read_link(process.join("ns/pid")).is_ok_and(|s| s == space));
        let found = there.find_map(|process| numbered(&process.join("status"), pid));
        found.unwrap_or_else(|| panic!("{pid} is not seen from outside"))
    }

    /// Returns the thread id outside of the machine for one inside.
    pub(crate) fn outside_thread(&self, pid: &str, thread: &str) -> u32 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.outside(pid))).unwrap().flatten();
        let found =
            tasks.map(|entry| entry.path().join("status")).find_map(|status| numbered(&status, thread));
        found.unwrap_or_else(|| panic!("{thread} is not seen from outside"))
    }

    /// Waits until the machine has powered off and everything is removed.
    pub(crate) fn until_off(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.outer.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it does not go down");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.outer.kill();
        let _ = self.outer.wait();
        // Processes of the machine die with its first process, after some time.
        let end = Instant::now() + Duration::from_secs(10);
        while remove(&self.cgroup).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Returns the outer id of a process or thread with this inner id.
fn numbered(status: &Path, inner: &str) -> Option<u32> {
    let status = std::fs::read_to_string(status).ok()?;
    let mut numbers = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?.split_whitespace();
    let outer = numbers.next()?.parse().ok()?;
    (numbers.next_back() == Some(inner)).then_some(outer)
}

/// Removes a control group and those below it.
fn remove(cgroup: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(cgroup)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    std::fs::remove_dir(cgroup)
}
