//! Reads of sockets with a timeout: the kernel does not restart them after a signal (signal(7)), and tests that start programs
//! send signals to all threads of their process.

use std::fs;
use std::path::{Path, PathBuf};

use crate::arrows::files::sources;

/// Calls that return what one read gives.
const READS: &[&str] = &[".read(", ".recv(", ".recv_from(", ".peek("];
/// Evidence on the same line, or up to this number of lines later, that an interrupted read is repeated.
const EVIDENCE: &[&str] = &["uninterrupted(", "Interrupted"];
const LINES: usize = 8;
/// Files whose loops read again after any error.
const READ_AGAIN: &[&str] = &["tests/speaker/bfd/stalls.rs", "tests/speaker/hostile/mod.rs"];

/// Returns the lines, counted from 1, of reads whose interruption ends them, in a source that sets a timeout.
fn faults(source: &str) -> Vec<usize> {
    if !source.contains("set_read_timeout(") {
        return Vec::new();
    }
    let lines: Vec<&str> = source.lines().collect();
    let is_read = |line: &str| READS.iter().any(|read| line.contains(read)) && line.contains("&mut ");
    let is_repeated = |at: usize| {
        let mut near = lines.iter().skip(at).take(LINES);
        near.any(|line| EVIDENCE.iter().any(|evidence| line.contains(evidence)))
    };
    (0..lines.len()).filter(|at| is_read(lines[*at]) && !is_repeated(*at)).map(|at| at + 1).collect()
}

#[test]
fn a_signal_ends_no_read_of_a_test() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), &mut files);
    files.retain(|path| !READ_AGAIN.iter().any(|file| path.ends_with(file)));
    let of_file = |path: &PathBuf| {
        let lines = faults(&fs::read_to_string(path).unwrap());
        lines.into_iter().map(|line| format!("{}:{line}", path.display())).collect::<Vec<_>>()
    };
    let found: Vec<String> = files.iter().flat_map(of_file).collect();
    assert_eq!(found, [""; 0], "use common::concurrency::uninterrupted");
}

#[test]
fn a_read_that_a_signal_ends_is_found() {
    let timeout = "stream.set_read_timeout(Some(SOON)).unwrap();";
    let read = "let n = stream.read(&mut part).unwrap();";
    assert_eq!(faults(&format!("{timeout}\n{read}")), [2]);
    assert_eq!(faults(read), [0; 0], "without a timeout the kernel restarts it");
    assert_eq!(faults(&format!("{timeout}\nuninterrupted(|| stream.read(&mut part)).unwrap();")), [0; 0]);
}
