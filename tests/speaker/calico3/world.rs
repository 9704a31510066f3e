//! Two hosts' network namespaces with a link: the node in one, all of its peers in the other.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::receiver;
use crate::rig::configs::start_bird;
use crate::rig::daemon::Daemon;
use crate::rig::net;

/// A namespace with a name. Removed when dropped.
pub(super) struct Namespace(pub(super) String);

impl Namespace {
    pub(super) fn new(name: &str) -> Self {
        let this = Self(format!("tortie-c3-{}-{name}", std::process::id()));
        batch(None, &[format!("netns add {}", this.0)]);
        batch(Some(&this.0), &["link set lo up".to_owned()]);
        this
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).stderr(Stdio::null()).status();
    }
}

/// Runs lines of `ip` in a namespace, or in that of the thread.
pub(super) fn batch(namespace: Option<&str>, lines: &[String]) {
    let mut command = Command::new("ip");
    if let Some(name) = namespace {
        command.args(["-n", name]);
    }
    let mut ip = command.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("iproute2 is installed");
    ip.stdin.take().unwrap().write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success(), "{namespace:?}: {lines:#?}");
}

/// Connects the node's namespace with that of its peers.
pub(super) fn connect(node: Option<&str>, peers: &Namespace, own: &[String], others: &[String]) {
    let address = |addr: &String, dev: &str| match addr.contains(':') {
        true => format!("addr add {addr}/64 dev {dev} nodad"),
        false => format!("addr add {addr}/24 dev {dev}"),
    };
    let mut here = vec![format!("link add near type veth peer name far netns {}", peers.0)];
    here.extend(own.iter().map(|addr| address(addr, "near")));
    here.push("link set near up".to_owned());
    batch(node, &here);
    let mut there: Vec<String> = others.iter().map(|addr| address(addr, "far")).collect();
    there.push("link set far up".to_owned());
    batch(Some(&peers.0), &there);
}

/// A BIRD with a given configuration.
pub(super) struct Bird {
    daemon: Daemon,
    birdc: PathBuf,
}

impl Bird {
    pub(super) fn start(namespace: &str, config: &str) -> Option<Self> {
        let (bird, birdc) = (net::tool("bird")?, net::tool("birdc")?);
        Some(Self { daemon: start_bird(Some(namespace), &bird, config, &[]), birdc })
    }

    pub(super) fn ask(&self, command: &str) -> String {
        let out = Command::new(&self.birdc)
            .arg("-s")
            .arg(self.daemon.file("ctl"))
            .args(command.split(' '))
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    pub(super) fn log(&self) -> String {
        self.daemon.log()
    }

    /// Returns the names of the sessions that are not established.
    pub(super) fn down(&self) -> Vec<String> {
        let answer = self.ask("show protocols");
        let sessions = answer.lines().filter(|line| line.split_whitespace().nth(1) == Some("BGP"));
        let down = sessions.filter(|line| !line.contains("Established"));
        let mut down: Vec<String> = down.map(str::to_owned).collect();
        if !answer.contains("Name") {
            down.push(answer);
        }
        down
    }

    /// Returns its routes from a command's answer.
    pub(super) fn routes(&self, command: &str) -> receiver::Routes {
        receiver::parse(&self.ask(command))
    }
}

/// Starts FRR's bgpd, which listens on these addresses.
pub(super) fn start_frr(namespace: &str, config: &str, port: u16, addresses: &[String]) -> Option<Daemon> {
    let program = net::tool("frr-bgpd")?;
    Some(Daemon::start_in(Some(namespace), &program, config, |dir| {
        let dir = dir.display();
        let listen: Vec<String> = addresses.iter().map(|addr| format!("-l {addr}")).collect();
        let words = format!(
            "-p {port} {} -Z -S -u root -g root -P 0 --log stdout -f {dir}/conf -i {dir}/pid --vty_socket {dir}",
            listen.join(" ")
        );
        words.split(' ').map(str::to_owned).collect()
    }))
}
