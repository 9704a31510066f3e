//! Compares an interface and its endpoint with the attach request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_config::Dialect;
use tortie_engine::writer::StoredEndpoint;
use tortie_net::Cidr;

use super::endpoint::{stored_endpoint, writer};
use super::error::{AttachError, blocking};
use super::request::{AttachRequest, LinkSpec};
use tortie_kernel::container::{self, ContainerNetError, GATEWAY, Namespace};
use tortie_store::Store;

/// A difference between the desired and the actual state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Item, such as `route 169.254.1.1/32 in the container`.
    pub what: String,
    /// Desired value.
    pub wanted: String,
    /// Actual value; empty if the item does not exist.
    pub found: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let found = if self.found.is_empty() { "missing" } else { &self.found };
        write!(f, "{}: should be {}, is {found}", self.what, self.wanted)
    }
}

/// Compares the actual state with the desired one: the interfaces in the container and on the host, the
/// endpoint, the bandwidth limits. MAC address and MTU are not compared unless the request sets them, because
/// a later plugin may have changed them.
///
/// # Errors
/// If the state cannot be read. A missing namespace or interface is a difference, not an error.
pub async fn check(store: &dyn Store, wanted: &AttachRequest) -> Result<Vec<Difference>, AttachError> {
    let mut found = endpoint(store, wanted).await?;
    let asked = wanted.clone();
    found.extend(blocking(move || links(&asked)).await??);
    Ok(found)
}

struct Differences(Vec<Difference>);

impl Differences {
    fn compare(&mut self, what: &str, wanted: impl ToString, found: Option<String>) {
        let wanted = wanted.to_string();
        if found.as_ref() != Some(&wanted) {
            self.0.push(Difference { what: what.to_owned(), wanted, found: found.unwrap_or_default() });
        }
    }
}

async fn endpoint(store: &dyn Store, wanted: &AttachRequest) -> Result<Vec<Difference>, AttachError> {
    let writer = writer(store).await?;
    let mut all = Differences(Vec::new());
    let Some(found) = stored_endpoint(store, &wanted.key).await? else {
        all.compare(&writer.endpoint_key(&wanted.key)?, "an endpoint", None);
        return Ok(all.0);
    };
    let StoredEndpoint { title, endpoint, .. } = found;
    let endpoint = endpoint.map_err(|why| AttachError::Unreadable { key: title.clone(), why })?;
    let members = Members::of(writer.dialect());
    let of = |member: &str| format!("{title}: {member}");
    all.compare(&of(members.interface), &wanted.host_ifname, Some(endpoint.name.to_string()));
    let list = |v4: bool| {
        let nets = wanted.addrs.iter().filter(|a| a.is_ipv4() == v4).map(|a| Cidr::host(*a));
        text(nets)
    };
    all.compare(&of(members.nets_v4), list(true), Some(text(endpoint.ipv4_nets.iter().copied())));
    all.compare(&of(members.nets_v6), list(false), Some(text(endpoint.ipv6_nets.iter().copied())));
    if !endpoint.active {
        all.compare(&of("state"), "active", Some("inactive".to_owned()));
    }
    if let Some(instance) = &wanted.instance {
        all.compare(&of(members.instance), instance, endpoint.active_instance_id.clone());
    }
    // Other writers may have added profiles. An earlier version gave pods only one profile.
    if let Some(profile) = writer.profile_names(&wanted.profile).first()
        && !endpoint.profile_ids.contains(profile)
    {
        all.compare(&of(members.profiles), profile, Some(endpoint.profile_ids.join(", ")));
    }
    Ok(all.0)
}

/// Names of the members of an endpoint.
struct Members {
    interface: &'static str,
    nets_v4: &'static str,
    nets_v6: &'static str,
    instance: &'static str,
    profiles: &'static str,
}

impl Members {
    fn of(dialect: Dialect) -> Self {
        match dialect {
            Dialect::V1 => Self {
                interface: "name",
                nets_v4: "ipv4_nets",
                nets_v6: "ipv6_nets",
                instance: "active_instance_id",
                profiles: "profile_ids",
            },
            Dialect::V3 => Self {
                interface: "interfaceName",
                nets_v4: "ipNetworks",
                nets_v6: "ipNetworks",
                instance: "containerID",
                profiles: "profiles",
            },
        }
    }
}

fn text(nets: impl Iterator<Item = Cidr>) -> String {
    let mut all: Vec<Cidr> = nets.collect();
    all.sort_unstable();
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn links(wanted: &AttachRequest) -> Result<Vec<Difference>, ContainerNetError> {
    let mut all = Differences(Vec::new());
    let host = &wanted.host_ifname;
    let on_host = |what: &str| format!("{host} on this host: {what}");
    let mut router = None;
    match container::inspect_host_side(host, &wanted.addrs)? {
        None => all.compare(&format!("{host} on this host"), "an interface", None),
        Some(outside) => {
            router = outside.link_local;
            if !outside.up {
                all.compare(&on_host("state"), "up", Some("down".to_owned()));
            }
            for addr in &outside.misplaced_routes {
                all.compare(&on_host(&format!("route to {addr}")), "there", None);
            }
            if outside.wrong_sysctls > 0 {
                let found = format!("{} of them otherwise", outside.wrong_sysctls);
                all.compare(&on_host("sysctls"), "as workloads' interfaces have them", Some(found));
            }
            if router.is_none() && wanted.addrs.iter().any(IpAddr::is_ipv6) {
                all.compare(&on_host("link-local address"), "the containers' IPv6 router", None);
            }
        }
    }
    if let LinkSpec::Existing { inside: None, .. } = wanted.link {
        return Ok(all.0);
    }
    let namespace = match Namespace::open(&wanted.netns) {
        Ok(namespace) => namespace,
        Err(error @ (ContainerNetError::NoNamespace(_) | ContainerNetError::NotNamespace { .. })) => {
            let path = wanted.netns.display().to_string();
            all.compare(&path, "the container's network namespace", Some(error.to_string()));
            return Ok(all.0);
        }
        Err(error) => return Err(error),
    };
    let name = &wanted.ifname;
    let Some(inside) = container::inspect_container(&namespace, name)? else {
        all.compare(&format!("{name} in the container"), "an interface", None);
        return Ok(all.0);
    };
    let within = |what: &str| format!("{name} in the container: {what}");
    if !inside.up {
        all.compare(&within("state"), "up", Some("down".to_owned()));
    }
    if let Some(mac) = wanted.mac {
        all.compare(&within("MAC address"), mac, inside.mac.map(|mac| mac.to_string()));
    }
    if let Some(mtu) = wanted.mtu {
        all.compare(&within("MTU"), mtu, Some(inside.mtu.to_string()));
    }
    for addr in &wanted.addrs {
        if !inside.addrs.iter().any(|(found, _)| found == addr) {
            all.compare(&within(&format!("address {addr}")), "there", None);
        }
    }
    let everywhere = [Cidr::v4(Ipv4Addr::UNSPECIFIED, 0), Cidr::v6(Ipv6Addr::UNSPECIFIED, 0)];
    for prefix in wanted.routes.as_deref().unwrap_or(&everywhere) {
        if !wanted.addrs.iter().any(|addr| addr.is_ipv4() == prefix.is_v4()) {
            continue;
        }
        let gateway = if prefix.is_v4() { Some(IpAddr::V4(GATEWAY)) } else { router.map(IpAddr::V6) };
        if !inside.routes.iter().any(|(to, via)| to == prefix && *via == gateway) {
            let via = gateway.map(|gateway| format!("via {gateway}")).unwrap_or_default();
            all.compare(&within(&format!("route to {prefix}")), via, None);
        }
    }
    // A container with one interface needs no rules, and interfaces made by older versions have none.
    for addr in wanted.addrs.iter().filter(|addr| !inside.alone && !inside.source_rules.contains(addr)) {
        all.compare(&within(&format!("rule for packets from {addr}")), "there", None);
    }
    let (to, from) = container::shaped(host)?;
    let octets = |rate: Option<container::Rate>| rate.map(|rate| (rate.bits / 8).to_string());
    for (what, wanted, found) in
        [("ingress limit", wanted.bandwidth.ingress, to), ("egress limit", wanted.bandwidth.egress, from)]
    {
        // If the kernel has no ifb, the egress limit is not at this interface.
        if let (Some(wanted), Some(found)) = (octets(wanted), found) {
            all.compare(&on_host(what), wanted, Some(found.to_string()));
        } else if let (Some(wanted), None, "ingress limit") = (octets(wanted), found, what) {
            all.compare(&on_host(what), wanted, None);
        }
    }
    let tables = if wanted.ports.is_empty() { Vec::new() } else { container::mapped_tables("")? };
    if !wanted.ports.is_empty()
        && !tables.iter().any(|table| *table == wanted.ports_table || *table == wanted.former_ports_table)
    {
        all.compare(&format!("table inet {}", wanted.ports_table), "the port mappings", None);
    }
    Ok(all.0)
}
