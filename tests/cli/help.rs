//! Agreed help text of every command, one file each in tests/cli/golden/help. `TORTIE_GOLDEN=1 cargo test
//! --test cli help` rewrites them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/golden/help")
}

/// Collects the help of a command and all its subcommands, without the flags that every command has.
fn collect_help(command: &Command, path: &str, out: &mut Vec<(String, String)>) {
    let mut shown = command.clone().term_width(110).disable_version_flag(true);
    if path != "tortie" {
        let globals: Vec<String> =
            command.get_arguments().filter(|a| a.is_global_set()).map(|a| a.get_id().to_string()).collect();
        for id in globals {
            shown = shown.mut_arg(id, |arg| arg.hide(true));
        }
    }
    out.push((path.to_owned(), shown.render_long_help().to_string()));
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set() && s.get_name() != "help") {
        collect_help(sub, &format!("{path}-{}", sub.get_name()), out);
    }
}

#[test]
fn helps_are_as_agreed() {
    // Values from the environment would be part of the help text.
    assert!(std::env::vars_os().all(|(name, _)| !name.to_string_lossy().starts_with("TORTIE_D")));
    let mut root = tortie::cli::Cli::command();
    root.build();
    let mut all = Vec::new();
    collect_help(&root, "tortie", &mut all);
    if std::env::var_os("TORTIE_GOLDEN").is_some() {
        let _ = std::fs::remove_dir_all(golden());
        std::fs::create_dir_all(golden()).unwrap();
        for (path, text) in &all {
            std::fs::write(golden().join(format!("{path}.txt")), text).unwrap();
        }
    }
    let mut wrong = Vec::new();
    for (path, text) in &all {
        let agreed = std::fs::read_to_string(golden().join(format!("{path}.txt"))).unwrap_or_default();
        if agreed != *text {
            wrong.push(path.clone());
        }
    }
    let known: BTreeSet<String> = all.iter().map(|(path, _)| format!("{path}.txt")).collect();
    for file in std::fs::read_dir(golden()).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if !known.contains(&name) {
            wrong.push(format!("{name} (no such command)"));
        }
    }
    assert!(
        wrong.is_empty(),
        "TORTIE_GOLDEN=1 cargo test --test cli help, then look at the difference: {wrong:?}"
    );
}

/// Every flag and command must have a description.
#[test]
fn every_flag_and_command_says_what_it_does() {
    fn look(command: &Command, path: &str) {
        for sub in command.get_subcommands().filter(|s| !s.is_hide_set() && s.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name());
            assert!(sub.get_about().is_some(), "{path}");
            for arg in sub.get_arguments().filter(|a| !a.is_hide_set() && a.get_id() != "help") {
                assert!(arg.get_help().is_some(), "{path}: {}", arg.get_id());
            }
            look(sub, &path);
        }
    }
    let mut root = tortie::cli::Cli::command();
    root.build();
    look(&root, "tortie");
}
