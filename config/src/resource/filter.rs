//! Route filters: conditions and changes for routes from and to a peer.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;
use super::filter_match::FilterMatch;
use super::filter_set::{FilterSet, NextHopChange};
use super::json::{Extra, Fields, Writer, elements};
use super::peer_options::words;

/// Maximum number of rules in a list.
pub const RULES_MAX: usize = 1000;

/// Value of `filters/<name>`, global or of a host: a list of rules per direction. The first matching rule
/// without `next` decides. A rule with `next` changes the route, and later rules see the changed route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Rules for routes from the peer; `None` if the filter does not apply to them.
    pub import: Option<Vec<FilterRule>>,
    /// Rules for routes to the peer; `None` if the filter does not apply to them.
    pub export: Option<Vec<FilterRule>>,
    /// Result of a direction with rules if none of them decides.
    pub default: FilterDefault,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

/// A rule of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterRule {
    /// Name for explanations; may be empty.
    pub name: String,
    /// Conditions on the route.
    pub matches: FilterMatch,
    /// Changes of the route.
    pub set: FilterSet,
    /// Result for routes that match.
    pub then: FilterThen,
}

words! {
    /// Result of a rule for matching routes.
    FilterThen: "write \"accept\", \"reject\" or \"next\"" {
        /// Accept the route; no other filter is evaluated.
        Accept = "accept",
        /// Reject the route.
        Reject = "reject",
        /// Continue with the next rule.
        Next = "next",
    }
}

words! {
    /// Result of a filter if no rule decides.
    FilterDefault: "write \"accept\", \"reject\" or \"continue\"" {
        /// Accept the route; no other filter is evaluated.
        Accept = "accept",
        /// Reject the route.
        Reject = "reject",
        /// Continue with the next filter; after the last one the result is the same as without filters.
        Continue = "continue",
    }
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// The first malformed field, with its path.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let import = rules(&mut fields, "import")?;
        let export = rules(&mut fields, "export")?;
        for (n, rule) in import.iter().flatten().enumerate() {
            if rule.set.next_hop == Some(NextHopChange::Own) {
                let expected = "a route through this host itself leads nowhere: write an address";
                return Err(ValueError::new(format!("import[{n}].set.next_hop"), "`self`", expected));
            }
        }
        let default = fields.parsed("default", FilterDefault::EXPECTED)?.unwrap_or(FilterDefault::Continue);
        Ok(Self { import, export, default, extra: fields.rest() })
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let list = |rules: &Vec<FilterRule>| Value::Array(rules.iter().map(FilterRule::json).collect());
        let mut writer = Writer::default();
        writer.put_some("import", self.import.as_ref().map(list));
        writer.put_some("export", self.export.as_ref().map(list));
        writer.put("default", self.default.as_str());
        writer.bytes(&self.extra)
    }
}

fn rules(fields: &mut Fields, name: &str) -> Result<Option<Vec<FilterRule>>, ValueError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let rules = elements(value, FilterRule::parse).map_err(|error| error.within(name))?;
    if rules.len() > RULES_MAX {
        let found = format!("{} rules", rules.len());
        return Err(ValueError::new(name, found, format!("write at most {RULES_MAX}")));
    }
    Ok(Some(rules))
}

impl FilterRule {
    fn parse(value: Value) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value)?;
        let this = Self {
            name: fields.text("name")?.unwrap_or_default(),
            matches: match fields.take("match") {
                None => FilterMatch::default(),
                Some(value) => FilterMatch::parse(value).map_err(|error| error.within("match"))?,
            },
            set: match fields.take("set") {
                None => FilterSet::default(),
                Some(value) => FilterSet::parse(value).map_err(|error| error.within("set"))?,
            },
            then: fields
                .parsed("then", FilterThen::EXPECTED)?
                .ok_or_else(|| ValueError::missing("then", FilterThen::EXPECTED))?,
        };
        // A rule with misspelt `match` would match all routes.
        fields.deny_unknown("a rule has name, match, set and then")?;
        if this.then == FilterThen::Reject && !this.set.is_empty() {
            return Err(ValueError::new("set", "changes of a rejected route", "leave it out"));
        }
        Ok(this)
    }

    fn json(&self) -> Value {
        let mut writer = Writer::default();
        writer.put_some("name", Some(self.name.clone()).filter(|name| !name.is_empty()));
        if self.matches != FilterMatch::default() {
            writer.put("match", self.matches.json());
        }
        if !self.set.is_empty() {
            writer.put("set", self.set.json());
        }
        writer.put("then", self.then.as_str());
        writer.object(&Extra::default())
    }
}
