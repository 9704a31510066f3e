//! Unmerged content of a lab file, with every key of containerlab's schema; unknown keys are rejected.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer};

use super::ignored::{
    Address, Amount, Any, ApplyMode, Certificate, CgroupNamespace, Component, Config, Credentials, Dns,
    Extras, Ipv4, Ipv6, Label, MacvlanMode, Mgmt, PortMapping, PullPolicy, RestartPolicy, Runtime, Settings,
    ShmSize, Text, Texts, Whole, some,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    pub(super) name: String,
    pub(super) prefix: Option<String>,
    pub(super) topology: RawTopology,
    #[serde(rename = "mgmt", default, deserialize_with = "some")]
    pub(super) _mgmt: Option<Mgmt>,
    #[serde(rename = "settings", default, deserialize_with = "some")]
    pub(super) _settings: Option<Settings>,
    #[serde(rename = "debug")]
    pub(super) _debug: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTopology {
    #[serde(default)]
    pub(super) defaults: NodeConfig,
    #[serde(default)]
    pub(super) kinds: Ordered<NodeConfig>,
    #[serde(default)]
    pub(super) groups: Ordered<NodeConfig>,
    pub(super) nodes: Ordered<Option<NodeConfig>>,
    #[serde(default)]
    pub(super) links: Vec<RawLink>,
}

/// One configuration level of a node: the node itself, its group, its kind or the defaults.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NodeConfig {
    pub(super) kind: Option<String>,
    pub(super) group: Option<String>,
    pub(super) image: Option<String>,
    pub(super) entrypoint: Option<String>,
    pub(super) cmd: Option<String>,
    pub(super) exec: Option<Vec<String>>,
    pub(super) binds: Option<Vec<String>>,
    pub(super) volumes: Option<Vec<String>>,
    pub(super) tmpfs: Option<Ordered<String>>,
    pub(super) env: Option<Ordered<Scalar>>,
    pub(super) env_files: Option<Vec<String>>,
    pub(super) sysctls: Option<Ordered<Scalar>>,
    pub(super) hostname: Option<String>,
    pub(super) user: Option<Scalar>,
    pub(super) network_mode: Option<String>,
    pub(super) pid_mode: Option<String>,
    pub(super) startup_delay: Option<u32>,
    pub(super) stages: Option<RawStages>,
    pub(super) healthcheck: Option<RawHealthcheck>,
    // The following keys have no effect on nodes made of namespaces. Those for images, restarts and container
    // privileges (with `_`) are ignored silently, because they make no visible difference; the others are
    // reported as notes. Their values are checked against the schema.
    #[serde(rename = "image-pull-policy", default, deserialize_with = "some")]
    pub(super) _image_pull_policy: Option<Text<PullPolicy>>,
    #[serde(rename = "restart-policy", default, deserialize_with = "some")]
    pub(super) _restart_policy: Option<Text<RestartPolicy>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) license: Option<Text<Any>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) r#type: Option<Text<Any>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) startup_config: Option<Text<Any>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) enforce_startup_config: Option<bool>,
    #[serde(default, deserialize_with = "some")]
    pub(super) suppress_startup_config: Option<bool>,
    #[serde(rename = "auto-remove", default, deserialize_with = "some")]
    pub(super) _auto_remove: Option<bool>,
    #[serde(default, deserialize_with = "some")]
    pub(super) ports: Option<Texts<PortMapping>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) credentials: Option<Credentials>,
    #[serde(rename = "labels", default, deserialize_with = "some")]
    pub(super) _labels: Option<Ordered<Label>>,
    #[serde(rename = "runtime", default, deserialize_with = "some")]
    pub(super) _runtime: Option<Text<Runtime>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) mgmt_ipv4: Option<Text<Ipv4>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) mgmt_ipv6: Option<Text<Ipv6>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) link_apply_mode: Option<Text<ApplyMode>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) cpu: Option<Amount>,
    #[serde(default, deserialize_with = "some")]
    pub(super) memory: Option<Text<Any>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) cpu_set: Option<Text<Any>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) extras: Option<Extras>,
    #[serde(default, deserialize_with = "some")]
    pub(super) config: Option<Config>,
    #[serde(default, deserialize_with = "some")]
    pub(super) dns: Option<Dns>,
    #[serde(default, deserialize_with = "some")]
    pub(super) certificate: Option<Certificate>,
    #[serde(default, deserialize_with = "some")]
    pub(super) components: Option<Vec<Component>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) aliases: Option<Texts>,
    #[serde(default, deserialize_with = "some")]
    pub(super) shm_size: Option<Text<ShmSize>>,
    #[serde(rename = "cap-add", default, deserialize_with = "some")]
    pub(super) _cap_add: Option<Texts>,
    #[serde(rename = "privileged", default, deserialize_with = "some")]
    pub(super) _privileged: Option<bool>,
    #[serde(rename = "cgroupns-mode", default, deserialize_with = "some")]
    pub(super) _cgroupns_mode: Option<Text<CgroupNamespace>>,
    #[serde(default, deserialize_with = "some")]
    pub(super) cgroup_parent: Option<Text<Any>>,
    #[serde(rename = "security-opts", default, deserialize_with = "some")]
    pub(super) _security_opts: Option<Texts>,
    #[serde(default, deserialize_with = "some")]
    pub(super) devices: Option<Texts>,
}

impl NodeConfig {
    /// Returns the keys of this level that have no effect and deserve a note.
    pub(super) fn without_effect(&self) -> Vec<&'static str> {
        let keys = [
            ("license", self.license.is_some()),
            ("type", self.r#type.is_some()),
            ("startup-config", self.startup_config.is_some()),
            ("enforce-startup-config", self.enforce_startup_config.is_some()),
            ("suppress-startup-config", self.suppress_startup_config.is_some()),
            ("ports", self.ports.is_some()),
            ("credentials", self.credentials.is_some()),
            ("mgmt-ipv4", self.mgmt_ipv4.is_some()),
            ("mgmt-ipv6", self.mgmt_ipv6.is_some()),
            ("link-apply-mode", self.link_apply_mode.is_some()),
            ("cpu", self.cpu.is_some()),
            ("memory", self.memory.is_some()),
            ("cpu-set", self.cpu_set.is_some()),
            ("extras", self.extras.is_some()),
            ("config", self.config.is_some()),
            ("dns", self.dns.is_some()),
            ("certificate", self.certificate.is_some()),
            ("components", self.components.is_some()),
            ("aliases", self.aliases.is_some()),
            ("shm-size", self.shm_size.is_some()),
            ("cgroup-parent", self.cgroup_parent.is_some()),
            ("devices", self.devices.is_some()),
        ];
        keys.into_iter().filter_map(|(key, set)| set.then_some(key)).collect()
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawStages {
    pub(super) create: Option<RawStage>,
    pub(super) create_links: Option<RawStage>,
    pub(super) configure: Option<RawStage>,
    pub(super) healthy: Option<RawStage>,
    pub(super) exit: Option<RawStage>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawStage {
    #[serde(default)]
    pub(super) wait_for: Vec<RawWait>,
    pub(super) exec: Option<RawStageExec>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWait {
    pub(super) node: String,
    pub(super) stage: String,
}

/// Commands of a stage, in either form.
#[derive(Debug, Clone)]
pub(super) enum RawStageExec {
    Phases(StagePhases),
    List(Vec<StageCommand>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct StagePhases {
    #[serde(default)]
    pub(super) on_enter: Vec<String>,
    #[serde(default)]
    pub(super) on_exit: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StageCommand {
    pub(super) command: String,
    pub(super) target: Option<String>,
    pub(super) phase: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawHealthcheck {
    pub(super) test: Vec<String>,
    pub(super) interval: Option<u64>,
    pub(super) retries: Option<u64>,
    #[serde(rename = "timeout")]
    pub(super) _timeout: Option<u64>,
    pub(super) start_period: Option<u64>,
}

/// A link of any type. The combination of its fields is checked later, so that errors contain the number of
/// the link.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawLink {
    pub(super) r#type: Option<String>,
    pub(super) endpoints: Option<Vec<RawEnd>>,
    pub(super) endpoint: Option<RawEnd>,
    pub(super) host_interface: Option<String>,
    pub(super) mtu: Option<u32>,
    pub(super) ipv4: Option<Vec<String>>,
    pub(super) ipv6: Option<Vec<String>>,
    #[serde(rename = "vars", default, deserialize_with = "some")]
    pub(super) _vars: Option<Ordered<IgnoredAny>>,
    #[serde(rename = "labels", default, deserialize_with = "some")]
    pub(super) _labels: Option<Ordered<Label>>,
    #[serde(rename = "mode", default, deserialize_with = "some")]
    pub(super) _mode: Option<Text<MacvlanMode>>,
    #[serde(rename = "remote", default, deserialize_with = "some")]
    pub(super) _remote: Option<Text<Address>>,
    #[serde(rename = "vni", default, deserialize_with = "some")]
    pub(super) _vni: Option<Whole<1, 16_777_215>>,
    #[serde(rename = "dst-port", default, deserialize_with = "some")]
    pub(super) _dst_port: Option<Whole<1, 65_535>>,
    #[serde(rename = "src-port", default, deserialize_with = "some")]
    pub(super) _src_port: Option<Whole<1, 65_535>>,
}

/// An endpoint of a link, as `NODE:INTERFACE` or as a map.
#[derive(Debug, Clone)]
pub(super) enum RawEnd {
    Brief(String),
    Full(RawFullEnd),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFullEnd {
    pub(super) node: String,
    pub(super) interface: String,
    pub(super) mac: Option<String>,
    pub(super) ipv4: Option<String>,
    pub(super) ipv6: Option<String>,
    #[serde(rename = "vars", default, deserialize_with = "some")]
    pub(super) _vars: Option<Ordered<IgnoredAny>>,
}

impl<'de> Deserialize<'de> for RawEnd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = RawEnd;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("NODE:INTERFACE or a map with node and interface")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawEnd, E> {
                Ok(RawEnd::Brief(text.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawEnd, A::Error> {
                RawFullEnd::deserialize(MapAccessDeserializer::new(map)).map(RawEnd::Full)
            }
        }
        deserializer.deserialize_any(Form)
    }
}

impl<'de> Deserialize<'de> for RawStageExec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = RawStageExec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map with on-enter or on-exit, or a list of commands")
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<RawStageExec, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(RawStageExec::List)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawStageExec, A::Error> {
                StagePhases::deserialize(MapAccessDeserializer::new(map)).map(RawStageExec::Phases)
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// A text, number or boolean, kept as the text that a shell would receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scalar(pub(super) String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl Visitor<'_> for Form {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number or true/false")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Scalar, E> {
                Ok(Scalar(v.to_owned()))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Scalar, E> {
                Ok(Scalar(v.to_string()))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Scalar, E> {
                Ok(Scalar(v.to_string()))
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Scalar, E> {
                Ok(Scalar(v.to_string()))
            }
            fn visit_bool<E: de::Error>(self, v: bool) -> Result<Scalar, E> {
                Ok(Scalar(v.to_string()))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// A map in file order. A duplicate key is an error (YAML forbids it, but most parsers use the last value).
#[derive(Debug, Clone)]
pub(super) struct Ordered<T>(pub(super) Vec<(String, T)>);

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Ordered<T> {
    pub(super) fn get(&self, key: &str) -> Option<&T> {
        self.0.iter().find_map(|(k, v)| (k == key).then_some(v))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Form<T> {
            type Value = Ordered<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut entries: Vec<(String, T)> = Vec::new();
                while let Some(Scalar(key)) = map.next_key()? {
                    if entries.iter().any(|(k, _)| *k == key) {
                        return Err(de::Error::custom(format!("`{key}` stands twice")));
                    }
                    entries.push((key, map.next_value()?));
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Form(PhantomData))
    }
}
