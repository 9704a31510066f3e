//! `tortie-cni`: a container's interface, its addresses and its endpoint.
//!
//! As first plugin of a chain it creates a veth pair; later in a chain it uses the interface that an earlier
//! plugin created. Addresses come from Tortie's IPAM in this process, from another IPAM plugin, or from the
//! earlier plugin.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tortie_config::resource::{InterfaceName, MacAddr};
use tortie_net::Cidr;

use crate::plugins::attach::{self, Absent, AttachRequest, Attachment, DetachRequest, LinkSpec};
use crate::plugins::cni::addresses::AddressAllocator;
use crate::plugins::cni::addresses::names::{Identity, handle};
use crate::plugins::cni::call::{Call, ExistingAttachment, NO_RESULT, collect, endpoint_at, endpoints_of};
use crate::plugins::cni::mtu;
use crate::plugins::cni::protocol::address::Address;
use crate::plugins::cni::protocol::env::Command;
use crate::plugins::cni::protocol::error::{CniError, code};
use crate::plugins::cni::protocol::result::{CniResult, Interface, Ip, Route};
use tortie_engine::ipam::Ipam;
use tortie_kernel::container::{self, HOST_MAC, PORTS_PREFIX};
use tortie_store::Store;

type Answer = Result<Option<Value>, CniError>;

/// Executes a call and returns its result.
pub(super) async fn answer(call: &Call) -> Answer {
    match call.env.command {
        Command::Add => add(call).await,
        Command::Del => del(call).await,
        Command::Check => check(call).await,
        Command::Gc => gc(call).await,
        Command::Status => super::status::answer(call, true).await,
        Command::Version => Ok(NO_RESULT),
    }
}

fn netns(call: &Call) -> Result<PathBuf, CniError> {
    let missing = || CniError::new(code::ENVIRONMENT, "CNI_NETNS is missing");
    call.env.netns.clone().ok_or_else(missing)
}

fn ifname(call: &Call) -> Result<InterfaceName, CniError> {
    call.env.ifname.parse().map_err(|error| CniError::new(code::ENVIRONMENT, format!("CNI_IFNAME: {error}")))
}

/// Returns the name of the table for port mappings, and its name in earlier versions.
fn ports_tables(container_id: &str, ifname: &str) -> [String; 2] {
    let id = format!("{container_id} {ifname}");
    [container::ports_table(PORTS_PREFIX, &id), container::former_ports_table(PORTS_PREFIX, &id)]
}

/// Returns the addresses in the result of earlier plugins.
fn given(call: &Call) -> Vec<IpAddr> {
    call.config.prev_result.iter().flat_map(|result| &result.ips).map(|ip| ip.address.ip).collect()
}

fn wanted(
    call: &Call,
    identity: &Identity,
    link: LinkSpec,
    addrs: Vec<IpAddr>,
) -> Result<AttachRequest, CniError> {
    let config = &call.config;
    let routes: Vec<Cidr> = config
        .ipam
        .frame
        .routes
        .iter()
        .filter_map(|route| Cidr::new(route.dst.ip, route.dst.len).ok())
        .collect();
    let [ports_table, former_ports_table] = ports_tables(&call.env.container_id, &call.env.ifname);
    Ok(AttachRequest {
        key: identity.key.clone(),
        netns: netns(call)?,
        ifname: ifname(call)?,
        host_ifname: identity.host_ifname.clone(),
        link,
        mac: config.runtime.mac.or(call.args.mac),
        mtu: config.mtu,
        addrs,
        routes: Some(routes).filter(|routes| !routes.is_empty()),
        profile: identity.profile.clone(),
        labels: identity.labels.clone(),
        instance: Some(call.env.container_id.clone()),
        ports: config.runtime.ports.clone(),
        ports_table,
        former_ports_table,
        bandwidth: config.runtime.bandwidth,
    })
}

async fn add(call: &Call) -> Answer {
    let identity = call.identity()?;
    let link = link(call)?;
    // This check precedes the allocation, because most failing calls name a namespace that is gone.
    let netns = netns(call)?;
    if !netns.exists() {
        let msg = format!("CNI_NETNS is \"{}\", which does not exist", netns.display());
        return Err(CniError::new(code::ENVIRONMENT, msg));
    }
    free_name(&link, &netns, &ifname(call)?)?;
    // These checks prevent writes for another host, or during a freeze.
    let store = call.store().await?;
    attach::ready(&*store).await?;
    let excluded = attach::preflight(&*store, &call.agent(), &call.node, Absent::Waits).await?;
    // The MTU of an interface that another plugin made is that plugin's.
    let mtu = match link {
        LinkSpec::Veth => mtu::mtu(&call.config, store.dialect().await?)?,
        LinkSpec::Existing { .. } => call.config.mtu,
    };
    let given = given(call);
    if given.is_empty() {
        let (store, result) = match call.delegate()? {
            Some(delegate) => {
                let given = delegate.add(&call.input, call.config.version).await?;
                let addrs = given.ips.iter().map(|ip| ip.address.ip).collect();
                let result = attach(call, &*store, &identity, (link, mtu), addrs).await;
                if result.is_err() {
                    let _ = delegate.call(Command::Del, &call.input).await;
                }
                let result = result.map(|mut result| {
                    if call.config.wanted_dns().is_none() && !given.dns.is_empty() {
                        result.dns = given.dns;
                    }
                    result
                });
                (store, result)
            }
            None => {
                let ipam = Ipam::new(store.clone()).excluding(excluded);
                let holder = AddressAllocator {
                    ipam: &ipam,
                    config: &call.config,
                    node: &call.node,
                    identity: &identity,
                };
                let given = holder.assign(&call.args).await?;
                let addrs = given.iter().map(|(_, given)| given.addr).collect();
                let result = attach(call, &*store, &identity, (link, mtu), addrs).await;
                if result.is_err()
                    && let Err(error) = holder.release(&[]).await
                {
                    tracing::warn!(target: "tortie", %error, "addresses could not be released; DEL does it");
                }
                (store, result)
            }
        };
        drop(store);
        return result.map(|result| Some(result.to_json(call.config.version)));
    }
    let asked = &call.config.runtime.ips;
    if let Some(other) = asked.iter().find(|ip| !given.contains(ip)) {
        let expected = "the earlier plugin of the chain gave other addresses; ask it for this one";
        return Err(CniError::value("runtimeConfig.ips", &other.to_string().into(), expected));
    }
    let result = attach(call, &*store, &identity, (link, mtu), given).await?;
    Ok(Some(result.to_json(call.config.version)))
}

/// Returns the kind of interface: a new one, or the one that an earlier plugin created.
fn link(call: &Call) -> Result<LinkSpec, CniError> {
    let Some(result) = &call.config.prev_result else { return Ok(LinkSpec::Veth) };
    let inside = result.interfaces.iter().find(|i| !i.sandbox.is_empty() && i.name == call.env.ifname);
    let mut hosts = Vec::new();
    for interface in result.interfaces.iter().filter(|i| i.sandbox.is_empty()) {
        let name = parse_name(&interface.name)?;
        // Results also contain bridges and uplinks; only a veth end or a tap device belongs to a workload.
        let found = container::inspect_host_side(&name, &[])
            .map_err(|e| CniError::new(code::KERNEL, e.to_string()))?;
        match found {
            Some(found) if matches!(found.kind.as_str(), "veth" | "tun" | "netkit") => hosts.push(name),
            Some(_) => {}
            None => {
                let msg = format!("`prevResult` names {name}, which does not exist on this host");
                return Err(CniError::new(code::CONFIG, msg));
            }
        }
    }
    let inside = inside.map(|interface| parse_name(&interface.name)).transpose()?;
    match (hosts.as_slice(), inside) {
        ([], None) => Ok(LinkSpec::Veth),
        ([host], inside) => Ok(LinkSpec::Existing { host: host.clone(), inside }),
        ([], Some(inside)) => {
            let msg = format!(
                "`prevResult`: {inside} has no end on this host (a pair or a tap), so no policy could be applied to it"
            );
            Err(CniError::new(code::CONFIG, msg))
        }
        (several, _) => {
            let names: Vec<&str> = several.iter().map(InterfaceName::as_str).collect();
            let msg =
                format!("`prevResult` has several interfaces of this host, {}: which one?", names.join(", "));
            Err(CniError::new(code::CONFIG, msg))
        }
    }
}

/// Rejects a second `ADD` for an interface before the addresses of the first one are released.
fn free_name(link: &LinkSpec, netns: &Path, ifname: &InterfaceName) -> Result<(), CniError> {
    if *link != LinkSpec::Veth {
        return Ok(());
    }
    let of = |error: container::ContainerNetError| CniError::from(attach::AttachError::Network(error));
    let namespace = container::Namespace::open(netns).map_err(of)?;
    match container::inspect_container(&namespace, ifname).map_err(of)? {
        Some(_) => {
            let msg =
                format!("interface {ifname} exists already in the container: DEL comes before another ADD");
            Err(CniError::new(code::KERNEL, msg))
        }
        None => Ok(()),
    }
}

fn parse_name(name: &str) -> Result<InterfaceName, CniError> {
    name.parse().map_err(|error| CniError::new(code::CONFIG, format!("`prevResult.interfaces`: {error}")))
}

async fn attach(
    call: &Call,
    store: &dyn Store,
    identity: &Identity,
    (link, mtu): (LinkSpec, Option<u32>),
    addrs: Vec<IpAddr>,
) -> Result<CniResult, CniError> {
    let wanted = AttachRequest { mtu, ..wanted(call, identity, link, addrs)? };
    let attached = attach::attach(store, &call.agent(), &wanted).await?;
    for note in &attached.notes {
        tracing::info!(target: "tortie", container = call.env.container_id, "{note}");
    }
    let mut result = result(call, &wanted, &attached);
    if let Some(dns) = call.config.wanted_dns() {
        result.dns = dns.clone();
    }
    Ok(result)
}

/// Returns the result of the call: the earlier result, extended by this plugin.
fn result(call: &Call, wanted: &AttachRequest, attached: &Attachment) -> CniResult {
    let mut result = call.config.prev_result.clone().unwrap_or_default();
    let mac = |mac: Option<MacAddr>| mac.map(|mac| mac.to_string()).unwrap_or_default();
    let mtu = Some(u64::from(attached.mtu));
    match &wanted.link {
        LinkSpec::Veth => {
            result.interfaces.push(Interface {
                name: attached.host_ifname.to_string(),
                mac: attached.host_mac.to_string(),
                mtu,
                ..Interface::default()
            });
            result.interfaces.push(Interface {
                name: wanted.ifname.to_string(),
                mac: mac(attached.mac),
                mtu,
                sandbox: wanted.netns.display().to_string(),
                ..Interface::default()
            });
        }
        LinkSpec::Existing { host, .. } => {
            for interface in &mut result.interfaces {
                if interface.sandbox.is_empty() && interface.name == host.as_str() {
                    interface.name = attached.host_ifname.to_string();
                    interface.mac = attached.host_mac.to_string();
                } else if interface.name == wanted.ifname.as_str()
                    && let Some(mac) = attached.mac
                {
                    interface.mac = mac.to_string();
                }
            }
        }
    }
    let place = |name: &str| result.interfaces.iter().position(|interface| interface.name == name);
    // A virtual machine behind a tap device has no interface in a namespace.
    let interface = place(wanted.ifname.as_str()).or_else(|| place(attached.host_ifname.as_str()));
    if !result.ips.is_empty() {
        for ip in result.ips.iter_mut().filter(|ip| ip.interface.is_none()) {
            ip.interface = interface;
        }
        return result;
    }
    for addr in &wanted.addrs {
        let gateway = attached.gateways.iter().find(|gateway| gateway.is_ipv4() == addr.is_ipv4()).copied();
        result.ips.push(Ip { address: Address::host(*addr), gateway, interface });
    }
    for gateway in &attached.gateways {
        let everywhere = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        let said = wanted.routes.as_ref().map(|routes| routes.iter().map(ToString::to_string).collect());
        for dst in said.unwrap_or_else(|| vec![everywhere.to_owned()]) {
            let Ok(dst) = dst.parse::<Address>() else { continue };
            if dst.ip.is_ipv4() == gateway.is_ipv4() {
                result.routes.push(Route { dst, gw: Some(*gateway), extra: serde_json::Map::new() });
            }
        }
    }
    result
}

async fn del(call: &Call) -> Answer {
    let identity = call.identity()?;
    let foreign = call.forward(Command::Del).await;
    if call.no_store() {
        tracing::info!(target: "tortie", "there is no store, so there is nothing to remove");
        return foreign.map(|()| NO_RESULT);
    }
    let store = call.store().await?;
    let mut found = endpoint_at(&*store, &identity.key).await?;
    if found.is_none() && identity.pod.is_none() {
        // The key of a pod's endpoint does not contain the container id, and some runtimes omit the pod's
        // name in DEL.
        found = endpoints_of(&*store, &call.node).await?.into_iter().find(|found| {
            let same = &found.attachment;
            same.container_id == call.env.container_id && same.ifname == call.env.ifname
        });
    }
    let instance = call.env.container_id.clone();
    let removed = remove(call, &*store, &identity, found.as_ref(), instance).await;
    let released = match call.config.ipam.foreign {
        Some(_) => Ok(()),
        None => {
            let ipam = Ipam::new(store.clone());
            let holder =
                AddressAllocator { ipam: &ipam, config: &call.config, node: &call.node, identity: &identity };
            let ours = found.as_ref().filter(|found| found.attachment.container_id == call.env.container_id);
            let released = holder.release(&ours.map(ExistingAttachment::addrs).unwrap_or_default()).await;
            released.and(release_former_network(call, &ipam, ours).await)
        }
    };
    removed.and(released).and(foreign).map(|()| NO_RESULT)
}

/// Releases addresses under the network's former name, which the endpoint has, if the network was renamed
/// since the `ADD`.
async fn release_former_network(
    call: &Call,
    ipam: &Ipam,
    found: Option<&ExistingAttachment>,
) -> Result<(), CniError> {
    let Some(former) = found.filter(|found| found.network().is_some_and(|name| name != call.config.name))
    else {
        return Ok(());
    };
    let network = former.network().unwrap_or_default();
    let held = handle(network, &former.attachment.container_id, &former.attachment.ifname);
    Ok(ipam.release(&former.addrs(), Some(&held)).await.map(drop)?)
}

/// Removes an endpoint with its interface, if it belongs to this container. The caller releases addresses
/// afterwards, so that no other container gets one that still leads here.
async fn remove(
    call: &Call,
    store: &dyn Store,
    identity: &Identity,
    found: Option<&ExistingAttachment>,
    container_id: String,
) -> Result<(), CniError> {
    let host_ifname = found.map_or(&identity.host_ifname, |found| &found.endpoint.name).clone();
    let ifname = found.map_or(&call.env.ifname, |found| &found.attachment.ifname);
    let [ports_table, former_ports_table] = ports_tables(&container_id, ifname);
    let leaving = DetachRequest {
        key: found.map_or(&identity.key, |found| &found.key).clone(),
        own_link: own_link(&host_ifname),
        host_ifname,
        netns: call.env.netns.clone(),
        ifname: ifname
            .parse()
            .map_err(|_| CniError::new(code::STORE, format!("endpoint {ifname} is no interface name")))?,
        ports_table,
        former_ports_table,
        instance: Some(container_id),
    };
    Ok(attach::detach(store, &call.agent(), &leaving).await?)
}

/// True if Tortie created the interface: those have Calico's MAC address, and interfaces of earlier plugins
/// keep their own.
fn own_link(name: &InterfaceName) -> bool {
    let found = container::inspect_host_side(name, &[]).ok().flatten();
    found.is_none_or(|found| found.kind == "veth" && found.mac == Some(HOST_MAC))
}

async fn check(call: &Call) -> Answer {
    let Some(result) = &call.config.prev_result else {
        return Err(CniError::new(code::CONFIG, "CHECK needs `prevResult`, the result of the ADD"));
    };
    let identity = call.identity()?;
    let inside = result.interfaces.iter().position(|i| !i.sandbox.is_empty() && i.name == call.env.ifname);
    let addrs: Vec<IpAddr> = result
        .ips
        .iter()
        .filter(|ip| inside.is_none() || ip.interface.is_none() || ip.interface == inside)
        .map(|ip| ip.address.ip)
        .collect();
    if addrs.is_empty() {
        let msg = format!("`prevResult` has no address of {}", call.env.ifname);
        return Err(CniError::new(code::CONFIG, msg));
    }
    let host = identity.host_ifname.clone();
    let link = match (own_link(&host), inside) {
        (true, _) => LinkSpec::Veth,
        (false, Some(_)) => LinkSpec::Existing { host, inside: Some(ifname(call)?) },
        (false, None) => LinkSpec::Existing { host, inside: None },
    };
    let store = call.store().await?;
    // A later plugin (tuning) may have changed MAC address or MTU, and checks them itself.
    let wanted = AttachRequest { mac: None, mtu: None, ..wanted(call, &identity, link, addrs.clone())? };
    let differences = attach::check(&*store, &wanted).await?;
    let mut wrong: Vec<String> = differences.iter().map(ToString::to_string).collect();
    let ipam = Ipam::new(store.clone());
    let holder =
        AddressAllocator { ipam: &ipam, config: &call.config, node: &call.node, identity: &identity };
    // Addresses of an earlier plugin are not allocated by IPAM.
    let ours = wanted.link == LinkSpec::Veth || !ipam.allocated_to(&identity.handle).await?.is_empty();
    if call.config.ipam.foreign.is_none() && ours {
        for addr in holder.missing_families(&addrs).await? {
            wrong.push(format!("address {addr}: should be held by `{}` in IPAM, is not", identity.handle));
        }
    }
    if !wrong.is_empty() {
        return Err(CniError::new(code::CHECK, wrong.join("; ")));
    }
    call.forward(Command::Check).await.map(|()| NO_RESULT)
}

/// Removes every endpoint of this network on this host that is not listed, and releases addresses without
/// endpoint. Continues after errors.
async fn gc(call: &Call) -> Answer {
    let Some(valid) = &call.config.valid_attachments else {
        let msg = "`cni.dev/valid-attachments` is missing: without it everything would be removed";
        return Err(CniError::new(code::CONFIG, msg));
    };
    let foreign = call.forward(Command::Gc).await;
    if call.no_store() {
        return foreign.map(|()| NO_RESULT);
    }
    let store = call.store().await?;
    let ipam = Ipam::new(store.clone());
    let mut first = foreign;
    for found in endpoints_of(&*store, &call.node).await? {
        if found.network() != Some(&call.config.name) || valid.contains(&found.attachment) {
            continue;
        }
        let Ok(identity) = Identity::new(
            &call.config,
            &call.args,
            &call.node,
            &found.attachment.container_id,
            &found.attachment.ifname,
        ) else {
            continue;
        };
        tracing::info!(target: "tortie", endpoint = ?found.key, "not listed: removed");
        let instance = found.attachment.container_id.clone();
        let mut done = remove(call, &*store, &identity, Some(&found), instance).await;
        if call.config.ipam.foreign.is_none() {
            let holder =
                AddressAllocator { ipam: &ipam, config: &call.config, node: &call.node, identity: &identity };
            done = done.and(holder.release(&found.addrs()).await);
        }
        first = first.and(done);
    }
    if call.config.ipam.foreign.is_none() {
        let collected = collect(&ipam, &call.config.name, &call.node, valid).await;
        first = first.and(collected.map(|addrs| {
            if !addrs.is_empty() {
                tracing::info!(target: "tortie", ?addrs, "released addresses that no listed container has");
            }
        }));
    }
    first.map(|()| NO_RESULT)
}
