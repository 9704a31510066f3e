//! Calls another IPAM plugin: found on `CNI_PATH`, with the environment and stdin of the current call.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt as _;

use crate::plugins::cni::protocol::env::Command;
use crate::plugins::cni::protocol::error::{CniError, code, short};
use crate::plugins::cni::protocol::result::CniResult;
use crate::plugins::cni::protocol::version::Version;

/// Another IPAM plugin.
#[derive(Debug, Clone)]
pub(super) struct Delegate {
    name: String,
    program: PathBuf,
}

impl Delegate {
    /// Finds the plugin of this name.
    pub(super) fn find(name: &str, path: &[PathBuf]) -> Result<Self, CniError> {
        let usable = |program: &PathBuf| {
            std::fs::metadata(program)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        let program = path.iter().map(|dir| dir.join(name)).find(usable).ok_or_else(|| {
            let dirs: Vec<String> = path.iter().map(|dir| dir.display().to_string()).collect();
            let msg =
                format!("`ipam.type` is \"{name}\", and no such plugin is in CNI_PATH ({})", dirs.join(":"));
            CniError::new(code::CONFIG, msg)
        })?;
        Ok(Self { name: name.to_owned(), program })
    }

    /// Runs the plugin with this command; `None` if it printed no result, as for all commands except `ADD`.
    pub(super) async fn call(&self, command: Command, input: &[u8]) -> Result<Option<Value>, CniError> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            let program = self.program.display();
            CniError::new(code::IO, format!("the IPAM plugin {program} {what}: {error}"))
        };
        let mut child = tokio::process::Command::new(&self.program)
            .env("CNI_COMMAND", command.as_str())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed("cannot be started", &error))?;
        let stdin = child.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // The plugin may have failed before it read all of its input; its output decides.
                let _ = stdin.write_all(input).await;
            }
        };
        let ((), output) = tokio::join!(feed, child.wait_with_output());
        let output = output.map_err(|error| failed("was lost", &error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let answer: Option<Value> = serde_json::from_str(&text).ok();
        if output.status.success() {
            return Ok(answer);
        }
        let object = answer.as_ref().and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
        let said = object.get("msg").and_then(Value::as_str).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let said = if said.is_empty() { short(stderr.trim()) } else { said.to_owned() };
        let number = object.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok());
        let mut error =
            CniError::new(number.unwrap_or(code::DELEGATE), format!("IPAM plugin {}: {said}", self.name));
        error.details = object.get("details").and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(error)
    }

    /// Runs `ADD` and returns the addresses; on an error it runs `DEL`.
    pub(super) async fn add(&self, input: &[u8], version: Version) -> Result<CniResult, CniError> {
        let answer = match self.call(Command::Add, input).await {
            Ok(answer) => answer,
            Err(error) => {
                let _ = self.call(Command::Del, input).await;
                return Err(error);
            }
        };
        let name = &self.name;
        let read = answer
            .ok_or_else(|| CniError::new(code::DELEGATE, format!("IPAM plugin {name} answered no result")))
            .and_then(|answer| CniResult::parse("ipam result", &answer, version))
            .and_then(|result| {
                let none = || CniError::new(code::DELEGATE, format!("IPAM plugin {name} gave no address"));
                if result.ips.is_empty() { Err(none()) } else { Ok(result) }
            });
        if read.is_err() {
            let _ = self.call(Command::Del, input).await;
        }
        read
    }
}
