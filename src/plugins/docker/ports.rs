//! Published ports (`-p` and `-P`): port mappings from the host to containers of Tortie's network driver.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use serde_json::{Value, json};
use tortie_config::key::DockerItem;

use super::driver::Driver;
use super::error::Refusal;
use super::network::blocking;
use super::poolid::shorten;
use super::records::{EndpointRecord, Published};
use super::state::RecordKind;
use super::wire;
use tortie_kernel::container::{self, PortMapping, Transport};

const PORT_MAP: &str = "com.docker.network.portmap";
/// Range of host ports for containers that request none, as in Docker.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_153..=65_535;

fn transport(proto: u8) -> Result<Transport, Refusal> {
    [Transport::Tcp, Transport::Udp, Transport::Sctp]
        .into_iter()
        .find(|transport| transport.number() == proto)
        .ok_or_else(|| {
            Refusal::new(format!("ports of IP protocol {proto} cannot be published: TCP, UDP or SCTP"))
        })
}

/// True if a program of this host listens on the port. SCTP sockets are not checked.
fn listened(transport: Transport, at: SocketAddr) -> bool {
    let error = match transport {
        Transport::Tcp => TcpListener::bind(at).err(),
        Transport::Udp => UdpSocket::bind(at).err(),
        Transport::Sctp => None,
    };
    error.is_some_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// Selects the host ports. `taken` are the protocols and ports that are mapped to other containers.
fn choose(bindings: &[wire::PortBinding], taken: &BTreeSet<(u8, u16)>) -> Result<Vec<Published>, Refusal> {
    let mut taken = taken.clone();
    let mut all = Vec::new();
    for binding in bindings {
        let transport = transport(binding.proto)?;
        if binding.port == 0 {
            return Err(Refusal::new("a published port of a container is 1 to 65535"));
        }
        let host_ip: Option<IpAddr> = match binding.host_ip.as_str() {
            "" => None,
            text => Some(
                text.parse()
                    .map_err(|_| Refusal::new(format!("HostIP `{}` is no IP address", shorten(text))))?,
            ),
        };
        let at = |port| SocketAddr::new(host_ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port);
        let range = match binding.host_port {
            0 => EPHEMERAL,
            first => first..=binding.host_port_end.max(first),
        };
        let shown = format!("{}-{}/{}", range.start(), range.end(), transport.as_str());
        let port = range
            .into_iter()
            .find(|port| !taken.contains(&(binding.proto, *port)) && !listened(transport, at(*port)))
            .ok_or_else(|| Refusal::new(format!("port is already allocated on this host: {shown}")))?;
        taken.insert((binding.proto, port));
        all.push(Published { proto: binding.proto, host_ip, host_port: port, port: binding.port });
    }
    Ok(all)
}

impl Driver {
    pub(super) async fn program_external(&self, request: &wire::Named) -> Result<Value, Refusal> {
        let bindings: Vec<wire::PortBinding> = match request.options.get(PORT_MAP) {
            None | Some(Value::Null) => Vec::new(),
            Some(value) => serde_json::from_value(value.clone())
                .map_err(|error| Refusal::new(format!("{PORT_MAP}: {}", shorten(&error.to_string()))))?,
        };
        let endpoint = request.endpoint_id.as_str();
        let record = self.endpoint(endpoint).await?;
        if bindings.is_empty() {
            return Ok(json!({}));
        }
        // Two containers that start at the same time must not get the same port.
        let _lock = self.choices.lock().await;
        let mut taken = BTreeSet::new();
        for (item, other, _) in self.state.list::<EndpointRecord>(RecordKind::Endpoints).await? {
            if item != DockerItem::Endpoint(endpoint.to_owned()) {
                taken.extend(other.ports.iter().map(|port| (port.proto, port.host_port)));
            }
        }
        let (table, addrs) = (Self::table(endpoint), record.addresses.clone());
        let ports = blocking(move || {
            let ports = choose(&bindings, &taken)?;
            let mut mappings = Vec::with_capacity(ports.len());
            for port in &ports {
                mappings.push(PortMapping {
                    host_ip: port.host_ip,
                    host_port: port.host_port,
                    container_port: port.port,
                    protocol: transport(port.proto)?,
                });
            }
            container::map_ports(&table, &addrs, &mappings)?;
            Ok(ports)
        })
        .await?;
        let item = DockerItem::Endpoint(endpoint.to_owned());
        self.state
            .change(&item, |old: Option<EndpointRecord>| {
                Ok(old.map(|old| EndpointRecord { ports: ports.clone(), ..old }))
            })
            .await?;
        Ok(json!({}))
    }

    pub(super) async fn revoke_external(&self, request: &wire::Named) -> Result<Value, Refusal> {
        if request.endpoint_id.is_empty() {
            return Err(Refusal::new("EndpointID is missing"));
        }
        let endpoint = request.endpoint_id.clone();
        blocking(move || Self::unmap_ports(&endpoint)).await?;
        let item = DockerItem::Endpoint(request.endpoint_id.clone());
        self.state
            .change(&item, |old: Option<EndpointRecord>| {
                Ok(old.map(|old| EndpointRecord { ports: Vec::new(), ..old }))
            })
            .await?;
        Ok(json!({}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(host_port: u16, host_port_end: u16) -> wire::PortBinding {
        wire::PortBinding { proto: 6, port: 80, host_ip: "127.0.0.1".into(), host_port, host_port_end }
    }

    #[test]
    fn ports_that_are_taken_are_passed_over_or_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = listener.local_addr().unwrap().port();
        let error = choose(&[binding(busy, busy)], &BTreeSet::new()).unwrap_err().to_string();
        assert!(error.contains("already allocated") && error.contains(&busy.to_string()), "{error}");
        let chosen = choose(&[binding(0, 0), binding(0, 0)], &BTreeSet::new()).unwrap();
        assert_ne!(chosen[0].host_port, chosen[1].host_port);
        assert!(chosen.iter().all(|port| port.host_port != 0 && port.port == 80));
        let first = chosen[0].host_port;
        let error = choose(&[binding(first, first)], &BTreeSet::from([(6, first)])).unwrap_err();
        assert!(error.to_string().contains("already allocated"), "another container has it");
        assert!(choose(&[wire::PortBinding { proto: 47, ..binding(1, 1) }], &BTreeSet::new()).is_err());
    }
}
