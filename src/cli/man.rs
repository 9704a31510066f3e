//! `tortie man [DIR]`: manual pages, made from the definition that parses the command line.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};

use super::failure::{Exit, Failure};
use super::{Cli, Context, output};

/// `tortie man`.
#[derive(Debug, clap::Args)]
pub(super) struct ManCommand {
    /// A folder that gets one page for each command, such as /usr/share/man/man1; without it the first page is printed
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints or writes the pages.
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
    super::store::say(context.globals.output, &format!("{} pages in {}", all.len(), dir.display()))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    let exit =
        if error.kind() == std::io::ErrorKind::PermissionDenied { Exit::Permission } else { Exit::Usage };
    Failure::new(exit, "unwritten", format!("{} cannot be written: {error}", path.display()))
}

/// Every page with its name, the first one of the program itself.
fn pages() -> Vec<(String, String)> {
    let mut root = Cli::command();
    root.build();
    let mut out = Vec::new();
    walk(&root, &[], &mut out);
    out
}

fn walk(command: &Command, above: &[&str], out: &mut Vec<(String, String)>) {
    let path: Vec<&str> = above.iter().copied().chain([command.get_name()]).collect();
    out.push((path.join("-"), page(command, &path)));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        walk(sub, &path, out);
    }
}

/// Text as troff takes it (groff_man(7)): no line begins with a control character, dashes stay dashes.
fn troff(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with(['.', '\'']) {
            out.push_str("\\&");
        }
        out.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
        out.push('\n');
    }
    out.trim_end().to_owned()
}

fn page(command: &Command, path: &[&str]) -> String {
    let mut out = String::new();
    let (name, words) = (path.join("-"), path.join(" "));
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(
        out,
        ".TH \"{}\" 1 \"\" \"tortie {}\" \"Tortie\"\n.SH NAME\n{} \\- {}",
        troff(&name.to_uppercase()),
        env!("CARGO_PKG_VERSION"),
        troff(&name),
        troff(&about)
    );
    let _ = writeln!(out, ".SH SYNOPSIS\n.B {}\n{}", troff(&words), troff(&synopsis(command)));
    if let Some(long) = command.get_long_about() {
        let _ = writeln!(out, ".SH DESCRIPTION\n{}", troff(&long.to_string()));
    }
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    section(&mut out, "ARGUMENTS", shown().filter(|arg| arg.is_positional()));
    section(&mut out, "OPTIONS", shown().filter(|arg| !arg.is_positional() && !arg.is_global_set()));
    if path.len() == 1 {
        section(&mut out, "OPTIONS OF EVERY COMMAND", shown().filter(|arg| arg.is_global_set()));
    }
    let subs: Vec<&Command> =
        command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help").collect();
    if !subs.is_empty() {
        out.push_str(".SH COMMANDS\n");
        for sub in &subs {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let page = troff(&format!("{name}-{}", sub.get_name()));
            let _ = writeln!(out, ".TP\n.BR {page} (1)\n{}", troff(&about));
        }
    }
    if let Some(after) = command.get_after_help() {
        let _ = writeln!(out, ".SH NOTES\n{}", troff(&after.to_string()));
    }
    if path.len() > 1 {
        let above = troff(&path[..path.len() - 1].join("-"));
        let _ = writeln!(out, ".SH SEE ALSO\n.BR {above} (1)");
    }
    out
}

fn synopsis(command: &Command) -> String {
    let mut parts = vec!["[OPTIONS]".to_owned()];
    for arg in command.get_positionals().filter(|arg| !arg.is_hide_set()) {
        let name = value_name(arg);
        parts.push(if arg.is_required_set() { format!("<{name}>") } else { format!("[{name}]") });
    }
    if command.has_subcommands() {
        parts.push("<COMMAND>".to_owned());
    }
    parts.join(" ")
}

fn value_name(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(clap::builder::Str::as_str).collect();
    if names.is_empty() { arg.get_id().as_str().to_uppercase() } else { names.join(" ") }
}

fn section<'a>(out: &mut String, title: &str, args: impl Iterator<Item = &'a Arg>) {
    let mut args = args.peekable();
    if args.peek().is_none() {
        return;
    }
    let _ = writeln!(out, ".SH {title}");
    for arg in args {
        let value = arg.get_action().takes_values().then(|| value_name(arg));
        let flags = [
            arg.get_short().map(|short| format!("-{short}")),
            arg.get_long().map(|long| format!("--{long}")),
        ];
        let flags: Vec<String> = flags.into_iter().flatten().collect();
        let head = match (flags.is_empty(), value) {
            (true, value) => value.unwrap_or_default(),
            (false, Some(value)) => format!("{} {value}", flags.join(", ")),
            (false, None) => flags.join(", "),
        };
        let help =
            arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(out, ".TP\n.B {}\n{}", troff(&head), troff(&help));
        let values: Vec<String> = arg
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| value.get_name().to_owned())
            .collect();
        if !values.is_empty() && arg.get_action().takes_values() {
            let _ = writeln!(out, ".br\nOne of: {}", troff(&values.join(", ")));
        }
        if let Some(env) = arg.get_env() {
            let _ = writeln!(out, ".br\nEnvironment: {}", troff(&env.to_string_lossy()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_no_line_of_it_is_a_command_by_mistake() {
        let all = pages();
        assert_eq!(all[0].0, "tortie");
        assert!(all.iter().any(|(name, _)| name == "tortie-bgp-peers"));
        for (name, text) in &all {
            assert!(text.starts_with(".TH "), "{name}");
            assert!(text.contains(".SH NAME\n") && text.contains(".SH SYNOPSIS\n"), "{name}");
            for line in text.lines().filter(|line| line.starts_with('.')) {
                let known = [".TH ", ".SH ", ".TP", ".B ", ".BR ", ".br"];
                assert!(known.iter().any(|macro_| line.starts_with(macro_)), "{name}: {line}");
            }
        }
        assert_eq!(troff(".x a-b\\c"), "\\&.x a\\-b\\ec");
    }
}
