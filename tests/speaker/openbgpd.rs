//! OpenBGPD of the test's own.

use std::path::PathBuf;

use crate::net;
use crate::others::{Daemon, start_openbgpd};

/// A bgpd in AS 65012 at 192.0.2.12, whose neighbour is 192.0.2.1 in AS 64512 and whose route is 10.12.0.0/24.
pub(crate) struct OpenBgpd {
    daemon: Daemon,
    cli: PathBuf,
}

impl OpenBgpd {
    /// Starts with more options of the neighbour. `None`: there is no OpenBGPD.
    pub(crate) fn start(options: &str) -> Option<Self> {
        let (program, cli) = (net::tool("openbgpd")?, net::tool("bgpctl")?);
        let config = format!(
            "AS 65012
            router-id 192.0.2.12
            listen on 192.0.2.12 port 1790
            fib-update no
            socket \"DIR/socket\"
            network 10.12.0.0/24
            neighbor 192.0.2.1 {{
              remote-as 64512
              port 1790
              local-address 192.0.2.12
              multihop 5
              {options}
            }}
            allow from any
            allow to any
            "
        );
        let daemon = start_openbgpd(&program, &config);
        Some(Self { daemon, cli })
    }

    pub(crate) fn log(&self) -> String {
        self.daemon.log()
    }

    pub(crate) fn says(&self, arguments: &[&str], text: &str) {
        let socket = self.daemon.file("socket");
        self.daemon.says(&self.cli, &[&["-s", &socket], arguments].concat(), text);
    }

    pub(crate) fn tell(&self, arguments: &[&str]) {
        let socket = self.daemon.file("socket");
        let out =
            std::process::Command::new(&self.cli).arg("-s").arg(socket).args(arguments).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}
