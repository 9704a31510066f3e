//! Kurma's calls `add` and `del`, which attach and detach a container.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_config::key::EndpointKey;
use tortie_config::resource::InterfaceName;
use tortie_net::Cidr;

use super::config::Settings;
use super::container::Container;
use super::deadline::{CLEANUP, LIMIT, within};
use super::error::KurmaError;
use super::host::{HostAccess, open_host};
use crate::plugins::attach::{
    Absent, AttachRequest, Attachment, DetachRequest, LinkSpec, ProfileChoice, allocate, attach, detach,
    host_interface, may_remove, preflight, ready, stored_endpoints, writer,
};
use crate::plugins::cni::{
    Address, CniResult, EnvArgs, Ip, NETWORK_LABEL, PoolNames, Route, Version, address_requests,
};
use tortie_engine::ipam::{AllocationRequest, Ipam};
use tortie_kernel::container::{self, ContainerNetError, Namespace};
use tortie_store::{Store, StoreError};

/// Name of the orchestrator in keys, and in the attributes of addresses.
pub(super) const ORCHESTRATOR: &str = "kurma";

/// Returns the handle of one container's addresses in one network.
pub(super) fn handle(settings: &Settings, uuid: &str) -> String {
    format!("kurma.{uuid}.{}", settings.config.name)
}

/// Returns the endpoint key of one interface of one container.
pub(super) fn key(settings: &Settings, uuid: &str, ifname: &str) -> EndpointKey {
    EndpointKey::Workload {
        host: settings.node.clone(),
        orchestrator: ORCHESTRATOR.to_owned(),
        workload: uuid.to_owned(),
        endpoint: ifname.to_owned(),
    }
}

/// Returns the name of the table for port mappings of one interface, and its name in earlier versions.
pub(super) fn tables(settings: &Settings, uuid: &str, ifname: &str) -> [String; 2] {
    let id = format!("{} {uuid} {ifname}", settings.config.name);
    [
        container::ports_table(&settings.ports_prefix, &id),
        container::former_ports_table(&settings.former_ports_prefix, &id),
    ]
}

fn interface(settings: &Settings, uuid: &str, ifname: &str) -> Result<InterfaceName, KurmaError> {
    // Two interfaces of one container need two interfaces on the host.
    let id = if ifname == "eth0" { uuid.to_owned() } else { format!("{uuid}.{ifname}") };
    host_interface(&settings.config.interface_prefix, &id).map_err(KurmaError)
}

/// Attaches a container: allocates addresses, creates the interface, writes the endpoint and waits for the
/// agent. On an error everything is undone.
pub(super) async fn add(
    settings: &Settings,
    container: Container,
    deadline: Instant,
) -> Result<Value, KurmaError> {
    let limit = deadline.saturating_duration_since(Instant::now());
    let mut open_host = within(limit, open_host(settings, Some(&container.netns))).await?;
    open_host.agent.deadline = Some(deadline);
    let netns = open_host.netns.clone().unwrap_or_else(|| container.netns.clone());
    let wanted = wanted(settings, &container, netns)?;
    // This check precedes the allocation, because a repeated call must not release the addresses of the first
    // one.
    refuse_repetition(&wanted, &container)?;
    let left = deadline.saturating_duration_since(Instant::now());
    let done = match tokio::time::timeout(left, give(settings, &open_host, &container, wanted.clone())).await
    {
        Ok(done) => done,
        Err(_) => {
            let limit = LIMIT.as_secs();
            Err(KurmaError(format!("not done within {limit} s: is the store reachable? See `tortie status`")))
        }
    };
    match done {
        Ok((wanted, attached)) => Ok(result(settings, &wanted, &attached)),
        Err(error) => {
            // `attach` undoes its own steps unless it timed out; the addresses must be released here.
            let back = async {
                let _ = remove(&open_host, &wanted).await;
                let ipam = Ipam::new(open_host.store.clone());
                let _ = ipam.release_handle(&handle(settings, &container.uuid)).await;
            };
            let _ = tokio::time::timeout(CLEANUP, back).await;
            Err(error)
        }
    }
}

fn refuse_repetition(wanted: &AttachRequest, container: &Container) -> Result<(), KurmaError> {
    let shown = |error: ContainerNetError| match error {
        ContainerNetError::NoNamespace(_) => {
            KurmaError(ContainerNetError::NoNamespace(container.netns.clone()).to_string())
        }
        other => other.into(),
    };
    let namespace = Namespace::open(&wanted.netns).map_err(shown)?;
    match container::inspect_container(&namespace, &wanted.ifname)? {
        Some(_) => {
            let name = wanted.ifname.to_string();
            Err(ContainerNetError::Exists { name, place: "in the container" }.into())
        }
        None => Ok(()),
    }
}

async fn give(
    settings: &Settings,
    open_host: &HostAccess,
    container: &Container,
    mut wanted: AttachRequest,
) -> Result<(AttachRequest, Attachment), KurmaError> {
    ready(&*open_host.store).await?;
    let excluded = preflight(&*open_host.store, &open_host.agent, &settings.node, Absent::Waits).await?;
    let ipam = Ipam::new(open_host.store.clone()).excluding(excluded);
    let handle = handle(settings, &container.uuid);
    // Releases addresses that a killed call may have left.
    ipam.release_handle(&handle).await?;
    let names = PoolNames::read(&*open_host.store).await?;
    let now = writer(&*open_host.store).await?.attribute_time(jiff::Timestamp::now());
    let attributes = json!({
        "node": settings.node, "timestamp": now, "network": settings.config.name, "orchestrator": ORCHESTRATOR
    });
    let request = AllocationRequest {
        host: settings.node.clone(),
        addresses: address_requests(&settings.config, &EnvArgs::default(), &names)?
            .into_iter()
            .map(|request| request.want)
            .collect(),
        handle: Some(handle),
        attributes: attributes.as_object().cloned().unwrap_or_default(),
        ..AllocationRequest::default()
    };
    wanted.addrs = allocate(&ipam, request, Some(&wanted.host_ifname))
        .await?
        .into_iter()
        .map(|given| given.addr)
        .collect();
    let attached = attach(&*open_host.store, &open_host.agent, &wanted).await?;
    Ok((wanted, attached))
}

fn wanted(
    settings: &Settings,
    container: &Container,
    netns: std::path::PathBuf,
) -> Result<AttachRequest, KurmaError> {
    let Container { uuid, ifname, .. } = container;
    let config = &settings.config;
    let mut labels = config.args.labels.clone();
    labels.insert(NETWORK_LABEL.to_owned(), config.name.clone());
    let routes = config.ipam.frame.routes.iter();
    let routes: Vec<Cidr> = routes.filter_map(|r| Cidr::new(r.dst.ip, r.dst.len).ok()).collect();
    let [ports_table, former_ports_table] = tables(settings, uuid, ifname);
    Ok(AttachRequest {
        key: key(settings, uuid, ifname),
        netns,
        ifname: ifname.parse().map_err(|error| KurmaError(format!("the third argument: {error}")))?,
        host_ifname: interface(settings, uuid, ifname)?,
        link: LinkSpec::Veth,
        mac: config.runtime.mac,
        mtu: config.mtu,
        addrs: Vec::new(),
        routes: Some(routes).filter(|routes| !routes.is_empty()),
        profile: ProfileChoice::Create(config.name.clone()),
        labels,
        instance: Some(uuid.clone()),
        ports: config.runtime.ports.clone(),
        ports_table,
        former_ports_table,
        bandwidth: config.runtime.bandwidth,
    })
}

/// Returns the result, of which Kurma reads only one address per family.
fn result(settings: &Settings, wanted: &AttachRequest, attached: &Attachment) -> Value {
    let mut result = CniResult::default();
    let gateway = |v4: bool| attached.gateways.iter().find(|gateway| gateway.is_ipv4() == v4).copied();
    for addr in &wanted.addrs {
        let gateway = gateway(addr.is_ipv4());
        result.ips.push(Ip { address: Address::host(*addr), gateway, interface: None });
    }
    let everywhere: Vec<String> = ["0.0.0.0/0", "::/0"].map(str::to_owned).to_vec();
    let routes = wanted.routes.as_ref().map(|routes| routes.iter().map(ToString::to_string).collect());
    for dst in routes.unwrap_or(everywhere).iter().filter_map(|dst| dst.parse::<Address>().ok()) {
        if let Some(gw) = gateway(dst.ip.is_ipv4()) {
            result.routes.push(Route { dst, gw: Some(gw), extra: serde_json::Map::new() });
        }
    }
    if let Some(dns) = settings.config.wanted_dns() {
        result.dns = dns.clone();
    }
    result.to_json(Version::V0_2_0)
}

async fn remove(open_host: &HostAccess, wanted: &AttachRequest) -> Result<(), KurmaError> {
    let leaving = DetachRequest {
        key: wanted.key.clone(),
        instance: wanted.instance.clone(),
        host_ifname: wanted.host_ifname.clone(),
        own_link: true,
        netns: None,
        ifname: wanted.ifname.clone(),
        ports_table: wanted.ports_table.clone(),
        former_ports_table: wanted.former_ports_table.clone(),
    };
    Ok(detach(&*open_host.store, &open_host.agent, &leaving).await?)
}

/// Detaches a container: removes everything that it has in this network, whatever interface the call names.
/// The path of its namespace is never opened, because the process id may belong to another container now.
pub(super) async fn del(settings: &Settings, container: &Container) -> Result<(), KurmaError> {
    let open_host = open_host(settings, None).await?;
    may_remove(&*open_host.store).await?;
    clear(settings, &open_host, &container.uuid, Some(&container.ifname)).await
}

/// Removes all interfaces and addresses of a container in this network.
pub(super) async fn clear(
    settings: &Settings,
    open_host: &HostAccess,
    uuid: &str,
    named: Option<&str>,
) -> Result<(), KurmaError> {
    let mut first = Ok(());
    let (mut ours, others) = interfaces(settings, &*open_host.store, uuid).await?;
    // Includes an interface whose endpoint was never written.
    if let Some(named) = named
        && !others.iter().any(|other| other == named)
        && !ours.iter().any(|name| name == named)
    {
        ours.push(named.to_owned());
    }
    for name in ours {
        let Ok(ifname) = name.parse() else { continue };
        let [ports_table, former_ports_table] = tables(settings, uuid, &name);
        let leaving = DetachRequest {
            key: key(settings, uuid, &name),
            instance: Some(uuid.to_owned()),
            host_ifname: interface(settings, uuid, &name)?,
            own_link: true,
            netns: None,
            ifname,
            ports_table,
            former_ports_table,
        };
        let gone = detach(&*open_host.store, &open_host.agent, &leaving).await;
        first = first.and(gone.map_err(KurmaError::from));
    }
    let released = Ipam::new(open_host.store.clone()).release_handle(&handle(settings, uuid)).await;
    first.and(released.map(drop).map_err(KurmaError::from))
}

/// Returns the interface names of a container: those in this network, and those in others.
async fn interfaces(
    settings: &Settings,
    store: &dyn Store,
    uuid: &str,
) -> Result<(Vec<String>, Vec<String>), StoreError> {
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for stored in stored_endpoints(store, &settings.node).await? {
        let EndpointKey::Workload { orchestrator, workload, endpoint, .. } = stored.key else { continue };
        if orchestrator != ORCHESTRATOR || workload != uuid {
            continue;
        }
        let network = stored.endpoint.ok().and_then(|endpoint| endpoint.labels.get(NETWORK_LABEL).cloned());
        match network {
            Some(network) if network != settings.config.name => others.push(endpoint),
            _ => ours.push(endpoint),
        }
    }
    Ok((ours, others))
}

/// Time for which an apparent leftover is observed, because an `add` may still be working on it.
pub(super) const LEFTOVER_GRACE: Duration = Duration::from_secs(2);
