//! NetworkPolicy and GlobalNetworkPolicy, and their staged forms.
//!
//! A policy that cannot be read as a whole gives an entry that the v1 model reports as unreadable, so that
//! its last good form stays in force. Rules that lose a match are the business of [`super::losses`].

use serde_json::{Map, Value};

use super::super::output::Output;
use super::super::{Kind, Object, ObjectKey};
use super::names::{DEFAULT_TIER, policy_key, tier_of_name};
use super::rule::Rules;
use super::selectors::{
    self, NAMESPACE_LABEL, NAMESPACE_PREFIX, SERVICE_ACCOUNT_LABEL, SERVICE_ACCOUNT_PREFIX,
};
use super::unreadable;
use crate::resource::{Fields, ValueError};

/// Projects a NetworkPolicy or GlobalNetworkPolicy.
pub(in crate::calico3) fn policy(object: Object) -> Output {
    let mut output = Output::default();
    let Object { key: object, spec, .. } = object;
    let (tier, value) = convert(&object, Fields::of_map(spec), &mut output);
    let key = policy_key(&object, &tier);
    match value {
        Ok(value) => unreadable::put_checked(&mut output, key, value, &object),
        Err(Unreadable(value)) => output.put(key, value, &object),
    }
    output
}

/// Projects a staged policy: its problems only, because it is previewed and never enforced.
pub(in crate::calico3) fn staged(object: Object) -> Output {
    let mut output = Output::default();
    if object.key.kind != Kind::StagedKubernetesNetworkPolicy {
        // Only the problems are wanted.
        let _ = convert(&object.key, Fields::of_map(object.spec), &mut output);
    }
    output
}

/// Value of a policy that cannot be read as a whole.
struct Unreadable(Vec<u8>);

/// Returns tier and value of a policy, and adds its problems.
fn convert(
    object: &ObjectKey,
    mut fields: Fields,
    output: &mut Output,
) -> (String, Result<Vec<u8>, Unreadable>) {
    let tier = match fields.text("tier") {
        Ok(tier) => tier.filter(|tier| !tier.is_empty()).unwrap_or_else(|| DEFAULT_TIER.to_owned()),
        Err(error) => {
            let value = invalid(object, output, error, None);
            return (tier_of_name(&object.name).to_owned(), Err(value));
        }
    };
    let selector = match selector(&mut fields, object.namespace.as_deref()) {
        Ok(selector) => selector,
        Err(error) => return (tier, Err(invalid(object, output, error, None))),
    };
    let value = match members(&mut fields, object, &selector, output) {
        Ok(value) => Ok(value.to_string().into_bytes()),
        Err(error) => Err(invalid(object, output, error, Some(&selector))),
    };
    (tier, value)
}

/// Adds the problem of a policy that cannot be read, and returns its value.
fn invalid(object: &ObjectKey, output: &mut Output, error: ValueError, selector: Option<&str>) -> Unreadable {
    let text = error.within("spec").to_string();
    let value = unreadable::policy_value(&text, selector);
    output.problem(object, "invalid-value", text);
    Unreadable(value)
}

fn members(
    fields: &mut Fields,
    object: &ObjectKey,
    selector: &str,
    output: &mut Output,
) -> Result<Value, ValueError> {
    let namespace = object.namespace.as_deref();
    let mut value = Map::new();
    let mut put = |name: &str, member: Value| drop(value.insert(name.to_owned(), member));
    if let Some(namespace) = namespace {
        put("namespace", namespace.into());
    }
    put("selector", selector.into());
    if let Some(order) = order(fields)? {
        put("order", order);
    }
    let types = fields.list("types", |value| match value.as_str().map(str::to_ascii_lowercase) {
        Some(direction) if matches!(&*direction, "ingress" | "egress") => Ok(Value::from(direction)),
        _ => Err(ValueError::json("", &value, "write Ingress or Egress")),
    })?;
    if !types.is_empty() {
        put("types", types.into());
    }
    if namespace.is_none() {
        for (name, of_v1) in
            [("doNotTrack", "untracked"), ("preDNAT", "pre_dnat"), ("applyOnForward", "apply_on_forward")]
        {
            if fields.flag(name)? {
                put(of_v1, true.into());
            }
        }
    }
    let rules = Rules::take(fields, namespace, object, output)?;
    put("inbound_rules", rules.inbound);
    put("outbound_rules", rules.outbound);
    Ok(Value::Object(value))
}

/// Reads `order`: a number, or none.
pub(super) fn order(fields: &mut Fields) -> Result<Option<Value>, ValueError> {
    match fields.take("order") {
        None => Ok(None),
        Some(order @ Value::Number(_)) => Ok(Some(order)),
        Some(other) => Err(ValueError::json("order", &other, "write a number, or remove it")),
    }
}

/// Composes the selector of the endpoints that a policy applies to.
fn selector(fields: &mut Fields, namespace: Option<&str>) -> Result<String, ValueError> {
    let own = selectors::checked(fields, "selector")?;
    let accounts = selectors::prefixed(fields, "serviceAccountSelector", SERVICE_ACCOUNT_PREFIX)?;
    if let Some(namespace) = namespace {
        let own = and(own, selectors::of_namespace(namespace));
        return Ok(match accounts {
            Some(accounts) => and(Some(own), accounts),
            None => own,
        });
    }
    let mut text = own;
    if let Some(namespaces) = selectors::prefixed(fields, "namespaceSelector", NAMESPACE_PREFIX)? {
        text = Some(selectors::all_with(&and(text, namespaces), NAMESPACE_LABEL));
    }
    if let Some(accounts) = accounts {
        text = Some(selectors::all_with(&and(text, accounts), SERVICE_ACCOUNT_LABEL));
    }
    Ok(text.unwrap_or_default())
}

fn and(first: Option<String>, second: String) -> String {
    match first {
        Some(first) => format!("({first}) && {second}"),
        None => second,
    }
}
