//! Keys of lab files that have no effect on nodes made of namespaces. Their values are still checked against
//! containerlab's schema, so that an invalid file is rejected, but not kept.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, Visitor};

use super::raw::{Ordered, Scalar};

/// Deserializes a present value. An empty value after the colon is not valid for any type.
pub(super) fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Condition on a text value.
pub(super) trait Rule {
    const EXPECTED: &'static str;
    fn accepts(text: &str) -> bool;
}

/// A text that meets a condition.
#[derive(Debug, Clone)]
pub(super) struct Text<R>(PhantomData<R>);

impl<'de, R: Rule> Deserialize<'de> for Text<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextForm::<R>(PhantomData)).map(|_| Self(PhantomData))
    }
}

/// Visitor for texts, whose errors contain the position of the value. A value that YAML parses as number or
/// boolean is not a text.
struct TextForm<R>(PhantomData<R>);

impl<R: Rule> Visitor<'_> for TextForm<R> {
    type Value = String;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(R::EXPECTED)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        if R::accepts(text) {
            return Ok(text.to_owned());
        }
        Err(E::custom(format_args!("`{}` is not {}", text.escape_debug(), R::EXPECTED)))
    }
}

/// A list of at least `MIN` different texts.
#[derive(Debug, Clone)]
pub(super) struct Texts<R = Any, const MIN: usize = 0>(PhantomData<R>);

impl<'de, R: Rule, const MIN: usize> Deserialize<'de> for Texts<R, MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Item<R>(String, PhantomData<R>);
        impl<'de, R: Rule> Deserialize<'de> for Item<R> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = deserializer.deserialize_any(TextForm::<R>(PhantomData))?;
                Ok(Self(text, PhantomData))
            }
        }
        struct Form<R, const MIN: usize>(PhantomData<R>);
        impl<'de, R: Rule, const MIN: usize> Visitor<'de> for Form<R, MIN> {
            type Value = ();
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
                let mut all: BTreeSet<String> = BTreeSet::new();
                while let Some(Item::<R>(text, _)) = seq.next_element()? {
                    if !all.insert(text.clone()) {
                        return Err(de::Error::custom(format_args!(
                            "`{}` stands twice",
                            text.escape_debug()
                        )));
                    }
                }
                if all.len() < MIN {
                    return Err(de::Error::invalid_length(all.len(), &format!("at least {MIN}").as_str()));
                }
                Ok(())
            }
        }
        deserializer.deserialize_seq(Form::<R, MIN>(PhantomData)).map(|()| Self(PhantomData))
    }
}

/// Visitor for numbers with bounds; `WHOLE` excludes fractions.
struct NumberForm<const WHOLE: bool> {
    min: f64,
    max: f64,
}

impl<const WHOLE: bool> Visitor<'_> for NumberForm<WHOLE> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if WHOLE { "whole number" } else { "number" };
        match (self.min, self.max) {
            (min, max) if max < f64::MAX => write!(f, "a {kind} from {min} to {max}"),
            (min, _) if min > f64::MIN => write!(f, "a {kind} that is not less than {min}"),
            _ => write!(f, "a {kind}"),
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "compared with bounds that are exact")]
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<(), E> {
        let fits = (self.min..=self.max).contains(&(number as f64));
        if fits { Ok(()) } else { Err(E::invalid_value(de::Unexpected::Unsigned(number), &self)) }
    }
    #[expect(clippy::cast_precision_loss, reason = "compared with bounds that are exact")]
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<(), E> {
        let fits = (self.min..=self.max).contains(&(number as f64));
        if fits { Ok(()) } else { Err(E::invalid_value(de::Unexpected::Signed(number), &self)) }
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<(), E> {
        let fits = !WHOLE && (self.min..=self.max).contains(&number);
        if fits { Ok(()) } else { Err(E::invalid_value(de::Unexpected::Float(number), &self)) }
    }
}

/// An integer with bounds; a `MAX` of 0 means no upper bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole<const MIN: i32, const MAX: i32>;

impl<'de, const MIN: i32, const MAX: i32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let max = if MAX == 0 { f64::MAX } else { MAX.into() };
        deserializer.deserialize_any(NumberForm::<true> { min: MIN.into(), max }).map(|()| Self)
    }
}

/// A non-negative number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amount;

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberForm::<false> { min: 0.0, max: f64::MAX }).map(|()| Self)
    }
}

/// MTU of a network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mtu;

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberForm::<false> { min: 1.0, max: 65_535.0 }).map(|()| Self)
    }
}

/// Value of a label: a non-empty text or a non-negative number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Label;

impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl Visitor<'_> for Form {
            type Value = Label;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a number that is not negative")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Label, E> {
                if text.is_empty() {
                    Err(E::invalid_value(de::Unexpected::Str(text), &self))
                } else {
                    Ok(Label)
                }
            }
            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Label, E> {
                Ok(Label)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Label, E> {
                if number < 0 {
                    Err(E::invalid_value(de::Unexpected::Signed(number), &self))
                } else {
                    Ok(Label)
                }
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Label, E> {
                if number < 0.0 {
                    Err(E::invalid_value(de::Unexpected::Float(number), &self))
                } else {
                    Ok(Label)
                }
            }
        }
        deserializer.deserialize_any(Form)
    }
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $expected:literal, |$text:ident| $accepts:expr;)+) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub(super) struct $name;
        impl Rule for $name {
            const EXPECTED: &'static str = $expected;
            fn accepts($text: &str) -> bool {
                $accepts
            }
        }
    )+ };
}

rules! {
    /// Any text.
    Any: "a text", |_text| true;
    PullPolicy: "always, never or ifnotpresent",
        |text| matches!(text, "always" | "Always" | "never" | "Never" | "ifnotpresent" | "IfNotPresent");
    RestartPolicy: "no, on-failure, always or unless-stopped",
        |text| matches!(text, "no" | "No" | "on-failure" | "On-failure" | "Always" | "always" | "unless-stopped" | "Unless-stopped");
    Runtime: "docker or podman", |text| matches!(text, "docker" | "podman");
    ApplyMode: "live, restart or recreate", |text| matches!(text, "live" | "restart" | "recreate");
    CgroupNamespace: "host or private", |text| matches!(text, "host" | "private");
    MacvlanMode: "private, vepa, bridge, passthru or source",
        |text| matches!(text, "private" | "vepa" | "bridge" | "passthru" | "source");
    Ipv4: "an IPv4 address", |text| without_zone(text).parse::<std::net::Ipv4Addr>().is_ok();
    Ipv6: "an IPv6 address", |text| without_zone(text).parse::<std::net::Ipv6Addr>().is_ok();
    Address: "an IP address", |text| Ipv4::accepts(text) || Ipv6::accepts(text);
    Ipv4Subnet: "a network with its length, or auto", |text| text.contains("auto") || has_length(text, 2);
    Ipv6Subnet: "a network with its length, or auto", |text| text.contains("auto") || has_length(text, 3);
    Ipv4Range: "a network with its length", |text| has_length(text, 2);
    Ipv6Range: "an IPv6 address or network",
        |text| Ipv6::accepts(text) || text.split_once('/').is_some_and(|(addr, _)| Ipv6::accepts(addr) && has_length(text, 3));
    ShmSize: "a size such as 64MB", |text| is_size(text);
    PortMapping: "a mapping of ports, such as 80:8080 or 127.0.0.1:53:53/udp", |text| is_mapping(text);
    /// Slot of a card in a chassis.
    SlotName: "A or B", |text| matches!(text, "A" | "B" | "a" | "b");
}

fn without_zone(text: &str) -> &str {
    text.split_once('%').map_or(text, |(addr, _)| addr)
}

/// Returns true for a non-empty text, a slash, and a number with at most `digits` digits.
fn has_length(text: &str, digits: usize) -> bool {
    text.rsplit_once('/').is_some_and(|(network, length)| {
        !network.is_empty()
            && (1..=digits).contains(&length.len())
            && length.bytes().all(|b| b.is_ascii_digit())
    })
}

/// Returns true for a number with an optional unit.
fn is_size(text: &str) -> bool {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    number.starts_with(|c: char| c.is_ascii_digit())
        && number.matches('.').count() <= 1
        && matches!(unit.as_str(), "" | "b" | "kb" | "kib" | "mb" | "mib" | "gb" | "gib")
}

/// Returns true for `[ADDRESS:]PORT[-PORT]:PORT[/PROTOCOL]`, or a single port.
fn is_mapping(text: &str) -> bool {
    let port = |text: &str| {
        text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
    };
    let ports =
        |text: &str| text.split_once('-').map_or_else(|| port(text), |(from, to)| port(from) && port(to));
    let (whole, protocol) =
        text.split_once('/').map_or((text, None), |(whole, protocol)| (whole, Some(protocol)));
    let parts: Vec<&str> = whole.split(':').collect();
    let known = protocol.is_none_or(|protocol| matches!(protocol, "tcp" | "udp" | "sctp"));
    known
        && match parts.as_slice() {
            [one] => protocol.is_none() && port(one),
            [outside, inside] => ports(outside) && port(inside),
            [addr, outside, inside] => Ipv4::accepts(addr) && port(outside) && port(inside),
            _ => false,
        }
}

/// Settings of the management network.
#[derive(Debug, Deserialize)]
#[serde(try_from = "MgmtFields")]
pub(super) struct Mgmt;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct MgmtFields {
    #[serde(deserialize_with = "some")]
    network: Option<Text<Any>>,
    #[serde(deserialize_with = "some")]
    bridge: Option<Text<Any>>,
    #[serde(deserialize_with = "some")]
    ipv4_subnet: Option<Text<Ipv4Subnet>>,
    #[serde(deserialize_with = "some")]
    ipv6_subnet: Option<Text<Ipv6Subnet>>,
    #[serde(deserialize_with = "some")]
    ipv4_gw: Option<Text<Ipv4>>,
    #[serde(deserialize_with = "some")]
    ipv6_gw: Option<Text<Ipv6>>,
    #[serde(deserialize_with = "some")]
    ipv4_range: Option<Text<Ipv4Range>>,
    #[serde(deserialize_with = "some")]
    ipv6_range: Option<Text<Ipv6Range>>,
    #[serde(deserialize_with = "some")]
    mtu: Option<Mtu>,
    #[serde(deserialize_with = "some")]
    external_access: Option<bool>,
    #[serde(deserialize_with = "some")]
    skip_when_unused: Option<bool>,
    #[serde(deserialize_with = "some")]
    driver_opts: Option<Ordered<Scalar>>,
}

impl TryFrom<MgmtFields> for Mgmt {
    type Error = &'static str;

    fn try_from(fields: MgmtFields) -> Result<Self, &'static str> {
        let MgmtFields { network, bridge, ipv4_subnet, ipv6_subnet, ipv4_gw, ipv6_gw, .. } = &fields;
        let MgmtFields {
            ipv4_range, ipv6_range, mtu, external_access, skip_when_unused, driver_opts, ..
        } = &fields;
        let any = [
            network.is_some(),
            bridge.is_some(),
            ipv4_subnet.is_some(),
            ipv6_subnet.is_some(),
            ipv4_gw.is_some(),
            ipv6_gw.is_some(),
            ipv4_range.is_some(),
            ipv6_range.is_some(),
            mtu.is_some(),
            external_access.is_some(),
            skip_when_unused.is_some(),
            driver_opts.is_some(),
        ];
        if any.contains(&true) { Ok(Self) } else { Err("`mgmt` is an empty map") }
    }
}

/// Settings of containerlab itself.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Settings {
    #[serde(rename = "certificate-authority", deserialize_with = "some")]
    _certificate_authority: Option<CertificateAuthority>,
}

/// An existing certificate authority, or the parameters for creating one.
#[derive(Debug, Deserialize)]
#[serde(try_from = "CertificateAuthorityFields")]
struct CertificateAuthority;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct CertificateAuthorityFields {
    #[serde(deserialize_with = "some")]
    cert: Option<Text<Any>>,
    #[serde(deserialize_with = "some")]
    key: Option<Text<Any>>,
    #[serde(deserialize_with = "some")]
    key_size: Option<Whole<{ i32::MIN }, 0>>,
    #[serde(deserialize_with = "some")]
    validity_duration: Option<Text<Any>>,
}

impl TryFrom<CertificateAuthorityFields> for CertificateAuthority {
    type Error = &'static str;

    fn try_from(fields: CertificateAuthorityFields) -> Result<Self, &'static str> {
        let made = fields.key_size.is_some() || fields.validity_duration.is_some();
        match (fields.cert.is_some(), fields.key.is_some(), made) {
            (true, true, false) | (false, false, true) => Ok(Self),
            _ => Err("`certificate-authority` needs either cert and key, or key-size or validity-duration"),
        }
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Credentials {
    #[serde(rename = "username", deserialize_with = "some")]
    _username: Option<Text<Any>>,
    #[serde(rename = "password", deserialize_with = "some")]
    _password: Option<Text<Any>>,
    #[serde(rename = "identity-file", deserialize_with = "some")]
    _identity_file: Option<Text<Any>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Extras {
    #[serde(rename = "ceos-copy-to-flash", deserialize_with = "some")]
    _ceos_copy_to_flash: Option<Texts<Any, 1>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Config {
    #[serde(rename = "vars", deserialize_with = "some")]
    _vars: Option<Ordered<IgnoredAny>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Dns {
    #[serde(rename = "servers", deserialize_with = "some")]
    _servers: Option<Texts>,
    #[serde(rename = "search", deserialize_with = "some")]
    _search: Option<Texts>,
    #[serde(rename = "options", deserialize_with = "some")]
    _options: Option<Texts>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Certificate {
    #[serde(rename = "issue")]
    _issue: IgnoredAny,
    #[serde(rename = "sans", deserialize_with = "some")]
    _sans: Option<Texts>,
    #[serde(rename = "key-size", deserialize_with = "some")]
    _key_size: Option<Whole<{ i32::MIN }, 0>>,
    #[serde(rename = "validity-duration", deserialize_with = "some")]
    _validity_duration: Option<Text<Any>>,
}

/// A card of a chassis. Its types are growing lists of one vendor, so any text is accepted.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Component {
    #[serde(rename = "slot", deserialize_with = "some")]
    _slot: Option<Slot>,
    #[serde(rename = "type", deserialize_with = "some")]
    _type: Option<Text<Any>>,
    #[serde(rename = "sfm", deserialize_with = "some")]
    _sfm: Option<Text<Any>>,
    #[serde(rename = "xiom", deserialize_with = "some")]
    _xiom: Option<Vec<Xiom>>,
    #[serde(rename = "mda", deserialize_with = "some")]
    _mda: Option<Vec<Mda>>,
    #[serde(rename = "env", deserialize_with = "some")]
    _env: Option<Ordered<Scalar>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a number from 1 on, A or B")]
enum Slot {
    Number(Whole<1, 0>),
    Name(Text<SlotName>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Xiom {
    #[serde(rename = "slot")]
    _slot: Whole<1, 0>,
    #[serde(rename = "type")]
    _type: Text<Any>,
    #[serde(rename = "mda", default, deserialize_with = "some")]
    _mda: Option<Vec<Mda>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mda {
    #[serde(rename = "slot")]
    _slot: Whole<1, 0>,
    #[serde(rename = "type")]
    _type: Text<Any>,
}
