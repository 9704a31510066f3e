//! Formats results of several daemons as one table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;

/// Name of the measured product among the daemons.
const OURS: &str = "tortie";

/// Rows of the table: scenario, description, and the goal for Tortie.
const ROWS: [(&str, &str, Goal); 18] = [
    ("A", "1,000,000 prefixes in, and out to one receiver", Goal::Ratio(0.35)),
    ("F", "all of A withdrawn", Goal::Ratio(0.45)),
    ("A10", "A with 100,000", Goal::None),
    ("F10", "all of A10 withdrawn", Goal::None),
    ("B", "ten senders of the same 100,000", Goal::Ratio(0.45)),
    ("C", "10,000 prefixes to 200 receivers", Goal::Ratio(0.6)),
    ("D", "1,000 peers of 4 prefixes, each gets 4", Goal::Ratio(0.6)),
    ("D5", "5,000 such peers", Goal::Ratio(0.1)),
    ("Dk", "D with the kernel's table", Goal::None),
    ("D5k", "D5 with the kernel's table", Goal::None),
    ("Dburst", "1,000 connect in one instant", Goal::Seconds(0.31)),
    ("E", "100,000 routes into the kernel", Goal::Ratio(0.4)),
    ("Edown", "and out of it", Goal::None),
    ("E1000", "100,000 routes over 1,000 next hops into the kernel", Goal::Ratio(0.4)),
    ("E1000down", "and out of it", Goal::None),
    ("Gup", "start to Established", Goal::Seconds(0.02)),
    ("Gdown", "session lost, 100,000 withdrawn", Goal::Seconds(0.04)),
    ("R", "a table of the Internet replayed", Goal::None),
];

/// Goal of a scenario for Tortie.
#[derive(Clone, Copy)]
enum Goal {
    None,
    /// Maximum ratio to the time of the best other daemon.
    Ratio(f64),
    Seconds(f64),
}

#[derive(Debug, Default)]
struct Runs {
    seconds: Vec<Option<f64>>,
    cpu: Vec<f64>,
    peak: Vec<f64>,
    idle: Vec<f64>,
}

/// Formats the table with medians of the runs.
pub(crate) fn markdown(files: &[PathBuf]) -> anyhow::Result<String> {
    let mut all: BTreeMap<(String, String), Runs> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        for line in text.lines().filter(|l| !l.is_empty()) {
            let row: Value =
                serde_json::from_str(line).with_context(|| format!("{}: {line}", file.display()))?;
            let word = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let number = |key: &str| row.get(key).and_then(Value::as_f64);
            let runs = all.entry((word("scenario"), word("daemon"))).or_default();
            runs.seconds.push(number("seconds"));
            runs.cpu.extend(number("cpuSeconds"));
            runs.peak.extend(number("peakMb"));
            runs.idle.extend(number("idleMb"));
        }
    }
    let mut daemons: Vec<&str> = all.keys().map(|(_, d)| d.as_str()).collect();
    daemons.sort_by_key(|d| (*d != OURS, *d));
    daemons.dedup();
    let mut names: Vec<&str> = all.keys().map(|(s, _)| s.as_str()).collect();
    names.dedup();
    names.sort_by_key(|n| ROWS.iter().position(|(r, ..)| r == n));
    let mut out = String::from("| scenario |");
    for daemon in &daemons {
        let _ = write!(out, " {daemon} |");
    }
    out.push_str(" best peer | ours of it | goal |\n|---|");
    out.push_str(&"---|".repeat(daemons.len() + 3));
    out.push('\n');
    for name in names {
        let known = ROWS.iter().find(|(r, ..)| *r == name);
        let what = known.map_or(String::new(), |(_, what, _)| format!(": {what}"));
        let _ = write!(out, "| {name}{what} |");
        let runs = |daemon: &str| all.get(&(name.to_owned(), daemon.to_owned()));
        for daemon in &daemons {
            let _ = write!(out, " {} |", runs(daemon).map_or("-".to_owned(), cell));
        }
        let time = |daemon: &str| runs(daemon).and_then(seconds);
        let peers = daemons.iter().filter(|d| **d != OURS);
        let best = peers.filter_map(|d| Some((time(d)?, *d))).min_by(|a, b| a.0.total_cmp(&b.0));
        let ratio = time(OURS).zip(best).map(|(ours, (theirs, _))| ours / theirs);
        let goal = match known.map_or(Goal::None, |(.., goal)| *goal) {
            Goal::None => String::new(),
            Goal::Ratio(most) => format!("{most} {}", mark(ratio.map(|r| r <= most))),
            Goal::Seconds(most) => format!("{} {}", wall(most), mark(time(OURS).map(|t| t <= most))),
        };
        let best = best.map_or("none".to_owned(), |(_, d)| d.to_owned());
        let ratio = ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
        let _ = writeln!(out, " {best} | {ratio} | {goal} |");
    }
    Ok(out)
}

fn mark(reached: Option<bool>) -> &'static str {
    match reached {
        Some(true) => "reached",
        Some(false) => "missed",
        None => "",
    }
}

/// Formats a cell: time, CPU seconds, peak memory, and memory after some idle seconds.
fn cell(runs: &Runs) -> String {
    let Some(time) = seconds(runs) else { return "not in time".into() };
    let mut out = wall(time);
    if let Some(cpu) = median(&runs.cpu) {
        let _ = write!(out, " / {cpu:.2}");
    }
    if let Some(peak) = median(&runs.peak) {
        let _ = write!(out, " / {peak:.0} MB");
    }
    if let Some(idle) = median(&runs.idle) {
        let _ = write!(out, " ({idle:.0})");
    }
    out
}

fn wall(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.0} ms", seconds * 1000.0) } else { format!("{seconds:.2} s") }
}

/// Returns the median of the times; `None` if most runs did not complete.
fn seconds(runs: &Runs) -> Option<f64> {
    let done: Vec<f64> = runs.seconds.iter().copied().flatten().collect();
    (done.len() * 2 > runs.seconds.len()).then(|| median(&done))?
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
