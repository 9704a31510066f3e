//! `tortie demo`: builds a network of hosts with a real router on this machine, and checks it.
//!
//! It builds the network in namespaces (as an ordinary user, if the kernel permits that), runs the checks,
//! prints the output of kernels and router, serves a web page, and leaves nothing behind. It changes nothing
//! on this machine outside of its namespaces.
//!
//! ```text
//!  tortie demo (outer) --spawns--> tortie demo --inside (own namespaces, process number 1 there)
//!    mod.rs, page.rs,                inner.rs: network.rs builds, checks.rs checks
//!    cleanup_check.rs                          (probe.rs, router.rs, ping.rs)
//!        <-------- events, JSON lines on standard output --------
//!        page: the agents' unix sockets, through /proc/PID/root
//! ```
//!
//! The inner process is killed with the outer one, and its namespaces, mounts and processes vanish with it.

pub mod checks;
mod cleanup_check;
mod inner;
pub mod network;
mod page;
mod ping;
pub mod policy;
pub mod probe;
mod progress;
pub mod router;

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use tortie_config::counted;
use tortie_topology::{Lab, Options, Sandbox};

use self::checks::{Check, check};
use self::network::{MOST_HOSTS, Spec};
use self::progress::Progress;
use self::router::Router;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::lab::{self, own_program};
use super::output::{self, Format};
use crate::cli::demo::inner::{Event, Fault};

/// Folder of the lab's state; inside, /run is a file system of its own.
const STATE_DIR: &str = "/run/tortie-demo";

/// Arguments of `tortie demo`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct DemoCommand {
    #[command(subcommand)]
    shell: Option<Shell>,
    /// Number of hosts, 2 to 20
    #[arg(long, value_name = "N", default_value = "3")]
    hosts: usize,
    /// Router next to the hosts [default: the first of bird, gobgp, frr, openbgpd that is installed, else
    /// tortie]
    #[arg(long, value_enum)]
    router: Option<Router>,
    /// IPv6 in addition to IPv4
    #[arg(long)]
    v6: bool,
    /// Run the checks and exit; exit 1 when one fails
    #[arg(long)]
    assert: bool,
    /// Break something, so that its check fails
    #[arg(long = "break", value_enum, hide = true)]
    breaking: Option<Fault>,
    /// Build and check here: this process is inside already
    #[arg(long = "inside", hide = true)]
    inner: bool,
    /// Only one user exists
    #[arg(long, hide = true, requires = "inner")]
    rootless: bool,
    /// Send echo requests to this address until standard input ends
    #[arg(long, hide = true, value_name = "ADDRESS")]
    ping: Option<IpAddr>,
    /// Microseconds between two of them
    #[arg(long, hide = true, default_value = "1000")]
    ping_pace: u64,
    /// This many instead
    #[arg(long, hide = true)]
    ping_count: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum Shell {
    /// A shell on a node of the demo that runs
    Sh {
        /// host1, web, tor, ...
        node: String,
    },
}

pub(super) fn run(context: &Context, command: &DemoCommand) -> Result<(), Failure> {
    if let Some(to) = command.ping {
        return ping::run(to, Duration::from_micros(command.ping_pace), command.ping_count);
    }
    if let Some(Shell::Sh { node }) = &command.shell {
        return shell(node);
    }
    if !(2..=MOST_HOSTS).contains(&command.hosts) {
        return Err(Failure::usage(format!(
            "--hosts {}: give 2 to {MOST_HOSTS}; the checks need two ends, and each host its own address",
            command.hosts
        )));
    }
    if command.inner {
        let spec = Spec {
            hosts: command.hosts,
            router: command.router.unwrap_or(Router::Tortie),
            v6: command.v6,
            rootless: command.rootless,
            binary: own_program()?,
            state_dir: STATE_DIR.into(),
            datastore: None,
        };
        return inner::run(spec, command.breaking);
    }
    outside(context, command)
}

/// Result of the inner process.
#[derive(Default)]
struct Outcome {
    checks: Vec<Check>,
    namespaces: Vec<String>,
    failed: Option<Failure>,
    done: bool,
}

fn outside(context: &Context, command: &DemoCommand) -> Result<(), Failure> {
    let format = context.globals.output;
    let sandbox = Sandbox::detect().map_err(lab::failure)?;
    let rootless = matches!(sandbox, Sandbox::Rootless { .. });
    let program = own_program()?;
    let router = choose(command.router, rootless, &program)?;
    let progress = Progress::new(format.is_text());
    progress.say(&format!(
        "tortie demo: {}, 1 router ({}), {}",
        counted(command.hosts, "host"),
        router.name(),
        counted(command.hosts, "workload")
    ));
    let rights = if rootless { "without root" } else { "as root" };
    progress.say(&format!("in network namespaces, {rights}; all of it is removed at the end\n"));
    progress.waiting("building the network, starting agents and the router");
    let begin = Instant::now();
    let mut child = spawn(sandbox, &program, command, router)?;
    let hosts = page::Hosts::default();
    let page = page::serve(hosts.clone())
        .map_err(|e| Failure::new(Exit::Permission, "page", format!("no loopback port for the page: {e}")))?;
    let mut outcome = Outcome::default();
    follow(&mut child, &progress, &hosts, page, &mut outcome);
    let stays = !command.assert
        && progress.is_for_people()
        && std::io::stdin().is_terminal()
        && std::io::stdout().is_terminal();
    if outcome.done && stays {
        summary(&progress, &outcome.checks, Some(page));
        wait_for_q();
    }
    // When its standard input ends, the inner process removes the network and exits.
    drop(child.stdin.take());
    let status = child.wait();
    if let Some(failure) = outcome.failed {
        return Err(failure);
    }
    if !outcome.done {
        let how = status.map_or_else(|e| e.to_string(), |s| s.to_string());
        return Err(Failure::new(
            Exit::No,
            "ended",
            format!("the inner part of the demo ended early ({how})"),
        ));
    }
    let left = cleanup_check::nothing_left(&outcome.namespaces, STATE_DIR);
    progress.line(
        begin.elapsed().as_secs_f64(),
        "network, agents and files of the demo removed",
        Some(left.ok),
    );
    if !left.ok {
        progress.evidence(&left.evidence);
    }
    outcome.checks.push(left);
    report(format, &progress, &outcome.checks)
}

fn choose(wanted: Option<Router>, rootless: bool, program: &Path) -> Result<Router, Failure> {
    let options = Options::tied(program, Path::new(STATE_DIR));
    let router = wanted.unwrap_or_else(|| Router::choose(&options, rootless));
    if rootless && router.needs_users() {
        return Err(Failure::new(
            Exit::Permission,
            "needs-root",
            format!(
                "{} changes to users of its own, and a rootless demo has only one: run `sudo tortie demo --router {}`, \
                 or take --router bird, frr, gobgp or tortie",
                router.name(),
                router.name().to_lowercase()
            ),
        ));
    }
    // Missing programs are reported before anything is built.
    let spec = Spec {
        hosts: 2,
        router,
        v6: false,
        rootless,
        binary: program.to_owned(),
        state_dir: STATE_DIR.into(),
        datastore: None,
    };
    let file = Path::new(STATE_DIR).join("demo.clab.yml");
    let lab = Lab::from_text(&spec.lab(&spec.hosts()), &file).map_err(lab::failure)?;
    match tortie_topology::plan::Plan::new(&lab.topology, program, rootless, &|p| options.find(p)) {
        Ok(_) => Ok(router),
        Err(e) => {
            Err(Failure::usage(format!("--router {}: {}; {}", router.name().to_lowercase(), e.text, e.next)))
        }
    }
}

fn spawn(sandbox: Sandbox, program: &Path, command: &DemoCommand, router: Router) -> Result<Child, Failure> {
    let mut inner = Command::new(program);
    inner.args(["demo", "--inside", "--hosts", &command.hosts.to_string()]);
    inner.args(["--router", &router.name().to_lowercase()]);
    if command.v6 {
        inner.arg("--v6");
    }
    if matches!(sandbox, Sandbox::Rootless { .. }) {
        inner.arg("--rootless");
    }
    match command.breaking {
        Some(Fault::RouterStopped) => inner.args(["--break", "router-stopped"]),
        Some(Fault::RouteDeleted) => inner.args(["--break", "route-deleted"]),
        None => &mut inner,
    };
    // Settings of this machine must not affect the agents inside.
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("TORTIE_")) {
        if name != "TORTIE_PEERS" {
            inner.env_remove(name);
        }
    }
    inner.stdin(Stdio::piped()).stdout(Stdio::piped());
    sandbox.wrap(&mut inner);
    // An interrupt from the terminal ends the outer process and with it this one, which as process number 1 of
    // its namespace cannot be re-parented.
    inner.spawn().map_err(|e| {
        let text = format!("the inner part of the demo cannot be started: {e}");
        Failure::new(Exit::Permission, "system", text)
    })
}

/// Reads the events of the inner process until it is done or has ended.
fn follow(
    child: &mut Child,
    progress: &Progress,
    hosts: &page::Hosts,
    page: SocketAddr,
    outcome: &mut Outcome,
) {
    let Some(stdout) = child.stdout.take() else { return };
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Ok(event) = serde_json::from_str::<Event>(&line) else {
            tracing::debug!(target: "tortie", line, "not an event");
            continue;
        };
        match event {
            Event::Line { seconds, text, ok } => progress.line(seconds, &text, ok),
            Event::Waiting { text } => progress.waiting(&text),
            Event::Detail { text } => progress.evidence(&text),
            Event::Up { nodes } => {
                if let Some(inner) = cleanup_check::inner_process(child.id()) {
                    let root = PathBuf::from(format!("/proc/{inner}/root{STATE_DIR}"));
                    hosts.set(nodes.into_iter().map(|n| (n.clone(), network::socket(&root, &n))).collect());
                }
            }
            Event::Namespaces { names } => outcome.namespaces = names,
            Event::Check(check) => {
                // Routes in kernels were already printed line by line.
                if !check.ok || check.name != "blocks_in_every_kernel" {
                    progress.evidence(&shortened(&check));
                }
                outcome.checks.push(check);
            }
            Event::Failed { exit, code, text } => {
                outcome.failed = Some(Failure { exit: exit_of(exit), code, text });
                return;
            }
            Event::Done => {
                outcome.checks.push(page_answers(page));
                outcome.done = true;
                return;
            }
        }
    }
}

/// Returns the beginning of the evidence for one line; of a failed check, all of it.
fn shortened(check: &Check) -> String {
    if !check.ok {
        return check.evidence.clone();
    }
    check.evidence.splitn(3, "; ").take(2).collect::<Vec<_>>().join("; ")
}

/// Checks that the web page shows every host, from outside the namespaces.
fn page_answers(page: SocketAddr) -> Check {
    check("page_answers", || {
        let begin = Instant::now();
        let mut stream = std::net::TcpStream::connect(page).map_err(|e| e.to_string())?;
        let request = format!("GET /v1/hosts HTTP/1.1\r\nHost: {page}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|e| e.to_string())?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text).map_err(|e| e.to_string())?;
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let json: serde_json::Value = serde_json::from_str(body).map_err(|e| format!("{e}: {text}"))?;
        let items = json.get("items").and_then(|i| i.as_array()).cloned().unwrap_or_default();
        let mut quotes = Vec::new();
        for item in &items {
            let word =
                |pointer: &str| item.pointer(pointer).and_then(|v| v.as_str()).unwrap_or("?").to_owned();
            if item.get("status").is_none_or(serde_json::Value::is_null) {
                return Err(format!("{}: {}", word("/name"), word("/error")));
            }
            quotes.push(format!("{} {}", word("/status/node"), word("/status/verdict")));
        }
        if quotes.is_empty() {
            return Err(format!("http://{page}/v1/hosts lists no host"));
        }
        Ok((begin.elapsed(), format!("http://{page}/v1/hosts: {}", quotes.join(", "))))
    })
}

fn exit_of(number: u8) -> Exit {
    let all = [
        Exit::No,
        Exit::Usage,
        Exit::Unreachable,
        Exit::Permission,
        Exit::TimedOut,
        Exit::Partial,
        Exit::Refused,
    ];
    all.into_iter().find(|e| *e as u8 == number).unwrap_or(Exit::No)
}

fn summary(progress: &Progress, checks: &[Check], page: Option<SocketAddr>) {
    let good = checks.iter().filter(|c| c.ok).count();
    let mut text = format!("\n{good} of {} checks passed.", checks.len());
    if let Some(page) = page {
        text += &format!("\n\nPage: http://{page}\nShell on a host: tortie demo sh host1\nQuit: q");
    }
    progress.say(&text);
}

/// Waits for a line that begins with q, or for the end of the terminal's input.
fn wait_for_q() {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line.trim_start().starts_with(['q', 'Q']) {
            return;
        }
    }
}

#[derive(serde::Serialize)]
struct Report<'a> {
    checks: &'a [Check],
}

fn report(format: Format, progress: &Progress, checks: &[Check]) -> Result<(), Failure> {
    if format.is_text() {
        summary(progress, checks, None);
    } else {
        output::print(format, &Report { checks }, |_, _| ())?;
    }
    let bad: Vec<&str> = checks.iter().filter(|c| !c.ok).map(|c| c.name.as_str()).collect();
    if bad.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::No, "checks-failed", format!("these checks failed: {}", bad.join(", "))))
}

/// Replaces this process by a shell in a node of the running demo.
fn shell(node: &str) -> Result<(), Failure> {
    let Some(holder) = cleanup_check::holder_of(node) else {
        let text = format!("no demo with a node {node} runs here: start `tortie demo` in another terminal");
        return Err(Failure::new(Exit::No, "not-running", text));
    };
    let mut command = Command::new("nsenter");
    command.args(["--target", &holder.to_string(), "--mount", "--uts", "--ipc", "--net", "--pid"]);
    let same_user = std::fs::read_link("/proc/self/ns/user").ok()
        == std::fs::read_link(format!("/proc/{holder}/ns/user")).ok();
    if !same_user {
        command.args(["--user", "--preserve-credentials"]);
    }
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    command.args(["sh"]).env("PATH", format!("/run/lab/bin:{path}")).env("PS1", format!("{node}# "));
    // `tortie` in that shell must use the demo's store, never this machine's.
    command.env("TORTIE_DATASTORE", network::STORE).env("TORTIE_NODE", node);
    let error = command.exec();
    Err(Failure::new(Exit::No, "nsenter", format!("nsenter (package util-linux) cannot be run: {error}")))
}
