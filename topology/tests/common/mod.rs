//! Helpers of the tests that need namespaces.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tortie_topology::{Lab, Options, Running, Sandbox};

/// Returns true if labs can be built here. Otherwise prints the reason and skips the test, or fails it in CI.
pub(crate) fn can_build() -> bool {
    match Sandbox::detect() {
        Ok(Sandbox::Root) => true,
        Ok(Sandbox::Rootless { .. }) => skip("needs root to act on namespaces directly"),
        Err(e) => skip(&e.to_string()),
    }
}

/// Skips a test with a reason; in CI it fails instead.
pub(crate) fn skip(why: &str) -> bool {
    assert!(std::env::var_os("CI").is_none(), "cannot run: {why}");
    eprintln!("skipped: {why}");
    false
}

/// Builds a lab from text, tied to this process, with its state in `dir`.
pub(crate) fn up(text: &str, dir: &Path) -> Running {
    let lab = Lab::from_text(text, &dir.join("test.clab.yml")).unwrap();
    lab.up(&options(dir), &mut |p| println!("{:6.3} {}", p.elapsed.as_secs_f64(), p.text))
        .unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) fn options(dir: &Path) -> Options {
    Options { peers_dir: peers(), ..Options::tied(Path::new("/bin/true"), &dir.join("state")) }
}

fn peers() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers/bin");
    dir.canonicalize().ok()
}

/// Returns the standard output of a command that must succeed.
pub(crate) fn run(lab: &Running, node: &str, command: &str) -> String {
    let output = lab.exec(node, &command.split(' ').collect::<Vec<_>>()).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{node}: {command}: {} {error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until the output of a command has all of these texts: the kernel reports the state of a link later
/// than it changes it.
pub(crate) fn shows(lab: &Running, node: &str, command: &str, texts: &[&str]) {
    within(60, command, || match run(lab, node, command) {
        output if texts.iter().all(|text| output.contains(text)) => Ok(()),
        output => Err(output),
    });
}

/// Retries until the check succeeds; panics with the last error after `seconds`.
pub(crate) fn within(seconds: u64, what: &str, mut ask: impl FnMut() -> Result<(), String>) {
    let begin = Instant::now();
    loop {
        match ask() {
            Ok(()) => return,
            Err(evidence) if begin.elapsed() > Duration::from_secs(seconds) => panic!("{what}: {evidence}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
