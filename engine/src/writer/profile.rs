//! Profiles of networks: created once, together with the first endpoint that names them, and never changed.

use serde_json::json;
use tortie_config::Dialect;
use tortie_config::calico3::write::{
    Birth, NetworkIngress, check_name, network_profile, network_profile_key, profile_name,
};
use tortie_config::key::{Key, ProfilePart};
use tortie_config::resource::Resource;
use tortie_store::{Compare, KeyValue, Op, Txn};

use super::{EndpointError, Writer};

/// Profile of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileChoice {
    /// No profile: only policies allow traffic.
    None,
    /// This profile, which another writer maintains.
    Use(String),
    /// The profile of a network. If it does not exist, it is created: it allows all egress, and ingress from
    /// endpoints with the same profile. An existing profile is never changed.
    Create(String),
    /// The network's profile, followed by one that allows all ingress to the pods of the network, as Calico
    /// does in Kubernetes. These are two profiles, so that neither depends on the order in which pods and
    /// other containers are created.
    CreateOpen(String),
}

impl ProfileChoice {
    /// Returns the names of the profiles in the order of evaluation, as a v1 store has them.
    fn names(&self) -> Vec<String> {
        match self {
            Self::None => Vec::new(),
            Self::Use(name) | Self::Create(name) => vec![name.clone()],
            Self::CreateOpen(name) => vec![name.clone(), of_pods(name)],
        }
    }

    /// Returns the profiles to create if they are absent.
    fn created(&self) -> Vec<(String, NetworkIngress)> {
        match self {
            Self::None | Self::Use(_) => Vec::new(),
            Self::Create(name) => vec![(name.clone(), NetworkIngress::Members)],
            Self::CreateOpen(name) => {
                vec![(name.clone(), NetworkIngress::Members), (of_pods(name), NetworkIngress::All)]
            }
        }
    }
}

/// Returns the name of the profile that allows all ingress to the pods of a network. It differs from every
/// network name, because these begin with a letter or a digit.
fn of_pods(network: &str) -> String {
    format!("_pods.{network}")
}

impl Writer {
    /// Returns the name that the profile of a network or namespace has in the store. Calico 3 has DNS names:
    /// another one is changed by the rule of Calico's upgrade.
    #[must_use]
    pub fn profile_name(self, name: &str) -> String {
        match self.dialect() {
            Dialect::V1 => name.to_owned(),
            Dialect::V3 => profile_name(name),
        }
    }

    /// Returns the names of an endpoint's profiles in the order of evaluation.
    #[must_use]
    pub fn profile_names(self, choice: &ProfileChoice) -> Vec<String> {
        choice.names().iter().map(|name| self.profile_name(name)).collect()
    }

    /// Returns the keys that show which profiles exist, in the order of [`Writer::create_profiles`].
    pub(super) fn profile_keys(self, choice: &ProfileChoice) -> Vec<String> {
        let created = choice.created().into_iter();
        created.flat_map(|(name, _)| self.parts_of(&name)).collect()
    }

    fn parts_of(self, name: &str) -> Vec<String> {
        let part = |part| Key::Profile { name: name.to_owned(), part }.to_string();
        match self.dialect() {
            Dialect::V1 => [ProfilePart::Rules, ProfilePart::Tags, ProfilePart::Labels].map(part).into(),
            Dialect::V3 => vec![network_profile_key(&profile_name(name)).to_string()],
        }
    }

    /// Adds the creation of missing profiles to a transaction. If any key of a profile exists, another writer
    /// has created it.
    pub(super) fn create_profiles(
        self,
        choice: &ProfileChoice,
        stored: &[Option<KeyValue>],
        birth: &mut dyn FnMut() -> Birth,
        txn: &mut Txn,
    ) -> Result<(), EndpointError> {
        let mut stored = stored.iter();
        for (name, ingress) in choice.created() {
            let parts = self.parts_of(&name).len();
            // Takes the values of all parts, so that those of the next profile follow.
            let found: Vec<&Option<KeyValue>> = stored.by_ref().take(parts).collect();
            if found.iter().any(|found| found.is_some()) {
                continue;
            }
            let values = match self.dialect() {
                Dialect::V1 => v1_profile(&name, ingress)?,
                Dialect::V3 => {
                    let name = profile_name(&name);
                    let key = network_profile_key(&name);
                    check_name(&key).map_err(|error| EndpointError::invalid("the network's name", error))?;
                    vec![(key.to_string(), network_profile(&name, ingress, &birth()))]
                }
            };
            for (key, value) in values {
                txn.compare.push(Compare::Absent(key.clone()));
                txn.ops.push(Op::Put { key, value, lease: None });
            }
        }
        Ok(())
    }
}

/// Returns the keys and values of a network's profile in a v1 store: its members have a tag with its name.
fn v1_profile(name: &str, ingress: NetworkIngress) -> Result<Vec<(String, Vec<u8>)>, EndpointError> {
    let of = |part| Key::Profile { name: name.to_owned(), part };
    let inbound = match ingress {
        NetworkIngress::Members => json!({"action": "allow", "src_tag": name}),
        NetworkIngress::All => json!({"action": "allow"}),
    };
    let rules = json!({"inbound_rules": [inbound], "outbound_rules": [{"action": "allow"}]});
    let mut parts = vec![(of(ProfilePart::Rules), rules)];
    if ingress == NetworkIngress::Members {
        parts.push((of(ProfilePart::Tags), json!([name])));
    }
    let value = |(key, value): (Key, serde_json::Value)| {
        let resource = Resource::parse(&key, value.to_string().as_bytes()).map_err(|error| {
            EndpointError::invalid(format!("the network's name `{name}` cannot be a profile's"), error)
        })?;
        Ok((key.to_string(), resource.to_value()))
    };
    parts.into_iter().map(value).collect()
}
