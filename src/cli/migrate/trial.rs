//! Comparison by an agent in observe mode: one that already runs, or a temporary one.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tortie_config::counted;

use crate::api::policy::Diff;
use crate::api::status::Status;
use crate::cli::client::Client;
use crate::cli::context::Globals;
use crate::cli::failure::{Exit, Failure};

/// Interval of queries to a starting agent.
const LOOK: Duration = Duration::from_millis(100);

/// Result of the comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Compared {
    pub(super) differences: Vec<String>,
    pub(super) not_judged: Vec<String>,
}

impl Compared {
    pub(super) fn in_words(&self) -> String {
        match (self.differences.len(), self.not_judged.len()) {
            (0, 0) => "no difference".to_owned(),
            (n, 0) => counted(n, "difference"),
            (n, unknown) => format!("{}, {unknown} not judged", counted(n, "difference")),
        }
    }

    /// Converts the agent's answer; lines with `?` could not be compared, and are neither equal nor
    /// different.
    pub(super) fn read(diff: &Diff) -> Self {
        let mut all = Self::default();
        for section in &diff.sections {
            let what = &section.what;
            let (unknown, differing): (Vec<_>, Vec<_>) =
                section.lines.iter().partition(|line| line.mark == "?");
            all.differences
                .extend(differing.iter().map(|line| format!("{what} {} {}", line.mark, line.text)));
            all.not_judged.extend(unknown.iter().map(|line| format!("{what} {}", line.text)));
            if let Some(more) = section.count.checked_sub(differing.len()).filter(|more| *more > 0) {
                all.differences.push(format!("{what} and {more} more"));
            }
            if !section.problem.is_empty() {
                all.differences.push(format!("{what} {}", section.problem));
            }
        }
        all.not_judged.extend(diff.unseen.iter().map(|unseen| format!("not looked at: {unseen}")));
        all
    }
}

/// A temporary agent, which is killed with its folder removed on drop.
struct Trial {
    child: Child,
    dir: PathBuf,
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Runs the comparison.
///
/// # Errors
/// If an agent already writes to this host's kernel, or the observing agent does not finish in time.
pub(super) async fn compare(
    globals: &Globals,
    bird_sockets: &[PathBuf],
    wait: Duration,
) -> Result<Compared, Failure> {
    let client = Client::of(globals);
    if let Ok(status) = client.get::<Status>("/v1/status").await {
        if status.dataplane.mode == "program" {
            let text = "an agent of Tortie programs this host already: stop it, or see `tortie status`";
            return Err(Failure::new(Exit::Refused, "agent-runs", text));
        }
        return answer(&client, wait, || None).await;
    }
    let dir = std::env::temp_dir().join(format!("tortie-trial-{}", std::process::id()));
    let wrong = |e: std::io::Error| Failure::new(Exit::Partial, "trial", format!("{}: {e}", dir.display()));
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .create(&dir)
        .map_err(wrong)?;
    let socket = dir.join("agent.sock");
    let program = std::env::current_exe().map_err(wrong)?;
    let mut command = Command::new(program);
    command.arg("--datastore").arg(&globals.datastore).arg("--node").arg(globals.node_name()?);
    let files = [
        ("--etcd-ca", globals.etcd_ca.as_ref()),
        ("--etcd-cert", globals.etcd_cert.as_ref()),
        ("--etcd-key", globals.etcd_key.as_ref()),
        ("--etcd-password-file", globals.etcd_password_file.as_ref()),
    ];
    for (flag, file) in files {
        if let Some(file) = file {
            command.arg(flag).arg(file);
        }
    }
    if let Some(user) = &globals.etcd_user {
        command.arg("--etcd-user").arg(user);
    }
    command.arg("--data-model").arg(globals.data_model.to_string());
    command.arg("--socket").arg(&socket);
    command.args(["agent", "--kernel", "observe", "--http", "none", "--cache"]).arg(dir.join("cache.json"));
    for socket in bird_sockets {
        command.arg("--bird-socket").arg(socket);
    }
    let log = std::fs::File::create(dir.join("log")).map_err(wrong)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    // Settings for the future agent must not affect this one.
    for name in [
        "TORTIE_KERNEL",
        "TORTIE_POLICY",
        "TORTIE_HTTP",
        "TORTIE_DOCKER",
        "TORTIE_DOCKER_COMPAT",
        "TORTIE_METRICS_COMPAT",
        "NOTIFY_SOCKET",
    ] {
        command.env_remove(name);
    }
    let child = command.spawn().map_err(wrong)?;
    let mut trial = Trial { child, dir: dir.clone() };
    let ended = || {
        let status = trial.child.try_wait().ok().flatten()?;
        let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        Some(format!(
            "the observing agent ended ({status}): {}",
            log.lines().last().unwrap_or("it printed nothing")
        ))
    };
    answer(&Client::new(&socket), wait, ended).await
}

/// Queries until the agent has compared; after its start, until its answer no longer changes.
async fn answer(
    client: &Client,
    wait: Duration,
    mut ended: impl FnMut() -> Option<String>,
) -> Result<Compared, Failure> {
    let begin = Instant::now();
    let mut last: Option<(Compared, Instant)> = None;
    let mut said = "it does not answer".to_owned();
    loop {
        // The agent answers `busy` until it has read store and kernel once.
        let compared = match client.get::<Diff>("/v1/diff").await {
            Ok(diff) => diff.compared_seconds.map(|_| Compared::read(&diff)),
            Err(failure) => {
                said = failure.text;
                None
            }
        };
        if let Some(now) = compared {
            let since =
                last.take().filter(|(before, _)| *before == now).map_or_else(Instant::now, |(_, at)| at);
            // An answer without differences needs no confirmation.
            let patience = if now.differences.is_empty() { Duration::ZERO } else { Duration::from_secs(3) };
            if since.elapsed() >= patience {
                return Ok(now);
            }
            last = Some((now, since));
        }
        if let Some(text) = ended() {
            return Err(Failure::new(Exit::Partial, "trial", text));
        }
        if begin.elapsed() > wait {
            let text = format!(
                "the observing agent did not complete its comparison in {} s: {said}",
                wait.as_secs()
            );
            return Err(Failure::new(Exit::TimedOut, "trial", text));
        }
        tokio::time::sleep(LOOK).await;
    }
}
