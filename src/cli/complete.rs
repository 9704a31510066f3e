//! Shell completion: `tortie completion SHELL`, and the hidden `__complete` that its scripts call. Commands
//! and flags come from the clap definition, names of peers, endpoints, pools and hosts from the agent or the
//! store.
//!
//! clap_complete is not used: its dynamic engine (feature `unstable-dynamic`) may change with every release,
//! which would break installed scripts; and without that engine it cannot complete names.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Arg, CommandFactory, ValueEnum};
use serde_json::Value;

use super::client::Client;
use super::context::Context;
use super::failure::Failure;
use super::{Cli, output};

/// Maximum time for reading names, because the user waits for the completion.
const PATIENCE: Duration = Duration::from_millis(700);
/// Maximum number of names that are offered.
const NAMES: usize = 500;

/// Arguments of `tortie completion`.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionCommand {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// A shell with completion scripts.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Arguments of `tortie __complete`, which the completion scripts call.
#[derive(Debug, clap::Args)]
pub(super) struct CompleteCommand {
    /// The words so far, the last one as far as it is typed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Prints the completion script of a shell.
pub(super) fn script(context: &Context, command: &CompletionCommand) -> Result<(), Failure> {
    output::text(
        context.globals.output,
        match command.shell {
            Shell::Bash => BASH,
            Shell::Zsh => ZSH,
            Shell::Fish => FISH,
        },
    )
}

// Bash splits words at `:` and `=`, so the part before the last of them is removed from candidates.
const BASH: &str = r#"# tortie completion bash > /etc/bash_completion.d/tortie
_tortie() {
    local line="${COMP_LINE:0:COMP_POINT}" candidate cut last
    local -a words
    read -ra words <<< "$line"
    case "$line" in *[[:space:]]) words+=("") ;; esac
    last="${words[${#words[@]}-1]}"
    cut="${last%"${last##*[:=]}"}"
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        COMPREPLY+=("${candidate#"$cut"}")
    done < <("${words[0]}" __complete -- "${words[@]}" 2>/dev/null)
}
complete -o default -F _tortie tortie
"#;

const ZSH: &str = r#"#compdef tortie
# tortie completion zsh > "${fpath[1]}/_tortie"
_tortie() {
    local -a found
    local candidate about
    while IFS=$'\t' read -r candidate about; do
        found+=("${candidate//:/\\:}:${about}")
    done < <("${words[1]}" __complete -- "${(@)words[1,CURRENT]}" 2>/dev/null)
    if (( ${#found} )); then _describe tortie found; else _files; fi
}
if [ "$funcstack[1]" = "_tortie" ]; then _tortie "$@"; else compdef _tortie tortie; fi
"#;

const FISH: &str = r"# tortie completion fish > ~/.config/fish/completions/tortie.fish
function __tortie_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete -- $words 2>/dev/null
end
complete -c tortie -f -a '(__tortie_complete)'
";

/// Kind of names that a value is completed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Peers,
    Endpoints,
    Policies,
    Nodes,
    Pools,
    Keys,
    Files,
}

/// A candidate and its description.
type Candidate = (String, String);

/// Possible continuations of a command line.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    These(Vec<Candidate>),
    Named(Names),
}

/// Prints the candidates, one per line, each with its description after a tab.
pub(super) async fn run(context: &Context, command: &CompleteCommand) -> Result<(), Failure> {
    let (partial, before) = match command.words.split_last() {
        Some((partial, before)) => (partial.as_str(), before),
        None => ("", &[][..]),
    };
    let typed: Vec<&str> = before.iter().skip(1).map(String::as_str).collect();
    let (next, context) = (next(&typed, partial), typed_context(context, &typed));
    let candidates = match next {
        Next::These(list) => list,
        Next::Named(names) => {
            tokio::time::timeout(PATIENCE, live(&context, names, partial)).await.unwrap_or_default()
        }
    };
    let mut out = String::new();
    for (candidate, about) in candidates.into_iter().filter(|(name, _)| name.starts_with(partial)).take(NAMES)
    {
        out.push_str(&candidate);
        if !about.is_empty() {
            out.push('\t');
            out.push_str(&about);
        }
        out.push('\n');
    }
    output::write_out(&out)
}

/// Returns the context with agent and store as given by flags in the command line so far.
fn typed_context(context: &Context, typed: &[&str]) -> Context {
    let mut globals = context.globals.clone();
    let pairs = typed.iter().zip(typed.iter().skip(1).chain(&[""]));
    for (word, after) in pairs {
        let (flag, value) = word.split_once('=').unwrap_or((word, after));
        match flag {
            "--socket" => globals.socket = value.into(),
            "--datastore" => value.clone_into(&mut globals.datastore),
            "--node" => globals.node = Some(value.to_owned()),
            _ => {}
        }
    }
    Context { globals }
}

/// Parses the words with the definition of the command line, and returns possible continuations.
fn next(typed: &[&str], partial: &str) -> Next {
    let mut root = Cli::command();
    root.build();
    let mut command = &root;
    let mut path: Vec<&str> = Vec::new();
    let (mut position, mut wants): (usize, Option<&Arg>) = (0, None);
    for word in typed {
        if wants.take().is_some() {
            continue;
        }
        if let Some(flag) = word.strip_prefix('-') {
            wants = find_flag(command, flag).filter(|arg| takes_value(arg) && !word.contains('='));
        } else if let Some(sub) = command.find_subcommand(word) {
            command = sub;
            path.push(sub.get_name());
            position = 0;
        } else {
            position += 1;
        }
    }
    if let Some(arg) = wants {
        return value(&path, arg);
    }
    if let Some((flag, _)) = partial.split_once('=')
        && let Some(arg) = flag.strip_prefix('-').and_then(|flag| find_flag(command, flag))
    {
        return match value(&path, arg) {
            Next::These(list) => {
                Next::These(list.into_iter().map(|(name, about)| (format!("{flag}={name}"), about)).collect())
            }
            named @ Next::Named(_) => named,
        };
    }
    if partial.starts_with('-') {
        return Next::These(flags(command));
    }
    let mut list: Vec<Candidate> = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .map(|sub| (sub.get_name().to_owned(), about(sub.get_about())))
        .collect();
    let positional = command.get_positionals().nth(position).or_else(|| {
        command.get_positionals().last().filter(|arg| arg.get_num_args().is_some_and(|n| n.max_values() > 1))
    });
    if let Some(arg) = positional {
        match value(&path, arg) {
            Next::These(values) => list.extend(values),
            named => return named,
        }
    }
    Next::These(list)
}

/// Returns the first line of a help text, without tabs, which separate candidates from descriptions.
fn about(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(|text| text.to_string().lines().next().unwrap_or_default().replace('\t', " "))
        .unwrap_or_default()
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// Finds a flag by its text after the first dash.
fn find_flag<'a>(command: &'a clap::Command, flag: &str) -> Option<&'a Arg> {
    let flag = flag.split('=').next().unwrap_or(flag);
    let fits = |arg: &&Arg| match flag.strip_prefix('-') {
        Some(long) => arg.get_long() == Some(long),
        None => flag.chars().count() == 1 && arg.get_short() == flag.chars().next(),
    };
    command.get_arguments().find(fits)
}

fn flags(command: &clap::Command) -> Vec<Candidate> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(|arg| Some((format!("--{}", arg.get_long()?), about(arg.get_help())))).collect()
}

fn value(path: &[&str], arg: &Arg) -> Next {
    let values = arg.get_possible_values();
    if !values.is_empty() && takes_value(arg) {
        let shown = values.iter().filter(|value| !value.is_hide_set());
        return Next::These(shown.map(|v| (v.get_name().to_owned(), about(v.get_help()))).collect());
    }
    match names(path, arg.get_id().as_str()) {
        Some(names) => Next::Named(names),
        None => Next::These(Vec::new()),
    }
}

/// Returns the kind of names for the values of an argument.
fn names(path: &[&str], id: &str) -> Option<Names> {
    Some(match (path, id) {
        (["bgp" | "why" | "history", "peer"] | ["bgp", "reset" | "drain"], "name" | "peer" | "peers") => {
            Names::Peers
        }
        (["bgp" | "why", ..], "to" | "from" | "peer") if !path.contains(&"packet") => Names::Peers,
        (["endpoint", _] | ["history", "endpoint"], "name") => Names::Endpoints,
        (["policy", "trace"] | ["why", "packet"], "from" | "to") => Names::Endpoints,
        (["policy", "show"], "name") => Names::Policies,
        (["node", _], "name") | (["ipam", _], "node" | "host") => Names::Nodes,
        (["ipam", ..], "pool" | "pools" | "cidr") => Names::Pools,
        (["store", "get" | "put" | "rm" | "ls" | "watch"], "key" | "prefix") => Names::Keys,
        (
            _,
            "socket" | "etcd_ca" | "etcd_cert" | "etcd_key" | "etcd_password_file" | "file" | "config"
            | "cache",
        ) => Names::Files,
        (_, "node") => Names::Nodes,
        _ => return None,
    })
}

/// Reads the current names; none if the agent or store does not answer.
async fn live(context: &Context, names: Names, partial: &str) -> Vec<Candidate> {
    let client = Client::of(&context.globals);
    let ask = async |path: &str| -> Vec<Value> {
        let list: Value = client.get(path).await.unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    };
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    match names {
        Names::Files => Vec::new(),
        Names::Peers => {
            let mut found = Vec::new();
            for peer in ask("/v1/bgp/peers").await {
                let about = format!("{} {}", text(&peer, "type"), text(&peer, "state"));
                let all: BTreeSet<String> =
                    ["name", "address", "session"].iter().map(|field| text(&peer, field)).collect();
                found.extend(all.into_iter().map(|name| (name, about.clone())));
            }
            found
        }
        Names::Endpoints => {
            let list = ask("/v1/endpoints?all=true").await;
            list.iter().map(|e| (text(e, "name"), text(e, "interface"))).collect()
        }
        Names::Policies => {
            ask("/v1/policies?all=true").await.iter().map(|p| (text(p, "name"), text(p, "kind"))).collect()
        }
        Names::Nodes => {
            stored(context, &crate::api::nodes::prefixes(), |key| key.host().map(str::to_owned)).await
        }
        Names::Pools => {
            let prefixes = ["/calico/v1/ipam/".to_owned()];
            let pool = |key: &tortie_config::key::Key| match key {
                tortie_config::key::Key::Pool(cidr) => Some(cidr.to_string()),
                _ => None,
            };
            stored(context, &prefixes, pool).await
        }
        Names::Keys => keys(context, partial).await,
    }
}

async fn list(context: &Context, prefixes: &[String]) -> Vec<String> {
    let Ok(store) = super::store::open(&context.globals, false).await else { return Vec::new() };
    let Ok(snapshot) = store.list(prefixes).await else { return Vec::new() };
    snapshot.entries.into_iter().map(|kv| kv.key).collect()
}

async fn stored(
    context: &Context,
    prefixes: &[String],
    name: impl Fn(&tortie_config::key::Key) -> Option<String>,
) -> Vec<Candidate> {
    let keys = list(context, prefixes).await;
    let names: BTreeSet<String> =
        keys.iter().filter_map(|key| name(&tortie_config::key::Key::parse(key).ok()?)).collect();
    names.into_iter().map(|name| (name, String::new())).collect()
}

/// Returns keys that continue `partial`, up to the next element of their paths.
async fn keys(context: &Context, partial: &str) -> Vec<Candidate> {
    let partial = if partial.starts_with("/calico/") { partial } else { "/calico/" };
    let known = partial.rfind('/').map_or(0, |at| at + 1);
    let next = |key: String| {
        let end = key.get(known..)?.find('/').map_or(key.len(), |at| known + at + 1);
        key.get(..end).map(str::to_owned)
    };
    let found: BTreeSet<String> =
        list(context, &[partial.to_owned()]).await.into_iter().filter_map(next).collect();
    found.into_iter().map(|key| (key, String::new())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn these(typed: &[&str], partial: &str) -> Vec<String> {
        match next(typed, partial) {
            Next::These(list) => {
                list.into_iter().map(|(name, _)| name).filter(|n| n.starts_with(partial)).collect()
            }
            Next::Named(names) => panic!("{names:?}"),
        }
    }

    #[test]
    fn commands_flags_and_values_come_from_the_definition() {
        assert!(these(&[], "st").contains(&"status".to_owned()));
        assert!(these(&[], "__").is_empty(), "what is hidden stays hidden");
        assert_eq!(these(&["bgp"], "pe"), ["peers", "peer"]);
        assert_eq!(these(&["status"], "--all"), ["--all-nodes"]);
        assert_eq!(these(&["bgp", "peers", "-o"], "j"), ["json"]);
        assert_eq!(these(&["--socket", "/s", "bgp", "peers", "--color"], "a"), ["auto", "always"]);
        assert_eq!(these(&["bgp", "peers"], "--output=y"), ["--output=yaml"]);
        assert_eq!(these(&["completion"], ""), ["bash", "zsh", "fish"]);
    }

    #[test]
    fn names_are_asked_for_where_names_stand() {
        for (typed, names) in [
            (&["bgp", "peer"][..], Names::Peers),
            (&["why", "peer"], Names::Peers),
            (&["-o", "json", "bgp", "reset"], Names::Peers),
            (&["bgp", "routes", "--from"], Names::Peers),
            (&["why", "route", "10.0.0.0/26", "--to"], Names::Peers),
            (&["endpoint", "show"], Names::Endpoints),
            (&["policy", "trace", "--from"], Names::Endpoints),
            (&["policy", "show"], Names::Policies),
            (&["node", "show"], Names::Nodes),
            (&["store", "get"], Names::Keys),
            (&["--node"], Names::Nodes),
        ] {
            assert_eq!(next(typed, ""), Next::Named(names), "{typed:?}");
        }
        // The value of a flag is not a positional argument.
        assert_eq!(next(&["bgp", "--node", "h1", "peer"], ""), Next::Named(Names::Peers));
    }
}
