//! Policies, tiers and profiles: rules, order, tags and labels.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

use super::json::{Extra, Fields, Writer, elements, value};
use super::names::{Labels, label_name, labels, labels_json};
use super::rule::{Rule, parse_selector};
use super::{ValueError, json};
use crate::Selector;
use crate::dialect::Dialect;

/// Value of a profile's `rules`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Rules for traffic to the endpoint.
    pub inbound: Vec<Rule>,
    /// Rules for traffic from the endpoint.
    pub outbound: Vec<Rule>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl Rules {
    /// Parses a value.
    ///
    /// # Errors
    /// If a rule is malformed or has an unknown field.
    pub(super) fn parse_in(dialect: Dialect, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        Ok(Self {
            inbound: fields.list("inbound_rules", |rule| Rule::parse(dialect, rule))?,
            outbound: fields.list("outbound_rules", |rule| Rule::parse(dialect, rule))?,
            extra: fields.rest(),
        })
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        put_rules(&mut writer, &self.inbound, &self.outbound);
        writer.bytes(&self.extra)
    }
}

fn put_rules(writer: &mut Writer, inbound: &[Rule], outbound: &[Rule]) {
    writer.put("inbound_rules", Value::Array(inbound.iter().map(Rule::json).collect()));
    writer.put("outbound_rules", Value::Array(outbound.iter().map(Rule::json).collect()));
}

/// Order of a policy or a tier, ascending; those without order come last.
#[derive(Debug, Clone, Copy)]
pub struct Order(f64);

impl Order {
    /// Creates an order; `None` if the number is not finite.
    #[must_use]
    pub fn new(order: f64) -> Option<Self> {
        // Normalizes -0 to 0, since they are the same order.
        order.is_finite().then_some(Self(order + 0.0))
    }

    /// Returns the order as a number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    /// Parses `order`; absent, null and `"default"` mean no order.
    fn take(fields: &mut Fields) -> Result<Option<Self>, ValueError> {
        match fields.take("order") {
            None => Ok(None),
            Some(Value::String(text)) if text == "default" => Ok(None),
            Some(value) => value
                .as_f64()
                .and_then(Self::new)
                .map(Some)
                .ok_or_else(|| ValueError::json("order", &value, "write a number, null or \"default\"")),
        }
    }

    fn json(self) -> Value {
        // Whole numbers are written without fraction, because readers print them.
        let whole = format!("{:.0}", self.0).parse::<i64>().ok().filter(|_| self.0.fract() == 0.0);
        whole.map_or_else(|| Number::from_f64(self.0).map_or(Value::Null, Value::Number), Value::from)
    }
}

impl Ord for Order {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Order {}

/// A policy: rules for the endpoints that its selector matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Selector of the endpoints that the policy applies to.
    pub selector: Selector,
    /// Order within the tier; `None` for last. Equal orders are sorted by name, bytewise.
    pub order: Option<Order>,
    /// Rules for traffic to the endpoints.
    pub inbound: Vec<Rule>,
    /// Rules for traffic from the endpoints.
    pub outbound: Vec<Rule>,
    /// Applied before connection tracking; host endpoints only.
    pub untracked: bool,
    /// Applied before DNAT; host endpoints only, inbound only.
    pub pre_dnat: bool,
    /// Directions that the policy applies to.
    pub types: PolicyTypes,
    /// Unknown fields, including `annotations`, kept when the value is written.
    pub extra: Extra,
}

/// Directions that a policy applies to, even if its rule list is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PolicyTypes {
    /// Both directions; also if the field is absent or empty.
    #[default]
    Both,
    /// Only traffic to the endpoints.
    Ingress,
    /// Only traffic from the endpoints.
    Egress,
}

impl PolicyTypes {
    /// Returns true if the policy applies to traffic to the endpoints.
    #[must_use]
    pub fn ingress(self) -> bool {
        self != Self::Egress
    }

    /// Returns true if the policy applies to traffic from the endpoints.
    #[must_use]
    pub fn egress(self) -> bool {
        self != Self::Ingress
    }

    fn take(fields: &mut Fields) -> Result<Self, ValueError> {
        let list = fields.list("types", |value| match value.as_str() {
            Some("ingress" | "Ingress") => Ok(true),
            Some("egress" | "Egress") => Ok(false),
            _ => Err(ValueError::json("", &value, "write \"ingress\" or \"egress\"")),
        })?;
        Ok(match (list.contains(&true), list.contains(&false)) {
            (true, false) => Self::Ingress,
            (false, true) => Self::Egress,
            _ => Self::Both,
        })
    }
}

impl Policy {
    /// Creates a policy without rules for both directions. It denies all traffic that no other policy of its
    /// tier allows.
    #[must_use]
    pub fn new(selector: Selector) -> Self {
        Self {
            selector,
            order: None,
            inbound: Vec::new(),
            outbound: Vec::new(),
            untracked: false,
            pre_dnat: false,
            types: PolicyTypes::default(),
            extra: Extra::default(),
        }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// If a field is malformed, if the selector is missing, if `untracked` and `pre_dnat` are both set, or if
    /// `pre_dnat` has egress rules.
    pub(super) fn parse_in(dialect: Dialect, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let Some(selector) = fields.text("selector")? else {
            return Err(ValueError::missing(
                "selector",
                "write a selector; \"all()\" selects every endpoint",
            ));
        };
        let policy = Self {
            selector: parse_selector(dialect, "selector", &selector)?,
            order: Order::take(&mut fields)?,
            inbound: fields.list("inbound_rules", |rule| Rule::parse(dialect, rule))?,
            outbound: fields.list("outbound_rules", |rule| Rule::parse(dialect, rule))?,
            untracked: fields.flag("untracked")?,
            pre_dnat: fields.flag("pre_dnat")?,
            types: PolicyTypes::take(&mut fields)?,
            extra: fields.rest(),
        };
        policy.check().map(|()| policy)
    }

    /// Returns true if the policy of a Calico 3 store also applies to packets that a host forwards
    /// (`apply_on_forward`). A v1 store does not make this distinction.
    #[must_use]
    pub fn applies_on_forward(&self) -> bool {
        self.extra.get("apply_on_forward") == Some(&Value::Bool(true))
    }

    fn check(&self) -> Result<(), ValueError> {
        if self.pre_dnat && self.untracked {
            return Err(ValueError::new("pre_dnat", "`true`", "`untracked` excludes it: drop one of them"));
        }
        if self.pre_dnat && (!self.outbound.is_empty() || self.types == PolicyTypes::Egress) {
            return Err(ValueError::new("pre_dnat", "`true`", "such a policy has inbound rules only"));
        }
        Ok(())
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("selector", self.selector.to_string());
        writer.put_some("order", self.order.map(Order::json));
        put_rules(&mut writer, &self.inbound, &self.outbound);
        writer.put("untracked", self.untracked);
        writer.put_some("pre_dnat", self.pre_dnat.then_some(true));
        match self.types {
            PolicyTypes::Both => {}
            PolicyTypes::Ingress => writer.put("types", json::texts(&["ingress"])),
            PolicyTypes::Egress => writer.put("types", json::texts(&["egress"])),
        }
        writer.bytes(&self.extra)
    }
}

/// Value of a tier's `metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TierMetadata {
    /// Order of the tier; `None` for last.
    pub order: Option<Order>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl TierMetadata {
    /// Parses a value.
    ///
    /// # Errors
    /// If `order` is not a number, null or `"default"`.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        Ok(Self { order: Order::take(&mut fields)?, extra: fields.rest() })
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put_some("order", self.order.map(Order::json));
        writer.bytes(&self.extra)
    }
}

/// A tier of Calico 3: its order, and its action for packets that none of its policies decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tier {
    /// Order of the tier; `None` for after all tiers that have one.
    pub order: Option<Order>,
    /// Action at the end of the tier.
    pub end: EndAction,
}

/// Action for packets that no policy of a tier decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum EndAction {
    /// Drop the packet; always in a v1 store.
    #[default]
    Deny,
    /// Continue with the next tier, and after the last one with the profiles.
    Pass,
}

impl EndAction {
    /// Returns `deny` or `pass`, as in the value of a tier.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Pass => "pass",
        }
    }
}

impl Tier {
    /// Parses a value.
    ///
    /// # Errors
    /// If a member is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let order = Order::take(&mut fields)?;
        let end = match fields.text("default_action")?.as_deref() {
            None | Some("" | "deny") => EndAction::Deny,
            Some("pass") => EndAction::Pass,
            Some(other) => {
                let found = format_args!("`{other}`");
                return Err(ValueError::new("default_action", found, "write \"deny\" or \"pass\""));
            }
        };
        Ok(Self { order, end })
    }

    /// Formats the value.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("order", self.order.map_or(Value::Null, Order::json));
        writer.put("default_action", self.end.as_str());
        writer.bytes(&Extra::default())
    }
}

/// Parses a profile's `tags`: a list of names.
pub(super) fn parse_tags(bytes: &[u8]) -> Result<Vec<String>, ValueError> {
    elements(value(bytes)?, |value| match value {
        Value::String(tag) => label_name(tag),
        other => Err(ValueError::json("", &other, "write a tag in double quotes")),
    })
}

/// Parses a profile's `labels`.
pub(super) fn parse_labels(bytes: &[u8]) -> Result<Labels, ValueError> {
    match value(bytes)? {
        Value::Null => Ok(Labels::new()),
        other => labels(other),
    }
}

pub(super) fn tags_to_value(tags: &[String]) -> Vec<u8> {
    json::texts(tags).to_string().into_bytes()
}

pub(super) fn labels_to_value(labels: &Labels) -> Vec<u8> {
    labels_json(labels).to_string().into_bytes()
}

/// Parses an object that is stored as it is, such as Tortie's own status, which its readers convert to a
/// type.
pub(super) fn parse_object(bytes: &[u8]) -> Result<Extra, ValueError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Extra(Map::new()));
    }
    Fields::parse(bytes).map(Fields::rest)
}
