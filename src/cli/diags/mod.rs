//! `tortie diags`: collects state of agent, store, kernel and system in one file for a bug report, without
//! secrets.
//!
//! It queries each source, continues if one does not answer, and lists in `index.txt` the content of the file
//! and what is missing. It sends nothing and changes nothing.
//!
//! ```text
//!   agent's socket, store, doctor, tools, /proc, /etc
//!       --> parts --redact.rs--> page.html, archive.rs --gzip--> FILE
//! ```

mod archive;
pub(in crate::cli) mod redact;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use http_body_util::BodyExt;
use serde::Serialize;
use tortie_config::counted;

use super::client::Client;
use super::context::Context;
use super::doctor;
use super::failure::{Exit, Failure};
use super::output;
use crate::agent::JOURNAL_FILE;
use archive::Archive;
use redact::Redactor;

/// Time limit of a tool.
const TOOL: Duration = Duration::from_secs(10);
/// Maximum size of one part in octets; the end of a longer text is kept.
const MOST: usize = 8 << 20;
/// Settings files of the package.
const SETTINGS: [&str; 2] = ["/etc/tortie/tortie.toml", "/etc/tortie/tortie.env"];

/// Queries to the agent: file, description, and path after `/v1/`. `{}` is replaced by the maximum number of
/// routes.
const ASKED: [(&str, &str, &str); 13] = [
    ("status.json", "the verdict with all problems", "status"),
    ("peers.json", "BGP sessions", "bgp/peers"),
    ("ranges.json", "ranges of dynamic peers", "bgp/ranges"),
    ("bgp-routes.json", "the BGP table, bounded", "bgp/routes?max={}"),
    ("routes.json", "kernel routes, bounded", "routes?max={}"),
    ("endpoints.json", "endpoints of this host", "endpoints"),
    ("policies.json", "policies that apply on this host", "policies"),
    ("drops.json", "packets that rules dropped recently", "why/drop"),
    ("diff.json", "differences between the kernel and the desired state", "diff?max=1000"),
    ("nodes.json", "all hosts, from their status keys", "nodes"),
    ("pools.json", "pools", "ipam/pools"),
    ("blocks.json", "blocks", "ipam/blocks"),
    ("history.json", "the flight recorder: the last changes", "history?max=16384"),
];

/// Arguments of `tortie diags`.
#[derive(Debug, Args)]
pub(super) struct DiagsCommand {
    /// Output file; - for standard output [default: tortie-diags-NODE-TIME.tar.gz in this folder]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// At most this many routes of each table
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max_routes: u32,
}

/// One file of the archive, or the reason why it is missing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    name: &'static str,
    about: &'static str,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
    #[serde(skip)]
    text: String,
}

impl Part {
    fn of(name: &'static str, about: &'static str, text: Result<String, String>) -> Self {
        let (text, missing) = match text {
            Ok(text) => (text, None),
            Err(why) => (String::new(), Some(why)),
        };
        Self { name, about, bytes: 0, missing, text }
    }
}

/// JSON answer of the command.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    file: String,
    parts: Vec<Part>,
}

pub(super) async fn run(context: &Context, command: &DiagsCommand) -> Result<(), Failure> {
    let node = context.globals.node_name().unwrap_or_else(|_| "unknown".to_owned());
    let now = jiff::Timestamp::now();
    let folder = format!("tortie-diags-{}-{}", plain(&node), now.strftime("%Y%m%dT%H%M%SZ"));
    let mut redactor = secrets(context);
    let mut parts = from_agent(context, command.max_routes).await;
    let agent_away = parts.first().is_some_and(|part| part.missing.is_some());
    let store = from_store(context, &mut redactor).await;
    let store_away = store.missing.is_some();
    parts.push(store);
    let examined = doctor::examine(context).await;
    let mut text = String::new();
    doctor::render(&mut text, &examined, true);
    parts.push(Part::of("doctor.txt", "output of `tortie doctor`", Ok(text)));
    parts.extend(from_tools().await);
    parts.extend(from_files());
    for part in &mut parts {
        part.text = redactor.clean(&bounded(&part.text));
        part.bytes = part.text.len();
    }
    let mut page = Part::of("page.html", "the web page with this state, for a browser", page(&parts));
    page.bytes = page.text.len();
    parts.insert(0, page);
    let journal = journal(context, &redactor).await;
    parts.push(journal.0);
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let files = parts.iter().filter(|part| part.missing.is_none());
    let files = files.map(|part| (part.name, part.text.as_bytes()));
    let files = files
        .filter(|(name, _)| *name != JOURNAL_FILE)
        .chain(journal.1.as_deref().map(|octets| (JOURNAL_FILE, octets)));
    let index = index(&node, &now.to_string(), &parts);
    let archive = packed(&folder, seconds, [("index.txt", index.as_bytes())].into_iter().chain(files))
        .map_err(|error| Failure::new(Exit::Partial, "output", format!("the archive: {error}")))?;
    let file = command.file.clone().unwrap_or_else(|| format!("{folder}.tar.gz").into());
    write(&file, &archive)?;
    let report = Report { file: file.display().to_string(), parts };
    if file == Path::new("-") {
        return partial(agent_away, store_away);
    }
    output::print(context.globals.output, &report, |out, _| render(out, &report))?;
    partial(agent_away, store_away)
}

/// Returns an error with exit code 6 if a source did not answer, although the file was written.
fn partial(agent_away: bool, store_away: bool) -> Result<(), Failure> {
    let who = match (agent_away, store_away) {
        (false, false) => return Ok(()),
        (true, false) => "the agent",
        (false, true) => "the store",
        (true, true) => "neither the agent nor the store",
    };
    let verb = if agent_away && store_away { "answered" } else { "did not answer" };
    Err(Failure::new(
        Exit::Partial,
        "partial",
        format!("{who} {verb}: the archive has the rest; its index.txt lists what is missing"),
    ))
}

/// Reads the secrets of this host, as far as this user may read them.
fn secrets(context: &Context) -> Redactor {
    let mut redactor = Redactor::default();
    let folder = fs::read_dir(crate::speaker::SECRETS).into_iter().flatten().flatten().map(|f| f.path());
    for path in folder.chain(context.globals.etcd_password_file.clone()) {
        if let Ok(text) = fs::read_to_string(path) {
            redactor.learn(&text);
        }
    }
    redactor
}

async fn from_agent(context: &Context, max: u32) -> Vec<Part> {
    let client = Client::of(&context.globals);
    let mut parts = Vec::new();
    for (name, about, path) in ASKED {
        let path = format!("/v1/{}", path.replace("{}", &max.to_string()));
        let answer: Result<serde_json::Value, Failure> = client.get(&path).await;
        let text = answer
            .map_err(|failure| failure.text)
            .and_then(|value| serde_json::to_string_pretty(&value).map_err(|e| e.to_string()));
        parts.push(Part::of(name, about, text));
    }
    let metrics = match client.stream("/metrics", "content-type").await {
        Ok((_, body)) => match body.collect().await {
            Ok(body) => Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned()),
            Err(error) => Err(error.to_string()),
        },
        Err(failure) => Err(failure.text),
    };
    parts.push(Part::of("metrics.txt", "metrics", metrics));
    parts
}

/// Returns the compressed journal of inputs for `tortie replay`. It contains no secrets of the store, but
/// secrets in this host's files are redacted, too.
async fn journal(context: &Context, redactor: &Redactor) -> (Part, Option<Vec<u8>>) {
    let about = "the last inputs of the core, for `tortie replay`";
    let octets = async {
        let client = Client::of(&context.globals);
        let (_, body) = client.stream("/v1/journal", "content-type").await.map_err(|failure| failure.text)?;
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let mut text = String::new();
        MultiGzDecoder::new(&*body).read_to_string(&mut text).map_err(|error| error.to_string())?;
        gzip(redactor.hide_in_journal(&text).as_bytes()).map_err(|error| error.to_string())
    };
    match octets.await {
        Ok(octets) => {
            let mut part = Part::of(JOURNAL_FILE, about, Ok(String::new()));
            part.bytes = octets.len();
            (part, Some(octets))
        }
        Err(why) => (Part::of(JOURNAL_FILE, about, Err(why)), None),
    }
}

/// Compresses octets with gzip.
fn gzip(octets: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(octets)?;
    encoder.finish()
}

/// Returns the web page with the answers of the agent, which contain no secrets any more.
fn page(parts: &[Part]) -> Result<String, String> {
    let mut answers = serde_json::Map::new();
    for (name, _, path) in ASKED {
        let part = parts.iter().find(|part| part.name == name && part.missing.is_none());
        // A truncated part is not valid JSON any more.
        if let Some(Ok(answer)) = part.map(|part| serde_json::from_str(&part.text)) {
            let (path, _) = path.split_once('?').unwrap_or((path, ""));
            answers.insert(path.to_owned(), answer);
        }
    }
    if answers.contains_key("status") {
        Ok(crate::api::page::with_answers(&answers))
    } else {
        Err("the agent did not answer".to_owned())
    }
}

/// Returns the store's content without secrets. Its secrets are learned first, so that they are redacted in
/// all other parts, too.
async fn from_store(context: &Context, redactor: &mut Redactor) -> Part {
    let export = async {
        let store = super::store::open(&context.globals, false).await.map_err(|failure| failure.text)?;
        let all = [tortie_config::key::prefix::ALL.to_owned()];
        let snapshot = store.list(&all).await.map_err(|error| error.to_string())?;
        let mut map = serde_json::Map::new();
        for entry in &snapshot.entries {
            redactor.learn_from(&entry.value);
            map.insert(entry.key.clone(), redact::value(&entry.value).into());
        }
        serde_json::to_string_pretty(&map).map_err(|error| error.to_string())
    };
    Part::of("store.json", "the store: output of `tortie store export --redact`", export.await)
}

async fn from_tools() -> Vec<Part> {
    let asked: [(&str, &str, &[&str]); 12] = [
        (
            "kernel/rules.txt",
            "our packet rules, as nft lists them",
            &["nft", "list", "table", "inet", "tortie"],
        ),
        ("kernel/routes.txt", "our routes", &["ip", "route", "show", "table", "all", "proto", "179"]),
        (
            "kernel/routes6.txt",
            "our IPv6 routes",
            &["ip", "-6", "route", "show", "table", "all", "proto", "179"],
        ),
        ("kernel/other-routes.txt", "the main table", &["ip", "route", "show", "table", "main"]),
        ("kernel/nexthops.txt", "nexthop objects", &["ip", "nexthop", "show"]),
        ("kernel/rules-of-routing.txt", "routing rules", &["ip", "rule", "show"]),
        ("kernel/links.txt", "interfaces with counters", &["ip", "-d", "-s", "link", "show"]),
        ("kernel/addresses.txt", "addresses", &["ip", "address", "show"]),
        ("kernel/neighbours.txt", "neighbours", &["ip", "neighbour", "show"]),
        ("kernel/listeners.txt", "listening sockets", &["ss", "-lntup"]),
        ("log/unit.txt", "the service", &["systemctl", "status", "--no-pager", "-l", "tortie"]),
        (
            "log/journal.txt",
            "the end of the journal",
            &["journalctl", "-u", "tortie", "-n", "5000", "--no-pager", "-o", "short-precise"],
        ),
    ];
    let mut parts = Vec::new();
    for (name, about, words) in asked {
        parts.push(Part::of(name, about, tool(words).await));
    }
    parts
}

/// Returns the output of a tool. `systemctl status` exits with 3 for a unit that does not run, but its output
/// is still useful.
async fn tool(words: &[&str]) -> Result<String, String> {
    let Some((program, arguments)) = words.split_first() else { return Err("no command given".to_owned()) };
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(TOOL, command.output()).await {
        Ok(Ok(output)) if output.status.success() || !output.stdout.is_empty() => {
            Ok(format!("$ {}\n{}", words.join(" "), String::from_utf8_lossy(&output.stdout)))
        }
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program}: {}", said.split_whitespace().collect::<Vec<_>>().join(" ")))
        }
        Ok(Err(error)) => Err(format!("{program}: {error}")),
        Err(_) => Err(format!("{program} did not end within {} s", TOOL.as_secs())),
    }
}

fn from_files() -> Vec<Part> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let mut sysctls = String::new();
    for path in [
        "net/ipv4/ip_forward",
        "net/ipv6/conf/all/forwarding",
        "net/ipv4/conf/all/rp_filter",
        "net/ipv4/conf/default/rp_filter",
        "net/ipv4/neigh/default/gc_thresh3",
        "net/netfilter/nf_conntrack_count",
        "net/netfilter/nf_conntrack_max",
        "net/core/rmem_max",
        "net/core/optmem_max",
        "fs/inotify/max_user_instances",
        "kernel/random/boot_id",
    ] {
        let value =
            fs::read_to_string(format!("/proc/sys/{path}")).unwrap_or_else(|error| format!("({error})"));
        let _ = writeln!(sysctls, "{} = {}", path.replace('/', "."), value.trim());
    }
    let mut interfaces: Vec<_> =
        fs::read_dir("/proc/sys/net/ipv4/conf").into_iter().flatten().flatten().map(|e| e.path()).collect();
    interfaces.sort();
    for path in interfaces {
        for name in ["rp_filter", "proxy_arp", "route_localnet"] {
            if let Ok(value) = fs::read_to_string(path.join(name)) {
                let _ = writeln!(sysctls, "{}/{name} = {}", path.display(), value.trim());
            }
        }
    }
    let system = rustix::system::uname();
    let mut versions = format!(
        "tortie {}\n{} {} {}\n",
        env!("CARGO_PKG_VERSION"),
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
        system.machine().to_string_lossy()
    );
    versions.push_str(&fs::read_to_string("/etc/os-release").unwrap_or_default());
    let mut parts = vec![
        Part::of("sysctls.txt", "sysctls that affect routing", Ok(sysctls)),
        Part::of("versions.txt", "program, kernel, distribution", Ok(versions)),
        Part::of("kernel/snmp.txt", "the network's counters", read("/proc/net/netstat")),
    ];
    let [toml, env] = SETTINGS;
    parts.push(Part::of("settings/tortie.toml", "the agent's settings", read(toml)));
    parts.push(Part::of("settings/tortie.env", "the service's environment", read(env)));
    parts
}

/// Returns at most the last [`MOST`] octets of a text, because long texts are logs.
fn bounded(text: &str) -> String {
    if text.len() <= MOST {
        return text.to_owned();
    }
    let from = (text.len() - MOST..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    format!("(the first {from} octets are omitted)\n{}", text.get(from..).unwrap_or_default())
}

fn index(node: &str, time: &str, parts: &[Part]) -> String {
    let mut out = format!("tortie {} diagnostics of {node}, {time}\n\n", env!("CARGO_PKG_VERSION"));
    let rows = parts.iter().filter(|part| part.missing.is_none());
    let rows = rows.map(|part| vec![part.name.to_owned(), part.bytes.to_string(), part.about.to_owned()]);
    out.push_str(&output::table(&["FILE", "BYTES", "WHAT"], rows.collect()));
    let missing: Vec<&Part> = parts.iter().filter(|part| part.missing.is_some()).collect();
    if !missing.is_empty() {
        out.push_str("\nMissing:\n");
        for part in missing {
            let why = part.missing.as_deref().unwrap_or_default();
            let _ = writeln!(out, "  {} ({}): {why}", part.name, part.about);
        }
    }
    out.push_str("\nPasswords, tokens and private keys are replaced by ***.\n");
    out
}

fn render(out: &mut String, report: &Report) {
    let have = report.parts.iter().filter(|part| part.missing.is_none()).count();
    let _ =
        writeln!(out, "{}: {}, without secrets; index.txt lists them", report.file, counted(have, "file"));
    for part in report.parts.iter().filter(|part| part.missing.is_some()) {
        let _ = writeln!(out, "  missing: {}: {}", part.name, part.missing.as_deref().unwrap_or_default());
    }
}

/// Returns a tar archive of files in one folder.
fn packed<'a>(
    folder: &str,
    unix_time: u64,
    files: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> std::io::Result<Vec<u8>> {
    let mut archive = Archive::new();
    for (name, octets) in files {
        archive.add(&format!("{folder}/{name}"), unix_time, octets)?;
    }
    archive.end()
}

/// Writes the compressed archive, readable only by its owner.
fn write(file: &Path, tar: &[u8]) -> Result<(), Failure> {
    let failed = |what: &str, error: &std::io::Error| {
        let text = format!("{}: {what}: {error}; name another FILE", file.display());
        Failure::new(Exit::Partial, "output", text)
    };
    let mut out: Box<dyn io::Write> = if file == Path::new("-") {
        Box::new(io::stdout())
    } else {
        let options = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file);
        Box::new(options.map_err(|error| failed("cannot be written", &error))?)
    };
    let written = gzip(tar).and_then(|octets| out.write_all(&octets)).and_then(|()| out.flush());
    written.map_err(|error| failed("cannot be written", &error))
}

/// Converts a node name to a valid part of a file name.
fn plain(node: &str) -> String {
    node.chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' })
        .take(60)
        .collect()
}
