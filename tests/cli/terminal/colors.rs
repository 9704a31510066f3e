//! Colours are sent only to a terminal, and not where they are disabled.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Command, Stdio};

use clap::CommandFactory as _;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::agent::{Agent, words};
use crate::common::command::{Store, command};
use crate::terminal::hostile_text::commands;

const ESC: char = '\u{1b}';

/// Opens a terminal; returns the test's end and the program's end.
fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    (File::from(ours), OpenOptions::new().read(true).write(true).open(name).unwrap())
}

/// Environment in which a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Pipe,
    Terminal,
    NoColor,
    Dumb,
    Never,
}

/// Returns a program's output on both streams.
fn printed(mut command: Command, place: Place) -> String {
    command.env("TERM", if place == Place::Dumb { "dumb" } else { "xterm-256color" });
    command.env_remove("NO_COLOR").env_remove("CLICOLOR").env_remove("CLICOLOR_FORCE");
    match place {
        Place::NoColor => drop(command.env("NO_COLOR", "1")),
        Place::Never => drop(command.args(["--color", "never"])),
        _ => {}
    }
    if place == Place::Pipe {
        let output = command.output().unwrap();
        return format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let (mut ours, theirs) = terminal();
    command.stdin(Stdio::null()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let mut child = command.spawn().unwrap();
    // Closes the program's ends that this process holds.
    drop(command);
    let mut all = Vec::new();
    let mut octets = [0; 4096];
    // The end is reported as the error EIO.
    while let Ok(count @ 1..) = ours.read(&mut octets) {
        all.extend_from_slice(&octets[..count]);
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

/// Collects every executable command.
fn leaves(command: &clap::Command, path: &[String], out: &mut BTreeSet<Vec<String>>) {
    let below: Vec<_> = command.get_subcommands().filter(|sub| sub.get_name() != "help").collect();
    if below.is_empty() {
        out.insert(path.to_vec());
    }
    for sub in below {
        leaves(sub, &[path, &[sub.get_name().to_owned()]].concat(), out);
    }
}

#[test]
fn colors_are_for_terminals() {
    let agent = Agent::start(&[
        ("/calico/v1/ipam/v4/pool/10.244.0.0-16", r#"{"cidr":"10.244.0.0/16"}"#),
        (
            "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0",
            r#"{"state":"active","name":"cali1","profile_ids":["p"],"labels":{"role":"x"},"ipv4_nets":["10.244.0.1/32"]}"#,
        ),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.2", r#"{"ip":"127.0.0.2","as_num":"65000","port":1}"#),
    ]);
    let asks = commands("w1", "cni/w1/eth0");
    let mut runs: Vec<Vec<String>> =
        asks.iter().map(|words| words.iter().map(|word| (*word).to_owned()).collect()).collect();
    let mut root = tortie::cli::Cli::command();
    root.build();
    let mut all = BTreeSet::new();
    leaves(&root, &[], &mut all);
    for leaf in &all {
        runs.push([leaf.as_slice(), &["--help".to_owned()]].concat());
        runs.push([leaf.as_slice(), &["--no-such-flag".to_owned()]].concat());
    }
    let (mut colored, mut wrong) = (BTreeSet::new(), Vec::new());
    for words in &runs {
        let run = |place: Place| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut command = command(&agent.flags());
            command.args(&words);
            printed(command, place)
        };
        let help = words.iter().any(|word| word.starts_with("--help") || word == "--no-such-flag");
        for place in [Place::Pipe, Place::NoColor, Place::Dumb, Place::Never] {
            // With an invalid command line, the flag is not evaluated.
            if !(help && place == Place::Never) && run(place).contains(ESC) {
                wrong.push(format!("{words:?}, {place:?}"));
            }
        }
        let text = run(Place::Terminal);
        if text.contains(ESC) {
            colored.insert(words.clone());
            // Only colours: SGR of ECMA-48.
            let other = text.split(ESC).skip(1).find(|rest| {
                let end =
                    rest.trim_start_matches('[').trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
                !rest.starts_with('[') || !end.starts_with('m')
            });
            if let Some(other) = other {
                wrong.push(format!("{words:?} sends {:?}", other.chars().take(8).collect::<String>()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for words in [
        &["status"][..],
        &["bgp", "peers"],
        &["policy", "trace", "--from", "10.244.0.1", "--to", "10.244.0.9", "--proto", "icmp"],
    ] {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        assert!(colored.contains(&words), "no colour on a terminal: {words:?}");
    }
    println!("{} runs, {} of them coloured on a terminal, none elsewhere", runs.len(), colored.len());
}

/// Returns the first lines of a program that does not end.
fn beginning(mut command: Command, dumb: bool, lines: usize) -> String {
    let (mut ours, theirs) = terminal();
    command.env("TERM", if dumb { "dumb" } else { "xterm" }).env_remove("NO_COLOR");
    command.stdin(Stdio::null()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut all = Vec::new();
    let mut octets = [0; 4096];
    while all.iter().filter(|octet| **octet == b'\n').count() < lines {
        match ours.read(&mut octets) {
            Ok(count @ 1..) => all.extend_from_slice(&octets[..count]),
            _ => break,
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn logs_and_repeated_answers_send_a_dumb_terminal_text_only() {
    let store = Store::with(&[("/calico/v1/Ready", "true")]);
    let cache = store.dir.path().join("cache").display().to_string();
    let socket = store.dir.path().join("tortie.sock").display().to_string();
    let log = |dumb| {
        let agent = words(&store.url, &socket, &cache, "127.0.0.1:0");
        let words = [&agent[..], &["--log-format", "text"]].concat();
        beginning(command(&words), dumb, 3)
    };
    let again = |dumb| beginning(command(&["--datastore", &store.url, "node", "list", "--watch"]), dumb, 1);
    assert!(
        log(false).contains(ESC) && again(false).contains(ESC),
        "on a terminal there are colours, and a clean screen"
    );
    for text in [log(true), again(true)] {
        assert!(!text.contains(ESC) && !text.is_empty(), "{text:?}");
    }
    let top = printed(command(&["top"]), Place::Dumb);
    assert!(top.contains("top draws on a terminal"), "{top}");
}
