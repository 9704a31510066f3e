//! A network namespace for a test, entered by its thread. Threads started from it are in the same namespace,
//! which ends with them.

use std::any::Any;
use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{PoisonError, RwLock};

use rustix::thread::UnshareFlags;

/// Sets the default number of test threads to three per core: these tests mostly wait for timers of other
/// daemons.
#[used]
#[expect(unsafe_code, reason = "what runs before main")]
// SAFETY: the loader calls each function in this section once, with arguments that this one does not read.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = more_threads;

extern "C" fn more_threads() {
    const NAME: &str = "RUST_TEST_THREADS";
    if std::env::var_os(NAME).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // SAFETY: there is one thread, so no other one reads the environment.
        #[expect(unsafe_code, reason = "set_var")]
        unsafe {
            std::env::set_var(NAME, (3 * cores).to_string());
        }
    }
}

/// Skips a test because of a missing requirement; in CI that is a failure.
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("SKIPPED: {why}");
}

static RUNNING: RwLock<()> = RwLock::new(());

thread_local! {
    /// Held until the test's thread ends.
    static HELD: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// From here on the test may run in parallel with others, except with one that runs [`alone`].
pub(crate) fn with_others() {
    if HELD.with_borrow(Option::is_none) {
        HELD.set(Some(Box::new(RUNNING.read().unwrap_or_else(PoisonError::into_inner))));
    }
}

/// From here on the test runs alone.
pub(crate) fn alone() {
    HELD.take();
    HELD.set(Some(Box::new(RUNNING.write().unwrap_or_else(PoisonError::into_inner))));
}

/// Enters a new namespace where all of 192.0.2.0/24 and 10.65.0.0/16 are local addresses, and these too.
/// 127.0.0.0/8 is unsuitable: a route with such a next hop is malformed. Returns false if not permitted; the
/// test is skipped.
pub(crate) fn enter(addresses: &[&str]) -> bool {
    with_others();
    // SAFETY: NEWNET affects no file descriptors and no memory; it moves only this thread to the new
    // namespace.
    #[expect(unsafe_code, reason = "unshare")]
    let entered = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
    if let Err(e) = entered {
        skip(&format!("network namespaces need root: {e}"));
        return false;
    }
    ip(&["link", "set", "lo", "up"]);
    for network in ["192.0.2.0/24", "10.65.0.0/16"] {
        ip(&["route", "add", "local", network, "dev", "lo"]);
    }
    for address in addresses {
        let mut args = vec!["addr", "add", address, "dev", "lo"];
        if address.contains(':') {
            args.push("nodad");
        }
        ip(&args);
    }
    true
}

/// Returns true if a socket listens at this address in the thread's namespace. A connection attempt would
/// count as a neighbour's dial.
pub(crate) fn listens(at: IpAddr, port: u16) -> bool {
    let word = |octets: &[u8]| format!("{:08X}", u32::from_le_bytes(octets.try_into().unwrap()));
    let (table, address) = match at {
        IpAddr::V4(v4) => ("tcp", word(&v4.octets())),
        IpAddr::V6(v6) => ("tcp6", v6.octets().chunks(4).map(word).collect()),
    };
    let table = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
    // Local address, remote address, state (10: LISTEN).
    let local = format!("{address}:{port:04X}");
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [_, l, _, "0A", ..] if l == local)
    })
}

/// Returns a command in a named namespace, or in the test's own. A named one is another machine, which does
/// not wait for the load of this one: its programs come before all others.
pub(crate) fn command(namespace: Option<&str>, program: &std::path::Path) -> Command {
    let Some(namespace) = namespace else { return Command::new(program) };
    let mut command = Command::new("nice");
    command.args(["-n", "-19", "ip", "netns", "exec", namespace]).arg(program);
    command
}

/// Another namespace, connected to the test's by a link: [`NEAR`] on `near` here, [`FAR`] on `far` there.
/// Removed when dropped.
pub(crate) struct Far(pub(crate) String);

/// Our addresses on the link.
pub(crate) const NEAR: [&str; 2] = ["198.51.100.1", "2001:db8:51::1"];
/// Addresses of the other end.
pub(crate) const FAR: [&str; 2] = ["198.51.100.9", "2001:db8:51::9"];

impl Far {
    /// Enters a new namespace and creates the other one.
    pub(crate) fn make(test: &str) -> Option<Self> {
        if !enter(&[]) {
            return None;
        }
        let far = Self(format!("tortie-{test}-{}", std::process::id()));
        ip(&["netns", "add", &far.0]);
        ip(&["link", "add", "near", "type", "veth", "peer", "name", "far", "netns", &far.0]);
        for (length, index) in [("24", 0), ("64", 1)] {
            let nodad: &[&str] = if index == 1 { &["nodad"] } else { &[] };
            let (near, there) = (format!("{}/{length}", NEAR[index]), format!("{}/{length}", FAR[index]));
            ip(&[&["addr", "add", &near, "dev", "near"], nodad].concat());
            far.ip(&[&["addr", "add", &there, "dev", "far"], nodad].concat());
        }
        ip(&["link", "set", "near", "up"]);
        far.ip(&["link", "set", "far", "up"]);
        far.ip(&["link", "set", "lo", "up"]);
        Some(far)
    }

    /// Runs `ip` in the other namespace.
    pub(crate) fn ip(&self, args: &[&str]) {
        ip(&[&["-n", &self.0], args].concat());
    }

    /// Returns a long-running `ip`: under load, starting a process takes longer than its work.
    pub(crate) fn commands(&self) -> Commands {
        let mut command = Command::new("nice");
        command.args(["-n", "-19", "ip", "-oneline", "-n", &self.0, "-batch", "-"]);
        let mut ip =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("iproute2 is installed");
        let answers = BufReader::new(ip.stdout.take().expect("it is piped"));
        Commands { ip, answers }
    }

    /// Sets the link up or down.
    pub(crate) fn link(&self, up: bool) {
        self.ip(&["link", "set", "far", if up { "up" } else { "down" }]);
    }
}

/// A running `ip` that executes lines as they are written.
pub(crate) struct Commands {
    ip: Child,
    answers: BufReader<ChildStdout>,
}

impl Commands {
    /// Executes a line that prints nothing. Returns when the kernel has done it: another namespace that is
    /// removed at the same time can hold the kernel's lock for hundreds of milliseconds.
    pub(crate) fn run(&mut self, line: &str) {
        let input = self.ip.stdin.as_mut().expect("it is piped");
        writeln!(input, "{line}\nlink show lo").expect("ip runs");
        let mut done = String::new();
        self.answers.read_line(&mut done).expect("ip answers");
        assert!(done.contains("lo:"), "ip {line}: {done}");
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        drop(self.ip.stdin.take());
        let _ = self.ip.wait();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

pub(crate) fn ip(args: &[&str]) {
    let status = Command::new("ip").args(args).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {}", args.join(" "));
}

/// Returns the path of a daemon. `None`: missing; the test is skipped.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/bin"));
    let dirs = std::env::var_os("TORTIE_PEERS").map(PathBuf::from).into_iter().chain([own]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = dirs.chain(std::env::split_paths(&path)).map(|d| d.join(name)).find(|p| p.is_file());
    if found.is_none() {
        skip(&format!("{name} is neither in target/peers (make peers) nor in PATH"));
    }
    found
}
