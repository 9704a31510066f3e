//! The program under test with its own store, and checks of its errors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

pub(crate) const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(TORTIE);
    command.args(words).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TORTIE_") {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn tortie(words: &[&str]) -> Output {
    command(words).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with a SQLite store.
pub(crate) struct Store {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) url: String,
}

impl Store {
    /// Returns a store that does not exist yet.
    pub(crate) fn none() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("store.db").display());
        Self { dir, url }
    }

    pub(crate) fn with(entries: &[(&str, &str)]) -> Self {
        let this = Self::none();
        for (key, value) in entries {
            let output = this.run(&["store", "put", "--raw", key, value]);
            assert!(output.status.success(), "{output:?}");
        }
        this
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        tortie(&[&["--datastore", &self.url], words].concat())
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn export(&self) -> BTreeMap<String, String> {
        let output = self.run(&["store", "export"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Checks a rejected command: exit status 2, nothing on stdout, and all of these words on stderr; with `-o
/// json` the same as one JSON object.
pub(crate) fn refused(words: &[&str], named: &[&str]) {
    fails(2, "invalid", words, named);
}

pub(crate) fn fails(code: i32, name: &str, words: &[&str], named: &[&str]) {
    let output = tortie(words);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{words:?}: {output:?}");
    for word in named {
        assert!(text.contains(word), "{words:?} does not say {word:?}: {text}");
    }
    let json = tortie(&[words, &["-o", "json"]].concat());
    assert_eq!(json.status.code(), Some(code), "{words:?}: {json:?}");
    let error: serde_json::Value =
        serde_json::from_slice(&json.stderr).unwrap_or_else(|e| panic!("{words:?}: {e}: {}", stderr(&json)));
    assert_eq!(error["error"]["code"], name, "{words:?}: {error}");
    let said = error["error"]["text"].as_str().unwrap();
    for word in named {
        assert!(said.contains(word), "{words:?} does not say {word:?} in JSON: {error}");
    }
    assert_eq!(error.as_object().unwrap().len(), 1);
    assert_eq!(error["error"].as_object().unwrap().len(), 2);
}

/// A running program; it is killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A secret that must appear only in output that was requested to show it.
pub(crate) const SECRET: &str = "corvid-7-lantern";

/// Copies a program that the test starts. Another process writes the copy: a file that this process has open
/// for writing is open in each process that another test starts meanwhile, and cannot be executed (ETXTBSY).
pub(crate) fn copy_program(from: impl AsRef<std::path::Path>, to: impl AsRef<std::path::Path>) {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status().unwrap();
    assert!(copied.success(), "cp {} {}", from.as_ref().display(), to.as_ref().display());
}
