//! Sessions with GoBGP, FRR, OpenBGPD and ExaBGP: up, and a route each way.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::frr::Frr;
use crate::net;
use crate::node::{Node, intent, peer, wait};
use crate::openbgpd::OpenBgpd;

const US: &str = "192.0.2.1:1790";

/// A daemon with its files in a folder of its own.
pub(crate) struct Daemon {
    dir: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    /// `arguments` gets the folder; `config` is written to `conf` in it.
    pub(crate) fn start(program: &Path, config: &str, arguments: impl Fn(&Path) -> Vec<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("conf"), config.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let child = Command::new(program)
            .args(arguments(dir.path()))
            .current_dir(dir.path())
            .envs([("exabgp.daemon.drop", "false"), ("exabgp.cli.pipe", "")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { dir, child }
    }

    /// Kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    pub(crate) fn says(&self, program: &Path, arguments: &[&str], text: &str) {
        wait(&format!("{} to say {text}", program.display()), || {
            let out = Command::new(program).args(arguments).output().unwrap();
            let answer = String::from_utf8_lossy(&out.stdout).into_owned();
            if answer.contains(text) {
                Ok(())
            } else {
                Err(format!("{answer}{}{}", String::from_utf8_lossy(&out.stderr), self.log()))
            }
        });
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // OpenBGPD's parent has to end its children itself.
        if let Ok(id) = i32::try_from(self.child.id())
            && let Some(pid) = rustix::process::Pid::from_raw(id)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node with the daemon at 192.0.2.`last` as its eBGP peer, whose route must reach the kernel.
fn meets(log: &dyn Fn() -> String, last: u32) -> Node {
    let mut us = intent(US, 64512, &["10.1.0.0/26"]);
    let mut them = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", 65000 + last);
    them.ipv6 = false;
    us.peers.insert("them".into(), them);
    let a = Node::start(us);
    let (prefix, via) = (format!("10.{last}.0.0/24"), format!("192.0.2.{last}"));
    wait(&format!("{prefix} via {via}"), || {
        a.route(&prefix).map_or_else(|| Err(format!("{:#?}\n{}", a.facts(), log())), |_| Ok(()))
    });
    a.has(&prefix, &via);
    a
}

#[test]
fn gobgp() {
    if !net::enter(&[]) {
        return;
    }
    let (Some(program), Some(cli)) = (net::tool("gobgpd"), net::tool("gobgp")) else { return };
    let config = r#"
        [global.config]
          as = 65010
          router-id = "192.0.2.10"
          port = 1790
          local-address-list = ["192.0.2.10"]
        [[neighbors]]
          [neighbors.config]
            neighbor-address = "192.0.2.1"
            peer-as = 64512
          [neighbors.timers.config]
            connect-retry = 1
          [neighbors.transport.config]
            local-address = "192.0.2.10"
            remote-port = 1790
          [neighbors.ebgp-multihop.config]
            enabled = true
            multihop-ttl = 5
    "#;
    let daemon = Daemon::start(&program, config, |dir| {
        let conf = dir.join("conf").to_string_lossy().into_owned();
        ["-t", "toml", "-f", &conf, "--api-hosts", "192.0.2.10:50051"].map(String::from).to_vec()
    });
    wait("GoBGP to take a route", || {
        let add =
            Command::new(&cli).args("-u 192.0.2.10 global rib add 10.10.0.0/24".split(' ')).output().unwrap();
        if add.status.success() { Ok(()) } else { Err(daemon.log()) }
    });
    let _a = meets(&|| daemon.log(), 10);
    daemon.says(&cli, &["-u", "192.0.2.10", "global", "rib"], "10.1.0.0/26");
}

#[test]
fn frr() {
    if !net::enter(&[]) {
        return;
    }
    let network = "network 10.11.0.0/24\n exit-address-family\n";
    let Some(frr) = Frr::start(65011, "192.0.2.11", network) else { return };
    let _a = meets(&|| frr.log(), 11);
    frr.says("show bgp ipv4 unicast", "10.1.0.0/26");
}

/// Starts OpenBGPD with this configuration.
pub(crate) fn start_openbgpd(program: &Path, config: &str) -> Daemon {
    // It wants a user of its own, which an unpacked package has not made: the accounts it sees are its own, too.
    let script = "cp /etc/passwd passwd; cp /etc/group group; mkdir -m 0755 empty
        echo \"_openbgpd:x:64999:64999::$PWD/empty:/usr/sbin/nologin\" >> passwd; echo '_openbgpd:x:64999:' >> group
        mount --bind passwd /etc/passwd && mount --bind group /etc/group && exec \"$0\" -d -f conf";
    let unshare = PathBuf::from("unshare");
    Daemon::start(&unshare, config, |dir| {
        std::fs::set_permissions(dir.join("conf"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        ["-m", "sh", "-c", script, program.to_str().unwrap()].map(String::from).to_vec()
    })
}

#[test]
fn openbgpd() {
    if !net::enter(&[]) {
        return;
    }
    let Some(daemon) = OpenBgpd::start("") else { return };
    let _a = meets(&|| daemon.log(), 12);
    daemon.says(&["show", "rib"], "10.1.0.0/26");
}

#[test]
fn exabgp() {
    if !net::enter(&[]) {
        return;
    }
    let Some(program) = net::tool("exabgp") else { return };
    let config = "process dump { run /bin/sh DIR/dump; encoder json; }
      neighbor 192.0.2.1 {
        api { processes [ dump ]; receive { parsed; update; } }
        router-id 192.0.2.13; local-address 192.0.2.13; local-as 65013; peer-as 64512; connect 1790;
        family { ipv4 unicast; }
        static { route 10.13.0.0/24 next-hop 192.0.2.13; }
      }";
    let daemon = Daemon::start(&program, config, |dir| {
        // Its helper runs as nobody, and is at times given a pipe that is not ready.
        let script =
            "for i in $(seq 100); do while read -r l; do echo \"$l\" >> updates; done; sleep 0.1; done";
        std::fs::write(dir.join("dump"), format!("cd {} && {script}", dir.display())).unwrap();
        std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        vec!["conf".into()]
    });
    let _a = meets(&|| daemon.log(), 13);
    wait("ExaBGP to pass our route on", || {
        let updates = std::fs::read_to_string(daemon.file("updates")).unwrap_or_default();
        if updates.contains("10.1.0.0/26") { Ok(()) } else { Err(format!("{updates}{}", daemon.log())) }
    });
}
