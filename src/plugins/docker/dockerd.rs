//! Queries of dockerd's own API for names and labels, which driver calls do not contain.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::api::client::{Client, escape};

/// Limit of a query: dockerd may hold its locks while it waits for a driver.
const PATIENCE: Duration = Duration::from_secs(2);

/// Client of dockerd's API.
#[derive(Debug, Clone)]
pub(super) struct Dockerd {
    client: Client,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Network {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) driver: String,
    #[serde(rename = "IPAM")]
    pub(super) ipam: NetworkIpam,
    /// Attachments by container id.
    pub(super) containers: Option<BTreeMap<String, Attachment>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct NetworkIpam {
    pub(super) driver: String,
    pub(super) config: Option<Vec<Subnet>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Subnet {
    pub(super) subnet: String,
    pub(super) auxiliary_addresses: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Attachment {
    /// Name of the container.
    name: String,
    #[serde(rename = "EndpointID")]
    pub(super) endpoint_id: String,
    #[serde(rename = "IPv4Address")]
    ipv4_address: String,
    #[serde(rename = "IPv6Address")]
    ipv6_address: String,
}

impl Attachment {
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        [&self.ipv4_address, &self.ipv6_address].into_iter().filter_map(|text| address(text))
    }
}

impl Network {
    /// Returns id and name of an endpoint's container, once dockerd lists it.
    pub(super) fn container_of(&self, endpoint: &str) -> Option<(String, String)> {
        let mut all = self.containers.iter().flatten();
        all.find(|(_, attachment)| attachment.endpoint_id == endpoint)
            .map(|(id, attachment)| (id.clone(), attachment.name.clone()))
    }
}

/// Parses an address with or without a prefix length.
fn address(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Container {
    config: ContainerConfig,
    state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ContainerState {
    pid: u32,
}

impl Container {
    /// Returns the labels of the container.
    pub(super) fn labels(self) -> BTreeMap<String, String> {
        self.config.labels.unwrap_or_default()
    }

    /// Returns the id of its first process, or `None` if it does not run.
    pub(super) fn pid(&self) -> Option<u32> {
        (self.state.pid > 0).then_some(self.state.pid)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ContainerConfig {
    labels: Option<BTreeMap<String, String>>,
}

impl Dockerd {
    pub(super) fn new(socket: &Path) -> Self {
        Self { client: Client::new(socket) }
    }

    async fn get<T: for<'de> Deserialize<'de>>(&self, path: &str) -> Option<T> {
        match tokio::time::timeout(PATIENCE, self.client.get(path)).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                tracing::debug!(target: "tortie::docker", "dockerd: {path}: {error}");
                None
            }
            Err(_) => None,
        }
    }

    pub(super) async fn networks(&self) -> Option<Vec<Network>> {
        self.get("/networks").await
    }

    pub(super) async fn network(&self, id: &str) -> Option<Network> {
        self.get(&format!("/networks/{}", escape(id))).await
    }

    pub(super) async fn container(&self, id: &str) -> Option<Container> {
        self.get(&format!("/containers/{}/json", escape(id))).await
    }

    /// Returns the objects of networks with these IPAM or network drivers, or `None` if dockerd does not
    /// answer every query.
    pub(super) async fn holdings(&self, drivers: &BTreeSet<&str>) -> Option<DockerState> {
        let mut all = DockerState::default();
        for network in self.networks().await? {
            if !drivers.contains(network.ipam.driver.as_str()) && !drivers.contains(network.driver.as_str()) {
                continue;
            }
            // The list of networks does not include their containers.
            let network = self.network(&network.id).await?;
            for attachment in network.containers.iter().flatten().map(|(_, attachment)| attachment) {
                all.endpoints.insert(attachment.endpoint_id.clone());
                all.addresses.extend(attachment.addresses());
            }
            for subnet in network.ipam.config.iter().flatten() {
                all.subnets.insert(subnet.subnet.clone());
                let aux = subnet.auxiliary_addresses.iter().flatten();
                all.addresses.extend(aux.filter_map(|(_, text)| address(text)));
            }
            all.networks.insert(network.id);
        }
        Some(all)
    }
}

/// Objects of Tortie's drivers that dockerd lists.
#[derive(Debug, Default)]
pub(super) struct DockerState {
    pub(super) networks: BTreeSet<String>,
    pub(super) endpoints: BTreeSet<String>,
    pub(super) subnets: BTreeSet<String>,
    /// Addresses of running containers, and auxiliary addresses.
    pub(super) addresses: BTreeSet<IpAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of dockerd 20.10, shortened.
    #[test]
    fn answers_of_the_api_are_read() {
        let network: Network = serde_json::from_str(
            r#"{"Name":"blue","Id":"0ff1ce","Created":"2026-01-01T00:00:00Z","Scope":"local","Driver":"tortie","EnableIPv6":false,
                "IPAM":{"Driver":"tortie-ipam","Options":{},"Config":[{"Subnet":"10.65.0.0/16","AuxiliaryAddresses":{"r":"10.65.0.9"}}]},
                "Containers":{"abc":{"Name":"c1","EndpointID":"c0ffee","MacAddress":"02:42:0a:41:00:02",
                "IPv4Address":"10.65.0.2/32","IPv6Address":""}},"Options":{},"Labels":{}}"#,
        )
        .unwrap();
        let attachment = &network.containers.as_ref().unwrap()["abc"];
        assert_eq!((attachment.endpoint_id.as_str(), network.name.as_str()), ("c0ffee", "blue"));
        assert_eq!(attachment.addresses().collect::<Vec<_>>(), ["10.65.0.2".parse::<IpAddr>().unwrap()]);
        let listed: Network =
            serde_json::from_str(r#"{"Id":"1","IPAM":{"Driver":"default","Config":null}}"#).unwrap();
        assert!(listed.ipam.config.is_none() && listed.containers.is_none());
        let container: Container = serde_json::from_str(
            r#"{"Id":"abc","State":{"Pid":77},"Config":{"Labels":{"org.projectcalico.label.role":"web"}}}"#,
        )
        .unwrap();
        assert_eq!(container.pid(), Some(77));
        assert_eq!(container.labels()["org.projectcalico.label.role"], "web");
        assert_eq!(network.container_of("c0ffee"), Some(("abc".to_owned(), "c1".to_owned())));
        assert_eq!(network.container_of("c0ff"), None);
    }
}
