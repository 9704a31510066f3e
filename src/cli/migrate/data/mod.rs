//! `tortie migrate data`: converts a v1 store to Calico 3's objects, and writes them into another store.
//!
//! The conversion is [`tortie_config::calico3::convert`]; this lists the one store and writes the other. The
//! ClusterInformation comes last: until it is there, no agent of Calico 3 starts.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use tortie_config::calico3::convert::{Converted, Finding, Renamed, Weight, convert};
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::{ROOT, prefix};
use tortie_store::{Compare, DataModel, Op, Outcome, Snapshot, Store, StoreOptions, StoreUrl};

use super::args::DataCommand;
use crate::cli::context::{Context, Globals};
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::{self, table};
use crate::cli::store::store_options;

/// `tortie migrate data`.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename = "MigrateData")]
struct Document {
    /// True if the objects were written.
    written: bool,
    /// Number of findings of each weight.
    errors: usize,
    lost: usize,
    notes: usize,
    /// Number of entries of IPAM, which stay as they are.
    kept: usize,
    findings: Vec<Finding>,
    names: Vec<Renamed>,
    objects: Vec<Value>,
}

pub(super) async fn run(context: &Context, command: &DataCommand) -> Result<(), Failure> {
    let snapshot = crate::cli::store::open(&context.globals, false).await?.list(&[ROOT.to_owned()]).await?;
    if snapshot.entries.iter().any(|entry| entry.key.starts_with(prefix::CALICO_3)) {
        let text =
            "this store has objects of Calico 3 already: name a store of the v1 data model with --datastore";
        return Err(Failure::new(Exit::Refused, "calico-3", text));
    }
    let entries = snapshot.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_slice()));
    let converted = convert(entries);
    let mut target = None;
    if let Some(url) = &command.to {
        target = Some(empty(&context.globals, url).await?);
    }
    if command.write && !converted.is_complete() {
        show(context, &converted, &snapshot, false)?;
        let text = "nothing was written: correct the errors in the v1 store, and convert it again";
        return Err(Failure::new(Exit::Refused, "not-convertible", text));
    }
    if let (Some(store), true) = (target, command.write) {
        write(&*store, &converted).await?;
    }
    show(context, &converted, &snapshot, command.write)?;
    match converted.is_complete() {
        true => Ok(()),
        false => Err(Failure::new(Exit::No, "not-convertible", "")),
    }
}

/// Opens the store for the objects.
///
/// # Errors
/// If it has a key of Calico.
async fn empty(globals: &Globals, url: &str) -> Result<std::sync::Arc<dyn Store>, Failure> {
    // Objects are written by hand, as it were: no agent follows this store yet.
    let mut options =
        StoreOptions { url: url.to_owned(), data_model: DataModel::V1, ..store_options(globals, true) };
    if matches!(url.parse(), Ok(StoreUrl::Sqlite(_))) {
        let StoreOptions { url, create, data_model, .. } = options;
        options = StoreOptions { url, create, data_model, ..StoreOptions::default() };
    }
    let store = tortie_store::open(&options).await?;
    match store.list(&[ROOT.to_owned()]).await?.entries.first() {
        None => Ok(store),
        Some(entry) => {
            let text = format!("{url} is not empty, it has {}: name an empty store with --to", entry.key);
            Err(Failure::new(Exit::Refused, "not-empty", text))
        }
    }
}

/// Writes everything, the ClusterInformation last. No key is overwritten.
async fn write(store: &dyn Store, converted: &Converted) -> Result<(), Failure> {
    let created = format!("{:.0}", jiff::Timestamp::now());
    let cluster = ObjectKey::global(Kind::ClusterInformation, "default");
    let put = |key: String, value: Vec<u8>| Op::Put { key, value, lease: None };
    let mut ops: Vec<Op> =
        converted.kept.iter().map(|(key, value)| put(key.clone(), value.clone())).collect();
    let (last, others): (Vec<_>, Vec<_>) =
        converted.objects.values().partition(|object| object.key == cluster);
    for object in others.into_iter().chain(last) {
        let value = object.value(Some((&uid(), &created)));
        ops.push(put(object.key.to_string(), value.to_string().into_bytes()));
    }
    for mut txn in tortie_store::split(ops)? {
        txn.compare = txn.ops.iter().map(|op| Compare::Absent(op.key().to_owned())).collect();
        if store.commit(txn).await? == Outcome::Conflict {
            let text =
                "another program writes to the store of --to: stop it, empty the store, and convert again";
            return Err(Failure::new(Exit::Refused, "not-empty", text));
        }
    }
    Ok(())
}

/// Returns a random unique id (RFC 9562, version 4).
fn uid() -> String {
    let random = rand::random::<u128>() & !(0xf000 << 64) & !(0xc << 60);
    let hex = format!("{:032x}", random | (0x4000 << 64) | (0x8 << 60));
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

fn show(context: &Context, converted: &Converted, snapshot: &Snapshot, written: bool) -> Result<(), Failure> {
    let count = |weight: Weight| converted.findings.iter().filter(|finding| finding.weight == weight).count();
    let document = Document {
        written,
        errors: count(Weight::Error),
        lost: count(Weight::Lost),
        notes: count(Weight::Note),
        kept: converted.kept.len(),
        findings: converted.findings.clone(),
        names: converted.names.clone(),
        objects: converted.objects.values().map(|object| object.value(None)).collect(),
    };
    output::print(context.globals.output, &document, |out, _| {
        let findings = document.findings.iter().map(|finding| {
            let weight = match finding.weight {
                Weight::Error => "error",
                Weight::Lost => "lost",
                Weight::Note => "note",
            };
            vec![weight.to_owned(), finding.about.clone(), finding.text.clone()]
        });
        if !document.findings.is_empty() {
            out.push_str(&table(&["WEIGHT", "KEY", "TEXT"], findings.collect()));
            out.push('\n');
        }
        let names =
            document.names.iter().map(|name| vec![name.kind.to_owned(), name.from.clone(), name.to.clone()]);
        if !document.names.is_empty() {
            out.push_str(&table(&["KIND", "V1 NAME", "NAME"], names.collect()));
            out.push('\n');
        }
        let objects = converted.objects.values().map(|object| {
            let namespace = object.key.namespace.clone().unwrap_or_else(|| "-".to_owned());
            vec![
                object.key.kind.as_str().to_owned(),
                namespace,
                object.key.name.clone(),
                object.from.join(" "),
            ]
        });
        out.push_str(&table(&["KIND", "NAMESPACE", "NAME", "FROM"], objects.collect()));
        let verb = if written { "written" } else { "nothing was written" };
        let _ = writeln!(
            out,
            "\n{} keys of revision {}: {} objects and {} keys of IPAM, {} errors, {} lost, {} notes; {verb}",
            snapshot.entries.len(),
            snapshot.revision,
            document.objects.len(),
            document.kept,
            document.errors,
            document.lost,
            document.notes,
        );
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_version_and_variant() {
        let id = uid();
        let parts: Vec<&str> = id.split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && parts[3].starts_with(['8', '9', 'a', 'b']), "{id}");
    }
}
