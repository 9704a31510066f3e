//! LiveMigration.
//!
//! A member that cannot be read names no endpoint, as in Calico: the endpoint is then routed like any other.

use serde_json::Value;

use super::super::Object;
use super::super::output::Output;
use crate::key::Key;
use crate::resource::{Fields, LiveMigration, MigrationTarget, MovingEndpoint, ValueError};

const TEXT: &str = "write the name in double quotes";

/// Projects a LiveMigration.
pub(in crate::calico3) fn live_migration(object: &Object) -> Output {
    let mut output = Output::default();
    let Some(namespace) = object.key.namespace.clone() else { return output };
    let mut fields = Fields::of_map(object.spec.clone());
    let (source, target) = (source(&mut fields), target(&mut fields));
    for error in [source.as_ref().err(), target.as_ref().err()].into_iter().flatten() {
        let text = format!("{}; the endpoint has no role in the migration", error.clone().within("spec"));
        output.problem(&object.key, "invalid-value", text);
    }
    let (source, target) = (source.unwrap_or_default(), target.unwrap_or_default());
    let key = Key::LiveMigration { namespace, name: object.key.name.clone() };
    output.put(key, LiveMigration { source, target }.to_value(), &object.key);
    output
}

fn source(fields: &mut Fields) -> Result<Option<MovingEndpoint>, ValueError> {
    let Some(mut source) = member(fields, "source")? else { return Ok(None) };
    let within = |error: ValueError| error.within("source");
    if let Some(workload) = member(&mut source, "workload").map_err(within)? {
        return endpoint(workload, false).map(Some).map_err(|error| within(error.within("workload")));
    }
    let named = member(&mut source, "workloadEndpoint").map_err(within)?;
    named.map(|named| endpoint(named, true)).transpose().map_err(|e| within(e.within("workloadEndpoint")))
}

fn target(fields: &mut Fields) -> Result<Option<MigrationTarget>, ValueError> {
    let Some(mut target) = member(fields, "target")? else { return Ok(None) };
    let within = |error: ValueError| error.within("target");
    if let Some(named) = member(&mut target, "workloadEndpoint").map_err(within)? {
        let named = endpoint(named, true).map_err(|error| within(error.within("workloadEndpoint")))?;
        return Ok(Some(MigrationTarget::Endpoint(named)));
    }
    let selector = target.text("selector").map_err(within)?.filter(|text| !text.is_empty());
    let Some(text) = selector else { return Ok(None) };
    let selector = text.parse().map_err(|error| {
        within(ValueError::new("selector", format_args!("`{text}`"), format!("write a selector ({error})")))
    });
    selector.map(MigrationTarget::Selector).map(Some)
}

/// Reads a member with members; `None` if it is absent.
fn member(fields: &mut Fields, name: &str) -> Result<Option<Fields>, ValueError> {
    match fields.take(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => Fields::of(value).map(Some).map_err(|error| error.within(name)),
    }
}

fn endpoint(mut fields: Fields, with_endpoint: bool) -> Result<MovingEndpoint, ValueError> {
    let mut text = |name: &str| {
        let text = fields.text(name)?.filter(|text| !text.is_empty());
        text.ok_or_else(|| ValueError::new(name, "nothing", TEXT))
    };
    Ok(MovingEndpoint {
        host: text("hostname")?,
        orchestrator: text("orchestratorID")?,
        workload: text("workloadID")?,
        endpoint: with_endpoint.then(|| text("endpointID")).transpose()?,
    })
}
