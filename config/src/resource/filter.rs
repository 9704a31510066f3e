//! Filters: which routes a peer may send and is sent, and what is changed on the way.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;
use super::filter_match::FilterMatch;
use super::filter_set::{FilterSet, NextHopChange};
use super::json::{Extra, Fields, Writer, elements};
use super::peer_options::words;

/// Most rules of one list.
pub const RULES_MAX: usize = 1000;

/// The value of `filters/<name>`, global or of a host: rules for each direction. The first rule that matches and does
/// not say `next` decides; a rule with `next` changes the route, and those behind it see the changed one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Rules for routes from the peer; `None`: this filter says nothing about them.
    pub import: Option<Vec<FilterRule>>,
    /// Rules for routes to the peer; `None`: this filter says nothing about them.
    pub export: Option<Vec<FilterRule>>,
    /// What a direction that has rules says when none of them decided.
    pub default: FilterDefault,
    /// Fields that are not named here.
    pub extra: Extra,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterRule {
    /// Shown in explanations; empty: none.
    pub name: String,
    /// Which routes.
    pub matches: FilterMatch,
    /// What is changed of them.
    pub set: FilterSet,
    /// What becomes of them.
    pub then: FilterThen,
}

words! {
    /// What becomes of a route that a rule matches.
    FilterThen: "write \"accept\", \"reject\" or \"next\"" {
        /// It passes, and no other filter is asked.
        Accept = "accept",
        /// It does not.
        Reject = "reject",
        /// The next rule is asked.
        Next = "next",
    }
}

words! {
    /// What a filter says when no rule decided.
    FilterDefault: "write \"accept\", \"reject\" or \"continue\"" {
        /// The route passes, and no other filter is asked.
        Accept = "accept",
        /// It does not.
        Reject = "reject",
        /// The next filter is asked; behind the last one it is as if there were no filters.
        Continue = "continue",
    }
}

impl Filter {
    /// Reads a filter.
    ///
    /// # Errors
    /// The first field that cannot be read, by its path.
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

    /// The newest form.
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
        // A misspelt `match` would match everything.
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
