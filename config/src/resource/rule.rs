//! Rules: what traffic they match and what becomes of it.

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use super::names::label_name;
use super::rule_match::{Icmp, PortRange, Protocol, ports_json};
use crate::key::IpFamily;
use tortie_net::Cidr;

use crate::Selector;

/// One rule. Every match that is there must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// What becomes of traffic that matches.
    pub action: Action,
    /// Only packets of this family.
    pub ip_version: Option<IpFamily>,
    /// Only this protocol.
    pub protocol: Option<Protocol>,
    /// Not this protocol.
    pub not_protocol: Option<Protocol>,
    /// Where the traffic comes from.
    pub src: Side,
    /// Where it goes.
    pub dst: Side,
    /// Only this ICMP type and code; `protocol` is ICMP or ICMPv6 then.
    pub icmp: Option<Icmp>,
    /// Not this ICMP type and code, as one match.
    pub not_icmp: Option<Icmp>,
    /// Log what matches, with this prefix.
    pub log_prefix: Option<String>,
}

/// What becomes of traffic that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Action {
    /// Accept; also when the action is absent or empty.
    #[default]
    Allow,
    /// Drop.
    Deny,
    /// Log and go on with the next rule.
    Log,
    /// Leave this tier (`next-tier` or `pass`).
    NextTier,
}

impl Action {
    /// As stored.
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

/// Matches on one end of the traffic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Side {
    /// An endpoint with a profile that has this tag.
    pub tag: Option<String>,
    /// An endpoint that this selects.
    pub selector: Option<Selector>,
    /// In any of these (empty: anywhere).
    pub nets: Vec<Cidr>,
    /// Any of these ports (empty: any).
    pub ports: Vec<PortRange>,
    /// Not an endpoint with this tag.
    pub not_tag: Option<String>,
    /// Not an endpoint that this selects.
    pub not_selector: Option<Selector>,
    /// In none of these.
    pub not_nets: Vec<Cidr>,
    /// None of these ports.
    pub not_ports: Vec<PortRange>,
}

const FIELDS: &str = "no rule has this field: a match that is not understood could open more than was meant";

impl Rule {
    pub(super) fn parse(value: Value) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value)?;
        let rule = Self {
            action: action(&mut fields)?,
            ip_version: ip_version(&mut fields)?,
            protocol: Protocol::take(&mut fields, "protocol")?,
            not_protocol: Protocol::take(&mut fields, "!protocol")?,
            src: Side::take(&mut fields, "src")?,
            dst: Side::take(&mut fields, "dst")?,
            icmp: Icmp::take(&mut fields, "")?,
            not_icmp: Icmp::take(&mut fields, "!")?,
            log_prefix: fields.text("log_prefix")?.filter(|prefix| !prefix.is_empty()),
        };
        fields.deny_unknown(FIELDS)?;
        rule.check().map(|()| rule)
    }

    fn check(&self) -> Result<(), ValueError> {
        let protocol = self.protocol.map_or_else(|| "no protocol".to_owned(), |p| format!("`{p}`"));
        let has_ports = [&self.src, &self.dst]
            .into_iter()
            .any(|side| !side.ports.is_empty() || !side.not_ports.is_empty());
        if has_ports && !self.protocol.is_some_and(Protocol::has_ports) {
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
    fn take(fields: &mut Fields, side: &str) -> Result<Self, ValueError> {
        Ok(Self {
            tag: tag(fields, &format!("{side}_tag"))?,
            selector: selector(fields, &format!("{side}_selector"))?,
            nets: nets(fields, &format!("{side}_net"))?,
            ports: PortRange::take(fields, &format!("{side}_ports"))?,
            not_tag: tag(fields, &format!("!{side}_tag"))?,
            not_selector: selector(fields, &format!("!{side}_selector"))?,
            not_nets: nets(fields, &format!("!{side}_net"))?,
            not_ports: PortRange::take(fields, &format!("!{side}_ports"))?,
        })
    }

    fn write(&self, writer: &mut Writer, side: &str, not: &str) {
        let (tag, selector, nets, ports) = if not.is_empty() {
            (&self.tag, &self.selector, &self.nets, &self.ports)
        } else {
            (&self.not_tag, &self.not_selector, &self.not_nets, &self.not_ports)
        };
        writer.put_some(&format!("{not}{side}_tag"), tag.clone());
        writer.put_text(&format!("{not}{side}_selector"), selector.as_ref());
        match nets.as_slice() {
            [] => {}
            [net] => writer.put(&format!("{not}{side}_net"), net.to_string()),
            several => writer.put_list(&format!("{not}{side}_nets"), several),
        }
        if !ports.is_empty() {
            writer.put(&format!("{not}{side}_ports"), ports_json(ports));
        }
    }
}

fn tag(fields: &mut Fields, name: &str) -> Result<Option<String>, ValueError> {
    match fields.text(name)?.filter(|tag| !tag.is_empty()) {
        None => Ok(None),
        Some(tag) => label_name(tag).map(Some).map_err(|error| error.within(name)),
    }
}

/// An empty text is absent, as in Go: it does not mean `all()` here.
fn selector(fields: &mut Fields, name: &str) -> Result<Option<Selector>, ValueError> {
    match fields.text(name)?.filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => parse_selector(name, &text).map(Some),
    }
}

/// Reads a selector; the error carries the place that the selector's own error names.
pub(super) fn parse_selector(name: &str, text: &str) -> Result<Selector, ValueError> {
    text.parse::<Selector>()
        .map_err(|error| ValueError::new(name, format_args!("`{text}`"), error.to_string()))
}

/// The single form and the list (`src_net`, `src_nets`) together.
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
