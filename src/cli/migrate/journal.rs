//! Journal of a migration: each step is on disk before it is carried out, so that an interrupted migration
//! can be resumed or rolled back.
//!
//! ```text
//!   STATE-DIR/migrate.json            steps with their times, rewritten at each step
//!   STATE-DIR/migrate-snapshot.json   routes, rules and sets before the migration; written once
//! ```
//!
//! Both files have mode 0600, because rules and routes are confidential. A file is written under another
//! name, synced and renamed, so that after a power loss either the old or the new content exists.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

use super::daemons::StopWith;
use super::rules::SavedTable;
use super::tools::Saved;
use crate::cli::failure::{Exit, Failure};
use crate::cli::migrate::boot_units::Boot;
use crate::host_checks::{CalicoDaemon, MigrationPhase};
use tortie_kernel::maintenance::handover::KeptRoute;

/// Format version of both files; other versions are rejected.
const VERSION: u32 = 1;

/// Steps of `adopt`, in order.
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

/// A step that was begun, with its times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Begun {
    pub(super) step: Step,
    pub(super) begun: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) ended: Option<String>,
}

/// Content of the journal file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) version: u32,
    pub(super) node: String,
    /// Id of the boot to which the kernel objects belong.
    pub(super) boot: String,
    pub(super) phase: MigrationPhase,
    pub(super) steps: Vec<Begun>,
    /// Routing protocol number and metric of Tortie's routes.
    pub(super) protocol: u8,
    pub(super) metric: u32,
    /// Socket of Tortie's agent.
    pub(super) socket: PathBuf,
    pub(super) stop: StopWith,
    /// Calico's daemons before they were stopped.
    pub(super) daemons: Vec<CalicoDaemon>,
    /// Prefixes whose BIRD routes were removed without a replacement by Tortie, because the operator accepted
    /// that.
    #[serde(default)]
    pub(super) without_ours: Vec<Cidr>,
    /// Units that were enabled and disabled at boot.
    #[serde(default)]
    pub(super) boot_units: Boot,
}

/// Kernel objects that Calico left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Snapshot {
    pub(super) version: u32,
    pub(super) routes: Vec<KeptRoute>,
    pub(super) rules: Vec<Saved>,
    pub(super) sets: String,
    /// Felix's own tables of nftables.
    #[serde(default)]
    pub(super) tables: Vec<SavedTable>,
}

/// The state folder, locked against a second migration of this host.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    _lock: File,
    pub(super) record: Option<Record>,
}

impl Journal {
    /// Opens the folder, and creates it if necessary.
    ///
    /// # Errors
    /// If it cannot be used, is locked, or has files of an unknown format.
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
            let text = "another `tortie migrate` runs on this host: wait for it";
            return Err(Failure::new(Exit::Refused, "busy", text));
        }
        let record = read(&dir.join("migrate.json"), |record: &Record| record.version)?;
        Ok(Self { dir: dir.to_owned(), _lock: lock, record })
    }

    /// Reads the journal without locking the folder; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn peek(dir: &Path) -> Result<Option<Record>, Failure> {
        read(&dir.join("migrate.json"), |record: &Record| record.version)
    }

    /// Reads the snapshot without locking the folder; empty if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn peek_snapshot(dir: &Path) -> Result<Snapshot, Failure> {
        let path = dir.join("migrate-snapshot.json");
        Ok(read(&path, |snapshot: &Snapshot| snapshot.version)?.unwrap_or_default())
    }

    /// Writes the journal.
    ///
    /// # Errors
    /// If the disk write fails; the step must not be carried out then.
    pub(super) fn write(&mut self, record: Record) -> Result<(), Failure> {
        write(&self.dir.join("migrate.json"), &record)?;
        self.record = Some(record);
        Ok(())
    }

    /// Changes the journal.
    ///
    /// # Errors
    /// As [`Journal::write`], or if there is no journal.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), Failure> {
        let mut record = self.record.clone().ok_or_else(|| {
            Failure::new(Exit::Partial, "state", "no migration was begun here: there is no state file")
        })?;
        change(&mut record);
        self.write(record)
    }

    /// Records the begin of a step.
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

    /// Records the end of a step.
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

    /// True if the step was begun.
    pub(super) fn has_begun(&self, step: Step) -> bool {
        self.record.as_ref().is_some_and(|r| r.steps.iter().any(|begun| begun.step == step))
    }

    /// True if the step was completed.
    pub(super) fn has_ended(&self, step: Step) -> bool {
        self.record
            .as_ref()
            .is_some_and(|r| r.steps.iter().any(|begun| begun.step == step && begun.ended.is_some()))
    }

    /// Writes the snapshot.
    ///
    /// # Errors
    /// If the disk write fails.
    pub(super) fn keep(&self, snapshot: &Snapshot) -> Result<(), Failure> {
        write(&self.dir.join("migrate-snapshot.json"), &Snapshot { version: VERSION, ..snapshot.clone() })
    }
}

impl Record {
    /// Creates the journal of a new migration.
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

    /// True if the host has not been rebooted since the journal was created.
    pub(super) fn is_this_boot(&self) -> bool {
        self.boot == boot_id()
    }
}

/// Returns the boot id.
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
        let text =
            format!("{}: {error}; another version of tortie wrote it, or it was edited", path.display());
        Failure::new(Exit::Refused, "state", text)
    })?;
    let found = version(&value);
    if found == VERSION {
        return Ok(Some(value));
    }
    let text = format!(
        "{} has format {found}, this tortie supports {VERSION}: continue with the version that began",
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
    // The directory is synced, too, so that the new name is on disk.
    if let Some(dir) = path.parent() {
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(wrong)?;
    }
    Ok(())
}

/// Kills this process where a test requests it, as `kill -9` would.
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
        // A later format is rejected.
        let path = dir.path().join("migrate.json");
        let text = fs::read_to_string(&path).unwrap().replace("\"version\":1", "\"version\":2");
        fs::write(&path, text).unwrap();
        drop(journal);
        assert!(Journal::open(dir.path()).unwrap_err().text.contains("format 2"));
    }
}
