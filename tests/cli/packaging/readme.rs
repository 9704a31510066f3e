//! Runs the lines of the section "Install" of the README on a machine with systemd.

use std::path::Path;
use std::process::Command;

use super::machine::Machine;
use super::systemd::package;
use crate::common::command::{stderr, stdout};

const README: &str = include_str!("../../../README.md");
const MAKEFILE: &str = include_str!("../../../Makefile");

/// Returns the commands of the first block of a section, without comments.
fn commands(section: &str) -> Vec<String> {
    let text = README.split_once(&format!("\n## {section}\n")).expect("a section of the README").1;
    let block = text.split("```").nth(1).unwrap_or_default();
    let typed = block.lines().filter_map(|line| line.strip_prefix("$ "));
    typed.map(|line| line.split(" #").next().unwrap_or(line).trim().to_owned()).collect()
}

#[test]
fn the_install_lines_of_the_readme_start_an_agent_that_is_ready() {
    let files = tempfile::tempdir().unwrap();
    if package(files.path()).is_none() {
        return;
    }
    let Some(machine) = Machine::boot(files.path()) else { return };
    let arch = Command::new("dpkg").arg("--print-architecture").output().unwrap();
    let named = format!("tortie_{}_{}.deb", env!("CARGO_PKG_VERSION"), stdout(&arch).trim());
    let mut last = String::new();
    for line in commands("Install") {
        if let Some(target) = line.strip_prefix("make ") {
            assert!(MAKEFILE.contains(&format!("\n{target}:")), "no target {target} in the Makefile");
        } else if let Some(file) = line.strip_prefix("sudo apt install ") {
            assert_eq!(Path::new(file).file_name().unwrap(), named.as_str(), "{line}");
            // The package without apt, which would read lists of a mirror.
            machine.must("dpkg -i --no-triggers --force-depends /mnt/tortie.deb");
        } else {
            let output = machine.run(&format!("sudo() {{ \"$@\"; }}\n{line}"));
            last = format!("{}{}", stdout(&output), stderr(&output));
            // `doctor` exits with 1 when it lists a problem.
            let wanted: &[i32] = if line.ends_with("doctor") { &[0, 1] } else { &[0] };
            assert!(output.status.code().is_some_and(|code| wanted.contains(&code)), "{line}: {last}");
        }
    }
    assert!(last.lines().next().is_some_and(|line| line.contains("READY")), "{last}\n{}", machine.journal());
}
