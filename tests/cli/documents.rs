//! Commands in README.md and in the pages below docs/: each exists, and those of `sh` and `console` blocks run.
//!
//! The first line of a block determines its treatment. Commands of `sh` and `console` blocks (in `console`
//! after `$`, followed by their output) run on a host of a small network, in the order of the document, and
//! each must exit as stated (`# exit 1`; otherwise 0). `text`, `json`, `yaml` and `ini` blocks are only
//! displayed. Every `tortie` command in a block or line must exist.

use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;
use tortie::cli::demo::network::{Network, Spec};
use tortie::cli::demo::router::Router;
use tortie_topology::Sandbox;

use crate::common::command::TORTIE;

/// Host of the network on which commands run, and its preparation: its own folders for commands that write,
/// and a `sudo`, which is not needed there.
const HOST: &str = "host1";
const PREPARE: &str = "mkdir -p /opt && mount -t tmpfs tmpfs /opt && mount -t tmpfs tmpfs /etc && mount -t tmpfs tmpfs /tmp && \
                       mount -t tmpfs tmpfs /root && mkdir -p /var/lib/tortie && mount -t tmpfs tmpfs /var/lib/tortie";
const PRELUDE: &str = "sudo() { \"$@\"; }; cd /root";

/// A fenced block.
#[derive(Debug)]
struct Block {
    file: PathBuf,
    /// Number of its first line.
    line: usize,
    info: String,
    lines: Vec<String>,
}

/// A command of a block, with its expected exit code.
#[derive(Debug)]
struct Typed {
    place: String,
    text: String,
    exit: i32,
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    pages(&root.join("docs"), &mut all);
    // Tutorials show the network as `make demo` leaves it, so they run before the pages that add pools, peers and filters.
    all.sort_by_key(|path| (!path.starts_with(root.join("docs/tutorials")), path.clone()));
    all.insert(0, root.join("README.md"));
    all
}

/// Collects the Markdown files below a folder.
fn pages(folder: &Path, out: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            pages(&path, out);
        } else if path.extension().is_some_and(|end| end == "md") {
            out.push(path);
        }
    }
}

/// Returns the blocks of a document, and its other lines with their numbers.
fn read(file: &Path) -> (Vec<Block>, Vec<(usize, String)>) {
    let text = std::fs::read_to_string(file).unwrap();
    let (mut blocks, mut rest, mut open) = (Vec::new(), Vec::new(), None::<Block>);
    for (at, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                let info = info.trim().to_owned();
                open = Some(Block { file: file.to_owned(), line: at + 1, info, lines: Vec::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines.push(line.to_owned()),
            (None, None) => rest.push((at + 1, line.to_owned())),
        }
    }
    assert!(open.is_none(), "{}: a block does not end", file.display());
    (blocks, rest)
}

impl Block {
    /// Returns the commands: one per line, together with continuation lines (after a backslash, or until a
    /// quote is closed).
    fn commands(&self) -> Vec<Typed> {
        let mut out: Vec<Typed> = Vec::new();
        let mut goes_on = false;
        for (at, line) in self.lines.iter().enumerate() {
            let begins = match self.info.as_str() {
                "console" => line.strip_prefix("$ "),
                _ => Some(line.as_str()).filter(|line| !line.trim().is_empty() && !line.starts_with('#')),
            };
            match (goes_on, begins, out.last_mut()) {
                (true, _, Some(last)) => {
                    last.text.push('\n');
                    last.text.push_str(line);
                }
                (_, Some(text), _) => {
                    let place = format!("{}:{}", self.file.display(), self.line + at + 1);
                    out.push(Typed { place, text: text.to_owned(), exit: 0 });
                }
                _ => continue,
            }
            let text = out.last().map_or("", |typed| typed.text.as_str());
            goes_on = text.ends_with('\\') || text.matches('\'').count() % 2 == 1;
        }
        for typed in &mut out {
            if let Some((_, word)) = typed.text.rsplit_once("# exit ") {
                let word = word.split(|c: char| !c.is_ascii_digit()).next().unwrap();
                typed.exit = word.parse().unwrap();
            }
        }
        out
    }
}

/// Runs the commands of a document in sequence, in one folder.
fn run(net: &Network, commands: &[Typed], wrong: &mut Vec<String>) {
    for typed in commands {
        let script = format!("{PRELUDE}\n{}\n", typed.text);
        // A command that runs until it is interrupted gets SIGINT.
        let words = ["timeout", "--preserve-status", "--signal=INT", "20", "bash", "-c", &script];
        let output = net.running.exec(HOST, &words).unwrap();
        if output.status.code() != Some(typed.exit) {
            wrong.push(format!(
                "{}: `{}` ends with {:?}, not {}\n{}{}",
                typed.place,
                typed.text,
                output.status.code(),
                typed.exit,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ));
        }
    }
}

/// Maximum number of words of README.md, code and tables included: it is the first page, not the manual.
const README_WORDS: usize = 1000;

#[test]
fn the_readme_is_one_page() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let words = text.split_whitespace().count();
    assert!(words <= README_WORDS, "README.md has {words} words, at most {README_WORDS} are wanted");
}

#[test]
fn commands_of_the_documents_work() {
    if !matches!(Sandbox::detect(), Ok(Sandbox::Root)) {
        assert!(std::env::var_os("CI").is_none(), "needs root");
        eprintln!("skipped: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let spec = Spec {
        hosts: 3,
        router: Router::Tortie,
        v6: false,
        rootless: false,
        binary: TORTIE.into(),
        state_dir: dir.path().join("state"),
        datastore: None,
    };
    let net = Network::up(spec, &mut |_| ()).unwrap();
    let prepared = net.running.exec(HOST, &["sh", "-c", PREPARE]).unwrap();
    assert!(prepared.status.success(), "{prepared:?}");
    let settled = "for n in $(seq 100); do tortie bgp peers --no-headers | grep -c Established | grep -q 3 && \
                   tortie route list | grep -q 10.244.2.0/26 && tortie status --all-nodes && exit 0; sleep 0.1; done; tortie status; exit 1";
    let up = net.running.exec(HOST, &["bash", "-c", settled]).unwrap();
    assert!(up.status.success(), "{up:?}");
    let (mut wrong, mut count) = (Vec::new(), 0);
    for file in documents() {
        for block in read(&file).0.iter().filter(|block| matches!(block.info.as_str(), "sh" | "console")) {
            let commands = block.commands();
            assert!(!commands.is_empty(), "{}:{}: a block without a command", file.display(), block.line);
            run(&net, &commands, &mut wrong);
            count += commands.len();
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 30, "{count} commands were found");
    net.running.down().unwrap();
}

/// Splits a text into shell words as far as documents need it: quotes, and comments after a blank.
fn words(text: &str) -> Vec<String> {
    let (mut out, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | ';' | '>' | '<' | '&') => break,
            (None, c) if c.is_whitespace() => out.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    out.extend(word);
    out
}

/// Returns the error if a `tortie` command does not exist; placeholders for values are accepted.
fn misspelt(text: &str) -> Option<String> {
    let mut words = words(text.trim_start_matches("$ ").trim_start_matches("sudo "));
    // `bgp peers|peer`, `[--since 10m]` and similar forms stand for several commands.
    if words.first().is_none_or(|word| word != "tortie")
        || words.iter().any(|w| w.contains(['[', '{', '$', '`']) || w.contains("..."))
        || text.split(" tortie ").count() > 2
    {
        return None;
    }
    words.retain(|word| word != "\\");
    // A line of output.
    if words.get(1).is_some_and(|word| word.ends_with(':')) {
        return None;
    }
    match tortie::cli::Cli::try_parse_from(&words) {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict
            ) =>
        {
            // Aliases of other tools are replaced before parsing.
            let known = ["tortie show", "tortie neighbor", "tortie node status", "tortie node diags"];
            let said = words.join(" ");
            (!known.iter().any(|known| said.starts_with(known))).then(|| error.to_string())
        }
        _ => None,
    }
}

#[test]
fn every_command_that_the_documents_name_is_there() {
    let mut wrong = Vec::new();
    for file in documents() {
        let (blocks, rest) = read(&file);
        for block in blocks {
            let known = ["sh", "console", "text", "json", "yaml", "ini"];
            let place = format!("{}:{}", file.display(), block.line);
            assert!(known.contains(&block.info.as_str()), "{place}: write one of {known:?} behind the fence");
            let said = block.lines.iter().filter_map(|line| Some((line, misspelt(line)?)));
            wrong.extend(said.map(|(line, error)| format!("{place}: {line}: {error}")));
        }
        for (at, line) in rest {
            // Every second part of a line is between backticks.
            let code = line.split('`').skip(1).step_by(2);
            let said = code.filter_map(|code| Some((code.to_owned(), misspelt(&code.replace("\\|", "|"))?)));
            wrong.extend(said.map(|(code, error)| format!("{}:{at}: `{code}`: {error}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(misspelt("tortie bgp pears").is_some() && misspelt("$ sudo tortie status --al").is_some());
    assert!(misspelt("tortie why peer NAME   # so").is_none());
}
