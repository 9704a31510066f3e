//! Tiers.

use serde_json::{Value, json};

use super::super::Object;
use super::super::output::Output;
use super::network_policy::order;
use super::unreadable;
use crate::key::Key;
use crate::resource::{Fields, ValueError};

/// Projects a Tier. An end action other than `Pass` is `Deny`, as in Calico.
pub(in crate::calico3) fn tier(object: Object) -> Output {
    let mut output = Output::default();
    let mut fields = Fields::of_map(object.spec);
    let read = order(&mut fields).and_then(|order| Ok((order, default_action(&mut fields)?)));
    let value = match read {
        Ok((order, (action, problem))) => {
            if let Some(problem) = problem {
                output.problem(&object.key, "invalid-value", problem.within("spec").to_string());
            }
            let value = json!({"order": order.unwrap_or(Value::Null), "default_action": action});
            value.to_string().into_bytes()
        }
        Err(error) => {
            let text = error.within("spec").to_string();
            let value = unreadable::value(&text);
            output.problem(&object.key, "invalid-value", text);
            value
        }
    };
    output.put(Key::Tier { tier: object.key.name.clone() }, value, &object.key);
    output
}

fn default_action(fields: &mut Fields) -> Result<(&'static str, Option<ValueError>), ValueError> {
    let text = fields.text("defaultAction")?.unwrap_or_default();
    Ok(match text.as_str() {
        "Pass" => ("pass", None),
        "" | "Deny" => ("deny", None),
        other => {
            let found = format_args!("`{other}`");
            ("deny", Some(ValueError::new("defaultAction", found, "write Deny or Pass; it counts as Deny")))
        }
    })
}
