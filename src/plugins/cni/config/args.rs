//! Arguments that callers add: `CNI_ARGS`, and `args` in the configuration.
//!
//! A plugin may ignore `args`, so malformed parts are noted and ignored. `CNI_ARGS` requests an IP or MAC
//! address, so malformed parts are errors.

use std::net::IpAddr;

use serde_json::Value;
use tortie_config::resource::{Labels, MacAddr};

use crate::plugins::cni::config::runtime::{asked, unicast};
use crate::plugins::cni::protocol::address;
use crate::plugins::cni::protocol::error::{CniError, code, short};
use crate::plugins::cni::protocol::json::{Object, elements};

/// Parsed `CNI_ARGS`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvArgs {
    /// `IP`: requested address.
    pub ip: Option<IpAddr>,
    /// `MAC`: requested MAC address.
    pub mac: Option<MacAddr>,
    /// `K8S_POD_NAMESPACE`: namespace of the pod.
    pub pod_namespace: Option<String>,
    /// `K8S_POD_NAME`: name of the pod.
    pub pod: Option<String>,
}

fn bad(text: String) -> CniError {
    CniError::new(code::ENVIRONMENT, text)
}

impl EnvArgs {
    /// Parses `CNI_ARGS`: `NAME=VALUE` pairs separated by semicolons, in any order.
    ///
    /// # Errors
    /// Code 4 for a pair without `=`, a malformed address, and unknown names unless `IgnoreUnknown=1` is
    /// among the pairs. Names that begin with `K8S_` belong to Kubernetes and are always accepted.
    pub fn parse(text: &str) -> Result<Self, CniError> {
        let (this, error) = Self::read(text);
        error.map_or(Ok(this), Err)
    }

    /// Like [`parse`](Self::parse), but returns all that could be parsed together with the first error.
    #[must_use]
    pub fn read(text: &str) -> (Self, Option<CniError>) {
        let mut this = Self::default();
        let (mut ignore_unknown, mut unknown, mut first) = (false, None, None);
        for pair in text.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            match this.take(pair, &mut ignore_unknown) {
                Ok(true) => {}
                Ok(false) => unknown = unknown.or(Some(pair)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        if let Some(pair) = unknown.filter(|_| !ignore_unknown) {
            let msg =
                format!("CNI_ARGS: `{}` is unknown here; remove it, or add IgnoreUnknown=1", short(pair));
            first = first.or(Some(bad(msg)));
        }
        (this, first)
    }

    /// Applies one pair; `false` if its name is unknown.
    fn take(&mut self, pair: &str, ignore_unknown: &mut bool) -> Result<bool, CniError> {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(bad(format!("CNI_ARGS: `{}` is no NAME=VALUE", short(pair))));
        };
        let shown = || format!("CNI_ARGS: {name} is \"{}\"", short(value));
        match name {
            "IgnoreUnknown" => {
                *ignore_unknown = match value.to_ascii_lowercase().as_str() {
                    "1" | "true" => true,
                    "0" | "false" | "" => false,
                    _ => return Err(bad(format!("{}: write 1 or 0", shown()))),
                };
            }
            _ if value.is_empty() => {}
            "IP" => {
                let ip = address::asked(value).map_err(|expected| bad(format!("{}: {expected}", shown())))?;
                self.ip = Some(ip);
            }
            "MAC" => {
                let mac: MacAddr =
                    value.parse().map_err(|_| bad(format!("{}: write a MAC address", shown())))?;
                unicast("CNI_ARGS: MAC", mac).map_err(|error| bad(error.msg))?;
                self.mac = Some(mac);
            }
            "K8S_POD_NAMESPACE" => self.pod_namespace = Some(value.to_owned()),
            "K8S_POD_NAME" => self.pod = Some(value.to_owned()),
            _ => return Ok(name.starts_with("K8S_")),
        }
        Ok(true)
    }
}

/// Parsed `args` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Args {
    /// Labels for the endpoint.
    pub labels: Labels,
    /// Requested addresses; if there are any, `IP` of `CNI_ARGS` is ignored.
    pub ips: Vec<IpAddr>,
}

impl Args {
    /// Parses `args`: the members of the CNI conventions, and the labels of Mesos. Malformed members are
    /// added to `notes`; members of others are ignored.
    #[must_use]
    pub fn parse(value: &Value, notes: &mut Vec<String>) -> Self {
        let mut this = Self::default();
        let mut note = |error: CniError| notes.push(format!("{error}; ignored"));
        if !value.is_object() {
            note(CniError::value("args", value, "write an object"));
            return this;
        }
        // Each level returns what exists; a level that is not an object is noted.
        let mesos = ["org.apache.mesos", "network_info", "labels", "labels"];
        for (path, kind) in [(&["cni", "labels"][..], 'l'), (&["cni", "ips"], 'i'), (&mesos, 'l')] {
            let mut at = "args".to_owned();
            let mut here = Some(value);
            for name in path {
                let Some(value) = here.filter(|value| !value.is_null()) else { break };
                let object = Object::of(&at, value);
                at = format!("{at}.{name}");
                match object {
                    Ok(object) => here = object.get(name),
                    // Two paths begin with `cni`, and one note suffices.
                    Err(error) => {
                        if kind != 'i' {
                            note(error);
                        }
                        here = None;
                    }
                }
            }
            let Some(list) = here else { continue };
            let items = match elements(&at, list) {
                Ok(items) => items,
                Err(error) => {
                    note(error);
                    continue;
                }
            };
            for (at, item) in items {
                let read = if kind == 'l' {
                    label(&at, item).map(|(name, value)| {
                        this.labels.insert(name, value);
                    })
                } else {
                    asked(&at, item).map(|ip| this.ips.push(ip))
                };
                if let Err(error) = read {
                    note(error);
                }
            }
        }
        this
    }
}

/// Parses a label whose name is valid in selectors.
fn label(at: &str, value: &Value) -> Result<(String, String), CniError> {
    let object = Object::of(at, value)?.any_case();
    let name = object.text("key")?.unwrap_or_default();
    let usable = |b: u8| b.is_ascii_alphanumeric() || b"_./-".contains(&b);
    if name.is_empty() || name.len() > 512 || !name.bytes().all(usable) {
        let expected = "write a name of 1 to 512 letters, digits, `_`, `.`, `/` and `-`";
        return Err(CniError::value(&object.at("key"), object.get("key").unwrap_or(&Value::Null), expected));
    }
    let value = object.get("value").map_or(Ok(""), |value| {
        value.as_str().ok_or_else(|| CniError::value(&object.at("value"), value, "write a text"))
    })?;
    Ok((name.to_owned(), value.to_owned()))
}
