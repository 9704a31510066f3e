//! What callers add: `CNI_ARGS`, and `args` in the configuration.
//!
//! `args` is information that a plugin may pass over, so what is malformed there is noted and left out. `CNI_ARGS` names an
//! address or a MAC address that somebody wants, so what is malformed there is an error.

use std::net::IpAddr;

use serde_json::Value;
use tortie_config::resource::{Labels, MacAddr};

use crate::plugins::cni::config::runtime::{asked, unicast};
use crate::plugins::cni::protocol::address;
use crate::plugins::cni::protocol::error::{CniError, code, short};
use crate::plugins::cni::protocol::json::{Object, elements};

/// `CNI_ARGS`, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvArgs {
    /// `IP`
    pub ip: Option<IpAddr>,
    /// `MAC`
    pub mac: Option<MacAddr>,
    /// `K8S_POD_NAMESPACE`
    pub pod_namespace: Option<String>,
    /// `K8S_POD_NAME`
    pub pod: Option<String>,
}

fn bad(text: String) -> CniError {
    CniError::new(code::ENVIRONMENT, text)
}

impl EnvArgs {
    /// Reads `CNI_ARGS`: `NAME=VALUE` pairs with semicolons between them, in any order.
    ///
    /// # Errors
    /// Code 4 for a pair without `=`, a malformed address, and names that we do not know unless `IgnoreUnknown=1` is among
    /// the pairs. Names that begin with `K8S_` are Kubernetes' and always known.
    pub fn parse(text: &str) -> Result<Self, CniError> {
        let (this, error) = Self::read(text);
        error.map_or(Ok(this), Err)
    }

    /// The same, with everything that could be read beside the first error.
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
                format!("CNI_ARGS: `{}` is unknown here; take it away, or add IgnoreUnknown=1", short(pair));
            first = first.or(Some(bad(msg)));
        }
        (this, first)
    }

    /// Takes one pair; false: its name is unknown.
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

/// `args` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Args {
    /// Labels for the endpoint.
    pub labels: Labels,
    /// Addresses that are asked for. With one of these, `IP` of `CNI_ARGS` does not count.
    pub ips: Vec<IpAddr>,
}

impl Args {
    /// Reads `args`: the conventions' part, and Mesos' labels. `notes` gets what is malformed; the rest is somebody else's.
    #[must_use]
    pub fn parse(value: &Value, notes: &mut Vec<String>) -> Self {
        let mut this = Self::default();
        let mut note = |error: CniError| notes.push(format!("{error}; ignored"));
        if !value.is_object() {
            note(CniError::value("args", value, "write an object"));
            return this;
        }
        // Each step down gives what is there; what is no object is noted by whoever wanted it to be one.
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
                    // Two paths begin in `cni`: one note is enough.
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

/// A label whose name selectors can write.
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
