//! The source or destination of a rule: networks, ports, and one selector composed of those for endpoints,
//! namespaces and service accounts.

use serde_json::{Map, Value};

use super::addresses::network;
use super::losses::Losses;
use super::selectors::{
    self, NAMESPACE_LABEL, NAMESPACE_PREFIX, SERVICE_ACCOUNT_LABEL, SERVICE_ACCOUNT_PREFIX,
};
use crate::Selector;
use crate::resource::{Fields, PortName, PortRange, ValueError};
use tortie_net::Cidr;

/// Matches of one side of a rule.
#[derive(Debug, Default)]
pub(super) struct Entity {
    selector: Option<String>,
    not_selector: Option<String>,
    nets: Vec<Cidr>,
    not_nets: Vec<Cidr>,
    ports: Vec<Port>,
    not_ports: Vec<Port>,
}

/// A port of a list.
#[derive(Debug, Clone)]
enum Port {
    Range(PortRange),
    Name(PortName),
}

const NET: &str = "write an address or ADDRESS/LENGTH, such as 10.0.0.0/8";
const PORT: &str = "write a port (80), a range (\"2048:4000\") or the name of a port";
const SERVICES: &str = "services of Kubernetes are not read; write networks or a selector instead";
const ACCOUNTS: &str = "write names of service accounts in double quotes";

impl Entity {
    /// Parses a side of a rule of a policy in a namespace (`None` for global ones, and profiles).
    pub(super) fn parse(value: Value, namespace: Option<&str>, losses: &mut Losses) -> Self {
        let mut fields = match Fields::of(value) {
            Ok(fields) => fields,
            Err(error) => {
                losses.lose(&error);
                return Self::default();
            }
        };
        let endpoints = selectors::checked(&mut fields, "selector");
        let not_endpoints = selectors::checked(&mut fields, "notSelector");
        let accounts = service_accounts(&mut fields);
        // Networks alone are not restricted to the namespace of the policy.
        let is_used = [&endpoints, &not_endpoints, &accounts].iter().any(|part| !matches!(part, Ok(None)));
        let namespaces = match namespaces(&mut fields) {
            Ok(None) => namespace.filter(|_| is_used).map(selectors::of_namespace),
            Ok(given) => given,
            Err(error) => {
                losses.lose(&error);
                None
            }
        };
        let selected = match (losses.keep(accounts), losses.keep(endpoints)) {
            (Some(accounts), Some(endpoints)) => Some(format!("({accounts}) && ({endpoints})")),
            (accounts, endpoints) => accounts.or(endpoints),
        };
        let selector = match (namespaces, selected) {
            (Some(namespaces), Some(selected)) => Some(format!("({namespaces}) && ({selected})")),
            (namespaces, selected) => namespaces.or(selected),
        };
        let entity = Self {
            selector,
            not_selector: losses.keep(not_endpoints),
            nets: alternatives(&mut fields, "nets", losses, read_net),
            not_nets: exceptions(&mut fields, "notNets", losses, read_net),
            ports: alternatives(&mut fields, "ports", losses, read_port),
            not_ports: exceptions(&mut fields, "notPorts", losses, read_port),
        };
        if fields.take("services").is_some() {
            losses.lose_unsupported("services", SERVICES);
        }
        losses.lose_unknown(fields);
        entity
    }

    /// Returns true if there are port numbers.
    pub(super) fn has_numbers(&self) -> bool {
        self.ports.iter().chain(&self.not_ports).any(|port| matches!(port, Port::Range(_)))
    }

    /// Returns true if there are names of ports.
    pub(super) fn has_names(&self) -> bool {
        self.ports.iter().chain(&self.not_ports).any(|port| matches!(port, Port::Name(_)))
    }

    /// Removes the ports.
    pub(super) fn clear_ports(&mut self) {
        self.ports.clear();
        self.not_ports.clear();
    }

    /// Writes the members of the v1 model; `side` is `src` or `dst`.
    pub(super) fn write(&self, rule: &mut Map<String, Value>, side: &str) {
        let mut put = |name: String, value: Value| {
            let is_empty = match &value {
                Value::Null => true,
                Value::Array(list) => list.is_empty(),
                _ => false,
            };
            if !is_empty {
                rule.insert(name, value);
            }
        };
        let nets = |nets: &[Cidr]| nets.iter().map(ToString::to_string).collect::<Value>();
        let ports = |ports: &[Port]| ports.iter().map(Port::json).collect::<Value>();
        put(format!("{side}_nets"), nets(&self.nets));
        put(format!("{side}_selector"), self.selector.clone().into());
        put(format!("{side}_ports"), ports(&self.ports));
        put(format!("!{side}_nets"), nets(&self.not_nets));
        put(format!("!{side}_selector"), self.not_selector.clone().into());
        put(format!("!{side}_ports"), ports(&self.not_ports));
    }
}

impl Port {
    fn json(&self) -> Value {
        match self {
            Self::Range(range) if range.first() == range.last() => range.first().into(),
            Self::Range(range) => range.to_string().into(),
            Self::Name(name) => name.as_str().into(),
        }
    }
}

/// Reads `namespaceSelector`. `all()` selects what is in a namespace, `global()` what is in none.
fn namespaces(fields: &mut Fields) -> Result<Option<String>, ValueError> {
    let selector = selectors::prefixed(fields, "namespaceSelector", NAMESPACE_PREFIX)?;
    Ok(selector.map(|text| {
        let text = selectors::all_with(&text, NAMESPACE_LABEL);
        text.replace("global()", &format!("!has({NAMESPACE_LABEL})"))
    }))
}

/// Reads `serviceAccounts`: names, and a selector over labels; both must hold.
fn service_accounts(fields: &mut Fields) -> Result<Option<String>, ValueError> {
    let Some(value) = fields.take("serviceAccounts") else { return Ok(None) };
    let read = |value| {
        let mut fields = Fields::of(value)?;
        let selector = selectors::prefixed(&mut fields, "selector", SERVICE_ACCOUNT_PREFIX)?;
        let names = fields.list("names", |name| match name {
            Value::String(name) => Ok(name),
            other => Err(ValueError::json("", &other, ACCOUNTS)),
        })?;
        fields.deny_unknown(super::losses::UNKNOWN)?;
        if names.is_empty() {
            return Ok(selector);
        }
        let text = format!("{SERVICE_ACCOUNT_LABEL} in {{ '{}' }}", names.join("', '"));
        let listed: Selector = text
            .parse()
            .map_err(|_| ValueError::new("names", format_args!("`{}`", names.join(" ")), ACCOUNTS))?;
        Ok(Some(match selector {
            Some(selector) => format!("({selector}) && ({listed})"),
            None => listed.to_string(),
        }))
    };
    read(value).map_err(|error: ValueError| error.within("serviceAccounts"))
}

/// Reads a list of which one element must match. Elements that cannot be parsed are skipped; if none
/// remains, the match is lost.
fn alternatives<T>(
    fields: &mut Fields,
    name: &str,
    losses: &mut Losses,
    read: fn(&Value) -> Result<T, ValueError>,
) -> Vec<T> {
    let (good, bad) = elements(fields, name, read);
    for error in bad {
        if good.is_empty() { losses.lose(&error) } else { losses.skip(&error) }
    }
    good
}

/// Reads a list of which no element may match. An element that cannot be parsed is a lost match.
fn exceptions<T>(
    fields: &mut Fields,
    name: &str,
    losses: &mut Losses,
    read: fn(&Value) -> Result<T, ValueError>,
) -> Vec<T> {
    let (good, bad) = elements(fields, name, read);
    bad.iter().for_each(|error| losses.lose(error));
    good
}

fn elements<T>(
    fields: &mut Fields,
    name: &str,
    read: fn(&Value) -> Result<T, ValueError>,
) -> (Vec<T>, Vec<ValueError>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    match fields.take(name) {
        None => {}
        Some(Value::Array(list)) => {
            for (index, value) in list.iter().enumerate() {
                match read(value) {
                    Ok(element) => good.push(element),
                    Err(error) => bad.push(error.within(format_args!("{name}[{index}]"))),
                }
            }
        }
        Some(other) => bad.push(ValueError::json(name, &other, "write a JSON list: [...]")),
    }
    (good, bad)
}

fn read_net(value: &Value) -> Result<Cidr, ValueError> {
    value.as_str().and_then(network).ok_or_else(|| ValueError::json("", value, NET))
}

fn read_port(value: &Value) -> Result<Port, ValueError> {
    let port = match value {
        Value::Number(number) => {
            let port = number.as_u64().and_then(|port| u16::try_from(port).ok());
            port.and_then(|port| PortRange::new(port, port)).map(Port::Range)
        }
        Value::String(text) => text.parse().map(Port::Range).or_else(|_| text.parse().map(Port::Name)).ok(),
        _ => None,
    };
    port.ok_or_else(|| ValueError::json("", value, PORT))
}
