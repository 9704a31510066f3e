//! BGPFilters, with their valid rules.
//!
//! A rule that is not valid matches nothing if it accepts, and everything if it rejects: a match or an
//! operation that is lost would widen it. Rules keep their order.

use serde_json::{Map, Value, json};

use super::super::Object;
use super::super::output::Output;
use super::members::Members;
use crate::key::Key;
use crate::resource::BgpFilter;

/// Lists of rules.
const LISTS: [&str; 4] = ["exportV4", "importV4", "exportV6", "importV6"];

/// Projects a BGPFilter.
pub(in crate::calico3) fn filter(object: &Object) -> Output {
    let mut out = Output::default();
    let mut spec = Members::of(object, &mut out);
    let mut value = Map::new();
    for list in LISTS {
        if spec.get(list).is_some_and(|list| !list.is_array()) {
            spec.invalid(list, "no list", "write a list of rules; it rejects everything until then");
            value.insert(list.to_owned(), json!([reject_all()]));
            continue;
        }
        let mut rules = Vec::new();
        for (at, rule) in spec.list(list).iter().enumerate() {
            // Each rule is parsed alone, by the parser of the value.
            let Err(error) = BgpFilter::parse(json!({ list: [rule] }).to_string().as_bytes()) else {
                rules.push(rule.clone());
                continue;
            };
            let member = error.path.replacen("[0]", &format!("[{at}]"), 1);
            let accepts = rule.get("action").and_then(Value::as_str) == Some("Accept");
            let until = if accepts { "matches nothing" } else { "rejects everything" };
            spec.invalid(
                &member,
                &error.found,
                format_args!("{}; the rule {until} until then", error.expected),
            );
            rules.extend((!accepts).then(reject_all));
        }
        if !rules.is_empty() {
            value.insert(list.to_owned(), Value::Array(rules));
        }
    }
    out.put(Key::BgpFilter(object.key.name.clone()), Value::Object(value).to_string(), &object.key);
    out
}

fn reject_all() -> Value {
    json!({ "action": "Reject" })
}
