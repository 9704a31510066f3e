//! Every error sentence of the command line is in a golden text, named by a test of its own, or listed here
//! with the reason why no test can cause it.

use std::path::{Path, PathBuf};

/// Beginning of a sentence, and the reason why tests/agent/life/screens.rs does not cause it.
const UNSAID: &[(&str, &str)] = &[
    ("this executable: ", "/proc is not mounted"),
    ("the plugin: ", "the program itself cannot be run"),
    ("the path of this program cannot", "/proc is not mounted"),
    ("loopback interface: ", "a namespace without a loopback interface"),
    ("no loopback port for the page", "every port is taken"),
    ("the inner part of the demo", "tests/cli/demo.rs kills it"),
    ("{} changes to users of its own", "needs a rootless run with OpenBGPD"),
    ("--router {}: {}; {}", "depends on which routers are installed"),
    ("these checks failed", "tests/cli/demo.rs breaks the demo"),
    ("nsenter (package util-linux)", "a machine without util-linux"),
    ("another process writes the demo's", "a store that nobody else knows"),
    ("cannot ping ", "a kernel without ping sockets"),
    ("the block {block} is in {cidr}, whose", "a pool that is created over blocks of another size"),
    ("the kernel cannot be read: {error}", "a kernel without netlink"),
    ("cannot wait for signals", "a process without signals"),
    ("cannot start: ", "a process without file descriptors"),
    ("the archive: ", "an archive that does not fit into memory"),
    ("the value is not text, so a dry run", "bytes on standard input; the agent's own answer says the same"),
    ("no problem was found, but not everything", "a host where this user may not look; tests/ipam/command"),
    ("{failed} could not be repaired", "the store goes away in the middle"),
    ("another process changed the pool", "a race between two writers"),
    ("an address of {kept} was allocated", "a race between two writers"),
    ("tunl0 is no interface name", "it is one"),
    ("the agent's event cannot be read", "an agent of another version"),
    ("the file cannot be written: ", "a disk that gets full"),
    ("the agent stopped before the end", "the agent dies during the dump"),
    ("the recording ended early", "the agent dies during the recording"),
    ("{} does not answer", "a router that takes SYNs and is silent for the whole timeout"),
    ("the router accepts the connection and sends", "the same, after the connection"),
    ("cannot write the answer", "standard output on a full disk"),
    ("the answer cannot be printed", "a value that is no JSON"),
    ("another process wrote at the same", "a race between two writers"),
    ("the history before revision", "a compaction while it watches; tests/store"),
    ("standard input cannot be read", "a terminal that is gone"),
    ("the agent ended the stream", "needs a terminal"),
    ("{}: TORTIE_DATA_MODEL: {error}", "it reads /etc/tortie/tortie.env; the tests next to it"),
    ("{} line {line}: {what}", "it reads /etc/tortie/tortie.env; the tests beside it"),
    ("the kernel's routes: ", "a kernel that does not answer"),
    ("the kernel: ", "a kernel that does not answer"),
    ("nothing is written with --dry-run", "a mistake of ours"),
    ("`{command}` ", "a command of whoever moves the host, which fails"),
    ("--pid {pid} is not a daemon of Calico", "it depends on what runs on the machine"),
    ("not ready: {}", "tests/cli/agent.rs has an agent that is not"),
    ("{} is not ready: {}", "tests/cli/agent.rs has an agent that is not"),
];

/// A sentence in the source: its place, and the text between its placeholders.
struct Sentence {
    place: String,
    text: String,
}

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, out);
        } else if entry.extension().is_some_and(|e| e == "rs")
            && !entry.to_string_lossy().ends_with("_tests.rs")
        {
            out.push(entry);
        }
    }
}

/// Returns the string literals of a text up to the closing parenthesis.
fn literals(text: &str) -> Vec<String> {
    let (mut found, mut depth, mut literal, mut escaped) = (Vec::new(), 1, None::<String>, false);
    for c in text.chars() {
        match &mut literal {
            Some(so_far) if escaped => {
                // A backslash at the end of a line removes the leading blanks of the next one.
                so_far.push(if c == '\n' { '\u{1}' } else { c });
                escaped = false;
            }
            Some(_) if c == '\\' => escaped = true,
            Some(_) if c == '"' => found.extend(literal.take()),
            Some(so_far) if so_far.ends_with('\u{1}') && c == ' ' => {}
            Some(so_far) => so_far.push(c),
            None => match c {
                '"' => literal = Some(String::new()),
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            },
        }
        if depth == 0 {
            break;
        }
    }
    found.iter().map(|literal| literal.replace('\u{1}', "")).collect()
}

fn sentences() -> Vec<Sentence> {
    let mut files = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    sources(&root.join("src/cli"), &mut files);
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        let source = source.split("#[cfg(test)]").next().unwrap();
        for (call, has_code) in [("Failure::new(", true), ("Failure::usage(", false)] {
            for (at, _) in source.match_indices(call) {
                let mut literals = literals(&source[at + call.len()..]);
                if has_code && !literals.is_empty() {
                    literals.remove(0);
                }
                let line = source[..at].lines().count();
                let place = format!("{}:{line}", file.strip_prefix(root).unwrap().display());
                // Sentences built elsewhere, and answers that are only a number, are skipped.
                if let Some(text) = literals.into_iter().find(|text| text.len() > 2) {
                    all.push(Sentence { place, text });
                }
            }
        }
    }
    assert!(all.len() > 50, "this is not how a command refuses any more");
    all
}

/// True if a text contains the parts between a sentence's placeholders, in order.
fn says(text: &str, sentence: &str) -> bool {
    let mut rest = text;
    let parts =
        sentence.split(['{', '}']).enumerate().filter(|(at, _)| at % 2 == 0).map(|(_, part)| part.trim());
    for part in parts.filter(|part| part.len() > 2) {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// True if tests contain a distinctive part of the sentence.
fn is_named(tests: &str, sentence: &str) -> bool {
    let mut parts =
        sentence.split(['{', '}']).enumerate().filter(|(at, _)| at % 2 == 0).map(|(_, part)| part.trim());
    parts.any(|part| {
        let words: Vec<&str> = part.split(' ').collect();
        words.windows(3).any(|three| three.concat().len() > 8 && tests.contains(&three.join(" ")))
    })
}

#[test]
fn every_refusal_is_agreed() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent/golden");
    let mut said: Vec<String> = Vec::new();
    for file in std::fs::read_dir(golden).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        said.extend(
            text.split("$ tortie ").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")),
        );
    }
    let mut tests = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), &mut tests);
    let tests = tests.iter().filter(|file| !file.ends_with("refusals.rs"));
    let tests: String = tests.map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let mut missing = Vec::new();
    let mut unsaid: Vec<&str> = UNSAID.iter().map(|(text, _)| *text).collect();
    for sentence in sentences() {
        let text = sentence.text.replace("{{", "{}").replace("}}", "{}");
        let known = UNSAID.iter().find(|(unsaid, _)| sentence.text.starts_with(unsaid));
        if let Some((known, _)) = known {
            unsaid.retain(|text| text != known);
        } else if !said.iter().any(|part| says(part, &text)) && !is_named(&tests, &text) {
            missing.push(format!("{}: {}", sentence.place, sentence.text));
        }
    }
    assert!(
        missing.is_empty(),
        "{} sentences are in no golden text; give tests/agent/life/screens.rs a run that makes them be said:\n{}",
        missing.len(),
        missing.join("\n")
    );
    assert!(unsaid.is_empty(), "these are said by nobody any more: {unsaid:?}");
}
