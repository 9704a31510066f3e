//! The lab file as it is written: every key of containerlab's schema, unknown ones refused.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    pub(super) name: String,
    pub(super) prefix: Option<String>,
    pub(super) topology: RawTopology,
    #[serde(rename = "mgmt")]
    pub(super) _mgmt: Option<IgnoredAny>,
    #[serde(rename = "settings")]
    pub(super) _settings: Option<IgnoredAny>,
    #[serde(rename = "debug")]
    pub(super) _debug: Option<IgnoredAny>,
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

/// One level of a node's configuration: the node itself, its group, its kind or the defaults.
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
    // Keys below change nothing for a node made of namespaces. Those about images, restarts and container rights
    // (with `_`) pass silently, as no one could notice a difference; the others are reported as notes.
    #[serde(rename = "image-pull-policy")]
    pub(super) _image_pull_policy: Option<IgnoredAny>,
    #[serde(rename = "restart-policy")]
    pub(super) _restart_policy: Option<IgnoredAny>,
    pub(super) license: Option<IgnoredAny>,
    pub(super) r#type: Option<IgnoredAny>,
    pub(super) startup_config: Option<IgnoredAny>,
    pub(super) enforce_startup_config: Option<IgnoredAny>,
    pub(super) suppress_startup_config: Option<IgnoredAny>,
    #[serde(rename = "auto-remove")]
    pub(super) _auto_remove: Option<IgnoredAny>,
    pub(super) ports: Option<IgnoredAny>,
    pub(super) credentials: Option<IgnoredAny>,
    #[serde(rename = "labels")]
    pub(super) _labels: Option<IgnoredAny>,
    #[serde(rename = "runtime")]
    pub(super) _runtime: Option<IgnoredAny>,
    pub(super) mgmt_ipv4: Option<IgnoredAny>,
    pub(super) mgmt_ipv6: Option<IgnoredAny>,
    pub(super) link_apply_mode: Option<IgnoredAny>,
    pub(super) cpu: Option<IgnoredAny>,
    pub(super) memory: Option<IgnoredAny>,
    pub(super) cpu_set: Option<IgnoredAny>,
    pub(super) extras: Option<IgnoredAny>,
    pub(super) config: Option<IgnoredAny>,
    pub(super) dns: Option<IgnoredAny>,
    pub(super) certificate: Option<IgnoredAny>,
    pub(super) components: Option<IgnoredAny>,
    pub(super) aliases: Option<IgnoredAny>,
    pub(super) shm_size: Option<IgnoredAny>,
    #[serde(rename = "cap-add")]
    pub(super) _cap_add: Option<IgnoredAny>,
    #[serde(rename = "privileged")]
    pub(super) _privileged: Option<IgnoredAny>,
    #[serde(rename = "cgroupns-mode")]
    pub(super) _cgroupns_mode: Option<IgnoredAny>,
    pub(super) cgroup_parent: Option<IgnoredAny>,
    #[serde(rename = "security-opts")]
    pub(super) _security_opts: Option<IgnoredAny>,
    pub(super) devices: Option<IgnoredAny>,
}

impl NodeConfig {
    /// The keys of this level that have no effect here, except those that every lab may carry without surprise.
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

/// The two forms of a stage's commands.
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

/// Any form of link; which fields belong together is checked after reading, with the link's number in the message.
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
    #[serde(rename = "vars")]
    pub(super) _vars: Option<IgnoredAny>,
    #[serde(rename = "labels")]
    pub(super) _labels: Option<IgnoredAny>,
    #[serde(rename = "mode")]
    pub(super) _mode: Option<IgnoredAny>,
    #[serde(rename = "remote")]
    pub(super) _remote: Option<IgnoredAny>,
    #[serde(rename = "vni")]
    pub(super) _vni: Option<IgnoredAny>,
    #[serde(rename = "dst-port")]
    pub(super) _dst_port: Option<IgnoredAny>,
    #[serde(rename = "src-port")]
    pub(super) _src_port: Option<IgnoredAny>,
}

/// `NODE:INTERFACE`, or the same spelled out.
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
    #[serde(rename = "vars")]
    pub(super) _vars: Option<IgnoredAny>,
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

/// A text, number or truth value, kept as the text a shell would see.
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

/// A map in the order of the file; a key that comes twice is an error (YAML forbids it, most readers take the last).
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
