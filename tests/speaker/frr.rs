//! FRR's bgpd of the test's own.

use std::path::PathBuf;
use std::process::Command;

use crate::net;
use crate::node::wait;
use crate::others::Daemon;

/// A bgpd whose neighbour is 192.0.2.1 in AS 64512.
pub(crate) struct Frr {
    daemon: Daemon,
    cli: PathBuf,
}

impl Frr {
    /// Starts at this address and in this AS; `more` goes on in its address family IPv4 unicast. `None`: there is no FRR.
    pub(crate) fn start(asn: u32, address: &str, more: &str) -> Option<Self> {
        let (program, cli) = (net::tool("frr-bgpd")?, net::tool("vtysh")?);
        let config = format!(
            "router bgp {asn}
              bgp router-id {address}
              no bgp ebgp-requires-policy
              no bgp network import-check
              neighbor 192.0.2.1 remote-as 64512
              neighbor 192.0.2.1 port 1790
              neighbor 192.0.2.1 ebgp-multihop
              neighbor 192.0.2.1 update-source {address}
              neighbor 192.0.2.1 timers connect 1
              address-family ipv4 unicast
             {more}"
        );
        let daemon = Daemon::start(&program, &config, |dir| {
            let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
            let fixed = format!("-p 1790 -l {address} -Z -S -u root -g root -P 0 --log stdout");
            let files =
                ["-f".into(), file("conf"), "-i".into(), file("pid"), "--vty_socket".into(), file("")];
            fixed.split(' ').map(String::from).chain(files).collect()
        });
        std::fs::write(daemon.file("vtysh.conf"), "username root nopassword\n").unwrap();
        Some(Self { daemon, cli })
    }

    /// Kill -9.
    pub(crate) fn kill(&mut self) {
        self.daemon.kill();
    }

    pub(crate) fn log(&self) -> String {
        self.daemon.log()
    }

    pub(crate) fn ask(&self, command: &str) -> String {
        let dir = self.daemon.file("");
        let out = Command::new(&self.cli)
            .args(["--config_dir", &dir, "--vty_socket", &dir, "-c", command])
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    pub(crate) fn says(&self, command: &str, text: &str) {
        wait(&format!("FRR to say {text:?} to {command:?}"), || {
            let answer = self.ask(command);
            if answer.contains(text) { Ok(()) } else { Err(format!("{answer}\n{}", self.log())) }
        });
    }
}
