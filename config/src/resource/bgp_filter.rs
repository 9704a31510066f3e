//! Filters of Calico 3 (`BGPFilter`): rules on routes from and to a peer, per family. They differ from
//! [`Filter`](super::Filter): a route that no rule matches goes on to the next filter, every match that is
//! given must hold, and only a rule that accepts has operations.
//!
//! A value with an unknown match or operation cannot be parsed as a whole: a rule without one of its matches
//! would match more routes than it was written for.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::advertisement::Community;
use super::filter_match::PrefixRange;
use super::json::{Extra, Fields, Writer};
use super::peer_options::words;
use super::{Asn, RULES_MAX, ValueError};
use crate::key::IpFamily;
use tortie_net::Cidr;

/// Greatest route priority (metric): LOCAL_PREF is this value minus the priority.
pub const PRIORITY_MAX: u32 = 2_147_483_647;
/// Maximum number of operations of a rule.
const OPERATIONS_MAX: usize = 10;

/// A filter of Calico 3.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BgpFilter {
    /// Rules for routes from the peer: those of IPv4, then those of IPv6.
    pub import: Vec<BgpFilterRule>,
    /// Rules for routes to the peer: those of IPv4, then those of IPv6.
    pub export: Vec<BgpFilterRule>,
    /// The value as it is stored.
    spec: Extra,
}

/// A rule of a [`BgpFilter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BgpFilterRule {
    /// Name of the list (`exportV4`) and number of the rule in it, from 1.
    pub place: (&'static str, usize),
    /// Address family that the rule is for.
    pub family: IpFamily,
    /// Result for routes that match.
    pub action: BgpFilterAction,
    /// Condition on the prefix.
    pub prefix: Option<PrefixCondition>,
    /// The route was received from a BGP peer (`source` is `RemotePeers`).
    pub learned: bool,
    /// Condition on the interface of the route.
    pub interface: Option<InterfacePattern>,
    /// Type of the session.
    pub peer_type: Option<BgpPeerType>,
    /// Community that the route has.
    pub community: Option<Community>,
    /// AS numbers that the AS_PATH begins with.
    pub as_path_prefix: Vec<Asn>,
    /// Priority (metric) of the route.
    pub priority: Option<u32>,
    /// Changes of an accepted route, in order.
    pub operations: Vec<BgpFilterOperation>,
}

words! {
    /// Result of a rule.
    BgpFilterAction: "write \"Accept\" or \"Reject\"" {
        /// Accept the route; no other filter and no export gate is evaluated.
        Accept = "Accept",
        /// Reject the route.
        Reject = "Reject",
    }
}

words! {
    /// Type of a session.
    BgpPeerType: "write \"eBGP\" or \"iBGP\"" {
        /// The peer is in another AS.
        Ebgp = "eBGP",
        /// The peer is in the local AS.
        Ibgp = "iBGP",
    }
}

/// Condition on the prefix of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixCondition {
    /// Range of prefixes.
    pub range: PrefixRange,
    /// True if the prefix must be outside of the range.
    pub negated: bool,
}

impl PrefixCondition {
    /// Returns true if the prefix meets the condition.
    #[must_use]
    pub fn matches(&self, prefix: &Cidr) -> bool {
        self.range.matches(prefix) != self.negated
    }
}

/// Pattern of interface names: `*` stands for any text, `?` for one character.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InterfacePattern(String);

impl InterfacePattern {
    /// Returns the pattern as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the pattern matches the whole name. The cost is at most the product of the lengths.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut of_name) = (0, 0);
        // Position after the last `*`, and the end of the text that it stands for.
        let mut star: Option<(usize, usize)> = None;
        while of_name < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at + 1, of_name));
                    at += 1;
                }
                Some(byte) if *byte == b'?' || Some(byte) == name.get(of_name) => {
                    at += 1;
                    of_name += 1;
                }
                _ => {
                    let Some((after, end)) = star else { return false };
                    star = Some((after, end + 1));
                    (at, of_name) = (after, end + 1);
                }
            }
        }
        pattern.iter().skip(at).all(|byte| *byte == b'*')
    }
}

impl FromStr for InterfacePattern {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let valid = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '/');
        if valid { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

/// Change of an accepted route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BgpFilterOperation {
    /// Adds a community.
    AddCommunity(Community),
    /// Prepends these AS numbers; the first of them becomes the first of the AS_PATH.
    PrependAsPath(Vec<Asn>),
    /// Sets the priority (metric), and LOCAL_PREF with it.
    SetPriority(u32),
}

impl BgpFilter {
    /// Parses the `spec` of a `BGPFilter`.
    ///
    /// # Errors
    /// The first malformed or unknown member, with its path.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let spec: Value = super::json::value(bytes)?;
        let mut both = |v4, v6| -> Result<Vec<BgpFilterRule>, ValueError> {
            let mut rules = list(&mut fields, v4, IpFamily::V4)?;
            rules.append(&mut list(&mut fields, v6, IpFamily::V6)?);
            Ok(rules)
        };
        let (import, export) = (both("importV4", "importV6")?, both("exportV4", "exportV6")?);
        let spec = match spec {
            Value::Object(members) => Extra(members),
            _ => Extra::default(),
        };
        Ok(Self { import, export, spec })
    }

    /// Formats the value as it was parsed.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        Writer::default().bytes(&self.spec)
    }
}

fn list(fields: &mut Fields, name: &'static str, family: IpFamily) -> Result<Vec<BgpFilterRule>, ValueError> {
    let mut number = 0;
    let rules = fields.list(name, |value| {
        number += 1;
        BgpFilterRule::parse(value, (name, number), family)
    })?;
    if rules.len() > RULES_MAX {
        let found = format!("{} rules", rules.len());
        return Err(ValueError::new(name, found, format!("write at most {RULES_MAX}")));
    }
    Ok(rules)
}

impl BgpFilterRule {
    fn parse(value: Value, place: (&'static str, usize), family: IpFamily) -> Result<Self, ValueError> {
        const INTERFACE: &str = "write an interface name, in which `*` stands for any text";
        let mut fields = Fields::of(value)?;
        let action: BgpFilterAction = fields
            .parsed("action", BgpFilterAction::EXPECTED)?
            .ok_or_else(|| ValueError::missing("action", BgpFilterAction::EXPECTED))?;
        let this = Self {
            place,
            family,
            action,
            prefix: prefix(&mut fields, family)?,
            learned: match fields.text("source")?.as_deref() {
                None | Some("") => false,
                Some("RemotePeers") => true,
                Some(other) => {
                    return Err(ValueError::new(
                        "source",
                        format_args!("`{other}`"),
                        "write \"RemotePeers\"",
                    ));
                }
            },
            interface: fields.parsed("interface", INTERFACE)?,
            peer_type: fields.parsed("peerType", BgpPeerType::EXPECTED)?,
            community: match fields.take("communities") {
                None => None,
                Some(value) => Some(community(value).map_err(|error| error.within("communities"))?),
            },
            as_path_prefix: fields.list("asPathPrefix", |value| Asn::from_json(&value))?,
            priority: fields.number("priority", 0, PRIORITY_MAX.into())?,
            operations: fields.list("operations", operation)?,
        };
        fields.deny_unknown("this match is unknown, and a rule without it would match more routes")?;
        if this.operations.len() > OPERATIONS_MAX {
            let found = format!("{} operations", this.operations.len());
            return Err(ValueError::new("operations", found, format!("write at most {OPERATIONS_MAX}")));
        }
        if action == BgpFilterAction::Reject && !this.operations.is_empty() {
            return Err(ValueError::new("operations", "operations on a rejected route", "leave them out"));
        }
        Ok(this)
    }
}

fn prefix(fields: &mut Fields, family: IpFamily) -> Result<Option<PrefixCondition>, ValueError> {
    const CIDR: &str = "write ADDRESS/LENGTH of the family of the list";
    const OPERATOR: &str = "write \"Equal\", \"NotEqual\", \"In\" or \"NotIn\"";
    let cidr: Option<Cidr> = fields.parsed("cidr", CIDR)?;
    // Whether only `cidr` itself matches, and whether the condition is negated.
    let operator = match fields.text("matchOperator")?.as_deref() {
        None | Some("") => None,
        Some("Equal") => Some((true, false)),
        Some("NotEqual") => Some((true, true)),
        Some("In") => Some((false, false)),
        Some("NotIn") => Some((false, true)),
        Some(other) => return Err(ValueError::new("matchOperator", format_args!("`{other}`"), OPERATOR)),
    };
    let lengths = fields.take("prefixLength");
    let (cidr, (exact, negated)) = match (cidr, operator) {
        (Some(cidr), Some(operator)) => (cidr, operator),
        (Some(_), None) => return Err(ValueError::missing("matchOperator", OPERATOR)),
        (None, Some(_)) => return Err(ValueError::missing("cidr", CIDR)),
        (None, None) if lengths.is_some() => return Err(ValueError::missing("cidr", CIDR)),
        (None, None) => return Ok(None),
    };
    if IpFamily::of_cidr(&cidr) != family {
        return Err(ValueError::new("cidr", format_args!("`{cidr}`"), CIDR));
    }
    let (mut ge, mut le) = (cidr.len(), if exact { cidr.len() } else { cidr.max_len() });
    if let Some(value) = lengths {
        let mut fields = Fields::of(value).map_err(|error| error.within("prefixLength"))?;
        let most = u64::from(cidr.max_len());
        let mut limit = |name| fields.number::<u8>(name, 0, most);
        let (min, max) = limit("min")
            .and_then(|min| Ok((min, limit("max")?)))
            .map_err(|error| error.within("prefixLength"))?;
        (ge, le) = (min.unwrap_or(0).max(cidr.len()), max.unwrap_or(cidr.max_len()));
        let known = fields.deny_unknown("a range of lengths has min and max");
        known.map_err(|error| error.within("prefixLength"))?;
        if ge > le {
            let found = format!("no length between {ge} and {le}");
            return Err(ValueError::new("prefixLength", found, "write a max that is not less than min"));
        }
    }
    Ok(Some(PrefixCondition { range: PrefixRange { cidr, ge, le }, negated }))
}

fn community(value: Value) -> Result<Community, ValueError> {
    let mut fields = Fields::of(value)?;
    let values: Vec<Community> = fields.parsed_list("values", "write a community, 65000:100")?;
    fields.deny_unknown("communities has values")?;
    match values.as_slice() {
        [one] => Ok(*one),
        other => {
            let found = format!("{} communities", other.len());
            Err(ValueError::new("values", found, "write exactly one community"))
        }
    }
}

fn operation(value: Value) -> Result<BgpFilterOperation, ValueError> {
    const EXPECTED: &str = "write exactly one of addCommunity, prependASPath and setPriority";
    let mut fields = Fields::of(value)?;
    let (community, path, priority) =
        (fields.take("addCommunity"), fields.take("prependASPath"), fields.take("setPriority"));
    fields.deny_unknown(EXPECTED)?;
    match (community, path, priority) {
        (Some(value), None, None) => member(value, "addCommunity", |fields| {
            let value: Option<Community> = fields.parsed("value", "write a community, 65000:100")?;
            let value = value.ok_or_else(|| ValueError::missing("value", "write a community, 65000:100"))?;
            Ok(BgpFilterOperation::AddCommunity(value))
        }),
        (None, Some(value), None) => member(value, "prependASPath", |fields| {
            let path = fields.list("prefix", |value| Asn::from_json(&value))?;
            if path.is_empty() {
                return Err(ValueError::missing("prefix", super::asn::EXPECTED));
            }
            Ok(BgpFilterOperation::PrependAsPath(path))
        }),
        (None, None, Some(value)) => member(value, "setPriority", |fields| {
            let expected = "write a priority from 1 to 2147483646";
            let value = fields.number("value", 0, PRIORITY_MAX.into())?;
            Ok(BgpFilterOperation::SetPriority(value.ok_or_else(|| ValueError::missing("value", expected))?))
        }),
        _ => Err(ValueError::new("", "none or several operations", EXPECTED)),
    }
}

fn member(
    value: Value,
    name: &str,
    parse: impl FnOnce(&mut Fields) -> Result<BgpFilterOperation, ValueError>,
) -> Result<BgpFilterOperation, ValueError> {
    let parse = |value| {
        let mut fields = Fields::of(value)?;
        let operation = parse(&mut fields)?;
        fields.deny_unknown("leave it out")?;
        Ok(operation)
    };
    parse(value).map_err(|error: ValueError| error.within(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names() {
        let table = [
            ("*.calico", "vxlan.calico", true),
            ("*.calico", "calico", false),
            ("*.calico", "vxlan.calico2", false),
            ("cali*", "cali", true),
            ("cali*", "eth0", false),
            ("eth?", "eth1", true),
            ("eth?", "eth10", false),
            ("*", "x", true),
            ("*a*b", "xaayb", true),
            ("*a*b", "xaayc", false),
            ("eth0", "eth0", true),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(
                pattern.parse::<InterfacePattern>().unwrap().matches(name),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn ranges_of_lengths_replace_that_of_the_operator() {
        let range = |text: &str| {
            let filter = BgpFilter::parse(format!(r#"{{"exportV4":[{text}]}}"#).as_bytes()).unwrap();
            let found = filter.export[0].prefix.unwrap();
            (found.range.ge, found.range.le, found.negated)
        };
        let rule = |operator: &str, lengths: &str| {
            format!(r#"{{"action":"Accept","cidr":"10.0.0.0/16","matchOperator":"{operator}"{lengths}}}"#)
        };
        assert_eq!(range(&rule("Equal", "")), (16, 16, false));
        assert_eq!(range(&rule("NotEqual", "")), (16, 16, true));
        assert_eq!(range(&rule("In", "")), (16, 32, false));
        assert_eq!(range(&rule("NotIn", "")), (16, 32, true));
        assert_eq!(range(&rule("In", r#","prefixLength":{"min":8}"#)), (16, 32, false));
        assert_eq!(range(&rule("In", r#","prefixLength":{"min":24,"max":26}"#)), (24, 26, false));
        assert_eq!(range(&rule("NotIn", r#","prefixLength":{"max":26}"#)), (16, 26, true));
    }

    #[test]
    fn what_would_widen_a_rule_is_an_error() {
        for rule in [
            r#"{"action":"Accept","cidr":"10.0.0.0/8"}"#,
            r#"{"action":"Accept","matchOperator":"In"}"#,
            r#"{"action":"Accept","cidr":"fd00::/8","matchOperator":"In"}"#,
            r#"{"action":"Accept","prefixLength":{"min":8}}"#,
            r#"{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":25,"max":24}}"#,
            r#"{"action":"Accept","source":"Elsewhere"}"#,
            r#"{"action":"Accept","peerType":"eigrp"}"#,
            r#"{"action":"Accept","communities":{"values":[]}}"#,
            r#"{"action":"Accept","communities":{"values":["65000:1","65000:2"]}}"#,
            r#"{"action":"Accept","newMatch":1}"#,
            r#"{"action":"Reject","operations":[{"setPriority":{"value":1}}]}"#,
            r#"{"action":"Accept","operations":[{}]}"#,
            r#"{"action":"Pass"}"#,
            r"{}",
        ] {
            let value = format!(r#"{{"importV4":[{rule}]}}"#);
            assert!(BgpFilter::parse(value.as_bytes()).is_err(), "{rule}");
        }
    }

    #[test]
    fn a_value_is_written_as_it_was_read() {
        let value = r#"{"importV6":[{"action":"Accept","peerType":"iBGP","asPathPrefix":[65001,"1.10"],"operations":[{"prependASPath":{"prefix":[65001]}},{"addCommunity":{"value":"65000:1:2"}},{"setPriority":{"value":512}}]}],"later":{}}"#;
        let filter = BgpFilter::parse(value.as_bytes()).unwrap();
        assert_eq!(filter.import[0].place, ("importV6", 1));
        assert_eq!(filter.import[0].operations.len(), 3);
        assert_eq!(filter.to_value(), value.as_bytes());
    }
}
