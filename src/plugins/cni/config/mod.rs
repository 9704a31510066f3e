//! Parses the configuration that a runtime writes to stdin: Tortie's fields, Calico's, and those that
//! runtimes add.

pub(super) mod args;
pub(super) mod datastore;
pub(super) mod runtime;
pub(super) mod settings;

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::plugins::attach::AgentAbsent;
use crate::plugins::cni::config::args::Args;
use crate::plugins::cni::config::datastore::Datastore;
use crate::plugins::cni::config::runtime::RuntimeConfig;
use crate::plugins::cni::config::settings::{IpamSettings, LogSettings};
use crate::plugins::cni::protocol::env::is_identifier;
use crate::plugins::cni::protocol::error::{CniError, code, shown};
use crate::plugins::cni::protocol::json::{Object, elements};
use crate::plugins::cni::protocol::result::{CniResult, Dns};
use crate::plugins::cni::protocol::version::Version;

/// A parsed and checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Version of the configuration, in which results are written.
    pub version: Version,
    /// Name of the network.
    pub name: String,
    /// Name of the plugin in the configuration (`type`).
    pub kind: String,
    /// Store settings, if the configuration has them.
    pub datastore: Option<Datastore>,
    /// This host's name in the data model (`node`, Calico's `nodename` and `hostname`).
    pub node: Option<String>,
    /// Path of the agent's unix socket.
    pub socket: Option<PathBuf>,
    /// Behaviour if no agent listens (`agentAbsent`).
    pub agent_absent: AgentAbsent,
    /// MTU in octets; `None`, 0 in the configuration, for that of the file, or the kernel's default.
    pub mtu: Option<u32>,
    /// File with the MTU of workloads (`mtu_file`), if it is not the usual one.
    pub mtu_file: Option<PathBuf>,
    /// True if an `ADD` fails without that file (`require_mtu_file`).
    pub requires_mtu_file: bool,
    /// Prefix of the names of host interfaces.
    pub interface_prefix: String,
    /// True if `policy.type` is `k8s`: the profile is that of the namespace, `k8s_ns.<namespace>`.
    pub namespace_profiles: bool,
    /// Settings for address allocation.
    pub ipam: IpamSettings,
    /// Name servers in the configuration (`dns`).
    pub dns: Dns,
    /// Arguments of the runtime (`runtimeConfig`).
    pub runtime: RuntimeConfig,
    /// Arguments of callers (`args`).
    pub args: Args,
    /// Result of the earlier plugins in the chain.
    pub prev_result: Option<CniResult>,
    /// Attachments that still exist, for `GC`.
    pub valid_attachments: Option<Vec<Attachment>>,
    /// Destination and level of logs.
    pub log: LogSettings,
    /// Ignored fields, for the log.
    pub notes: Vec<String>,
    /// Fields that the caller of [`Config::parse`] requested by name.
    pub more: Map<String, Value>,
}

/// Interface of a container, as `GC` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attachment {
    /// `CNI_CONTAINERID`: id of the container.
    pub container_id: String,
    /// `CNI_IFNAME`: name of the interface.
    pub ifname: String,
}

/// Fields of Tortie, Calico and the specification, except those of the store.
const FIELDS: [&str; 36] = [
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "capabilities",
    "runtimeConfig",
    "args",
    "prevResult",
    "ipam",
    "dns",
    "ipMasq",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
    "node",
    "nodename",
    "hostname",
    "socket",
    "agentAbsent",
    "mtu",
    "mtu_file",
    "require_mtu_file",
    "interface_prefix",
    "policy",
    "kubernetes",
    "log",
    "log_level",
    "log_file_path",
    // Fields of Calico that have no effect here.
    "log_file_max_size",
    "log_file_max_age",
    "log_file_max_count",
    "nodename_file_optional",
    "container_settings",
    "feature_control",
];

/// Handling of unknown and malformed fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// An error with key and value, because a misspelt field would otherwise be ignored silently.
    Refuse,
    /// A note for the log, unless the field names the network or the store. For `DEL`: an `ADD` that failed
    /// because of a field is followed by a `DEL` with the same field, which must succeed.
    Lenient,
    /// Unknown fields belong to the main plugin, which calls the IPAM plugin with its own configuration.
    Ipam,
}

impl Strictness {
    fn soft<T: Default>(self, notes: &mut Vec<String>, read: Result<T, CniError>) -> Result<T, CniError> {
        match (self, read) {
            (Self::Lenient, Err(error)) => {
                notes.push(format!("{error}; ignored"));
                Ok(T::default())
            }
            (_, read) => read,
        }
    }
}

impl Config {
    /// Parses a configuration. `more` lists further fields that the caller knows, which are returned in
    /// [`Config::more`].
    ///
    /// # Errors
    /// Code 6 for input that is not a JSON object, code 1 for an unsupported version, code 2 for unknown
    /// fields, code 7 for malformed ones; with the version for the error's output.
    pub fn parse(bytes: &[u8], strictness: Strictness, more: &[&str]) -> Result<Self, (Version, CniError)> {
        let decode = |msg: String| (Version::NEWEST, CniError::new(code::DECODE, msg));
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(decode("there is no configuration on stdin".into()));
        }
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| decode(format!("the configuration on stdin is not JSON: {error}")))?;
        let Value::Object(map) = value else {
            return Err(decode("the configuration on stdin is not a JSON object".into()));
        };
        let version = Version::of(&map).map_err(|error| (Version::NEWEST, error))?;
        Self::read(&map, version, strictness, more).map_err(|error| (version, error))
    }

    fn read(
        map: &Map<String, Value>,
        version: Version,
        strictness: Strictness,
        more: &[&str],
    ) -> Result<Self, CniError> {
        let object = Object::new("", map);
        let mut notes = Vec::new();
        let mut found = Vec::new();
        let name = name(&object)?;
        let ipam_object = object.object("ipam")?;
        // If another main plugin delegates to Tortie, Tortie's fields may be next to that plugin's, or in
        // `ipam`.
        let ours =
            |ipam: &&Object<'_>| matches!(ipam.text("type"), Ok(None | Some("tortie-ipam" | "calico-ipam")));
        let inner = ipam_object.as_ref().filter(ours);
        let datastore = match inner.map(datastore::parse).transpose()?.flatten() {
            Some(datastore) => Some(datastore),
            None => datastore::parse(&object)?,
        };
        let kind = object.text("type")?.unwrap_or_default().to_owned();
        if strictness != Strictness::Ipam {
            let known = fields(&object, &kind, more, &mut notes);
            strictness.soft(&mut notes, known)?;
        }
        let more = more_of(&object, more);
        let all = strictness != Strictness::Ipam;
        let runtime = object.get("runtimeConfig").map(|value| RuntimeConfig::parse(value, all, &mut found));
        let runtime = strictness.soft(&mut notes, runtime.transpose())?.unwrap_or_default();
        let args = object.get("args").map(|value| Args::parse(value, &mut found)).unwrap_or_default();
        let ipam = ipam_object.as_ref().map(|ipam| IpamSettings::parse(ipam, &mut found));
        let ipam = strictness.soft(&mut notes, ipam.transpose())?.unwrap_or_default();
        let policy = object.object("policy").and_then(|policy| {
            policy.map_or(Ok(None), |policy| policy.text("type").map(|text| text.map(str::to_owned)))
        });
        let policy_type = strictness.soft(&mut notes, policy)?;
        let dns = object.object("dns").and_then(|dns| dns.map(|dns| Dns::parse(&dns)).transpose());
        let mtu = if all { strictness.soft(&mut notes, object.number("mtu", 65_535))? } else { None };
        let mtu_file = strictness.soft(&mut notes, object.text("mtu_file"))?;
        let requires_mtu_file =
            strictness.soft(&mut notes, object.switch("require_mtu_file"))?.unwrap_or_default();
        let mut node = Vec::new();
        for object in inner.into_iter().chain([&object]) {
            node.extend([object.text("node")?, object.text("nodename")?, object.text("hostname")?]);
        }
        let log = match inner.map(LogSettings::parse).transpose()?.flatten() {
            Some(log) => log,
            None => LogSettings::parse(&object)?.unwrap_or_default(),
        };
        let prev = object.get("prevResult").map(|value| CniResult::parse("prevResult", value, version));
        notes.append(&mut found);
        Ok(Self {
            version,
            name,
            kind,
            datastore,
            node: node.into_iter().flatten().next().map(str::to_owned),
            socket: object.text("socket")?.map(PathBuf::from),
            agent_absent: strictness
                .soft(&mut notes, object.parsed_or_why("agentAbsent"))?
                .unwrap_or_default(),
            mtu: mtu.and_then(|mtu| u32::try_from(mtu).ok()).filter(|mtu| *mtu > 0),
            mtu_file: mtu_file.map(PathBuf::from),
            requires_mtu_file,
            interface_prefix: object.text("interface_prefix")?.unwrap_or("cali").to_owned(),
            namespace_profiles: policy_type.as_deref() == Some("k8s"),
            ipam,
            dns: strictness.soft(&mut notes, dns)?.unwrap_or_default(),
            runtime,
            args,
            prev_result: strictness.soft(&mut notes, prev.transpose())?,
            valid_attachments: attachments(&object)?,
            log,
            notes,
            more,
        })
    }

    /// Returns the name servers for the result: the runtime's, otherwise the configuration's.
    #[must_use]
    pub fn wanted_dns(&self) -> Option<&Dns> {
        self.runtime.dns.as_ref().or(Some(&self.dns)).filter(|dns| !dns.is_empty())
    }
}

/// Returns the fields of a configuration that Tortie does not know.
fn others<'a>(object: &Object<'a>) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object.others(&FIELDS).filter(|(key, _)| !datastore::is_field(key))
}

/// Rejects unknown fields, and `ipMasq`, which has no effect here.
fn fields(object: &Object<'_>, kind: &str, more: &[&str], notes: &mut Vec<String>) -> Result<(), CniError> {
    for (key, value) in others(object) {
        if more.contains(&key.as_str()) {
            continue;
        }
        // Later versions of Calico's plugins have more fields, and runtimes have their own (with a dot).
        if kind.starts_with("calico") || key.contains(['.', '/']) {
            notes.push(format!("field `{key}` is not used"));
            continue;
        }
        let msg = format!("field `{key}` ({}) is unknown: remove it, or correct its name", shown(value));
        return Err(CniError::new(code::FIELD, msg));
    }
    if object.switch("ipMasq")? == Some(true) {
        let msg =
            "`ipMasq` is true, and we masquerade by pool: write \"masquerade\": true into the pool's value";
        return Err(CniError::new(code::FIELD, msg));
    }
    Ok(())
}

fn more_of(object: &Object<'_>, more: &[&str]) -> Map<String, Value> {
    let known = others(object).filter(|(key, _)| more.contains(&key.as_str()));
    known.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn name(object: &Object<'_>) -> Result<String, CniError> {
    let name = object.text("name")?.unwrap_or_default();
    if is_identifier(name) {
        return Ok(name.to_owned());
    }
    let value = object.get("name").unwrap_or(&Value::Null);
    let expected = "name the network with letters, digits, `_`, `.` and `-`, a letter or digit first";
    Err(CniError::value("name", value, expected))
}

/// Parses the list of `GC`; older drafts call it `cni.dev/attachments`.
fn attachments(object: &Object<'_>) -> Result<Option<Vec<Attachment>>, CniError> {
    let names = ["cni.dev/valid-attachments", "cni.dev/attachments"];
    let Some((at, value)) = names.iter().find_map(|name| Some((*name, object.get(name)?))) else {
        return Ok(None);
    };
    let mut list = Vec::new();
    for (at, value) in elements(at, value)? {
        let object = Object::of(&at, value)?;
        let text = |name: &str| {
            object
                .text(name)?
                .map(str::to_owned)
                .ok_or_else(|| CniError::new(code::CONFIG, format!("`{}` is missing", object.at(name))))
        };
        list.push(Attachment { container_id: text("containerID")?, ifname: text("ifname")? });
    }
    Ok(Some(list))
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
