//! Executes a [`Plan`].

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use netlink_packet_route::link::InfoKind;
use rustix::process::Signal;

use super::netlink::{Netlink, Plug};
use super::running::{PATIENCE, Running};
use super::state::{Member, Process, State};
use super::{HostNetwork, Options, Progress, ns, root, sandbox};
use crate::clab::{End, HOST, Kind, Link, Stage, Topology};
use crate::error::{Invalid, LabError};
use crate::image::Image;
use crate::plan::{Plan, Space, Step};

/// Timeout of a command whose end another node waits for.
const EXIT_WAIT: Duration = Duration::from_secs(120);

pub(super) fn up(
    topology: &Topology,
    options: &Options,
    begin: Instant,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Running, LabError> {
    let plan = prepare(topology, options)?;
    ns::allowed().map_err(|e| LabError::Forbidden(sandbox::why_forbidden(&e)))?;
    let dir = &options.state_dir;
    if let Some(old) = State::read(dir)? {
        if old.alive() {
            return Err(LabError::Running { lab: old.lab, state: dir.clone() });
        }
        // A crash or a reboot may have left the names of namespaces, and nothing else.
        Running::sweep(&old, dir)?;
    }
    for sub in ["lab", "stage"] {
        let path = dir.join(sub);
        fs::create_dir_all(&path).map_err(LabError::file(&path))?;
    }
    let state = State {
        lab: topology.name.clone(),
        nodes: topology.nodes.iter().map(|n| Member { name: n.name.clone(), ..Member::default() }).collect(),
        ..State::default()
    };
    let steps = plan.steps.clone();
    let mut running = Running::new(topology.clone(), plan, options.clone(), state);
    let result = build(&mut running, &steps, begin, progress);
    match result {
        Ok(()) => Ok(running),
        Err(e) => {
            // The first error is reported, and errors of the cleanup are ignored.
            let _ = running.down();
            Err(e)
        }
    }
}

pub(super) fn attach(topology: &Topology, options: &Options) -> Result<Running, LabError> {
    let plan = prepare(topology, options)?;
    let state = State::read(&options.state_dir)?.filter(State::alive);
    let Some(state) = state else {
        return Err(absent(topology));
    };
    if !state.nodes.iter().map(|n| &n.name).eq(topology.nodes.iter().map(|n| &n.name)) {
        let text =
            format!("lab {} was built from other nodes than {} has now", state.lab, topology.file.display());
        return Err(LabError::Absent(format!("{text}: take it down and up again")));
    }
    let mut options = options.clone();
    options.tied = false;
    Ok(Running::new(topology.clone(), plan, options, state))
}

fn absent(topology: &Topology) -> LabError {
    let file = topology.file.display();
    LabError::Absent(format!("lab {} does not run: start it with `tortie lab up {file}`", topology.name))
}

/// Takes down a lab that another process built. Only the saved state is used, since the lab file may have
/// changed and programs may be missing.
pub(super) fn down(topology: &Topology, state_dir: &Path) -> Result<(), LabError> {
    let state = State::read(state_dir)?.ok_or_else(|| absent(topology))?;
    for process in state.holders() {
        process.signal(Signal::KILL).map_err(LabError::node("lab", "ending a node"))?;
    }
    let begin = Instant::now();
    while state.alive() && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    Running::sweep(&state, state_dir)
}

/// Makes all checks that are possible before anything is changed.
fn prepare(topology: &Topology, options: &Options) -> Result<Plan, LabError> {
    let plan =
        Plan::new(topology, &options.binary, options.rootless, &|p| options.find(p)).map_err(Box::new)?;
    for node in &topology.nodes {
        if let Some(bind) = node.binds.iter().find(|b| !b.lab && !b.source.exists()) {
            return Err(LabError::Invalid(Box::new(Invalid {
                file: topology.file.clone(),
                line: None,
                place: format!("topology.nodes.{}.binds", node.name),
                text: format!("{} does not exist", bind.source.display()),
                next: "make it, or correct the path (it is taken from the folder of the lab file)".to_owned(),
            })));
        }
    }
    Ok(plan)
}

fn build(
    running: &mut Running,
    steps: &[Step],
    begin: Instant,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), LabError> {
    host(running)?;
    for (number, step) in steps.iter().enumerate() {
        let text = describe(running, step);
        progress(Progress { elapsed: begin.elapsed(), step: number, steps: steps.len(), text: &text });
        match step {
            Step::NotBefore(delay) => std::thread::sleep(delay.saturating_sub(begin.elapsed())),
            Step::Create(node) => create(running, *node)?,
            Step::Link(link) => self::link(running, *link)?,
            Step::Start(node) => start(running, *node)?,
            Step::Exec { node, command } => exec(running, *node, command)?,
            Step::Await { node, stage: Stage::Exit } => exited(running, *node)?,
            Step::Await { node, .. } => healthy(running, *node)?,
        }
    }
    // A daemon that rejects its configuration ends immediately, and this is reported at once.
    for i in 0..running.topology.nodes.len() {
        if let Some(status) = running.ended(i).filter(|s| !s.success()) {
            return Err(failed(running, i, status));
        }
    }
    Ok(())
}

fn describe(running: &Running, step: &Step) -> String {
    let name = |i: &usize| running.topology.nodes[*i].name.as_str();
    match step {
        Step::NotBefore(delay) => format!("wait until {} s", delay.as_secs()),
        Step::Create(i) => format!("{}: create", name(i)),
        Step::Link(l) => match &running.topology.links[*l] {
            Link::Veth { ends: [a, b], .. } => {
                format!("link {}:{} - {}:{}", a.node, a.interface, b.node, b.interface)
            }
            Link::Dummy { end, .. } => format!("link {}:{}", end.node, end.interface),
        },
        Step::Start(i) => format!("{}: start", name(i)),
        Step::Exec { node, command } => format!("{}: {}", name(node), command.join(" ")),
        Step::Await { node, stage } => format!("{}: wait until {}", name(node), stage.name()),
    }
}

/// Creates the private host namespace, if the lab has one.
fn host(running: &mut Running) -> Result<(), LabError> {
    let wanted = running.topology.nodes.iter().any(|n| n.kind != Kind::Linux)
        || running
            .topology
            .links
            .iter()
            .any(|l| matches!(l, Link::Veth { ends, .. } if ends.iter().any(|e| e.node == HOST)));
    if !wanted || running.options.host == HostNetwork::Machine {
        return Ok(());
    }
    let space = Space {
        name: running.topology.namespace(HOST),
        hostname: HOST.to_owned(),
        binds: Vec::new(),
        tmpfs: Vec::new(),
        sysctls: Vec::new(),
        env: Vec::new(),
        image: Image::default(),
        command: Vec::new(),
    };
    let child = holder(&space, &running.options.state_dir, running.options.tied)
        .map_err(LabError::node(HOST, "making its namespaces"))?;
    running.state.host = Some(keep(running, child, HOST)?);
    running.state.write(&running.options.state_dir)
}

fn keep(running: &mut Running, child: Child, node: &str) -> Result<Process, LabError> {
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    running.holders.push(child);
    Process::of(pid).map_err(LabError::node(node, "looking at its first process"))
}

fn create(running: &mut Running, i: usize) -> Result<(), LabError> {
    let name = running.topology.nodes[i].name.clone();
    let Some(space) = running.plan.spaces[i].clone() else {
        return bridge(running, &name);
    };
    let child = holder(&space, &running.options.state_dir, running.options.tied)
        .map_err(LabError::node(&name, "making its namespaces"))?;
    let process = keep(running, child, &name)?;
    running.state.nodes[i].first = Some(process);
    if !running.options.tied {
        // A symbolic link, as containerlab creates it, which does not keep the namespace alive after the lab.
        let link = Path::new("/run/netns").join(&space.name);
        fs::create_dir_all("/run/netns").map_err(LabError::file(Path::new("/run/netns")))?;
        if link.symlink_metadata().is_ok() && !link.exists() {
            fs::remove_file(&link).map_err(LabError::file(&link))?;
        }
        std::os::unix::fs::symlink(format!("/proc/{}/ns/net", process.pid), &link)
            .map_err(LabError::file(&link))?;
        running.state.names.push(link);
    }
    running.state.write(&running.options.state_dir)
}

/// Starts the process that keeps a node's namespaces alive.
fn holder(space: &Space, state_dir: &Path, tied: bool) -> io::Result<Child> {
    ns::fresh(|| {
        let step = |what: &'static str| move |e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"));
        rustix::system::sethostname(space.hostname.as_bytes())?;
        Netlink::here()?.set_up("lo", true).map_err(step("loopback interface"))?;
        // Addresses of a lab are unique (the file was checked), so the delay of IPv6 duplicate address
        // detection is unnecessary.
        for conf in ["all", "default"] {
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{conf}/accept_dad"), "0");
        }
        for (key, value) in &space.sysctls {
            let path = format!("/proc/sys/{}", key.replace('.', "/"));
            fs::write(&path, value)
                .map_err(|e| io::Error::new(e.kind(), format!("sysctl {key} = {value}: {e}")))?;
        }
        root::enter(space, &state_dir.join("stage"), &state_dir.join("lab"))
            .map_err(step("its root folder"))?;
        let mut command = Command::new("/bin/sh");
        if tied {
            // This process holds the other end of the pipe. When it ends, for any reason, `cat` ends, and
            // with it everything in the node.
            command.args(["-c", "exec cat"]).stdin(Stdio::piped());
        } else {
            command.args(["-c", "exec sleep infinity"]).stdin(Stdio::null());
        }
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        ns::first_process(&mut command);
        command.spawn()
    })
}

fn bridge(running: &mut Running, name: &str) -> Result<(), LabError> {
    let mut netlink = running.host_netlink().map_err(LabError::node(name, "entering the host's network"))?;
    let made = (|| {
        if running.options.host == HostNetwork::Machine && netlink.index(name).is_ok() {
            return Ok(false);
        }
        netlink.add_link(name, InfoKind::Bridge, None)?;
        netlink.set_up(name, true)?;
        Ok(running.options.host == HostNetwork::Machine)
    })();
    if made.map_err(LabError::node(name, "making the bridge"))? {
        running.state.bridges.push(name.to_owned());
    }
    running.state.write(&running.options.state_dir)
}

fn link(running: &mut Running, number: usize) -> Result<(), LabError> {
    let link = running.topology.links[number].clone();
    match &link {
        Link::Veth { ends: [a, b], mtu } => cable(running, a, Some(b), *mtu),
        Link::Dummy { end, mtu } => {
            let made = running
                .netlink(&end.node)
                .and_then(|mut n| n.add_link(&end.interface, InfoKind::Dummy, *mtu));
            match made {
                Ok(()) => finish(running, end),
                // Without dummy interfaces in the kernel, a veth pair with an unused end is equivalent.
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => cable(running, end, None, *mtu),
                Err(e) => Err(LabError::node(&end_name(end), "making the interface")(e)),
            }
        }
    }
}

/// Creates a veth pair from `a` to `b`, or to an unused end in the same node.
fn cable(running: &mut Running, a: &End, b: Option<&End>, mtu: Option<u32>) -> Result<(), LabError> {
    let loose = End {
        node: a.node.clone(),
        interface: format!("{:.13}-x", a.interface),
        mac: None,
        addresses: Vec::new(),
    };
    let far = b.unwrap_or(&loose);
    let make = || {
        let (here, there) = (running.network(&a.node)?, running.network(&far.node)?);
        let (near_file, far_file) = (fs::File::open(here)?, fs::File::open(there)?);
        let near_plug = Plug { interface: &a.interface, namespace: near_file.as_fd(), mac: a.mac };
        let far_plug = Plug { interface: &far.interface, namespace: far_file.as_fd(), mac: far.mac };
        Netlink::here()?.add_veth(near_plug, far_plug, mtu)
    };
    make().map_err(LabError::node(&format!("{} - {}", end_name(a), end_name(far)), "making the link"))?;
    finish(running, a)?;
    finish(running, far)
}

fn end_name(end: &End) -> String {
    format!("{}:{}", end.node, end.interface)
}

/// Configures bridge membership, link state and addresses of an interface.
fn finish(running: &mut Running, end: &End) -> Result<(), LabError> {
    let bridge = running.topology.nodes.iter().any(|n| n.name == end.node && n.kind == Kind::Bridge);
    let configure = || {
        let mut netlink = running.netlink(&end.node)?;
        if bridge {
            netlink.set_master(&end.interface, &end.node)?;
        }
        netlink.set_up(&end.interface, true)?;
        for (address, len) in &end.addresses {
            netlink.add_address(&end.interface, *address, *len)?;
        }
        Ok(())
    };
    configure().map_err(LabError::node(&end_name(end), "setting the interface up"))
}

fn start(running: &mut Running, i: usize) -> Result<(), LabError> {
    let name = running.topology.nodes[i].name.clone();
    if running.plan.spaces[i].as_ref().is_some_and(|s| !s.command.is_empty()) {
        running.start(&name)?;
    }
    Ok(())
}

fn exec(running: &Running, i: usize, command: &[String]) -> Result<(), LabError> {
    let node = running.topology.nodes[i].name.clone();
    let output = running.exec(&node, command)?;
    if output.status.success() {
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    Err(LabError::Command { node, command: command.join(" "), status: output.status, output: text })
}

fn exited(running: &mut Running, i: usize) -> Result<(), LabError> {
    let begin = Instant::now();
    if running.plan.spaces[i].as_ref().is_none_or(|s| s.command.is_empty()) {
        return Ok(());
    }
    loop {
        match running.ended(i) {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(failed(running, i, status)),
            None if begin.elapsed() > EXIT_WAIT => {
                return Err(timeout(running, i, "exited", begin, last_words(&running.log(i))));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn healthy(running: &mut Running, i: usize) -> Result<(), LabError> {
    let Some(check) = running.topology.nodes[i].healthcheck.clone() else { return Ok(()) };
    let node = running.topology.nodes[i].name.clone();
    let limit = check.start_period + check.interval * u32::try_from(check.retries.max(1)).unwrap_or(u32::MAX);
    let begin = Instant::now();
    loop {
        let output = running.exec(&node, &check.test)?;
        if output.status.success() {
            return Ok(());
        }
        if begin.elapsed() > limit {
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            return Err(timeout(running, i, "healthy", begin, text.into_owned()));
        }
        // The check runs more often than in a container engine, so that the lab continues as soon as
        // possible.
        std::thread::sleep(check.interval.min(Duration::from_millis(100)));
    }
}

fn timeout(running: &Running, i: usize, state: &'static str, begin: Instant, output: String) -> LabError {
    let node = running.topology.nodes[i].name.clone();
    LabError::Timeout { node, state, seconds: begin.elapsed().as_secs(), output }
}

fn failed(running: &Running, i: usize, status: ExitStatus) -> LabError {
    let command = running.plan.spaces[i].as_ref().map(|s| s.command.join(" ")).unwrap_or_default();
    let node = running.topology.nodes[i].name.clone();
    LabError::Command { node, command, status, output: last_words(&running.log(i)) }
}

fn last_words(log: &PathBuf) -> String {
    fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
}
