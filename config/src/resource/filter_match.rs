//! Conditions of a filter rule on a route.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::filter_community::{CommunityKind, CommunityPattern};
use super::json::{Fields, Writer, elements, parsed, texts};
use super::peer_options::{Role, words};
use super::{Asn, ValueError, asn};
use crate::key::IpFamily;
use tortie_net::Cidr;

/// Maximum number of elements in a list that is searched linearly.
const LIST_MAX: usize = 1000;
/// Maximum number of prefixes in a rule.
const PREFIXES_MAX: usize = 100_000;

/// Conditions of a rule, all of which must hold. A rule without conditions matches every route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilterMatch {
    /// Address family of the prefix.
    pub family: Option<IpFamily>,
    /// Prefix ranges of which one must contain the prefix.
    pub prefixes: Vec<PrefixRange>,
    /// Condition on communities (RFC 1997).
    pub communities: CommunityMatch<u32>,
    /// Condition on large communities (RFC 8092).
    pub large: CommunityMatch<[u32; 3]>,
    /// Condition on extended communities (RFC 4360).
    pub extended: CommunityMatch<[u8; 8]>,
    /// Condition on the AS path.
    pub path: PathMatch,
    /// Prefixes of which one must contain the next hop; routes of this host have no next hop.
    pub next_hop: Vec<Cidr>,
    /// Allowed origins of the route.
    pub source: Vec<RouteSource>,
    /// Names of the peers that may have announced the route.
    pub peer: Vec<String>,
    /// Allowed local roles (RFC 9234) on the session that the route was received on.
    pub role: Vec<Role>,
}

/// A prefix with a range of prefix lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixRange {
    /// Prefix that must equal or cover the route's prefix.
    pub cidr: Cidr,
    /// Minimum prefix length.
    pub ge: u8,
    /// Maximum prefix length, at least `ge`.
    pub le: u8,
}

impl PrefixRange {
    /// Returns true if the range contains the prefix.
    #[must_use]
    pub fn matches(&self, prefix: &Cidr) -> bool {
        (self.ge..=self.le).contains(&prefix.len()) && self.cidr.covers(prefix)
    }

    fn parse(value: Value) -> Result<Self, ValueError> {
        const EXPECTED: &str = "write ADDRESS/LENGTH without host bits";
        let cidr = |text: &str| {
            Cidr::parse_strict(text).map_err(|_| ValueError::new("", format_args!("`{text}`"), EXPECTED))
        };
        let mut fields = match value {
            Value::String(text) => {
                let cidr = cidr(&text)?;
                return Ok(Self { cidr, ge: cidr.len(), le: cidr.len() });
            }
            Value::Object(_) => Fields::of(value)?,
            other => {
                let expected = "write \"10.0.0.0/8\" or {\"cidr\": \"10.0.0.0/8\", \"ge\": 16, \"le\": 24}";
                return Err(ValueError::json("", &other, expected));
            }
        };
        let text = fields.text("cidr")?.ok_or_else(|| ValueError::missing("cidr", EXPECTED))?;
        let cidr = cidr(&text).map_err(|error| error.within("cidr"))?;
        let (least, most) = (u64::from(cidr.len()), u64::from(cidr.max_len()));
        let ge: Option<u8> = fields.number("ge", least, most)?;
        let le: Option<u8> = fields.number("le", ge.map_or(least, u64::from), most)?;
        fields.deny_unknown("a prefix has cidr, ge and le")?;
        let (from, to) = match (ge, le) {
            (None, None) => (cidr.len(), cidr.len()),
            (None, Some(le)) => (cidr.len(), le),
            (Some(ge), le) => (ge, le.unwrap_or(cidr.max_len())),
        };
        Ok(Self { cidr, ge: from, le: to })
    }

    fn json(&self) -> Value {
        let len = self.cidr.len();
        if (self.ge, self.le) == (len, len) {
            return Value::String(self.cidr.to_string());
        }
        let mut writer = Writer::default();
        writer.put("cidr", self.cidr.to_string());
        writer.put_some("ge", Some(self.ge).filter(|ge| *ge != len));
        // Without `ge`, a missing `le` would mean an exact length.
        writer.put_some("le", Some(self.le).filter(|le| self.ge == len || *le != self.cidr.max_len()));
        writer.object(&super::Extra::default())
    }
}

/// Condition on the communities of one kind: at least one of `any` unless that is empty, all of `all`, and
/// none of `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommunityMatch<T> {
    /// Patterns of which at least one must match.
    pub any: Vec<CommunityPattern<T>>,
    /// Patterns of which each must match.
    pub all: Vec<CommunityPattern<T>>,
    /// Patterns of which none may match.
    pub none: Vec<CommunityPattern<T>>,
}

impl<T> Default for CommunityMatch<T> {
    fn default() -> Self {
        Self { any: Vec::new(), all: Vec::new(), none: Vec::new() }
    }
}

impl<T: CommunityKind> CommunityMatch<T> {
    /// Returns true if there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.all.is_empty() && self.none.is_empty()
    }

    /// Returns true if the communities meet the condition.
    #[must_use]
    pub fn matches(&self, communities: &[T]) -> bool {
        let has = |pattern: &CommunityPattern<T>| communities.iter().any(|c| pattern.matches(c));
        (self.any.is_empty() || self.any.iter().any(has))
            && self.all.iter().all(has)
            && !self.none.iter().any(has)
    }

    fn take(fields: &mut Fields, name: &str) -> Result<Self, ValueError> {
        match fields.take(name) {
            None => Ok(Self::default()),
            Some(value) => Self::parse(value).map_err(|error| error.within(name)),
        }
    }

    fn parse(value: Value) -> Result<Self, ValueError> {
        if value.is_array() {
            let any = elements(value, |value| parsed(&value, T::EXPECTED)).and_then(some)?;
            return Ok(Self { any, ..Self::default() });
        }
        let mut fields = Fields::of(value).map_err(|error| ValueError {
            expected: "write a list, or {\"any\": [...]}".to_owned(),
            ..error
        })?;
        let any = list(&mut fields, "any", |value| parsed(&value, T::EXPECTED))?;
        let all = list(&mut fields, "all", |value| parsed(&value, T::EXPECTED))?;
        let none = list(&mut fields, "none", |value| parsed(&value, T::EXPECTED))?;
        fields.deny_unknown("write any, all or none")?;
        let this = Self { any, all, none };
        if this.is_empty() {
            return Err(ValueError::new("", "nothing", "write any, all or none, or leave the field out"));
        }
        Ok(this)
    }

    fn put(&self, writer: &mut Writer, name: &str) {
        if self.is_empty() {
            return;
        }
        if self.all.is_empty() && self.none.is_empty() {
            writer.put_list(name, &self.any);
            return;
        }
        let mut own = Writer::default();
        own.put_list("any", &self.any);
        own.put_list("all", &self.all);
        own.put_list("none", &self.none);
        writer.put(name, own.object(&super::Extra::default()));
    }
}

/// Conditions on the AS path, all of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathMatch {
    /// Allowed values of the last (origin) AS. A path that is empty or ends with a set has none.
    pub origin: Vec<AsRange>,
    /// Allowed values of the first (neighbour) AS.
    pub neighbour: Vec<AsRange>,
    /// AS ranges of which one must occur anywhere in the path.
    pub contains: Vec<AsRange>,
    /// Minimum and maximum path length as the decision process counts it (a set counts as one).
    pub length: Option<(u16, u16)>,
    /// Patterns of which one must match the whole path.
    pub matches: Vec<PathPattern>,
}

impl PathMatch {
    /// Returns true if there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn take(fields: &mut Fields) -> Result<Self, ValueError> {
        match fields.take("as_path") {
            None => Ok(Self::default()),
            Some(value) => Fields::of(value).and_then(Self::parse).map_err(|error| error.within("as_path")),
        }
    }

    fn parse(mut fields: Fields) -> Result<Self, ValueError> {
        let this = Self {
            origin: list(&mut fields, "origin", AsRange::parse)?,
            neighbour: list(&mut fields, "neighbour", AsRange::parse)?,
            contains: list(&mut fields, "contains", AsRange::parse)?,
            length: match fields.take("length") {
                None => None,
                Some(value) => {
                    Some(Fields::of(value).and_then(lengths).map_err(|error| error.within("length"))?)
                }
            },
            matches: list(&mut fields, "matches", |value| parsed(&value, PathPattern::EXPECTED))?,
        };
        fields.deny_unknown("write origin, neighbour, contains, length or matches")?;
        if this.is_empty() {
            let expected = "write origin, neighbour, contains, length or matches, or leave as_path out";
            return Err(ValueError::new("", "nothing", expected));
        }
        Ok(this)
    }

    fn put(&self, writer: &mut Writer) {
        if self.is_empty() {
            return;
        }
        let mut own = Writer::default();
        own.put_list("origin", &self.origin);
        own.put_list("neighbour", &self.neighbour);
        own.put_list("contains", &self.contains);
        if let Some((ge, le)) = self.length {
            let mut length = Writer::default();
            length.put_some("ge", Some(ge).filter(|ge| *ge != 0 || le == u16::MAX));
            length.put_some("le", Some(le).filter(|le| *le != u16::MAX));
            own.put("length", length.object(&super::Extra::default()));
        }
        own.put_list("matches", &self.matches);
        writer.put("as_path", own.object(&super::Extra::default()));
    }
}

fn lengths(mut fields: Fields) -> Result<(u16, u16), ValueError> {
    let most = u64::from(u16::MAX);
    let ge: Option<u16> = fields.number("ge", 0, most)?;
    let le: Option<u16> = fields.number("le", ge.map_or(0, u64::from), most)?;
    fields.deny_unknown("write ge or le")?;
    if ge.is_none() && le.is_none() {
        return Err(ValueError::new("", "nothing", "write ge or le"));
    }
    Ok((ge.unwrap_or(0), le.unwrap_or(u16::MAX)))
}

/// A range of AS numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AsRange {
    /// First AS number.
    pub first: Asn,
    /// Last AS number, not less than the first.
    pub last: Asn,
}

impl AsRange {
    const EXPECTED: &'static str = "write an AS number, or a range such as \"64512-65534\"";

    /// Returns true if the range contains the AS number.
    #[must_use]
    pub fn contains(&self, asn: u32) -> bool {
        (self.first.get()..=self.last.get()).contains(&asn)
    }

    fn parse(value: Value) -> Result<Self, ValueError> {
        match &value {
            Value::String(_) => parsed(&value, Self::EXPECTED),
            _ => {
                let asn = Asn::from_json(&value)
                    .map_err(|error| ValueError { expected: Self::EXPECTED.to_owned(), ..error })?;
                Ok(Self { first: asn, last: asn })
            }
        }
    }
}

impl FromStr for AsRange {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse()?, last.parse()?);
        if first > last {
            return Err(ValueError::new("", format_args!("`{text}`"), asn::EXPECTED));
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for AsRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// A pattern for a whole AS path, from neighbour to origin: each element matches one AS, and `*` any number
/// of them.
///
/// It has no alternatives and no repetition other than `*`, so matching a path of n AS numbers with m
/// elements takes at most n x m steps, and backtracks only to the last `*`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathPattern(Vec<PathElement>);

/// Element of a [`PathPattern`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PathElement {
    /// `*`: any number of AS numbers, including none.
    Any,
    /// `?`: exactly one AS number.
    One,
    /// One AS number in this range.
    Of(AsRange),
}

/// Maximum number of elements in a pattern.
const ELEMENTS_MAX: usize = 64;

impl PathPattern {
    const EXPECTED: &'static str =
        "write up to 64 AS numbers, ranges, ? (one AS) and * (any number), such as \"64512 * 65001-65010\"";

    /// Returns the elements, never with two `*` in a row.
    #[must_use]
    pub fn elements(&self) -> &[PathElement] {
        &self.0
    }

    /// Returns true if the pattern matches the path.
    #[must_use]
    pub fn matches(&self, path: &[u32]) -> bool {
        let (mut at, mut element) = (0, 0);
        // Position of the last `*`, and the path index up to which it was extended.
        let mut back: Option<(usize, usize)> = None;
        while let Some(asn) = path.get(at) {
            let fits = match self.0.get(element) {
                Some(PathElement::Any) => {
                    back = Some((element, at));
                    element += 1;
                    continue;
                }
                Some(PathElement::One) => true,
                Some(PathElement::Of(range)) => range.contains(*asn),
                None => false,
            };
            if fits {
                (at, element) = (at + 1, element + 1);
            } else if let Some((star, from)) = back {
                back = Some((star, from + 1));
                (at, element) = (from + 1, star + 1);
            } else {
                return false;
            }
        }
        self.0.get(element..).unwrap_or_default().iter().all(|e| *e == PathElement::Any)
    }
}

impl FromStr for PathPattern {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut elements = Vec::new();
        for word in text.split_whitespace() {
            let element = match word {
                "*" => PathElement::Any,
                "?" => PathElement::One,
                word => PathElement::Of(word.parse()?),
            };
            if element != PathElement::Any || elements.last() != Some(&PathElement::Any) {
                elements.push(element);
            }
        }
        if elements.is_empty() || elements.len() > ELEMENTS_MAX {
            return Err(ValueError::new("", format_args!("`{text}`"), Self::EXPECTED));
        }
        Ok(Self(elements))
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, element) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str(" ")?;
            }
            match element {
                PathElement::Any => f.write_str("*")?,
                PathElement::One => f.write_str("?")?,
                PathElement::Of(range) => write!(f, "{range}")?,
            }
        }
        Ok(())
    }
}

words! {
    /// Origin of a route.
    RouteSource: "write \"local\", \"ibgp\" or \"ebgp\" (peers by name go into `peer`)" {
        /// Originated by this host.
        Local = "local",
        /// Received from a peer in the local AS.
        Ibgp = "ibgp",
        /// Received from a peer in another AS.
        Ebgp = "ebgp",
    }
}

impl FilterMatch {
    pub(super) fn parse(value: Value) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value)?;
        let fields = &mut fields;
        let this = Self {
            family: match fields.text("family")?.as_deref() {
                None => None,
                Some("ipv4") => Some(IpFamily::V4),
                Some("ipv6") => Some(IpFamily::V6),
                Some(other) => {
                    let found = format_args!("`{other}`");
                    return Err(ValueError::new("family", found, "write \"ipv4\" or \"ipv6\""));
                }
            },
            prefixes: at_most(fields, "prefixes", PREFIXES_MAX, PrefixRange::parse)?,
            communities: CommunityMatch::take(fields, "communities")?,
            large: CommunityMatch::take(fields, "large_communities")?,
            extended: CommunityMatch::take(fields, "ext_communities")?,
            path: PathMatch::take(fields)?,
            next_hop: list(fields, "next_hop", |v| parsed(&v, "write an address or ADDRESS/LENGTH"))?,
            source: list(fields, "source", |v| parsed(&v, RouteSource::EXPECTED))?,
            peer: list(fields, "peer", |value| match value {
                Value::String(text) if !text.is_empty() => Ok(text),
                other => {
                    Err(ValueError::json("", &other, "write a peer's name as `tortie bgp peers` shows it"))
                }
            })?,
            role: list(fields, "role", |v| parsed(&v, Role::EXPECTED))?,
        };
        let expected = "a match has family, prefixes, communities, large_communities, ext_communities, as_path, \
                        next_hop, source, peer and role";
        std::mem::take(fields).deny_unknown(expected)?;
        Ok(this)
    }

    pub(super) fn json(&self) -> Value {
        let mut writer = Writer::default();
        let family = self.family.map(|family| if family == IpFamily::V4 { "ipv4" } else { "ipv6" });
        writer.put_some("family", family);
        if !self.prefixes.is_empty() {
            writer.put("prefixes", Value::Array(self.prefixes.iter().map(PrefixRange::json).collect()));
        }
        self.communities.put(&mut writer, "communities");
        self.large.put(&mut writer, "large_communities");
        self.extended.put(&mut writer, "ext_communities");
        self.path.put(&mut writer);
        writer.put_list("next_hop", &self.next_hop);
        writer.put_list("source", &self.source);
        if !self.peer.is_empty() {
            writer.put("peer", texts(&self.peer));
        }
        writer.put_list("role", &self.role);
        writer.object(&super::Extra::default())
    }
}

/// Parses a list that must not be empty if it is given: an empty list could be meant as no condition or as a
/// condition that nothing meets.
fn list<T>(
    fields: &mut Fields,
    name: &str,
    element: impl FnMut(Value) -> Result<T, ValueError>,
) -> Result<Vec<T>, ValueError> {
    at_most(fields, name, LIST_MAX, element)
}

fn at_most<T>(
    fields: &mut Fields,
    name: &str,
    max: usize,
    element: impl FnMut(Value) -> Result<T, ValueError>,
) -> Result<Vec<T>, ValueError> {
    let Some(value) = fields.take(name) else { return Ok(Vec::new()) };
    let list = elements(value, element).and_then(some).map_err(|error| error.within(name))?;
    if list.len() > max {
        let found = format!("{} elements", list.len());
        return Err(ValueError::new(name, found, format!("write at most {max}")));
    }
    Ok(list)
}

fn some<T>(list: Vec<T>) -> Result<Vec<T>, ValueError> {
    if list.is_empty() {
        return Err(ValueError::new("", "an empty list", "write at least one, or leave the field out"));
    }
    Ok(list)
}
