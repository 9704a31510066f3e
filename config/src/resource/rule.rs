//! Policy rules: matches on traffic, and the action for matching traffic.

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use super::names::label_name;
use super::port_name::PortName;
use super::rule_match::{Icmp, PortRange, Protocol, ports_json};
use crate::dialect::Dialect;
use crate::key::IpFamily;
use tortie_net::Cidr;

use crate::Selector;

/// A policy rule. All of its matches must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Action for matching traffic.
    pub action: Action,
    /// Address family to match; `None` for both.
    pub ip_version: Option<IpFamily>,
    /// Protocol to match; `None` for all.
    pub protocol: Option<Protocol>,
    /// Protocol to exclude.
    pub not_protocol: Option<Protocol>,
    /// Matches on the source.
    pub src: Side,
    /// Matches on the destination.
    pub dst: Side,
    /// ICMP type and code to match; `protocol` must be ICMP or ICMPv6.
    pub icmp: Option<Icmp>,
    /// ICMP type and code to exclude, as a single match.
    pub not_icmp: Option<Icmp>,
    /// Prefix for logging matching traffic.
    pub log_prefix: Option<String>,
}

/// Action for matching traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Action {
    /// Accept; also if the action is absent or empty.
    #[default]
    Allow,
    /// Drop the packet.
    Deny,
    /// Log and continue with the next rule.
    Log,
    /// Continue with the next tier (`next-tier` or `pass`).
    NextTier,
}

impl Action {
    /// Returns the action as stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Log => "log",
            Self::NextTier => "next-tier",
        }
    }
}

/// Matches on the source or the destination.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Side {
    /// Endpoints with a profile that has this tag.
    pub tag: Option<String>,
    /// Endpoints that this selector matches.
    pub selector: Option<Selector>,
    /// Prefixes of which one must contain the address; empty for any address.
    pub nets: Vec<Cidr>,
    /// Port ranges of which one must contain the port; empty, with `named_ports`, for any port.
    pub ports: Vec<PortRange>,
    /// Names of ports of endpoints, alternatives of `ports`; Calico 3 only.
    pub named_ports: Vec<PortName>,
    /// Excludes endpoints with a profile that has this tag.
    pub not_tag: Option<String>,
    /// Excludes endpoints that this selector matches.
    pub not_selector: Option<Selector>,
    /// Prefixes of which none may contain the address.
    pub not_nets: Vec<Cidr>,
    /// Port ranges of which none may contain the port.
    pub not_ports: Vec<PortRange>,
    /// Names of ports of endpoints of which none may be the port; Calico 3 only.
    pub not_named_ports: Vec<PortName>,
}

const FIELDS: &str = "no rule has this field: a match that is not understood could open more than was meant";

impl Rule {
    pub(super) fn parse(dialect: Dialect, value: Value) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value)?;
        let rule = Self {
            action: action(&mut fields)?,
            ip_version: ip_version(&mut fields)?,
            protocol: Protocol::take(&mut fields, "protocol")?,
            not_protocol: Protocol::take(&mut fields, "!protocol")?,
            src: Side::take(dialect, &mut fields, "src")?,
            dst: Side::take(dialect, &mut fields, "dst")?,
            icmp: Icmp::take(&mut fields, "")?,
            not_icmp: Icmp::take(&mut fields, "!")?,
            log_prefix: fields.text("log_prefix")?.filter(|prefix| !prefix.is_empty()),
        };
        fields.deny_unknown(FIELDS)?;
        rule.check().map(|()| rule)
    }

    fn check(&self) -> Result<(), ValueError> {
        let protocol = self.protocol.map_or_else(|| "no protocol".to_owned(), |p| format!("`{p}`"));
        let any = |has: fn(&Side) -> bool| has(&self.src) || has(&self.dst);
        let has_numbers = any(|side| !side.ports.is_empty() || !side.not_ports.is_empty());
        let has_names = any(|side| !side.named_ports.is_empty() || !side.not_named_ports.is_empty());
        // A named port has a protocol of its own.
        let needs_protocol = has_numbers || (has_names && self.protocol.is_some());
        if needs_protocol && !self.protocol.is_some_and(Protocol::has_ports) {
            let expected = "ports need \"protocol\": \"tcp\" or \"udp\" (or \"sctp\", \"udplite\")";
            return Err(ValueError::new("protocol", protocol, expected));
        }
        if (self.icmp.is_some() || self.not_icmp.is_some()) && !self.protocol.is_some_and(Protocol::is_icmp) {
            let expected = "ICMP types need \"protocol\": \"icmp\" or \"icmpv6\"";
            return Err(ValueError::new("protocol", protocol, expected));
        }
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let mut writer = Writer::default();
        writer.put("action", self.action.as_str());
        writer
            .put_some("ip_version", self.ip_version.map(|family| if family == IpFamily::V4 { 4 } else { 6 }));
        writer.put_some("protocol", self.protocol.map(Protocol::json));
        self.src.write(&mut writer, "src", "");
        self.dst.write(&mut writer, "dst", "");
        if let Some(icmp) = self.icmp {
            icmp.write(&mut writer, "");
        }
        writer.put_some("!protocol", self.not_protocol.map(Protocol::json));
        self.src.write(&mut writer, "src", "!");
        self.dst.write(&mut writer, "dst", "!");
        if let Some(icmp) = self.not_icmp {
            icmp.write(&mut writer, "!");
        }
        writer.put_some("log_prefix", self.log_prefix.clone());
        writer.object(&Extra::default())
    }
}

fn action(fields: &mut Fields) -> Result<Action, ValueError> {
    match fields.text("action")?.as_deref() {
        None | Some("" | "allow") => Ok(Action::Allow),
        Some("deny") => Ok(Action::Deny),
        Some("log") => Ok(Action::Log),
        Some("next-tier" | "pass") => Ok(Action::NextTier),
        Some(other) => {
            let expected = "write \"allow\", \"deny\", \"log\" or \"next-tier\"";
            Err(ValueError::new("action", format_args!("`{other}`"), expected))
        }
    }
}

fn ip_version(fields: &mut Fields) -> Result<Option<IpFamily>, ValueError> {
    match fields.number::<u8>("ip_version", 0, u64::MAX) {
        Ok(None) => Ok(None),
        Ok(Some(4)) => Ok(Some(IpFamily::V4)),
        Ok(Some(6)) => Ok(Some(IpFamily::V6)),
        Ok(Some(other)) => Err(ValueError::new("ip_version", format_args!("`{other}`"), "write 4 or 6")),
        Err(error) => Err(ValueError { expected: "write 4 or 6".to_owned(), ..error }),
    }
}

impl Side {
    fn take(dialect: Dialect, fields: &mut Fields, side: &str) -> Result<Self, ValueError> {
        let (ports, named_ports) = ports(dialect, fields, &format!("{side}_ports"))?;
        let (not_ports, not_named_ports) = self::ports(dialect, fields, &format!("!{side}_ports"))?;
        Ok(Self {
            tag: tag(fields, &format!("{side}_tag"))?,
            selector: selector(dialect, fields, &format!("{side}_selector"))?,
            nets: nets(fields, &format!("{side}_net"))?,
            ports,
            named_ports,
            not_tag: tag(fields, &format!("!{side}_tag"))?,
            not_selector: selector(dialect, fields, &format!("!{side}_selector"))?,
            not_nets: nets(fields, &format!("!{side}_net"))?,
            not_ports,
            not_named_ports,
        })
    }

    fn write(&self, writer: &mut Writer, side: &str, not: &str) {
        let (tag, selector, nets, ports, names) = if not.is_empty() {
            (&self.tag, &self.selector, &self.nets, &self.ports, &self.named_ports)
        } else {
            (&self.not_tag, &self.not_selector, &self.not_nets, &self.not_ports, &self.not_named_ports)
        };
        writer.put_some(&format!("{not}{side}_tag"), tag.clone());
        writer.put_text(&format!("{not}{side}_selector"), selector.as_ref());
        match nets.as_slice() {
            [] => {}
            [net] => writer.put(&format!("{not}{side}_net"), net.to_string()),
            several => writer.put_list(&format!("{not}{side}_nets"), several),
        }
        if !ports.is_empty() || !names.is_empty() {
            writer.put(&format!("{not}{side}_ports"), ports_json(ports, names));
        }
    }
}

fn tag(fields: &mut Fields, name: &str) -> Result<Option<String>, ValueError> {
    match fields.text(name)?.filter(|tag| !tag.is_empty()) {
        None => Ok(None),
        Some(tag) => label_name(tag).map(Some).map_err(|error| error.within(name)),
    }
}

/// An empty string counts as absent, as in Go; it does not mean `all()` here.
fn selector(dialect: Dialect, fields: &mut Fields, name: &str) -> Result<Option<Selector>, ValueError> {
    match fields.text(name)?.filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => parse_selector(dialect, name, &text).map(Some),
    }
}

/// Parses a selector. The error contains the position within the selector.
pub(super) fn parse_selector(dialect: Dialect, name: &str, text: &str) -> Result<Selector, ValueError> {
    let selector = match dialect {
        Dialect::V1 => Selector::parse_v1(text),
        Dialect::V3 => text.parse(),
    };
    selector.map_err(|error| ValueError::new(name, format_args!("`{text}`"), error.to_string()))
}

/// Reads a list of ports; only Calico 3 has names among them.
fn ports(
    dialect: Dialect,
    fields: &mut Fields,
    name: &str,
) -> Result<(Vec<PortRange>, Vec<PortName>), ValueError> {
    let mut names = Vec::new();
    let ranges = fields.list(name, |value| {
        let named = value.as_str().filter(|_| dialect == Dialect::V3).and_then(|text| text.parse().ok());
        match named {
            Some(named) => {
                names.push(named);
                Ok(None)
            }
            None => PortRange::of_json(&value).map(Some),
        }
    })?;
    Ok((ranges.into_iter().flatten().collect(), names))
}

/// Combines the single form and the list (`src_net`, `src_nets`).
fn nets(fields: &mut Fields, single: &str) -> Result<Vec<Cidr>, ValueError> {
    let expected = "write ADDRESS/LENGTH, such as 10.0.0.0/8";
    let one: Option<Cidr> = fields.parsed(single, expected)?;
    let mut nets: Vec<Cidr> = fields.parsed_list(&format!("{single}s"), expected)?;
    if let Some(one) = one
        && !nets.contains(&one)
    {
        nets.insert(0, one);
    }
    Ok(nets)
}
