//! `tortie store ls|get|put|rm|watch|import|export|project|name|key|validate|accept`: direct access to the
//! store, without an agent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use serde::Serialize;
use tortie_config::calico3::is_v1;
use tortie_config::key::{FelixItem, Key};
use tortie_config::{Dialect, counted};

use super::client::Client;
use super::context::{Context, Globals};
use super::diags::redact;
use super::dry_run::DryRunKind;
use super::failure::{Exit, Failure};
use super::ipam::in_use;
use super::output::{self, Format, table, write_out};
use super::store_export::{self, UNCHECKED, binary, listed_keys};
use super::store_names::{self, NameCommand};
use crate::agent::CACHE_PATH;
use crate::api::status::ActionResult;
use crate::api::{codes, escape};
use tortie_store::{
    CALICO_3, CALICO_3_NEXT, Change, DataModel, KeyValue, Op, Outcome, Store, StoreOptions, Txn, WatchEvent,
};

/// Root of the data model.
const ROOT: &str = "/calico/";

/// Subcommands of `tortie store`.
#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// List keys
    Ls {
        /// Only keys with this prefix
        #[arg(default_value = ROOT)]
        prefix: String,
    },
    /// Print one value
    Get {
        /// The full key
        key: String,
    },
    /// Write one value
    Put {
        /// The full key
        key: String,
        /// The value, or - for standard input
        value: String,
        /// Write the bytes as they are, unchecked
        #[arg(long)]
        raw: bool,
        /// Also write members, keys and settings that Tortie does not read
        #[arg(long)]
        allow_unknown: bool,
        /// Write nothing; show the endpoints, rules and connections of this host that it would affect
        #[arg(long, value_name = "WHO", value_enum, conflicts_with = "raw")]
        dry_run: Option<DryRunKind>,
    },
    /// Delete a key, or all keys below a prefix
    Rm {
        /// The full key
        key: String,
        /// Delete every key with this prefix
        #[arg(long)]
        prefix: bool,
        /// Even blocks, affinities, handles and pools with addresses that endpoints use
        #[arg(long)]
        force: bool,
        /// Delete nothing; show the endpoints, rules and connections of this host that it would affect
        #[arg(long, value_name = "WHO", value_enum, conflicts_with = "prefix")]
        dry_run: Option<DryRunKind>,
    },
    /// Print changes as they are committed
    Watch {
        /// Only keys with this prefix
        #[arg(default_value = ROOT)]
        prefix: String,
    },
    /// Write the contents of a file: one JSON object {"<full key>": "<value as text>"}; {"base64":
    /// "<octets>"} and the values of keys that the member "unchecked" of an export lists are written
    /// unchecked
    Import {
        /// The file, or - for standard input
        file: PathBuf,
        /// Write the values as they are, unchecked
        #[arg(long)]
        raw: bool,
        /// Also write members, keys and settings that Tortie does not read
        #[arg(long)]
        allow_unknown: bool,
    },
    /// Print all keys at one revision as one JSON object {"<full key>": "<value as text>"}; a value that is
    /// not text is {"base64": "<octets>"}, and the member "unchecked" lists the keys whose values import
    /// would refuse
    Export {
        /// Replace passwords, tokens and keys by ***
        #[arg(long)]
        redact: bool,
        /// Print the agent's copy on disk, for a store that is lost or damaged: the keys that this host
        /// follows, and the handles of its addresses
        #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = CACHE_PATH)]
        cache: Option<PathBuf>,
    },
    /// Print the entries of the v1 data model from which the agent of a node works, each with the keys that it
    /// came from: objects of Calico 3, or the keys themselves; exit 6 when a value cannot be read
    Project,
    /// Print the name of an object of Calico 3 that is composed of parts, without a store
    #[command(subcommand)]
    Name(NameCommand),
    /// Say whether Tortie knows what a key holds, without a store
    Key {
        /// The full key
        key: String,
    },
    /// Check every value; exit 1 when one cannot be read or is not supported
    Validate,
    /// Make the agent accept the store as it is, which ends a freeze
    Accept,
}

/// Opens the store of the global flags.
pub(super) async fn open(globals: &Globals, create: bool) -> Result<Arc<dyn Store>, Failure> {
    Ok(tortie_store::open(&store_options(globals, create)).await?)
}

/// Opens the store of the global flags for keys that a user names one by one, whatever its data model.
async fn open_by_hand(globals: &Globals, create: bool) -> Result<Arc<dyn Store>, Failure> {
    let options = StoreOptions { data_model: DataModel::V1, ..store_options(globals, create) };
    Ok(tortie_store::open(&options).await?)
}

/// Opens the store for writes of keys that a user names.
///
/// # Errors
/// If the store is Calico 3's and one of the keys is of the v1 model: no program would read it.
async fn open_to_write(globals: &Globals, ops: &[Op]) -> Result<Arc<dyn Store>, Failure> {
    let store = open_by_hand(globals, true).await?;
    let Some(of_v1) = ops.iter().map(Op::key).find(|key| is_v1(key)) else { return Ok(store) };
    if globals.data_model.dialect(&*store).await? == Dialect::V1 {
        return Ok(store);
    }
    let text = format!(
        "{CALICO_3}, in which no program reads {of_v1} of the v1 data model, and nothing was written: write the object \
         that means it (`tortie store project` shows which); {CALICO_3_NEXT}"
    );
    Err(Failure::new(Exit::Refused, codes::CALICO_3.name, text))
}

/// Converts the global flags to options of the store.
pub(super) fn store_options(globals: &Globals, create: bool) -> StoreOptions {
    StoreOptions {
        url: globals.datastore.clone(),
        etcd_ca: globals.etcd_ca.clone(),
        etcd_cert: globals.etcd_cert.clone(),
        etcd_key: globals.etcd_key.clone(),
        etcd_user: globals.etcd_user.clone(),
        etcd_password_file: globals.etcd_password_file.clone(),
        create,
        checked: false,
        data_model: globals.data_model,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    key: &'a str,
    revision: u64,
    bytes: usize,
}

pub(super) async fn run(context: &Context, command: &StoreCommand) -> Result<(), Failure> {
    let globals = &context.globals;
    let format = globals.output;
    match command {
        StoreCommand::Ls { prefix } => {
            let snapshot = open(globals, false).await?.list(std::slice::from_ref(prefix)).await?;
            let rows: Vec<Row<'_>> = snapshot
                .entries
                .iter()
                .map(|e| Row { key: &e.key, revision: e.mod_revision, bytes: e.value.len() })
                .collect();
            output::print(format, &rows, |out, wide| list(out, &rows, wide))
        }
        StoreCommand::Get { key } => {
            let found = open(globals, false).await?.get(key).await?;
            let found = found.ok_or_else(|| {
                Failure::new(
                    Exit::No,
                    "not-found",
                    format!("{key} is not in the store: `tortie store ls` lists the keys"),
                )
            })?;
            let json = serde_json::json!({
                "key": found.key, "value": text(&found.value), "revision": found.mod_revision,
            });
            output::print(format, &json, |out, _| {
                let _ = writeln!(out, "{}", text(&found.value));
            })
        }
        StoreCommand::Put { key, value, raw, allow_unknown, dry_run } => {
            let value = if value == "-" { read(Path::new("-"))? } else { value.clone().into_bytes() };
            if !raw {
                check(key, &value)?;
                refuse_unknown(tortie_config::unknown(key, &value), *allow_unknown)?;
            }
            if let Some(kind) = dry_run {
                return super::dry_run::run(context, *kind, key, Some(value)).await;
            }
            warn_unsupported(key);
            let txn = Txn { ops: vec![Op::Put { key: key.clone(), value, lease: None }], ..Txn::default() };
            let store = open_to_write(globals, &txn.ops).await?;
            let revision = committed(store.commit(txn).await?)?;
            say(format, &format!("{key} written at revision {revision}"))
        }
        StoreCommand::Rm { key, dry_run: Some(kind), .. } => {
            super::dry_run::run(context, *kind, key, None).await
        }
        StoreCommand::Rm { key, prefix, force, dry_run: None } => {
            let store = open_by_hand(globals, false).await?;
            let found = store.list(std::slice::from_ref(key)).await?.entries;
            let count = found.iter().filter(|e| *prefix || e.key == *key).count();
            if count == 0 {
                return Err(Failure::new(
                    Exit::No,
                    "not-found",
                    format!("{key} is not in the store: nothing deleted"),
                ));
            }
            let gone = found.iter().filter(|e| *prefix || e.key == *key);
            if !force {
                // Which addresses are in use depends on the data model.
                let read = open(globals, false).await?;
                in_use::refuse(
                    &in_use::freed_with(&*read, gone.map(|e| e.key.as_str())).await?,
                    "nothing was deleted",
                )?;
            }
            let op = if *prefix {
                Op::DeletePrefix { prefix: key.clone() }
            } else {
                Op::Delete { key: key.clone() }
            };
            let revision = committed(store.commit(Txn { ops: vec![op], ..Txn::default() }).await?)?;
            say(format, &format!("{} deleted at revision {revision}", counted(count, "key")))
        }
        StoreCommand::Watch { prefix } => watch(&*open(globals, false).await?, prefix, format).await,
        StoreCommand::Import { file, raw, allow_unknown } => {
            import(globals, file, *raw, *allow_unknown).await
        }
        StoreCommand::Export { redact, cache: Some(path) } => {
            let (entries, of) = store_export::of_cache(path)?;
            let count = store_export::print(&entries, *redact)?;
            eprintln!("{} of {of}", counted(count, "key"));
            Ok(())
        }
        StoreCommand::Export { redact, cache: None } => {
            let store = open(globals, false).await?;
            let snapshot = store.list(&[ROOT.to_owned()]).await?;
            let count = store_export::print(&snapshot.entries, *redact)?;
            // The revision of a backup goes to stderr, so that stdout remains readable by `import`.
            eprintln!("{} of {} at revision {}", counted(count, "key"), store.describe(), snapshot.revision);
            Ok(())
        }
        StoreCommand::Project => super::store_project::run(context, &*open(globals, false).await?).await,
        StoreCommand::Name(command) => store_names::name(globals, command),
        StoreCommand::Key { key } => store_names::key(globals, key),
        StoreCommand::Validate => super::store_validate::run(context, &*open(globals, false).await?).await,
        StoreCommand::Accept => {
            let done: ActionResult =
                Client::of(globals).post("/v1/store/accept", &serde_json::json!({})).await?;
            say(format, &done.text)
        }
    }
}

pub(super) fn say(format: Format, text: &str) -> Result<(), Failure> {
    let done = ActionResult { text: text.to_owned() };
    output::print(format, &done, |out, _| {
        let _ = writeln!(out, "{text}");
    })
}

fn committed(outcome: Outcome) -> Result<u64, Failure> {
    match outcome {
        Outcome::Committed(revision) => Ok(revision),
        Outcome::Conflict => Err(Failure::new(
            Exit::Refused,
            "conflict",
            "another process wrote at the same moment: run the command again",
        )),
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// True for a key that shows that an agent runs: without its lease it would do so forever.
fn is_of_the_moment(key: &str) -> bool {
    matches!(Key::parse(key), Ok(Key::TortieStatus { .. } | Key::Felix { item: FelixItem::Status, .. }))
}

fn check(key: &str, value: &[u8]) -> Result<(), Failure> {
    tortie_config::check(key, value)
        .map_err(|error| Failure::usage(format!("{error}. Nothing was written (--raw writes it as it is)")))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin()
            .read_to_end(&mut bytes)
            .map_err(|e| Failure::usage(format!("standard input cannot be read: {e}")))?;
        return Ok(bytes);
    }
    std::fs::read(path).map_err(|e| {
        Failure::usage(format!(
            "{} cannot be read: {e}; name a file, or - for standard input",
            path.display()
        ))
    })
}

fn list(out: &mut String, rows: &[Row<'_>], wide: bool) {
    if wide {
        let cells = rows
            .iter()
            .map(|r| vec![r.key.to_owned(), r.revision.to_string(), r.bytes.to_string()])
            .collect();
        out.push_str(&table(&["KEY", "REVISION", "BYTES"], cells));
        return;
    }
    for row in rows {
        let _ = writeln!(out, "{}", escape::line(row.key));
    }
}

/// Members of an import. A duplicate key is an error, which other JSON readers ignore.
struct Entries(BTreeMap<String, serde_json::Value>);

impl<'de> serde::Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> serde::de::Visitor<'de> for Once {
            type Value = Entries;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, serde_json::Value>()? {
                    if entries.contains_key(&key) {
                        return Err(serde::de::Error::custom(format_args!("{key} occurs twice")));
                    }
                    entries.insert(key, value);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Once)
    }
}

async fn import(globals: &Globals, file: &Path, raw: bool, allow_unknown: bool) -> Result<(), Failure> {
    let name = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
    let bytes = read(file)?;
    let Entries(mut map) = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::usage(format!(
            "{name}: {error}. An import is one JSON object {{\"<full key>\": \"<value as text>\"}}"
        ))
    })?;
    // A member that is not such a list is rejected below as an invalid key.
    let unchecked = map.get(UNCHECKED).and_then(listed_keys).unwrap_or_default();
    if !unchecked.is_empty() {
        map.remove(UNCHECKED);
    }
    let mut ops = Vec::with_capacity(map.len());
    let (mut wrong, mut passed, mut strange) = (Vec::new(), Vec::new(), Vec::new());
    for (key, value) in map {
        if !key.starts_with('/') {
            wrong.push(format!("{key}: a full key begins with /"));
            continue;
        }
        let value = match value {
            serde_json::Value::String(value) => value,
            other => {
                match binary(&other) {
                    Some(value) if !is_of_the_moment(&key) => ops.push(Op::Put { key, value, lease: None }),
                    Some(_) => passed.push(key),
                    None => wrong.push(format!(
                        "{key}: the value is not text; write JSON values as text, with escaped quotes"
                    )),
                }
                continue;
            }
        };
        let checked = !raw && !unchecked.contains(&key);
        if checked && !allow_unknown {
            strange.extend(tortie_config::unknown(&key, value.as_bytes()));
        }
        if checked && let Err(error) = tortie_config::check(&key, value.as_bytes()) {
            wrong.push(error.to_string());
        }
        if !raw && redact::is_redacted(value.as_bytes()) {
            wrong.push(format!("{key}: the export was made with --redact, so its secrets are gone (***)"));
        }
        if !raw && is_of_the_moment(&key) {
            passed.push(key);
            continue;
        }
        warn_unsupported(&key);
        ops.push(Op::Put { key, value: value.into_bytes(), lease: None });
    }
    if !wrong.is_empty() {
        let more = wrong.len().saturating_sub(20);
        let mut text = format!(
            "{name}: {} cannot be parsed; nothing was written (--raw writes them as they are)",
            counted(wrong.len(), "value")
        );
        for line in wrong.iter().take(20) {
            let _ = write!(text, "\n  {line}");
        }
        if more > 0 {
            let _ = write!(text, "\n  and {more} more");
        }
        return Err(Failure::usage(text));
    }
    refuse_unknown(strange, allow_unknown)?;
    if let Some(first) = passed.first() {
        eprintln!(
            "warning: not imported: {} that running agents write ({first})",
            counted(passed.len(), "key")
        );
    }
    let count = ops.len();
    let store = open_to_write(globals, &ops).await?;
    let txns = tortie_store::split(ops)?;
    let (parts, mut revision, mut done) = (txns.len(), 0, 0);
    let show = std::io::stderr().is_terminal() && parts > 10;
    for (at, txn) in txns.into_iter().enumerate() {
        let keys = txn.ops.len();
        revision = committed(store.commit(txn).await.map_err(|error| {
            let failure = Failure::from(error);
            Failure {
                text: format!("{}; {done} of {count} keys were written before: import again", failure.text),
                ..failure
            }
        })?)?;
        done += keys;
        if show {
            eprint!("\r{done} of {count} keys ({} of {parts} transactions)", at + 1);
        }
    }
    if show {
        eprintln!();
    }
    say(
        globals.output,
        &format!(
            "{} imported from {name} into {} at revision {revision}",
            counted(count, "key"),
            store.describe()
        ),
    )
}

/// Rejects members and keys that Tortie does not read: they may be misspelt, and would have no effect.
fn refuse_unknown(found: Vec<String>, allowed: bool) -> Result<(), Failure> {
    if allowed || found.is_empty() {
        return Ok(());
    }
    let (shown, more) = found.split_at(found.len().min(20));
    let more = if more.is_empty() { String::new() } else { format!("\n  and {} more", more.len()) };
    Err(Failure::new(
        Exit::Usage,
        "unknown",
        format!(
            "{}{more}. Nothing was written (--allow-unknown writes it, for other programs that read it)",
            shown.join("\n  ")
        ),
    ))
}

fn warn_unsupported(key: &str) {
    if let Some(why) = tortie_config::unsupported(key) {
        output::diagnose(&format!("warning: {key}: {why}"));
    }
}

async fn watch(store: &dyn Store, prefix: &str, format: Format) -> Result<(), Failure> {
    let prefixes = [prefix.to_owned()];
    let listed = store.list(&prefixes).await?;
    let start = listed.revision;
    let mut watch = store.watch(&prefixes, start, Some(&listed.history())).await?;
    eprintln!("watching {prefix} after revision {start}; end with Ctrl-C");
    loop {
        match watch.next().await? {
            WatchEvent::Delta(delta) => {
                for change in &delta.changes {
                    write_out(&line(delta.revision, change, format))?;
                }
            }
            WatchEvent::Progress(_) => {}
            WatchEvent::Compacted { oldest } => {
                return Err(Failure::new(
                    Exit::Partial,
                    "compacted",
                    format!("the history before revision {oldest} is gone: start the watch again"),
                ));
            }
        }
    }
}

fn line(revision: u64, change: &Change, format: Format) -> String {
    let (mark, key, value) = match change {
        Change::Put(KeyValue { key, value, .. }) => ("+", key, Some(text(value))),
        Change::Delete { key } => ("-", key, None),
    };
    if format.is_text() {
        let value = value.unwrap_or_default();
        return format!("{revision}  {mark}  {}  {}\n", escape::line(key), escape::line(&value));
    }
    let json = serde_json::json!({ "revision": revision, "mark": mark, "key": key, "value": value });
    format!("{json}\n")
}
