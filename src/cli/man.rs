//! `tortie man [DIR]`: generates manual pages from the clap definition.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use tortie_config::counted;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::{Cli, output};

/// Arguments of `tortie man`.
#[derive(Debug, clap::Args)]
pub(super) struct ManCommand {
    /// Folder for one page per command, such as /usr/share/man/man1; without it the main page is printed
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the program's page, or writes all pages to a folder.
pub(super) fn run(context: &Context, command: &ManCommand) -> Result<(), Failure> {
    let all = pages();
    let Some(dir) = &command.dir else {
        return output::text(context.globals.output, all.first().map_or("", |(_, text)| text));
    };
    std::fs::create_dir_all(dir).map_err(|error| unwritten(dir, &error))?;
    for (name, text) in &all {
        let path = dir.join(format!("{name}.1"));
        std::fs::write(&path, text).map_err(|error| unwritten(&path, &error))?;
    }
    super::store::say(context.globals.output, &format!("{} in {}", counted(all.len(), "page"), dir.display()))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    let exit =
        if error.kind() == std::io::ErrorKind::PermissionDenied { Exit::Permission } else { Exit::Usage };
    Failure::new(exit, "unwritten", format!("{} cannot be written: {error}", path.display()))
}

/// Returns every page with its name, the program's own page first.
fn pages() -> Vec<(String, String)> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut out = Vec::new();
    walk(&root, None, &mut out);
    out
}

fn walk(command: &Command, parent: Option<&str>, out: &mut Vec<(String, String)>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    out.push((name.to_owned(), page(command, name, parent)));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        walk(sub, Some(name), out);
    }
}

fn page(command: &Command, name: &str, parent: Option<&str>) -> String {
    // Global options are described only on the program's own page.
    let command = command.clone().mut_args(|arg| match (arg.is_global_set(), parent) {
        (true, Some(_)) => arg.hide(true),
        (true, None) => arg.help_heading("Options of every command"),
        (false, _) => arg,
    });
    let man = Man::new(command)
        .title(name.to_uppercase())
        .source(concat!("tortie ", env!("CARGO_PKG_VERSION")))
        .manual("Tortie");
    let mut page = Vec::new();
    // Writing to a vector does not fail.
    let _ = man.render(&mut page);
    let mut page = String::from_utf8_lossy(&page).into_owned();
    if let Some(parent) = parent {
        let _ = writeln!(page, ".SH \"SEE ALSO\"\n.BR {} (1)", parent.replace('-', "\\-"));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_no_line_of_it_is_a_command_accidentally() {
        let all = pages();
        assert_eq!(all[0].0, "tortie");
        assert!(all.iter().any(|(name, _)| name == "tortie-bgp-peers"));
        for (name, text) in &all {
            // The text before defines how apostrophes are rendered.
            let (_, text) = text.split_once(".TH ").unwrap();
            assert!(text.contains(".SH NAME\n") && text.contains(".SH SYNOPSIS\n"), "{name}");
            for line in text.lines().filter(|line| line.starts_with(['.', '\''])) {
                let known = [".SH ", ".TP", ".BR ", ".br", ".RS", ".RE", ".IP ", ".PP"];
                assert!(known.iter().any(|macro_| line.starts_with(macro_)), "{name}: {line}");
            }
        }
    }

    #[test]
    fn options_of_every_command_are_on_the_first_page_only() {
        let all = pages();
        let with = all.iter().filter(|(_, text)| text.contains("OPTIONS OF EVERY COMMAND"));
        assert_eq!(with.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["tortie"]);
        let peers = all.iter().find(|(name, _)| name == "tortie-bgp-peers").unwrap();
        assert!(!peers.1.contains("\\-\\-output"), "{}", peers.1);
        assert!(peers.1.ends_with(".SH \"SEE ALSO\"\n.BR tortie\\-bgp (1)\n"), "{}", peers.1);
    }
}
