//! What was begun and what was done, on disk before it is done: the way back of a move that was cut off.
//!
//! ```text
//!   STATE-DIR/migrate.json            steps with their times, rewritten whole at each of them
//!   STATE-DIR/migrate-snapshot.json   routes, rules and sets as they stood before; written once
//! ```
//!
//! Both are 0600: rules and routes are nobody else's business. A file is written beside, synced and renamed, so that a host
//! that loses power has the old or the new one.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

use super::daemons::StopWith;
use super::tools::Saved;
use crate::cli::failure::{Exit, Failure};
use crate::cli::migrate::boot_units::Boot;
use crate::host_checks::{CalicoDaemon, MigrationPhase};
use tortie_kernel::maintenance::handover::KeptRoute;

/// The form of both files; another one is refused.
const VERSION: u32 = 1;

/// The steps of `adopt`, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    Compare,
    Save,
    Stop,
    Copy,
    Start,
    Settle,
    RemoveRules,
    RemoveSets,
    RemoveRoutes,
    Verify,
}

impl Step {
    pub(super) const ALL: [Self; 10] = [
        Self::Compare,
        Self::Save,
        Self::Stop,
        Self::Copy,
        Self::Start,
        Self::Settle,
        Self::RemoveRules,
        Self::RemoveSets,
        Self::RemoveRoutes,
        Self::Verify,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Compare => "compare",
            Self::Save => "save",
            Self::Stop => "stop",
            Self::Copy => "copy",
            Self::Start => "start",
            Self::Settle => "settle",
            Self::RemoveRules => "remove-rules",
            Self::RemoveSets => "remove-sets",
            Self::RemoveRoutes => "remove-routes",
            Self::Verify => "verify",
        }
    }
}

/// A step that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Begun {
    pub(super) step: Step,
    pub(super) begun: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) ended: Option<String>,
}

/// What stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) version: u32,
    pub(super) node: String,
    /// The boot that the kernel's objects belong to.
    pub(super) boot: String,
    pub(super) phase: MigrationPhase,
    pub(super) steps: Vec<Begun>,
    /// Number and metric of our own routes.
    pub(super) protocol: u8,
    pub(super) metric: u32,
    /// The socket of our agent.
    pub(super) socket: PathBuf,
    pub(super) stop: StopWith,
    /// Calico's daemons as they ran.
    pub(super) daemons: Vec<CalicoDaemon>,
    /// Routes of BIRD that went although none of ours stood for them, because that was accepted.
    #[serde(default)]
    pub(super) without_ours: Vec<Cidr>,
    /// Units that start at boot since, and that no longer do.
    #[serde(default)]
    pub(super) boot_units: Boot,
}

/// The kernel as Calico left it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Snapshot {
    pub(super) version: u32,
    pub(super) routes: Vec<KeptRoute>,
    pub(super) rules: Vec<Saved>,
    pub(super) sets: String,
}

/// The files, held against a second one who moves this host.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    _lock: File,
    pub(super) record: Option<Record>,
}

impl Journal {
    /// Opens the folder, and makes it where it is not there.
    ///
    /// # Errors
    /// When it cannot be used, is in use, or holds what this program does not know.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let wrong = |e: std::io::Error| cannot(dir, &e);
        fs::create_dir_all(dir).map_err(wrong)?;
        let lock = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(dir.join("migrate.lock"))
            .map_err(wrong)?;
        if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            let text = "another `tortie migrate` is at work on this host: wait for it";
            return Err(Failure::new(Exit::Refused, "busy", text));
        }
        let record = read(&dir.join("migrate.json"), |record: &Record| record.version)?;
        Ok(Self { dir: dir.to_owned(), _lock: lock, record })
    }

    /// What stands in the folder, without holding it; nothing where there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn peek(dir: &Path) -> Result<Option<Record>, Failure> {
        read(&dir.join("migrate.json"), |record: &Record| record.version)
    }

    /// The snapshot in a folder, without holding it; empty where none was kept.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn peek_snapshot(dir: &Path) -> Result<Snapshot, Failure> {
        let path = dir.join("migrate-snapshot.json");
        Ok(read(&path, |snapshot: &Snapshot| snapshot.version)?.unwrap_or_default())
    }

    /// Writes the record.
    ///
    /// # Errors
    /// When the disk does not take it: then nothing may be done that it should tell of.
    pub(super) fn write(&mut self, record: Record) -> Result<(), Failure> {
        write(&self.dir.join("migrate.json"), &record)?;
        self.record = Some(record);
        Ok(())
    }

    /// Changes the record.
    ///
    /// # Errors
    /// As [`Journal::write`]; or when there is none.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), Failure> {
        let mut record = self.record.clone().ok_or_else(|| {
            Failure::new(Exit::Partial, "state", "nothing was begun here: there is no state file")
        })?;
        change(&mut record);
        self.write(record)
    }

    /// Notes that a step begins.
    ///
    /// # Errors
    /// As [`Journal::change`].
    pub(super) fn begin(&mut self, step: Step) -> Result<(), Failure> {
        self.change(|record| {
            record.steps.retain(|begun| begun.step != step);
            record.steps.push(Begun { step, begun: now(), ended: None });
        })?;
        halt(step.as_str(), "begun");
        Ok(())
    }

    /// Notes that a step is done.
    ///
    /// # Errors
    /// As [`Journal::change`].
    pub(super) fn end(&mut self, step: Step) -> Result<(), Failure> {
        halt(step.as_str(), "done");
        self.change(|record| {
            for begun in record.steps.iter_mut().filter(|begun| begun.step == step) {
                begun.ended = Some(now());
            }
        })?;
        halt(step.as_str(), "ended");
        Ok(())
    }

    /// Whether a step was begun.
    pub(super) fn has_begun(&self, step: Step) -> bool {
        self.record.as_ref().is_some_and(|r| r.steps.iter().any(|begun| begun.step == step))
    }

    /// Whether a step came to its end.
    pub(super) fn has_ended(&self, step: Step) -> bool {
        self.record
            .as_ref()
            .is_some_and(|r| r.steps.iter().any(|begun| begun.step == step && begun.ended.is_some()))
    }

    /// Keeps the snapshot.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub(super) fn keep(&self, snapshot: &Snapshot) -> Result<(), Failure> {
        write(&self.dir.join("migrate-snapshot.json"), &Snapshot { version: VERSION, ..snapshot.clone() })
    }
}

impl Record {
    /// A move that begins.
    pub(super) fn new(node: String, socket: PathBuf, (protocol, metric): (u8, u32)) -> Self {
        Self {
            version: VERSION,
            node,
            boot: boot_id(),
            phase: MigrationPhase::Adopting,
            steps: Vec::new(),
            protocol,
            metric,
            socket,
            stop: StopWith::default(),
            daemons: Vec::new(),
            without_ours: Vec::new(),
            boot_units: Boot::default(),
        }
    }

    /// Whether the kernel is the one that the record tells of.
    pub(super) fn is_this_boot(&self) -> bool {
        self.boot == boot_id()
    }
}

/// Names this boot.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}

fn cannot(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    let text =
        format!("{} cannot be used: {error}; be root, or name another with --state-dir", path.display());
    Failure::new(Exit::Permission, "state", text)
}

fn read<T: DeserializeOwned>(path: &Path, version: impl Fn(&T) -> u32) -> Result<Option<T>, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot(path, &error)),
    };
    let value: T = serde_json::from_str(&text).map_err(|error| {
        let text = format!("{}: {error}; another version of tortie wrote it, or a hand did", path.display());
        Failure::new(Exit::Refused, "state", text)
    })?;
    let found = version(&value);
    if found == VERSION {
        return Ok(Some(value));
    }
    let text = format!(
        "{} is of form {found}, this tortie knows {VERSION}: go on with the one that began",
        path.display()
    );
    Err(Failure::new(Exit::Refused, "state", text))
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| cannot(path, &e))?;
    let temporary = path.with_extension("new");
    let wrong = |e: std::io::Error| cannot(path, &e);
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(wrong)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(wrong)?;
    fs::rename(&temporary, path).map_err(wrong)?;
    // The name, too, has to be on the disk.
    if let Some(dir) = path.parent() {
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(wrong)?;
    }
    Ok(())
}

/// Dies here where a test asks for it, as with kill -9.
#[cfg(feature = "test-hooks")]
pub(super) fn halt(step: &str, at: &str) {
    if std::env::var("TORTIE_MIGRATE_HALT").is_ok_and(|wanted| wanted == format!("{step}:{at}")) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
}

#[cfg(not(feature = "test-hooks"))]
pub(super) fn halt(_: &str, _: &str) {}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_was_begun_is_on_disk_for_root_alone_and_for_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        assert!(journal.record.is_none() && journal.begin(Step::Stop).is_err());
        journal.write(Record::new("h1".to_owned(), "/run/x.sock".into(), (179, 1790))).unwrap();
        journal.begin(Step::Stop).unwrap();
        assert!(Journal::open(dir.path()).unwrap_err().text.contains("another"));
        drop(journal);
        let mut journal = Journal::open(dir.path()).unwrap();
        assert!(
            journal.has_begun(Step::Stop) && !journal.has_ended(Step::Stop) && !journal.has_begun(Step::Copy)
        );
        journal.end(Step::Stop).unwrap();
        assert!(journal.has_ended(Step::Stop) && journal.record.as_ref().unwrap().is_this_boot());
        let snapshot = Snapshot { sets: "create x\n".to_owned(), ..Snapshot::default() };
        assert_eq!(Journal::peek_snapshot(dir.path()).unwrap(), Snapshot::default());
        journal.keep(&snapshot).unwrap();
        assert_eq!(Journal::peek_snapshot(dir.path()).unwrap().sets, snapshot.sets);
        for name in ["migrate.json", "migrate-snapshot.json", "migrate.lock"] {
            let mode = fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        // A later form is not guessed at.
        let path = dir.path().join("migrate.json");
        let text = fs::read_to_string(&path).unwrap().replace("\"version\":1", "\"version\":2");
        fs::write(&path, text).unwrap();
        drop(journal);
        assert!(Journal::open(dir.path()).unwrap_err().text.contains("form 2"));
    }
}
