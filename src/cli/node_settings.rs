//! `tortie node settings`: shows the settings in force on a host, and the origin of each.

use std::collections::BTreeMap;

use serde::Serialize;
use tortie_config::key::{Key, Scope};
use tortie_config::resource::{Setting, Settings};

use super::context::Context;
use super::failure::Failure;
use super::output::{self, table};
use tortie_store::Snapshot;

/// A setting on a host, with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    value: String,
    /// Origin: `host`, `global` or `default`.
    from: &'static str,
    /// Store key with the value.
    key: Option<String>,
    /// Reason why a key with precedence is not in force, or why the setting has no effect.
    note: String,
}

pub(super) async fn run(context: &Context, host: &str, changed: bool) -> Result<(), Failure> {
    let scopes = [Scope::Global, Scope::Host(host.to_owned())];
    let prefixes = scopes.map(|scope| Key::Setting(scope, String::new()).to_string());
    let snapshot = super::store::open(&context.globals, false).await?.list(&prefixes).await?;
    let rows: Vec<Row> =
        rows(&snapshot, host).into_iter().filter(|row| !changed || row.from != "default").collect();
    output::print(context.globals.output, &rows, |out, wide| {
        let mut head = vec!["SETTING", "VALUE", "FROM"];
        head.extend(wide.then_some("KEY"));
        head.push("NOTE");
        let cells = rows.iter().map(|row| {
            let mut cells = vec![row.name.clone(), row.value.clone(), row.from.to_owned()];
            cells.extend(wide.then(|| row.key.clone().unwrap_or_else(|| "-".to_owned())));
            cells.push(row.note.clone());
            cells
        });
        out.push_str(&table(&head, cells.collect()));
    })
}

/// Returns the defaults, overridden by global settings, overridden by those of the host, as
/// [`Settings::apply`] does.
fn rows(snapshot: &Snapshot, host: &str) -> Vec<Row> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for setting in Settings::default().all() {
        let name = setting.name().to_owned();
        let note = match Setting::WITHOUT_EFFECT.contains(&name.as_str()) {
            true => "read, and without effect here".to_owned(),
            false => String::new(),
        };
        rows.insert(name.clone(), Row { name, value: setting.to_text(), from: "default", key: None, note });
    }
    for (scope, from) in [(Scope::Global, "global"), (Scope::Host(host.to_owned()), "host")] {
        for entry in &snapshot.entries {
            let Ok(Key::Setting(of, name)) = Key::parse(&entry.key) else { continue };
            if of != scope {
                continue;
            }
            let row = rows.entry(name.clone()).or_insert_with(|| Row {
                name: name.clone(),
                value: String::new(),
                from: "default",
                key: None,
                note: "no setting of this agent".to_owned(),
            });
            match Setting::parse(&name, &entry.value) {
                Ok(Setting::Unset(_)) => {}
                Ok(setting) => {
                    (row.value, row.from) = (setting.to_text(), from);
                    row.key = Some(entry.key.clone());
                }
                // A running agent keeps the last valid value.
                Err(error) => row.note = format!("{} cannot be read: {error}", entry.key),
            }
        }
    }
    rows.into_values().collect()
}

#[cfg(test)]
mod tests {
    use tortie_engine::model::{Model, WatchPart};
    use tortie_store::KeyValue;

    use super::*;

    fn snapshot(entries: &[(&str, &str)]) -> Snapshot {
        let entry = |(key, value): &(&str, &str)| KeyValue {
            key: format!("/calico/v1/{key}"),
            value: value.as_bytes().to_vec(),
            mod_revision: 1,
            create_revision: 1,
        };
        Snapshot { revision: 1, entries: entries.iter().map(entry).collect(), ..Snapshot::default() }
    }

    /// The shown settings are equal to those of the host's model.
    #[test]
    fn host_over_global_over_default_as_the_agent_has_it() {
        let snapshot = snapshot(&[
            ("config/IpInIpMtu", "1400"),
            ("config/LogPrefix", "all"),
            ("config/InterfacePrefix", "cali,tap"),
            ("config/Nonsense", "1"),
            ("host/h1/config/LogPrefix", "mine"),
            ("host/h1/config/InterfacePrefix", ""),
            ("host/h1/config/ReportingTTLSecs", "soon"),
            ("host/h2/config/LogPrefix", "theirs"),
        ]);
        let rows = rows(&snapshot, "h1");
        let mut model = Model::new("h1");
        model.replace(WatchPart::All, &snapshot);
        for setting in model.settings().all() {
            let row = rows.iter().find(|row| row.name == setting.name()).unwrap();
            assert_eq!(row.value, setting.to_text(), "{row:?}");
        }
        let from = |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.from).unwrap();
        assert_eq!(
            ["IpInIpMtu", "LogPrefix", "InterfacePrefix", "ReportingTTLSecs", "Ipv6Support"].map(from),
            ["global", "host", "global", "default", "default"]
        );
        let note = |name: &str| rows.iter().find(|row| row.name == name).unwrap().note.clone();
        assert!(note("ReportingTTLSecs").contains("cannot be read"), "{}", note("ReportingTTLSecs"));
        assert!(note("Nonsense").contains("no setting"));
    }
}
