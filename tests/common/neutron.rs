//! The writer of OpenStack: networking-calico on a network in memory (`tests/openstack/neutron.py`).

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::etcd::binary;

/// Neutron's driver as a child process: one command and one answer a line.
pub(crate) struct Neutron {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Neutron {
    /// Returns the command for an etcd at `host:port`, which ends with its input. `None` without the
    /// packages.
    pub(crate) fn command(etcd: &str) -> Option<Vec<PathBuf>> {
        let program = binary("calico-neutron")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openstack/neutron.py");
        Some(vec![program, script, etcd.into()])
    }

    pub(crate) fn start(etcd: &str) -> Option<Self> {
        let words = Self::command(etcd)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Self::pipes(&mut command);
        Some(Self::of(command.spawn().unwrap()))
    }

    /// Prepares a command for [`Self::of`].
    pub(crate) fn pipes(command: &mut Command) {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
    }

    pub(crate) fn of(mut child: Child) -> Self {
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, commands, answers: BufReader::new(answers) }
    }

    pub(crate) fn ask(&mut self, command: &Value) -> Value {
        writeln!(self.commands, "{command}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{command}: {error}: {line:?}"))
    }

    pub(crate) fn resync(&mut self) -> Value {
        self.ask(&json!({"op": "resync"}))
    }

    pub(crate) fn group(&mut self, id: &str, name: &str, rules: &[&Value]) {
        self.ask(&json!({"op": "group", "id": id, "name": name, "rules": rules}));
    }

    /// Writes a port in the subnet `s`.
    pub(crate) fn port(
        &mut self,
        id: &str,
        (host, device, mac): (&str, &str, &str),
        addr: &str,
        groups: &[&str],
    ) {
        self.ask(&json!({
            "op": "port", "id": id, "device": device, "host": host, "ips": [addr], "subnet": "s", "groups": groups,
            "mac": mac,
        }));
    }
}

impl Drop for Neutron {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
