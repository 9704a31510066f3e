//! Names of interfaces, and the order in which they are made and taken back.

use std::net::IpAddr;

use tortie_config::key::EndpointKey;
use tortie_config::resource::{InterfaceName, MacAddr, ValueError};

use super::error::AttachError;
use super::request::{AttachRequest, DetachRequest, LinkSpec};
use tortie_kernel::container::{
    self, Adopted, ContainerNetError, GATEWAY, HOST_MAC, HostSide, HostSpec, InsideSpec, MIN_MTU_V6,
    Namespace, Stripped, VethSpec,
};

/// Longest text that the kernel keeps with an interface.
const ALIAS_MAX: usize = 255;
/// Longest name of an interface.
const NAME_MAX: usize = 15;
/// Between that text and the former name of an interface that somebody else made.
const OLD_NAME_PREFIX: &str = " was ";

/// The name of a host interface: the prefix, then 11 characters: the first ones of an id in hexadecimal digits (32 or more,
/// dashes do not count), else those of a hash of the text.
///
/// # Errors
/// When the prefix leaves no room for 11 characters, or is no part of an interface name.
pub fn host_interface(prefix: &str, id: &str) -> Result<InterfaceName, String> {
    if prefix.is_empty() || prefix.len() > 4 || !prefix.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(format!("interface prefix `{prefix}`: write 1 to 4 letters and digits, such as cali"));
    }
    let digits: String = id.chars().filter(|c| *c != '-').collect();
    let tail = if digits.len() >= 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        digits.get(..11).unwrap_or_default().to_owned()
    } else {
        format!("{:016x}", container::hash(id)).get(..11).unwrap_or_default().to_owned()
    };
    format!("{prefix}{tail}").parse().map_err(|error: ValueError| error.to_string())
}

/// What is written to the interface of an endpoint, and tells whose it is (`ip link` shows it).
#[must_use]
pub fn alias(key: &EndpointKey) -> String {
    let text = match key {
        EndpointKey::Workload { orchestrator, workload, endpoint, .. } => {
            format!("tortie {orchestrator}/{workload}/{endpoint}")
        }
        EndpointKey::Host { endpoint, .. } => format!("tortie {endpoint}"),
    };
    let room = ALIAS_MAX - OLD_NAME_PREFIX.len() - NAME_MAX;
    text.get(..text.floor_char_boundary(room)).unwrap_or_default().to_owned()
}

/// Whether a text at an interface is this endpoint's; with the former name of an interface that somebody else made.
fn is_of<'a>(found: &'a str, alias: &str) -> Option<Option<&'a str>> {
    let rest = found.strip_prefix(alias)?;
    if rest.is_empty() { Some(None) } else { rest.strip_prefix(OLD_NAME_PREFIX).map(Some) }
}

/// What makes no sense is said before anything is changed.
pub(super) fn is_valid_prefix(wanted: &AttachRequest) -> Result<(), AttachError> {
    let refuse = |text: String| Err(AttachError::Invalid(text));
    if !matches!(wanted.key, EndpointKey::Workload { .. }) {
        return refuse("a container's endpoint is a workload's".to_owned());
    }
    if wanted.addrs.is_empty() {
        return refuse(format!("{} gets no address", wanted.ifname));
    }
    if let Some(mtu) = wanted.mtu
        && !(68..=65535).contains(&mtu)
    {
        return refuse(format!("MTU {mtu}: write 68 to 65535"));
    }
    if let Some(mtu) = wanted.mtu
        && mtu < MIN_MTU_V6
        && wanted.addrs.iter().any(IpAddr::is_ipv6)
    {
        return Err(ContainerNetError::SmallMtu(mtu).into());
    }
    Ok(())
}

/// What was made, and how it is taken back.
#[derive(Debug)]
pub(super) struct CreatedLink {
    pub(super) host: HostSide,
    pub(super) mac: Option<MacAddr>,
    pub(super) gateways: Vec<IpAddr>,
    pub(super) notes: Vec<String>,
    steps: UndoList,
}

impl CreatedLink {
    /// Takes everything back.
    pub(super) fn undo(self) {
        self.steps.undo();
    }
}

/// What was done, first things first.
#[derive(Debug, Default)]
struct UndoList(Vec<UndoStep>);

#[derive(Debug)]
enum UndoStep {
    Pair(InterfaceName),
    Adopted(Adopted),
    Inside(Stripped),
    Limited(InterfaceName),
    Ports(String),
}

impl UndoList {
    fn undo(self) {
        for step in self.0.into_iter().rev() {
            // What cannot be undone is found by the next try and by `ipam check`; the first error is what counts.
            let _ = match step {
                UndoStep::Pair(name) => container::remove_link(&name).map(drop),
                UndoStep::Adopted(adopted) => container::restore_link(&adopted),
                UndoStep::Inside(stripped) => stripped.undo(),
                UndoStep::Limited(name) => container::unlimit(&name),
                UndoStep::Ports(table) => container::unmap_ports(&table),
            };
        }
    }
}

/// Makes everything that is not the store's.
pub(super) fn make(wanted: &AttachRequest) -> Result<CreatedLink, ContainerNetError> {
    let mut steps = UndoList::default();
    match make_with(wanted, &mut steps) {
        Ok((host, mac, gateways, notes)) => Ok(CreatedLink { host, mac, gateways, notes, steps }),
        Err(error) => {
            steps.undo();
            Err(error)
        }
    }
}

type Parts = (HostSide, Option<MacAddr>, Vec<IpAddr>, Vec<String>);

fn make_with(wanted: &AttachRequest, steps: &mut UndoList) -> Result<Parts, ContainerNetError> {
    let namespace = Namespace::open(&wanted.netns)?;
    let alias = alias(&wanted.key);
    let host = &wanted.host_ifname;
    let mut notes = Vec::new();
    let found = match &wanted.link {
        LinkSpec::Veth => {
            if container::alias_of(host)?.is_some_and(|found| is_of(&found, &alias).is_some()) {
                if container::inspect_container(&namespace, &wanted.ifname)?.is_some() {
                    return Err(ContainerNetError::Exists {
                        name: wanted.ifname.to_string(),
                        place: "in the container",
                    });
                }
                container::remove_link(host)?;
                notes.push(format!("{host} was left over from an earlier try and was replaced"));
            }
            container::create_veth(&VethSpec {
                host,
                host_mac: Some(HOST_MAC),
                peer: &wanted.ifname,
                peer_mac: wanted.mac,
                namespace: Some(&namespace),
                mtu: wanted.mtu,
                alias: &alias,
            })?;
            steps.0.push(UndoStep::Pair(host.clone()));
            Some(&wanted.ifname)
        }
        LinkSpec::Existing { host: now, inside } => {
            steps.0.push(UndoStep::Adopted(container::take_link(
                now,
                host,
                &format!("{alias}{OLD_NAME_PREFIX}{now}"),
            )?));
            inside.as_ref()
        }
    };
    let side = container::host_side(&HostSpec { name: host, addrs: &wanted.addrs, mtu: wanted.mtu })?;
    let mac = match found {
        None => wanted.mac,
        Some(found) => {
            let spec = InsideSpec {
                existing: found,
                name: &wanted.ifname,
                mac: wanted.mac,
                mtu: wanted.mtu,
                addrs: &wanted.addrs,
                host_mac: side.mac,
                link_local: side.link_local,
                routes: wanted.routes.as_deref(),
            };
            let (mac, stripped) = container::configure_container(&namespace, &spec)?;
            // With a pair of our own the interface goes as a whole.
            if matches!(wanted.link, LinkSpec::Existing { .. }) {
                steps.0.push(UndoStep::Inside(stripped));
            }
            Some(mac)
        }
    };
    container::host_routes(host, &wanted.addrs)?;
    if wanted.bandwidth != container::Bandwidth::default() {
        steps.0.push(UndoStep::Limited(host.clone()));
        container::limit(host, &wanted.bandwidth, found.map(|_| (&namespace, &wanted.ifname)))?;
    }
    if !wanted.ports.is_empty() {
        steps.0.push(UndoStep::Ports(wanted.ports_table.clone()));
        container::map_ports(&wanted.ports_table, &wanted.addrs, &wanted.ports)?;
    }
    let mut gateways = Vec::new();
    if wanted.addrs.iter().any(IpAddr::is_ipv4) {
        gateways.push(IpAddr::V4(GATEWAY));
    }
    gateways.extend(side.link_local.map(IpAddr::V6));
    Ok((side, mac, gateways, notes))
}

/// Removes the interface of an endpoint, with its bandwidth.
pub(super) fn clear(leaving: &DetachRequest) -> Result<(), ContainerNetError> {
    let host = &leaving.host_ifname;
    let (found, alias) = (container::alias_of(host)?, alias(&leaving.key));
    // A name is 44 bits of an id: whose interface it is says the text at it.
    let was = match found.as_deref() {
        None | Some("") => None,
        Some(found) => match is_of(found, &alias) {
            Some(was) => was,
            None => return Ok(()),
        },
    };
    let first = container::unlimit(host);
    let removed = match was {
        Some(was) => first.and(container::unmark(host, was)),
        None if leaving.own_link => first.and(container::remove_link(host).map(drop)),
        None => first,
    };
    // Behind the interface, whose going makes its rules those of nothing.
    removed.and(leaving.netns.as_deref().map_or(Ok(()), container::sweep_source_rules))
}
