//! Changes that a filter rule makes to a route.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde_json::Value;

use super::filter_community::{CommunityKind, CommunityPattern};
use super::json::{Fields, Writer, elements, parsed, texts};
use super::{Asn, ValueError};

/// Maximum number of prepends per rule.
pub const PREPEND_MAX: u8 = 32;
/// Maximum number of communities in a list.
const LIST_MAX: usize = 1000;

/// Changes that a rule makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilterSet {
    /// New LOCAL_PREF.
    pub local_pref: Option<u32>,
    /// Change of MULTI_EXIT_DISC.
    pub med: Option<MedChange>,
    /// Prepends to the AS path.
    pub prepend: Option<Prepend>,
    /// New next hop.
    pub next_hop: Option<NextHopChange>,
    /// Change of communities (RFC 1997).
    pub communities: CommunityChange<u32>,
    /// Change of large communities (RFC 8092).
    pub large: CommunityChange<[u32; 3]>,
    /// Change of extended communities (RFC 4360).
    pub extended: CommunityChange<[u8; 8]>,
}

/// Change of MULTI_EXIT_DISC. A missing value counts as 0, and results saturate at 0 and 2^32 - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MedChange {
    /// Sets this value.
    Set(u32),
    /// Adds this value.
    Add(u32),
    /// Subtracts this value.
    Subtract(u32),
    /// Removes the attribute.
    Remove,
}

impl MedChange {
    const EXPECTED: &'static str = "write a number up to 4294967295, \"+10\", \"-10\" or \"none\"";

    fn parse(value: &Value) -> Option<Self> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            if digits { text.parse().ok() } else { None }
        };
        match value {
            Value::Number(n) => Some(Self::Set(u32::try_from(n.as_u64()?).ok()?)),
            Value::String(text) if text == "none" => Some(Self::Remove),
            Value::String(text) => {
                if let Some(by) = text.strip_prefix('+') {
                    number(by).map(Self::Add)
                } else if let Some(by) = text.strip_prefix('-') {
                    number(by).map(Self::Subtract)
                } else {
                    number(text).map(Self::Set)
                }
            }
            _ => None,
        }
    }

    fn json(self) -> Value {
        match self {
            Self::Set(med) => med.into(),
            Self::Add(by) => format!("+{by}").into(),
            Self::Subtract(by) => format!("-{by}").into(),
            Self::Remove => "none".into(),
        }
    }
}

/// AS path prepending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prepend {
    /// AS number to prepend; `None` for the local one on export, the peer's on import, and none on iBGP
    /// sessions.
    pub asn: Option<Asn>,
    /// Number of repetitions, 1 to [`PREPEND_MAX`].
    pub count: u8,
}

impl Prepend {
    fn parse(value: Value) -> Result<Self, ValueError> {
        let expected = "write a number from 1 to 32, or {\"as\": 65001, \"count\": 2}";
        let count = |number: u64| u8::try_from(number).ok().filter(|n| (1..=PREPEND_MAX).contains(n));
        match &value {
            Value::Number(number) => number
                .as_u64()
                .and_then(count)
                .map(|count| Self { asn: None, count })
                .ok_or_else(|| ValueError::json("", &value, expected)),
            Value::Object(_) => {
                let mut fields = Fields::of(value)?;
                let asn = match fields.take("as") {
                    None => None,
                    Some(value) => Some(Asn::from_json(&value).map_err(|error| error.within("as"))?),
                };
                let count = fields.number("count", 1, u64::from(PREPEND_MAX))?.unwrap_or(1);
                fields.deny_unknown(expected)?;
                Ok(Self { asn, count })
            }
            other => Err(ValueError::json("", other, expected)),
        }
    }

    fn json(self) -> Value {
        let Some(asn) = self.asn else { return self.count.into() };
        let mut writer = Writer::default();
        writer.put("as", asn.get());
        writer.put("count", self.count);
        writer.object(&super::Extra::default())
    }
}

/// New next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NextHopChange {
    /// Address of this host; on export only.
    Own,
    /// This address, which must be of the route's family.
    Address(IpAddr),
}

impl NextHopChange {
    const EXPECTED: &'static str = "write \"self\" or an address that one host can have";
}

impl FromStr for NextHopChange {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "self" {
            return Ok(Self::Own);
        }
        let address: IpAddr = text.parse().map_err(|_| ())?;
        // Rejects addresses that a peer would refuse (RFC 4271, section 6.3), and link-local ones, which are
        // meaningless in a store.
        let unusable = address.is_unspecified()
            || address.is_loopback()
            || address.is_multicast()
            || match address {
                IpAddr::V4(v4) => v4.octets().first().is_some_and(|first| *first == 0 || *first >= 240),
                IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
            };
        if unusable { Err(()) } else { Ok(Self::Address(address)) }
    }
}

impl fmt::Display for NextHopChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("self"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// Change of the communities of one kind: first `remove`, then `add`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommunityChange<T> {
    /// Patterns of communities to remove.
    pub remove: Vec<CommunityPattern<T>>,
    /// Communities to add.
    pub add: Vec<T>,
}

impl<T> Default for CommunityChange<T> {
    fn default() -> Self {
        Self { remove: Vec::new(), add: Vec::new() }
    }
}

impl<T: CommunityKind> CommunityChange<T> {
    /// Returns true if nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    fn take(fields: &mut Fields, name: &str) -> Result<Self, ValueError> {
        match fields.take(name) {
            None => Ok(Self::default()),
            Some(value) => Fields::of(value).and_then(Self::parse).map_err(|error| error.within(name)),
        }
    }

    fn parse(mut fields: Fields) -> Result<Self, ValueError> {
        let exact = |value: Value| {
            let pattern: CommunityPattern<T> = parsed(&value, T::EXPECTED)?;
            let expected = "write a whole community: wildcards can only be removed";
            pattern.single().ok_or_else(|| ValueError::json("", &value, expected))
        };
        let replace = fields.has("replace");
        let replaced = list(&mut fields, "replace", exact)?;
        if replace {
            fields.deny_unknown("replace stands alone: leave add and remove out")?;
            return Ok(Self { remove: vec![CommunityPattern::ALL], add: replaced });
        }
        let remove = list(&mut fields, "remove", |value| parsed(&value, T::EXPECTED))?;
        let add = list(&mut fields, "add", exact)?;
        fields.deny_unknown("write add, remove or replace")?;
        Ok(Self { remove, add })
    }

    fn put(&self, writer: &mut Writer, name: &str) {
        if self.is_empty() {
            return;
        }
        let exact: Vec<_> = self.add.iter().map(|c| CommunityPattern::exactly(*c)).collect();
        let mut own = Writer::default();
        if self.remove == [CommunityPattern::ALL] {
            own.put("replace", texts(&exact));
        } else {
            own.put_list("remove", &self.remove);
            own.put_list("add", &exact);
        }
        writer.put(name, own.object(&super::Extra::default()));
    }
}

fn list<T>(
    fields: &mut Fields,
    name: &str,
    element: impl FnMut(Value) -> Result<T, ValueError>,
) -> Result<Vec<T>, ValueError> {
    let Some(value) = fields.take(name) else { return Ok(Vec::new()) };
    let list = elements(value, element).map_err(|error| error.within(name))?;
    if list.len() > LIST_MAX {
        let found = format!("{} communities", list.len());
        return Err(ValueError::new(name, found, format!("write at most {LIST_MAX}")));
    }
    Ok(list)
}

impl FilterSet {
    /// Returns true if nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn parse(value: Value) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value)?;
        let this = Self {
            local_pref: fields.number("local_pref", 0, u64::from(u32::MAX))?,
            med: match fields.take("med") {
                None => None,
                Some(value) => {
                    let med = MedChange::parse(&value);
                    Some(med.ok_or_else(|| ValueError::json("med", &value, MedChange::EXPECTED))?)
                }
            },
            prepend: match fields.take("prepend") {
                None => None,
                Some(value) => Some(Prepend::parse(value).map_err(|error| error.within("prepend"))?),
            },
            next_hop: match fields.take("next_hop") {
                None => None,
                Some(value) => {
                    let hop = parsed(&value, NextHopChange::EXPECTED);
                    Some(hop.map_err(|error| error.within("next_hop"))?)
                }
            },
            communities: CommunityChange::take(&mut fields, "communities")?,
            large: CommunityChange::take(&mut fields, "large_communities")?,
            extended: CommunityChange::take(&mut fields, "ext_communities")?,
        };
        let expected = "a set has local_pref, med, prepend, next_hop, communities, large_communities and \
                        ext_communities";
        fields.deny_unknown(expected)?;
        Ok(this)
    }

    pub(super) fn json(&self) -> Value {
        let mut writer = Writer::default();
        writer.put_some("local_pref", self.local_pref);
        writer.put_some("med", self.med.map(MedChange::json));
        writer.put_some("prepend", self.prepend.map(Prepend::json));
        writer.put_text("next_hop", self.next_hop.as_ref());
        self.communities.put(&mut writer, "communities");
        self.large.put(&mut writer, "large_communities");
        self.extended.put(&mut writer, "ext_communities");
        writer.object(&super::Extra::default())
    }
}
