//! `tortie lab up|down|exec`: labs of network namespaces from containerlab files.

use std::fmt::Write as _;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Instant;

use clap::Subcommand;
use serde::Serialize;
use tortie_config::counted;
use tortie_topology::{Lab, LabError, Options, clab::Kind};

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{self, Format};

/// Subcommands of `tortie lab`.
#[derive(Debug, Subcommand)]
pub(super) enum LabCommand {
    /// Build the lab and start its nodes; they run until `down`
    Up {
        /// A containerlab topology (*.clab.yml)
        file: PathBuf,
    },
    /// Take the lab down: processes, namespaces, links, names
    Down {
        /// The file that the lab was built from
        file: PathBuf,
    },
    /// Run a command in a node; exits as the command does
    Exec {
        /// The file that the lab was built from
        file: PathBuf,
        /// The node
        node: String,
        /// Program and arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Up {
    lab: String,
    state_dir: PathBuf,
    nodes: Vec<NodeRow>,
    links: usize,
    notes: Vec<String>,
    millis: u128,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeRow {
    name: String,
    kind: &'static str,
    image: Option<String>,
    namespace: Option<String>,
    log: Option<PathBuf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Down {
    lab: String,
    text: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Executed {
    node: String,
    command: Vec<String>,
    status: i32,
    stdout: String,
    stderr: String,
}

pub(super) fn run(context: &Context, command: &LabCommand) -> Result<(), Failure> {
    let format = context.globals.output;
    match command {
        LabCommand::Up { file } => up(format, file),
        LabCommand::Down { file } => {
            let (lab, options) = read(file)?;
            lab.down(&options).map_err(failure)?;
            let name = &lab.topology.name;
            let down = Down { lab: name.clone(), text: format!("lab {name} is down") };
            output::print(format, &down, |out, _| {
                let _ = writeln!(out, "{}", down.text);
            })
        }
        LabCommand::Exec { file, node, command } => exec(format, file, node, command),
    }
}

/// Reads the lab file.
fn read(file: &Path) -> Result<(Lab, Options), Failure> {
    let lab = Lab::from_file(file).map_err(failure)?;
    let binary = own_program()?;
    let options = Options::lasting(&binary, &lab);
    Ok((lab, options))
}

/// Returns the path of this program.
pub(super) fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| {
        Failure::new(Exit::Partial, "system", format!("the path of this program cannot be read: {e}"))
    })
}

fn up(format: Format, file: &Path) -> Result<(), Failure> {
    let (lab, options) = read(file)?;
    let begin = Instant::now();
    let running = lab
        .up(&options, &mut |p| {
            eprintln!("{:5.1}s  {}/{}  {}", p.elapsed.as_secs_f64(), p.step + 1, p.steps, p.text);
        })
        .map_err(failure)?;
    let topology = running.topology();
    let nodes = topology.nodes.iter().map(|node| {
        let linux = node.kind == Kind::Linux;
        NodeRow {
            name: node.name.clone(),
            kind: match node.kind {
                Kind::Linux => "linux",
                Kind::Bridge => "bridge",
                Kind::Host => "host",
            },
            image: node.image.clone(),
            namespace: linux.then(|| topology.namespace(&node.name)),
            log: running.log_of(&node.name).ok().filter(|_| linux && running.pid(&node.name).is_some()),
        }
    });
    let up = Up {
        lab: topology.name.clone(),
        state_dir: options.state_dir.clone(),
        nodes: nodes.collect(),
        links: topology.links.len(),
        notes: topology.notes.clone(),
        millis: begin.elapsed().as_millis(),
    };
    for note in &up.notes {
        eprintln!("note: {note}");
    }
    output::print(format, &up, |out, wide| {
        let rows = up.nodes.iter().map(|n| {
            let dash = || "-".to_owned();
            let mut row = vec![
                n.name.clone(),
                n.kind.to_owned(),
                n.image.clone().unwrap_or_else(dash),
                n.namespace.clone().unwrap_or_else(dash),
            ];
            if wide {
                row.push(n.log.as_ref().map_or_else(dash, |l| l.display().to_string()));
            }
            row
        });
        let head = ["NODE", "KIND", "IMAGE", "NAMESPACE", "LOG"];
        out.push_str(&output::table(if wide { &head } else { &head[..4] }, rows.collect()));
        let file = file.display();
        let _ = writeln!(
            out,
            "\nlab {} is up: {}, {}, {:.1} s.  tortie lab exec {file} NODE -- COMMAND   tortie lab down \
             {file}",
            up.lab,
            counted(up.nodes.len(), "node"),
            counted(up.links, "link"),
            begin.elapsed().as_secs_f64()
        );
    })
}

fn exec(format: Format, file: &Path, node: &str, command: &[String]) -> Result<(), Failure> {
    let (lab, options) = read(file)?;
    let running = lab.attach(&options).map_err(failure)?;
    if format.is_text() {
        let status = running
            .spawn(node, command, |c| {
                c.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
            })
            .and_then(|mut child| {
                child.wait().map_err(|source| LabError::Node {
                    node: node.to_owned(),
                    what: "waiting for the command".to_owned(),
                    source,
                })
            })
            .map_err(failure)?;
        end(status)
    }
    let output = running.exec(node, command).map_err(failure)?;
    let executed = Executed {
        node: node.to_owned(),
        command: command.to_vec(),
        status: code(output.status),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    output::print(format, &executed, |_, _| ())?;
    end(output.status)
}

/// Returns the exit code as a shell does: 128 + N for signal N.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Exits with the code of the command that ran in the node, not with an exit code of this program.
fn end(status: ExitStatus) -> ! {
    std::process::exit(code(status))
}

/// Converts an error of a lab to a failure.
pub(super) fn failure(error: LabError) -> Failure {
    let text = error.to_string();
    let denied = |source: &io::Error| source.kind() == io::ErrorKind::PermissionDenied;
    let (exit, code) = match &error {
        LabError::File { source, .. } | LabError::Node { source, .. } if denied(source) => {
            (Exit::Permission, "denied")
        }
        LabError::File { .. } | LabError::Invalid(_) => return Failure::usage(text),
        LabError::Forbidden(_) => (Exit::Permission, "forbidden"),
        LabError::Node { .. } => (Exit::No, "not-built"),
        LabError::Command { .. } => (Exit::No, "command-failed"),
        LabError::Timeout { .. } => (Exit::TimedOut, "timeout"),
        LabError::Absent(_) => (Exit::No, "not-running"),
        LabError::Running { .. } => (Exit::Refused, "running"),
    };
    Failure::new(exit, code, text)
}
