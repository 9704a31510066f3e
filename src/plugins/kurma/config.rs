//! Configuration of one network: the fields of Tortie's CNI plugin, Kurma's own, and two that only this
//! plugin has.

use serde_json::Value;

use super::error::KurmaError;
use super::verb::Verb;
use crate::plugins::attach::host_interface;
use crate::plugins::cni::{Config, LogTarget, Strictness};
use tortie_kernel::container;
use tortie_store::StoreOptions;

/// Accepted values of `type`, which the daemon does not read.
const TYPES: [&str; 5] = ["", "tortie", "tortie-kurma", "tortie-cni", "calico"];
/// Kurma's fields, followed by this plugin's.
const MORE: [&str; 5] = ["aci", "default", "containerInterface", "ports_table", "store_volume"];

/// Settings of a call.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) config: Config,
    pub(super) node: String,
    /// Prefix of the names of tables for port mappings in this network.
    pub(super) ports_prefix: String,
    /// The same prefix in earlier versions.
    pub(super) former_ports_prefix: String,
    /// Folder that contains `store.db`.
    pub(super) volume: Option<std::path::PathBuf>,
    /// Store that the caller selects; it overrides the configuration.
    pub(super) store: Option<StoreOptions>,
}

/// Parses a configuration; `None` for a `del` of a network of another plugin.
pub(super) fn read(input: &[u8], verb: Verb) -> Result<Option<Settings>, KurmaError> {
    if let Ok(Value::Object(map)) = serde_json::from_slice::<Value>(input) {
        let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
        let ipam = map.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str);
        let (kind, name) = (text("type"), text("name"));
        let other = if !TYPES.contains(&kind) {
            Some(format!("`type` is `{kind}`"))
        } else {
            let foreign = ipam.filter(|ipam| !matches!(*ipam, "" | "tortie-ipam" | "calico-ipam"));
            foreign.map(|ipam| format!("its addresses are to come from `{ipam}`"))
        };
        if let Some(why) = other {
            if verb == Verb::Del {
                return Ok(None);
            }
            return Err(KurmaError(format!(
                "network `{name}` is not for this plugin: {why}, and this image is tortie's, whose addresses come from \
                 the pools of the data model; write \"type\": \"tortie\", or name the image of the other plugin in `aci`"
            )));
        }
    }
    let strictness = if verb == Verb::Del { Strictness::Lenient } else { Strictness::Refuse };
    let config = Config::parse(input, strictness, &MORE).map_err(|(_, error)| KurmaError::from(error))?;
    let refuse = |field: &str, why: &str| Err(KurmaError(format!("`{field}`: {why}")));
    if config.log.target == LogTarget::Stderr {
        return refuse("log", "stderr is part of the answer here; write syslog, none, or the path of a file");
    }
    if let Err(why) = host_interface(&config.interface_prefix, "x") {
        return refuse("interface_prefix", &why);
    }
    let text = |field: &str| match config.more.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
        Some(_) => Err(KurmaError(format!("`{field}`: write a text"))),
    };
    let [ports_prefix, former_ports_prefix] = match text("ports_table")? {
        Some(prefix) => {
            let plain = prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            if !plain || prefix.len() > 18 || prefix == "tortie" {
                return refuse(
                    "ports_table",
                    "write up to 18 letters, digits, `-`, `_` or `.`, not `tortie`",
                );
            }
            [prefix.clone(), prefix]
        }
        None => {
            let former = format!("{:016x}", container::hash(&config.name));
            [
                format!("tortie-k{}", container::name_hash(&config.name)),
                format!("tortie-k{}", former.get(..9).unwrap_or_default()),
            ]
        }
    };
    let volume = text("store_volume")?.map(Into::into);
    let node = config.node.clone().or_else(|| std::env::var("TORTIE_NODE").ok().filter(|n| !n.is_empty()));
    let node = node.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    if node.is_empty() || node == "(none)" {
        return refuse("node", "this host has no name: set it");
    }
    Ok(Some(Settings { config, node, ports_prefix, former_ports_prefix, volume, store: None }))
}
