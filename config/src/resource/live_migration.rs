//! Live migrations: moves of virtual machines between hosts, while they run.

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use crate::key::EndpointKey;
use crate::selector::Selector;

/// Orchestrator whose workloads have names that are unique in the cluster. The host of such an endpoint is
/// not compared.
const KUBERNETES: &str = "k8s";

/// A live migration of Calico 3. It exists while a workload moves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LiveMigration {
    /// Endpoints that the workload moves away from.
    pub source: Option<MovingEndpoint>,
    /// Endpoints that the workload moves to.
    pub target: Option<MigrationTarget>,
}

/// The endpoints that a workload moves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationTarget {
    /// By name.
    Endpoint(MovingEndpoint),
    /// By labels.
    Selector(Selector),
}

/// An endpoint of a live migration, or all endpoints of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovingEndpoint {
    /// Host of the endpoint.
    pub host: String,
    /// Orchestrator.
    pub orchestrator: String,
    /// Namespace and name of the workload, `<namespace>/<workload>`.
    pub workload: String,
    /// Name of the endpoint; `None` for all endpoints of the workload.
    pub endpoint: Option<String>,
}

impl MovingEndpoint {
    /// Returns true if this is the endpoint, or one of the endpoints.
    #[must_use]
    pub fn is(&self, key: &EndpointKey) -> bool {
        let EndpointKey::Workload { host, orchestrator, workload, endpoint } = key else { return false };
        (self.host == *host || self.orchestrator == KUBERNETES)
            && self.orchestrator == *orchestrator
            && self.workload == *workload
            && self.endpoint.as_ref().is_none_or(|name| name == endpoint)
    }

    fn parse(value: serde_json::Value, path: &str) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value).map_err(|error| error.within(path))?;
        let mut text = |name: &str| -> Result<String, ValueError> {
            let text = fields.text(name)?.filter(|text| !text.is_empty());
            text.ok_or_else(|| ValueError::new(name, "nothing", "write the name in double quotes"))
        };
        let mut read = || {
            let (host, orchestrator, workload) = (text("host")?, text("orchestrator")?, text("workload")?);
            Ok(Self { host, orchestrator, workload, endpoint: text("endpoint").ok() })
        };
        read().map_err(|error: ValueError| error.within(path))
    }

    fn json(&self) -> serde_json::Value {
        let mut writer = Writer::default();
        writer.put("host", self.host.as_str());
        writer.put("orchestrator", self.orchestrator.as_str());
        writer.put("workload", self.workload.as_str());
        writer.put_text("endpoint", self.endpoint.as_ref());
        writer.object(&Extra::default())
    }
}

impl LiveMigration {
    /// Parses a value.
    ///
    /// # Errors
    /// If a member is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let source = fields.take("source").map(|value| MovingEndpoint::parse(value, "source")).transpose()?;
        let by_name =
            fields.take("target").map(|value| MovingEndpoint::parse(value, "target")).transpose()?;
        let selector: Option<Selector> = fields.parsed("target_selector", "write a selector")?;
        let target = selector.map(MigrationTarget::Selector).or(by_name.map(MigrationTarget::Endpoint));
        Ok(Self { source, target })
    }

    /// Formats the value.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        if let Some(source) = &self.source {
            writer.put("source", source.json());
        }
        match &self.target {
            Some(MigrationTarget::Endpoint(endpoint)) => writer.put("target", endpoint.json()),
            Some(MigrationTarget::Selector(selector)) => writer.put("target_selector", selector.to_string()),
            None => {}
        }
        writer.bytes(&Extra::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: &str, orchestrator: &str, endpoint: Option<&str>) -> MovingEndpoint {
        MovingEndpoint {
            host: host.to_owned(),
            orchestrator: orchestrator.to_owned(),
            workload: "openstack/vm".to_owned(),
            endpoint: endpoint.map(ToOwned::to_owned),
        }
    }

    fn key(host: &str, orchestrator: &str, workload: &str, endpoint: &str) -> EndpointKey {
        EndpointKey::Workload {
            host: host.to_owned(),
            orchestrator: orchestrator.to_owned(),
            workload: workload.to_owned(),
            endpoint: endpoint.to_owned(),
        }
    }

    #[test]
    fn a_migration_names_endpoints_of_one_host_or_of_a_pod() {
        let vm = endpoint("h1", "openstack", Some("port"));
        assert!(vm.is(&key("h1", "openstack", "openstack/vm", "port")));
        for other in [
            key("h2", "openstack", "openstack/vm", "port"),
            key("h1", "cni", "openstack/vm", "port"),
            key("h1", "openstack", "openstack/vm2", "port"),
            key("h1", "openstack", "openstack/vm", "port2"),
            EndpointKey::Host { host: "h1".to_owned(), endpoint: "port".to_owned() },
        ] {
            assert!(!vm.is(&other), "{other}");
        }
        let all = endpoint("h1", "openstack", None);
        assert!(all.is(&key("h1", "openstack", "openstack/vm", "port2")));
        // The name of a pod is unique in the cluster, wherever it runs.
        assert!(endpoint("h1", "k8s", None).is(&key("h2", "k8s", "openstack/vm", "eth0")));
    }

    #[test]
    fn a_value_is_read_as_it_is_written() {
        let selector = MigrationTarget::Selector("vm == 'a'".parse().unwrap());
        for migration in [
            LiveMigration::default(),
            LiveMigration {
                source: Some(endpoint("h1", "openstack", None)),
                target: Some(MigrationTarget::Endpoint(endpoint("h2", "openstack", Some("port")))),
            },
            LiveMigration { source: None, target: Some(selector) },
        ] {
            assert_eq!(LiveMigration::parse(&migration.to_value()), Ok(migration));
        }
        let error = LiveMigration::parse(br#"{"target": {"host": "h2"}}"#).unwrap_err();
        assert!(error.to_string().contains("target.orchestrator"), "{error}");
    }
}
